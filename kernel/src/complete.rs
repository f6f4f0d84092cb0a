//! Completing a recording: the file from what is on disk.

use crate::error::Error;
use crate::instance::Instance;
use crate::pages::Buffers;
use crate::perf;
use crate::registry;
use crate::source::Source;
use crate::state::{EndJson, State, failed};
use crate::stats::Stats;
use crate::steal::stolen;
use crate::threads::Names;
use crate::trace_dat::{self, Contents, Ending};
use hypertrace_format::error::error_chain;
use std::path::PathBuf;
use std::time::Duration;

/// The machine of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    Host,
    /// A guest, with its clock in the session, and this clock's ticks per second.
    Guest {
        clock: u32,
        frequency: u64,
    },
}

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
    /// False if the losses are not known: the machine was restarted, a recorder by perf was killed, or
    /// the kernel (before 6.0) does not count what perf loses.
    pub losses_known: bool,
    /// Damage in the files of a killed process, which was left out.
    pub damage: Vec<String>,
    /// The first failed write of the data; events that it cost are counted.
    pub failure: Option<String>,
    /// Time that a hypervisor took from all of this machine's CPUs meanwhile, to 10 ms for each CPU;
    /// `None`: not known, as after a kill.
    pub stolen: Option<Duration>,
    /// Why the kernel's trace has the empty instance still. The next start tries to remove it again.
    pub instance_left: Option<String>,
}

impl Summary {
    /// Returns the lost events, all causes.
    pub fn lost(&self) -> u64 {
        self.overwritten.saturating_add(self.unwritten)
    }
}

/// Facts about an instance that was emptied.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The first failed write of an earlier pass.
    pub failure: Option<Error>,
    /// Why the instance could not be removed.
    pub instance_left: Option<String>,
    /// Damage that was left out before.
    pub damage: Vec<String>,
    /// When a hypervisor took time from the machine: see [`Rises::finish`](crate::steal::Rises::finish).
    pub steals: String,
}

/// Moves everything from an instance to the disk, and removes it.
///
/// # Errors
/// If something cannot be moved: the instance stays, switched off.
pub(crate) fn take(
    instance: Instance,
    pages: impl FnOnce(&Instance) -> Result<Buffers, Error>,
    state: &State,
) -> Result<Taken, Error> {
    instance.switch(false)?;
    let failure = pages(&instance)?.finish()?;
    let names = instance.root().text("saved_cmdlines").unwrap_or_default();
    state.end(&EndJson { stats: instance.stats()?, names })?;
    // From here on the files have everything.
    let instance_left = instance.remove().err().map(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => "another program has files of the kernel's trace instance open; its \
                              events are complete, and the next recording removes it"
            .into(),
        _ => format!("cannot remove the kernel's trace instance: {error}"),
    });
    Ok(Taken { failure, instance_left, ..Taken::default() })
}

/// Makes the file of a recording that has ended, and removes the folder and the note. `None`: nothing was
/// recorded, or the file is there.
///
/// # Errors
/// If it cannot be read or written. The folder stays: a later try may succeed.
pub(crate) fn complete(
    state: State,
    names: Names,
    taken: Taken,
    recovered: bool,
    of: Of,
) -> Result<Option<Summary>, Error> {
    // Killed at its beginning, or after its file was made.
    let json = if state.is_complete()? { None } else { state.json()? };
    let Some(json) = json else {
        state.remove()?;
        return Ok(None);
    };
    let head = state.head()?;
    let EndJson { stats, names: noted } = state.ended()?.unwrap_or_default();
    let mut all = Names::default();
    all.add_lines(&json.names);
    all.add_lines(&noted);
    let frequency = match of {
        Of::Host => state.frequency()?,
        Of::Guest { frequency, .. } => frequency,
    };
    let mut origin = format!("hypertrace {}; source={}", env!("CARGO_PKG_VERSION"), json.source);
    // A guest's text may be anything.
    if json.boot_id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        origin.push_str(&format!("; boot_id={}", json.boot_id));
    }
    if let Of::Guest { clock, .. } = of {
        origin.push_str(&format!("; guest_clock={clock}"));
    }
    let mut damage = taken.damage;
    if json.source == Source::Perf && matches!(of, Of::Host) {
        let converted = perf::convert(&state, &json, frequency)?;
        damage = converted.damage;
        all.add_lines(&converted.names);
        origin.push_str(&format!("; clock_bound_ns={}", converted.bound_ns));
    }
    let stolen = match (stolen(), json.stolen_ms, of) {
        (Some(now), Some(then), Of::Host) if !recovered => {
            Some(now.saturating_sub(Duration::from_millis(then)))
        }
        _ => None,
    };
    if let Some(stolen) = stolen {
        origin.push_str(&format!("; stolen_ms={}", stolen.as_millis()));
    }
    if !taken.steals.is_empty() {
        origin.push_str(&format!("; steals={}", taken.steals));
    }
    if recovered {
        origin.push_str("; recovered=1");
    }
    if let Some(threads) = &json.threads {
        let threads: Vec<String> = threads.iter().map(u32::to_string).collect();
        origin.push_str(&format!("; threads={}", threads.join(",")));
    }
    all.add_lines(&names.to_lines());
    let owner = json.owner;
    let ending = Ending {
        stats: stats.iter().map(|stats| (stats.cpu, stats.text.clone())).collect(),
        names: all.to_lines(),
        frequency,
        trace_id: json.trace_id,
        origin,
        page_size: json.page_size,
        cpus: json.cpus,
        system: json.system.unwrap_or_else(trace_dat::system),
    };
    let (dir, file) = (&state.dir, &*state.file);
    let hidden = format!(".{file}.new");
    let write = || {
        let out = dir.new_file(&hidden).map_err(|e| failed("make", dir, file, e))?;
        let contents = trace_dat::write(&out, &head, &state.folder, &ending)?;
        dir.rename(&hidden, file).map_err(|e| failed("rename", dir, &hidden, e))?;
        Ok(contents)
    };
    let contents: Contents = write().inspect_err(|_: &Error| drop(dir.remove(&hidden)))?;
    let events_of = |cpu: u32| contents.events.get(&cpu).copied().unwrap_or(0);
    damage.extend(contents.damage.iter().cloned());
    let sum = |count: &dyn Fn(&Stats) -> u64| stats.iter().map(count).fold(0, u64::saturating_add);
    let summary = Summary {
        path: dir.path().join(file),
        source: json.source,
        events: contents.events.values().sum(),
        overwritten: sum(&|s| s.overwritten()),
        unwritten: sum(&|s| s.readable().saturating_sub(events_of(s.cpu))),
        // The ring of a killed recorder by perf is gone, and with it the counts.
        losses_known: !stats.is_empty(),
        damage,
        failure: taken.failure.map(|why| error_chain(&why)),
        stolen,
        instance_left: taken.instance_left,
    };
    state.remove()?;
    let is_ours = matches!(of, Of::Host) && json.source == Source::Tracefs;
    if is_ours && summary.instance_left.is_none() {
        registry::remove(&owner);
    }
    Ok(Some(summary))
}
