//! The thread that records: it waits for data or its end.

use crate::error::Error;
use hypertrace_trace::ctf::folder::retry;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Time between passes without an alarm of the kernel.
pub(crate) const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// A thread that returns its data at the end. Dropped, it ends, too.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    thread: Option<JoinHandle<T>>,
    /// Its number.
    pub tid: u32,
    stop: Stop,
}

/// The request to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<OwnedFd>);

impl Stop {
    /// Waits until one of these can be read, or the time is over. Returns true if the end was asked for.
    pub fn wait<'a>(&'a self, fds: impl Iterator<Item = BorrowedFd<'a>>, time: &Timespec) -> bool {
        let mut fds: Vec<PollFd<'_>> = fds
            .chain([self.0.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(time));
        fds.last().is_some_and(|stop| !stop.revents().is_empty())
    }
}

impl<T: Send + 'static> Worker<T> {
    /// Starts it. The function returns when the end is asked for.
    pub fn start(body: impl FnOnce(&Stop) -> T + Send + 'static) -> Result<Worker<T>, Error> {
        let failed = |error| Error::System("start the thread that records", error);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let stop = Stop(Arc::new(stop));
        let asked = stop.clone();
        let (sender, tid) = std::sync::mpsc::channel();
        let body = move || {
            let _ = sender.send(crate::threads::current());
            body(&asked)
        };
        let thread = std::thread::Builder::new().name("kernel-events".into()).spawn(body);
        let thread = thread.map_err(failed)?;
        let tid = tid.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Worker { thread: Some(thread), tid, stop })
    }

    /// Ends it, and returns its data.
    ///
    /// # Errors
    /// If it panicked.
    pub fn stop(mut self) -> Result<T, Error> {
        let panicked = || Error::System("record: its thread panicked", io::ErrorKind::Other.into());
        self.end().ok_or_else(panicked)
    }
}

impl<T> Worker<T> {
    /// Ends it. Returns its data, or `None` if it panicked or has ended before.
    fn end(&mut self) -> Option<T> {
        let thread = self.thread.take()?;
        // An eventfd takes a 1 at any time.
        let _ = retry(|| rustix::io::write(&*self.stop.0, &1u64.to_ne_bytes()));
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
        let forever = Timespec { tv_sec: 3600, tv_nsec: 0 };
        let worker = Worker::start(move |stop| {
            while !stop.wait(std::iter::empty(), &forever) {}
            in_thread
        });
        drop(worker.unwrap());
        assert_eq!(Arc::strong_count(&data), 1);
    }
}
