//! `hypertrace record`: the host kernel's events beside a session.

mod guest;

use crate::Usage;
use crate::interrupt::Interrupts;
use crate::kernel;
use crate::output::say;
use crate::recording::Failure;
use anyhow::Result;
use hypertrace_kernel::{Config, Recording, is_incomplete};
use hypertrace_trace::{Session, Share, session_json};
use hypertrace_user::{Program, exit_code, pass_signals_on, run_command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Most time until a signal is seen that came just before the wait for the processes.
const PERIOD: Duration = Duration::from_millis(200);

/// Record the host kernel's events of processes, on the same clock as a session
///
/// The events join the session in DIR, which a VMM or `hypertrace run` writes, or
/// a new one: they are in DIR/kernel.dat, which trace-cmd and KernelShark read,
/// too. Recorded are all threads of the processes, and the threads and processes
/// that they start; a kernel thread that works for them, such as vhost's, is
/// recorded if its number is given, too.
///
/// As root, this uses a private instance of the kernel's trace. As another user,
/// or without tracefs, it records the scheduling of the user's threads by perf.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directory of a session, or a new or empty one
    #[arg(long, value_name = "DIR", required_unless_present = "guest")]
    pub out: Option<PathBuf>,

    /// In a guest: send its kernel's events to the host, into the session of its VM. All
    /// threads are recorded, until Ctrl-C, or until CMD ends
    #[arg(long, conflicts_with_all = ["out", "pid", "share"])]
    guest: bool,

    /// Events of the kernel's trace instead of the usual ones, with * and ?. May be
    /// given several times (default: kvm:kvm_entry kvm:kvm_exit kvm:kvm_fpu kvm:kvm_mmio
    /// kvm:kvm_pio kvm:kvm_userspace_exit sched:sched_switch sched:sched_wakeup
    /// sched:sched_wakeup_new)
    #[arg(long, short, value_name = "SYSTEM:EVENT", value_parser = event)]
    event: Vec<String>,

    /// A process to record, until all of them have ended or Ctrl-C. May be given
    /// several times
    #[arg(long, short, value_name = "PID",
          conflicts_with = "program", value_parser = clap::value_parser!(u32).range(1..=i32::MAX as i64))]
    pid: Vec<u32>,

    /// Size of each CPU's buffer in the kernel's trace, KiB; without root, the size
    /// cannot be chosen (default: 8192; less on machines with more than 64 CPUs)
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    buffer: Option<u32>,

    /// Users that may read the recording
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Print no lines at the start and at the end
    #[arg(long, short)]
    quiet: bool,

    /// A program to run and record, and its arguments
    #[arg(last = true, value_name = "CMD")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace record --out S --pid 1234    the events of a running VMM, beside
                                          its session S
  hypertrace record --out S -- ./program  run a program; S is made
  hypertrace record --out S -e 'kvm:*' -e 'sched:*' --pid 1234
                                          all events of KVM and the scheduler,
                                          which cost more (available_events in
                                          /sys/kernel/tracing lists them)
  trace-cmd report S/kernel.dat           show the kernel's events alone
  hypertrace record --guest -- ./program  in a guest: its kernel's events while
                                          the program runs, for the host

Exit code: with --pid 0 at the end, also after Ctrl-C; with a program, the
program's, as `hypertrace run` gives it; 1 if the recording is incomplete, 2 for
wrong usage.";

/// Parses the name of an event or of several.
fn event(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*' | '?');
        !part.is_empty() && part.chars().all(is_good)
    };
    match text.split_once(':') {
        Some((system, event)) if is_name(system) && is_name(event) => Ok(text.to_owned()),
        _ => Err("an event is SYSTEM:EVENT, such as sched:sched_switch or kvm:*".into()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(out) = &args.out else { return guest::run(args) };
    if args.pid.is_empty() && args.program.is_empty() {
        let why = "nothing to record: give processes, --pid PID, or a program to run, -- CMD";
        return Err(Usage(why.into()).into());
    }
    let program = args.program.first().map(|name| Program::find(name)).transpose()?;
    let mut config = Config::new(out);
    config.events.clone_from(&args.event);
    config.buffer_kib = args.buffer;
    config.pids.clone_from(&args.pid);
    config.share = args.share;
    // Live until the recording has ended: a signal must not leave it unfinished.
    let signals = program.is_some().then(pass_signals_on);
    let interrupts = program.is_none().then(Interrupts::catch);
    kernel::complete(out);
    let failure = Failure::default();
    let own = own_session(out, args.share, &failure)?;
    let mut recording = match kernel::start(&config) {
        Ok(recording) => recording,
        Err(why) => {
            match own {
                // Another recorder has joined it already.
                Some(session) if is_incomplete(out) => drop(session.end()),
                Some(session) => session.abandon(),
                None => {}
            }
            return Err(why);
        }
    };
    let ran = match &program {
        Some(program) => run_program((args, out), program, &mut recording),
        None => {
            wait((args, out), &mut recording);
            Ok(0)
        }
    };
    // First, as it measures the clock once more.
    let written = own.map_or(Ok(()), |session| session.end().1.map_err(Into::into));
    let finished = kernel::finish(recording, args.quiet);
    drop((signals, interrupts));
    let code = ran?;
    match finished.and(failure.check(written)) {
        Ok(()) if args.quiet => {}
        Ok(()) => say(format_args!("next: hypertrace report {} | less", out.display())),
        Err(why) if code != 0 => say(format_args!("{why:#}")),
        Err(why) => return Err(why),
    }
    Ok(ExitCode::from(code))
}

/// Makes a session in a new or empty directory. `None`: there is one already.
fn own_session(dir: &Path, share: Share, failure: &Failure) -> Result<Option<Session>> {
    if dir.join(session_json::FILE).exists() {
        return Ok(None);
    }
    Ok(Some(Session::create(failure.of_session(dir, share))?))
}

/// Waits until the processes have ended, or for a signal.
fn wait((args, out): (&Args, &Path), recording: &mut Recording) {
    if !args.quiet {
        kernel::say_start(recording, out, "Ctrl-C ends it");
    }
    while Interrupts::came().is_none() && !recording.wait(PERIOD) {}
}

/// Runs the program and records it to its end. Returns its exit code.
fn run_program(
    (args, out): (&Args, &Path),
    program: &Program,
    recording: &mut Recording,
) -> Result<u8> {
    let mut command = program.command();
    command.args(&args.program[1..]);
    // In a thread of its own, from which the program inherits being recorded.
    let ran = thread::scope(|scope| {
        let runner = scope.spawn(|| {
            recording.follow_this_thread()?;
            if !args.quiet {
                kernel::say_start(recording, out, "the program's end ends it");
            }
            anyhow::Ok(run_command(program, command))
        });
        runner.join().unwrap_or_else(|_| anyhow::bail!("the thread that runs the program panicked"))
    });
    Ok(exit_code(ran??))
}
