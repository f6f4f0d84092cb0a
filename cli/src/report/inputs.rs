//! The arguments that name inputs: sessions, and traces of kernels with their offsets.

use clap::{ArgMatches, Command, FromArgMatches};
use hypertrace_timeline::{ClockMaps, KernelTrace, Session};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Opens sessions with their clocks, on one anchor where they are of one boot.
pub fn open_all(dirs: &[PathBuf]) -> anyhow::Result<Vec<(Session, ClockMaps)>> {
    let with_maps = |session: Session| {
        let maps = ClockMaps::of(&session)?;
        Ok((session, maps))
    };
    for dir in dirs {
        crate::kernel::complete_to_show(dir);
    }
    Session::open_all(dirs)?.into_iter().map(with_maps).collect()
}

/// Returns a line for a session whose place on the timeline of the first one is unknown.
pub fn unplaced(first: &Session, session: &Session) -> Option<String> {
    let (a, b) = (first.counter().boot_id(), session.counter().boot_id());
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
    crate::kernel::complete_to_show(dir);
    let session = Session::open(dir)?;
    let maps = ClockMaps::of(&session)?;
    Ok((session, maps))
}

/// Inputs in their order, each with the offset after it.
#[derive(Debug)]
pub struct Inputs(Vec<(PathBuf, i64)>);

const PATHS: &str = "inputs";
const OFFSET: &str = "ts_offset";

/// By hand, because an offset belongs to the input before it.
impl clap::Args for Inputs {
    fn augment_args(command: Command) -> Command {
        let path = clap::Arg::new(PATHS)
            .value_name("DIR|FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .num_args(1..)
            .required(true)
            .help(
                "Directories of sessions (those with session.json in them), with their \
                 kernel.dat; or trace.dat files of trace-cmd",
            );
        let offset = clap::Arg::new(OFFSET)
            .long("ts-offset")
            .value_name("NS")
            .value_parser(offset)
            .action(clap::ArgAction::Append)
            .allow_hyphen_values(true)
            .help(
                "Add this to the times of the trace.dat file (or of the kernel.dat of the \
                 session) before it: 1500, -1500, 1.5us",
            );
        command.arg(path).arg(offset)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Inputs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Inputs, clap::Error> {
        let paths = matches.get_many::<PathBuf>(PATHS).into_iter().flatten().cloned();
        let at = matches.indices_of(PATHS).into_iter().flatten();
        let offsets = matches.get_many::<i64>(OFFSET).into_iter().flatten().copied();
        let offsets_at = matches.indices_of(OFFSET).into_iter().flatten();
        let mut inputs: Vec<_> = at.zip(paths.map(|path| (path, 0))).collect();
        for (at, offset) in offsets_at.zip(offsets) {
            let before = inputs.iter_mut().filter(|(path_at, _)| *path_at < at);
            let Some((_, (_, sum))) = before.max_by_key(|(path_at, _)| *path_at) else {
                let why = "--ts-offset comes after the file that it is for\n";
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, why));
            };
            *sum += offset;
        }
        Ok(Inputs(inputs.into_iter().map(|(_, input)| input).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Inputs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Inputs {
    /// Opens all sessions and all traces, those of the sessions first.
    #[expect(clippy::type_complexity, reason = "the two arguments of a timeline")]
    pub fn open(&self) -> anyhow::Result<(Vec<(Session, ClockMaps)>, Vec<KernelTrace>)> {
        let mut traces = Vec::new();
        let (dirs, offsets): (Vec<PathBuf>, Vec<i64>) =
            self.0.iter().filter(|(path, _)| !is_trace(path)).cloned().unzip();
        let sessions = open_all(&dirs)?;
        for (number, ((session, _), offset)) in sessions.iter().zip(offsets).enumerate() {
            if let Some(mut trace) = KernelTrace::of_session(number, session)? {
                trace.add_offset(offset);
                traces.push(trace);
            }
        }
        for (file, offset) in self.0.iter().filter(|(path, _)| is_trace(path)) {
            // A link given by name is followed, unlike one in a session.
            let mut trace = KernelTrace::open(&file.canonicalize().unwrap_or(file.clone()))?;
            trace.add_offset(*offset);
            traces.push(trace);
        }
        KernelTrace::pair(&mut traces);
        Ok((sessions, traces))
    }
}

/// Returns whether a path is for the reader of traces: a file that is called so or begins so. Other
/// files are refused as sessions.
fn is_trace(path: &Path) -> bool {
    let begins = || {
        let mut magic = [0; 3];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == *b"\x17\x08\x44"
    };
    path.is_file() && (path.extension().is_some_and(|extension| extension == "dat") || begins())
}

/// Parses an offset: nanoseconds, or a time with a unit.
fn offset(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(ns) => Ok(ns),
        Err(_) => time(text),
    }
}

/// Parses a time such as `1.5ms` to nanoseconds, exactly. Without a unit, it is seconds.
pub fn time(text: &str) -> Result<i64, String> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit: u64 = match &text[number.len()..] {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" | "" => 1_000_000_000,
        _ => return Err("expected a number with ns, us, ms or s, such as 1.5ms".into()),
    };
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if digits.trim_matches('.').is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err("expected a number such as 1.5 before the unit".into());
    }
    let too_large = || "too large for a time".to_string();
    let parse =
        |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<i64>().map_err(|_| too_large()) };
    let mut ns = parse(whole)?.checked_mul(unit as i64).ok_or_else(too_large)?;
    let mut place = unit as i64;
    for digit in fraction.bytes() {
        place /= 10;
        ns = ns.checked_add(place * i64::from(digit - b'0')).ok_or_else(too_large)?;
    }
    Ok(sign * ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (text, ns) in [
            ("1.5ms", 1_500_000),
            ("200us", 200_000),
            ("2s", 2_000_000_000),
            ("2", 2_000_000_000),
            (".5", 500_000_000),
            ("0.000000001", 1),
            ("0.0000000019", 1),
            ("17ns", 17),
            ("-1.25us", -1_250),
            ("3\u{b5}s", 3_000),
        ] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for text in ["", "s", "1h", "1.2.3s", "--1s", "1 s", "99999999999999999s", "1e3", ".", "x5"]
        {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
