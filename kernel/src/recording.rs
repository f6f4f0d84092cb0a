//! A recording, from its start to its file.

use crate::complete::{Summary, complete};
use crate::error::Error;
use crate::instance::Instance;
use crate::owner::Owner;
use crate::pages::{Drain, Pages};
use crate::perf::Perf;
use crate::registry;
use crate::source::Source;
use crate::state::{RecordingJson, State, VERSION, open_dir};
use crate::stats::Stats;
use crate::steal::stolen;
use crate::threads::{self, Names};
use crate::trace_dat::Description;
use crate::tracefs::{self, Dir};
use hypertrace_trace::Share;
use hypertrace_trace::control::error_chain;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Largest default of a CPU's buffer, KiB, and the most for all CPUs together.
const BUFFER_KIB: u32 = 8192;
const BUFFERS_KIB: u32 = 512 << 10;
/// Smallest default of a CPU's buffer, KiB.
const SMALLEST_KIB: u32 = 512;

/// Settings of a recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Directory of a session, which has `session.json`.
    pub dir: PathBuf,
    /// Events as `SYSTEM:EVENT`, with `*` and `?`. None: those that tell where time went: KVM's
    /// entries and exits, `sched:sched_switch` and wake-ups.
    pub events: Vec<String>,
    /// Size of each CPU's buffer in the kernel, KiB (default: 8,192, less on machines with more than
    /// 64 CPUs).
    pub buffer_kib: Option<u32>,
    /// Processes whose threads are recorded, with all that they start.
    pub pids: Vec<u32>,
    /// Users that may read the file.
    pub share: Share,
}

impl Config {
    /// Returns the defaults for a directory: the usual events, of no process yet.
    pub fn new(dir: impl Into<PathBuf>) -> Config {
        let (events, pids) = (Vec::new(), Vec::new());
        Config { dir: dir.into(), events, buffer_kib: None, pids, share: Share::default() }
    }
}

/// A recording in progress. [`Recording::finish`] ends it; without that, it continues until the process
/// ends, and the next call of [`sweep`](crate::sweep) completes it.
#[derive(Debug)]
pub struct Recording {
    state: State,
    owner: Owner,
    events: Vec<String>,
    buffer_kib: u32,
    pids: Vec<u32>,
    threads: usize,
    by: By,
    why_perf: Option<String>,
}

#[derive(Debug)]
enum By {
    Trace { instance: Instance, drain: Drain },
    Perf(Perf),
}

impl Recording {
    /// Starts a recording. Without access to the kernel's trace, it is of scheduling only, unless
    /// events are named.
    ///
    /// # Errors
    /// If the directory has no session, or has a recording; if an event or a process does not exist;
    /// if the kernel lets this user record nothing.
    pub fn start(config: &Config) -> Result<Recording, Error> {
        if let Some(pid) = config.pids.iter().find(|pid| threads::has_ended(**pid)) {
            return Err(Error::NoProcess(*pid));
        }
        let dir = open_dir(&config.dir, config.share)?;
        let state = State::create(dir)?;
        match tracefs::find() {
            Ok(root) => Recording::of_trace(state, root, config),
            Err(_) if config.events.is_empty() => Recording::of_perf(state, config),
            Err(why) => {
                state.remove()?;
                Err(why)
            }
        }
    }

    fn of_trace(state: State, root: Dir, config: &Config) -> Result<Recording, Error> {
        let owner = next_owner();
        registry::add(&owner, &config.dir);
        let instance = match Instance::create(root, &owner) {
            Ok(instance) => instance,
            Err(why) => {
                registry::remove(&owner.to_string());
                state.remove()?;
                return Err(why);
            }
        };
        match prepare(&state, &owner, &instance, config) {
            Ok(Prepared { drain, events, buffer_kib, threads }) => Ok(Recording {
                state,
                owner,
                events,
                buffer_kib,
                pids: config.pids.clone(),
                threads,
                by: By::Trace { instance, drain },
                why_perf: None,
            }),
            Err(why) => {
                let _ = instance.remove();
                registry::remove(&owner.to_string());
                state.remove()?;
                Err(why)
            }
        }
    }

    fn of_perf(state: State, config: &Config) -> Result<Recording, Error> {
        let why_perf = tracefs::find().err().map(|why| why.to_string());
        let owner = next_owner();
        match start_perf(&state, &owner, config) {
            Ok((perf, threads)) => Ok(Recording {
                state,
                owner,
                events: Perf::events(),
                buffer_kib: Perf::BUFFER_KIB,
                pids: config.pids.clone(),
                threads,
                by: By::Perf(perf),
                why_perf,
            }),
            Err(why) => {
                state.remove()?;
                Err(why)
            }
        }
    }

    /// Records the calling thread, too, and with it the processes that it starts.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn follow_this_thread(&mut self) -> Result<(), Error> {
        let thread = threads::current();
        match &mut self.by {
            By::Trace { instance, .. } => {
                instance.follow_thread(thread)?;
                instance.switch(true)?;
            }
            By::Perf(perf) => perf.follow(thread)?,
        }
        self.threads += 1;
        Ok(())
    }

    /// Returns the source of the events.
    pub fn source(&self) -> Source {
        match self.by {
            By::Trace { .. } => Source::Tracefs,
            By::Perf(_) => Source::Perf,
        }
    }

    /// Returns why perf is the source: the kernel's trace cannot be used.
    pub fn why_perf(&self) -> Option<&str> {
        self.why_perf.as_deref()
    }

    /// Returns the recorded events, as `SYSTEM:EVENT`.
    pub fn events(&self) -> &[String] {
        &self.events
    }

    /// Returns the number of threads at the start.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the size of a CPU's buffer, KiB.
    pub fn buffer_kib(&self) -> u32 {
        self.buffer_kib
    }

    /// Ends the recording and writes its file.
    ///
    /// # Errors
    /// If the file cannot be written. The data on disk stay there, and [`recover`](crate::recover)
    /// completes it.
    pub fn finish(self) -> Result<Summary, Error> {
        let Recording { state, owner, pids, by, .. } = self;
        let mut names = Names::default();
        let (stats, failure) = match by {
            By::Trace { instance, drain } => {
                instance.switch(false)?;
                let lines = instance.root().text("saved_cmdlines").unwrap_or_default();
                names.add_lines(&lines);
                let failure = match drain.stop() {
                    // Closed here: an instance that is open cannot be removed.
                    Some(pages) => pages.finish(),
                    None => Some(panicked()),
                };
                let stats = Stats::of(&instance)?;
                let failed = |e| Error::System("remove the instance of the kernel's trace", e);
                let removed = instance.remove().map_err(failed);
                (stats, failure.or(removed.err()))
            }
            By::Perf(perf) => (Vec::new(), perf.finish()),
        };
        pids.iter().for_each(|pid| names.add_process(*pid));
        let nothing = Error::System("find the recording", std::io::ErrorKind::NotFound.into());
        let completed = complete(state, stats, names, false);
        // There is no instance any more, and this process reports a failure.
        registry::remove(&owner.to_string());
        let summary = completed?.ok_or(nothing)?;
        Ok(Summary { failure: failure.map(|why| error_chain(&why)), ..summary })
    }
}

fn panicked() -> Error {
    Error::System("record: its thread panicked", std::io::ErrorKind::Other.into())
}

/// A recording that runs.
struct Prepared {
    drain: Drain,
    events: Vec<String>,
    buffer_kib: u32,
    threads: usize,
}

fn prepare(
    state: &State,
    owner: &Owner,
    instance: &Instance,
    config: &Config,
) -> Result<Prepared, Error> {
    let cpus = instance.cpus()?;
    let count = u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1);
    let default = (BUFFERS_KIB / count).clamp(SMALLEST_KIB, BUFFER_KIB);
    let buffer_kib = config.buffer_kib.unwrap_or(default);
    let events = instance.configure(&config.events, buffer_kib)?;
    let json = json(owner, Source::Tracefs, cpus, &config.pids);
    let description = Description::read(instance, &events, json.page_size as u32)?;
    state.begin(&description.to_bytes(), &json)?;
    let pages = Pages::open(instance, state.folder.clone(), json.page_size)?;
    let drain = Drain::start(pages)?;
    let follow = || {
        let mut followed = 0;
        for pid in &config.pids {
            // The thread that records would record itself.
            followed += threads::follow(*pid, drain.tid, |thread| instance.follow_thread(thread))?;
        }
        // Without a process, everything would be recorded.
        if !config.pids.is_empty() {
            instance.switch(true)?;
        }
        Ok(followed)
    };
    match follow() {
        Ok(threads) => Ok(Prepared { drain, events, buffer_kib, threads }),
        Err(why) => {
            drain.stop();
            Err(why)
        }
    }
}

fn start_perf(state: &State, owner: &Owner, config: &Config) -> Result<(Perf, usize), Error> {
    let mut perf = Perf::open(state.folder.clone())?;
    let json = json(owner, Source::Perf, perf.cpus(), &config.pids);
    state.begin(&Perf::description(json.page_size as u32).to_bytes(), &json)?;
    let tid = perf.start()?;
    let mut followed = 0;
    for pid in &config.pids {
        followed += threads::follow(*pid, tid, |thread| perf.follow(thread))?;
    }
    Ok((perf, followed))
}

fn json(owner: &Owner, source: Source, cpus: Vec<u32>, pids: &[u32]) -> RecordingJson {
    let mut names = Names::default();
    pids.iter().for_each(|pid| names.add_process(*pid));
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    RecordingJson {
        version: VERSION,
        source,
        owner: owner.to_string(),
        boot_id: boot_id.unwrap_or_default().trim().to_owned(),
        trace_id: hypertrace_abi::clock::ticks(),
        page_size: rustix::param::page_size(),
        stolen_ms: stolen().map(|time| time.as_millis() as u64),
        cpus,
        names: names.to_lines(),
    }
}

/// Returns this process as the owner of its next recording.
fn next_owner() -> Owner {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    Owner::this(SERIAL.fetch_add(1, Relaxed))
}
