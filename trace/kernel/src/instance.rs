//! A private instance of the kernel's trace buffers.

use crate::clock::Clock;
use crate::error::Error;
use crate::stats::{MAX_CPUS, Stats};
use crate::trace_dat::{Description, Formats};
use crate::tracefs::Dir;
use hypertrace_format::pattern::matches;
use std::io;
use std::time::Duration;

/// Maximum number of events that are recorded at the same time.
const MAX_EVENTS: usize = 1 << 16;

/// Name of the file that lists all events of this kernel, one `SYSTEM:EVENT` per line.
pub(crate) const AVAILABLE: &str = "available_events";

/// Name that stands for the default events in a list of events.
pub const DEFAULT_EVENTS: &str = "default";

/// Events that tell where a region's time went. A kernel without KVM lacks all of these events, and older
/// kernels lack some. The list lacks KVM's other events, because each event costs a quarter of a microsecond.
/// For example, the kernel emits a `kvm_emulate_insn` and a `vcpu_match_mmio` shortly before each `kvm_mmio`.
const KVM_EVENTS: [&str; 7] = [
    "kvm:kvm_entry",
    "kvm:kvm_exit",
    "kvm:kvm_fpu",
    "kvm:kvm_mmio",
    "kvm:kvm_pio",
    "kvm:kvm_userspace_exit",
    "kvm:kvm_write_tsc_offset",
];
const SCHED_EVENTS: [&str; 6] = [
    "sched:sched_process_exec",
    "sched:sched_process_exit",
    "sched:sched_process_fork",
    "sched:sched_switch",
    "sched:sched_wakeup",
    "sched:sched_wakeup_new",
];

/// Events that tell which thread a CPU has, and what woke the thread. A kernel without high resolution timers
/// lacks one of these events. The list has the ends of interrupts, because an interrupt is not the cause of a
/// wake-up after the interrupt's end.
const CPUS_EVENTS: [&str; 12] = [
    "sched:sched_process_exec",
    "sched:sched_process_exit",
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup_new",
    "timer:hrtimer_expire_entry",
    "timer:hrtimer_expire_exit",
    "irq:irq_handler_entry",
    "irq:irq_handler_exit",
    "irq:softirq_entry",
    "irq:softirq_exit",
    "task:task_newtask",
];

/// Events of the signal that ends all threads of a process. Together with the events of new and ended
/// threads, the signal's events tell which thread ended a process.
const KILL_EVENTS: [&str; 2] = ["signal:signal_deliver", "signal:signal_generate"];
/// Filter of [`KILL_EVENTS`]: 9 is the number of SIGKILL.
const KILL_FILTER: &str = "sig == 9";

/// Filled share of a buffer in percent at which the kernel wakes the thread that reads the buffer.
const WAKE_AT: &str = "25";

/// An instance that this process made or took over.
#[derive(Debug)]
pub(crate) struct Instance {
    root: Dir,
    dir: Dir,
    name: String,
}

impl Instance {
    /// Makes an instance, which records nothing yet.
    pub fn create(root: Dir, name: &str) -> Result<Instance, Error> {
        let failed = |source| Error::System("make an instance of the kernel's trace", source);
        let instances = root.dir("instances").map_err(failed)?;
        instances.create(name).map_err(failed)?;
        let dir = instances.dir(name).map_err(failed)?;
        Ok(Instance { root, dir, name: name.to_owned() })
    }

    /// Opens an instance that another process left, or returns `None` if there is no such instance.
    pub fn find(root: Dir, name: &str) -> Result<Option<Instance>, Error> {
        match root.dir("instances").and_then(|instances| instances.dir(name)) {
            Ok(dir) => Ok(Some(Instance { root, dir, name: name.to_owned() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::System("open an instance of the kernel's trace", error)),
        }
    }

    /// Sets the events of the instance, and gives the instance the clock of the session. Returns the names of
    /// the events, as `SYSTEM:EVENT`. If `has_all` is true, the instance records all threads, and by default
    /// also the events of [`Buffer::Cpus`](crate::state::Buffer::Cpus).
    ///
    /// # Errors
    /// If the kernel lacks one of the events, or the clock.
    pub fn configure(
        &self,
        events: &[String],
        buffer_kib: u32,
        has_all: bool,
    ) -> Result<Vec<String>, Error> {
        self.set_up(buffer_kib)?;
        let is_default = |event: &&String| *event == DEFAULT_EVENTS;
        if events.is_empty() || events.iter().any(|event| is_default(&event)) {
            for event in KVM_EVENTS {
                let _ = self.dir.add("set_event", event);
            }
            for event in SCHED_EVENTS {
                let added = self.dir.add("set_event", event);
                added.map_err(|_| Error::NoEvent(event.to_owned()))?;
            }
            if has_all {
                self.add_cpus_events();
            }
        }
        let named = events.iter().filter(|event| !is_default(event));
        for names in named.map(|event| self.matching(event)) {
            for event in names? {
                self.dir.add("set_event", &event).map_err(|source| {
                    match source.raw_os_error() {
                        Some(libc::EINVAL) => Error::NoEvent(event.clone()),
                        _ => Error::Setting { file: "set_event".into(), value: event, source },
                    }
                })?;
            }
        }
        self.events()
    }

    /// Sets the events of an instance that records which thread each CPU has. Returns the names of these
    /// events.
    pub fn configure_cpus(&self, buffer_kib: u32) -> Result<Vec<String>, Error> {
        self.set_up(buffer_kib)?;
        self.add_cpus_events();
        self.events()
    }

    fn add_cpus_events(&self) {
        for event in CPUS_EVENTS {
            let _ = self.dir.add("set_event", event);
        }
        for event in KILL_EVENTS {
            // Without the filter, each signal of a profiler would cost a record.
            let filter = format!("events/{}/filter", event.replace(':', "/"));
            if self.dir.set(&filter, KILL_FILTER).is_ok() {
                let _ = self.dir.add("set_event", event);
            }
        }
    }

    fn set_up(&self, buffer_kib: u32) -> Result<(), Error> {
        self.dir.set("tracing_on", "0")?;
        self.set_clock(Clock::OWN)?;
        self.dir.set("buffer_size_kb", &buffer_kib.to_string())?;
        self.dir.set("options/event-fork", "1")?;
        // In a full buffer, the kernel overwrites the oldest events. So events are missing before the oldest
        // page that is left, and a flag in this page says so.
        self.dir.set("options/overwrite", "1")?;
        // Older kernels lack this setting. Such a kernel wakes the reader when the first page is full.
        let _ = self.dir.set("buffer_percent", WAKE_AT);
        Ok(())
    }

    /// Sets the clock of the instance's events. The instance must be switched off.
    pub fn set_clock(&self, clock: Clock) -> Result<(), Error> {
        self.dir.set("trace_clock", clock.name())
    }

    /// Returns the events that the instance records, as `SYSTEM:EVENT`.
    pub fn events(&self) -> Result<Vec<String>, Error> {
        // In a line of `set_event`, a filter may follow the event's name.
        let set = self.read("set_event")?;
        let names = set.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.filter(|name| name.contains(':')).take(MAX_EVENTS).map(str::to_owned).collect())
    }

    /// Returns the events whose names match a name with `*` and `?`. This match is needed because the kernel
    /// itself takes a `*` only in place of the whole system or the whole event.
    fn matching(&self, event: &str) -> Result<Vec<String>, Error> {
        if !event.contains(['*', '?']) {
            return Ok(vec![event.to_owned()]);
        }
        let path = self.root.path().join(AVAILABLE);
        let all = self.root.read(AVAILABLE);
        let all = all.map_err(|source| Error::File { action: "read", path, source })?;
        let found = fitting(&String::from_utf8_lossy(&all), event);
        if found.is_empty() { Err(Error::NoEvent(event.to_owned())) } else { Ok(found) }
    }

    /// Reads the descriptions of these events, named `SYSTEM:EVENT`.
    pub fn describe(&self, events: &[String], page_size: u32) -> Result<Description, Error> {
        let root = &self.root;
        let read = |name: &str| {
            let path = root.path().join(name);
            root.read(name).map_err(|source| Error::File { action: "read", path, source })
        };
        let mut ftrace = Vec::new();
        // The kernel has some 20 kinds of records, and some of these kinds have no format.
        let own = root.dir("events/ftrace").and_then(|dir| Ok((dir.names(256)?, dir)));
        if let Ok((names, dir)) = own {
            ftrace.extend(names.iter().filter_map(|name| dir.read(&format!("{name}/format")).ok()));
        }
        let mut formats = Formats::new();
        for event in events {
            let Some((system, name)) = event.split_once(':') else { continue };
            let format = read(&format!("events/{system}/{name}/format"))?;
            formats.entry(system.to_owned()).or_default().insert(name.to_owned(), format);
        }
        Ok(Description {
            header_page: read("events/header_page")?,
            header_event: read("events/header_event")?,
            ftrace,
            events: formats,
            // Texts that events refer to by address.
            printk: root.read("printk_formats").unwrap_or_default(),
            page_size,
        })
    }

    /// Adds one thread, and all threads that this thread will start, to the recorded threads.
    pub fn follow_thread(&self, thread: u32) -> Result<(), Error> {
        let value = thread.to_string();
        match self.dir.add("set_event_pid", &value) {
            // The thread has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(source) => Err(Error::Setting { file: "set_event_pid".into(), value, source }),
            Ok(()) => Ok(()),
        }
    }

    /// Records all threads except for `thread`. The threads that `thread` starts are recorded.
    pub fn leave_out(&self, thread: u32) -> Result<(), Error> {
        self.dir.set("options/event-fork", "0")?;
        // Kernels before 5.7 lack this setting, and therefore also record the events of the thread.
        match self.dir.set("set_event_notrace_pid", &thread.to_string()) {
            Err(Error::Setting { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(())
            }
            done => done,
        }
    }

    /// Returns the threads that are recorded now.
    pub fn followed(&self) -> Result<Vec<u32>, Error> {
        let set = self.read("set_event_pid")?;
        Ok(set.split_whitespace().filter_map(|thread| thread.parse().ok()).collect())
    }

    /// Starts or stops the recording.
    pub fn switch(&self, on: bool) -> Result<(), Error> {
        self.dir.set("tracing_on", if on { "1" } else { "0" })
    }

    /// Returns the ids of the CPUs that have a buffer.
    pub fn cpus(&self) -> Result<Vec<u32>, Error> {
        let names = self.dir.dir("per_cpu").and_then(|dir| dir.names(MAX_CPUS));
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

    /// Reads the counters of all CPUs' buffers.
    pub fn stats(&self) -> Result<Vec<Stats>, Error> {
        let read = |cpu| {
            let text = self.read(&format!("per_cpu/cpu{cpu}/stats"))?;
            Ok(Stats { cpu, text })
        };
        self.cpus()?.into_iter().map(read).collect()
    }

    /// Reads a file as text.
    fn read(&self, name: &str) -> Result<String, Error> {
        self.dir.text(name).map_err(|e| self.failed("read", name, e))
    }

    fn failed(&self, action: &'static str, name: &str, source: io::Error) -> Error {
        Error::File { action, path: self.dir.path().join(name), source }
    }

    /// Returns the directory of tracefs.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// Removes the instance, and with the instance the rest of the events in its buffers.
    pub fn remove(self) -> io::Result<()> {
        let Instance { root, dir, name } = self;
        drop(dir);
        let instances = root.dir("instances")?;
        // The instance is busy while another process uses the instance. A process that only lists the
        // instance's directory needs tens of milliseconds.
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

/// Returns the lines `SYSTEM:EVENT` that match `wanted`. The system and the event of `wanted` are patterns
/// with `*` and `?`.
fn fitting(available: &str, wanted: &str) -> Vec<String> {
    let Some((system, name)) = wanted.split_once(':') else { return Vec::new() };
    let is_meant = |event: &&str| {
        event.split_once(':').is_some_and(|(s, n)| matches(system, s) && matches(name, n))
    };
    available.lines().filter(is_meant).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_each_part_of_a_name() {
        let available =
            "xhci-hcd:xhci_dbg_quirks\nkvm:kvm_exit\nkvm:kvm_entry\nkvm_nested:kvm_exit\n";
        assert_eq!(fitting(available, "xhci-hcd:*"), ["xhci-hcd:xhci_dbg_quirks"]);
        assert_eq!(fitting(available, "kvm:kvm_e*"), ["kvm:kvm_exit", "kvm:kvm_entry"]);
        assert_eq!(fitting(available, "kvm*:kvm_exit"), ["kvm:kvm_exit", "kvm_nested:kvm_exit"]);
        assert!(fitting(available, "*").is_empty() && fitting(available, "k:*").is_empty());
    }
}
