//! `--trace` and `--trace-backend`: options for a VMM's command line.

use crate::events::Pattern;
use crate::events::registry::{self, Clash};
use crate::session::Session;
use hypertrace_format::error::error_chain;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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
    /// Events to switch on, by pattern (* any run of characters, ? any one); a file of patterns,
    /// one a line, - in front switches off; a file for QEMU's simpletrace reader
    #[arg(
        long = "trace",
        value_name = "[enable=]PATTERN|events=FILE|file=FILE",
        value_delimiter = ','
    )]
    trace: Vec<TraceOption>,
    /// More places for events: log, syslog, ftrace[:DIR], ftrace-raw[:DIR], sdt
    #[arg(long = "trace-backend", value_name = "BACKEND", value_delimiter = ',')]
    backends: Vec<String>,
}

/// One part of `--trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TraceOption {
    Enable(Pattern),
    Events(PathBuf),
    File(PathBuf),
}

impl FromStr for TraceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceOption, String> {
        match text.split_once('=').unwrap_or(("enable", text)) {
            ("enable", text) => text.parse().map(TraceOption::Enable).map_err(|e| format!("{e}")),
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
        /// Which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A line of a file of patterns is no pattern.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// The defect of the line.
        why: String,
    },
    /// The [command](Session::execute) of the same name refuses it.
    #[error("{0}")]
    Refused(String),
}

impl TraceArgs {
    /// Returns true if any option selects events.
    pub fn names_events(&self) -> bool {
        self.trace.iter().any(|option| !matches!(option, TraceOption::File(_)))
    }

    /// Applies the options. Returns warnings: patterns that match no declared
    /// event, which may match a guest's event later, and events that two crates
    /// of the program [declare differently](crate::event::Clash).
    ///
    /// # Errors
    /// If an option cannot be applied. The options after it are not applied.
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
        for option in &self.trace {
            match option {
                TraceOption::Enable(pattern) => set(pattern, true).map_err(refused)?,
                TraceOption::Events(path) => patterns(path, &mut set)?,
                TraceOption::File(path) => {
                    session.set_simple_file(path).map_err(|e| refused(error_chain(&e)))?;
                }
            }
        }
        Ok(warnings)
    }
}

/// Returns each pattern of a file.
fn patterns(
    path: &Path,
    set: &mut impl FnMut(&Pattern, bool) -> Result<(), String>,
) -> Result<(), TraceArgsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| TraceArgsError::Read { path: path.to_owned(), source })?;
    for (line, number) in text.lines().zip(1..) {
        let wrong = |why| TraceArgsError::Line { path: path.to_owned(), line: number, why };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (line, on) = line.strip_prefix('-').map_or((line, true), |rest| (rest, false));
        let pattern: Pattern = line.parse().map_err(|e| wrong(format!("{e}")))?;
        set(&pattern, on).map_err(wrong)?;
    }
    Ok(())
}
