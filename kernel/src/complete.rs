//! Completing a recording: the file from what is on disk.

use crate::error::Error;
use crate::perf;
use crate::source::Source;
use crate::state::{FILE, State, failed};
use crate::stats::Stats;
use crate::steal::stolen;
use crate::threads::Names;
use crate::trace_dat::{self, Contents, Ending};
use std::path::PathBuf;
use std::time::Duration;

const HIDDEN: &str = ".kernel.dat.new";

/// Contents of a completed recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The file.
    pub path: PathBuf,
    /// Source of the events.
    pub source: Source,
    /// Events in the file.
    pub events: u64,
    /// Events that were overwritten before they were read.
    pub overwritten: u64,
    /// Events that were read and are not in the file: a write failed, or a process was killed.
    pub unwritten: u64,
    /// False if the losses are not known: the machine was restarted, or the instance is gone.
    pub losses_known: bool,
    /// Damage in the files of a killed process, which was left out.
    pub damage: Vec<String>,
    /// The first failed write of the data; events that it cost are counted.
    pub failure: Option<String>,
    /// Time that a hypervisor took from all of this machine's CPUs meanwhile, to 10 ms for each CPU;
    /// `None`: not known, as after a kill.
    pub stolen: Option<Duration>,
    /// Size of the file.
    pub bytes: u64,
}

impl Summary {
    /// Returns the lost events, all causes.
    pub fn lost(&self) -> u64 {
        self.overwritten.saturating_add(self.unwritten)
    }
}

/// Makes the file of a recording that has ended, and removes the folder. `None`: nothing was
/// recorded.
///
/// # Errors
/// If it cannot be read or written. The folder stays: a later try may succeed.
pub(crate) fn complete(
    state: State,
    mut stats: Vec<Stats>,
    mut names: Names,
    recovered: bool,
) -> Result<Option<Summary>, Error> {
    let Some(json) = state.json()? else {
        state.remove()?;
        return Ok(None);
    };
    let head = state.head()?;
    let frequency = state.frequency()?;
    let mut origin = format!(
        "hypertrace {}; source={}; boot_id={}",
        env!("CARGO_PKG_VERSION"),
        json.source,
        json.boot_id
    );
    let mut damage = Vec::new();
    if json.source == Source::Perf {
        let converted = perf::convert(&state, &json, frequency)?;
        stats = converted.stats;
        damage = converted.damage;
        names.add_lines(&converted.names);
        origin.push_str(&format!("; clock_bound_ns={}", converted.bound_ns));
    }
    let stolen = match (stolen(), json.stolen_ms, recovered) {
        (Some(now), Some(then), false) => Some(now.saturating_sub(Duration::from_millis(then))),
        _ => None,
    };
    if let Some(stolen) = stolen {
        origin.push_str(&format!("; stolen_ms={}", stolen.as_millis()));
    }
    if recovered {
        origin.push_str("; recovered=1");
    }
    let mut all = Names::default();
    all.add_lines(&json.names);
    all.add_lines(&names.to_lines());
    let ending = Ending {
        stats: stats.iter().map(|stats| (stats.cpu, stats.text.clone())).collect(),
        names: all.to_lines(),
        frequency,
        trace_id: json.trace_id,
        origin,
        page_size: json.page_size,
        cpus: json.cpus,
    };
    let dir = &state.dir;
    let write = || {
        let out = dir.new_file(HIDDEN).map_err(|e| failed("make", dir, FILE, e))?;
        let contents = trace_dat::write(&out, &head, &state.folder, &ending)?;
        dir.rename(HIDDEN, FILE).map_err(|e| failed("rename", dir, HIDDEN, e))?;
        Ok(contents)
    };
    let contents: Contents = write().inspect_err(|_: &Error| drop(dir.remove(HIDDEN)))?;
    let events_of = |cpu: u32| contents.events.get(&cpu).copied().unwrap_or(0);
    damage.extend(contents.damage.iter().cloned());
    let summary = Summary {
        path: dir.path().join(FILE),
        source: json.source,
        events: contents.events.values().sum(),
        overwritten: stats.iter().map(Stats::overwritten).sum(),
        unwritten: stats.iter().map(|s| s.readable().saturating_sub(events_of(s.cpu))).sum(),
        // The ring of a killed recorder by perf is gone.
        losses_known: !stats.is_empty() && (!recovered || json.source == Source::Tracefs),
        damage,
        failure: None,
        stolen,
        bytes: contents.bytes,
    };
    state.remove()?;
    Ok(Some(summary))
}
