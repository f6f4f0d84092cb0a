// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop: its times, and a pass of it.

use crate::sink::{DrainSink, EventSink, Settings, with_drain};
use core::time::Duration;

/// Longest pause between two events of a client after which it need not wake a drain loop that
/// waits for a KICK.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Time without a record after which a drain loop may stop its timer and wait for a KICK. Longer
/// than [`PAUSE`]: a client that has not paused was seen by then.
pub const REST: Duration = Duration::from_millis(50);

/// Least time between the begin of a pass and that of the next one by a KICK: guests may kick as often as they like.
/// A ring of 1 MiB takes longer than this to be filled.
pub const KICK_SPACING: Duration = Duration::from_micros(200);

/// Period and budget of the passes of a drain loop.
#[derive(Clone, Copy, Debug)]
pub struct DrainPolicy {
    /// Time between passes without a KICK.
    pub period: Duration,
    /// Drain time of one client in one pass while others have something too.
    pub budget: Duration,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        // A ring of 1 MiB holds 32,768 short records: at a million a second
        // it is full after 32 ms.
        // 250 us are a few packets. A pass over 16 clients that all have more
        // than that takes 4 ms.
        DrainPolicy { period: Duration::from_millis(1), budget: Duration::from_micros(250) }
    }
}

/// Runs one pass of a drain loop: calls `drain` with the sink's drain side and its settings, between its
/// `begin_pass` and `end_pass`. Returns the result of `drain`.
pub fn pass<R>(
    sink: &(impl EventSink + ?Sized),
    drain: impl FnOnce(&mut dyn DrainSink, Settings) -> R,
) -> R {
    with_drain(sink, |sink| {
        let settings = sink.begin_pass();
        let drained = drain(sink, settings);
        sink.end_pass();
        drained
    })
}
