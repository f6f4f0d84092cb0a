//! The arguments that name inputs: sessions, traces of kernels with their offsets, and function traces.

use crate::Usage;
use crate::kernel;
use crate::output::say;
use crate::place;
use crate::units::time;
use anyhow::Context;
use clap::{ArgMatches, Command, FromArgMatches};
use hypertrace_export::uftrace::has_functions;
use hypertrace_format::error::error_chain;
use hypertrace_format::session_json;
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::{ClockMaps, Error, FunctionTrace, KernelTrace, Offset, Session, Warning};
use std::path::{Path, PathBuf};

/// A session with its clocks, and the kernels' events in it.
pub struct Opened {
    pub session: Session,
    pub maps: ClockMaps,
    pub kernel: Option<KernelTrace>,
    /// The recordings of its guests' kernels, without times yet.
    pub guests: Vec<KernelTrace>,
    /// Why the kernel's events are not used.
    pub unread: Option<Error>,
}

/// Opens sessions with their clocks, on one anchor where they are of one boot. `guests` opens the recordings of the guests'
/// kernels in a session with this index.
pub fn open_each(
    dirs: &[PathBuf],
    mut guests: impl FnMut(usize, &Session) -> anyhow::Result<Vec<KernelTrace>>,
) -> anyhow::Result<Vec<Opened>> {
    let sessions = open_sessions(dirs)?;
    let (mut traces, mut unread, mut of_guests) = (Vec::new(), Vec::new(), Vec::new());
    for (number, session) in sessions.iter().enumerate() {
        let trace = KernelTrace::of_session(number, session);
        unread.push(trace.map(|trace| traces.extend(trace)).err());
        of_guests.extend(guests(number, session)?);
    }
    let maps = maps(&sessions, &traces, &of_guests)?;
    let mut opened = Vec::new();
    for (((session, (maps, why)), unread), number) in
        sessions.into_iter().zip(maps).zip(unread).zip(0..)
    {
        let is_its = |trace: &mut KernelTrace| trace.session() == Some(number);
        let kernel = traces.extract_if(.., is_its).next();
        let guests = of_guests.extract_if(.., is_its).collect();
        opened.push(Opened { session, maps, kernel, guests, unread: unread.or(why) });
    }
    Ok(opened)
}

fn open_sessions(dirs: &[PathBuf]) -> anyhow::Result<Vec<Session>> {
    for dir in dirs {
        if dir.join(hypertrace_compare::FILE).is_file() && !dir.join(session_json::FILE).exists() {
            let dir = dir.display();
            let why = "a run of which `compare --keep samples` kept sums alone: `hypertrace compare` reads it";
            return Err(Usage(format!("{dir} is {why}")).into());
        }
        kernel::complete_to_show(dir);
    }
    Ok(Session::open_all(dirs)?)
}

/// Makes the clock maps of sessions, with the events of the kernels that show their hosts; and why these were not
/// used.
fn maps(
    sessions: &[Session],
    traces: &[KernelTrace],
    guests: &[KernelTrace],
) -> anyhow::Result<Vec<(ClockMaps, Option<Error>)>> {
    let all = sessions.iter().enumerate().map(|(number, session)| {
        Ok(match KernelTrace::clock_maps_of(number, sessions, traces, guests) {
            Ok(maps) => (maps, None),
            Err(why) => (ClockMaps::of(session)?, Some(why)),
        })
    });
    all.collect()
}

/// Returns a line for a session whose place on the timeline of the first one is unknown.
pub fn unplaced(first: &Session, session: &Session) -> Option<String> {
    let (a, b) = (first.counter().boot_id(), session.counter().boot_id());
    if let Some(offset) = session.offset() {
        let unknown = offset.bound_ns.is_none();
        return unknown.then(|| "placed by --ts-offset, with unknown error".into());
    }
    let why = match (a, b) {
        _ if session.is_placed_with(first) => return None,
        (Some(a), Some(b)) if a != b => "recorded on another machine, or after another boot,",
        (Some(_), Some(_)) => "recorded with a counter of another rate",
        _ => "not known to be recorded in the same boot of the same machine",
    };
    let first = first.dir().display();
    Some(format!(
        "{why} as {first}: its events are placed by the system's clocks, with unknown error"
    ))
}

/// Opens a session with its clocks.
pub fn open(dir: &Path) -> anyhow::Result<(Session, ClockMaps)> {
    let guests = |number, session: &Session| Ok(kernel::guests(number, session, "shown"));
    let opened = open_each(&[dir.to_owned()], guests)?.pop();
    let Opened { session, maps, unread, .. } = opened.context("no session")?;
    if let Some(why) = unread {
        say(format_args!("the kernel's events are not used: {}", error_chain(&why)));
    }
    Ok((session, maps))
}

/// Opens a trace of a kernel.
pub fn open_trace(path: &Path) -> anyhow::Result<KernelTrace> {
    Ok(KernelTrace::open(path)?)
}

/// Sessions with their clocks, traces of kernels, and function traces: the arguments of a timeline.
#[derive(Debug)]
pub struct Recordings {
    pub sessions: Vec<(Session, ClockMaps)>,
    pub traces: Vec<KernelTrace>,
    pub functions: Vec<FunctionTrace>,
}

impl Recordings {
    /// Iterates over the faults of the inputs, although these could be opened.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        let functions = self.functions.iter().flat_map(FunctionTrace::warnings);
        self.traces.iter().flat_map(|trace| trace.warnings()).chain(functions)
    }

    /// Returns the names of the inputs, for a message about all of them: that of the first, and the number of others.
    pub fn names(&self) -> String {
        let sessions = self.sessions.iter().map(|(session, _)| session.dir());
        let functions = self.functions.iter().map(|functions| functions.trace().path());
        let mut all = sessions.chain(self.traces.iter().map(KernelTrace::path)).chain(functions);
        let first = all.next().unwrap_or(Path::new("")).display();
        match all.count() {
            0 => first.to_string(),
            more => format!("{first} and {more} more"),
        }
    }
}

/// Inputs in their order.
#[derive(Debug)]
pub struct Inputs(Vec<Given>);

/// An input, with the options after it.
#[derive(Clone, Debug)]
struct Given {
    path: PathBuf,
    offset: Option<Offset>,
    /// Directory of the session whose guest recorded it.
    guest_of: Option<PathBuf>,
}

impl Given {
    /// Opens a trace.
    fn trace(&self) -> anyhow::Result<KernelTrace> {
        open_trace(&self.path)
    }

    fn add_offset(&self, trace: &mut KernelTrace) {
        if let Some(offset) = self.offset {
            trace.add_offset(offset);
        }
    }
}

const PATHS: &str = "inputs";
const OFFSET: &str = "ts_offset";
const GUEST_OF: &str = "guest_of";

/// By hand, because an option belongs to the input before it.
impl clap::Args for Inputs {
    fn augment_args(command: Command) -> Command {
        let path = clap::Arg::new(PATHS)
            .value_name("DIR|FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .num_args(1..)
            .default_value(place::DEFAULT)
            .help(
                "Directories of sessions (those with session.json in them), with their \
                 kernel.dat; directories of function traces; or trace.dat files of trace-cmd",
            );
        let offset = clap::Arg::new(OFFSET)
            .long("ts-offset")
            .value_name("TIME[+-BOUND]")
            .value_parser(offset)
            .action(clap::ArgAction::Append)
            .allow_hyphen_values(true)
            .help(
                "Add this to the times of the session or of the trace.dat file before it: 1500ns, \
                 -1.5us. With the bound on its error, 1500ns+-200ns, times get a bound, too",
            );
        let guest_of = clap::Arg::new(GUEST_OF)
            .long("guest-of")
            .value_name("DIR")
            .value_parser(clap::value_parser!(PathBuf))
            .action(clap::ArgAction::Append)
            .help(
                "Take the trace.dat file before it as recorded (with the clock x86-tsc) in the \
                 guest of this session, whose reference points then give its times and their \
                 bounds",
            );
        command.arg(path).arg(offset).arg(guest_of)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Iterates over the values of an argument with their places on the command line.
fn values<'a, T: Clone + Send + Sync + 'static>(
    matches: &'a ArgMatches,
    name: &str,
) -> impl Iterator<Item = (usize, T)> + use<'a, T> {
    let values = matches.get_many::<T>(name).into_iter().flatten().cloned();
    matches.indices_of(name).into_iter().flatten().zip(values)
}

impl FromArgMatches for Inputs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Inputs, clap::Error> {
        let given = |path| Given { path, offset: None, guest_of: None };
        let mut inputs: Vec<(usize, Given)> =
            values(matches, PATHS).map(|(at, path)| (at, given(path))).collect();
        let mut before = |at: usize, option: &str, change: &mut dyn FnMut(&mut Given)| {
            let found = inputs.iter_mut().filter(|(path_at, _)| *path_at < at);
            let Some((_, given)) = found.max_by_key(|(path_at, _)| *path_at) else {
                let why = format!("--{option} comes after the file that it is for\n");
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, why));
            };
            change(given);
            Ok(())
        };
        for (at, offset) in values::<Offset>(matches, OFFSET) {
            before(at, "ts-offset", &mut |given| {
                given.offset = Some(given.offset.map_or(offset, |sum| sum.and(offset)));
            })?;
        }
        for (at, dir) in values::<PathBuf>(matches, GUEST_OF) {
            before(at, "guest-of", &mut |given| given.guest_of = Some(dir.clone()))?;
        }
        Ok(Inputs(inputs.into_iter().map(|(_, given)| given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Inputs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Inputs {
    /// Returns one input without options.
    pub fn of(path: &Path) -> Inputs {
        Inputs(vec![Given { path: path.to_owned(), offset: None, guest_of: None }])
    }

    /// Returns the paths.
    pub fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(|given| &*given.path).collect()
    }

    /// Returns whether an input has an option of its own.
    pub fn have_options(&self) -> bool {
        self.0.iter().any(|given| given.offset.is_some() || given.guest_of.is_some())
    }

    /// Opens all, as [`Inputs::open`] does, for a result that has times.
    ///
    /// # Errors
    /// As [`Inputs::open`], or if the events of a trace have no times.
    pub fn open_timed(&self, symbols: &[Source]) -> anyhow::Result<Recordings> {
        let opened = self.open(symbols)?;
        let mut traces = opened.traces.iter();
        match traces.find_map(|trace| Some((trace.path(), trace.clock_in_ticks()?))) {
            None => Ok(opened),
            Some((path, clock)) => {
                let path = path.display();
                let why = "counts ticks of unknown length, so its events have no times: leave it out; report, and \
                           export --to json and csv, show ticks";
                Err(Usage(format!("{path}: its clock {clock:?} {why}")).into())
            }
        }
    }

    /// Opens all sessions, all traces, those of the sessions first, and all function traces, with names
    /// from these files.
    pub fn open(&self, symbols: &[Source]) -> anyhow::Result<Recordings> {
        let (of_functions, others): (Vec<&Given>, Vec<&Given>) =
            self.0.iter().partition(|given| is_functions(&given.path));
        let (files, dirs): (Vec<&Given>, Vec<&Given>) =
            others.into_iter().partition(|given| is_trace(&given.path));
        let paths: Vec<PathBuf> = dirs.iter().map(|given| given.path.clone()).collect();
        let mut sessions = open_sessions(&paths)?;
        let mut traces = Vec::new();
        for (number, (session, given)) in sessions.iter_mut().zip(&dirs).enumerate() {
            if given.guest_of.is_some() {
                let path = given.path.display();
                return Err(Usage(format!("{path}: --guest-of is for trace.dat files")).into());
            }
            if let Some(offset) = given.offset {
                session.add_offset(offset);
            }
            traces.extend(KernelTrace::of_session(number, session)?);
        }
        let (guests, hosts): (Vec<&Given>, Vec<&Given>) =
            files.into_iter().partition(|given| given.guest_of.is_some());
        for given in hosts {
            let mut trace = given.trace()?;
            for (number, session) in sessions.iter().enumerate() {
                trace.join(number, session);
            }
            given.add_offset(&mut trace);
            traces.push(trace);
        }
        let recorded = sessions.iter().enumerate();
        let recorded = recorded.map(|(number, session)| kernel::guests(number, session, "shown"));
        let mut recorded = Vec::from_iter(recorded.flatten());
        let maps = maps(&sessions, &traces, &recorded)?.into_iter().map(|(maps, _)| maps);
        let sessions: Vec<(Session, ClockMaps)> = sessions.into_iter().zip(maps).collect();
        for (number, (session, maps)) in sessions.iter().enumerate() {
            let own = recorded.extract_if(.., |trace| trace.session() == Some(number)).collect();
            traces.extend(kernel::with_times(own, session, maps, "shown"));
        }
        for given in guests {
            let mut trace = given.trace()?;
            let of = |(session, _): &&(Session, ClockMaps)| {
                given.guest_of.as_ref().is_some_and(|dir| session.dir() == dir)
            };
            let Some((session, maps)) = sessions.iter().find(of) else {
                let dir = given.guest_of.as_deref().unwrap_or(Path::new("")).display();
                let why = format!("--guest-of {dir}: give that session as an input, too");
                return Err(Usage(why).into());
            };
            trace.set_guest(session, maps)?;
            given.add_offset(&mut trace);
            traces.push(trace);
        }
        KernelTrace::pair(&mut traces);
        KernelTrace::warn_of_unplaced(&mut traces, !sessions.is_empty());
        let functions = functions(&of_functions, &sessions, symbols)?;
        Ok(Recordings { sessions, traces, functions })
    }
}

/// Opens function traces, on the clocks of the sessions of their boot.
fn functions(
    given: &[&Given],
    sessions: &[(Session, ClockMaps)],
    symbols: &[Source],
) -> anyhow::Result<Vec<FunctionTrace>> {
    let has_functions = |(session, _): &(Session, ClockMaps)| has_functions(session);
    if given.is_empty() && !symbols.is_empty() && !sessions.iter().any(has_functions) {
        let why = "--symbols names the functions of a function trace, or those that are compiled in: give the \
                   directory of the trace, too";
        return Err(Usage(why.into()).into());
    }
    let sessions: Vec<&Session> = sessions.iter().map(|(session, _)| session).collect();
    let mut all: Vec<FunctionTrace> = Vec::new();
    for given in given {
        if given.offset.is_some() || given.guest_of.is_some() {
            let path = given.path.display();
            let why = "it is on its session's clock, --ts-offset and --guest-of are not for it";
            return Err(Usage(format!("{path} is a function trace: {why}")).into());
        }
        let mut trace = FunctionTrace::open(&given.path)?;
        for source in symbols {
            trace.add_symbols(source)?;
        }
        trace.place(&sessions, all.first())?;
        all.push(trace);
    }
    Ok(all)
}

/// Returns whether a path is of a function trace.
fn is_functions(path: &Path) -> bool {
    path.join("info").is_file() && !path.join(session_json::FILE).exists()
}

/// Returns whether a path is for the reader of traces: whatever is no directory, but a session's own file.
pub fn is_trace(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_dir())
        && path.file_name().is_none_or(|name| name != session_json::FILE)
}

/// Parses an offset: a time, and the bound on its error after `+-`.
fn offset(text: &str) -> Result<Offset, String> {
    match text.split_once("+-").or(text.split_once('\u{b1}')) {
        None => Ok(Offset::new(time(text)?, None)),
        Some((offset, bound)) => {
            let bound = u64::try_from(time(bound)?);
            let bound = bound.map_err(|_| "expected a bound that is not negative".to_string())?;
            Ok(Offset::new(time(offset)?, Some(bound)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_may_have_a_bound() {
        assert_eq!(offset("-1500ns"), Ok(Offset::new(-1_500, None)));
        assert_eq!(offset("1.5us"), Ok(Offset::new(1_500, None)));
        assert_eq!(offset("-1500ns+-1us"), Ok(Offset::new(-1_500, Some(1_000))));
        assert_eq!(offset("2ms\u{b1}0ns"), Ok(Offset::new(2_000_000, Some(0))));
        for wrong in ["", "5", "+-5ns", "5ns+-", "5ns+--1ns", "5ns+-x"] {
            assert!(offset(wrong).is_err(), "{wrong}");
        }
    }
}
