//! `hypertrace report`: the timeline, line by line.

mod follow;
mod inputs;
pub mod lines;
mod wanted;

pub(crate) use inputs::{Inputs, names, open, open_all, session, unplaced};
pub(crate) use lines::Lines;
pub(crate) use wanted::{Wanted, wrong};

use crate::Usage;
use crate::output::{Busy, Faults, say};
use crate::units::{At, at};
use crate::writer::unfinished;
use anyhow::Context;
use hypertrace_export::json::JsonLines;
use hypertrace_export::{Choice, Error};
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::EntryRef;
use jiff::tz::TimeZone;
use std::io::{self, IsTerminal as _, Write as _};

/// Show the events of one or several sessions in order of time
///
/// Each line shows the seconds since the session's start, the seconds since the
/// previous line, the source, the event, and the event's fields. The source is
/// guest/CLIENT and the client's name, or vmm/THREAD; if programs ran without a
/// VMM, it is program/CLIENT or host/THREAD. The line of a reference point ends
/// with the guest's CPU and the point's number: @cpu0#17. Where events were lost,
/// an extra line says how many, even with --event: "... 1,234 events lost here
/// (ring full)". On a terminal, lines are cut at its width; a terminal of fewer
/// than 100 columns does not show the time since the previous line.
///
/// Times of guests are mapped to the host's clock; --json has the bound on their
/// error. Sessions of one machine and boot are merged exactly. A session of another
/// machine or boot is placed by the system's clocks, with an unknown error, and a
/// message says so.
///
/// Events named lease tell which thread a client is. Only --json, --event and
/// --where show them.
///
/// Events of the host's kernel come from DIR/kernel.dat. Such an event has the
/// source kernel/THREAD-TID and the name SYSTEM:EVENT, and its line ends with the
/// CPU: @cpu1. If the kernel has a name for a number, the name is shown. Files of
/// trace-cmd (version 6 and 7) that are shown alone keep the times that trace-cmd
/// report shows. If a guest's file is given with its host's file, and trace-cmd
/// recorded how the two clocks relate, the guest's file is put on the host's clock.
/// If trace-cmd did not record this, FILE@DIR relates the clocks by the reference
/// points of a session, and FILE@TIME by a given offset.
///
/// A function trace of the same boot of the same machine is on the session's clock.
/// The trace's events are function_entry and function_exit, with the function's
/// name from --symbols. The source of these events is functions/TRACK.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Take the names of functions from this file: an ELF file, a System.map, or a copy of
    /// /proc/kallsyms, moved by an offset. The offset is not needed for a program that was compiled
    /// to trace its own functions, nor for this program's libraries
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,

    /// One JSON object per line (docs/json.md): t_ns (since the session's start; --from takes it
    /// as 13565925ns), ts_ns (Unix time), bound_ns (null: unknown), client, pid, tid, cpu, thread
    /// (its name), source, event, fields; reference points also have reference. Integers
    /// that a double would round are strings. Where events were lost: type ("lost")
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    wanted: Wanted,

    /// Only events up to this time
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    until: Option<At>,

    /// Show times since the start, or dates with times, in UTC or in this system's time zone
    #[arg(long, value_name = "KIND", value_enum, default_value_t, conflicts_with = "json")]
    time: TimeKind,

    /// Show the events of a session while it is written, until the session or its writer ends. Events are
    /// in order of time, 250 ms after they were read. An event that arrives later is shown out of order,
    /// and a message counts such events. Times of a guest's own clock are the writer's estimates, without
    /// a bound; times of the host may differ by some ns from a later report. Events of the host's kernel
    /// are not shown
    #[arg(long, short)]
    follow: bool,

    /// Stop after this many events
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
}

/// Kind of times.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum TimeKind {
    /// Seconds since the start
    #[default]
    Relative,
    /// Coordinated universal time
    Utc,
    /// The time zone of this system
    Local,
}

impl TimeKind {
    fn zone(self) -> Option<TimeZone> {
        match self {
            TimeKind::Relative => None,
            TimeKind::Utc => Some(TimeZone::UTC),
            TimeKind::Local => Some(TimeZone::system()),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  hypertrace report S                            everything
  hypertrace report S --event 'disk_*' --event vcpu_exit
                                                 disk events and exits
  hypertrace report S -c 0 -c 1                  what guest/0 and guest/1 did
  hypertrace report S --from 1.5ms --until 2ms   half a millisecond of it
  hypertrace report S --where 'len > 4096 and not client == 0'
                                                 choose events by their fields
  hypertrace report S | less -S                  whole lines, to scroll through
  hypertrace report S --json | jq -c 'select(.bound_ns > 10000)'
                                                 events placed worse than 10 us
  hypertrace report S --follow --json            live, for a program
  hypertrace report S1 S2                        two sessions, merged
  hypertrace report S --event 'kvm:*' --event 'disk_*'
                                                 a guest's disk events and KVM's
  hypertrace report trace.dat                    a file of trace-cmd record
  hypertrace report HOST.dat GUEST.dat@-1500ns
                                                 a guest's, 1,500 ns earlier
  hypertrace report S GUEST.dat@S                a guest's, by the points in S
  hypertrace report S F --symbols ./program      with calls, of a function trace
  hypertrace report S --symbols ./program        with calls that are compiled in

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.follow {
        if args.inputs.have_options() {
            let why = "--follow shows one session as it is: @TIME and @DIR are not for it";
            return Err(Usage(why.into()).into());
        }
        return follow::run(args, follow::directory(&args.inputs.paths())?);
    }
    let recording = args.inputs.open(&args.symbols)?;
    let mut faults = Faults::default();
    faults.say(recording.warnings());
    let start = recording.start_unix_ns();
    let choice = args.wanted.choice(start, args.until)?;
    let choice = Choice { has_leases: args.json, without_bounds: !args.json, ..choice };
    choice.check(&recording).map_err(wrong)?;
    let mut lines = Lines::new(&recording).in_zone(args.time.zone());
    let mut json = JsonLines::new(start);
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut left = limit;

    let mut print = |entry: &EntryRef<'_>| {
        left -= u64::from(matches!(entry, EntryRef::Event(_)));
        let line = if args.json { json.line(entry) } else { lines.text(entry) };
        out.write_all(line.as_bytes()).map_err(Error::Write)?;
        Ok::<_, Error>(left > 0)
    };
    // On a terminal, the printed lines show the progress.
    let busy = (!io::stdout().is_terminal()).then(|| Busy::with("writing events"));
    let warnings = match limit {
        0 => Ok(Vec::new()),
        _ => choice.read(&recording, &mut print),
    };
    drop(busy);
    // The events before damage are shown before the damage is reported.
    out.flush().context("cannot write")?;
    let warnings = warnings?;
    match left == limit && limit > 0 {
        true if choice.is_filtered() => say(args.wanted.unmatched(&recording)),
        true => say("no events: nothing was recorded"),
        false => {}
    }
    let sessions = &recording.sessions;
    faults.say(warnings);
    let first = sessions.first().map(|(session, _)| session);
    for (session, _) in sessions.iter().skip(1) {
        if let Some(said) = first.and_then(|first| unplaced(first, session)) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    for (session, _) in sessions {
        if let Some(said) = unfinished(session) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    faults.end()
}
