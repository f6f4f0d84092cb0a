//! The device's side of stores to registers, on the vCPU's own thread.
//!
//! If the plugin answers a reference point, then the point is in the vCPU's relay. If the plugin cannot
//! record the point in the relay, then the plugin does not answer: the guest rings the host, and waits for
//! the host, as a native program does.
//!
//! The code is unsafe because of the page that the guest has mapped.
#![allow(unsafe_code)]

use super::attached::Attached;
use super::counts::{Counter, count};
use super::relay::{Emitter, Entry, Vcpu, stored_at};
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::Fields;
use hypertrace_abi::layout::{host_page, register};
use hypertrace_abi::record::{Flags, REFERENCE_PREFIX_WORDS};
use hypertrace_abi::ring::{Emit, NewRecord};
use hypertrace_abi::schema::FieldType;
use hypertrace_abi::sink::{ReferencePoint, Status};
use hypertrace_abi::slot::{self, Emitted, ReplyBody};

/// Handles a vCPU's store to this host address, after the store was done.
#[inline(always)]
pub fn store(segment: &'static Attached, vcpu: &mut Vcpu, entry: &Entry, address: u64) {
    // The code takes the time first, so that everything that the guest did before the store has an earlier
    // time.
    let now = ticks();
    match vcpu.last {
        Some(emitter) if emitter.address == address => emit(segment, vcpu, entry, now, emitter),
        _ => find(segment, vcpu, entry, now, address),
    }
}

/// Finds the register at this address, and handles the store.
#[cold]
#[inline(never)]
fn find(segment: &'static Attached, vcpu: &mut Vcpu, entry: &Entry, now: u64, address: u64) {
    let Some(offset) = vcpu.offset_of(address) else {
        return count(Counter::Outside);
    };
    let found = segment
        .register_at(offset)
        .and_then(|(client, register)| Some((client, register, segment.client(client)?)));
    let Some((client, register, memory)) = found else {
        return count(Counter::Unassigned);
    };
    match register {
        register::EMIT => {
            let (Some(guest), Some(host)) = (memory.guest.first_chunk(), memory.host.first_chunk())
            else {
                return count(Counter::Unassigned);
            };
            let emitter = Emitter { address, client, guest: vcpu.as_guest(segment, guest), host };
            vcpu.last = Some(emitter);
            emit(segment, vcpu, entry, now, emitter);
        }
        register::LEASE => {
            memory.host[host_page::LEASE].store(stored_at(address), Ordering::Release);
        }
        _ => count(Counter::Unassigned),
    }
}

#[inline(always)]
fn emit(segment: &'static Attached, vcpu: &mut Vcpu, entry: &Entry, now: u64, emitter: Emitter) {
    let Emitter { address, client, guest, host } = emitter;
    let emitted = Emitted { client, seq: stored_at(address) as u32, host_time: now };
    // SAFETY: the guest has just written a slot to this page, and the kernel has confirmed that the page
    // belongs to the segment's file. The plugin only loads from the page, atomically, and only while this
    // callback runs. If the guest unmaps the page during its own store, then the load faults here, as any
    // access of the guest to unmapped memory would.
    let guest = unsafe { guest.as_ref() };
    let status = match slot::read(guest, &emitted) {
        Ok((point, words)) => record(segment, vcpu, entry, point, words),
        Err(_) => {
            count(Counter::BadSlot);
            Some(Status::Invalid)
        }
    };
    if let Some(status) = status {
        slot::reply(host, &emitted, ReplyBody { status, epoch: segment.epoch });
    }
}

/// Payload of a point's record. The words are copied from the slot directly into the ring, and no code checks
/// them on the way.
#[derive(Clone, Copy)]
struct Point<'a> {
    prefix: [u64; REFERENCE_PREFIX_WORDS],
    words: &'a [AtomicU64],
}

impl Fields for Point<'_> {
    const TYPES: &'static [FieldType] = &[];

    #[inline(always)]
    fn words(self) -> usize {
        self.prefix.len() + self.words.len()
    }

    #[inline(always)]
    fn put(self, out: &[AtomicU64]) {
        let (prefix, words) = out.split_at(self.prefix.len());
        for (to, from) in prefix.iter().zip(self.prefix) {
            to.store(from, Relaxed);
        }
        for (to, from) in words.iter().zip(self.words) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}

/// Records the point. Returns `None` if the host has to handle the point.
#[inline(always)]
fn record(
    segment: &Attached,
    vcpu: &mut Vcpu,
    entry: &Entry,
    point: ReferencePoint<'_>,
    words: &[AtomicU64],
) -> Option<Status> {
    if !segment.local.is_served() {
        count(Counter::NotServing);
        return None;
    }
    if segment.local.has_triggers(point.name_hash) {
        count(Counter::Triggers);
        return None;
    }
    let index = vcpu.index();
    let Some(producer) = vcpu.producer(point.host_time) else {
        count(Counter::NoRelay);
        return None;
    };
    let ReferencePoint { client, seq, guest_time, host_time, id, .. } = point;
    let prefix = [client.into(), index.into(), seq.into(), guest_time];
    let record = NewRecord::of_id(id, Point { prefix, words }).with_flags(Flags::REFERENCE_POINT);
    let emitted = producer.try_emit(record, || host_time);
    if emitted == Emit::Recorded {
        // Only this thread writes the count, so a load and a store are enough.
        let recorded = &entry.recorded;
        recorded.store(recorded.load(Relaxed) + 1, Relaxed);
        return Some(Status::Recorded);
    }
    count(Counter::Full);
    vcpu.wake_host();
    None
}
