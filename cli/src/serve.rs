//! `hypertrace serve`: records what a VM's guest traces, from outside the VMM.

mod file;
mod socket;

use crate::interrupt::Interrupts;
use crate::output::{prompt, say};
use crate::record::closing;
use crate::recording::Failure;
use crate::{Usage, place, units};
use anyhow::{Context, Result, bail};
use hypertrace_export::escape::Message;
use hypertrace_trace::{SessionConfig, Share, Summary, TraceParent};
use hypertrace_user::{Program, ProgramError, exit_code, pass_signals_on, run_command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Record the events of a VM's guest, from outside of the VMM
///
/// The VMM needs no change. There are two ways:
///
/// With --file, `serve` makes a file that becomes memory of the VM: QEMU's
/// ivshmem-plain gives the file to the guest as a PCI function. The guest's
/// accesses do not trap, and every version of QEMU has ivshmem-plain.
///
/// With --socket, `serve` is the device, in a process of its own: a server of
/// vfio-user, for QEMU from 10.1 on and Cloud Hypervisor. Each reference point is a
/// message to `serve`, sent at the moment when the guest makes the point.
///
/// In both cases, the hypertrace library in the guest finds the device. If a
/// command that starts QEMU is given, `serve` adds the options to this command,
/// runs the command, and records until the command ends. Without such a command,
/// `serve` prints the options, and you start the VM with these options. `serve`
/// then records one VM at a time, until Ctrl-C. The recording goes on when the
/// guest reboots, and when a VM ends and another VM starts.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    verbatim_doc_comment,
    override_usage = "hypertrace serve [OPTIONS] --output DIR --file FILE|--socket PATH [-- VMM [ARGS]...]",
    group = clap::ArgGroup::new("way").required(true).args(["file", "socket"])
)]
pub struct Args {
    /// Make this new file, best on tmpfs
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Size of the file: a power of two, because PCI allows no other sizes
    #[arg(long, value_name = "SIZE", default_value = "16M", conflicts_with = "socket",
          value_parser = file_size)]
    size: u64,

    /// Serve at this socket. An existing socket is replaced if no process serves it; any other file is an
    /// error
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Form of the BARs: 64 (the rings have 64 address bits), or 32 for VMMs that cannot place BARs with 64
    /// address bits
    #[arg(long, value_name = "BITS", default_value = "64", conflicts_with = "file", hide = true,
          value_parser = ["64", "32"])]
    bars: String,

    /// Size of each client's ring, from 64K on: a power of two
    #[arg(long, value_name = "SIZE", default_value = "1M", conflicts_with = "file",
          value_parser = units::ring)]
    ring: u64,

    /// Number of arguments of an event of the interface of 2016
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "file",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    args: u32,

    /// End when the first VM ends. This option needs --socket, because with --file no server can see that a
    /// VM has ended
    #[arg(long, conflicts_with = "file")]
    once: bool,

    /// Directory for the session: new or empty. Start `record -a` or `record -p` with the same directory
    /// after `serve`, not before
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Number of clients: threads of the guest that can trace at the same time. With --file, clients
    /// share the file's size
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,

    /// The caller's span, as in a traceparent header of W3C's Trace Context. This span becomes the parent of
    /// exported spans, and the guest library tells the span to programs that ask
    #[arg(long, value_name = "00-TRACE-SPAN-FLAGS")]
    traceparent: Option<TraceParent>,

    /// Users that may read the session
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Print no line at the start and the end
    #[arg(long, short)]
    quiet: bool,

    /// A command that is or starts QEMU. The command must pass its last arguments to QEMU. The recording ends
    /// when this command ends, so QEMU must not go to the background
    #[arg(last = true, value_name = "VMM")]
    vmm: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace serve --file /dev/shm/vm1 -o S -- qemu-system-x86_64 ...
                                        run a VM, and record until it ends

  hypertrace serve --file /dev/shm/vm1 -o S
                                        and in another terminal:
  qemu-system-x86_64 ... \\
  -object memory-backend-file,id=ht,share=on,mem-path=/dev/shm/vm1,size=16M \\
  -device ivshmem-plain,memdev=ht

  hypertrace serve --socket /run/vm1.sock -o S
  qemu-system-x86_64 ... \\
  -device '{\"driver\":\"vfio-user-pci\",\"x-no-posted-writes\":true,
  \"socket\":{\"type\":\"unix\",\"path\":\"/run/vm1.sock\"}}'

  hypertrace report S | less            show the timeline, also while it runs

SIGTERM and SIGHUP are passed to VMM; SIGINT is left to VMM.

Exit code: that of VMM, or without it 0 after SIGINT, SIGTERM or SIGHUP, or with
--once at the VM's end, if the session is complete; 1 if it is not, 2 for wrong
usage. After a crash of this command with --file:
  hypertrace recover /dev/shm/vm1 S";

/// Parses the size of the file, a power of two because PCI has no other sizes.
fn file_size(text: &str) -> Result<u64, String> {
    units::power_of_two(text, 1 << 20..=16 << 30)
}

/// Checks that the directory of a new file exists.
fn check_parent(option: &str, path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.filter(|parent| !parent.is_dir()) {
        None => Ok(()),
        Some(parent) => bail!(Usage(format!(
            "{option} {}: there is no directory {}; make it first",
            path.display(),
            parent.display()
        ))),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let failure = Failure::default();
    if place::is_live(&args.output) {
        // `record` made this session and writes `session.json`: the server cannot write the same file.
        bail!(Usage(format!(
            "{}: a session is being recorded in it; end that recording, start `hypertrace serve` first, and \
             then `hypertrace record -a` or `-p` with the same -o, which records into the session of `serve`",
            args.output.display()
        )));
    }
    if let Some(file) = &args.file {
        check_parent("--file", file)?;
    }
    if let Some(socket) = &args.socket {
        check_parent("--socket", socket)?;
    }
    let vmm = args.vmm.first().map(|name| Program::find(name)).transpose()?;
    // In a script, the variable that should contain the VMM's command may be empty.
    if vmm.is_none() && std::env::args_os().next_back().is_some_and(|last| last == "--") {
        bail!(Usage("-- is followed by no VMM".into()));
    }
    // Both guards live until the session has ended. If there is a VMM, signals are passed on to the VMM, and
    // the VMM's end ends the recording.
    let _signals = vmm.is_some().then(pass_signals_on);
    let _interrupts = vmm.is_none().then(Interrupts::catch_end);
    let (summary, written, code) = match (&args.file, &args.socket) {
        (Some(file), _) => file::record(args, file, vmm.as_ref(), &failure)?,
        (None, Some(socket)) => socket::record(args, socket, vmm.as_ref(), &failure)?,
        // clap requires `--file` or `--socket`.
        (None, None) => return Ok(ExitCode::from(2)),
    };
    let whole = failure.check(written).with_context(|| {
        format!("{} is incomplete, {} events are lost", args.output.display(), summary.lost)
    });
    match whole {
        Err(why) if code != 0 => say(format_args!("{why:#}")),
        whole => whole?,
    }
    Ok(ExitCode::from(code))
}

/// Returns a path as an absolute path for an option of QEMU, because QEMU may have another current directory.
fn absolute(option: &str, path: &Path) -> Result<String> {
    let whole = std::path::absolute(path)?;
    match whole.into_os_string().into_string() {
        Ok(text) => Ok(text),
        Err(_) => bail!(Usage(format!(
            "{option} {}: QEMU's options are UTF-8: give a path that is, too",
            path.display()
        ))),
    }
}

/// Runs the VMM until the VMM ends. `options` are added to the VMM's arguments. Returns the VMM's exit code.
fn run_vmm(args: &Args, vmm: &Program, options: &[[String; 2]]) -> Result<u8, ProgramError> {
    let mut command = vmm.command();
    command.args(&args.vmm[1..]).args(options.iter().flatten());
    run_command(vmm, command).map(exit_code)
}

/// Returns the configuration of the trace.
fn trace(args: &Args, failure: &Failure) -> SessionConfig {
    let config = failure.of_session(&args.output, args.share);
    config.with(|config| {
        config.trace_parent = args.traceparent;
        config.served = true;
    })
}

/// Says where the events are recorded, and with which options of QEMU a VM is started. Each option stands on
/// a line of its own, so that a user can paste the options.
fn say_start(args: &Args, options: &[[String; 2]]) {
    if args.quiet {
        return;
    }
    let out = args.output.display();
    if !args.vmm.is_empty() {
        return say(format_args!("recording in {out}, until the VMM ends"));
    }
    say(format_args!("recording in {out}, until Ctrl-C; start the VM with:"));
    let lines = options.iter().map(|[name, value]| format!("{name} {}", quoted(value)));
    prompt(format_args!("{}\n", Message(&Vec::from_iter(lines).join(" \\\n"))));
}

/// Quotes an argument for a shell, if the shell would not take the argument as it is.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ",=./_:-".contains(c);
    match argument.chars().all(is_plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    }
}

/// Says what was recorded. `was_reset`: the VM was reset while programs traced.
fn say_end(args: &Args, ring: u64, summary: &Summary, was_reset: bool) {
    if !args.quiet {
        // The clients' rings share the file, so `--size` is the option that makes these rings larger.
        let option = if args.file.is_some() { "--size" } else { "--ring" };
        let mut line = closing(&args.output, (option, ring), args.clients, summary);
        if was_reset {
            line.push_str("; nothing says how many events programs lost when the VM was reset");
        }
        say(line);
        if summary.records > 0 {
            say(format_args!("next: hypertrace regions {}", args.output.display()));
        }
    }
}
