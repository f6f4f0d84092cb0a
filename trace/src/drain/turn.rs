//! One ring's turn in a pass, and the counters that it brings up to date.

use super::guests::Guests;
use super::source::Source;
use super::state::TraceState;
use crate::ctf::{PacketHeader, WriteFailed};
use hypertrace_abi::ring::Consumer;

/// One ring's turn in a pass.
pub(crate) struct Turn<'t, 'c> {
    pub state: &'t mut TraceState,
    pub source: &'t mut Source,
    pub guests: &'t mut Guests,
    pub consumer: &'t mut Consumer<'c>,
}

impl Turn<'_, '_> {
    /// Brings the source's counters up to date.
    pub fn note(&mut self) {
        let stats = &mut self.state.stats[self.source.stats];
        stats.note(&self.consumer.losses(), &self.consumer.faults());
    }
}

/// Writes an empty packet if the counters have changed since the last one.
pub(crate) fn write_counters(
    state: &mut TraceState,
    source: &mut Source,
    now: u64,
) -> Result<(), WriteFailed> {
    let stats = &state.stats[source.stats];
    let (Some(stream), Some(files)) = (&mut source.file.stream, &mut state.trace.files) else {
        return Ok(());
    };
    // Its position in the ring stays: records that are not wanted are in no packet.
    let last = *stream.last();
    let header = PacketHeader {
        events_discarded: stats.lost(),
        events_filtered: stats.filtered,
        faults: stats.faults(),
        ..last.following(last.sequence, 0)
    };
    let counts = |header: &PacketHeader| (header.events_filtered, header.faults);
    if stream.discarded() == stats.lost() && counts(&last) == counts(&header) {
        return Ok(());
    }
    stream.append_counters(files, &mut state.buffer, &header, last.sequence)?;
    source.file.committed_at = now;
    Ok(())
}
