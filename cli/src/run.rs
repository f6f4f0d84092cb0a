//! `hypertrace run`: traces a program on this host, without a VM.

use crate::Usage;
use crate::kernel;
use crate::losses::{causes, grouped};
use crate::output::{print, say};
use crate::recording::{Failure, serve};
use anyhow::{Context, Result, bail};
use hypertrace_abi::ring::Losses;
use hypertrace_device::Geometry;
use hypertrace_kernel::{Recording, is_incomplete};
use hypertrace_qemu_emulator::Emulator;
use hypertrace_trace::session_json::{Domain, StreamJson};
use hypertrace_trace::{SessionConfig, Share, Summary};
use hypertrace_user::{Config, Program, Session, end_if_cut, exit_code, pass_signals_on};
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a program without a VM, and record its events in a session
///
/// The program uses the hypertrace library as it would in a guest. It and its
/// children find the session's segment through the environment variable
/// HYPERTRACE_SEGMENT. Events of all their threads are recorded until the program
/// ends; then `run` ends with the program's status.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directory for the session: new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Keep the segment in this new file, on tmpfs, so that it outlives a crash of
    /// this process and the programs (default: in memory)
    #[arg(long, value_name = "FILE")]
    segment: Option<PathBuf>,

    /// Threads of all programs that can trace at the same time
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,

    /// Size of each thread's ring in KiB: a power of two
    #[arg(long, value_name = "KIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    ring: u64,

    /// Run the program under this emulator of QEMU's user mode, with the
    /// hypertrace plugin: `--qemu qemu-aarch64`
    #[arg(long, value_name = "BIN")]
    qemu: Option<OsString>,

    /// Record a function trace, too, in this directory, new or empty. Options of docs/functions.md
    /// may follow: DIR,min=1us,region=batch. A comma in DIR is written twice
    #[arg(long, value_name = "DIR[,OPTION=VALUE]", requires = "qemu")]
    functions: Option<OsString>,

    /// Emulated threads whose points the plugin can record (default: as many as
    /// --clients with --qemu, else none). For an emulator that is PROG itself
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=512))]
    relays: Option<u32>,

    /// Record the host kernel's events of this process and of the program, too, as `hypertrace
    /// record` does
    #[arg(long)]
    pub kernel: bool,

    /// Users that may read the session
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,

    /// Instead of running a program, recover the events that a crash left in this
    /// segment: complete the session in DIR, or make a new one if DIR is new
    #[arg(long, value_name = "SEGMENT", conflicts_with_all = ["segment", "program", "kernel"])]
    recover: Option<PathBuf>,

    /// Print no line at the end. The default is a line on stderr with the number
    /// of events recorded and lost, the causes, and the options that help
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments
    #[arg(last = true, value_name = "PROG", required_unless_present = "recover")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace run --out S -- ./server --port 80
  hypertrace report S | less            show the whole timeline
  hypertrace ctl S info trace           show backends and rings while it runs
  hypertrace run --out S --kernel -- ./server
                                        record when the kernel ran it, too
  hypertrace run --qemu qemu-aarch64 --out S -- ./server
                                        run it under an emulator
  hypertrace run --qemu qemu-x86_64 --functions F --out S -- ./server
                                        and record each call: report S F
  hypertrace run --out S --segment /dev/shm/s -- ./server
                                        keep the segment in a file; after a
                                        crash of run:
  hypertrace run --recover /dev/shm/s --out S

Exit code: the program's; 128 plus the signal's number if one ended it; 127 if
there is no such program, 126 if it cannot be run; 1 if the session is
incomplete, 2 for wrong usage.";

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(segment) = &args.recover {
        let config = SessionConfig { share: args.share, ..SessionConfig::new(&args.out) };
        let summary = hypertrace_user::recover(segment, config)?;
        print(format_args!(
            "{} holds {} records now, {} lost; {} is not needed any more.\n",
            args.out.display(),
            summary.records,
            summary.lost,
            segment.display(),
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let [name, arguments @ ..] = &args.program[..] else {
        return Err(Usage("no program to run: name it after --".into()).into());
    };
    let program = Program::find(name)?;
    let emulator = args.qemu.as_deref().map(emulator_named).transpose()?;
    let functions = args.functions.as_deref();
    let emulator = emulator.map(|emulator| emulator.with_functions(functions));
    let failure = Failure::default();
    // Lives until the session has ended: a signal must not leave it unfinished.
    let _signals = pass_signals_on();
    let session = Session::create(config(args, &failure)?)?;
    if let Some(path) = &args.segment {
        let said = format!(
            "hypertrace: {} was cut off while it was in use: {} holds what was drained before; leave \
             that file alone, or do without --segment",
            path.display(),
            args.out.display()
        );
        let watched = end_if_cut(session.segment(), &crate::escape::Message(&said).to_string());
        watched.context("cannot watch the segment for being cut off")?;
    }
    let recording = match start_kernel(args) {
        Ok(recording) => recording,
        Err(why) => {
            // Another recorder may have joined the session already.
            if is_incomplete(&args.out) {
                drop(session.end())
            } else {
                session.abandon()
            }
            return Err(why);
        }
    };
    let monitor = serve(session.trace());
    let (started, mut command) = match &emulator {
        Some(emulator) => (emulator.qemu(), emulator.command(&program)),
        None => (&program, program.command()),
    };
    command.args(arguments);
    let untraced = started.privilege();
    if let Some((file, privilege)) = &untraced {
        say(format_args!(
            "{} will not be traced: {privilege}, so it ignores the environment, which names the \
             session; to trace it, run a copy without these rights",
            file.display()
        ));
    }
    let ran = hypertrace_user::run(&session, started, command);
    drop(monitor);
    let (summary, written) = session.end();
    let kernel = recording.map_or(Ok(()), |recording| kernel::finish(recording, args.quiet));
    let status = ran?;
    let code = exit_code(status);
    if !args.quiet {
        say(closing(&args.out, ("--ring", args.ring), args.clients, &summary));
        if untraced.is_none() && summary.records == 0 && summary.lost == 0 {
            say(UNTRACED);
        }
    }
    let whole = failure.check(written.map_err(Into::into)).with_context(|| {
        format!("{} is incomplete, {} events are lost", args.out.display(), summary.lost)
    });
    match whole.and(kernel) {
        Err(why) if code == 0 => Err(why),
        Err(why) => {
            say(format_args!("{why:#}"));
            Ok(ExitCode::from(code))
        }
        Ok(()) => Ok(ExitCode::from(code)),
    }
}

/// Finds an emulator of QEMU's user mode.
fn emulator_named(name: &OsStr) -> Result<Emulator> {
    Ok(Emulator::of_programs(Program::find(name)?)?)
}

/// Starts to record the kernel's events of this process and all that it starts, if that is wanted.
fn start_kernel(args: &Args) -> Result<Option<Recording>> {
    if !args.kernel {
        return Ok(None);
    }
    let mut config = hypertrace_kernel::Config::new(&args.out);
    config.pids = vec![std::process::id()];
    config.share = args.share;
    let recording = kernel::start(&config)?;
    if !args.quiet {
        kernel::say_start(&recording, &args.out, "the program's end ends it");
    }
    Ok(Some(recording))
}

/// Reasons why a session has no events and had no client.
const UNTRACED: &str = "no program has traced: it does not call hypertrace, or HYPERTRACE_SEGMENT \
                        was taken out of its environment, or its descriptors were closed (then \
                        give --segment FILE)";

/// Formats the closing line: events recorded and lost, the causes, and the options
/// that help: `ring` is the one for the rings, and their size in KiB.
pub fn closing(out: &Path, ring: (&str, u64), clients: u32, summary: &Summary) -> String {
    let events = summary.ring_events + summary.reference_points + summary.host_events;
    let mut line = format!("{} events in {}, ", grouped(events), out.display());
    if summary.lost == 0 {
        line.push_str("none lost");
    } else {
        let sum = |count: fn(&StreamJson) -> u64| {
            summary.streams.iter().map(count).fold(0, u64::saturating_add)
        };
        // Reference points, which go through the host's own ring: its size is no option.
        let points = sum(|stream| match stream.domain {
            Domain::Host => stream.lost_full,
            Domain::Guest => 0,
        });
        let losses = Losses {
            full: sum(|stream| stream.lost_full).saturating_sub(points),
            busy: sum(|stream| stream.lost_busy),
            unattached: summary.lost_unattached,
            overwritten: sum(|stream| stream.lost_overwritten),
        };
        let causes = causes(losses).map(|(cause, n)| {
            let hint = match cause {
                "ring full" => format!("raise {}, {} KiB now", ring.0, ring.1),
                "emit interrupted" => "by a signal handler that emits".into(),
                "no free client" => format!("raise --clients, {clients} now"),
                _ => "left in the ring, or not readable".into(),
            };
            format!("{} {cause} ({hint})", grouped(n))
        });
        let points = (points > 0).then(|| {
            let why = "points came faster than they could be written";
            format!("{} host ring full ({why})", grouped(points))
        });
        let causes = causes.chain(points).collect::<Vec<_>>().join(", ");
        // Writing to a String does not fail.
        let _ = write!(line, "{} lost: {causes}", grouped(summary.lost));
    }
    let faults: u64 = summary.faults.values().sum();
    if faults > 0 {
        let _ = write!(line, "; {} faults, see hypertrace stat", grouped(faults));
    }
    line
}

fn config(args: &Args, failure: &Failure) -> Result<Config> {
    if !args.ring.is_power_of_two() {
        bail!(Usage(format!("--ring {}: a ring's KiB are a power of two", args.ring)));
    }
    let ring_bytes = args.ring << 10;
    let trace = failure.of_session(&args.out, args.share);
    let default = if args.qemu.is_some() { args.clients } else { 0 };
    let relays = args.relays.unwrap_or(default);
    let clients = args.clients + relays;
    if clients > 1024 {
        bail!(Usage(format!(
            "--clients {} and {relays} relays are more than the 1024 that a segment has",
            args.clients
        )));
    }
    let geometry = Geometry {
        clients,
        ring_bytes,
        block_bytes: (ring_bytes / 16).min(64 << 10),
        ..Geometry::default()
    };
    let segment = args.segment.clone();
    Ok(Config { trace, geometry, segment, relays, ..Config::new(&args.out) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_closing_line_keeps_the_hosts_losses_apart() {
        let args = Line::parse_from(["run", "--out", "S", "--", "true"]).args;
        let stream = |domain, lost_full| StreamJson { domain, lost_full, ..StreamJson::default() };
        let streams = vec![stream(Domain::Guest, 2_000), stream(Domain::Host, 30)];
        let closing_of = |option, streams: &[StreamJson]| {
            let mut summary = Summary::default();
            summary.lost = streams.iter().map(StreamJson::lost).sum();
            summary.streams = streams.to_vec();
            closing(&args.out, (option, args.ring), args.clients, &summary)
        };
        let closing = |streams: &[StreamJson]| closing_of("--ring", streams);

        let points = "30 host ring full (points came faster than they could be written)";
        let ring = "2,000 ring full (raise --ring, 1024 KiB now)";
        assert_eq!(closing(&streams[1..]), format!("0 events in S, 30 lost: {points}"));
        assert_eq!(closing(&streams), format!("0 events in S, 2,030 lost: {ring}, {points}"));
        let of_server = "0 events in S, 2,000 lost: 2,000 ring full (raise --size, 1024 KiB now)";
        assert_eq!(closing_of("--size", &streams[..1]), of_server);
    }
}
