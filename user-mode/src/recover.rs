//! Saves the records that a crash left in a segment.
//!
//! A ring is read from its committed position. The packets of the dead host's session have this position;
//! without a session, the ring itself has this position. A recovery gives nothing in the segment back, so a
//! recovery that fails or is killed can be repeated.

use crate::session::Error;
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace_abi::clients::drain_rest;
use hypertrace_abi::config::Features;
use hypertrace_abi::drain;
use hypertrace_abi::layout::guest_page::{HEAD, LOST_BUSY, LOST_FULL, LOST_UNATTACHED, SCHEMA_LEN};
use hypertrace_abi::layout::host_page;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Fault, Losses, RingPosition, Total,
};
use hypertrace_abi::sink::{DrainSink, with_drain};

use hypertrace_segment::Segment;
use hypertrace_trace::session_json::RECOVERED;
use hypertrace_trace::{Committed, Session, SessionConfig, Summary};
use std::io;
use std::path::{Path, PathBuf};

/// Saves the records that are left in the segment at `path` to a session, and returns the session's
/// directory. If the directory of `trace` has the session that was being written when the host died, the new
/// session is in the folder `recovered` of this directory. If the directory of `trace` is new or empty, the
/// new session is in the directory itself, and events whose schema is no longer in the segment are untyped.
/// The segment's file stays, but is not needed any more.
///
/// # Errors
/// If the file is no segment, a host serves the segment, or the directory holds anything else.
pub fn recover(path: &Path, mut trace: SessionConfig) -> Result<(PathBuf, Summary), Error> {
    let segment = Segment::open_of_anyone(path)?.to_serve()?;
    // Another program that wants to serve has to wait for this process, not for the dead host.
    segment.local().host_pid().store(std::process::id(), Relaxed);
    let (relays, _) = segment.clients();
    trace.relays = relays;
    let dir = trace.destination.path().to_owned();
    let recovered = if is_new(&dir) {
        trace.served = segment.page().features().contains(Features::REMOTE);
        trace.same_counter = !trace.served;
        trace.epoch_began = Some(segment.local().began().load(Relaxed));
        let session = Session::create(trace)?;
        recover_clients(&segment, &session);
        (dir, session.finish()?)
    } else {
        let take = |session: &Session| recover_clients(&segment, session);
        (dir.join(RECOVERED), Session::recover(trace, segment.page().session, take)?)
    };
    // ORDERING: as at the end of `Host`: a program that sees the end sees the last positions in page H.
    segment.local().end().store(segment.page().end_mark(), Ordering::Release);
    Ok(recovered)
}

/// Saves the records and the losses of all clients.
fn recover_clients(segment: &Segment, session: &Session) {
    let (relays, all) = segment.clients();
    with_drain(session, |sink| sink.last_pass());
    let committed: Vec<_> = (0..all).map(|client| session.committed(client)).collect();
    drain::pass(session, |sink, _| {
        let mut unattached = Total::default();
        if unattached.look(segment.local().lost_unattached().load(Relaxed)) {
            sink.unattached(unattached.counted());
        }
        // The relays are drained last, because points in their rings may need schemas of other clients.
        for client in (relays..all).chain(0..relays) {
            if let Some(memory) = segment.client(client) {
                recover_client(sink, client, committed[client as usize], memory);
            }
        }
    });
}

/// Saves the records that are left in one client's ring.
fn recover_client(
    sink: &mut dyn DrainSink,
    client: u32,
    committed: Option<Committed>,
    memory: ClientMemory<'_>,
) {
    if memory.is_fresh() {
        return;
    }
    // The recovery uses a copy of the host's page, so that a program that is still alive gets no room in its
    // ring. The recovery ignores events that such a program emits from now on.
    let host: Vec<AtomicU64> =
        memory.host.iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect();
    let mut memory = memory;
    memory.host = &host;
    let ClientMemory { guest, schema, ring, .. } = memory;
    // ORDERING: pairs with the Release in `Producer::publish`.
    let head = guest[HEAD].load(Ordering::Acquire);
    // Reads the schema log from its start, because the log may still have schemas that the host has read.
    let schemas = match guest[SCHEMA_LEN].load(Relaxed) <= schema.len() as u64 {
        true => 0,
        false => host[host_page::SCHEMA_SEEN].load(Relaxed),
    };
    // Both ends of the ring may be anything that a program stored there.
    let is_possible = |from: u64| head.checked_sub(from).is_some_and(|n| n <= memory.capacity());
    let tail = host[host_page::TAIL].load(Relaxed);
    let block_of = |position: u64| position & !(memory.block_words() - 1);
    let header =
        |block: u64, n: u64| ring[((block + n) & (memory.capacity() - 1)) as usize].load(Relaxed);
    let (position, sequence, token) = match committed {
        Some(Committed { position, .. })
            if !is_possible(position) && position <= tail && is_possible(tail) =>
        {
            // Between the two positions, the host dropped records without a packet. No rule wanted these
            // records.
            let block = block_of(tail);
            match position <= block && is_possible(block) {
                true => (block, Some(header(block, 0)), header(block, 1)),
                false => (tail, None, header(block, 1)),
            }
        }
        Some(Committed { position, sequence, token, .. }) => (position, Some(sequence), token),
        None => {
            let from = if is_possible(tail) { tail } else { oldest(&memory, head) };
            // The header of the block contains the token of the holder that wrote these records.
            (from, (from == 0).then_some(0), header(block_of(from), 1))
        }
    };
    let lost = counted(&memory, &committed.unwrap_or_default().lost);
    let place = RingPosition { position, sequence, token, lost, schemas };
    let mut state = ConsumerState::continue_at(&place);
    let mut consumer = Consumer::new(memory, &mut state);
    if !is_possible(committed.map_or(tail, |_| position)) {
        // The fault is counted, because otherwise readers would take the gap between the positions for
        // damage.
        consumer.fault(Fault::Head);
    }
    consumer.up_to(head);
    drain_rest(sink, client, &mut consumer);
}

/// Page G has three totals of lost events. Returns for each total how many of its events the dead host had
/// counted. `lost` has a count for each cause. A count may exceed the total of its cause. The function then
/// adds the rest to causes with totals that are larger than their counts.
fn counted(memory: &ClientMemory<'_>, lost: &Losses) -> [u64; 3] {
    let totals =
        [LOST_FULL, LOST_BUSY, LOST_UNATTACHED].map(|word| memory.guest[word].load(Relaxed));
    let mut counted = [lost.full, lost.busy, lost.unattached];
    let mut left = 0;
    for (counted, total) in counted.iter_mut().zip(totals) {
        left += counted.saturating_sub(total);
        *counted = total.min(*counted);
    }
    for (counted, total) in counted.iter_mut().zip(totals) {
        let more = left.min(total - *counted);
        *counted += more;
        left -= more;
    }
    counted
}

/// Returns the oldest block that a producer at `head` has not overwritten.
fn oldest(memory: &ClientMemory<'_>, head: u64) -> u64 {
    let block = head & !(memory.block_words() - 1);
    block.saturating_sub(memory.capacity() - memory.block_words())
}

fn is_new(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(why) => why.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_abi::clock::ticks;
    use hypertrace_abi::config::HostInfo;
    use hypertrace_abi::event_type;
    use hypertrace_abi::layout::Geometry;
    use hypertrace_abi::record::ClockKind;
    use hypertrace_abi::ring::{Emit, Lease, LeaseInfo, Producer, ProducerState};

    #[test]
    fn the_ring_is_recovered_after_filtered_events() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("segment"), dir.path().join("s"));
        let mut trace = SessionConfig::new(&out);
        trace.same_counter = true;
        let session = Session::create(trace).unwrap();
        let geometry = Geometry {
            clients: 1,
            ring_bytes: 1 << 12,
            block_bytes: 256,
            schema_bytes: 1 << 12,
            ..Geometry::default()
        };
        let facts = HostInfo::default().with(|info| info.session = session.uuid());
        let segment = Segment::create(&path, None, &geometry, &facts).unwrap();
        let memory = segment.client(0).unwrap();
        let info = LeaseInfo { pid: 1, tid: 2, name: "program" };
        let state = ProducerState::new();
        let lease = Lease::new(1, ClockKind::Tsc, ticks(), &info);
        let producer = Producer::lease(memory, &state, lease, false);
        let mut consumer = ConsumerState::default();
        let mut pass = || {
            drain::pass(&session, |sink, _| {
                drain_rest(sink, 0, &mut Consumer::new(memory, &mut consumer));
            });
        };
        let emit = |n: u64| {
            let (site, fields) = event_type!("number", n);
            assert_eq!(producer.emit((site, fields), ticks), Emit::Recorded);
        };
        emit(0);
        pass();
        session.set_events(&"number".parse().unwrap(), false).unwrap();
        for _ in 0..50 {
            (1..30).for_each(emit);
            pass();
        }
        session.set_events(&"number".parse().unwrap(), true).unwrap();
        (0..100).for_each(emit);
        drop((session, segment));

        let (recovered, summary) = recover(&path, SessionConfig::new(&out)).unwrap();

        // The recovery may also get events that were switched off, but at most one block of these events.
        assert_eq!(recovered, out.join("recovered"));
        assert!((100..119).contains(&summary.ring_events), "{summary:?}");
        assert_eq!((summary.lost, summary.faults.len()), (0, 0), "{summary:?}");
    }

    #[test]
    fn unattached_events_that_the_killed_session_has_counted_are_not_counted_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("segment"), dir.path().join("s"));
        let trace = SessionConfig::new(&out).with(|config| config.same_counter = true);
        let session = Session::create(trace).unwrap();
        let geometry = Geometry { clients: 1, ..Geometry::default() };
        let facts = HostInfo::default().with(|info| info.session = session.uuid());
        let segment = Segment::create(&path, None, &geometry, &facts).unwrap();
        with_drain(&session, |sink| sink.unattached(7));
        // This loop ends, because the session writes session.json once a second.
        while !std::fs::read_to_string(out.join("session.json"))
            .unwrap()
            .contains("\"lost_unattached\": 7")
        {
            drain::pass(&session, |_, _| ());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        segment.local().lost_unattached().store(10, Relaxed);
        drop((session, segment));

        let (_, summary) = recover(&path, SessionConfig::new(&out)).unwrap();

        assert_eq!(summary.lost_unattached, 3);
    }

    #[test]
    fn a_recovery_names_itself_as_the_process_that_holds_the_segment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let geometry = Geometry { clients: 1, ..Geometry::default() };
        let segment = Segment::create(&path, None, &geometry, &HostInfo::default()).unwrap();
        segment.local().host_pid().store(7, Relaxed);
        drop(segment);

        recover(&path, SessionConfig::new(dir.path().join("s"))).unwrap();

        let pid = Segment::open(&path).unwrap().local().host_pid().load(Relaxed);
        assert_eq!(pid, std::process::id());
    }
}
