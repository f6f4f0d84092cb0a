//! The calls of a drain loop as separate methods. Each call borrows the sink's drain side, and returns it
//! before the call ends.

use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::{Drained, EventSink, KnownClient, PassConfig, with_drain};
use std::time::Duration;

/// The methods of [`DrainSink`](hypertrace_abi::sink::DrainSink), for any sink.
pub trait Steps: EventSink {
    /// Begins a pass.
    fn begin_pass(&self) -> PassConfig {
        with_drain(self, |sink| sink.begin_pass())
    }

    /// Takes at most one packet out of the client's ring.
    fn drain(&self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        with_drain(self, |sink| sink.drain(client, consumer))
    }

    /// Ends the pass.
    fn end_pass(&self) {
        with_drain(self, |sink| sink.end_pass());
    }

    /// Announces the last passes.
    fn last_pass(&self) {
        with_drain(self, |sink| sink.last_pass());
    }

    /// Begins another generation of guests.
    fn begin_generation(&self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        with_drain(self, |sink| sink.begin_generation(epoch, known))
    }

    /// Calls `each` with the facts about each client.
    fn known_clients(&self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        with_drain(self, |sink| sink.known_clients(each));
    }

    /// Returns how long the sink can do without a pass if nothing wakes the drain loop.
    fn quiet_for(&self) -> Duration {
        with_drain(self, |sink| sink.quiet_for())
    }

    /// Returns whether the sink can do without passes until something wakes the drain loop.
    fn is_quiet(&self) -> bool {
        self.quiet_for() == Duration::MAX
    }
}

impl<S: EventSink> Steps for S {}
