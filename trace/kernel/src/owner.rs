//! The process that owns an instance, in the instance's name.
//!
//! A killed process leaves its instance, which records on. A process's number alone does not say
//! whether it is the same process: numbers are used again. All owners are of the first PID namespace,
//! as only there the kernel's trace is used.

use std::fmt;
use std::io;

/// First part of the names of instances.
const PREFIX: &str = "hypertrace";

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    /// When it started, in clock ticks since the boot (field 22 of `/proc/PID/stat`)
    start: u64,
    /// Number of the recording among this process's.
    serial: u32,
}

impl Owner {
    /// Returns this process, for its recording of this number.
    pub fn this(serial: u32) -> Owner {
        let pid = std::process::id();
        Owner { pid, start: start("self").ok().flatten().unwrap_or(0), serial }
    }

    /// Parses the name of an instance. `None`: the instance is none of ours.
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

    /// Returns true if the process has ended. False if that cannot be known.
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

/// Returns when a process started; `None` if it has ended, also if nobody has waited for it.
fn start(pid: &str) -> io::Result<Option<u64>> {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        // The second while it is read.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // The name, in parentheses, may have spaces and parentheses. After it is field 3.
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

        // Waits, and leaves it to be waited for.
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();

        assert_eq!(start(&child.id().to_string()).unwrap(), None);
        child.wait().unwrap();
    }
}
