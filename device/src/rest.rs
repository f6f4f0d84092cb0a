// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop's decision to wait for a KICK without a timer.

use hypertrace_abi::drain::{IdleDetector, REST};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// State of the decision, which the drain loop's thread owns.
#[derive(Debug)]
pub(crate) struct RestDecision {
    idle: IdleDetector,
    /// Time from which all times in this state count.
    begun: Instant,
    /// Time at which the guest was restored. Each client may have stored to KICK before the snapshot, and may
    /// write the record for this KICK only after the restore.
    restored: Option<Duration>,
}

/// Time within which the clients of a restored guest are expected to continue.
const RESTORED: Duration = Duration::from_secs(10);

impl RestDecision {
    pub fn new(clients: usize) -> RestDecision {
        RestDecision {
            idle: IdleDetector::new(clients, Duration::ZERO),
            begun: Instant::now(),
            restored: None,
        }
    }

    /// Returns the time since `begun`.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Notes that a guest was restored at `now`, and that its rings have these heads. The loop does not rest
    /// within the next 10 s.
    pub fn restore(&mut self, heads: impl Iterator<Item = u64>, now: Duration) {
        self.have_heads_stayed(heads);
        self.restored = Some(now);
    }

    /// Returns whether the guest allows the loop to rest after a pass at `now`. `stayed` says that no head
    /// has moved since the pass before, and `is_kicked` says that the guest caused the pass.
    pub fn is_guest_quiet(&mut self, stayed: bool, is_kicked: bool, now: Duration) -> bool {
        let is_quiet = stayed && !is_kicked;
        let is_awaited = |restored: &Duration| now.saturating_sub(*restored) < RESTORED;
        self.restored = self.restored.filter(is_awaited);
        is_quiet && self.restored.is_none()
    }

    /// Notes the heads of the clients' rings. Returns whether no head has moved since the last pass.
    pub fn have_heads_stayed(&mut self, heads: impl Iterator<Item = u64>) -> bool {
        self.idle.have_heads_stayed(heads)
    }

    /// Notes the result of a pass at `now`. If `is_quiet` is true, the pass has found nothing. Returns for
    /// how long no pass has found anything.
    pub fn idle_for(&mut self, is_quiet: bool, now: Duration) -> Duration {
        self.idle.idle_for(is_quiet, now)
    }
}

/// Returns whether a loop may wait for a KICK after its rings have been idle for the time `idle`. `rests`
/// tells vCPU threads that the loop rests; a vCPU thread that wakes the loop clears `rests`.
///
/// This function sets `rests` at least one period before the loop looks at the rings for the last time. This
/// last look therefore finds every event that a vCPU thread stored before the thread could see `rests`.
pub(crate) fn begins(idle: Duration, rests: &AtomicBool) -> bool {
    if idle < REST {
        rests.store(false, Relaxed);
        return false;
    }
    rests.swap(true, Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_a_period_after_the_vcpus_can_know() {
        let shown = AtomicBool::new(false);
        assert!(!begins(REST - Duration::from_nanos(1), &shown));
        assert!(!shown.load(Relaxed), "records may come without a KICK");
        assert!(!begins(REST, &shown));
        assert!(shown.load(Relaxed));
        assert!(begins(REST + Duration::from_millis(1), &shown));
    }

    #[test]
    fn it_ends_when_a_vcpu_has_woken_the_loop() {
        let shown = AtomicBool::new(false);
        assert!(!begins(REST, &shown));
        shown.store(false, Relaxed);
        assert!(!begins(REST, &shown), "the vCPU's thread has just woken it");
        assert!(!begins(Duration::ZERO, &shown));
        assert!(!shown.load(Relaxed), "it was woken just now");
    }

    #[test]
    fn it_waits_for_the_clients_of_a_restored_guest_for_10_s_whatever_one_of_them_does() {
        let mut rest = RestDecision::new(1);
        let begin = rest.now();
        let end = begin + Duration::from_secs(10);
        let last = end - Duration::from_nanos(1);
        rest.restore([7].into_iter(), begin);
        assert!(rest.have_heads_stayed([7].into_iter()));
        for (stayed, is_kicked) in [(false, false), (true, true)] {
            assert!(!rest.is_guest_quiet(stayed, is_kicked, begin));
            assert!(
                !rest.is_guest_quiet(true, false, last),
                "it may have kicked before the snapshot"
            );
        }
        assert!(rest.is_guest_quiet(true, false, end), "an idle VM costs nothing");
    }
}
