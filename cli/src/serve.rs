//! `hypertrace serve`: records what a VM's guest traces, from outside the VMM.

use crate::interrupt::Interrupts;
use crate::output::say;
use crate::recording::{self, Failure};
use crate::run::closing;
use crate::{Usage, escape};
use anyhow::{Context, Result, bail};
use hypertrace_trace::Share;
use hypertrace_user::{Config, Segment, Session, end_if_cut};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

/// Record the events of a VM's guest, through a file that the VM has as memory
///
/// The VMM needs no change: QEMU's ivshmem-plain gives the file to the guest as a
/// PCI function, where the hypertrace library finds it. Nothing traps. The command
/// makes the file and prints the options for QEMU; start the VM then. It records
/// until it is interrupted (Ctrl-C), also while guests reboot and VMs end and start
/// again; at most one VM at a time uses the file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// The file, new, best on tmpfs
    #[arg(long, value_name = "FILE")]
    file: PathBuf,

    /// Its size in MiB, a power of two: PCI has no others
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=1 << 14))]
    size: u64,

    /// Directory for the session: new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Threads of the guest that can trace at the same time. Their rings divide
    /// the file
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,

    /// Users that may read the session
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Print no line at the start and the end
    #[arg(long, short)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace serve --file /dev/shm/vm1 --out S
                                        and in another terminal:
  qemu-system-x86_64 ... -object \\
    memory-backend-file,id=ht,share=on,mem-path=/dev/shm/vm1,size=16M \\
    -device ivshmem-plain,memdev=ht
  hypertrace report S | less            show the timeline, also while it runs

Exit code: 0 after SIGINT, SIGTERM or SIGHUP, if the session is complete; 1 if
it is not, 2 for wrong usage. After a crash of this command:
  hypertrace run --recover /dev/shm/vm1 --out S";

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let failure = Failure::default();
    // Lives until the session has ended.
    let _interrupts = Interrupts::catch();
    let config = config(args, &failure)?;
    let ring = config.geometry.ring_bytes >> 10;
    let session = Session::create(config)?;
    let said = format!(
        "hypertrace: {} was cut off while it was in use: {} holds what was drained before",
        args.file.display(),
        args.out.display()
    );
    let watched = end_if_cut(session.segment(), &escape::Message(&said).to_string());
    watched.context("cannot watch the file for being cut off")?;
    let monitor = recording::serve(session.trace());
    if !args.quiet {
        let (file, size) = (args.file.display(), args.size);
        say(format_args!(
            "recording in {}, until Ctrl-C; start the VM with: -object \
             memory-backend-file,id=ht,share=on,mem-path={file},size={size}M -device \
             ivshmem-plain,memdev=ht",
            args.out.display()
        ));
    }
    while Interrupts::came().is_none() {
        sleep(Duration::from_millis(20));
    }
    drop(monitor);
    let (summary, written) = session.end();
    if !args.quiet {
        say(closing(&args.out, ring, args.clients, &summary));
    }
    let whole = failure.check(written.map_err(Into::into)).with_context(|| {
        format!("{} is incomplete, {} events are lost", args.out.display(), summary.lost)
    });
    whole.map(|()| ExitCode::SUCCESS)
}

fn config(args: &Args, failure: &Failure) -> Result<Config> {
    if !args.size.is_power_of_two() {
        bail!(Usage(format!(
            "--size {}: the MiB of a PCI function's memory are a power of two",
            args.size
        )));
    }
    let size = args.size << 20;
    let Some(geometry) = Segment::fitting(size, args.clients) else {
        bail!(Usage(format!(
            "--size {}: rings of {} threads do not fit; give a larger size, or fewer --clients",
            args.size, args.clients
        )));
    };
    let trace = failure.of_session(&args.out, args.share);
    let (segment, vm_memory) = (Some(args.file.clone()), Some(size));
    Ok(Config { trace, geometry, segment, vm_memory, ..Config::new(&args.out) })
}
