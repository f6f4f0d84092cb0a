//! The arguments that name inputs: sessions, traces of kernels with their offsets, and function traces.

use crate::Usage;
use crate::kernel;
use crate::output::say;
use crate::place;
use clap::{ArgMatches, Command, FromArgMatches};
use hypertrace_format::error::error_chain;
use hypertrace_format::number::time;
use hypertrace_format::session_json;
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::{Error, Form, Given, Offset, Recording, Session, UnreadPart};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns a line for a session whose place on the timeline of the first session is unknown.
pub fn unplaced(first: &Session, session: &Session) -> Option<String> {
    let (a, b) = (first.counter().boot_id(), session.counter().boot_id());
    if let Some(offset) = session.offset() {
        let unknown = offset.bound_ns.is_none();
        return unknown.then(|| "placed by @TIME, with unknown error".into());
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

/// Completes the recordings of killed processes, then opens all inputs.
pub fn open_all(given: &[Given]) -> anyhow::Result<Recording> {
    for given in given.iter().filter(|given| given.form == Form::Session) {
        let dir = &given.path;
        if dir.join(hypertrace_compare::FILE).is_file() && !dir.join(session_json::FILE).exists() {
            let dir = dir.display();
            let why = "a run of which `compare --keep samples` kept only sums: only `hypertrace compare` \
                       reads it";
            return Err(Usage(format!("{dir} is {why}")).into());
        }
        kernel::complete_to_show(dir);
    }
    Recording::open(given).map_err(|why| match why {
        Error::NotGiven { session, .. } => {
            let dir = session.display();
            Usage(format!("@{dir}: give that session as an input, too")).into()
        }
        why => why.into(),
    })
}

/// Returns an input that names a session's directory, whatever the directory contains.
pub fn session(dir: &Path) -> Given {
    Given { form: Form::Session, ..Given::new(dir) }
}

/// Opens a session, even if the events of its kernel are missing.
pub fn open(dir: &Path) -> anyhow::Result<Recording> {
    let recording = open_all(&[session(dir)])?;
    kernel::say_guests(&recording, "shown");
    if let Some(why) = recording.unread_of(0) {
        say(format_args!("the kernel's events are not used: {}", error_chain(why)));
    }
    Ok(recording)
}

/// Returns the names of the inputs, for a message about all of them: the first name, and the number of other
/// inputs.
pub fn names(recording: &Recording) -> String {
    let mut all = recording.paths();
    let first = all.next().unwrap_or(Path::new("")).display();
    match all.count() {
        0 => first.to_string(),
        more => format!("{first} and {more} more"),
    }
}

/// The inputs in the order in which they are given.
#[derive(Debug)]
pub struct Inputs(Vec<Given>);

const PATHS: &str = "inputs";

/// `clap::Args` is implemented by hand, because an input is more than a path. An input may also have an
/// offset or a session's directory after `@`.
impl clap::Args for Inputs {
    fn augment_args(command: Command) -> Command {
        let path = clap::Arg::new(PATHS)
            .value_name("DIR|FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .num_args(1..)
            .default_value(place::DEFAULT)
            .help(
                "Directories of sessions (those with session.json in them), with their \
                 kernel.dat; directories of function traces; or trace.dat files of trace-cmd. \
                 FILE@TIME adds a time to those of a session or trace.dat file: g.dat@-1.5us, with a \
                 bound on its error g.dat@1500ns+-200ns. FILE@DIR takes a trace.dat file as recorded \
                 (with the clock x86-tsc) in the guest of a session, whose reference points then \
                 give its times and their bounds",
            );
        command.arg(path)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Inputs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Inputs, clap::Error> {
        let paths = matches.get_many::<PathBuf>(PATHS).into_iter().flatten();
        let all = paths.map(|path| given(path)).collect::<Result<_, _>>();
        let wrong = |why| clap::Error::raw(clap::error::ErrorKind::InvalidValue, why);
        Ok(Inputs(all.map_err(wrong)?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Inputs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses an input: a path, `FILE@TIME`, or `FILE@DIR` with the session of the guest in which FILE was
/// recorded.
fn given(text: &Path) -> Result<Given, String> {
    let bytes = text.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'@');
    let at = at.filter(|at| *at > 0 && at + 1 < bytes.len() && text.symlink_metadata().is_err());
    let Some(at) = at else { return Ok(Given::new(text)) };
    let [file, after] = [&bytes[..at], &bytes[at + 1..]].map(OsStr::from_bytes);
    let mut given = Given::new(file);
    let is_time = after.as_bytes()[0].is_ascii_digit() || after.as_bytes()[0] == b'-';
    let is_path = Path::new(after).exists();
    match offset(&after.to_string_lossy()) {
        Ok(_) if is_path => {
            let (shown, after) = (text.display(), after.display());
            return Err(format!(
                "{shown}: {after} is a time and a path: give the path as @./{after}"
            ));
        }
        Ok(offset) => given.offset = Some(offset),
        // The user has probably mistyped a path that contains `@`.
        Err(_) if !is_path && !given.path.exists() => return Ok(Given::new(text)),
        Err(why) if is_time && !is_path => return Err(format!("{}: {why}", text.display())),
        Err(_) => given.guest_of = Some(after.into()),
    }
    Ok(given)
}

impl Inputs {
    /// Returns one input without options.
    pub fn of(path: &Path) -> Inputs {
        Inputs(vec![Given::new(path)])
    }

    /// Returns the paths.
    pub fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(|given| &*given.path).collect()
    }

    /// Returns the inputs of each session. Inputs that are not sessions can be used with a single session
    /// only.
    ///
    /// # Errors
    /// If there are other inputs beside several sessions.
    pub fn by_session(&self) -> anyhow::Result<Vec<Inputs>> {
        let is_session = |given: &&Given| given.form == Form::Session;
        if self.0.iter().filter(is_session).count() < 2 {
            return Ok(vec![Inputs(self.0.clone())]);
        }
        match self.0.iter().find(|given| !is_session(given)) {
            None => Ok(self.0.iter().map(|given| Inputs(vec![given.clone()])).collect()),
            Some(other) => {
                let why = "is no session: such a file can be given with a single session";
                Err(Usage(format!("{} {why}", other.path.display())).into())
            }
        }
    }

    /// Returns whether an input has an option of its own.
    pub fn have_options(&self) -> bool {
        self.0.iter().any(|given| given.offset.is_some() || given.guest_of.is_some())
    }

    /// Opens all inputs, as [`Inputs::open`] does, for a result that has times.
    ///
    /// # Errors
    /// As [`Inputs::open`], or if the events of a trace have no times.
    pub fn open_timed(&self, symbols: &[Source]) -> anyhow::Result<Recording> {
        let opened = self.open(symbols)?;
        let mut traces = opened.traces.iter();
        match traces.find_map(|trace| Some((trace.path(), trace.clock_in_ticks()?))) {
            None => Ok(opened),
            Some((path, clock)) => {
                let path = path.display();
                let why = "counts ticks of unknown length, so its events have no times: leave this file out; \
                           only report, and export --to json and csv, show ticks";
                Err(Usage(format!("{path}: its clock {clock:?} {why}")).into())
            }
        }
    }

    /// Opens all inputs, with names of functions from `symbols`.
    pub fn open(&self, symbols: &[Source]) -> anyhow::Result<Recording> {
        for given in &self.0 {
            let path = given.path.display();
            match given.form {
                Form::Session if given.guest_of.is_some() => {
                    return Err(Usage(format!("{path}: @DIR is for trace.dat files")).into());
                }
                Form::Functions if given.offset.is_some() || given.guest_of.is_some() => {
                    let why = "such a trace is on its session's clock and takes no @TIME or @DIR";
                    return Err(Usage(format!("{path} is a function trace: {why}")).into());
                }
                _ => {}
            }
        }
        let mut recording = open_all(&self.0)?;
        kernel::say_guests(&recording, "shown");
        let host = recording.unread.iter().position(|unread| unread.what == UnreadPart::Host);
        if let Some(host) = host {
            return Err(recording.unread.swap_remove(host).why.into());
        }
        let has_functions = !recording.functions.is_empty() || recording.has_compiled_functions();
        if !has_functions && !symbols.is_empty() {
            let why = "--symbols names the functions of a function trace, or those that are compiled in: give the \
                       directory of the trace, too";
            return Err(Usage(why.into()).into());
        }
        symbols.iter().try_for_each(|source| recording.add_symbols(source))?;
        Ok(recording)
    }
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
    fn an_input_may_have_an_offset_or_the_session_of_its_guest() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a@5ns"), "").unwrap();
        std::fs::create_dir(path("2026")).unwrap();
        let of = |name: &str| {
            let found = given(&path(name)).unwrap();
            (found.path, found.offset, found.guest_of)
        };

        assert_eq!(of("f"), (path("f"), None, None));
        assert_eq!(of("f@-1.5us"), (path("f"), Some(Offset::new(-1_500, None)), None));
        assert_eq!(of("a@b@2ns+-1ns"), (path("a@b"), Some(Offset::new(2, Some(1))), None));
        std::fs::write(path("f"), "").unwrap();
        assert_eq!(of("f@S"), (path("f"), None, Some("S".into())));
        // Neither the session S nor the file `g` exists.
        assert_eq!(of("g@S"), (path("g@S"), None, None));
        let session = path("2026");
        assert_eq!(of(&format!("f@{}", session.display())), (path("f"), None, Some(session)));
        // If a file of this name exists, the text is that file's name.
        assert_eq!(of("a@5ns"), (path("a@5ns"), None, None));
        assert_eq!(of("f@"), (path("f@"), None, None));
        assert!(given(&path("f@5")).unwrap_err().ends_with(
            "f@5: a time is a number with ns, us, ms or s, such as 1.5ms, or 0.001500000"
        ));
    }

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
