//! `hypertrace report`: the timeline, line by line.

mod follow;
mod functions;
mod inputs;
mod lines;

pub(crate) use inputs::{Inputs, Opened, Recordings, open, open_each, unplaced};
pub(crate) use lines::Lines;

use crate::Usage;
use crate::output::say;
use crate::units::{At, at};
use crate::writer::unfinished;
use anyhow::Context;
use functions::Functions;
use hypertrace_export::uftrace::has_functions;
use hypertrace_format::pattern::matches;
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::{
    ClockMaps, EntryRef, EventKind, EventRef, FUNCTION_FIELDS, Filter, FilterError, FunctionTrace,
    KernelTrace, Lost, Session, Timeline, nearest,
};
use jiff::tz::TimeZone;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Show the events of one or several sessions in order of time
///
/// A line is: seconds since the session's start, seconds since the previous
/// line, the source, the event, its fields. The source is guest/CLIENT and the
/// name that the client gave itself, or vmm/THREAD; program/CLIENT and host/THREAD
/// where programs ran without a VMM. A reference point ends with the guest's CPU
/// and the point's number: @cpu0#17. Where events were lost, a line of its own
/// says how many, whatever the argument of --event: "... 1,234 events lost here
/// (ring full)". Guests' clocks are mapped to the host's; --json has the error
/// bound. Sessions of one machine and boot are merged exactly. Those of another
/// machine or boot are placed by the system's clocks, and a message says so: their
/// error is unknown. On a terminal, lines are cut at its width, and if that
/// is less than 100, the time since the previous line is left out.
///
/// The events named lease, which say which thread a client is, are shown with
/// --json, --event or --where only.
///
/// Events of the host's kernel come from DIR/kernel.dat. Their source is
/// kernel/THREAD-TID, their name SYSTEM:EVENT, and their line ends with the CPU:
/// @cpu1. Numbers that the kernel has names for are shown by name. Files of
/// trace-cmd (version 6 and 7) alone have times of their own clock: those that
/// trace-cmd report shows. A guest's file given together with its host's is put on
/// the host's clock if trace-cmd recorded the relation; if not, --guest-of does
/// that by the reference points of a session, or --ts-offset by hand.
///
/// A function trace of the same boot of the same machine is on the session's clock:
/// function_entry and function_exit, with the function's name by --symbols. Their
/// source is functions/TRACK.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Names of functions in function traces, and of those that are compiled in: an ELF file, a
    /// System.map, or what /proc/kallsyms has, moved by an offset. Where functions are compiled in,
    /// a program and its libraries need no offset
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,

    /// One JSON object per line (docs/json.md): t_ns (since the session's start; --from takes it
    /// as 13565925ns), ts_ns (Unix time), bound_ns (null: unknown), client, pid, tid, cpu, thread
    /// (its name), source, event, fields; reference points also have reference. Integers
    /// that a double would round are strings. Where events were lost: type ("lost")
    #[arg(long)]
    json: bool,

    /// Only events whose name matches this pattern with * (any text) and ? (any
    /// character). May be given several times
    #[arg(long, value_name = "GLOB")]
    event: Vec<String>,

    /// Only events of this client of the guest. May be given several times
    #[arg(long, short, value_name = "N")]
    client: Vec<u32>,

    /// Only events for which this is true. A name is a field, source, event, thread, pid, tid, client
    /// or cpu; it is compared (== != < <= > >=) with a number, true, false, or a text in quotes.
    /// Comparisons are joined by not, and, or, and parentheses. An event without the field
    /// does not fit. Of the kernel's events, pid is the thread's number
    #[arg(long = "where", value_name = "EXPR")]
    filter: Option<String>,

    /// Only events from this time on, counted from the start: 1.5ms, 200us, 2s; or as
    /// shown: 0.001500000, 2026-11-27T15:48:15.5Z
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    from: Option<At>,

    /// Only events up to this time
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    to: Option<At>,

    /// Times to show: since the start, or of the calendar, by UTC or in this system's time zone
    #[arg(long, value_name = "KIND", value_enum, default_value_t, conflicts_with = "json")]
    time: TimeKind,

    /// Show the events of a session while it is written, until it ends or its writer was ended: in
    /// order of time, 250 ms after they were read. An event that arrives later than that is shown
    /// late, and a message counts such. Times of a guest's own clock are the writer's estimates,
    /// without a bound, and the host's may differ by some ns from those shown later; events of the host's kernel are not shown
    #[arg(long, short)]
    follow: bool,

    /// Show the time since the previous line in nanoseconds: (+250)
    #[arg(long, conflicts_with = "json")]
    ts_diff: bool,

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
  hypertrace report S -c 0 -c 1                  what guest clients 0 and 1 did
  hypertrace report S --from 1.5ms --to 2ms      half a millisecond of it
  hypertrace report S --where 'len > 4096 and not client == 0'
                                                 what fields say
  hypertrace report S | less -S                  whole lines, to scroll through
  hypertrace report S --json | jq -c 'select(.bound_ns > 10000)'
                                                 events placed worse than 10 us
  hypertrace report S --follow --json            live, for a program
  hypertrace report S1 S2                        two sessions, merged
  hypertrace report S --event 'kvm:*' --event 'disk_*'
                                                 a guest's disk events and KVM's
  hypertrace report trace.dat                    a file of trace-cmd record
  hypertrace report HOST.dat GUEST.dat --ts-offset -1500ns
                                                 a guest's, 1,500 ns earlier
  hypertrace report S GUEST.dat --guest-of S     a guest's, by the points in S
  hypertrace report S F --symbols ./program      with calls, of a function trace
  hypertrace report S --symbols ./program        with calls that are compiled in

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.follow {
        if args.inputs.have_options() {
            let why =
                "--follow shows one session as it is: --ts-offset and --guest-of are not for it";
            return Err(Usage(why.into()).into());
        }
        return follow::run(args, follow::directory(&args.inputs.paths())?);
    }
    let Recordings { sessions, traces, functions } = args.inputs.open(&args.symbols)?;
    for warning in traces.iter().flat_map(|trace| trace.warnings()) {
        say(warning);
    }
    let is_compiled = sessions.iter().any(|(session, _)| has_functions(session));
    let mut names = Functions::read(if is_compiled { &args.symbols } else { &[] })?;
    let started = sessions.iter().map(|(s, _)| s.json().started_unix_ns).min();
    let start = started.or(functions.iter().map(FunctionTrace::start_unix_ns).min()).unwrap_or(0);
    let chosen = Chosen::new(args, start)?;
    chosen.check_fields(&sessions, &traces)?;
    let mut lines = Lines::new(&sessions, &traces).diff(args.ts_diff);
    lines = lines.in_zone(start, args.time.zone());
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut left = limit;

    let mut timeline = Timeline::with_functions(&sessions, &traces, &functions)?;
    while left > 0
        && let Some(entry) = timeline.read()
    {
        let line = match entry {
            Ok(EntryRef::Event(event)) => {
                let since = event.ts_ns.saturating_sub(start);
                let name = names.name(&event);
                if chosen.is_past(since) {
                    break;
                }
                if !chosen.admits(&event, since) {
                    continue;
                }
                left -= 1;
                match args.json {
                    true => lines.json(&event, since, name),
                    false => lines.text(&event, since, name),
                }
            }
            Ok(EntryRef::Lost(lost)) => {
                let since = lost.ts_ns.map(|at| at.saturating_sub(start));
                if !chosen.admits_lost(&lost, since) {
                    continue;
                }
                if args.json {
                    lines.json_lost(&lost, since)
                } else {
                    lines.text_lost(&lost, since)
                }
            }
            Err(error) => {
                // The events before the damage are shown.
                out.flush().context("cannot write")?;
                return Err(error.into());
            }
        };
        out.write_all(line.as_bytes()).context("cannot write")?;
    }
    out.flush().context("cannot write")?;
    match left == limit && limit > 0 {
        true if args.is_filtered() => say(args.unmatched(&sessions, &traces)),
        true => say("no events: nothing was recorded"),
        false => {}
    }
    for warning in timeline.warnings() {
        say(warning);
    }
    let first = sessions.first().map(|(session, _)| session);
    for (session, _) in sessions.iter().skip(1) {
        if let Some(said) = first.and_then(|first| unplaced(first, session)) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    for (session, _) in &sessions {
        if let Some(said) = unfinished(session) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    Ok(())
}

impl Args {
    fn is_filtered(&self) -> bool {
        let has_names = !self.event.is_empty() || !self.client.is_empty() || self.filter.is_some();
        has_names || self.from.is_some() || self.to.is_some()
    }

    /// Formats the message that no event matched. For each name it adds whether a session has
    /// an event of that name.
    fn unmatched(&self, sessions: &[(Session, ClockMaps)], traces: &[KernelTrace]) -> String {
        let mut text = "no event matched".to_owned();
        let kernel = Vec::from_iter(traces.iter().flat_map(|trace| trace.events()));
        let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
        let classes = Vec::from_iter(classes.map(|class| &*class.name));
        let names = || classes.iter().copied().chain(kernel.iter().map(String::as_str));
        for glob in &self.event {
            let is_known = names().any(|name| matches(glob, name));
            // Writing to a String does not fail.
            let _ = match is_known {
                true => write!(text, "; {glob} is a known name, but no recorded event fits"),
                false => match nearest(glob, names()) {
                    Some(near) => write!(text, "; no event is named {glob}; there is {near}"),
                    None => write!(text, "; no event is named {glob}"),
                },
            };
        }
        text
    }
}

/// What the arguments choose.
struct Chosen<'a> {
    args: &'a Args,
    filter: Option<Filter>,
    /// Times since the start.
    from: Option<i64>,
    to: Option<i64>,
}

impl<'a> Chosen<'a> {
    fn new(args: &'a Args, start: i64) -> Result<Chosen<'a>, Usage> {
        let filter = args.filter.as_deref().map(str::parse).transpose().map_err(wrong)?;
        let [from, to] = [args.from, args.to].map(|at| at.map(|at| at.since(start)));
        Ok(Chosen { args, filter, from, to })
    }

    /// Checks that each field of the filter is one of some event.
    fn check_fields(
        &self,
        sessions: &[(Session, ClockMaps)],
        traces: &[KernelTrace],
    ) -> Result<(), Usage> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
        let mut known: HashSet<&str> = classes.flat_map(|c| &c.fields).map(|f| &**f).collect();
        known.extend(traces.iter().flat_map(KernelTrace::fields));
        known.extend(FUNCTION_FIELDS);
        filter.check(&known).map_err(wrong)
    }

    /// Returns whether this and all later events are too late.
    fn is_past(&self, since: i64) -> bool {
        self.to.is_some_and(|to| since > to)
    }

    fn admits(&self, event: &EventRef<'_>, since: i64) -> bool {
        self.from.is_none_or(|from| since >= from)
            && match &*self.args.event {
                // The events in a guest's recording are shown, not what carries it.
                [] if event.client.is_some() && crate::kernel::is_carrier(event.name) => false,
                [] => event.kind != EventKind::Lease || self.args.json || self.filter.is_some(),
                globs => globs.iter().any(|glob| matches(glob, event.name)),
            }
            && self.is_of_client(event.client)
            && self.filter.as_ref().is_none_or(|filter| filter.fits(event))
    }

    fn is_of_client(&self, client: Option<u32>) -> bool {
        let clients = &self.args.client;
        clients.is_empty() || client.is_some_and(|client| clients.contains(&client))
    }

    /// Returns whether a loss is shown. Names and fields do not matter: any event may be among
    /// the lost ones.
    fn admits_lost(&self, lost: &Lost, since: Option<i64>) -> bool {
        since.is_none_or(|since| {
            self.from.is_none_or(|from| since >= from) && self.to.is_none_or(|to| since <= to)
        }) && self.is_of_client(lost.client)
    }
}

pub fn wrong(filter: FilterError) -> Usage {
    Usage(format!("--where: {filter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expected) in [
            ("disk_read", "disk_read", true),
            ("disk", "disk_read", false),
            ("disk_*", "disk_read", true),
            ("*read", "disk_read", true),
            ("*_*", "disk_read", true),
            ("d?sk*", "disk_read", true),
            ("*a*d", "disk_read", true),
            ("*x*", "disk_read", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbXcd", false),
        ] {
            assert_eq!(matches(glob, name), expected, "{glob} {name}");
        }
    }
}
