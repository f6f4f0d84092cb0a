//! Options of a function trace on QEMU's command line.

use super::level::{LEVELS, Level};
use hypertrace_functions::symbols::Source;
use std::fmt;
use std::path::PathBuf;

/// Maximum size of all files together in bytes, unless `limit=` gives another size.
const LIMIT: u64 = 64 << 30;

/// Options of a function trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Directory of the trace, new or empty.
    pub dir: PathBuf,
    /// Whether each privilege level has its own records.
    pub by_level: bool,
    /// Minimum duration of recorded functions in nanoseconds.
    pub min: u64,
    /// Number of depths that are recorded; `None`: all depths are recorded.
    pub depth: Option<usize>,
    /// Maximum size of all files together in bytes.
    pub limit: u64,
    /// Files with names of functions.
    pub symbols: Vec<Source>,
    /// Functions that are recorded; empty: all functions are recorded.
    pub parts: Vec<Part>,
    /// The only privilege level that is recorded; `None`: all levels are recorded.
    pub level: Option<Level>,
    /// Name of the region in which functions are recorded; `None`: functions are always recorded.
    pub region: Option<String>,
}

/// Some of the functions that are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The functions of this name or, if the name's last character is `*`, all functions whose names begin
    /// with the text before the `*`.
    Name(String),
    /// The functions from the first address up to the second address. The second address is excluded.
    Range(u64, u64),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Name(name) => f.write_str(name),
            Part::Range(start, end) => write!(f, "{start:#x}-{end:#x}"),
        }
    }
}

/// A wrong option.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The key is not known.
    #[error(
        "unknown option {0:?} of a function trace: functions=DIR, trace-privilege-level=on|off, min=TIME, depth=N, limit=SIZE, symbols=FILE, symbol=NAME, range=START-END, level=N and region=NAME are known"
    )]
    Unknown(String),
    /// The option cannot have this value.
    #[error("option {key}={value}: {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The given value.
        value: String,
        /// The possible values.
        expected: &'static str,
    },
}

impl Options {
    /// Reads options, each of the form `KEY=VALUE`. Returns `None` if no option is `functions=DIR`.
    ///
    /// # Errors
    /// If one of the options is unknown or has a wrong value.
    pub fn parse(options: &[&[u8]]) -> Result<Option<Options>, OptionError> {
        let all = options.iter().map(|option| split(option));
        let Some((_, dir)) = all.clone().find(|(key, _)| key == "functions") else {
            return Ok(None);
        };
        if dir.is_empty() {
            return Err(wrong("functions", &dir, "the name of a directory is missing"));
        }
        let dir = PathBuf::from(dir);
        let mut found = Options {
            dir,
            by_level: true,
            min: 0,
            depth: None,
            limit: LIMIT,
            symbols: Vec::new(),
            parts: Vec::new(),
            level: None,
            region: None,
        };
        for (key, value) in all {
            match key.as_str() {
                "functions" => {}
                "trace-privilege-level" => {
                    found.by_level = match value.as_str() {
                        "on" => true,
                        "off" => false,
                        _ => return Err(wrong("trace-privilege-level", &value, "on or off")),
                    }
                }
                "min" => {
                    let time = with_unit(&value, &[("ns", 1), ("us", 1_000), ("ms", 1_000_000)]);
                    found.min =
                        time.ok_or_else(|| wrong("min", &value, "a time: 500ns, 1us, 2ms"))?;
                }
                "depth" => {
                    let depth = value.parse().ok().filter(|depth| (1..=1023).contains(depth));
                    let depth =
                        depth.ok_or_else(|| wrong("depth", &value, "a number from 1 to 1023"))?;
                    found.depth = Some(depth);
                }
                "limit" => {
                    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
                    let limit = with_unit(&value, &units).filter(|limit| *limit > 0);
                    found.limit =
                        limit.ok_or_else(|| wrong("limit", &value, "a size: 512M, 4G"))?;
                }
                "symbols" => {
                    let source = value.parse();
                    found.symbols.push(source.map_err(|_| {
                        wrong("symbols", &value, "FILE or FILE:0xOFFSET, an ELF file or kallsyms")
                    })?);
                }
                "symbol" if value.is_empty() => {
                    return Err(wrong("symbol", &value, "the name of a function, or NAME*"));
                }
                "symbol" => found.parts.push(Part::Name(value)),
                "range" => {
                    let range = range(&value);
                    found.parts.push(
                        range.ok_or_else(|| wrong("range", &value, "0xSTART-0xEND, not empty"))?,
                    );
                }
                "level" => {
                    let level = value.parse().ok().filter(|level| usize::from(*level) < LEVELS);
                    let level = level.ok_or_else(|| wrong("level", &value, "a number from 0 to 3"));
                    found.level = Some(Level(level?));
                }
                "region" if value.is_empty() => {
                    return Err(wrong("region", &value, "the name of a region is missing"));
                }
                "region" => found.region = Some(value),
                _ => return Err(OptionError::Unknown(key)),
            }
        }
        Ok(Some(found))
    }
}

fn split(option: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(option).into_owned();
    match text.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (text, String::new()),
    }
}

fn wrong(key: &'static str, value: &str, expected: &'static str) -> OptionError {
    OptionError::Value { key, value: value.to_owned(), expected }
}

/// Reads a range of addresses.
fn range(text: &str) -> Option<Part> {
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (start, end) = text.split_once('-')?;
    let (start, end) = (address(start)?, address(end)?);
    (start < end).then_some(Part::Range(start, end))
}

/// Reads a number that is followed by one of these units.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<Option<Options>, OptionError> {
        let options: Vec<&[u8]> = options.iter().map(|option| option.as_bytes()).collect();
        Options::parse(&options)
    }

    #[test]
    fn options_are_read_with_their_units() {
        let options = [
            "functions=d",
            "min=1us",
            "depth=9",
            "limit=4G",
            "trace-privilege-level=off",
            "symbols=k:0x10",
            "symbol=vfs_*",
            "range=0x10-0x20",
            "level=0",
            "region=batch",
        ];
        let found = parse(&options).unwrap().unwrap();
        let expected = Options {
            dir: "d".into(),
            by_level: false,
            min: 1_000,
            depth: Some(9),
            limit: 4 << 30,
            symbols: vec![Source { path: "k".into(), offset: 16 }],
            parts: vec![Part::Name("vfs_*".into()), Part::Range(16, 32)],
            level: Some(Level(0)),
            region: Some("batch".into()),
        };
        assert_eq!(found, expected);
        assert_eq!(parse(&["segment=x"]), Ok(None));
    }

    #[test]
    fn wrong_options_are_named() {
        for (option, named) in [
            ("functions=", "directory"),
            ("min=1", "500ns"),
            ("min=99999999999999999ms", "500ns"),
            ("depth=0", "1 to 1023"),
            ("depth=1024", "1 to 1023"),
            ("limit=0K", "512M"),
            ("trace-privilege-level=maybe", "on or off"),
            ("colour=red", "colour"),
            ("symbols=k:0xz", "0xOFFSET"),
            ("symbol=", "NAME*"),
            ("range=0x20-0x10", "0xSTART"),
            ("range=16-32", "0xSTART"),
            ("level=4", "0 to 3"),
            ("region=", "region is missing"),
        ] {
            let said = parse(&[option, "functions=d"]).unwrap_err().to_string();
            assert!(said.contains(named), "{option}: {said}");
        }
    }
}
