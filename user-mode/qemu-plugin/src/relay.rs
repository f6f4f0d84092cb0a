//! What each vCPU has of its own: where its last addresses were, and a relay.
//!
//! A relay is a client of the segment that no program leases: a ring into which
//! the plugin writes the points of one vCPU, whichever client made them, as a
//! VMM's vCPU thread writes them into a host ring.
//!
//! Unsafe, because at the end one thread speaks for all.
#![allow(unsafe_code)]

use crate::attached::Attached;
use crate::counts::{Counter, count};
use crate::place::{Range, look_up};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::{PAGE, WORD};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_segment::token;
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, Ordering::Relaxed};

/// vCPUs, that is threads of a program, that can have a relay. Also bounds the
/// memory that they take.
const VCPUS: usize = 4096;
/// Most clients of a segment.
const CLIENTS: usize = 1024;
/// Mappings of the segment that a vCPU remembers.
const RANGES: usize = 4;
/// Ticks of the counter between two things that are done in vain: tens of
/// milliseconds.
const PAUSE: u64 = 1 << 26;

static TABLE: [AtomicPtr<Vcpu>; VCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; VCPUS];
/// Relays that a vCPU of this process has: the file's locks tell only other
/// processes.
static TAKEN: [AtomicBool; CLIENTS] = [const { AtomicBool::new(false) }; CLIENTS];

/// A vCPU's own. Never freed; the next vCPU of its number goes on with it.
pub struct Vcpu {
    segment: &'static Attached,
    index: u32,
    ranges: [Range; RANGES],
    /// Where the last point was emitted: most come from there again.
    pub last: Option<Emitter>,
    /// When an address was last looked for in vain.
    missed: u64,
    relay: Option<Relay>,
    /// When there was no relay to be had.
    refused: u64,
    state: &'static ProducerState,
    /// Points recorded.
    pub recorded: u64,
}

/// A page of a client's.
pub type Page = [AtomicU64; (PAGE / WORD) as usize];

/// A client's register EMIT, as a vCPU has met it.
#[derive(Clone, Copy)]
pub struct Emitter {
    /// QEMU's address of it in the guest's mapping.
    pub address: u64,
    /// Whose it is.
    pub client: u32,
    /// Its page G, where the guest has it mapped: to load by another address
    /// what the guest has just stored waits until the store is in the cache.
    pub guest: &'static Page,
    /// Its page H.
    pub host: &'static Page,
}

/// A client of the segment that is this vCPU's.
struct Relay {
    client: u32,
    producer: Producer<'static>,
}

impl Vcpu {
    /// The vCPU of that number, which its own thread may use for the length of
    /// a callback: QEMU's user mode calls back on the thread of the vCPU that
    /// it tells of, once at a time. `None`: the number is too high.
    #[inline(always)]
    pub fn get(segment: &'static Attached, index: u32) -> Option<NonNull<Vcpu>> {
        let entry = TABLE.get(index as usize)?;
        // ORDERING: pairs with the Release in `make`, of a thread that had the
        // number before.
        NonNull::new(entry.load(Ordering::Acquire)).or_else(|| make(segment, index, entry))
    }

    /// The same, if that vCPU has stored to a register.
    pub fn find(index: u32) -> Option<NonNull<Vcpu>> {
        // ORDERING: as in `get`.
        NonNull::new(TABLE.get(index as usize)?.load(Ordering::Acquire))
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Where in the segment's file a host address is. Looks at the process's
    /// mappings where it is in none that was met; not at once again after it
    /// was in none of those either, so that a program whose marked stores go
    /// nowhere is not slowed by it.
    #[inline(always)]
    pub fn offset_of(&mut self, address: u64) -> Option<u64> {
        self.ranges[0].offset_of(address).or_else(|| self.look_further(address))
    }

    /// This page of our own mapping as the guest has it mapped, if it is in the
    /// mapping that the last address was in; else as it is.
    pub fn as_guest(&self, segment: &Attached, page: &'static Page) -> &'static Page {
        match self.ranges[0].address_of(segment.offset_of(page), PAGE) {
            // SAFETY: the guest has just written a slot there, and rings; that
            // it is the same file, the kernel has told. A guest that unmaps it
            // under its own store loses its own memory, as it would by any
            // store of its own. Only loaded from, atomically.
            Some(at) => unsafe { &*(at as *const Page) },
            None => page,
        }
    }

    #[cold]
    #[inline(never)]
    fn look_further(&mut self, address: u64) -> Option<u64> {
        let known = self.ranges.iter().position(|range| range.offset_of(address).is_some());
        if let Some(at) = known {
            self.ranges.swap(0, at);
            return self.ranges[0].offset_of(address);
        }
        let now = ticks();
        if now.wrapping_sub(self.missed) < PAUSE {
            return None;
        }
        let found = fs::read("/proc/self/maps")
            .ok()
            .and_then(|maps| look_up(&maps, self.segment.address(), address));
        let Some(range) = found else {
            self.missed = now;
            return None;
        };
        // Something else may be mapped where others were.
        self.last = None;
        self.ranges.rotate_right(1);
        self.ranges[0] = range;
        range.offset_of(address)
    }

    /// The ring for this vCPU's points; claims one at first use, as of `now`.
    #[inline(always)]
    pub fn producer(&mut self, now: u64) -> Option<&Producer<'static>> {
        if self.relay.is_none() {
            self.claim(now);
        }
        self.relay.as_ref().map(|relay| &relay.producer)
    }

    #[cold]
    #[inline(never)]
    fn claim(&mut self, now: u64) {
        if now.wrapping_sub(self.refused) < PAUSE {
            return;
        }
        let segment = self.segment;
        let client = (0..segment.relays).find(|&client| {
            let taken = &TAKEN[client as usize];
            if taken.swap(true, Ordering::Acquire) {
                return false;
            }
            let locked = segment.lock.lock(client);
            if !locked {
                taken.store(false, Ordering::Release);
            }
            locked
        });
        let Some((client, memory)) = client.and_then(|c| Some((c, segment.client(c)?))) else {
            self.refused = now;
            return;
        };
        let name = format!("vcpu {}", self.index);
        // SAFETY: take nothing, and cannot fail.
        let (pid, tid) = unsafe { (libc::getpid() as u32, libc::gettid() as u32) };
        let info = LeaseInfo { pid, tid, clock: ClockKind::Tsc, name: &name };
        let lease = Lease::new(token(), now, &info);
        let producer = Producer::lease(*memory, self.state, lease, false);
        let producer = match segment.bells().get(client as usize) {
            Some(bell) => producer.waking(bell),
            None => producer,
        };
        self.relay = Some(Relay { client, producer });
    }

    /// The relay's ring is full.
    #[cold]
    pub fn hurry(&self) {
        if let Some(relay) = &self.relay {
            self.segment.local.ring(relay.client);
        }
    }

    /// The vCPU ends: another can have the relay.
    pub fn release(&mut self) {
        let Some(relay) = self.relay.take() else { return };
        relay.producer.release();
        self.segment.lock.unlock(relay.client);
        TAKEN[relay.client as usize].store(false, Ordering::Release);
    }
}

#[cold]
#[inline(never)]
fn make(segment: &'static Attached, index: u32, entry: &AtomicPtr<Vcpu>) -> Option<NonNull<Vcpu>> {
    let vcpu = Box::into_raw(Box::new(Vcpu {
        segment,
        index,
        ranges: [Range::default(); RANGES],
        last: None,
        missed: 0,
        relay: None,
        refused: 0,
        state: Box::leak(Box::new(ProducerState::new())),
        recorded: 0,
    }));
    // ORDERING: pairs with the Acquire in `get`.
    entry.store(vcpu, Ordering::Release);
    NonNull::new(vcpu)
}

/// Ends all leases and gives how many points were recorded.
///
/// # Safety
/// No vCPU runs.
pub unsafe fn release_all() -> u64 {
    TABLE
        .iter()
        // SAFETY: leaked by `make`, and nobody has a reference.
        .filter_map(|entry| unsafe { entry.load(Ordering::Acquire).as_mut() })
        .map(|vcpu| {
            vcpu.release();
            vcpu.recorded
        })
        .sum()
}

/// In a forked child, whose only thread calls this: it has no relay and no
/// lock; those of its parent are its parent's.
pub fn forget_all(segment: &Attached) {
    segment.lock.reopen();
    for entry in &TABLE {
        entry.store(std::ptr::null_mut(), Relaxed);
    }
    for taken in &TAKEN {
        taken.store(false, Relaxed);
    }
}

/// What the guest has stored to a register, by its own address of it.
#[inline(always)]
pub fn stored_at(address: u64) -> u64 {
    // SAFETY: aligned, as registers are, and the guest's store there is done;
    // otherwise as in `as_guest`.
    unsafe { (*(address as *const AtomicU64)).load(Relaxed) }
}

/// No relay for this point.
#[cold]
pub fn refused() {
    count(Counter::NoRelay);
}
