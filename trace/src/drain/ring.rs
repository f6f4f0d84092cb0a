//! Draining one ring: schema log, records, commit, tail. In that order, so
//! that whatever is on disk is declared, and nothing is given back to a
//! producer that is not on disk.

use super::holder::{Holder, OpenLease};
use super::record::{Context, Packed, Packer};
use super::state::TraceState;
use super::turn::Turn;
use super::waiting::{Log, Rest};
use crate::ctf::{Domain, WriteFailed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::id;
use hypertrace_abi::ring::{Flow, Logged, Pulled, is_back};
use hypertrace_abi::sink::Drained;

/// Tries to find a ring's holder unchanged between two looks.
const MOST_TRIES: usize = 3;

/// Texts of a guest's schema log that one call reads: as long as a small packet
/// takes. More are for the next call, with the client's records.
const MOST_TEXTS: usize = 64;

impl Turn<'_, '_> {
    /// Takes at most one packet out of a ring, commits it, and gives its room
    /// back.
    pub fn drain(&mut self) -> Result<Drained, WriteFailed> {
        self.source.waiting.rest = Rest::Empty;
        let end = self.source.next.position;
        let drained = match self.learn() {
            Ok(true) => self.pull(),
            // The log is not fully read: the records that need its texts are not taken yet.
            Ok(false) => {
                self.note();
                let more = !self.consumer.is_paused() || self.source.until.is_some();
                Ok(Drained { words: 0, more })
            }
            Err(failed) => Err(failed),
        };
        self.consumer.set_write_failed(drained.is_err());
        if drained.is_err() {
            self.consumer.rollback();
            // The records stay in the ring. The events that the producer dropped
            // meanwhile are counted all the same.
            self.note();
        }
        let mut drained = drained?;
        match self.source.until {
            None => drained.more |= self.consumer.is_late(),
            // A ring that goes back while a snapshot is taken would never be empty.
            Some(_) => drained.more &= !is_back(end, self.source.next.position),
        }
        match self.source.waiting.rest {
            // An immediate retry would find the same.
            Rest::Waits => drained.more = false,
            _ if drained.more => self.source.waiting.rest = Rest::Ready,
            _ => {}
        }
        Ok(drained)
    }

    /// Reads the schema log, or a part of it. Its room is given back once the texts
    /// are on disk. Returns `false` if there is more to read before the records that
    /// may need it.
    pub fn learn(&mut self) -> Result<bool, WriteFailed> {
        let (state, source) = (&mut *self.state, &mut *self.source);
        let consumer = &mut *self.consumer;
        let most = match source.domain {
            Domain::Guest => MOST_TEXTS,
            // The host's own. A relay's log is bounded by its size.
            Domain::Host => consumer.most_schemas(),
        };
        let mut read = 0;
        let mut is_read = false;
        // Bound: `most` turns.
        while read < most && !is_read {
            match consumer.next_schema_beside(|id| source.texts.table.text(&state.classes, id)) {
                Some(Logged::Known) => read += 1,
                Some(Logged::Text(text)) => {
                    read += 1;
                    if let Err(fault) = source.texts.learn(source.domain, &mut state.classes, &text)
                    {
                        consumer.fault(fault);
                    }
                }
                None => is_read = true,
            }
        }
        let is_paused = consumer.is_paused();
        if source.domain == Domain::Guest {
            let is_all = is_read && !is_paused && !consumer.is_late();
            let log = match is_all || !consumer.has_schemas() {
                true => Log::Read,
                false if is_read => Log::Growing,
                false => Log::InPart,
            };
            source.waiting.log(&mut state.pass, log);
        }
        // Also without a text, where what was not readable is skipped: the next holder needs its room.
        if consumer.has_taken_schemas() {
            state.sync()?;
            consumer.commit_schemas();
        }
        Ok(is_read && !is_paused)
    }

    /// Notes the holder of a flight recorder's ring, and takes nothing.
    pub fn meet(&mut self) {
        self.state.fit_stage(self.consumer);
        self.state.buffer.clear();
        let TraceState { buffer, stage, classes, .. } = &mut *self.state;
        let scratch = buffer.free();
        let source = &mut *self.source;
        // Bound: the leases that fit the ring.
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
        for _ in 0..MOST_TRIES {
            let now = ticks();
            let epoch = self.state.clocks.epoch();
            if let Some(lease) = self.source.lease.filter(|lease| lease.epoch == epoch)
                && let Some(clock) = self.source.clock
            {
                let (pulled, packed) = self.pull_packet(lease, clock, now);
                if pulled.token == lease.token {
                    let waits = packed.waits;
                    let drained = match pulled.records {
                        0 => self.commit_nothing(&pulled, now),
                        _ => self.commit(&pulled, packed, now),
                    }?;
                    if self.source.is_alone && pulled.records > 0 {
                        // The next record decides anew on the clock, but it says nothing of its kind.
                        let (state, source) = (&*self.state, &mut *self.source);
                        let clock = state.clocks.kind(clock);
                        let name = state.stats[source.stats].name.clone();
                        source.holder = Some(Holder { token: lease.token, clock, name });
                        (source.is_alone, source.lease) = (false, None);
                    }
                    if waits {
                        self.source.waiting.rest = Rest::Waits;
                    }
                    return Ok(drained);
                }
                // Another holder's: what was taken was taken by the wrong rules.
                self.forget_pending();
                self.consumer.rollback();
            }
            let Some(next) = self.peek() else {
                return self.commit_nothing(&Pulled::default(), now);
            };
            self.consumer.rollback();
            self.open(&next, now);
        }
        // A producer that changes its holder between any two looks.
        self.consumer.rollback();
        Ok(Drained::default())
    }

    #[inline]
    fn pull_packet(&mut self, lease: OpenLease, clock: u32, now: u64) -> (Pulled, Packed) {
        let (state, source) = (&mut *self.state, &mut *self.source);
        state.buffer.clear();
        let context = Context {
            domain: source.domain,
            clock,
            lease,
            table: &mut source.texts.table,
            points_wait: source.waiting.points_wait(&state.pass),
            payer: source.texts.payer,
            classes: &mut state.classes,
            clocks: &mut state.clocks,
            guests: self.guests,
            stats: &mut state.stats,
        };
        let first = source.next.timestamp;
        let mut packer =
            Packer::new(&mut state.buffer, &mut source.texts.cache, first, now, context);
        let pulled = match source.is_alone {
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
        let packed = packer.packed;
        source.waiting.looked(packed.waits, pulled.more);
        (pulled, packed)
    }
}
