//! Committing a packet: the file first, then the ring's room and the accounts.

use super::record::Packed;
use super::source::Source;
use super::turn::{Turn, write_counters};
use crate::ctf::{Domain, Files, HOST_CLOCK, PacketHeader, Stream, WriteFailed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::{Fault, Pulled, is_back};
use hypertrace_abi::sink::Drained;

impl Turn<'_, '_> {
    /// Ends a look that found no records. Counters may have changed: they are
    /// written once a second, because a packet for each change would be too
    /// expensive.
    pub(super) fn commit_nothing(
        &mut self,
        pulled: &Pulled,
        now: u64,
    ) -> Result<Drained, WriteFailed> {
        self.note();
        self.consumer.commit();
        // Before a generation's first packet they would count as those of the last one.
        let file = &self.source.file;
        let is_due = now.saturating_sub(file.committed_at) > self.state.clocks.host.frequency;
        if is_due && !file.begins_anew {
            write_counters(self.state, self.source, now)?;
        }
        Ok(Drained { words: 0, more: pulled.more })
    }

    /// Writes the packet in the buffer, gives its records' room back, and counts them.
    pub(super) fn commit(
        &mut self,
        pulled: &Pulled,
        packed: Packed,
        now: u64,
    ) -> Result<Drained, WriteFailed> {
        if self.state.buffer.is_empty() {
            // Only records that were not wanted: a later packet says how many.
            self.note();
        } else {
            if let Err(failed) = self.write(pulled, &packed) {
                self.forget_pending();
                return Err(failed);
            }
            self.source.file.committed_at = now;
        }
        self.consumer.commit();
        let (state, source) = (&mut *self.state, &mut *self.source);
        if source.domain == Domain::Host
            && let Some(simple) = &mut state.simple.file
        {
            let base = state.clocks.base(HOST_CLOCK);
            let schema = |dense| state.classes.text(dense);
            simple.record_packet(source.number, state.buffer.events(), base, schema);
        }
        source.next.timestamp = packed.last;
        source.next.sequence = pulled.sequence.wrapping_add(pulled.records);
        source.next.position = pulled.end;

        let mut counts = packed.others;
        let others = counts.reference_points + counts.leases + packed.filtered;
        counts.events = pulled.records - others;
        let stats = &mut state.stats[source.stats];
        stats.counts.add(&counts);
        if source.domain == Domain::Guest {
            stats.filtered += packed.filtered;
        }
        if let Some(name) = packed.name {
            stats.name = name;
        }
        if source.domain == Domain::Host && counts.reference_points + packed.filtered > 0 {
            for guest in self.guests.iter_mut() {
                let pending = std::mem::take(&mut guest.pending);
                let stats = &mut state.stats[guest.stats];
                stats.reference_points += pending.points;
                stats.filtered += pending.filtered;
                for (total, more) in stats.point_faults.iter_mut().zip(pending.faults) {
                    *total = total.saturating_add(more);
                }
                stats.clock = guest.clock.unwrap_or(0);
            }
        }
        if !packed.clamped {
            let host = state.clocks.host;
            if let Some(clock) = source.clock.and_then(|clock| state.clocks.guest_mut(clock)) {
                // Taken by now, so written before.
                clock.bound(&host, source.stats, (packed.last, ticks()), false);
            }
        }
        Ok(Drained { words: pulled.end.wrapping_sub(pulled.begin), more: pulled.more })
    }

    fn write(&mut self, pulled: &Pulled, packed: &Packed) -> Result<(), WriteFailed> {
        self.note();
        let next = pulled.sequence.wrapping_add(pulled.records);
        if let Some(stream) = &self.source.file.stream {
            let last = stream.last();
            let back = is_back(last.ring_end, pulled.begin)
                || is_back(last.sequence, pulled.sequence)
                || pulled.begin < last.ring_end
                || pulled.end < pulled.begin
                || pulled.sequence < last.sequence
                || next < pulled.sequence;
            let is_of_this = !self.source.file.begins_anew;
            if back && is_of_this && last.faults == self.state.stats[self.source.stats].faults() {
                // A guest can bring its counters to wrap, and after something
                // unreadable a block may say any number. Readers take a step back
                // for damage unless a fault explains it.
                self.consumer.fault(Fault::Sequence);
                self.note();
            }
        }
        let (state, source) = (&mut *self.state, &mut *self.source);
        state.sync()?;
        let clock = source.clock.unwrap_or(HOST_CLOCK);
        let begin = state.buffer.events().first().copied().unwrap_or(0);
        let stats = &state.stats[source.stats];
        let (uuid, epoch) = (state.trace.uuid, state.clocks.epoch());
        let header = PacketHeader {
            timestamp_begin: begin,
            timestamp_end: packed.last - state.clocks.base(clock),
            events_discarded: stats.lost(),
            ring_begin: pulled.begin,
            ring_end: pulled.end,
            lease_token: pulled.token,
            events_filtered: stats.filtered,
            faults: stats.faults(),
            sequence: pulled.sequence,
            ..PacketHeader::new(uuid, clock, source.domain, source.number, epoch)
        };
        let Some(files) = &mut state.trace.files else {
            return Ok(());
        };
        let stream = stream(files, state.trace.file_bytes, source, &header)?;
        stream.append(files, &mut state.buffer, &header, next)?;
        source.file.begins_anew = false;
        Ok(())
    }

    /// Forgets the counts of points in a packet that is not committed.
    pub(super) fn forget_pending(&mut self) {
        if self.source.domain == Domain::Host {
            for guest in self.guests.iter_mut() {
                guest.pending = Default::default();
            }
        }
    }
}

/// Returns the source's stream, in a file that can take this packet.
fn stream<'l>(
    files: &mut Files,
    file_bytes: u64,
    source: &'l mut Source,
    packet: &PacketHeader,
) -> Result<&'l mut Stream, WriteFailed> {
    let prefix = source.prefix();
    let (file, next) = (&mut source.file, source.next);
    // Where the last packet ended, not the last record: those that are not wanted
    // are in no packet, and a ring can go back meanwhile.
    let (ring_end, sequence, faults) = match file.stream.as_ref().map(Stream::last) {
        Some(last) if file.begins_anew => (0, 0, last.faults),
        Some(last) => (last.ring_end, last.sequence, last.faults),
        None => (next.position, next.sequence, 0),
    };
    let baseline = PacketHeader {
        timestamp_begin: 0,
        timestamp_end: 0,
        events_discarded: 0,
        ring_begin: ring_end,
        ring_end,
        faults,
        sequence,
        ..*packet
    };
    match &mut file.stream {
        Some(stream) => {
            if file.is_next_new {
                stream.next_file(files, &baseline)?;
                // A reset is not the guest's doing.
                file.restarts += u32::from(!file.begins_anew);
                file.is_next_new = false;
            }
            Ok(stream)
        }
        empty @ None => {
            let made = Stream::create(files, &prefix, file_bytes, &baseline)?;
            file.is_next_new = false;
            Ok(empty.insert(made))
        }
    }
}
