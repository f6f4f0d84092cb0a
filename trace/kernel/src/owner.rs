//! The process that owns an instance. The instance's name identifies this process.
//!
//! A killed process leaves its instance, and the instance continues to record. A process's id alone does not
//! identify the process, because the kernel uses ids again. All owners are processes of the first PID
//! namespace, because only processes of this namespace use the kernel's trace.

use std::fmt;
use std::io;

/// First part of an instance's name.
const PREFIX: &str = "hypertrace";

/// A process that owns a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    /// Time at which the process started, in clock ticks since the boot (field 22 of `/proc/PID/stat`).
    start: u64,
    /// Serial number of the recording among the recordings of the process.
    serial: u32,
}

impl Owner {
    /// Returns the owner of the recording with this serial number of this process.
    pub fn this(serial: u32) -> Owner {
        let pid = std::process::id();
        Owner { pid, start: start("self").ok().flatten().unwrap_or(0), serial }
    }

    /// Parses the name of an instance. Returns `None` if the instance is not hypertrace's.
    pub fn parse(name: &str) -> Option<Owner> {
        let mut parts = name.split('.');
        if parts.next() != Some(PREFIX) {
            return None;
        }
        let owner = Owner {
            pid: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
            serial: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }

    /// Returns true if the process is known to have ended.
    pub fn is_gone(&self) -> bool {
        start(&self.pid.to_string()).is_ok_and(|start| start != Some(self.start))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { pid, start, serial } = self;
        write!(f, "{PREFIX}.{pid}.{start}.{serial}")
    }
}

/// Returns the time at which a process started, or `None` if the process has ended, even if the process is
/// still a zombie.
fn start(pid: &str) -> io::Result<Option<u64>> {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        // If the process ends during the read, then the read fails with ESRCH.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // The process's name stands in parentheses, and may contain spaces and parentheses. Field 3 follows the
    // name.
    let fields = || {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        Some((state, fields.nth(18)?.parse().ok()?))
    };
    match fields() {
        Some(("Z" | "X", _)) => Ok(None),
        Some((_, start)) => Ok(Some(start)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let this = Owner::this(3);
        assert_eq!(Owner::parse(&this.to_string()), Some(this.clone()));
        assert!(this.start > 0, "{this:?}");
        assert!(!this.is_gone());
        assert!(Owner { start: this.start - 1, ..this.clone() }.is_gone());
        assert!(Owner { pid: u32::MAX, ..this }.is_gone());
        for name in ["foo", "hypertrace-12", "hypertrace.1.2", "hypertrace.1.2.3.4"] {
            assert_eq!(Owner::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_that_nobody_waited_for_has_ended() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = WaitId::Pid(Pid::from_raw(child.id().cast_signed()).unwrap());

        // The process has ended but is still a zombie, because NOWAIT does not reap the process.
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();

        assert_eq!(start(&child.id().to_string()).unwrap(), None);
        child.wait().unwrap();
    }
}
