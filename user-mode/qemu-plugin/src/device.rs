//! What a store to a register does: the device's side of it, on the vCPU's own
//! thread.
//!
//! A reference point that is answered here stands in the vCPU's relay. One that
//! cannot be is not answered: the guest then rings the host, and waits for it
//! as it does natively. So an answer always means what it says.

use crate::counts::{Counter, count};
use crate::relay::{self, Vcpu};
use crate::segment::Segment;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::{host_page, register};
use hypertrace_abi::record::Flags;
use hypertrace_abi::ring::Emit;
use hypertrace_abi::sink::{ReferencePoint, Status};
use hypertrace_abi::slot::{self, Emitted};

/// vCPU `index` has stored to this host address. `value` is what, if it does
/// not stand there.
#[inline(always)]
pub fn store(
    segment: &'static Segment,
    vcpu: &'static Vcpu,
    index: u32,
    address: u64,
    value: Option<u64>,
) {
    // Entry: what the guest did before its store is before this.
    let now = ticks();
    let Some(offset) = vcpu.offset_of(address) else {
        return count(Counter::Outside);
    };
    let Some((client, register)) = segment.register_at(offset) else {
        return count(Counter::Unassigned);
    };
    let value = || value.unwrap_or_else(|| segment.stored(client, register));
    match register {
        register::EMIT => emit(segment, vcpu, index, now, client, value() as u32),
        register::LEASE => {
            if let Some(memory) = segment.client(client) {
                memory.host[host_page::LEASE].store(value(), Ordering::Release);
            }
        }
        register::KICK => segment.ring(client),
        _ => count(Counter::Unassigned),
    }
}

#[inline(always)]
fn emit(
    segment: &'static Segment,
    vcpu: &'static Vcpu,
    index: u32,
    now: u64,
    client: u32,
    seq: u32,
) {
    let Some(memory) = segment.client(client) else {
        return count(Counter::Unassigned);
    };
    let emitted = Emitted {
        client,
        seq,
        host_time: now,
        epoch: segment.epoch,
        mask_version: memory.host[host_page::MASK_VERSION].load(Relaxed),
    };
    slot::serve(&memory, emitted, |point| match point {
        Ok(point) => record(segment, vcpu, index, point),
        Err(_) => {
            count(Counter::BadSlot);
            Some(Status::Invalid)
        }
    });
}

/// `None`: this is the host's to do.
#[inline(always)]
fn record(
    segment: &'static Segment,
    vcpu: &'static Vcpu,
    index: u32,
    point: &ReferencePoint<'_>,
) -> Option<Status> {
    if !segment.is_served() {
        count(Counter::NotServing);
        return None;
    }
    if segment.has_triggers(point.name_hash) {
        count(Counter::Triggers);
        return None;
    }
    let Some(producer) = vcpu.producer(point.host_time) else {
        relay::refused();
        return None;
    };
    let prefix = [point.client.into(), index.into(), point.seq.into(), point.guest_time];
    let emitted = producer.emit_words_patiently(
        || point.host_time,
        point.id,
        Flags::REFERENCE_POINT,
        &prefix,
        point.words,
        true,
    );
    if emitted == Emit::Recorded {
        vcpu.recorded.set(vcpu.recorded.get() + 1);
        return Some(Status::Recorded);
    }
    count(Counter::Full);
    vcpu.hurry();
    None
}
