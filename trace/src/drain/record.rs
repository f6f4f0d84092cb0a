//! Packs the records of a ring: checks each record, and copies the record once into the packet.
//!
//! A reader of the trace stops or aborts at an undeclared id, a length that does not fit, or a timestamp that
//! goes backwards. The packer writes no such id, length or timestamp. Even a producer that writes to the ring
//! while the packer reads cannot cause any of these faults.

use super::budget::Account;
use super::classes::{CACHE, Cached, ClassRef, Classes, Table};
use super::source::{Guests, OpenLease, Source, lease_name};
use super::stats::{Recorded, Stats};
use crate::ctf::{Clocks, Domain, PacketBuffer};
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::{Flags, HEADER_WORDS, Header, REFERENCE_PREFIX_WORDS, id};
use hypertrace_abi::ring::{FAULT_KINDS, Fault, Flow, Payload, Record};

/// Maximum number of words that a record takes in a packet in addition to its payload: three words of a
/// `time_fault` before the record, the record's header, and two words of `untyped`.
const MAX_EXTRA: usize = 3 + HEADER_WORDS + 2;

/// Parts that a [`Packer`] needs only outside of the hot path.
pub(crate) struct Context<'a> {
    pub domain: Domain,
    pub clock: u32,
    pub lease: OpenLease,
    /// True if the drain has not read the guests' schema logs before it drains this ring. In this case, a
    /// reference point with an unknown text waits for the next pass.
    pub points_wait: bool,
    /// The account that pays for this ring's new names.
    pub payer: Account,
    pub table: &'a mut Table,
    pub classes: &'a mut Classes,
    pub clocks: &'a mut Clocks,
    /// The guests' sources, for reference points in host rings.
    pub guests: Option<&'a mut Guests>,
    pub stats: &'a mut Vec<Stats>,
}

/// Packs records into one packet.
pub(crate) struct Packer<'a> {
    packet: &'a mut PacketBuffer,
    /// Raw ticks at tick 0 of the clock. All other times in this struct are in ticks of the clock.
    base: u64,
    limit: u64,
    cache: &'a mut [Cached; CACHE],
    context: Context<'a>,
    pub packed: Packed,
}

/// Result of packing records into a packet.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// The last written timestamp, in ticks of the clock.
    pub last: u64,
    /// True if the last written timestamp replaces an impossible timestamp.
    pub clamped: bool,
    /// Counts of all records that are not plain events.
    pub others: Recorded,
    /// Number of unwanted events, which the packet does not have.
    pub filtered: u64,
    /// Name of the holder, if there was a lease record.
    pub name: Option<String>,
}

impl<'a> Packer<'a> {
    /// Returns a packer that packs records into the empty `packet`. Timestamps begin at `last`.
    pub fn new(
        packet: &'a mut PacketBuffer,
        cache: &'a mut [Cached; CACHE],
        last: u64,
        now: u64,
        context: Context<'a>,
    ) -> Packer<'a> {
        let base = context.clocks.base(context.clock);
        let limit = context.clocks.limit(context.clock, context.lease.first, now);
        let packed = Packed { last, ..Packed::default() };
        Packer { packet, base, limit: limit.saturating_sub(base), cache, context, packed }
    }

    /// Takes a record, or stops because the packet is full.
    #[inline(always)]
    pub fn visit(&mut self, faults: &mut [u64; FAULT_KINDS], record: Record<'_>) -> Flow {
        let Header { timestamp, id, words, flags } = record.header;
        // For a time before tick 0, this subtraction wraps around, and the result is beyond the limit.
        let timestamp = timestamp.wrapping_sub(self.base);
        let known = &self.cache[id as usize % CACHE];
        if known.meta != Header::meta(id, words, flags)
            || timestamp < self.packed.last
            || timestamp > self.limit
        {
            return self.visit_other(faults, record);
        }
        let Some(out) = self.packet.next(HEADER_WORDS + record.payload.len()) else {
            return Flow::Stop;
        };
        out[0] = timestamp;
        out[1] = known.out;
        // A copy of constant length needs no loop.
        match record.payload.len() {
            1 => record.payload.copy_to(&mut out[HEADER_WORDS..]),
            2 => record.payload.copy_to(&mut out[HEADER_WORDS..]),
            3 => record.payload.copy_to(&mut out[HEADER_WORDS..]),
            _ => record.payload.copy_to(&mut out[HEADER_WORDS..]),
        }
        self.packed.last = timestamp;
        Flow::Taken
    }

    /// Takes a record that is too special for the hot path: the record is no plain event, has no known fixed
    /// length, or has a bad time.
    #[inline(never)]
    fn visit_other(&mut self, faults: &mut [u64; FAULT_KINDS], record: Record<'_>) -> Flow {
        let header = record.header;
        let len = record.payload.len();
        if self.packet.free().len() < len + MAX_EXTRA {
            return Flow::Stop;
        }
        let point = self.context.domain == Domain::Host
            && header.flags & Flags::REFERENCE_POINT.bits() != 0
            && len >= REFERENCE_PREFIX_WORDS;
        if point
            && self.context.points_wait
            && let Payload::Ring([client, ..]) = &record.payload
            && !self.context.knows_point(&header, client.load(Relaxed))
        {
            return Flow::Stop;
        }
        let timestamp = self.time(header.timestamp, faults);
        // The code builds the event in the packet's free words, and adds the words to the packet only when
        // the event is complete.
        let out = self.packet.free();
        let body = HEADER_WORDS;
        record.payload.copy_to(&mut out[body..body + len]);

        let own = body + if point { REFERENCE_PREFIX_WORDS } else { 0 };
        let payload = &out[own..body + len];
        let class = if point {
            self.context.point_class(&header, &out[body..own], payload)
        } else {
            let known = &mut self.cache[header.id as usize % CACHE];
            self.context.class(&header, payload, known).map_err(|fault| {
                faults[fault as usize] += 1;
                id::UNTYPED
            })
        };
        let (dense, words, pad) = match class {
            Ok(Checked { wanted: false, .. }) => {
                self.packed.filtered += 1;
                return Flow::Taken;
            }
            Ok(Checked { class, pad, .. }) => {
                if header.id == id::LEASE && !point {
                    self.packed.name = lease_name(&class, payload);
                }
                (class.dense, len, pad)
            }
            Err(dense) => {
                // An untyped record keeps its words. The record's id and length precede the words.
                let from = if dense == id::UNTYPED { body } else { own };
                out.copy_within(from..body + len, from + 2);
                out[from] = header.id.into();
                out[from + 1] = (body + len - from) as u64;
                (dense, len + 2, 0)
            }
        };
        out[0] = timestamp;
        out[1] = Header::meta(dense, words as u16, header.flags);
        self.packet.add(body + words, pad);
        self.count(&header, point);
        Flow::Taken
    }

    fn count(&mut self, header: &Header, point: bool) {
        let flags = Flags::from_bits_retain(header.flags);
        let others = &mut self.packed.others;
        if point {
            others.reference_points += 1;
        } else if header.id == id::LEASE {
            others.leases += 1;
        } else if flags.contains(Flags::REFERENCE_POINT) {
            others.reference_points += 1;
        }
    }

    /// Returns the timestamp that the packet will have. This timestamp is never earlier than the last
    /// timestamp and never later than now. If this timestamp differs from the record's own timestamp, a
    /// `time_fault` event keeps the record's own timestamp.
    fn time(&mut self, raw: u64, faults: &mut [u64; FAULT_KINDS]) -> u64 {
        let last = self.packed.last;
        let own = raw.checked_sub(self.base).filter(|own| *own >= last);
        if own > Some(self.limit) {
            // The clock is read again, because the record may be newer than the last reading.
            let Context { clocks, clock, lease, .. } = &self.context;
            let limit = clocks.limit(*clock, lease.first, ticks()).saturating_sub(self.base);
            self.limit = self.limit.max(limit);
        }
        if own.is_none() {
            faults[Fault::TimeBackwards as usize] += 1;
        } else if own > Some(self.limit) {
            faults[Fault::TimeFuture as usize] += 1;
        }
        let timestamp = own.map_or(last, |own| own.min(self.limit.max(last)));
        self.packed.clamped = own != Some(timestamp);
        if self.packed.clamped {
            let event = [timestamp, Header::meta(id::TIME_FAULT, 1, 0), raw];
            if let Some(out) = self.packet.next(event.len()) {
                out.copy_from_slice(&event);
                self.packed.others.time_faults += 1;
            }
        }
        self.packed.last = timestamp;
        timestamp
    }
}

/// The class of a record. The record fits this class.
struct Checked {
    class: ClassRef,
    /// Number of padding bytes after a last string.
    pad: usize,
    wanted: bool,
}

impl Context<'_> {
    /// Checks a record in its client's own ring, and returns its class.
    fn class(
        &mut self,
        header: &Header,
        payload: &[u64],
        known: &mut Cached,
    ) -> Result<Checked, Fault> {
        let (class, wanted) = match known.class.filter(|_| known.id == header.id) {
            Some(class) => (class, !known.filtered),
            None if header.id < id::FIRST => {
                (self.classes.reserved(header.id).ok_or(Fault::UnknownId)?, true)
            }
            None => {
                let class = self.table.plain(header.id).ok_or(Fault::UnknownId)?;
                let wanted = self.is_wanted(class);
                if wanted && !self.classes.declare(self.payer, self.clock, class.dense) {
                    return Err(Fault::SchemaTable);
                }
                *known = Cached::new(header.id, class, wanted);
                (class, wanted)
            }
        };
        let pad = class.shape.check(payload).ok_or(Fault::Payload)?;
        Ok(Checked { class, pad, wanted })
    }

    fn is_wanted(&self, class: ClassRef) -> bool {
        self.domain == Domain::Host || self.classes.is_wanted(class.dense)
    }

    /// Returns true if the schema of a point is known.
    fn knows_point(&mut self, header: &Header, client: u64) -> bool {
        let client = u32::try_from(client).unwrap_or(u32::MAX);
        let source = self.guests.as_mut().and_then(|guests| guests.source(client, self.stats));
        header.id < id::FIRST
            || source.is_some_and(|source| source.texts.table.plain(header.id).is_some())
    }

    /// Checks a guest's reference point in a host ring. Returns the class of the point. If the point has no
    /// class, returns the class of untyped points. The point and its fault are counted for the point's
    /// client, as soon as the packet is committed.
    fn point_class(
        &mut self,
        header: &Header,
        prefix: &[u64],
        payload: &[u64],
    ) -> Result<Checked, u32> {
        let &[client, _cpu, _seq, guest_time] = prefix else {
            return Err(id::UNTYPED);
        };
        let client = u32::try_from(client).unwrap_or(u32::MAX);
        let source = self.guests.as_mut().and_then(|guests| guests.source(client, self.stats));
        let Some(source) = source else {
            return Err(self.untyped_point());
        };
        source.pending.points += 1;
        if guest_time != 0 {
            learn_time(self.clocks, source, guest_time, header.timestamp);
        }
        let class = match header.id {
            id::HYPERTRACE => self.classes.reserved_reference(header.id).ok_or(Fault::UnknownId),
            // The table has no other reserved id.
            _ => source.texts.table.reference(source.texts.payer, self.classes, header.id),
        };
        let checked = class.and_then(|class| {
            let pad = class.shape.check(payload).ok_or(Fault::Payload)?;
            let wanted = self.classes.is_wanted(class.dense);
            let payer = source.texts.payer;
            if wanted && !self.classes.declare(payer, self.clock, class.dense) {
                return Err(Fault::SchemaTable);
            }
            Ok(Checked { class, pad, wanted })
        });
        match checked {
            Ok(checked) => {
                if !checked.wanted {
                    source.pending.points -= 1;
                    source.pending.filtered += 1;
                }
                Ok(checked)
            }
            Err(fault) => {
                source.pending.faults[fault as usize] += 1;
                Err(self.untyped_point())
            }
        }
    }

    fn untyped_point(&self) -> u32 {
        // The class of untyped points is always declared, because it was declared for the clock of host rings
        // before any guest came.
        self.classes.reserved_reference(id::UNTYPED).map_or(id::UNTYPED, |class| class.dense)
    }
}

/// Bounds the guest's clock with a reference point: the guest read its clock before the host read the host's
/// clock.
fn learn_time(clocks: &mut Clocks, source: &mut Source, guest_time: u64, host_time: u64) {
    let kind = (hypertrace_abi::record::ClockKind::Tsc, source.counter);
    let found = || clocks.for_guest(source.stats, None, kind, guest_time, host_time);
    let clock = source.clock.unwrap_or_else(found);
    source.clock = Some(clock);
    let host = clocks.host;
    if let Some(guest) = clocks.guest_mut(clock)
        && guest.fits(&host, guest_time, host_time)
    {
        guest.bound(&host, source.stats, (guest_time, host_time), true);
    }
}
