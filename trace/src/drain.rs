//! Draining one ring: schema log, records, commit, tail. In that order, so
//! that whatever stands on disk is declared, and nothing is given back to a
//! producer that does not stand on disk.

use crate::classes::Classes;
use crate::lane::{CACHE, Guests, HOST_CLOCK, Lane, Lessee, MAX_RESTARTS, OpenLease};
use crate::packet::{Domain, PacketHeader};
use crate::shared::Shared;
use crate::stream::{Files, Stream, WriteFailed};
use crate::take::{Context, Taken, Taker, lease_name};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::{Consumer, Fault, Flow, Logged, Pulled, is_back};
use hypertrace_abi::sink::Drained;

/// Tries to find a ring's lessee unchanged between two looks.
const MOST_TRIES: usize = 3;

/// Texts of a guest's schema log that one call reads: as long as a small packet
/// takes. More are for the next call, with the client's records.
const MOST_TEXTS: usize = 64;

/// Passes in which a client's points wait for texts of its log that there was no
/// time to read. A client that keeps its log full for longer has its points
/// recorded untyped: other clients' points are in the same host ring. A host ring
/// does not wait more often than this either, however many clients' logs are full
/// in turns, until all of it has been taken.
const MOST_WAITS: u32 = 16;

/// Takes at most one packet out of a ring, commits it, and gives its room
/// back.
pub(crate) fn drain(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
) -> Result<Drained, WriteFailed> {
    lane.is_deferred = false;
    let end = lane.ring_end;
    let drained = match learn(shared, lane, consumer) {
        Ok(true) => pull(shared, lane, guests, consumer),
        // What the log says is for records that are not taken before it is read.
        Ok(false) => {
            note(shared, lane, consumer);
            Ok(Drained { words: 0, more: !consumer.is_paused() || lane.until.is_some() })
        }
        Err(failed) => Err(failed),
    };
    consumer.set_write_failed(drained.is_err());
    if drained.is_err() {
        consumer.rollback();
        // The records stay in the ring. What the producer dropped meanwhile is
        // known all the same.
        note(shared, lane, consumer);
    }
    let mut drained = drained?;
    match lane.until {
        None => drained.more |= consumer.is_late(),
        // A ring that goes back while a snapshot is taken would never be empty.
        Some(_) => drained.more &= !is_back(end, lane.ring_end),
    }
    // To come again at once would be in vain.
    drained.more &= !lane.is_deferred;
    Ok(drained)
}

/// Reads the schema log, or a part of it. Its room is given back once the texts
/// are on disk. Returns `false` if there is more to read before the records that
/// may need it.
pub(crate) fn learn(
    shared: &mut Shared,
    lane: &mut Lane,
    consumer: &mut Consumer<'_>,
) -> Result<bool, WriteFailed> {
    let most = match lane.domain {
        Domain::Guest => MOST_TEXTS,
        // The host's own. A relay's log is bounded by its size.
        Domain::Host => consumer.most_schemas(),
    };
    let mut read = 0;
    let mut is_read = false;
    // Bound: `most` turns.
    while read < most && !is_read {
        match consumer.next_schema_beside(|id| lane.table.text(&shared.classes, id)) {
            Some(Logged::Known) => read += 1,
            Some(Logged::Text(text)) => {
                read += 1;
                if let Err(fault) = lane.learn(&mut shared.classes, &text) {
                    consumer.fault(fault);
                }
            }
            None => is_read = true,
        }
    }
    let was_behind = is_behind(lane);
    let is_paused = consumer.is_paused();
    lane.behind = if !consumer.has_schemas() || is_read && !is_paused && !consumer.is_late() {
        0
    } else if is_read {
        // It was given no time, or went on writing while it was read.
        lane.behind.saturating_add(1)
    } else {
        lane.behind.max(1)
    };
    shared.behind = shared.behind + u32::from(is_behind(lane)) - u32::from(was_behind);
    if read > 0 {
        lane.learned = Some(shared.classes.version());
    }
    if let Some(version) = lane.learned {
        let is_described = !shared.open || shared.classes.is_described(version);
        if !is_described && shared.may_describe(ticks()) {
            shared.sync()?;
        }
        if !shared.open || shared.classes.is_described(version) {
            lane.learned = None;
            consumer.commit_schemas();
        }
    }
    Ok(is_read && !is_paused)
}

/// Whether the lane's points wait for texts that were not read.
fn is_behind(lane: &Lane) -> bool {
    lane.domain == Domain::Guest && (1..=MOST_WAITS).contains(&lane.behind)
}

/// Of a flight recorder's ring: notes who has it, and takes nothing.
pub(crate) fn meet(shared: &mut Shared, lane: &mut Lane, consumer: &mut Consumer<'_>) {
    shared.fit_stage(consumer);
    shared.buffer.clear();
    let Shared { buffer, stage, classes, .. } = shared;
    let scratch = buffer.free();
    for _ in 0..consumer.most_leases() {
        let pulled = consumer.pull(stage, |_, record| {
            let len = record.payload.len();
            if record.header.id == id::LEASE && len <= scratch.len() {
                record.payload.copy_to(scratch);
                lane.lessee = lessee(classes, &scratch[..len]).or(lane.lessee.take());
            }
            Flow::Taken
        });
        if !pulled.more {
            break;
        }
    }
    consumer.commit();
}

fn pull(
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
) -> Result<Drained, WriteFailed> {
    shared.fit_stage(consumer);
    for _ in 0..MOST_TRIES {
        let now = ticks();
        if let Some(lease) = lane.lease.filter(|l| l.epoch == shared.clocks.epoch())
            && let Some(clock) = lane.clock
        {
            let (pulled, taken) = pull_packet(shared, lane, guests, consumer, lease, clock, now);
            if pulled.token == lease.token {
                let is_undescribed = taken.is_undescribed;
                let is_deferred = is_undescribed || taken.waits;
                let drained = match pulled.records {
                    0 => nothing(shared, lane, consumer, &pulled, now),
                    _ => commit(shared, lane, guests, consumer, &pulled, taken, now),
                }?;
                lane.is_deferred = is_deferred;
                if is_undescribed {
                    announce(shared, lane, consumer, clock, pulled.end);
                }
                return Ok(drained);
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
        if !open(shared, lane, &next, now)? {
            // Its clock would be a new one.
            lane.is_deferred = true;
            return Ok(Drained::default());
        }
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
    let may_describe = shared.may_describe(now);
    let context = Context {
        domain: lane.domain,
        clock,
        lease,
        table: &mut lane.table,
        partial: shared.partial
            || !shared.last_pass && shared.behind > 0 && lane.waits < MOST_WAITS,
        payer: lane.payer,
        open: shared.open,
        may_describe,
        classes: &mut shared.classes,
        clocks: &mut shared.clocks,
        guests,
        stats: &mut shared.stats,
    };
    let mut taker = Taker::new(&mut shared.buffer, &mut lane.cache, lane.last, now, context);
    let pulled = consumer.pull(&mut shared.stage, |faults, record| taker.visit(faults, record));
    let taken = taker.finish();
    lane.waits = match (taken.waits, pulled.more) {
        (true, _) => lane.waits.saturating_add(1),
        (false, true) => lane.waits,
        (false, false) => 0,
    };
    (pulled, taken)
}

/// Declares the classes of the records that wait for the files to be replaced,
/// so that the next replacement has all of them, whoever it is for: a client that
/// brings many new names waits once, not once for each of them.
fn announce(
    shared: &mut Shared,
    lane: &mut Lane,
    consumer: &mut Consumer<'_>,
    clock: u32,
    position: u64,
) {
    let seen = Some((position, consumer.head()));
    if std::mem::replace(&mut lane.announced, seen) == seen {
        return;
    }
    let Shared { stage, classes, .. } = shared;
    consumer.pull(stage, |_, record| {
        let id = record.header.id;
        // What is in the cache is on disk.
        if id >= id::FIRST
            && lane.cache[id as usize % CACHE].id != id
            && let Some(class) = lane.table.plain(id)
            && classes.is_wanted(class.dense)
        {
            classes.declare(lane.payer, clock, class.dense);
        }
        Flow::Taken
    });
    consumer.rollback();
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
pub(crate) fn note(shared: &mut Shared, lane: &Lane, consumer: &mut Consumer<'_>) {
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
    // Its position in the ring stays: records that nobody wanted are in no packet.
    let last = *stream.last();
    let header = PacketHeader {
        events_discarded: stats.lost(),
        events_filtered: stats.filtered,
        faults: stats.faults(),
        ..last.following(last.sequence, 0)
    };
    let Some(files) = &mut shared.files else {
        return Ok(());
    };
    stream.tell(files, &mut shared.buffer, &header, last.sequence)?;
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
    if shared.buffer.is_empty() {
        // Nothing but what was not wanted: a later packet tells how much.
        note(shared, lane, consumer);
    } else {
        let committed = write(shared, lane, consumer, pulled, &taken);
        if let Err(failed) = committed {
            forget_pending(guests, lane);
            return Err(failed);
        }
        lane.committed_at = now;
    }
    consumer.commit();
    if lane.domain == Domain::Host
        && let Some(simple) = &mut shared.simple
    {
        let base = shared.clocks.base(HOST_CLOCK);
        let schema = |dense| shared.classes.text(dense);
        simple.take(lane.number, shared.buffer.events(), base, schema);
    }
    lane.last = taken.last;
    lane.sequence = pulled.sequence.wrapping_add(pulled.records);
    lane.ring_end = pulled.end;

    let mut counts = taken.others;
    let others = counts.reference_points + counts.stamps + counts.leases + taken.filtered;
    counts.events = pulled.records - others;
    let stats = &mut shared.stats[lane.stats];
    stats.counts.add(&counts);
    if lane.domain == Domain::Guest {
        stats.filtered += taken.filtered;
    }
    if let Some(name) = taken.name {
        stats.name = name;
    }
    if lane.domain == Domain::Host && counts.reference_points + taken.filtered > 0 {
        for guest in guests.iter_mut() {
            let pending = std::mem::take(&mut guest.pending);
            let stats = &mut shared.stats[guest.stats];
            stats.reference_points += pending.points;
            stats.filtered += pending.filtered;
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
            clock.bound(&host, taken.last, ticks());
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
    let next = pulled.sequence.wrapping_add(pulled.records);
    if let Some(stream) = &lane.stream {
        let last = stream.last();
        let back = is_back(last.ring_end, pulled.begin)
            || is_back(last.sequence, pulled.sequence)
            || pulled.begin < last.ring_end
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
    if taken.needs_description {
        shared.sync()?;
    }
    let clock = lane.clock.unwrap_or(HOST_CLOCK);
    let begin = shared.buffer.events().first().copied().unwrap_or(0);
    let stats = &shared.stats[lane.stats];
    let header = PacketHeader {
        timestamp_begin: begin,
        timestamp_end: taken.last - shared.clocks.base(clock),
        events_discarded: stats.lost(),
        ring_begin: pulled.begin,
        ring_end: pulled.end,
        lease_token: pulled.token,
        events_filtered: stats.filtered,
        faults: stats.faults(),
        sequence: pulled.sequence,
        ..PacketHeader::new(shared.uuid, clock, lane.domain, lane.number, shared.clocks.epoch())
    };
    let Some(files) = shared.files.as_mut().filter(|_| shared.open) else {
        return Ok(());
    };
    let stream = file(files, shared.segment_bytes, lane, &header)?;
    stream.append(files, &mut shared.buffer, &header, next)
}

/// The stream, in a file that can take this packet.
fn file<'l>(
    files: &mut Files,
    segment_bytes: u64,
    lane: &'l mut Lane,
    packet: &PacketHeader,
) -> Result<&'l mut Stream, WriteFailed> {
    let prefix = lane.prefix();
    let Lane { stream, new_file, restarts, files: number, told, .. } = lane;
    // Where the last packet ended, not the last record: those that nobody wanted
    // are in no packet, and a ring can go back meanwhile.
    let (ring_end, sequence, faults) = match stream.as_ref().map(Stream::last) {
        Some(last) => (last.ring_end, last.sequence, last.faults),
        None => (lane.ring_told, lane.sequence_told, lane.faults_told),
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
    match stream {
        Some(stream) => {
            if *new_file {
                stream.next_segment(files, &baseline)?;
                *restarts += 1;
                *new_file = false;
            }
            Ok(stream)
        }
        None => {
            let made = Stream::go_on(files, &prefix, *number, *told, segment_bytes, &baseline)?;
            *new_file = false;
            Ok(stream.insert(made))
        }
    }
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
    /// If it is a lease record.
    kind: Option<ClockKind>,
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
        let mut kind = None;
        if header.id == id::LEASE && (4..=scratch.len()).contains(&len) {
            record.payload.copy_to(scratch);
            kind = Some(clock_kind(scratch[3]));
        }
        found = Some((header.timestamp, kind));
        Flow::Stop
    });
    found.map(|(timestamp, kind)| Next { token: pulled.token, timestamp, kind })
}

fn clock_kind(word: u64) -> ClockKind {
    match word == ClockKind::MonotonicRaw as u64 {
        true => ClockKind::MonotonicRaw,
        false => ClockKind::Tsc,
    }
}

fn lessee(classes: &Classes, payload: &[u64]) -> Option<Lessee> {
    let class = classes.reserved(id::LEASE)?;
    class.shape.check(payload)?;
    let &[token, _pid, _tid, clock, ..] = payload else { return None };
    Some(Lessee { token, clock: clock_kind(clock), name: lease_name(&class, payload)? })
}

/// A lease begins: finds its clock, or returns false if that must wait. Its first packet begins a new file if the
/// one that is open is of another stream class, or already further in time.
fn open(shared: &mut Shared, lane: &mut Lane, next: &Next, now: u64) -> Result<bool, WriteFailed> {
    let file = lane.stream.as_ref().map(|stream| {
        let last = stream.last();
        (last.stream_id, shared.clocks.base(last.stream_id).saturating_add(last.timestamp_end))
    });
    if lane.lease.is_some_and(|lease| lease.epoch != shared.clocks.epoch()) {
        // That was the VMM's doing: what the guest has spent was the last epoch's.
        lane.restarts = 0;
    }
    let spent = lane.restarts >= MAX_RESTARTS;
    let mut kind = next.kind.unwrap_or(ClockKind::Tsc);
    if let (None, Some(lessee)) = (next.kind, &lane.lessee)
        && lessee.token == next.token
    {
        kind = lessee.clock;
        shared.stats[lane.stats].name.clone_from(&lessee.name);
    }
    let clock = match (lane.domain, file) {
        (Domain::Host, _) => HOST_CLOCK,
        (Domain::Guest, Some((clock, _))) if spent => clock,
        // Its lease record was taken by an earlier process.
        (Domain::Guest, None) if next.token == lane.token_told && lane.clock.is_some() => {
            lane.clock.unwrap_or(HOST_CLOCK)
        }
        (Domain::Guest, _) => {
            shared.clocks.for_guest(lane.stats, lane.clock, kind, next.timestamp, now)
        }
    };
    // Before a file or a packet needs it. A clock that has to wait is there
    // already: whoever has the files replaced next has it described.
    if clock >= shared.clocks.described {
        if lane.domain == Domain::Guest && !shared.may_describe(now) {
            return Ok(false);
        }
        shared.sync()?;
    }
    let base = shared.clocks.base(clock);
    let first = next.timestamp.clamp(base, shared.clocks.latest(clock, now).max(base));
    (lane.last, lane.new_file) = match file {
        Some((class, last)) if class == clock && (first >= last || spent) => (last, false),
        _ => (base, true),
    };
    if lane.clock != Some(clock) || lane.stream.is_none() {
        lane.forget();
        lane.clock = Some(clock);
        shared.stats[lane.stats].clock = clock;
    }
    lane.lease = Some(OpenLease { token: next.token, epoch: shared.clocks.epoch(), first });
    Ok(true)
}
