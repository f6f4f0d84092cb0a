//! `hypertrace record PROGRAM`: traces a program on this host, without a VM. With `--segment` and without a
//! program, traces programs that something else starts.

use super::Args;
use crate::interrupt::Interrupts;
use crate::kernel;
use crate::output::{counted, grouped, say};
use crate::place::{self, Output};
use crate::recording::{Failure, serve, tidy};
use crate::{Usage, units};
use anyhow::{Context, Result, bail};
use hypertrace_abi::layout::local::ENVIRONMENT;
use hypertrace_abi::ring::Losses;
use hypertrace_abi::trace_parent::{self, TraceParent};
use hypertrace_device::Geometry;
use hypertrace_export::json::causes;
use hypertrace_kernel::{Recording, is_incomplete};
use hypertrace_qemu_emulator::Emulator;
use hypertrace_trace::Summary;
use hypertrace_trace::session_json::{Domain, StreamJson};
use hypertrace_user::{
    Config, Holder, Program, ProgramError, Session, end_if_cut, exit_code, pass_signals_on,
    was_told_to_end,
};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

/// Runs and records `program`. If `program` is `None`, records programs that something else starts.
pub fn run(args: &Args, program: Option<&Program>) -> Result<ExitCode> {
    let emulator = args.qemu.as_deref().map(emulator_named).transpose()?;
    let functions = args.functions.as_deref();
    let emulator = emulator.map(|emulator| emulator.with_functions(functions));
    let geometry = geometry(args)?;
    if let Some(out) = args.output.as_deref().filter(|out| args.all && place::is_live(out)) {
        let why = "a session is being recorded in it, which `record -a` without PROGRAM joins";
        bail!(Usage(format!("{}: {why}", out.display())));
    }
    let out = place::output(args.output.as_deref(), args.overwrite)?;
    let recorded =
        tidy(Some(out.path()), || record(args, &out, geometry, program, emulator.as_ref()));
    let code = recorded.inspect_err(|_| out.give_back())?;
    if args.regions
        && let Err(why) = crate::regions::show(out.path())
    {
        // The error is only reported, because this command's exit code is the exit code of the program.
        say(format_args!("{why:#}"));
    }
    Ok(code)
}

fn record(
    args: &Args,
    place: &Output,
    (geometry, relays): (Geometry, u32),
    program: Option<&Program>,
    emulator: Option<&Emulator>,
) -> Result<ExitCode> {
    let (failure, out) = (Failure::default(), place.path());
    // Both guards live until the session has ended, because a signal must not leave the session unfinished.
    // `interrupts` is set last, because the handler that is set last gets the signals.
    let _signals = pass_signals_on();
    let mut interrupts = program.is_none().then(Interrupts::catch_end);
    let trace = failure.of_session(out, args.share);
    let session = Session::create(Config::new(out).with(|c| {
        c.trace = trace.with(|config| config.trace_parent = trace_parent());
        c.geometry = geometry;
        c.segment = args.segment.clone();
        c.relays = relays;
    }))?;
    if let Some(path) = &args.segment {
        let said = format!(
            "hypertrace: {} was cut off while it was in use: {} holds what was drained before; leave \
             that file alone, or do without --segment",
            path.display(),
            out.display()
        );
        let watched =
            end_if_cut(session.segment(), &hypertrace_export::escape::Message(&said).to_string());
        watched.context("cannot watch the segment for being cut off")?;
    }
    let recording = match start_kernel(args, &session) {
        Ok(recording) => recording,
        Err(why) => {
            // Another recorder may have joined the session already.
            if is_incomplete(out) {
                drop(session.end())
            } else {
                session.abandon()
            }
            return Err(why);
        }
    };
    place.settle();
    let monitor = serve(session.trace());
    let ran = program.map(|program| run_program(&args.program[1..], &session, program, emulator));
    let waits = args.wait && !was_told_to_end() && matches!(ran, Some((Ok(_), _)));
    if program.is_none() || waits {
        interrupts.get_or_insert_with(Interrupts::catch);
        wait(args, &session, program.is_some());
    }
    drop(monitor);
    // The processes that can still trace are listed before the session ends, because all later events of
    // these processes are lost.
    let left = session.segment().holders();
    let (summary, written) = session.end();
    let kernel = recording.map_or(Ok(()), |recording| kernel::finish(recording, args.quiet));
    let (status, untraced) = ran.map_or((None, false), |(ran, untraced)| (Some(ran), untraced));
    let code = status.transpose()?.map_or(0, exit_code);
    if !args.quiet {
        say(closing(out, ("--ring", args.ring), args.clients, &summary));
        let has_none = summary.records == 0 && summary.lost == 0;
        if !left.is_empty() {
            say(outlived(&left));
        } else if args.all && has_none {
            // With `--all`, the user wanted the events of all threads, so a program without events is no
            // fault.
            say(format_args!("next: hypertrace report {} | less", out.display()));
        } else if !untraced && has_none {
            say(UNTRACED);
        }
    }
    let whole = failure.check(written.map_err(Into::into)).with_context(|| {
        format!("{} is incomplete, {} events are lost", out.display(), summary.lost)
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

/// Runs a program until the program ends. Returns the program's status. The second value is true if the
/// program could not be traced, because the program started with special rights.
fn run_program(
    arguments: &[OsString],
    session: &Session,
    program: &Program,
    emulator: Option<&Emulator>,
) -> (Result<ExitStatus, ProgramError>, bool) {
    let (started, mut command) = match emulator {
        Some(emulator) => (emulator.qemu(), emulator.command(program)),
        None => (program, program.command()),
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
    (hypertrace_user::run(session, started, command), untraced.is_some())
}

/// Waits for a signal or, with `--wait`, also for the end of all processes that can trace.
fn wait(args: &Args, session: &Session, has_run: bool) {
    let segment = session.segment();
    if !args.quiet {
        let end = if args.wait { "the last process that traces, or Ctrl-C," } else { "Ctrl-C" };
        if has_run {
            let left = segment.holders();
            if !left.is_empty() {
                say(format_args!(
                    "the program has ended; {} can still trace: {}; {end} ends the recording",
                    processes(&left),
                    named(&left)
                ));
            }
        } else {
            let out = session.trace().dir().display();
            say(format_args!(
                "recording in {out}; {end} ends the recording; start programs with {ENVIRONMENT}={}",
                Path::new(&segment.location()).display()
            ));
        }
    }
    if args.wait {
        segment.wait_for_holders(has_run, || Interrupts::came().is_some());
    } else {
        Interrupts::wait();
    }
}

/// Returns the caller's span from the environment.
fn trace_parent() -> Option<TraceParent> {
    let text = env::var_os(trace_parent::ENVIRONMENT).filter(|text| !text.is_empty())?;
    let text = text.to_string_lossy();
    let parent = text.parse::<TraceParent>();
    let said = |why| {
        // The message has only the start of the text, because anyone may have set the variable, to any
        // length.
        let (name, start) = (trace_parent::ENVIRONMENT, format!("{text:.80}"));
        say(format_args!("{name} in the environment is not used, {start:?}: {why}"));
    };
    parent.map_err(said).ok()
}

/// Finds an emulator of QEMU's user mode.
fn emulator_named(name: &OsStr) -> Result<Emulator> {
    Ok(Emulator::of_programs(Program::find(name)?)?)
}

/// Starts to record the kernel's events of this process and of all processes that it starts, if the user
/// wants these events and the machine allows the recording.
fn start_kernel(args: &Args, session: &Session) -> Result<Option<Recording>> {
    if !args.records_kernel() {
        return Ok(None);
    }
    let mut config = hypertrace_kernel::Config::beside(session.trace().folder()?);
    config.events.clone_from(&args.event);
    config.buffer_kib = args.buffer;
    config.pids = if args.all { Vec::new() } else { vec![std::process::id()] };
    (config.own_only, config.is_live) = (args.own_only, args.live);
    let recording = match args.all {
        true => Some(kernel::start(&config)?),
        false => kernel::start_beside(&config)?,
    };
    if let (false, Some(recording)) = (args.quiet, &recording) {
        let end = if args.wait || args.program.is_empty() {
            "it ends with the recording of the programs"
        } else {
            "it ends with the program"
        };
        kernel::say_start(recording, session.trace().dir(), end);
    }
    Ok(recording)
}

/// Reasons why a session has no events and had no client.
const UNTRACED: &str = "no program has traced: it does not call hypertrace, or HYPERTRACE_SEGMENT \
                        was taken out of its environment (by `su -` or sudo, where \
                        `runuser -u USER -- PROGRAM` keeps it), or its descriptors were closed (then \
                        give --segment FILE), or `ulimit -v` leaves no room for the rings (then give \
                        fewer --clients)";

/// Maximum number of processes that a message names.
const NAMED: usize = 4;

/// Formats a list of the processes that can still trace, and says what the user can do about these processes.
fn outlived(left: &[Holder]) -> String {
    let outlive = if left.len() == 1 { "outlives" } else { "outlive" };
    format!(
        "{} {outlive} the recording, and events from now on are lost: {}; --wait records until all have \
         ended, and docs/services.md shows how to record a service",
        processes(left),
        named(left)
    )
}

fn processes(left: &[Holder]) -> String {
    let processes = if left.len() == 1 { "process" } else { "processes" };
    format!("{} {processes}", grouped(left.len() as u64))
}

/// Formats the names and numbers of some processes.
fn named(left: &[Holder]) -> String {
    let named = left
        .iter()
        .take(NAMED)
        .map(|Holder { pid, name }| format!("{} ({pid})", String::from_utf8_lossy(name)));
    let named = named.collect::<Vec<_>>().join(", ");
    match left.len().saturating_sub(NAMED) {
        0 => named,
        others => format!("{named} and {} others", grouped(others as u64)),
    }
}

/// Formats the closing line: events recorded and lost, the causes, and the options that help. `ring` has the
/// name of the option that sets the size of the rings, and the size in bytes.
pub fn closing(out: &Path, ring: (&str, u64), clients: u32, summary: &Summary) -> String {
    let events = summary.ring_events + summary.reference_points + summary.host_events;
    let mut line = format!("{} in {}, ", counted(events, "event"), out.display());
    if summary.lost == 0 {
        line.push_str("none lost");
    } else {
        let sum = |count: fn(&StreamJson) -> u64| {
            summary.streams.iter().map(count).fold(0, u64::saturating_add)
        };
        // If the host's own ring lost events, these events are reference points. No option sets the size of
        // this ring.
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
                "ring full" => format!("raise {}, {} now", ring.0, units::shown(ring.1)),
                "emit interrupted" => {
                    "by an event of a signal handler, or of an allocator that the library calls"
                        .into()
                }
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
        let _ = write!(line, "; {} faults, see hypertrace info", grouped(faults));
    }
    line
}

/// Returns the segment's geometry, and how many of its clients are relays.
fn geometry(args: &Args) -> Result<(Geometry, u32)> {
    let default = if args.qemu.is_some() { args.clients } else { 0 };
    let relays = args.relays.unwrap_or(default);
    let clients = args.clients + relays;
    if clients > 1024 {
        bail!(Usage(format!(
            "--clients {} and {relays} relays are more than the 1024 that a segment has",
            args.clients
        )));
    }
    Ok((Geometry::for_programs(clients, args.ring), relays))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_keeps_the_hosts_losses_apart() {
        let stream = |domain, lost_full| StreamJson { domain, lost_full, ..StreamJson::default() };
        let streams = vec![stream(Domain::Guest, 2_000), stream(Domain::Host, 30)];
        let closing_of = |option, streams: &[StreamJson]| {
            let mut summary = Summary::default();
            summary.lost = streams.iter().map(StreamJson::lost).sum();
            summary.streams = streams.to_vec();
            closing(Path::new("S"), (option, 1 << 20), 64, &summary)
        };
        let closing = |streams: &[StreamJson]| closing_of("--ring", streams);

        let points = "30 host ring full (points came faster than they could be written)";
        let ring = "2,000 ring full (raise --ring, 1M now)";
        assert_eq!(closing(&streams[1..]), format!("0 events in S, 30 lost: {points}"));
        assert_eq!(closing(&streams), format!("0 events in S, 2,030 lost: {ring}, {points}"));
        let of_server = "0 events in S, 2,000 lost: 2,000 ring full (raise --size, 1M now)";
        assert_eq!(closing_of("--size", &streams[..1]), of_server);
    }
}
