// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The decision of a drain loop to wait for a KICK, without a timer.

use hypertrace_abi::drain::REST;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// State of the decision. The drain loop's thread owns it.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Heads of the clients' rings at the last pass.
    heads: Box<[u64]>,
    /// Time of the last pass that found something.
    since: Instant,
    /// When the guest was restored. Each of its clients may have kicked before the snapshot for a record
    /// after it.
    restored: Option<Instant>,
}

/// Time in which the clients of a restored guest are expected to continue.
const RESTORED: Duration = Duration::from_secs(10);

impl Rest {
    pub fn new(clients: usize) -> Rest {
        Rest { heads: vec![0; clients].into(), since: Instant::now(), restored: None }
    }

    /// Notes that the guest with these heads was restored at `now`. The loop does not rest for 10 s.
    pub fn restore(&mut self, heads: impl Iterator<Item = u64>, now: Instant) {
        self.have_heads_stayed(heads);
        self.restored = Some(now);
    }

    /// Returns whether the loop may rest with regard to the guest, after a pass at `now` that found its heads
    /// as they were (`stayed`) and that it caused or not (`is_kicked`).
    pub fn is_guest_quiet(&mut self, stayed: bool, is_kicked: bool, now: Instant) -> bool {
        let is_quiet = stayed && !is_kicked;
        let is_awaited = |restored: &Instant| now.saturating_duration_since(*restored) < RESTORED;
        self.restored = self.restored.filter(is_awaited);
        is_quiet && self.restored.is_none()
    }

    /// Notes the heads of the clients' rings. Returns whether none has moved since the last pass.
    pub fn have_heads_stayed(&mut self, heads: impl Iterator<Item = u64>) -> bool {
        let mut stayed = true;
        for (last, head) in self.heads.iter_mut().zip(heads) {
            stayed &= std::mem::replace(last, head) == head;
        }
        stayed
    }

    /// Returns whether the loop may wait without a timer, after a pass at `now` that found nothing
    /// (`is_quiet`). `rests` shows it to the vCPUs' threads, which clear it when they wake the loop.
    ///
    /// They see it a period before the last look, which so finds what they stored before.
    pub fn begins(&mut self, is_quiet: bool, rests: &AtomicBool, now: Instant) -> bool {
        if !is_quiet {
            self.since = now;
            rests.store(false, Relaxed);
            return false;
        }
        now.saturating_duration_since(self.since) >= REST && rests.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_a_period_after_the_vcpus_can_know() {
        let (mut rest, shown) = (Rest::new(1), AtomicBool::new(false));
        let begin = Instant::now();
        assert!(!rest.begins(false, &shown, begin));
        assert!(!rest.begins(true, &shown, begin + REST - Duration::from_nanos(1)));
        assert!(!shown.load(Relaxed), "records may come without a KICK");
        assert!(!rest.begins(true, &shown, begin + REST));
        assert!(shown.load(Relaxed));
        assert!(rest.begins(true, &shown, begin + REST + Duration::from_millis(1)));
    }

    #[test]
    fn it_ends_when_a_vcpu_has_woken_the_loop() {
        let (mut rest, shown) = (Rest::new(1), AtomicBool::new(false));
        let begin = Instant::now();
        assert!(!rest.begins(false, &shown, begin));
        assert!(!rest.begins(true, &shown, begin + REST));
        shown.store(false, Relaxed);
        assert!(!rest.begins(true, &shown, begin + REST), "the vCPU's thread has just woken it");
        assert!(!rest.begins(false, &shown, begin + REST));
        assert!(!rest.begins(true, &shown, begin + REST), "it was woken just now");
    }

    #[test]
    fn it_waits_for_the_clients_of_a_restored_guest_for_10_s_whatever_one_of_them_does() {
        let mut rest = Rest::new(1);
        let begin = Instant::now();
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

    #[test]
    fn a_head_that_goes_back_has_moved() {
        let mut rest = Rest::new(2);
        assert!(!rest.have_heads_stayed([3, 0].into_iter()));
        assert!(rest.have_heads_stayed([3, 0].into_iter()));
        assert!(!rest.have_heads_stayed([2, 1].into_iter()));
    }
}
