//! Saving the records that a crash left in a segment.
//!
//! A ring is taken from where it was committed: in a session that is completed,
//! its packets tell; in a new one, the ring itself, as the dead host left it.

use crate::session::Error;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clients::drain_rest;
use hypertrace_abi::drain;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::ring::{ClientMemory, Consumer, ConsumerState, FAULT_KINDS, Fault, Total};
use hypertrace_abi::sink::EventSink;

use hypertrace_segment::Segment;
use hypertrace_trace::{Committed, Session, SessionConfig, Summary};
use std::io;
use std::path::Path;

/// Saves the records that are left in the segment at `path` to the session at the path of `trace`:
/// completes the one that was being written when its host died, or makes a new
/// one if the directory is new or empty. Events whose schema is not in the
/// segment any more are shown untyped in a new one. The file stays: it is not
/// needed any more when this is done.
///
/// # Errors
/// If it is no segment, a host serves it, or the directory holds anything else.
pub fn recover(path: &Path, mut trace: SessionConfig) -> Result<Summary, Error> {
    let segment = Segment::open(path)?.to_serve()?;
    let (relays, all) = segment.clients();
    trace.relays = relays;
    trace.same_counter = true;
    let session = if is_new(trace.destination.path()) {
        trace.epoch_began = Some(segment.local().began().load(Relaxed));
        Session::create(trace)?
    } else {
        Session::resume(trace, segment.page().session)?
    };
    session.last_pass();
    drain::pass(&session, |_| {
        let mut unattached = Total::default();
        if unattached.look(segment.local().lost_unattached().load(Relaxed)) {
            session.unattached(unattached.counted());
        }
        // Schemas before the points that may need them.
        for client in (relays..all).chain(0..relays) {
            if let Some(memory) = segment.client(client) {
                recover_client(&session, client, memory);
            }
        }
    });
    let summary = session.finish()?;
    // ORDERING: as at a host's end.
    segment.local().end().store(segment.page().end_mark(), Ordering::Release);
    Ok(summary)
}

/// Saves the records that are left in one client's ring.
fn recover_client(session: &Session, client: u32, memory: ClientMemory<'_>) {
    // ORDERING: pairs with the Release in `Producer::publish`. A program may
    // still be alive: only what is there now.
    let head = memory.guest[guest_page::HEAD].load(Ordering::Acquire);
    let written = memory.guest[guest_page::SCHEMA_LEN].load(Relaxed);
    if head == 0 && written == 0 {
        return;
    }
    // The log as far back as it goes: what was read may be there still.
    let schemas = match written <= memory.schema.len() as u64 {
        true => 0,
        false => memory.host[host_page::SCHEMA_SEEN].load(Relaxed),
    };
    // Both ends of the ring may be anything that a program stored there.
    let is_possible = |from: u64| head.checked_sub(from).is_some_and(|n| n <= memory.capacity());
    let mut state = match session.committed(client) {
        Some(Committed { position, sequence, token, mut faults }) => {
            let tail = memory.host[host_page::TAIL].load(Relaxed);
            let block = tail & !(memory.block_words() - 1);
            let header = |n: u64| {
                memory.ring[((block + n) & (memory.capacity() - 1)) as usize].load(Relaxed)
            };
            if !is_possible(position) && position <= tail && is_possible(tail) {
                // Between the two, records were dropped without a packet, as no rule wanted them.
                let (at, sequence) = match position <= block && is_possible(block) {
                    true => (block, Some(header(0))),
                    false => (tail, None),
                };
                ConsumerState::resume(at, sequence, header(1), faults, schemas)
            } else {
                if !is_possible(position) {
                    // Readers take the step for damage unless a fault explains it.
                    faults[Fault::Head as usize] += 1;
                }
                ConsumerState::resume(position, Some(sequence), token, faults, schemas)
            }
        }
        None => {
            let mut faults = [0; FAULT_KINDS];
            let tail = match memory.host[host_page::TAIL].load(Relaxed) {
                tail if is_possible(tail) => tail,
                _ => {
                    faults[Fault::Head as usize] += 1;
                    oldest(&memory, head)
                }
            };
            // Its block says whose the records are.
            let block = tail & !(memory.block_words() - 1);
            let token = memory.ring[(block & (memory.capacity() - 1)) as usize + 1].load(Relaxed);
            let sequence = (tail == 0).then_some(0);
            ConsumerState::resume(tail, sequence, token, faults, schemas)
        }
    };
    let mut consumer = Consumer::new(memory, &mut state);
    consumer.up_to(head);
    drain_rest(session, client, &mut consumer);
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
    use hypertrace_abi::config::HostFacts;
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
        let facts = HostFacts { session: session.uuid(), ..HostFacts::default() };
        let segment = Segment::create(&path, None, &geometry, &facts).unwrap();
        let memory = segment.client(0).unwrap();
        let info = LeaseInfo { pid: 1, tid: 2, clock: ClockKind::Tsc, name: "program" };
        let state = ProducerState::new();
        let lease = Lease::new(1, ticks(), &info);
        let producer = Producer::lease(memory, &state, lease, false);
        let mut consumer = ConsumerState::default();
        let mut pass = || {
            drain::pass(&session, |_| {
                drain_rest(&session, 0, &mut Consumer::new(memory, &mut consumer));
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

        let summary = recover(&path, SessionConfig::new(&out)).unwrap();

        // And up to a block of those that were switched off.
        assert!((101..120).contains(&summary.ring_events), "{summary:?}");
        assert_eq!((summary.lost, summary.faults.len()), (0, 0), "{summary:?}");
    }
}
