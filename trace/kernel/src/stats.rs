//! Counters of a CPU's buffer.

use serde::{Deserialize, Serialize};

/// Maximum number of CPUs of a machine: the kernel's own maximum on x86-64.
pub(crate) const MAX_CPUS: usize = 8192;

/// Counters of a CPU's buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stats {
    pub cpu: u32,
    /// The counters as the kernel prints them, with one `NAME: VALUE` per line
    pub text: String,
}

impl Stats {
    fn get(&self, name: &str) -> u64 {
        let mut lines = self.text.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim());
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Returns the number of events that the kernel lost before any reader got them.
    pub fn overwritten(&self) -> u64 {
        let causes = ["overrun", "commit overrun", "dropped events"];
        causes.map(|name| self.get(name)).into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the number of events that a reader can still get.
    pub fn unread(&self) -> u64 {
        self.get("entries")
    }

    /// Returns the number of events that a reader got or can get.
    pub fn readable(&self) -> u64 {
        self.get("read events").saturating_add(self.unread())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_losses_are_added() {
        let text = "entries: 3\noverrun: 10\ncommit overrun: 20\nbytes: 5\ndropped events: 40\nread events: 7\n";
        let stats = Stats { cpu: 0, text: text.into() };
        assert_eq!((stats.overwritten(), stats.readable()), (70, 10));
    }
}
