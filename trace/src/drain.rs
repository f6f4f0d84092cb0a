//! Draining one ring: schema log, records, commit, tail. In that order, so
//! that whatever stands on disk is declared, and nothing is given back to a
//! producer that does not stand on disk.

use crate::lane::{CACHE, Cached, Guests, Lane, MAX_RESTARTS, OpenLease};
use crate::packet::{Domain, PacketHeader};
use crate::shared::Shared;
use crate::stream::{Stream, WriteFailed};
use crate::take::{Context, Taken, Taker};
use crate::tsc;
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::{Consumer, Fault, Flow, Pulled};
use hypertrace_abi::sink::Drained;

/// Texts that one drain reads from a schema log: a hostile guest could write
/// faster than they are read.
const MOST_TEXTS: usize = 1024;
/// Tries to find a ring's lessee unchanged between two looks.
const MOST_TRIES: usize = 3;

/// Takes at most one packet out of a ring, commits it, and gives its room
/// back.
pub(crate) fn drain(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
) -> Result<Drained, WriteFailed> {
    let drained = match learn(shared, lane, consumer) {
        Ok(true) => pull(shared, lane, guests, consumer),
        Ok(false) => Ok(Drained::default()),
        Err(failed) => Err(failed),
    };
    if drained.is_err() {
        consumer.rollback();
        consumer.rollback_schemas();
    }
    drained
}

/// Reads the schema log. Its room is given back once the texts are on disk.
/// `false`: there are texts, and this lane has to wait with them, and so with
/// the records that need them.
fn learn(
    shared: &mut Shared,
    lane: &mut Lane,
    consumer: &mut Consumer<'_>,
) -> Result<bool, WriteFailed> {
    let mut read = 0;
    while read < MOST_TEXTS
        && let Some(logged) = consumer.next_schema()
    {
        if read == 0 && !lane.texts.may(tsc::now(), shared.clocks.host.frequency) {
            consumer.rollback_schemas();
            return Ok(false);
        }
        read += 1;
        if let Err(fault) = lane.learn(&mut shared.classes, &logged) {
            consumer.fault(fault);
        }
    }
    if read > 0 {
        if shared.classes.changed {
            lane.texts.spend();
        }
        shared.sync()?;
        // Nothing was pulled: this keeps the faults only.
        consumer.commit();
        consumer.commit_schemas();
    }
    Ok(true)
}

fn pull(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
) -> Result<Drained, WriteFailed> {
    let stage_words = consumer.stage_words();
    if shared.stage.len() < stage_words {
        shared.stage.resize(stage_words, 0);
    }
    for _ in 0..MOST_TRIES {
        let now = tsc::now();
        if let Some(lease) = lane.lease.filter(|l| l.epoch == shared.clocks.epoch())
            && let Some(clock) = lane.clock
        {
            let (pulled, taken) = pull_packet(shared, lane, guests, consumer, lease, clock, now);
            if pulled.records == 0 && pulled.token == lease.token {
                return nothing(shared, lane, consumer, &pulled, now);
            }
            if pulled.token == lease.token {
                return commit(shared, lane, guests, consumer, &pulled, taken, now);
            }
            // Another lessee's: what was taken was taken by the wrong rules.
            forget_pending(guests, lane);
            consumer.rollback();
        }
        let Some(next) = peek(shared, consumer) else {
            let nobody = Pulled::default();
            return nothing(shared, lane, consumer, &nobody, now);
        };
        consumer.rollback();
        open(shared, lane, &next, now)?;
    }
    // A producer that changes its lessee between any two looks.
    consumer.rollback();
    Ok(Drained::default())
}

#[inline]
fn pull_packet(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
    lease: OpenLease,
    clock: u32,
    now: u64,
) -> (Pulled, Taken) {
    shared.buffer.clear();
    let context = Context {
        domain: lane.domain,
        clock,
        lease,
        table: &mut lane.table,
        classes: &mut shared.classes,
        clocks: &mut shared.clocks,
        guests,
        stats: &mut shared.stats,
    };
    let mut taker =
        Taker::new(shared.buffer.free(), &mut lane.cache, lane.last, now, context);
    let pulled = consumer.pull(&mut shared.stage, |faults, record| taker.visit(faults, record));
    (pulled, taker.finish())
}

/// Nothing to take. Counters may have changed: they are told once a second,
/// as they are not worth a packet each.
fn nothing(
    shared: &mut Shared,
    lane: &mut Lane,
    consumer: &mut Consumer<'_>,
    pulled: &Pulled,
    now: u64,
) -> Result<Drained, WriteFailed> {
    note(shared, lane, consumer);
    consumer.commit();
    if now.saturating_sub(lane.committed_at) > shared.clocks.host.frequency {
        tell(shared, lane, now)?;
    }
    Ok(Drained { words: 0, more: pulled.more })
}

/// Brings the lane's counters up to date.
fn note(shared: &mut Shared, lane: &Lane, consumer: &mut Consumer<'_>) {
    let stats = &mut shared.stats[lane.stats];
    stats.lost = consumer.losses();
    stats.faults = consumer.faults();
}

/// Writes an empty packet if the last one says less than is known by now.
pub(crate) fn tell(shared: &mut Shared, lane: &mut Lane, now: u64) -> Result<(), WriteFailed> {
    if !lane.owes(&shared.stats[lane.stats]) {
        return Ok(());
    }
    let Some(stream) = &mut lane.stream else {
        return Ok(());
    };
    let stats = &shared.stats[lane.stats];
    let last = stream.last();
    let header = PacketHeader {
        events_discarded: stats.lost(),
        events_filtered: stats.filtered,
        faults: stats.faults(),
        ..last.following(lane.sequence, 0)
    };
    shared.buffer.clear();
    stream.append(&mut shared.buffer, &header, lane.sequence)?;
    lane.committed_at = now;
    Ok(())
}

fn commit(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
    pulled: &Pulled,
    taken: Taken,
    now: u64,
) -> Result<Drained, WriteFailed> {
    let committed = write(shared, lane, consumer, pulled, &taken);
    if let Err(failed) = committed {
        forget_pending(guests, lane);
        return Err(failed);
    }
    consumer.commit();
    lane.last = taken.last;
    lane.sequence = pulled.sequence.wrapping_add(pulled.records);
    lane.ring_end = pulled.end;
    lane.committed_at = now;

    let mut counts = taken.others;
    counts.events = pulled.records - (counts.reference_points + counts.stamps + counts.leases);
    let stats = &mut shared.stats[lane.stats];
    stats.counts.add(&counts);
    if let Some(name) = taken.name {
        stats.name = name;
    }
    if lane.domain == Domain::Host && counts.reference_points > 0 {
        for guest in guests.iter_mut() {
            let pending = std::mem::take(&mut guest.pending);
            let stats = &mut shared.stats[guest.stats];
            stats.reference_points += pending.points;
            for (total, more) in stats.point_faults.iter_mut().zip(pending.faults) {
                *total = total.saturating_add(more);
            }
            stats.clock = guest.clock.unwrap_or(0);
        }
    }
    if taken.clean {
        let host = shared.clocks.host;
        if let Some(clock) = lane.clock.and_then(|clock| shared.clocks.guest_mut(clock)) {
            // Taken by now, so written before.
            clock.bound(&host, taken.last, tsc::now());
        }
    }
    Ok(Drained { words: pulled.end.wrapping_sub(pulled.begin), more: pulled.more })
}

fn write(
    shared: &mut Shared,
    lane: &mut Lane,
    consumer: &mut Consumer<'_>,
    pulled: &Pulled,
    taken: &Taken,
) -> Result<(), WriteFailed> {
    note(shared, lane, consumer);
    if let Some(stream) = &lane.stream {
        let last = stream.last();
        let next = pulled.sequence.wrapping_add(pulled.records);
        let back = pulled.begin < last.ring_end
            || pulled.end < pulled.begin
            || pulled.sequence < last.sequence
            || next < pulled.sequence;
        if back && last.faults == shared.stats[lane.stats].faults() {
            // A guest can bring its counters to wrap, and behind something
            // unreadable a block may say any number. Readers take a step back
            // for damage unless a fault explains it.
            consumer.fault(Fault::Sequence);
            note(shared, lane, consumer);
        }
    }
    shared.sync()?;
    let clock = lane.clock.unwrap_or(0);
    let base = shared.clocks.base(clock);
    let begin = shared.buffer.free().first().copied().unwrap_or(0);
    shared.buffer.take(taken.words, taken.pad);
    let stats = &shared.stats[lane.stats];
    let header = PacketHeader {
        timestamp_begin: begin,
        timestamp_end: taken.last - base,
        events_discarded: stats.lost(),
        ring_begin: pulled.begin,
        ring_end: pulled.end,
        lease_token: pulled.token,
        events_filtered: stats.filtered,
        faults: stats.faults(),
        sequence: pulled.sequence,
        ..header(shared, lane, clock)
    };
    // `open` made a stream.
    let Some(stream) = lane.stream.as_mut().filter(|_| !shared.dry) else {
        return Ok(());
    };
    let next = pulled.sequence.wrapping_add(pulled.records);
    stream.append(&mut shared.buffer, &header, next)
}

fn header(shared: &Shared, lane: &Lane, clock: u32) -> PacketHeader {
    PacketHeader::new(shared.uuid, clock, lane.domain, lane.number, shared.clocks.epoch())
}

fn forget_pending(guests: &mut Guests, lane: &Lane) {
    if lane.domain == Domain::Host {
        for guest in guests.iter_mut() {
            guest.pending = Default::default();
        }
    }
}

/// The first record of another lessee.
struct Next {
    token: u64,
    timestamp: u64,
    kind: ClockKind,
}

/// Looks at the first record without taking it. It is looked at again when it
/// is taken; a guest that changes it in between has a clock that does not
/// fit, and is clamped.
fn peek(shared: &mut Shared, consumer: &mut Consumer<'_>) -> Option<Next> {
    shared.buffer.clear();
    let scratch = shared.buffer.free();
    let mut found = None;
    let pulled = consumer.pull(&mut shared.stage, |_, record| {
        let header = record.header;
        let len = record.payload.len();
        let mut kind = ClockKind::Tsc;
        if header.id == id::LEASE && (4..=scratch.len()).contains(&len) {
            record.payload.copy_to(scratch);
            if scratch[3] == ClockKind::MonotonicRaw as u64 {
                kind = ClockKind::MonotonicRaw;
            }
        }
        found = Some((header.timestamp, kind));
        Flow::Stop
    });
    found.map(|(timestamp, kind)| Next { token: pulled.token, timestamp, kind })
}

/// A lease begins: finds its clock, and a file of that clock's stream class.
fn open(shared: &mut Shared, lane: &mut Lane, next: &Next, now: u64) -> Result<(), WriteFailed> {
    let spent = lane.restarts >= MAX_RESTARTS;
    let clock = match (lane.domain, lane.clock) {
        (Domain::Host, _) => 0,
        (Domain::Guest, Some(clock)) if spent && lane.stream.is_some() => clock,
        (Domain::Guest, current) => {
            shared.clocks.for_guest(current, next.kind, next.timestamp, now)
        }
    };
    let base = shared.clocks.base(clock);
    let first = next.timestamp.clamp(base, shared.clocks.latest(clock, now).max(base));
    let another_class = lane.clock != Some(clock);
    let restart = lane.stream.is_some() && !spent && (another_class || first < lane.last);

    if lane.stream.is_none() || another_class {
        // Before the file is there, and all at once.
        for dense in lane.table.dense() {
            shared.classes.declare(clock, dense);
        }
        shared.sync()?;
    }
    let stats = &shared.stats[lane.stats];
    let baseline = PacketHeader {
        ring_begin: lane.ring_end,
        ring_end: lane.ring_end,
        lease_token: next.token,
        events_filtered: stats.filtered,
        faults: stats.faults(),
        sequence: lane.sequence,
        ..header(shared, lane, clock)
    };
    match &mut lane.stream {
        None => {
            let (dir, prefix) = (&shared.ctf, lane.prefix());
            lane.stream = Some(Stream::create(dir, &prefix, shared.segment_bytes, &baseline)?);
            lane.last = base;
        }
        Some(stream) if restart => {
            stream.next_segment(&baseline)?;
            lane.restarts += 1;
            lane.last = base;
        }
        Some(_) => {}
    }
    if another_class {
        *lane.cache = [Cached::default(); CACHE];
    }
    lane.clock = Some(clock);
    shared.stats[lane.stats].clock = clock;
    lane.lease = Some(OpenLease { token: next.token, epoch: shared.clocks.epoch(), first });
    Ok(())
}
