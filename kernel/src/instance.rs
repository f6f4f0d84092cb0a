//! A private instance of the kernel's trace buffers.

use crate::error::Error;
use crate::owner::Owner;
use crate::tracefs::{self, Dir};
use std::io;
use std::time::Duration;

/// Most CPUs of a machine, and most events that are recorded at the same time.
const MOST_CPUS: usize = 8192;
const MOST_EVENTS: usize = 1 << 16;

/// Events that tell where a region's time went. The first ones are missing in a kernel without KVM,
/// and some of them in older kernels. Others of KVM are left out because each costs a
/// quarter of a microsecond: `kvm_emulate_insn` and `vcpu_match_mmio` come with each `kvm_mmio`, a moment
/// before it.
const KVM_EVENTS: [&str; 6] = [
    "kvm:kvm_entry",
    "kvm:kvm_exit",
    "kvm:kvm_fpu",
    "kvm:kvm_mmio",
    "kvm:kvm_pio",
    "kvm:kvm_userspace_exit",
];
const SCHED_EVENTS: [&str; 3] =
    ["sched:sched_switch", "sched:sched_wakeup", "sched:sched_wakeup_new"];

/// Share of a buffer, percent, that wakes the thread that reads it.
const WAKE_AT: &str = "25";

/// An instance, which this process made or took over.
#[derive(Debug)]
pub(crate) struct Instance {
    root: Dir,
    dir: Dir,
    name: String,
}

impl Instance {
    /// Makes an instance that records nothing yet.
    pub fn create(root: Dir, owner: &Owner) -> Result<Instance, Error> {
        let name = owner.to_string();
        let failed = |source| Error::System("make an instance of the kernel's trace", source);
        let instances = root.dir("instances").map_err(failed)?;
        instances.create(&name).map_err(failed)?;
        let dir = instances.dir(&name).map_err(failed)?;
        Ok(Instance { root, dir, name })
    }

    /// Opens an instance that another process left.
    pub fn open(root: Dir, name: &str) -> io::Result<Instance> {
        let dir = root.dir("instances")?.dir(name)?;
        Ok(Instance { root, dir, name: name.to_owned() })
    }

    /// Sets what it records, on the clock of the session. Returns the events, as `SYSTEM:EVENT`.
    ///
    /// # Errors
    /// If the kernel lacks one of the events, or the clock.
    pub fn configure(&self, events: &[String], buffer_kib: u32) -> Result<Vec<String>, Error> {
        self.dir.set("tracing_on", "0")?;
        self.dir.set("trace_clock", "x86-tsc")?;
        self.dir.set("buffer_size_kb", &buffer_kib.to_string())?;
        self.dir.set("options/event-fork", "1")?;
        // The oldest events are overwritten: a page says where, and its successors are newer.
        self.dir.set("options/overwrite", "1")?;
        // Older kernels lack it, and wake at the first full page.
        let _ = self.dir.set("buffer_percent", WAKE_AT);
        if events.is_empty() {
            for event in KVM_EVENTS {
                let _ = self.dir.add("set_event", event);
            }
            for event in SCHED_EVENTS {
                let added = self.dir.add("set_event", event);
                added.map_err(|_| Error::NoEvent(event.to_owned()))?;
            }
        }
        for event in events {
            self.dir.add("set_event", event).map_err(|source| match source.raw_os_error() {
                Some(libc::EINVAL) => Error::NoEvent(event.clone()),
                _ => Error::Setting { file: "set_event".into(), value: event.clone(), source },
            })?;
        }
        // A line may have a filter after the name.
        let set = self.read("set_event")?;
        let names = set.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.filter(|name| name.contains(':')).take(MOST_EVENTS).map(str::to_owned).collect())
    }

    /// Records one thread too, and all that it starts.
    pub fn follow_thread(&self, thread: u32) -> Result<(), Error> {
        let value = thread.to_string();
        match self.dir.add("set_event_pid", &value) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(source) => Err(Error::Setting { file: "set_event_pid".into(), value, source }),
            Ok(()) => Ok(()),
        }
    }

    /// Starts or stops the recording.
    pub fn switch(&self, on: bool) -> Result<(), Error> {
        self.dir.set("tracing_on", if on { "1" } else { "0" })
    }

    /// Returns the numbers of the CPUs that have a buffer.
    pub fn cpus(&self) -> Result<Vec<u32>, Error> {
        let names = self.dir.dir("per_cpu").and_then(|dir| dir.names(MOST_CPUS));
        let names = names.map_err(|e| self.failed("list", "per_cpu", e))?;
        let mut cpus: Vec<u32> =
            names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Returns the directory of a CPU's buffer.
    pub fn cpu(&self, cpu: u32) -> Result<Dir, Error> {
        let name = format!("per_cpu/cpu{cpu}");
        self.dir.dir(&name).map_err(|e| self.failed("open", &name, e))
    }

    /// Reads a file as text.
    pub fn read(&self, name: &str) -> Result<String, Error> {
        self.dir.text(name).map_err(|e| self.failed("read", name, e))
    }

    fn failed(&self, action: &'static str, name: &str, source: io::Error) -> Error {
        Error::File { action, path: self.dir.path().join(name), source }
    }

    /// Returns tracefs.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// Removes it with what is left in its buffers.
    pub fn remove(self) -> io::Result<()> {
        let Instance { root, dir, name } = self;
        // Stops it even if it cannot be removed.
        let _ = dir.set("tracing_on", "0");
        let _ = dir.set("set_event", "");
        drop(dir);
        let instances = root.dir("instances")?;
        // Another process that reads it holds it: tens of milliseconds for a listing.
        for _ in 0..50 {
            match instances.remove(&name) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                done => return done,
            }
        }
        instances.remove(&name)
    }
}

/// Returns the names of the instances whose owners have ended; none if tracefs cannot be used.
pub(crate) fn orphans() -> Vec<String> {
    let names = tracefs::find().ok().and_then(|root| {
        // As many as a machine can have instances.
        root.dir("instances").and_then(|dir| dir.names(1 << 16)).ok()
    });
    let is_orphan = |name: &String| Owner::parse(name).is_some_and(|owner| owner.is_gone());
    names.unwrap_or_default().into_iter().filter(is_orphan).collect()
}
