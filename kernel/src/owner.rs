//! The process that owns an instance, in the instance's name.
//!
//! A killed process leaves its instance, which records on. A process's number alone does not say
//! whether it is the same process: numbers are used again, and differ between PID namespaces.

use std::fmt;

/// First part of the names of instances.
const PREFIX: &str = "hypertrace";

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    /// When it started, in clock ticks since the boot (field 22 of `/proc/PID/stat`)
    start: u64,
    /// Its PID namespace: the inode of `/proc/PID/ns/pid`
    namespace: u64,
    /// Number of the recording among this process's.
    serial: u32,
}

impl Owner {
    /// Returns this process, for its recording of this number.
    pub fn this(serial: u32) -> Owner {
        let pid = std::process::id();
        Owner { pid, start: start("self").unwrap_or(0), namespace: namespace(), serial }
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
            namespace: parts.next()?.parse().ok()?,
            serial: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }

    /// Returns true if the process has ended. False if that cannot be known: it is of another PID
    /// namespace.
    pub fn is_gone(&self) -> bool {
        self.namespace == namespace() && start(&self.pid.to_string()) != Some(self.start)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { pid, start, namespace, serial } = self;
        write!(f, "{PREFIX}.{pid}.{start}.{namespace}.{serial}")
    }
}

fn start(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have spaces and parentheses. After it is field 3; a process that
    // has ended and was not waited for is gone, too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

/// Returns this process's PID namespace, 0 if it cannot be known.
fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let link = link.to_string_lossy();
    let number = link.strip_prefix("pid:[").and_then(|rest| rest.strip_suffix(']'));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let this = Owner::this(3);
        assert_eq!(Owner::parse(&this.to_string()), Some(this.clone()));
        assert!(this.start > 0 && this.namespace > 0, "{this:?}");
        assert!(!this.is_gone());
        assert!(Owner { start: this.start - 1, ..this.clone() }.is_gone());
        assert!(Owner { pid: u32::MAX, ..this.clone() }.is_gone());
        let elsewhere = Owner { pid: u32::MAX, namespace: 1, ..this };
        assert!(!elsewhere.is_gone(), "another namespace's processes are not seen");
        for name in ["foo", "hypertrace-12", "hypertrace.1.2.3", "hypertrace.1.2.3.4.5"] {
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

        assert_eq!(start(&child.id().to_string()), None);
        child.wait().unwrap();
    }
}
