//! Saving what a crash left in a segment.
//!
//! A ring is taken from where it was committed: in a session that is completed,
//! its packets tell; in a new one, the ring itself, as the dead host left it.

use crate::segment::Segment;
use crate::session::Error;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::layout::local::{BEGAN, LOST_UNATTACHED};
use hypertrace_abi::layout::{WORD, guest_page, host_page};
use hypertrace_abi::ring::{ClientMemory, Consumer, ConsumerState, FAULT_KINDS, Fault, Total};
use hypertrace_abi::sink::EventSink;
use hypertrace_abi::turns::drain_rest;
use hypertrace_trace::{Committed, Session, SessionConfig, Summary};
use std::io;
use std::path::Path;

/// Takes what is left in the segment at `path` into the session in `trace.dir`:
/// completes the one that was being written when its host died, or makes a new
/// one if the directory is new or empty. Events whose schema is not in the
/// segment any more are shown untyped in a new one. The file stays: it is not
/// needed any more when this is done.
///
/// # Errors
/// If it is no segment, a host serves it, or the directory holds anything else.
pub fn recover(path: &Path, mut trace: SessionConfig) -> Result<Summary, Error> {
    let segment = Segment::open(path)?;
    let (relays, all) = segment.clients();
    trace.relays = relays;
    trace.same_counter = true;
    let session = if is_new(&trace.dir) {
        trace.epoch_began = Some(segment.page_l(BEGAN, WORD)[0].load(Relaxed));
        Session::create(trace)?
    } else {
        Session::resume(trace, segment.page().session)?
    };
    session.begin_pass();
    let mut unattached = Total::default();
    if unattached.look(segment.page_l(LOST_UNATTACHED, WORD)[0].load(Relaxed)) {
        session.unattached(unattached.counted());
    }
    // Schemas before the points that may need them.
    for client in (relays..all).chain(0..relays) {
        if let Some(memory) = segment.client(client) {
            take(&session, client, memory);
        }
    }
    session.end_pass();
    Ok(session.finish()?)
}

fn take(session: &Session, client: u32, memory: ClientMemory<'_>) {
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
            if !is_possible(position) {
                // Readers take the step for damage unless a fault explains it.
                faults[Fault::Head as usize] += 1;
            }
            ConsumerState::resume(position, Some(sequence), token, faults, schemas)
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

/// The oldest block that a producer at `head` has not overwritten.
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
