//! Time that a hypervisor took from this machine's CPUs, where this machine is a guest itself.
//!
//! No event shows it: a thread that had a CPU did not run. So a recording has the sum.

use std::fs;
use std::time::Duration;

/// USER_HZ, the unit of /proc/stat, is 100 on x86-64 and aarch64 (`man 5 proc_stat`).
const TICK_MS: u64 = 10;

/// Returns the time since the boot, of all CPUs together; 0 on a machine that is no guest, or whose
/// hypervisor does not say it.
pub fn stolen() -> Option<Duration> {
    of(&fs::read_to_string("/proc/stat").ok()?)
}

/// Returns the eighth number of the line of all CPUs.
fn of(stat: &str) -> Option<Duration> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let ticks: u64 = words.nth(7)?.parse().ok()?;
    Some(Duration::from_millis(ticks.saturating_mul(TICK_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number() {
        let stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 4 9 10\n";
        assert_eq!(of(stat), Some(Duration::from_millis(80)));
        assert_eq!(of("cpu 1 2 3 4 5 6 7\n"), None);
        assert_eq!(of("intr 1 2 3 4 5 6 7 8\n"), None);
        assert_eq!(of(""), None);
    }
}
