//! `hypertrace demo`: a guest and its VMM on one timeline, in a few seconds.

use crate::interrupt::Interrupts;
use crate::kernel;
use crate::output::{grouped, print, print_json, say, wrapped};
use crate::recording::{Failure, serve};
use crate::report;
use crate::temporary::Temporary;
use anyhow::{Context, Result, bail};
use hypertrace_device::Geometry;
use hypertrace_export::escape::Message;
use hypertrace_format::error::error_chain;
use hypertrace_guest::{Args as GuestArgs, MAX_VCPUS, Program};
use hypertrace_kernel::{Recording, is_incomplete};
use hypertrace_timeline::{EntryRef, EventKind, Needs};
use hypertrace_trace::args::TraceArgs;
use hypertrace_trace::{Session, Share, Summary};
use hypertrace_user::Config;
use hypertrace_vmm::{DeviceConfig, Hypertrace};
use kvm_vmm::{Machine, run_on_threads, segment_channel};
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// What was recorded, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Counts {
    mode: String,
    vcpus: u32,
    ring_events: u64,
    reference_points: u64,
    lost: u64,
    faults: u64,
    records: u64,
    session: PathBuf,
}

// Work of each vCPU.
const EVENTS: u64 = 100_000;
const REFERENCE_POINTS: u64 = 1_000;
/// Size of a ring in bytes. A ring holds less than a sixth of a vCPU's events, because the host drains the
/// ring while the guest runs.
const RING_BYTES: u64 = 512 << 10;

/// Period of the check for a signal.
const SIGNAL_PERIOD: Duration = Duration::from_millis(20);

/// Number of lines of the excerpt before its reference point.
const BEFORE: usize = 8;
/// Number of lines of the excerpt after its reference point.
const AFTER: usize = 4;

/// Trace a small guest and its VMM, and show both on one timeline
///
/// Each vCPU emits 100,000 events into its own ring and makes 1,000 reference
/// points, each with an exit to the VMM, while the VMM records its own events. If
/// /dev/kvm cannot be used, the same guest program runs on threads instead, over
/// shared memory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directory for the session: new or empty (default: a new one in the
    /// temporary folder)
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Number of vCPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    vcpus: u32,

    /// Repeat the work this many times. With a large number, there is time to try `hypertrace ctl` while the
    /// guest runs
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,

    /// Users that may read the session
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Record the host kernel's events of this process (the VMM), too, as `hypertrace record` does, and fail
    /// if that is impossible. Default: record these events if that is possible, but not with --json
    #[arg(long)]
    pub kernel: bool,

    /// Print one JSON object: mode, vcpus, ring_events, reference_points, lost, faults, records, session
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trace: TraceArgs,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace demo                       run it and print an excerpt
  hypertrace demo -o S               keep the session in S
  hypertrace demo -o S --json        numbers for a script
  hypertrace demo -o S --share group let the group of S read it
  hypertrace demo --trace 'vcpu_exit,file=t' --trace-backend log
                                        record only the VMM's exits, also on
                                        stderr, and in the file t for QEMU's
                                        simpletrace reader
  hypertrace regions S                  show where the time of its regions went
  hypertrace demo -o S --times 100   and in another terminal, while it runs:
  hypertrace ctl -d S info trace        show backends and rings
  hypertrace report S | less            show the whole timeline

Exit code: 0 done, 1 failed, 2 wrong usage (such as a directory that is not
empty); after SIGINT, SIGTERM or SIGHUP, 128 plus the signal's number: the
session holds what was recorded until then.";

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(names) = args.trace.listing() {
        print(names)?;
        return Ok(ExitCode::SUCCESS);
    }
    let interrupts = Interrupts::catch_end();
    let machine = match Machine::new(args.vcpus as usize) {
        Ok(machine) => Ok(machine),
        Err(kvm_vmm::Error::Unusable(why)) => Err(why),
        Err(other) => return Err(other.into()),
    };
    let (dir, temporary) = match &args.output {
        Some(dir) => (dir.clone(), None),
        None => {
            let made = Temporary::create(&std::env::temp_dir(), "hypertrace-demo-")?;
            (made.folder().path().to_owned(), Some(made))
        }
    };
    let failure = Failure::default();
    let config = failure.of_session(&dir, args.share).for_vcpus(args.vcpus);
    let geometry = Geometry {
        clients: args.vcpus,
        ring_bytes: RING_BYTES,
        block_bytes: RING_BYTES / 16,
        ..Geometry::default()
    };
    let host = match &machine {
        Ok(_) => Host::Device(Hypertrace::with_session(
            Session::create(config)?,
            DeviceConfig::new(args.vcpus).with(|config| config.geometry = geometry),
        )?),
        Err(_) => Host::Segment(hypertrace_user::Session::create(Config::new(&dir).with(|c| {
            c.trace = config;
            c.geometry = geometry;
        }))?),
    };
    // From here on, the session's directory stays, even if the directory is temporary.
    if let Some(temporary) = temporary {
        temporary.keep();
    }
    let begun = set_events(args, host.session())
        // The recording of the kernel's events begins only here, because the options are now known to be
        // right.
        .and_then(|warnings| Ok((warnings, start_kernel(args, host.session())?)));
    let (warnings, recording) = match begun {
        Ok(begun) => begun,
        Err(why) => {
            // Another recorder may have joined the session already.
            if is_incomplete(&dir) {
                drop(host.end())
            } else {
                host.abandon()
            }
            return Err(why);
        }
    };
    warnings.iter().for_each(say);
    let session = host.session();
    let is_guest = machine.is_ok();
    let mode = if is_guest { "kvm" } else { "user" };
    // If the output of `print_begin` fails, the session still ends before the command reports the error.
    let begun = if args.json { Ok(()) } else { print_begin(args.vcpus, &machine, &dir) };
    let monitor = serve(session);
    let times = u64::from(args.times);
    let work = GuestArgs {
        vcpus: args.vcpus,
        events: EVENTS * times,
        reference_points: REFERENCE_POINTS * times,
        ..GuestArgs::new(Program::Demo)
    };
    let ran = host.run(machine.ok(), &work, args.times);
    drop(monitor);
    // The session is ended even if the disk is full or the guest failed.
    let (summary, written) = host.end();
    let kernel = recording.map_or(Ok(()), |recording| end_kernel(args, recording));
    drop(interrupts);
    if let Some(signal) = Interrupts::came() {
        return interrupted(signal, &summary, written.and(kernel), &dir);
    }
    let shown = if args.json {
        print_json(json!(Counts {
            mode: mode.to_owned(),
            vcpus: args.vcpus,
            ring_events: summary.ring_events,
            reference_points: summary.reference_points,
            lost: summary.lost,
            faults: summary.faults.values().sum(),
            records: summary.records,
            session: dir.clone(),
        }))
    } else {
        begun
            .and_then(|()| print_excerpt(&dir))
            .and_then(|()| print_summary(&summary, &dir, is_guest))
    };
    let dir = dir.display();
    if let Err(why) = failure.check(written) {
        bail!("{why:#}; {dir} is incomplete, {} events are lost", summary.lost);
    }
    kernel?;
    let who = if is_guest { "guest" } else { "program" };
    ran.with_context(|| format!("the {who} did not finish; see hypertrace report {dir}"))?;
    shown.map(|()| ExitCode::SUCCESS)
}

/// Switches on the events of the VMM that the options name. Returns warnings.
fn set_events(args: &Args, session: &Session) -> Result<Vec<String>> {
    if !args.trace.names_events() {
        session.set_events(&"*".parse()?, true)?;
    }
    Ok(args.trace.apply(session).map_err(|why| crate::Usage(error_chain(&why)))?)
}

/// Starts to record the kernel's events of this process, if this machine lets this user do so. Without
/// `--kernel`, a failure is reported and is no error; with `--json` and without `--kernel`, nothing is
/// recorded.
fn start_kernel(args: &Args, session: &hypertrace_trace::Session) -> Result<Option<Recording>> {
    if args.json && !args.kernel {
        return Ok(None);
    }
    let mut config = hypertrace_kernel::Config::beside(session.folder()?);
    config.pids = vec![std::process::id()];
    match kernel::start_beside(&config) {
        Ok(recording) => {
            if let (true, Some(recording)) = (args.kernel, &recording) {
                kernel::say_start(recording, session.dir(), "the recording ends with the demo");
            }
            Ok(recording)
        }
        Err(why) if args.kernel => Err(why),
        Err(why) => {
            kernel::say_without(&why);
            Ok(None)
        }
    }
}

/// Ends a recording. A recording that is not complete is an error only if `--kernel` asked for the recording.
fn end_kernel(args: &Args, recording: Recording) -> Result<()> {
    match kernel::finish(recording, !args.kernel) {
        Err(why) if !args.kernel => {
            say(format_args!("{why:#}"));
            Ok(())
        }
        ended => ended,
    }
}

/// Reports the session's state after a signal. Returns the exit code that a shell reports for the signal.
fn interrupted(
    signal: i32,
    summary: &Summary,
    written: Result<()>,
    dir: &Path,
) -> Result<ExitCode> {
    let name = match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        _ => "SIGTERM",
    };
    let (records, lost, dir) = (grouped(summary.records), grouped(summary.lost), dir.display());
    written.with_context(|| format!("ended by {name}; {dir} is incomplete"))?;
    say(format_args!(
        "ended by {name}: {dir} holds what was recorded until then, {records} records, {lost} lost"
    ));
    Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)))
}

/// Host of the guest.
enum Host {
    Device(Hypertrace),
    /// A segment, for threads of this process.
    Segment(hypertrace_user::Session),
}

impl Host {
    fn session(&self) -> &Session {
        match self {
            Host::Device(device) => device.session(),
            Host::Segment(session) => session.trace(),
        }
    }

    fn run(&self, machine: Option<Machine>, work: &GuestArgs, times: u32) -> Result<()> {
        match (self, machine) {
            (Host::Device(device), Some(mut machine)) => {
                machine.stop_when(|| Interrupts::came().is_some());
                machine.run_traced(device, work, times)?;
            }
            (Host::Segment(session), _) => {
                // Threads cannot be stopped: after a signal they run until the process ends.
                let (channel, work) = (segment_channel(session.segment())?, work.clone());
                let (ended, end) = mpsc::channel();
                thread::spawn(move || {
                    // After a signal, the receiver is gone and the result is dropped.
                    let _ = ended.send(run_on_threads(channel, work.vcpus as usize, &work));
                });
                while Interrupts::came().is_none() {
                    match end.recv_timeout(SIGNAL_PERIOD) {
                        Ok(ran) => return Ok(ran.map(drop)?),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => {
                            bail!("the program's thread panicked")
                        }
                    }
                }
            }
            (Host::Device(_), None) => bail!("a device without a machine"),
        }
        Ok(())
    }

    /// Ends a session in which nothing was recorded. The session leaves no file, as if it had not been
    /// created.
    fn abandon(self) {
        match self {
            Host::Device(device) => device.abandon(),
            Host::Segment(session) => session.abandon(),
        }
    }

    fn end(self) -> (Summary, Result<()>) {
        match self {
            Host::Device(device) => {
                let (summary, written) = device.end();
                (summary, written.map_err(Into::into))
            }
            Host::Segment(session) => {
                let (summary, written) = session.end();
                (summary, written.map_err(Into::into))
            }
        }
    }
}

/// Prints where the guest runs, and where its session is.
fn print_begin(
    vcpus: u32,
    machine: &Result<Machine, impl std::error::Error>,
    dir: &Path,
) -> Result<()> {
    let running = match machine {
        Ok(_) => format!("Running a guest with {vcpus} vCPUs under KVM ..."),
        Err(why) => format!(
            "KVM is not usable here ({}).\nRunning a program with {vcpus} threads instead ...",
            error_chain(why)
        ),
    };
    let dir = dir.display().to_string();
    print(format_args!("{running}\nThe session is in {}\n", Message(&dir)))
}

/// Prints some lines around a reference point in the middle of the run.
fn print_excerpt(dir: &Path) -> Result<()> {
    let recording = report::open(dir)?;
    let mut lines = report::Lines::new(&recording);
    let mut points = 0;
    let mut around = VecDeque::new();
    let mut left = None;
    recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
        let EntryRef::Event(event) = entry else { return Ok(true) };
        if event.kind == EventKind::ReferencePoint {
            points += 1;
            // The first points are slow: memory is touched for the first time.
            if points == 20 {
                left = Some(AFTER + 1);
            }
        }
        around.push_back((event.ts_ns, lines.untimed(entry).to_owned()));
        left = match left {
            Some(left) => Some(left - 1),
            None => {
                if around.len() > BEFORE {
                    around.pop_front();
                }
                None
            }
        };
        Ok::<_, hypertrace_timeline::Error>(left != Some(0))
    })?;
    let mut text = format!("\n{}", lines.header());
    for (ts_ns, line) in &around {
        text.push_str(lines.timed(Some(*ts_ns), line));
    }
    print(text)
}

fn print_summary(summary: &Summary, dir: &Path, is_guest: bool) -> Result<()> {
    let dir = dir.display();
    let faults: u64 = summary.faults.values().sum();
    let filtered = match summary.filtered {
        0 => String::new(),
        n => format!("{} filtered, ", grouped(n)),
    };
    let times = match summary.time_faults {
        0 => String::new(),
        n => format!(", {} corrected times", grouped(n)),
    };
    let Summary { records, ring_events, reference_points, host_events, .. } = summary;
    let [records, ring_events, reference_points, host_events, leases, lost, faults] = [
        *records,
        *ring_events,
        *reference_points,
        *host_events,
        summary.leases,
        summary.lost,
        faults,
    ]
    .map(grouped);
    let (own, of_host) = match is_guest {
        true => ("guest events", format!(", {host_events} of the VMM")),
        false => ("events", String::new()),
    };
    let counts = format!(
        "{records} records: {ring_events} {own}, {reference_points} reference points{of_host}, \
         {leases} leases{times}; {filtered}{lost} lost, {faults} faults."
    );
    // If `dir` is a temporary directory, lines have at most 80 columns.
    print(format_args!(
        "\n{}
Next:
  hypertrace report {dir} | less  show the whole timeline
  hypertrace regions {dir}        show where time went
  hypertrace info {dir}           count events and losses
  hypertrace export {dir} --to perfetto -o demo.pftrace
                                  write a file for ui.perfetto.dev
",
        wrapped(&counts, "")
    ))
}
