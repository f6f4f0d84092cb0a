//! A recording, from its start to its file.

use crate::clock::Clock;
use crate::complete::{Summary, Taken, complete, take};
use crate::error::Error;
use crate::instance::Instance;
use crate::owner::Owner;
use crate::pages::{self, Buffers};
use crate::perf::Perf;
use crate::processes::Processes;
use crate::registry;
use crate::source::Source;
use crate::state::{Buffer, RecordingJson, State, VERSION, boot_id, open_dir};
use crate::steal::stolen_ms;
use crate::threads::{self, Names};
use crate::tracefs::{self, Dir};
use crate::tscs::Tscs;
use crate::worker::Worker;
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::{Folder, Share};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Maximum default sizes in KiB: of one CPU's buffer, and of the buffers of all CPUs together.
const BUFFER_KIB: u32 = 8192;
const BUFFERS_KIB: u32 = 512 << 10;
/// Minimum default size of a CPU's buffer in KiB.
const SMALLEST_KIB: u32 = 512;

/// Settings of a recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Directory of a session. The directory must have a `session.json`.
    pub dir: PathBuf,
    /// The session's directory, if the caller has opened it already. Without this descriptor, the recorder
    /// opens the path, and could get a directory that another user has meanwhile put in the session's place.
    pub folder: Option<Folder>,
    /// Names of events, as `SYSTEM:EVENT`. A name may contain `*` and `?`. An empty list stands for the
    /// default events, and so does the name [`DEFAULT_EVENTS`](crate::DEFAULT_EVENTS) in a list. The default
    /// events tell where time went: entries and exits of KVM, `sched:sched_switch`, wake-ups, and the start
    /// and the end of processes.
    pub events: Vec<String>,
    /// Size of each CPU's buffer in the kernel in KiB. The default is 8,192, or less on machines with more
    /// than 64 CPUs.
    pub buffer_kib: Option<u32>,
    /// Processes whose threads are recorded. The recording includes the threads and processes that these
    /// threads start. An empty list stands for all threads of the machine.
    pub pids: Vec<u32>,
    /// True to leave out the second buffer of the file, `cpus`. This buffer has events of all threads of the
    /// machine. The events tell which thread each CPU has, and what woke the thread. So the buffer has the
    /// names of other processes, too. A recording without this buffer does not show which thread delayed
    /// another thread. If `pids` is empty, the file never has a second buffer. The first buffer then has the
    /// events of `cpus`, if `own_only` is false and the default events are recorded.
    pub own_only: bool,
    /// True to move pages to the disk before they are full, so that [`copy`](crate::copy) has events that are
    /// at most some 100 ms old. The file gets larger.
    pub is_live: bool,
    /// Users that may read the file.
    pub share: Share,
}

impl Config {
    /// Returns the defaults for a directory: the default events of all threads.
    pub fn new(dir: impl Into<PathBuf>) -> Config {
        let (events, pids) = (Vec::new(), Vec::new());
        Config {
            dir: dir.into(),
            folder: None,
            events,
            buffer_kib: None,
            pids,
            own_only: false,
            is_live: false,
            share: Share::default(),
        }
    }

    /// Returns the defaults for the directory of a session that this process writes.
    pub fn beside(folder: &Folder) -> Config {
        let (share, folder) = (folder.share(), folder.clone());
        Config { share, folder: Some(folder.clone()), ..Config::new(folder.path()) }
    }
}

/// A recording in progress. [`Recording::finish`] ends the recording and writes its file. A drop also ends
/// the recording and writes the file, but reports no error. If the process is killed, the next call of
/// [`sweep`](crate::sweep) completes the recording with the events that are still in the kernel's buffers.
#[derive(Debug)]
pub struct Recording(Option<Running>);

/// A recording that has not ended.
#[derive(Debug)]
struct Running {
    state: State,
    processes: Processes,
    started: Started,
    why_perf: Option<String>,
}

/// A running source of events, and its settings.
#[derive(Debug)]
struct Started {
    by: By,
    events: Vec<String>,
    buffer_kib: u32,
    threads: usize,
}

#[derive(Debug)]
enum By {
    Trace { instances: Vec<(Buffer, Instance)>, drain: Worker<Buffers> },
    Perf(Perf),
}

impl Recording {
    /// Starts a recording. If the kernel's trace cannot be used, the recording has only scheduling events,
    /// which perf records. For a recording with perf, the configuration must name processes, but no events
    /// and no size of the buffers.
    ///
    /// # Errors
    /// If the directory has no session or has a recording already, if an event or a process does not exist,
    /// or if the kernel lets this user record nothing.
    pub fn start(config: &Config) -> Result<Recording, Error> {
        let processes = Processes::open(&config.pids)?;
        let dir = match &config.folder {
            Some(folder) => folder.clone().shared(config.share),
            None => open_dir(&config.dir, config.share)?,
        };
        let state = State::create(dir)?;
        let owner = next_owner();
        let is_trace_wanted =
            !config.events.is_empty() || config.buffer_kib.is_some() || config.pids.is_empty();
        let mut why_perf = None;
        let mut started = start_trace(&state, &owner, config);
        if let Err(why) = &started
            && why.is_of_machine()
            && !is_trace_wanted
        {
            why_perf = Some(error_chain(why));
            started = start_perf(&state, &owner, config);
        }
        match started {
            Ok(started) => Ok(Recording(Some(Running { state, processes, started, why_perf }))),
            Err(why) => {
                // The caller gets the first error, because an error of the removal may only be a consequence
                // of the first error. If the removal fails, the next start of a recording removes the rest.
                let _ = state.remove();
                Err(why)
            }
        }
    }

    /// Returns the running recording. A recording lacks this value only after [`finish`](Self::finish) or the
    /// drop.
    fn running(&self) -> &Running {
        self.0.as_ref().expect("a recording that has not ended")
    }

    /// Returns the source of the events.
    pub fn source(&self) -> Source {
        match self.running().started.by {
            By::Trace { .. } => Source::Tracefs,
            By::Perf(_) => Source::Perf,
        }
    }

    /// Returns the reason why the kernel's trace cannot be used, if the recording uses perf for this reason.
    pub fn why_perf(&self) -> Option<&str> {
        self.running().why_perf.as_deref()
    }

    /// Returns the recorded events, as `SYSTEM:EVENT`.
    pub fn events(&self) -> &[String] {
        &self.running().started.events
    }

    /// Returns the number of threads at the start.
    pub fn threads(&self) -> usize {
        self.running().started.threads
    }

    /// Returns the size of a CPU's buffer in KiB.
    pub fn buffer_kib(&self) -> u32 {
        self.running().started.buffer_kib
    }

    /// Waits until all processes have ended, at most for `time` or until a signal. Returns true if all
    /// processes have ended.
    pub fn wait(&mut self, time: Duration) -> bool {
        self.0.as_mut().is_none_or(|running| running.processes.wait(time))
    }

    /// Ends the recording and writes its file.
    ///
    /// # Errors
    /// If the file cannot be written. The data stay on the disk and in the kernel's buffers, and
    /// [`recover`](crate::recover) completes the recording from another process.
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.0.take().expect("a recording that has not ended").finish()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // If the write fails, the data stay for `recover`.
        let _ = self.0.take().map(Running::finish);
    }
}

impl Running {
    fn finish(self) -> Result<Summary, Error> {
        let Running { state, processes, started, .. } = self;
        let stop = match &started.by {
            By::Trace { drain, .. } => drain.stop.clone(),
            By::Perf(perf) => perf.stop(),
        };
        let taken = match started.by {
            By::Trace { instances, drain } => {
                let mut panicked = None;
                let pages = |instances: &[(Buffer, Instance)]| match drain.stop() {
                    Ok(pages) => Ok(pages),
                    Err(why) => {
                        panicked = Some(why);
                        Buffers::open(instances, state.folder.clone(), rustix::param::page_size())
                    }
                };
                let taken = take(instances, pages, &state)?;
                Taken { failure: panicked.or(taken.failure), ..taken }
            }
            By::Perf(perf) => Taken { failure: perf.finish(&state)?, ..Taken::default() },
        };
        // The last readings are made here, after the last event, so that the readings cover the whole
        // recording.
        let taken = Taken { steals: stop.steals(), tscs: stop.tscs(), ..taken };
        let mut names = Names::default();
        processes.pids().for_each(|pid| names.add_process(pid));
        let nothing = Error::System("find the recording", std::io::ErrorKind::NotFound.into());
        complete(state, names, taken, false)?.ok_or(nothing)
    }
}

fn start_trace(state: &State, owner: &Owner, config: &Config) -> Result<Started, Error> {
    let root = tracefs::find()?;
    registry::add(owner, &config.dir)?;
    let name = owner.to_string();
    let mut instances = Vec::new();
    let prepared = make(&root, &name, config, &mut instances)
        .and_then(|()| prepare(state, owner, &instances, config));
    match prepared {
        Ok((drain, events, buffer_kib, threads)) => {
            Ok(Started { by: By::Trace { instances, drain }, events, buffer_kib, threads })
        }
        Err(why) => {
            // If a removal fails, the note must stay: the next start of a recording uses the note to find the
            // rest of the instances.
            let removed: Vec<_> = instances.into_iter().map(|(_, i)| i.remove().is_ok()).collect();
            if removed.into_iter().all(|removed| removed) {
                registry::remove(&name);
            }
            Err(why)
        }
    }
}

/// Makes the instances of a recording.
fn make(
    root: &Dir,
    name: &str,
    config: &Config,
    made: &mut Vec<(Buffer, Instance)>,
) -> Result<(), Error> {
    // If the recording has no filter, one instance is enough, because this instance records all threads.
    let has_cpus = !config.own_only && !config.pids.is_empty();
    for buffer in Buffer::ALL {
        if has_cpus || buffer == Buffer::Asked {
            made.push((buffer, Instance::create(root.clone(), &buffer.instance(name))?));
        }
    }
    Ok(())
}

/// Sets up instances and starts them. Returns the thread that records, the events, the size of a buffer, and
/// the number of recorded threads.
fn prepare(
    state: &State,
    owner: &Owner,
    instances: &[(Buffer, Instance)],
    config: &Config,
) -> Result<(Worker<Buffers>, Vec<String>, u32, usize), Error> {
    let (asked, others) = instances.split_first().expect("the events that were asked for");
    let (instance, others) = (&asked.1, others.iter().map(|(_, instance)| instance));
    let cpus = instance.cpus()?;
    let buffer_kib = config.buffer_kib.unwrap_or(default_buffer_kib(cpus.len()));
    let has_all = config.pids.is_empty() && !config.own_only;
    let events = instance.configure(&config.events, buffer_kib, has_all)?;
    let mut described: BTreeSet<String> = events.iter().cloned().collect();
    for instance in others.clone() {
        described.extend(instance.configure_cpus(buffer_kib)?);
    }
    let json = RecordingJson {
        has_cpus: instances.len() > 1,
        ..json(owner, Source::Tracefs, cpus, &config.pids)
    };
    let described = described.into_iter().collect::<Vec<_>>();
    let description = instance.describe(&described, json.page_size as u32)?;
    state.begin(&description.to_bytes(), &json)?;
    let pages = Buffers::open(instances, state.folder.clone(), json.page_size)?;
    // `own_only` also restricts the listed TSCs to the VMs of the processes in `pids`.
    let only = if config.own_only { &config.pids[..] } else { &[] };
    let drain = pages::drain(pages, config.is_live, Tscs::of(tracefs::kvm(), only))?;
    // The other instances start before `instance`, so that their events show from the beginning why a thread
    // in `instance` waited.
    others.clone().try_for_each(|instance| instance.switch(true))?;
    let mut threads = 0;
    for pid in &config.pids {
        // The recording thread is left out, because the thread would record its own work.
        threads += threads::follow(*pid, drain.tid, |thread| instance.follow_thread(thread))?;
    }
    if config.pids.is_empty() {
        // Without this exception, the recording thread would record its own work.
        instance.leave_out(drain.tid)?;
        instance.switch(true)?;
    } else {
        // The identity needs only the threads that exist now, because an event tells of each thread that
        // these threads start later.
        instance.switch(true)?;
        state.set_threads(instance.followed()?)?;
    }
    Ok((drain, events, buffer_kib, threads))
}

/// Returns the default size of a CPU's buffer in KiB, on a machine with `cpus` CPUs.
pub(crate) fn default_buffer_kib(cpus: usize) -> u32 {
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX).max(1);
    (BUFFERS_KIB / cpus).clamp(SMALLEST_KIB, BUFFER_KIB)
}

fn start_perf(state: &State, owner: &Owner, config: &Config) -> Result<Started, Error> {
    let mut perf = Perf::start(state.folder.clone())?;
    let json = json(owner, Source::Perf, perf.cpus(), &config.pids);
    state.begin(&Perf::description(json.page_size as u32).to_bytes(), &json)?;
    let mut threads = 0;
    for pid in &config.pids {
        threads += threads::follow(*pid, perf.tid(), |thread| perf.follow(thread))?;
    }
    let (events, buffer_kib) = (Perf::events(), Perf::BUFFER_KIB);
    Ok(Started { by: By::Perf(perf), events, buffer_kib, threads })
}

pub(crate) fn json(owner: &Owner, source: Source, cpus: Vec<u32>, pids: &[u32]) -> RecordingJson {
    let mut names = Names::default();
    pids.iter().for_each(|pid| names.add_process(*pid));
    RecordingJson {
        version: VERSION,
        source,
        clock: Clock::OWN,
        reading: Clock::OWN.reading(),
        owner: owner.to_string(),
        boot_id: boot_id(),
        trace_id: hypertrace_abi::clock::ticks(),
        page_size: rustix::param::page_size(),
        stolen_ms: stolen_ms(),
        cpus,
        names: names.to_lines(),
        // [`State::set_threads`] adds the threads later.
        threads: (source == Source::Tracefs && !pids.is_empty()).then(Vec::new),
        system: None,
        has_cpus: false,
    }
}

/// Returns the owner of the next recording of this process.
pub(crate) fn next_owner() -> Owner {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    Owner::this(SERIAL.fetch_add(1, Relaxed))
}
