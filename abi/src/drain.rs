// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop: its periods and limits, and one pass.

use crate::sink::{DrainSink, EventSink, PassConfig, with_drain};
#[cfg(feature = "host")]
use alloc::boxed::Box;
use core::time::Duration;

/// If the pause between two events of a client is at most this long, the client need not store to KICK. After
/// a longer pause, the client stores to KICK to wake the drain loop.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Time without a record after which a drain loop may stop its timer and wait for a KICK. This time is longer
/// than [`PAUSE`], because a client that makes shorter pauses need not kick. The timer must still run for
/// such a client.
pub const REST: Duration = Duration::from_millis(50);

/// Minimum time between the beginnings of two passes if a KICK requests the second pass. Guests may kick as
/// often as they like. A guest needs longer to fill a ring of 1 MiB.
pub const KICK_SPACING: Duration = Duration::from_micros(200);

/// Period and budget of a drain loop's passes.
#[derive(Clone, Copy, Debug)]
pub struct DrainPolicy {
    /// Time between passes without a KICK.
    pub period: Duration,
    /// Time for which a pass drains one client while other clients also have something to take.
    pub budget: Duration,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        // A ring of 1 MiB holds 32,768 short records, so a million records per second fill the ring in 32 ms.
        // 250 us are a few packets. A pass over 16 clients that use up their budgets takes 4 ms.
        DrainPolicy { period: Duration::from_millis(1), budget: Duration::from_micros(250) }
    }
}

/// Longest time between two passes of a loop that nobody wakes. A reference point that waits for such a pass
/// is answered within 20 ms.
pub const LONGEST_POLL: Duration = Duration::from_millis(16);

/// Divisor of the idle time: a loop that nobody wakes waits for 1/16 of the time that it has been idle.
#[cfg(feature = "host")]
const POLLS: u32 = 16;

/// Measures for how long the rings of a drain loop have been idle.
#[cfg(feature = "host")]
#[derive(Debug)]
pub struct IdleDetector {
    /// Heads of the rings in the last pass.
    heads: Box<[u64]>,
    /// Time of the last pass that found something.
    since: Duration,
}

#[cfg(feature = "host")]
impl IdleDetector {
    /// Makes a detector for `rings` rings. `now` is a time of the caller's clock, which all calls must use.
    pub fn new(rings: usize, now: Duration) -> IdleDetector {
        IdleDetector { heads: (0..rings).map(|_| 0).collect(), since: now }
    }

    /// Notes the heads of the rings. Returns whether no head has moved since the last pass.
    pub fn have_heads_stayed(&mut self, heads: impl Iterator<Item = u64>) -> bool {
        let mut stayed = true;
        for (last, head) in self.heads.iter_mut().zip(heads) {
            stayed &= core::mem::replace(last, head) == head;
        }
        stayed
    }

    /// Notes the result of a pass at `now`. If `is_quiet` is true, the pass has found nothing. Returns for
    /// how long no pass has found anything.
    pub fn idle_for(&mut self, is_quiet: bool, now: Duration) -> Duration {
        if !is_quiet {
            self.since = now;
        }
        now.saturating_sub(self.since)
    }
}

/// Returns the time until the next pass of a loop that nobody wakes, after the loop's rings have been idle
/// for the time `idle`.
///
/// The result is at least `period`, and grows with `idle`, so that a short pause of a client does not slow
/// the loop. The result has two upper limits, unless `period` is longer: [`LONGEST_POLL`], and half of the
/// time in which a million short records per second fill a ring of `ring_bytes`.
#[cfg(feature = "host")]
pub fn poll_after(idle: Duration, period: Duration, ring_bytes: u64) -> Duration {
    let half_full = Duration::from_micros(ring_bytes / 2 / SHORT_RECORD);
    (idle / POLLS).min(half_full).min(LONGEST_POLL).max(period)
}

/// Size in bytes of a record with two payload words.
#[cfg(feature = "host")]
const SHORT_RECORD: u64 = 32;

/// Runs one pass of a drain loop. Calls `drain` with the drain side of the sink and the sink's settings,
/// between `begin_pass` and `end_pass`. Returns the result of `drain`.
pub fn pass<R>(
    sink: &(impl EventSink + ?Sized),
    drain: impl FnOnce(&mut dyn DrainSink, PassConfig) -> R,
) -> R {
    with_drain(sink, |sink| {
        let settings = sink.begin_pass();
        let drained = drain(sink, settings);
        sink.end_pass();
        drained
    })
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_head_that_goes_back_has_moved() {
        let mut idle = IdleDetector::new(2, Duration::ZERO);
        assert!(!idle.have_heads_stayed([3, 0].into_iter()));
        assert!(idle.have_heads_stayed([3, 0].into_iter()));
        assert!(!idle.have_heads_stayed([2, 1].into_iter()));
    }

    #[test]
    fn rings_are_idle_since_the_last_pass_that_found_something() {
        let mut idle = IdleDetector::new(1, 5 * MS);
        assert_eq!(idle.idle_for(true, 7 * MS), 2 * MS);
        assert_eq!(idle.idle_for(false, 9 * MS), Duration::ZERO);
        assert_eq!(idle.idle_for(true, 12 * MS), 3 * MS);
    }

    #[test]
    fn a_loop_that_nobody_wakes_polls_the_less_the_longer_its_rings_are_idle() {
        let polls = [0, 16, 32, 160, 256, 3_600_000].map(|idle| poll_after(idle * MS, MS, 1 << 20));
        assert_eq!(polls, [1, 1, 2, 10, 16, 16].map(|wait| wait * MS));
    }

    #[test]
    fn a_small_ring_is_polled_before_it_can_be_full() {
        let hour = Duration::from_secs(3600);
        let polls =
            [4 << 10, 64 << 10, 256 << 10, 1 << 30].map(|bytes| poll_after(hour, MS, bytes));
        assert_eq!(polls.map(|wait| wait.as_micros()), [1_000, 1_024, 4_096, 16_000]);
    }
}
