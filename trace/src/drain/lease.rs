//! Opening a lease: which clock and which file its records go to.

use super::holder::{OpenLease, clock_kind};
use super::turn::Turn;
use crate::ctf::{Domain, HOST_CLOCK};
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::Flow;
use hypertrace_format::limits::MAX_RESTARTS;

/// The first record of another holder.
pub(super) struct First {
    token: u64,
    timestamp: u64,
    /// If it is a lease record.
    kind: Option<ClockKind>,
}

impl Turn<'_, '_> {
    /// Looks at the first record; the caller rolls back. It is looked at again when it
    /// is taken; a guest that changes it in between has a clock that does not
    /// fit, and is clamped.
    pub(super) fn peek(&mut self) -> Option<First> {
        self.state.buffer.clear();
        let scratch = self.state.buffer.free();
        let mut found = None;
        let pulled = self.consumer.pull(&mut self.state.stage, |_, record| {
            let header = record.header;
            let len = record.payload.len();
            let mut kind = None;
            if header.id == id::LEASE && (4..=scratch.len()).contains(&len) {
                record.payload.copy_to(scratch);
                kind = Some(clock_kind(scratch[3]));
            }
            found = Some((header.timestamp, kind));
            Flow::Stop
        });
        found.map(|(timestamp, kind)| First { token: pulled.token, timestamp, kind })
    }

    /// Opens a lease: finds its clock. Its first
    /// packet begins a new file if the one that is open is of another stream class, or
    /// already further in time.
    pub(super) fn open(&mut self, next: &First, now: u64) {
        let (state, source) = (&mut *self.state, &mut *self.source);
        let file = source.file.stream.as_ref().map(|stream| {
            let last = stream.last();
            (last.stream_id, state.clocks.base(last.stream_id).saturating_add(last.timestamp_end))
        });
        if source.lease.is_some_and(|lease| lease.epoch != state.clocks.epoch()) {
            // That was the VMM's doing: what the guest has spent was the last epoch's.
            source.file.restarts = 0;
        }
        let spent = source.file.restarts >= MAX_RESTARTS;
        let mut kind = next.kind.unwrap_or(ClockKind::Tsc);
        if let (None, Some(holder)) = (next.kind, &source.holder)
            && holder.token == next.token
        {
            kind = holder.clock;
            state.stats[source.stats].name.clone_from(&holder.name);
        }
        let clock = match (source.domain, file) {
            (Domain::Host, _) => HOST_CLOCK,
            // Another generation may have another clock, as long as the session may have more.
            (Domain::Guest, Some((clock, _))) if spent && !source.file.begins_anew => clock,
            (Domain::Guest, None) if source.earlier == Some(next.token) => {
                source.clock.unwrap_or(HOST_CLOCK)
            }
            (Domain::Guest, _) => {
                let kind = (kind, source.counter);
                state.clocks.for_guest(source.stats, source.clock, kind, next.timestamp, now)
            }
        };
        let base = state.clocks.base(clock);
        let first = next.timestamp.clamp(base, state.clocks.latest(clock, now).max(base));
        (source.next.timestamp, source.file.is_next_new) = match file {
            Some((class, last)) if class == clock && (first >= last || spent) => (last, false),
            _ => (base, true),
        };
        if source.clock != Some(clock) || source.file.stream.is_none() {
            source.texts.forget();
            source.clock = Some(clock);
            state.stats[source.stats].clock = clock;
        }
        source.lease = Some(OpenLease { token: next.token, epoch: state.clocks.epoch(), first });
    }
}
