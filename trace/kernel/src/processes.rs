//! The recorded processes. A descriptor stands for each process, because a later process may get the same id.

use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Processes that are recorded.
#[derive(Debug)]
pub(crate) struct Processes {
    pids: Vec<u32>,
    /// Descriptors of the processes that have not ended.
    alive: Vec<OwnedFd>,
}

impl Processes {
    /// Opens the processes with these ids.
    ///
    /// # Errors
    /// If no process has one of the numbers, or if a process has ended.
    pub fn open(pids: &[u32]) -> Result<Processes, Error> {
        let open = |pid: u32| {
            let none = Error::NoProcess(pid);
            let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                return Err(none);
            };
            match pidfd_open(id, PidfdFlags::empty()).map_err(io::Error::from) {
                Ok(fd) if has_ended(&fd) => Err(none),
                Ok(fd) => Ok(fd),
                // The kernel returns ESRCH if no process has the id, and EINVAL or ENOENT if the id belongs
                // to a thread.
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)
                    ) =>
                {
                    Err(none)
                }
                Err(error) => Err(Error::System("watch a process", error)),
            }
        };
        let alive = pids.iter().map(|pid| open(*pid)).collect::<Result<_, _>>()?;
        Ok(Processes { pids: pids.to_vec(), alive })
    }

    /// Waits until all processes have ended or a signal comes, but at most for `time`. Returns true if all
    /// processes have ended.
    pub fn wait(&mut self, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        let mut fds: Vec<PollFd<'_>> =
            self.alive.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // An interrupted wait counts as a short wait.
        let _ = poll(&mut fds, time.as_ref());
        self.alive.retain(|fd| !has_ended(fd));
        self.alive.is_empty()
    }

    /// Returns the ids of the processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.pids.iter().copied()
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_are_waited_for_and_those_that_ended_are_none() {
        let start = || Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (mut first, mut second) = (start(), start());
        let pids = [first.id(), second.id()];
        let mut processes = Processes::open(&pids).unwrap();
        drop(first.stdin.take());
        first.wait().unwrap();
        assert!(!processes.wait(Duration::ZERO), "the second lives");
        drop(second.stdin.take());

        assert!(processes.wait(Duration::from_secs(600)), "it ends, and nobody waits for it");

        assert!(
            matches!(Processes::open(&pids[1..]), Err(Error::NoProcess(pid)) if pid == pids[1])
        );
        second.wait().unwrap();
        assert!(matches!(Processes::open(&[0]), Err(Error::NoProcess(0))));
        assert!(matches!(Processes::open(&[u32::MAX]), Err(Error::NoProcess(u32::MAX))));
    }
}
