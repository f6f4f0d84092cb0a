//! The recording thread, which waits for data or for the request to end.

use crate::error::Error;
use crate::steal::Rises;
use crate::tscs::Tscs;
use hypertrace_format::folder::retry;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time between two passes: the thread begins a pass after this time even if the kernel does not wake
/// the thread.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// A thread that returns its data at its end. Dropping the value ends the thread, too.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    thread: Option<JoinHandle<T>>,
    /// Id of the thread.
    pub tid: u32,
    pub stop: Stop,
}

/// A handle with which another thread asks the recording thread to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    asked: Arc<OwnedFd>,
    notes: Arc<Mutex<Notes>>,
}

/// Facts that no event tells. The recording thread reads these facts while it waits for data.
#[derive(Debug, Default)]
struct Notes {
    rises: Rises,
    tscs: Tscs,
}

impl Notes {
    fn read(&mut self) {
        self.rises.read();
        self.tscs.read();
    }

    /// Returns the time until the next reading.
    fn period(&self) -> Option<Duration> {
        self.rises.period().into_iter().chain(self.tscs.period()).min()
    }
}

impl Stop {
    /// Waits until one of `fds` can be read, or `time` is over. Returns true if the end was requested.
    pub fn wait<'a>(&'a self, fds: impl Iterator<Item = BorrowedFd<'a>>, time: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> = fds
            .chain([self.asked.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let begun = Instant::now();
        loop {
            let left = time.saturating_sub(begun.elapsed());
            let part = self.notes().period().map_or(left, |period| period.min(left));
            let part = Timespec::try_from(part).ok();
            // An interrupted wait counts as a short wait.
            let ready = poll(&mut fds, part.as_ref());
            self.notes().read();
            if ready != Ok(0) || begun.elapsed() >= time {
                return fds.last().is_some_and(|stop| !stop.revents().is_empty());
            }
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the intervals in which a hypervisor took CPU time from the machine: see [`Rises::finish`].
    pub fn steals(&self) -> String {
        self.notes().rises.finish()
    }

    /// Returns the TSCs of VMs that the readings found: see [`Tscs::finish`].
    pub fn tscs(&self) -> String {
        self.notes().tscs.finish()
    }
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread. `body` must return soon after another thread asks for the end.
    pub fn start(
        tscs: Tscs,
        body: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<Worker<T>, Error> {
        let failed = |error| Error::System("start the thread that records", error);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let stop = Stop {
            asked: Arc::new(stop),
            notes: Arc::new(Mutex::new(Notes { tscs, ..Notes::default() })),
        };
        // The first reading comes before the first event.
        stop.notes().read();
        let asked = stop.clone();
        let (sender, tid) = std::sync::mpsc::channel();
        let body = move || {
            let _ = sender.send(crate::threads::current());
            body(&asked)
        };
        let thread = std::thread::Builder::new().name("ht-kernel".into()).spawn(body);
        let thread = thread.map_err(failed)?;
        let tid = tid.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Worker { thread: Some(thread), tid, stop })
    }

    /// Ends the thread, and returns its data.
    ///
    /// # Errors
    /// If the thread panicked.
    pub fn stop(mut self) -> Result<T, Error> {
        let panicked = || Error::System("record: its thread panicked", io::ErrorKind::Other.into());
        self.end().ok_or_else(panicked)
    }
}

impl<T> Worker<T> {
    /// Ends the thread. Returns the thread's data, or `None` if the thread panicked or has ended before.
    fn end(&mut self) -> Option<T> {
        let thread = self.thread.take()?;
        // The write cannot fail: an eventfd's counter has room for a 1.
        let _ = retry(|| rustix::io::write(&*self.stop.asked, &1u64.to_ne_bytes()));
        thread.join().ok()
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_dropped_ends_and_frees_its_data() {
        let data = Arc::new(());
        let in_thread = data.clone();
        let forever = Duration::from_secs(3600);
        let worker = Worker::start(Tscs::default(), move |stop| {
            while !stop.wait(std::iter::empty(), forever) {}
            in_thread
        });
        drop(worker.unwrap());
        assert_eq!(Arc::strong_count(&data), 1);
    }
}
