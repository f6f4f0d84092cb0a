//! `--trace` and `--trace-backend`: options for a VMM's command line.

use crate::events::registry::{self, Clash};
use crate::events::{EVENTS, Pattern};
use crate::session::Session;
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::open_regular;
use rustix::fs::{CWD, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum size of a file of patterns in bytes.
const MAX_PATTERNS: u64 = 1 << 20;

/// Options of a VMM's own command line, to flatten into its `clap` struct:
///
/// ```
/// # use clap::Parser;
/// use hypertrace_trace::args::TraceArgs;
///
/// #[derive(Parser)]
/// struct Vmm {
///     #[command(flatten)]
///     trace: TraceArgs,
/// }
///
/// let vmm = Vmm::try_parse_from(["vmm", "--trace", "virtio_*,file=/tmp/t", "--trace-backend", "log"]);
/// assert!(vmm.is_ok());
/// ```
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Tracing")]
pub struct TraceArgs {
    /// Switch on the events that match PATTERN (* is any run of characters, ? any one), or switch them
    /// off with - in front; events=FILE reads patterns, one on each line; file=FILE writes a file for
    /// QEMU's simpletrace reader. Commas separate options; two commas are one comma in a name. `help`
    /// lists the events
    #[arg(
        long = "trace",
        value_name = "[enable=]PATTERN|events=FILE|file=FILE",
        allow_hyphen_values = true
    )]
    trace: Vec<TraceOptions>,
    /// Send events also to log, syslog, ftrace[:DIR], ftrace-raw[:DIR], sdt
    #[arg(long = "trace-backend", value_name = "BACKEND", value_delimiter = ',')]
    backends: Vec<String>,
}

/// A value of `--trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TraceOptions(Vec<TraceOption>);

impl FromStr for TraceOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceOptions, String> {
        // As in QEMU's options, two commas stand for one comma within an option. No option contains a NUL, so
        // a NUL can stand for two commas during the split.
        let text = text.replace(",,", "\0");
        let options = text.split(',').map(|option| option.replace('\0', ",").parse());
        options.collect::<Result<_, _>>().map(TraceOptions)
    }
}

/// One of the options in a value of `--trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TraceOption {
    /// Patterns of events, and whether they are on
    Enable(Pattern, bool),
    Events(PathBuf),
    File(PathBuf),
    Help,
}

impl FromStr for TraceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceOption, String> {
        match text.split_once('=').unwrap_or(("enable", text)) {
            ("enable", "help") => Ok(TraceOption::Help),
            ("enable", text) => {
                let (text, on) = on_or_off(text);
                text.parse().map(|of| TraceOption::Enable(of, on)).map_err(|e| format!("{e}"))
            }
            ("events", path) if !path.is_empty() => Ok(TraceOption::Events(path.into())),
            ("file", path) if !path.is_empty() => Ok(TraceOption::File(path.into())),
            _ => Err("expected [enable=]PATTERN, events=FILE or file=FILE".into()),
        }
    }
}

/// Error of an option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceArgsError {
    /// A file of patterns cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A line of a file of patterns is no pattern.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The reason why the line is no pattern.
        why: String,
    },
    /// The [command](Session::execute) of the same name refuses the option.
    #[error("{0}")]
    Refused(String),
}

impl TraceArgs {
    /// Returns true if any option selects events.
    pub fn names_events(&self) -> bool {
        self.options()
            .any(|option| matches!(option, TraceOption::Enable(..) | TraceOption::Events(_)))
    }

    /// If the options contain `--trace help`, returns the names of all declared events, one per line. In this
    /// case, a VMM prints the names and exits, as QEMU does.
    pub fn listing(&self) -> Option<String> {
        self.options().find(|option| **option == TraceOption::Help)?;
        let mut names: Vec<&str> = EVENTS.iter().map(|event| event.name()).collect();
        names.sort_unstable();
        names.dedup();
        Some(names.into_iter().map(|name| format!("{name}\n")).collect())
    }

    fn options(&self) -> impl Iterator<Item = &TraceOption> {
        self.trace.iter().flat_map(|options| &options.0)
    }

    /// Applies the options, and returns warnings. The warnings are about patterns that match no declared
    /// event, and about events that two crates of the program [declare differently](crate::event::Clash). A
    /// pattern that matches no declared event may still match the event of a guest later.
    ///
    /// # Errors
    /// If an option cannot be applied. The call then ignores all later options.
    pub fn apply(&self, session: &Session) -> Result<Vec<String>, TraceArgsError> {
        let refused = |why: String| {
            TraceArgsError::Refused(why.lines().next().unwrap_or_default().to_owned())
        };
        for backend in &self.backends {
            session.execute(&format!("trace-backend {backend} on")).map_err(refused)?;
        }
        let mut warnings: Vec<_> = registry::clashes().iter().map(Clash::to_string).collect();
        let mut set = |pattern: &Pattern, on: bool| {
            let matched = session.set_events(pattern, on).map_err(|e| e.to_string())?;
            if matched.declared == 0 {
                warnings.push(format!("no declared event fits {pattern}"));
            }
            Ok(())
        };
        for option in self.options() {
            match option {
                TraceOption::Help => {}
                TraceOption::Enable(pattern, on) => set(pattern, *on).map_err(refused)?,
                TraceOption::Events(path) => patterns(path, &mut set)?,
                TraceOption::File(path) => {
                    session.set_simple_file(path).map_err(|e| refused(error_chain(&e)))?;
                }
            }
        }
        Ok(warnings)
    }
}

/// Returns a pattern without its sign. The function also returns true if the pattern switches events on, and
/// false if the pattern has the sign `-`.
fn on_or_off(text: &str) -> (&str, bool) {
    text.strip_prefix('-').map_or((text, true), |text| (text, false))
}

/// Passes each pattern of a file to `set`.
fn patterns(
    path: &Path,
    set: &mut impl FnMut(&Pattern, bool) -> Result<(), String>,
) -> Result<(), TraceArgsError> {
    let read = || {
        let (file, _) = open_regular(CWD, path, OFlags::RDONLY)?;
        let mut text = String::new();
        File::from(file).take(MAX_PATTERNS + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_PATTERNS {
            let why = format!("it has more than {MAX_PATTERNS} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(text)
    };
    let text = read().map_err(|source| TraceArgsError::Read { path: path.to_owned(), source })?;
    for (line, number) in text.lines().zip(1..) {
        let wrong = |why| TraceArgsError::Line { path: path.to_owned(), line: number, why };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (line, on) = on_or_off(line);
        let pattern: Pattern = line.parse().map_err(|e| wrong(format!("{e}")))?;
        set(&pattern, on).map_err(wrong)?;
    }
    Ok(())
}
