//! `hypertrace record`: records a program, or the host kernel's events of processes.

mod beside;
mod program;

pub use program::closing;

use crate::units;
use anyhow::Result;
use clap::Args as _;
use clap::error::ErrorKind;
use hypertrace_kernel::DEFAULT_EVENTS;
use hypertrace_trace::Share;
use hypertrace_user::{Program, allow_open_files};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Group of the arguments that make programs record events of their own. Options about such events require
/// this group.
const TRACED: &str = "traced";

/// Run a program and record its events, or the kernel's of processes
///
/// The program uses the hypertrace library. The program and its children find the
/// session through the environment variable HYPERTRACE_SEGMENT. The events of all
/// their threads are recorded until the program ends; then `record` ends with the
/// program's status. With --kernel, the host kernel's events of these threads are
/// recorded, too, if this machine lets this user do so. TRACEPARENT in the
/// environment (W3C's Trace Context) is kept, as the parent of exported spans.
///
/// Without a program, -p and -a record only the kernel's events: -p for the given
/// processes and all processes that they start, -a for all threads. The events join
/// the session that a VMM is recording in DIR; if there is none, `record` makes a
/// new session. To record a kernel thread that works for a VM, such as a thread of
/// vhost, give its number to -p, too.
///
/// The kernel's events are in DIR/kernel.dat, which trace-cmd and KernelShark read,
/// too. Root's recordings use a private instance of the kernel's trace. For another
/// user, or without tracefs, perf records only the scheduling of the user's own
/// threads.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
#[command(group = clap::ArgGroup::new(TRACED).args(["program", "segment"]).multiple(true))]
#[command(override_usage = "hypertrace record [OPTIONS] [--] PROGRAM [ARGS]...\n       \
                            hypertrace record [OPTIONS] --segment FILE\n       \
                            hypertrace record [OPTIONS] -p PID...\n       \
                            hypertrace record [OPTIONS] -a [[--] PROGRAM [ARGS]...]")]
pub struct Args {
    /// Directory for the session: new or empty (default: hypertrace.data; if a session is there already, it
    /// is renamed to hypertrace.data.old)
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Rename the session that is in DIR, by adding .old to its name. If a session already has the new name,
    /// that older session is removed
    #[arg(long)]
    overwrite: bool,

    /// After the program's end, go on recording until no process that can trace is left, or until Ctrl-C.
    /// Only root sees the processes of other users
    #[arg(long, conflicts_with = "pid", requires = TRACED)]
    wait: bool,

    /// Record the host kernel's events of the program, too
    #[arg(long, short)]
    pub kernel: bool,

    /// Show at the end how long the program's regions took, and where the time went, as `hypertrace
    /// regions` does. Implies --kernel
    #[arg(long, conflicts_with = "pid", requires = TRACED)]
    regions: bool,

    /// Record these events of the kernel, with * and ?, instead of the default ones. May be given
    /// several times (default: kvm:kvm_entry kvm:kvm_exit kvm:kvm_fpu kvm:kvm_mmio kvm:kvm_pio
    /// kvm:kvm_userspace_exit sched:sched_switch sched:sched_wakeup sched:sched_wakeup_new
    /// sched:sched_process_exec sched:sched_process_exit sched:sched_process_fork. The name
    /// default stands for all of these). Implies --kernel
    #[arg(long, short, value_name = "SYSTEM:EVENT", value_parser = event)]
    pub event: Vec<String>,

    /// Record the kernel's events of this process, until all given processes have ended, or until
    /// Ctrl-C. May be given several times
    #[arg(long, short, value_name = "PID", conflicts_with = "program",
          value_parser = clap::value_parser!(u32).range(1..=i32::MAX as i64))]
    pid: Vec<u32>,

    /// Record the kernel's events of all threads of this machine, until PROGRAM ends or, without PROGRAM,
    /// until Ctrl-C; as root only
    #[arg(long, short, conflicts_with = "pid")]
    all: bool,

    /// Write the kernel's events to the disk with little delay, so that `boot --until` can look for a stage
    /// during the recording
    #[arg(long, hide = true)]
    pub live: bool,

    /// Size of each CPU's buffer in the kernel's trace, such as 64K; only root can choose the size
    /// (default: 8M; less on machines with more than 64 CPUs). Implies --kernel
    #[arg(long, value_name = "SIZE", value_parser = units::buffer_kib)]
    buffer: Option<u32>,

    /// Record only the switches and wake-ups of the threads that are traced. The names of the machine's other
    /// threads are then not recorded. `regions` therefore cannot name the thread that another thread waited
    /// for
    #[arg(long)]
    own_only: bool,

    /// Number of threads, of all programs, that can trace at the same time
    #[arg(long, value_name = "N", default_value_t = 256, conflicts_with = "pid", requires = TRACED,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,

    /// Size of each thread's ring, from 64K on: a power of two
    #[arg(long, value_name = "SIZE", default_value = "1M", conflicts_with = "pid", requires = TRACED,
          value_parser = units::ring)]
    ring: u64,

    /// Keep the rings in this new file, on tmpfs (default: in memory). If this process and the programs
    /// crash, `hypertrace recover` gets the rings' events from the file. PROGRAM may be left out. Programs
    /// that something else starts can also be traced: they need HYPERTRACE_SEGMENT=FILE in their environment
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    segment: Option<PathBuf>,

    /// Run the program under this emulator of QEMU's user mode, with the
    /// hypertrace plugin: `--qemu qemu-aarch64`
    #[arg(long, value_name = "BIN", conflicts_with = "pid", requires = "program")]
    qemu: Option<OsString>,

    /// Record a function trace, too, in this directory, new or empty. Options of docs/functions.md
    /// may follow: DIR,min=1us,region=batch. A comma in DIR is written twice
    #[arg(long, value_name = "DIR[,OPTION=VALUE]", requires = "qemu")]
    functions: Option<OsString>,

    /// Emulated threads whose points the plugin can record (default: as many as --clients with --qemu, else
    /// none). Use this option if PROGRAM itself is an emulator
    #[arg(long, value_name = "N", conflicts_with = "pid", requires = TRACED, hide = true,
          value_parser = clap::value_parser!(u32).range(0..=512))]
    relays: Option<u32>,

    /// Users that may read the session
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Print no line at the end. By default, `record` prints a line to stderr: how many events were
    /// recorded and lost, why, and which options help
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments; options end here
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Args {
    fn records_kernel(&self) -> bool {
        self.kernel || self.regions || self.all || !self.event.is_empty() || self.buffer.is_some()
    }
}

const EXAMPLES: &str = "\
Examples:
  hypertrace record ./server --port 80   record a program in hypertrace.data
  hypertrace report | less               show the whole timeline
  hypertrace record --regions ./server   record, and show where the time of its
                                         regions went
  hypertrace ctl info trace              show backends and rings while it runs
  hypertrace record --kernel ./server    record when its threads had a CPU, too
  hypertrace record -e 'kvm:*' -e 'sched:*' ./vmm
                                         record all events of KVM and the
                                         scheduler, which cost more (hypertrace
                                         info --events lists events)
  hypertrace record -o S -p 1234         record the kernel's events of a running
                                         VMM, into its session S
  hypertrace record -a sleep 10          record the kernel's events of all
                                         threads for ten seconds
  hypertrace record --qemu qemu-aarch64 ./server
                                         run it under an emulator
  hypertrace record --segment /dev/shm/s ./server
                                         keep the rings in a file; after a
                                         crash of record:
  hypertrace recover /dev/shm/s
  hypertrace record --segment /dev/shm/s
                                         record services, which are started
                                         with HYPERTRACE_SEGMENT=/dev/shm/s

Exit code: the program's; 128 plus the signal's number if one ended it; 127 if
there is no such program, 126 if it cannot be run; with -p, or with -a and no
program, 0, also after Ctrl-C; 1 if the session is incomplete, 2 for wrong
usage.";

/// Parses the name of an event, or a pattern for several events.
pub fn event(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*' | '?');
        !part.is_empty() && part.chars().all(is_good)
    };
    match text.split_once(':') {
        Some((system, event)) if is_name(system) && is_name(event) => Ok(text.to_owned()),
        None if text == DEFAULT_EVENTS => Ok(text.to_owned()),
        _ => Err("an event is SYSTEM:EVENT, such as sched:sched_switch or kvm:*".into()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.records_kernel() || !args.pid.is_empty() {
        allow_open_files();
    }
    match args.program.first() {
        Some(name) => program::run(args, Some(&Program::find(name)?)),
        None if args.segment.is_some() => program::run(args, None),
        None if args.all || !args.pid.is_empty() => beside::run(args),
        None => {
            // clap's error shows the usage, too.
            let mut command = Args::augment_args(clap::Command::new("hypertrace record"));
            let why = "nothing to record: give a program to run, processes, -p PID, all threads, -a, or \
                       --segment FILE for programs that something else starts";
            command.error(ErrorKind::MissingRequiredArgument, why).exit()
        }
    }
}
