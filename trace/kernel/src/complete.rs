//! Completes a recording: makes the recording's file from the files in the recording's folder.

use crate::clock::{self, Clock, Map};
use crate::error::Error;
use crate::instance::Instance;
use crate::pages::Buffers;
use crate::perf;
use crate::registry;
use crate::source::Source;
use crate::state::{Buffer, EndJson, FILE, FOLDER, RecordingJson, State, failed, open_dir};
use crate::stats::Stats;
use crate::steal::stolen;
use crate::threads::Names;
use crate::trace_dat::{self, Contents, Ending};
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::Share;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Contents of a completed recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Path of the file.
    pub path: PathBuf,
    /// Source of the events.
    pub source: Source,
    /// Counts of the events that the caller of the recording has chosen.
    pub asked: Counts,
    /// Counts of the events that tell which thread each CPU had: see
    /// [`Config::own_only`](crate::Config::own_only).
    pub cpus: Option<Counts>,
    /// Damage in the files of a killed process. The recording's file lacks the damaged parts.
    pub damage: Vec<String>,
    /// The first failed write of the data. The counts include the events that were lost by this failure.
    pub failure: Option<String>,
    /// Time that a hypervisor took from this machine's CPUs during the recording: the sum over all CPUs,
    /// exact to 10 ms for each CPU. `None` if nobody knows the time, for example after a kill.
    pub stolen: Option<Duration>,
    /// Reason why the kernel's trace still has the empty instance. The next start tries to remove the
    /// instance again.
    pub instance_left: Option<String>,
}

/// Numbers of a recording's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of events in the file.
    pub events: u64,
    /// Number of events that were overwritten before they were read.
    pub overwritten: u64,
    /// Number of events that were read but are not in the file, because a write failed or a process was
    /// killed.
    pub unwritten: u64,
    /// False if nobody knows the losses: after a restart of the machine, after a kill of a recorder that used
    /// perf, or on a kernel before 6.0, because such a kernel does not count the records that perf loses.
    pub losses_known: bool,
}

impl Counts {
    /// Returns the number of lost events, from all causes.
    pub fn lost(&self) -> u64 {
        self.overwritten.saturating_add(self.unwritten)
    }
}

/// Results of emptying instances.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The first failed write of an earlier pass.
    pub failure: Option<Error>,
    /// Reason why the instance could not be removed.
    pub instance_left: Option<String>,
    /// Intervals in which a hypervisor took CPU time from the machine: see
    /// [`Rises::finish`](crate::steal::Rises::finish).
    pub steals: String,
    /// The TSCs of VMs: see [`Tscs::finish`](crate::tscs::Tscs::finish).
    pub tscs: String,
}

/// Moves everything from instances to the disk, and removes the instances.
///
/// # Errors
/// If some events cannot be moved. In this case, the instances stay, but record nothing.
pub(crate) fn take(
    instances: Vec<(Buffer, Instance)>,
    pages: impl FnOnce(&[(Buffer, Instance)]) -> Result<Buffers, Error>,
    state: &State,
) -> Result<Taken, Error> {
    for (_, instance) in &instances {
        instance.switch(false)?;
    }
    let failure = pages(&instances)?.finish()?;
    let mut end = EndJson { reading: Clock::OWN.reading(), ..EndJson::default() };
    for (buffer, instance) in &instances {
        end.names = instance.root().text("saved_cmdlines").unwrap_or_default();
        match buffer {
            Buffer::Asked => end.stats = instance.stats()?,
            Buffer::Cpus => end.cpus = instance.stats()?,
        }
    }
    state.end(&end)?;
    // The instances are removed only now, because now the files have all the contents of the instances.
    let mut left = instances.into_iter().filter_map(|(_, instance)| instance.remove().err());
    let instance_left = left.next().map(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another program has files of the kernel's trace instance open; the recording \
                              is complete, and the next recording removes the instance"
                .into()
        }
        _ => format!("cannot remove the kernel's trace instance: {error}"),
    });
    // One failed removal does not keep the loop from removing the other instances.
    left.for_each(drop);
    Ok(Taken { failure, instance_left, ..Taken::default() })
}

/// Makes the file of a recording that has ended. Removes the recording's folder, and the note of the
/// recording. Returns `None` if the recording holds nothing, or if the file exists already.
///
/// # Errors
/// If the recording cannot be read or the file cannot be written. The folder stays, because a later try may
/// succeed.
pub(crate) fn complete(
    state: State,
    names: Names,
    taken: Taken,
    recovered: bool,
) -> Result<Option<Summary>, Error> {
    // There is no identity if a kill ended the process at the beginning of the recording, or after the
    // process had made the file.
    let json = if state.is_complete()? { None } else { state.json()? };
    let Some(json) = json else {
        state.remove()?;
        return Ok(None);
    };
    let head = state.head()?;
    let end = state.ended()?.unwrap_or_default();
    let frequency = state.frequency()?;
    let map = match json.source {
        Source::Perf => clock::map(&state.folder, frequency)?,
        Source::Tracefs => readings_map(&json, &end, frequency),
    };
    let (mut damage, mut all) = (Vec::new(), Names::default());
    // Without a reading there are no records either: a recorder that uses perf reads the clocks before it
    // writes its first record.
    if let Some(map) = map.as_ref().filter(|_| json.source == Source::Perf) {
        let converted = perf::convert(&state, &json, map)?;
        damage = converted.damage;
        all.add_lines(&converted.names);
    }
    all.add_lines(&names.to_lines());
    let stolen = match (stolen(), json.stolen_ms) {
        (Some(now), Some(then)) if !recovered => {
            Some(now.saturating_sub(Duration::from_millis(then)))
        }
        _ => None,
    };
    let (source, owner) = (json.source, json.owner.clone());
    let (guest, names) = (None, all.to_lines());
    let known = Known { guest, frequency, map, stolen, taken: &taken, recovered, names };
    let ending = ending(json, end, known);
    let dir = &state.dir;
    let hidden = format!(".{FILE}.new");
    let write = || {
        let out = dir.new_file(&hidden).map_err(|e| failed("make", dir, FILE, e))?;
        let contents = trace_dat::write(&out, &head, &state.folder, &ending)?;
        dir.rename(&hidden, FILE).map_err(|e| failed("rename", dir, &hidden, e))?;
        Ok(contents)
    };
    let mut contents: Contents = write().inspect_err(|_: &Error| drop(dir.remove(&hidden)))?;
    contents.damage.splice(..0, damage);
    let summary = Summary {
        failure: taken.failure.map(|why| error_chain(&why)),
        stolen,
        instance_left: taken.instance_left,
        ..ending.summary(dir.path().join(FILE), source, contents)
    };
    state.remove()?;
    if source == Source::Tracefs && summary.instance_left.is_none() {
        registry::remove(&owner);
    }
    Ok(Some(summary))
}

/// Copies a recording in progress to a file with the format of a completed recording. The copy has the events
/// that the caller of the recording has chosen, as far as the recorder has moved these events to the disk.
/// [`Config::is_live`](crate::Config::is_live) makes the recorder move events early. Returns false if there
/// is nothing to copy: the recording has not begun or has ended, or perf records.
///
/// # Errors
/// If the recording's files cannot be read, for instance because the recording ends meanwhile, or if the copy
/// cannot be written.
pub fn copy(dir: &Path, to: &OwnedFd) -> Result<bool, Error> {
    let dir = match open_dir(dir, Share::Owner) {
        Err(Error::NoSession(_)) => return Ok(false),
        dir => dir?,
    };
    let folder = match dir.folder(FOLDER) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(false),
        folder => folder.map_err(|e| failed("open", &dir, FOLDER, e))?,
    };
    let state = State { dir, folder };
    let json = state.json()?.filter(|json| json.source == Source::Tracefs);
    let Some(json) = json else { return Ok(false) };
    let json = RecordingJson { has_cpus: false, ..json };
    let (end, frequency) = (EndJson::default(), state.frequency()?);
    let (map, taken) = (readings_map(&json, &end, frequency), &Taken::default());
    let (guest, stolen, recovered, names) = (None, None, true, String::new());
    let known = Known { guest, frequency, map, stolen, taken, recovered, names };
    trace_dat::write(to, &state.head()?, &state.folder, &ending(json, end, known))?;
    Ok(true)
}

/// Facts about a recording that has ended. The recording's own files do not have these facts.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// For the recording of a guest, the guest's clock in the session, and the client that sent the
    /// recording.
    pub guest: Option<(u32, u32)>,
    /// Frequency of the counter in ticks per second.
    pub frequency: u64,
    /// Map from the clock of the pages to the counter, or `None` if the clock is the counter.
    pub map: Option<Map>,
    /// As [`Summary::stolen`].
    pub stolen: Option<Duration>,
    pub taken: &'a Taken,
    /// True if the recorder was killed before the end of the recording.
    pub recovered: bool,
    /// Lines with the ids and names of threads. These lines are newer than the lines in the recording's
    /// files.
    pub names: String,
}

/// Returns the map from the readings in the JSON files of a recording, or `None` if the recording's clock is
/// the counter.
pub(crate) fn readings_map(json: &RecordingJson, end: &EndJson, frequency: u64) -> Option<Map> {
    let readings = Vec::from_iter([json.reading, end.reading].into_iter().flatten());
    Map::new(&readings, frequency).filter(|_| json.clock == Clock::MonotonicRaw)
}

/// Returns the facts for the last part of a recording's file.
pub(crate) fn ending(json: RecordingJson, end: EndJson, known: Known<'_>) -> Ending {
    let mut all = Names::default();
    for lines in [&json.names, &end.names, &known.names] {
        all.add_lines(lines);
    }
    let mut origin = format!("hypertrace {}; source={}", env!("CARGO_PKG_VERSION"), json.source);
    // A guest can send any text as its boot, even a text that begins another entry of this list.
    if json.boot_id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        origin.push_str(&format!("; boot_id={}", json.boot_id));
    }
    if let Some((clock, client)) = known.guest {
        origin.push_str(&format!("; guest_clock={clock}; guest_client={client}"));
    }
    if let Some(map) = &known.map {
        origin.push_str(&format!("; clock_bound_ns={}", map.bound_ns));
    }
    if let (Clock::MonotonicRaw, Some(line)) = (json.clock, known.map.and_then(|map| map.line())) {
        let [first, last] = line.map(|(raw, ticks)| format!("{raw}:{ticks}"));
        origin.push_str(&format!("; counter={first},{last}"));
    }
    if let Some(stolen) = known.stolen {
        origin.push_str(&format!("; stolen_ms={}", stolen.as_millis()));
    }
    for (name, list) in [("steals", &known.taken.steals), ("tscs", &known.taken.tscs)] {
        if !list.is_empty() {
            origin.push_str(&format!("; {name}={list}"));
        }
    }
    if known.recovered {
        origin.push_str("; recovered=1");
    }
    let mut buffers = vec![(Buffer::Asked, end.stats)];
    // A guest sends only one buffer.
    if json.has_cpus && known.guest.is_none() {
        origin.push_str(&format!("; all={}", Buffer::Cpus.name()));
        buffers.push((Buffer::Cpus, end.cpus));
    } else if json.has_all() {
        origin.push_str(&format!("; all={}", Buffer::Asked.name()));
    }
    if let Some(threads) = &json.threads {
        let threads: Vec<String> = threads.iter().map(u32::to_string).collect();
        origin.push_str(&format!("; threads={}", threads.join(",")));
    }
    Ending {
        buffers,
        names: all.to_lines(),
        clock: json.clock,
        frequency: known.frequency,
        trace_id: json.trace_id,
        origin,
        page_size: json.page_size,
        cpus: json.cpus,
        system: json.system.unwrap_or_else(trace_dat::system),
    }
}

impl Ending {
    /// Returns a summary of the recording's file.
    pub fn summary(&self, path: PathBuf, source: Source, contents: Contents) -> Summary {
        let mut counts = self.buffers.iter().zip(&contents.events).map(|((_, stats), events)| {
            let events_of = |cpu: u32| events.get(&cpu).copied().unwrap_or(0);
            let sum = |count: &dyn Fn(&Stats) -> u64| {
                stats.iter().map(count).fold(0, u64::saturating_add)
            };
            Counts {
                events: events.values().sum(),
                overwritten: sum(&|s| s.overwritten()),
                unwritten: sum(&|s| s.readable().saturating_sub(events_of(s.cpu))),
                // If a recorder that used perf was killed, its ring is gone, and so the ring's counts of
                // losses are unknown.
                losses_known: !stats.is_empty(),
            }
        });
        let (asked, cpus) = (counts.next().unwrap_or_default(), counts.next());
        let (damage, failure, stolen, instance_left) = (contents.damage, None, None, None);
        Summary { path, source, asked, cpus, damage, failure, stolen, instance_left }
    }
}
