//! One ring's turn in a pass: reads the ring's schema log and the ring's records, writes the packet to disk,
//! and gives the ring's room back. Because of this order, all events on disk are declared, and a producer
//! gets room back only for records that are on disk.
//!
//! A record passes through these functions: [`Turn::drain`], `pull`, `pull_packet`, the functions of
//! [`record`](super::record), `commit`, `write`, and [`Stream::append`].

use super::budget::Account;
use super::record::{Context, Packed, Packer};
use super::source::{Guests, Holder, OpenLease, Source, clock_kind};
use super::state::TraceState;
use crate::ctf::{Domain, Files, HOST_CLOCK, PacketHeader, Stream, WriteFailed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::{Consumer, Fault, Flow, Logged, Pulled, is_back};
use hypertrace_abi::sink::Drained;
use hypertrace_format::limits::MAX_RESTARTS;

/// Maximum number of tries. A try fails if the ring's holder changes between two looks.
const MAX_TRIES: usize = 3;

/// One ring's turn in a pass.
pub(crate) struct Turn<'t, 'c> {
    pub state: &'t mut TraceState,
    pub source: &'t mut Source,
    /// The guests' sources, if the ring has guests' reference points.
    pub guests: Option<&'t mut Guests>,
    pub consumer: &'t mut Consumer<'c>,
}

/// The first record of another holder.
struct First {
    token: u64,
    timestamp: u64,
    /// Kind of clock that the record names, if the record is a lease record.
    kind: Option<ClockKind>,
}

impl Turn<'_, '_> {
    /// Takes records for at most one packet out of a ring, commits the packet, and gives the room of the
    /// records back.
    pub fn drain(&mut self) -> Result<Drained, WriteFailed> {
        let end = self.source.next.position;
        let drained = match self.learn() {
            Ok(true) if !self.consumer.is_paused() => self.pull(),
            // The records stay in the ring, because they need texts that were not read yet, or because the
            // client has used up its time.
            Ok(is_read) => {
                self.note();
                Ok(Drained { words: 0, more: !is_read || self.source.until.is_some() })
            }
            Err(failed) => Err(failed),
        };
        self.consumer.set_write_failed(drained.is_err());
        if drained.is_err() {
            self.consumer.rollback();
            // The records stay in the ring, but the events that the producer dropped meanwhile must still be
            // counted.
            self.note();
        }
        self.source.has_rest = false;
        let mut drained = drained?;
        if self.source.until.is_some() {
            // If the ring's position has gone back during a snapshot, the snapshot must not wait for the
            // ring's rest, because the ring might never be empty.
            drained.more &= !is_back(end, self.source.next.position);
        }
        self.source.has_rest = drained.more;
        Ok(drained)
    }

    /// Reads the schema log to its end, or to the limit of this pass. When the texts are on disk, the client
    /// gets the log's room back. Returns `false` if the log still has texts that the records may need.
    pub fn learn(&mut self) -> Result<bool, WriteFailed> {
        let (state, source) = (&mut *self.state, &mut *self.source);
        let consumer = &mut *self.consumer;
        // The drain may read the client's own part, and the words that are left for all clients together.
        let (part, known) = state.log_part;
        // Each call reads at least one text, because some callers repeat the call until no text is left.
        let own = if source.stats < known { part.max(1) } else { 1 };
        let most = match source.texts.payer {
            // Guests cannot delay the host's own texts.
            Account::Host => u64::MAX,
            _ => own.saturating_add(state.log_words),
        };
        let before = consumer.taken_schema_words();
        let mut is_read = false;
        // This loop is bounded, because it ends at the log's end that the consumer has found.
        while !is_read && consumer.taken_schema_words() - before < most {
            match consumer.next_schema_beside(|id| source.texts.table.text(&state.classes, id)) {
                Some(Logged::Known) => {}
                Some(Logged::Text(text)) => {
                    if let Err(fault) = source.texts.learn(source.domain, &mut state.classes, &text)
                    {
                        consumer.fault(fault);
                    }
                }
                None => is_read = true,
            }
        }
        let taken = consumer.taken_schema_words();
        // The log is committed even if the log had no readable text, because the next holder needs the room
        // of the skipped text.
        if taken > 0 {
            state.log_words = state.log_words.saturating_sub((taken - before).saturating_sub(own));
            state.sync()?;
            consumer.commit_schemas();
        }
        Ok(is_read)
    }

    /// Notes the holder of a flight recorder's ring. The call takes no record out of the ring.
    pub fn note_holders(&mut self) {
        self.state.fit_stage(self.consumer);
        self.state.buffer.clear();
        let TraceState { buffer, stage, classes, .. } = &mut *self.state;
        let scratch = buffer.free();
        let source = &mut *self.source;
        // The number of leases that fit into the ring bounds this loop.
        for _ in 0..self.consumer.most_leases() {
            let pulled = self.consumer.pull(stage, |_, record| {
                let len = record.payload.len();
                if record.header.id == id::LEASE && len <= scratch.len() {
                    record.payload.copy_to(scratch);
                    source.holder =
                        Holder::parse(classes, &scratch[..len]).or(source.holder.take());
                }
                Flow::Taken
            });
            if !pulled.more {
                break;
            }
        }
        self.consumer.commit();
    }

    fn pull(&mut self) -> Result<Drained, WriteFailed> {
        self.state.fit_stage(self.consumer);
        for _ in 0..MAX_TRIES {
            let now = ticks();
            let epoch = self.state.clocks.epoch();
            if let Some(lease) = self.source.lease.filter(|lease| lease.epoch == epoch)
                && let Some(clock) = self.source.clock
            {
                let (pulled, packed) = self.pull_packet(lease, clock, now);
                if pulled.token == lease.token {
                    let drained = match pulled.records {
                        0 => self.commit_nothing(&pulled, now),
                        _ => self.commit(&pulled, packed, now),
                    }?;
                    if self.source.is_first_after_restore && pulled.records > 0 {
                        // The next record determines the clock anew. This record does not tell the clock's
                        // kind, so the holder keeps the kind.
                        let (state, source) = (&*self.state, &mut *self.source);
                        let clock = state.clocks.kind(clock);
                        let name = state.stats[source.stats].name.clone();
                        source.holder = Some(Holder { token: lease.token, clock, name });
                        (source.is_first_after_restore, source.lease) = (false, None);
                    }
                    return Ok(drained);
                }
                // The ring has a new holder by now, so the records were read by the rules of the wrong
                // holder.
                self.forget_pending();
                self.consumer.rollback();
            }
            let Some(next) = self.peek() else {
                return self.commit_nothing(&Pulled::default(), now);
            };
            self.consumer.rollback();
            self.open_lease(&next, now);
        }
        // The holder of the ring has changed during each try, so the records stay in the ring.
        self.consumer.rollback();
        Ok(Drained::default())
    }

    // This function is not inlined, so that the loop over the records can use all registers.
    #[inline(never)]
    fn pull_packet(&mut self, lease: OpenLease, clock: u32, now: u64) -> (Pulled, Packed) {
        let (state, source) = (&mut *self.state, &mut *self.source);
        state.buffer.clear();
        let context = Context {
            domain: source.domain,
            clock,
            lease,
            table: &mut source.texts.table,
            points_wait: state.is_partial,
            payer: source.texts.payer,
            classes: &mut state.classes,
            clocks: &mut state.clocks,
            guests: self.guests.as_deref_mut(),
            stats: &mut state.stats,
        };
        let first = source.next.timestamp;
        let mut packer =
            Packer::new(&mut state.buffer, &mut source.texts.cache, first, now, context);
        let pulled = match source.is_first_after_restore {
            false => {
                self.consumer.pull(&mut state.stage, |faults, record| packer.visit(faults, record))
            }
            true => {
                let mut is_first = true;
                self.consumer.pull(&mut state.stage, |faults, record| {
                    match std::mem::take(&mut is_first) {
                        true => packer.visit(faults, record),
                        false => Flow::Stop,
                    }
                })
            }
        };
        (pulled, packer.packed)
    }

    /// Looks at the first record. The caller must call `rollback` of the consumer. The packer checks the
    /// record again when it takes the record. If the guest has changed the record's time in between and the
    /// time does not fit the clock, the packer clamps the time.
    fn peek(&mut self) -> Option<First> {
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

    /// Opens a lease: finds its clock. The lease's first packet begins a new file if the open file has
    /// another stream class or a later timestamp.
    fn open_lease(&mut self, next: &First, now: u64) {
        let (state, source) = (&mut *self.state, &mut *self.source);
        let last = source.file.stream.as_ref().map(Stream::last);
        let file = last.map(|last| (last.stream_id, last.timestamp_end));
        if source.lease.is_some_and(|lease| lease.epoch != state.clocks.epoch()) {
            // The VMM began this epoch, and not the guest. So the files that the guest began in earlier
            // epochs do not count for this epoch.
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
            // A new generation may begin another clock, as long as the session may have more clocks.
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
            Some((of, last)) if of == clock && (first - base >= last || spent) => (last, false),
            _ => (0, true),
        };
        if source.clock != Some(clock) || source.file.stream.is_none() {
            source.texts.forget();
            source.clock = Some(clock);
            state.stats[source.stats].clock = clock;
        }
        source.lease = Some(OpenLease { token: next.token, epoch: state.clocks.epoch(), first });
    }

    /// Ends a turn that took no records out of the ring. Changed counters are written once a second, because
    /// a packet for each change would be too expensive.
    fn commit_nothing(&mut self, pulled: &Pulled, now: u64) -> Result<Drained, WriteFailed> {
        self.note();
        self.consumer.commit();
        // Before the first packet of a generation, no counters are written. Readers would take these counters
        // for counters of the previous generation.
        let file = &self.source.file;
        let is_due = now.saturating_sub(file.committed_at) > self.state.clocks.host.frequency;
        if is_due && !file.begins_anew {
            write_counters(self.state, self.source, now)?;
        }
        Ok(Drained { words: 0, more: pulled.more })
    }

    /// Writes the packet in the buffer, gives the room of the packet's records back, and counts the records.
    fn commit(
        &mut self,
        pulled: &Pulled,
        packed: Packed,
        now: u64,
    ) -> Result<Drained, WriteFailed> {
        if self.state.buffer.is_empty() {
            // No record was wanted. The header of a later packet counts the unwanted records.
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
        source.next.timestamp = packed.last;
        source.next.sequence = pulled.sequence.wrapping_add(pulled.records);
        source.next.position = pulled.end;

        let mut counts = packed.others;
        let others = counts.reference_points + counts.leases + packed.filtered;
        counts.events = pulled.records - others;
        let stats = &mut state.stats[source.stats];
        stats.counts.add(&counts);
        if source.domain == Domain::Guest {
            stats.ledger.filtered += packed.filtered;
        }
        if let Some(name) = packed.name {
            stats.name = name;
        }
        if counts.reference_points + packed.filtered > 0 {
            for guest in self.guests.iter_mut().flat_map(|guests| guests.iter_mut()) {
                let pending = std::mem::take(&mut guest.pending);
                let stats = &mut state.stats[guest.stats];
                stats.reference_points += pending.points;
                stats.ledger.filtered += pending.filtered;
                for (total, more) in stats.point_faults.iter_mut().zip(pending.faults) {
                    *total = total.saturating_add(more);
                }
                stats.clock = guest.clock.unwrap_or(0);
            }
        }
        if !packed.clamped {
            let host = state.clocks.host;
            if let Some(clock) = source.clock.and_then(|clock| state.clocks.guest_mut(clock)) {
                // The guest wrote all records of the packet before this instant, so the pair of the last
                // timestamp and the present host time bounds the clock.
                let last = clock.base + packed.last;
                clock.bound(&host, source.stats, (last, ticks()), false);
            }
        }
        Ok(Drained { words: pulled.end.wrapping_sub(pulled.begin), more: pulled.more })
    }

    fn write(&mut self, pulled: &Pulled, packed: &Packed) -> Result<(), WriteFailed> {
        self.note();
        let next = pulled.sequence.wrapping_add(pulled.records);
        let (ring_end, sequence, faults) = self.source.end();
        let back = is_back(ring_end, pulled.begin)
            || is_back(sequence, pulled.sequence)
            || pulled.begin < ring_end
            || pulled.end < pulled.begin
            || pulled.sequence < sequence
            || next < pulled.sequence;
        let is_of_this = !self.source.file.begins_anew;
        if back && is_of_this && faults == self.state.stats[self.source.stats].faults() {
            // A guest can make its counters wrap, and the block after unreadable data may hold any sequence
            // number. Readers take a lower number as damage of the file, unless a fault explains the number.
            self.consumer.fault(Fault::Sequence);
            self.note();
        }
        let (state, source) = (&mut *self.state, &mut *self.source);
        state.sync()?;
        let clock = source.clock.unwrap_or(HOST_CLOCK);
        let begin = state.buffer.events().first().copied().unwrap_or(0);
        let stats = &state.stats[source.stats];
        let (uuid, epoch) = (state.trace.uuid, state.clocks.epoch());
        let header = PacketHeader {
            timestamp_begin: begin,
            timestamp_end: packed.last,
            events_discarded: stats.ledger.lost(),
            ring_begin: pulled.begin,
            ring_end: pulled.end,
            lease_token: pulled.token,
            events_filtered: stats.ledger.filtered,
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

    /// Drops the counts of points in a packet that is not committed.
    fn forget_pending(&mut self) {
        for guest in self.guests.iter_mut().flat_map(|guests| guests.iter_mut()) {
            guest.pending = Default::default();
        }
    }

    /// Updates the source's counts from the ring.
    pub fn note(&mut self) {
        let stats = &mut self.state.stats[self.source.stats];
        stats.note(&self.consumer.losses(), &self.consumer.faults());
    }
}

/// Returns the source's stream. If this packet needs a new file, begins the file first.
fn stream<'l>(
    files: &mut Files,
    file_bytes: u64,
    source: &'l mut Source,
    packet: &PacketHeader,
) -> Result<&'l mut Stream, WriteFailed> {
    let prefix = source.prefix();
    let (ring_end, sequence, faults) = source.end();
    let file = &mut source.file;
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
                // If the ring began anew, the VMM caused the new file. So the file does not count for the
                // guest.
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

/// Writes an empty packet if the counters have changed since the last packet.
pub(crate) fn write_counters(
    state: &mut TraceState,
    source: &mut Source,
    now: u64,
) -> Result<(), WriteFailed> {
    let stats = &state.stats[source.stats];
    let (Some(stream), Some(files)) = (&mut source.file.stream, &mut state.trace.files) else {
        return Ok(());
    };
    // The header keeps the last packet's position in the ring, because unwanted records are in no packet.
    let last = *stream.last();
    let header = PacketHeader {
        events_discarded: stats.ledger.lost(),
        events_filtered: stats.ledger.filtered,
        faults: stats.faults(),
        ..last.following(last.sequence, 0)
    };
    let counts = |header: &PacketHeader| (header.events_filtered, header.faults);
    if stream.lost() == header.events_discarded && counts(&last) == counts(&header) {
        return Ok(());
    }
    stream.append_counters(files, &mut state.buffer, &header, last.sequence)?;
    source.file.committed_at = now;
    Ok(())
}
