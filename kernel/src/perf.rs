//! Scheduling of a user's threads without root: perf_event_open(2).
//!
//! Each thread has an event on each CPU, inherited by the threads and processes that it starts. All
//! events of a CPU write to one [`ring`]. The records go to the disk unchanged, with readings of
//! both clocks; [`convert`](fn@convert) makes pages of them, as the kernel's trace has.

mod clock;
mod convert;
mod records;
mod ring;

pub(crate) use convert::convert;

use crate::error::Error;
use crate::state::failed;
use crate::trace_dat::Description;
use hypertrace_trace::ctf::Folder;
use hypertrace_trace::ctf::folder::{retry, write_at};
use ring::Ring;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Time between passes without an alarm of the kernel.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The file of a CPU's records.
fn records_file(cpu: u32) -> String {
    format!("perf{cpu}")
}

/// The file with readings of both clocks.
const CLOCK_FILE: &str = "clock";

/// A recording by perf.
#[derive(Debug)]
pub(crate) struct Perf {
    /// Rings before the thread has started.
    rings: Vec<Output>,
    cpus: Vec<(u32, RawFd)>,
    /// The events of threads, which record while they are open.
    events: Vec<OwnedFd>,
    folder: Folder,
    thread: Option<JoinHandle<Option<Error>>>,
    stop: Arc<OwnedFd>,
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
    /// Size of a CPU's ring: what `kernel.perf_event_mlock_kb` allows each user by default.
    pub const BUFFER_KIB: u32 = (ring::BYTES >> 10) as u32;

    /// Returns the names of the recorded events.
    pub fn events() -> Vec<String> {
        vec!["perf:switch_out".into(), "perf:switch_in".into()]
    }

    /// Returns the descriptions of the recorded events.
    pub fn description(page_size: u32) -> Description {
        convert::description(page_size)
    }

    /// Opens a ring for each CPU.
    ///
    /// # Errors
    /// If the kernel refuses; the message says which setting does.
    pub fn open(folder: Folder) -> Result<Perf, Error> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let online = online.map_err(|e| Error::System("list the CPUs", e))?;
        let mut rings = Vec::new();
        for cpu in list(&online) {
            let ring = Ring::new(cpu).map_err(|e| refused(crate::threads::current(), &e))?;
            rings.push(Output { cpu, ring, file: None, written: 0 });
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC);
        let stop = stop.map_err(|e| Error::System("make an eventfd", e.into()))?;
        let cpus = rings.iter().map(|r| (r.cpu, r.ring.fd().as_raw_fd())).collect();
        let events = Vec::new();
        Ok(Perf { rings, cpus, events, folder, thread: None, stop: Arc::new(stop) })
    }

    /// Returns the numbers of the CPUs.
    pub fn cpus(&self) -> Vec<u32> {
        self.cpus.iter().map(|(cpu, _)| *cpu).collect()
    }

    /// Starts the thread that writes the records. Returns its number.
    pub fn start(&mut self) -> Result<u32, Error> {
        let failed = |error| Error::System("start the thread that records", error);
        let mut writer = Writer::new(std::mem::take(&mut self.rings), self.folder.clone())?;
        let stop = Arc::clone(&self.stop);
        let (sender, tid) = std::sync::mpsc::channel();
        let body = move || {
            let _ = sender.send(crate::threads::current());
            while !writer.wait(&stop) {
                writer.pass();
            }
            writer.pass();
            writer.failure
        };
        let thread = std::thread::Builder::new().name("kernel-events".into()).spawn(body);
        self.thread = Some(thread.map_err(failed)?);
        tid.recv().map_err(|_| failed(std::io::ErrorKind::BrokenPipe.into()))
    }

    /// Records a thread, and all that it starts. One that has ended is none.
    ///
    /// # Errors
    /// If the kernel refuses: it is another user's, or there are too many descriptors.
    pub fn follow(&mut self, thread: u32) -> Result<(), Error> {
        for (cpu, ring) in &self.cpus {
            match ring::open_thread(thread, *cpu, *ring) {
                Ok(event) => self.events.push(event),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                Err(error) => return Err(refused(thread, &error)),
            }
        }
        Ok(())
    }

    /// Ends the recording. Returns the first failed write.
    pub fn finish(self) -> Option<Error> {
        let Perf { events, thread, stop, .. } = self;
        // Inherited events end with those that they come from.
        drop(events);
        let _ = retry(|| rustix::io::write(&*stop, &1u64.to_ne_bytes()));
        let panicked = || Error::System("record", std::io::ErrorKind::Other.into());
        thread.and_then(|thread| thread.join().unwrap_or_else(|_| Some(panicked())))
    }
}

/// Says what helps where the kernel refuses.
fn refused(thread: u32, error: &std::io::Error) -> Error {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.unwrap_or_default();
    let help = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!(
            "the thread is another user's, or kernel.perf_event_paranoid is above 2 (now {}); run \
             this as root",
            paranoid.trim()
        ),
        Some(libc::EMFILE) => "each thread takes a descriptor for each CPU; raise ulimit -n".into(),
        Some(libc::ENOSYS | libc::ENOENT) => "this kernel has no perf events".into(),
        _ => "run this as root".into(),
    };
    Error::Perf { thread, why: format!("{error}: {help}") }
}

/// The thread's data.
struct Writer {
    outputs: Vec<Output>,
    folder: Folder,
    clock: OwnedFd,
    readings: u64,
    failure: Option<Error>,
}

impl Writer {
    fn new(outputs: Vec<Output>, folder: Folder) -> Result<Writer, Error> {
        let made = folder.new_file(CLOCK_FILE);
        let clock = made.map_err(|e| failed("make", &folder, CLOCK_FILE, e))?;
        let mut writer = Writer { outputs, folder, clock, readings: 0, failure: None };
        writer.read_clocks();
        Ok(writer)
    }

    /// Waits for records. Returns true if the end was asked for.
    fn wait(&self, stop: &OwnedFd) -> bool {
        let fds = self.outputs.iter().map(|output| output.ring.fd()).chain([stop.as_fd()]);
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&PERIOD));
        fds.last().is_some_and(|stop| !stop.revents().is_empty())
    }

    fn read_clocks(&mut self) {
        let at = self.readings * clock::Reading::BYTES as u64;
        let written = write_at(&self.clock, &clock::Reading::now().to_bytes(), at);
        self.note(CLOCK_FILE, written);
        self.readings += 1;
    }

    fn note(&mut self, name: &str, written: std::io::Result<()>) {
        if let Err(error) = written {
            let why = failed("write", &self.folder, name, error);
            self.failure.get_or_insert(why);
        }
    }

    /// Writes all records. Those that cannot be written stay in the ring, where the kernel counts
    /// those that find no room.
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
        // No machine has as many; the kernel's own bound is 8,192.
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
    fn cpus_are_parsed() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(list("").is_empty());
    }
}
