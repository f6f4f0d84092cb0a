//! Records the scheduling of a user's threads without root: perf_event_open(2).
//!
//! Each thread has an event on each CPU. The threads and processes that the thread starts inherit the event.
//! All events of a CPU write to one [`ring`]. The recorder writes the unchanged records to the disk, and adds
//! readings of perf's clock and of the counter. [`convert`](fn@convert) turns the records into pages in the
//! format of the kernel's trace.

mod convert;
mod records;
mod ring;

pub(crate) use convert::convert;

use crate::clock;
use crate::error::Error;
use crate::state::{EndJson, State, failed};
use crate::stats::Stats;
use crate::trace_dat::Description;
use crate::tscs::Tscs;
use crate::worker::{PERIOD, Stop, Worker};
use hypertrace_format::folder::{Folder, write_at};
use ring::{Event, Ring};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Returns the name of the file of a CPU's records.
fn records_file(cpu: u32) -> String {
    format!("perf{cpu}")
}

/// A recording that perf makes.
#[derive(Debug)]
pub(crate) struct Perf {
    cpus: Vec<(u32, RawFd)>,
    /// The events of all threads. Each entry has the id of a CPU, and an event on this CPU.
    events: Vec<(u32, Event)>,
    worker: Worker<Writer>,
}

/// A CPU's ring and its file.
#[derive(Debug)]
struct Output {
    cpu: u32,
    ring: Ring,
    file: Option<OwnedFd>,
    written: u64,
}

impl Perf {
    /// Size of a CPU's ring in KiB. The default of `kernel.perf_event_mlock_kb` allows each user a ring of
    /// this size.
    pub const BUFFER_KIB: u32 = (ring::BYTES >> 10) as u32;

    /// Returns the names of the recorded events.
    pub fn events() -> Vec<String> {
        vec!["perf:switch_out".into(), "perf:switch_in".into()]
    }

    /// Returns the descriptions of the recorded events.
    pub fn description(page_size: u32) -> Description {
        convert::description(page_size)
    }

    /// Opens a ring for each CPU, and starts the thread that writes the records.
    ///
    /// # Errors
    /// If the kernel refuses. The message says which setting is the cause.
    pub fn start(folder: Folder) -> Result<Perf, Error> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let online = online.map_err(|e| Error::System("list the CPUs", e))?;
        let mut outputs = Vec::new();
        for cpu in list(&online) {
            let ring = Ring::new(cpu).map_err(|e| refused(crate::threads::current(), &e))?;
            outputs.push(Output { cpu, ring, file: None, written: 0 });
        }
        let cpus = outputs.iter().map(|o| (o.cpu, o.ring.fd().as_raw_fd())).collect();
        let mut writer = Writer::new(outputs, folder)?;
        let worker = Worker::start(Tscs::default(), move |stop| {
            while !stop.wait(writer.outputs.iter().map(|output| output.ring.fd()), PERIOD) {
                writer.pass();
            }
            writer
        })?;
        Ok(Perf { cpus, events: Vec::new(), worker })
    }

    /// Checks that the kernel lets this thread record itself.
    ///
    /// # Errors
    /// As [`Perf::start`].
    pub fn check() -> Result<(), Error> {
        let thread = crate::threads::current();
        let opened = Ring::new(0).and_then(|ring| Event::open(thread, 0, ring.fd().as_raw_fd()));
        opened.map(drop).map_err(|error| refused(thread, &error))
    }

    /// Returns the ids of the recorded CPUs.
    pub fn cpus(&self) -> Vec<u32> {
        self.cpus.iter().map(|(cpu, _)| *cpu).collect()
    }

    /// Returns the id of the thread that records.
    pub fn tid(&self) -> u32 {
        self.worker.tid
    }

    /// Returns the handle of the recording thread. The handle ends the thread, and has the intervals in which
    /// a hypervisor took CPU time.
    pub fn stop(&self) -> Stop {
        self.worker.stop.clone()
    }

    /// Records a thread, and all threads and processes that the thread starts. If the thread has ended, the
    /// call does nothing.
    ///
    /// # Errors
    /// If the kernel refuses, because the thread belongs to another user, or because this process has too
    /// many descriptors.
    pub fn follow(&mut self, thread: u32) -> Result<(), Error> {
        for (cpu, ring) in &self.cpus {
            match Event::open(thread, *cpu, *ring) {
                Ok(event) => self.events.push((*cpu, event)),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                Err(error) => return Err(refused(thread, &error)),
            }
        }
        Ok(())
    }

    /// Ends the recording. After this call, the disk has the records, and the kernel's counts of lost
    /// records. Returns the first failed write.
    ///
    /// # Errors
    /// If the counts cannot be written, or the thread panicked.
    pub fn finish(self, state: &State) -> Result<Option<Error>, Error> {
        let Perf { cpus, events, worker } = self;
        let mut lost: BTreeMap<u32, Option<u64>> =
            cpus.iter().map(|(cpu, _)| (*cpu, Some(0))).collect();
        // The end of an event also ends the events that other threads have inherited from this event.
        for (cpu, event) in events {
            let sum = lost.entry(cpu).or_default();
            *sum = sum.zip(event.end()).map(|(sum, lost)| sum.saturating_add(lost));
        }
        let mut writer = worker.stop()?;
        writer.pass();
        // In the ring, the kernel reports a loss only before a later record. So only the counts in `lost`
        // include the losses after the last record.
        let stats = |(cpu, lost): (u32, Option<u64>)| {
            Some(Stats { cpu, text: format!("entries: 0\noverrun: {}\n", lost?) })
        };
        let stats: Option<Vec<Stats>> = lost.into_iter().map(stats).collect();
        state.end(&EndJson { stats: stats.unwrap_or_default(), ..EndJson::default() })?;
        Ok(writer.failure)
    }
}

/// Returns the error for a refusal of the kernel. The error names a remedy.
fn refused(thread: u32, error: &std::io::Error) -> Error {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let help = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => help(paranoid.unwrap_or_default().trim()),
        Some(libc::EMFILE) => "each thread takes a descriptor for each CPU; raise ulimit -n".into(),
        Some(libc::ENOSYS | libc::ENOENT) => "this kernel has no perf events".into(),
        _ => "run this as root".into(),
    };
    Error::Perf { thread, why: format!("{error}: {help}") }
}

/// If the kernel refuses because this user lacks a right, returns the remedy. The remedy depends on the value
/// of `kernel.perf_event_paranoid`.
fn help(paranoid: &str) -> String {
    if paranoid.parse::<i32>().is_ok_and(|level| level > 2) {
        format!(
            "kernel.perf_event_paranoid is above 2 (now {paranoid}); run this as root, or let users record their own \
             threads by `sysctl kernel.perf_event_paranoid=2`"
        )
    } else {
        "the thread is another user's, or a container forbids it; run this as root".into()
    }
}

/// Data of the recording thread.
#[derive(Debug)]
struct Writer {
    outputs: Vec<Output>,
    folder: Folder,
    clock: OwnedFd,
    readings: u64,
    failure: Option<Error>,
}

impl Writer {
    fn new(outputs: Vec<Output>, folder: Folder) -> Result<Writer, Error> {
        let made = folder.new_file(clock::FILE);
        let clock = made.map_err(|e| failed("make", &folder, clock::FILE, e))?;
        let mut writer = Writer { outputs, folder, clock, readings: 0, failure: None };
        writer.read_clocks();
        Ok(writer)
    }

    fn read_clocks(&mut self) {
        let at = self.readings * clock::Reading::BYTES as u64;
        let written = write_at(&self.clock, &clock::Reading::now().to_bytes(), at);
        self.note(clock::FILE, written);
        self.readings += 1;
    }

    fn note(&mut self, name: &str, written: std::io::Result<()>) {
        if let Err(error) = written {
            let why = failed("write", &self.folder, name, error);
            self.failure.get_or_insert(why);
        }
    }

    /// Writes all records. If a write fails, the records stay in the ring, and the kernel counts further
    /// records for which the ring has no room.
    fn pass(&mut self) {
        for index in 0..self.outputs.len() {
            let output = &mut self.outputs[index];
            let name = records_file(output.cpu);
            let folder = &self.folder;
            let (file, at) = (&mut output.file, &mut output.written);
            let written = output.ring.take(|bytes| {
                let file = match &mut *file {
                    Some(file) => file,
                    none => none.insert(folder.new_file(&name)?),
                };
                write_at(file, bytes, *at)?;
                *at += bytes.len() as u64;
                Ok(())
            });
            self.note(&name, written);
        }
        self.read_clocks();
    }
}

/// Parses a list of CPUs such as `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // No machine has so many CPUs: the kernel's own maximum is 8,192.
        let first: u32 = first.parse().ok()?;
        let last: u32 = last.parse().ok()?;
        Some(first..=last.min(first.saturating_add(8191)))
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_depends_on_the_setting() {
        // Debian's and Ubuntu's values of the setting.
        for paranoid in ["3", "4"] {
            let help = help(paranoid);
            assert!(help.contains(&format!("(now {paranoid})")), "{help}");
            assert!(help.contains("`sysctl kernel.perf_event_paranoid=2`"), "{help}");
        }
        for paranoid in ["2", "-1", ""] {
            assert!(!help(paranoid).contains("sysctl"), "{paranoid:?}");
        }
    }

    #[test]
    fn cpus_are_parsed() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(list("").is_empty());
    }
}
