//! What each vCPU has of its own: where its last addresses were, and a relay.
//!
//! A relay is a client of the segment that no program leases: a ring into which
//! the plugin writes the points of one vCPU, whichever client made them, as a
//! VMM's vCPU thread writes them into a host ring.
//!
//! Unsafe, because a vCPU is found by its number, from that vCPU's own thread.
#![allow(unsafe_code)]

use crate::counts::{Counter, count};
use crate::place::{Range, look_up};
use crate::segment::Segment;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Lease, LeaseInfo, Producer, ProducerState, Wake};
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, Ordering::Relaxed};

/// vCPUs, that is threads of a program, that can have a relay. Also bounds the
/// memory that they take.
const VCPUS: usize = 4096;
/// Most clients of a segment.
const CLIENTS: usize = 1024;
/// Mappings of the segment that a vCPU remembers.
const RANGES: usize = 4;
/// Ticks of the counter between two things that are done in vain: some
/// milliseconds, a little less or more.
const PAUSE: u64 = 1 << 23;

static TABLE: [AtomicPtr<Vcpu>; VCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; VCPUS];
/// Relays that a vCPU of this process has: the file's locks tell only other
/// processes.
static TAKEN: [AtomicBool; CLIENTS] = [const { AtomicBool::new(false) }; CLIENTS];

/// A vCPU's own. Never freed; the next vCPU of its number goes on with it.
pub struct Vcpu {
    segment: &'static Segment,
    index: u32,
    ranges: Cell<[Range; RANGES]>,
    /// When an address was last looked for in vain.
    missed: Cell<u64>,
    relay: Cell<Option<Relay>>,
    /// When there was no relay to be had.
    refused: Cell<u64>,
    state: ProducerState,
    /// Points recorded.
    pub recorded: Cell<u64>,
}

/// A client of the segment that is this vCPU's.
#[derive(Clone, Copy)]
struct Relay {
    client: u32,
    producer: Producer<'static>,
}

impl Vcpu {
    /// The calling vCPU's. `None`: its number is too high.
    ///
    /// # Safety
    /// Called on the thread of the vCPU with this number, as QEMU's callbacks
    /// are in user mode, where a vCPU is a thread; or no vCPU runs.
    #[inline(always)]
    pub unsafe fn get(segment: &'static Segment, index: u32) -> Option<&'static Vcpu> {
        let entry = TABLE.get(index as usize)?;
        // ORDERING: pairs with the Release in `make`, of a thread that had the
        // number before.
        // SAFETY: null or a leaked Vcpu, all of which only its thread touches.
        match unsafe { entry.load(Ordering::Acquire).as_ref() } {
            Some(vcpu) => Some(vcpu),
            None => Some(make(segment, index, entry)),
        }
    }

    /// The calling vCPU's, if it has stored to a register.
    ///
    /// # Safety
    /// As [`Vcpu::get`].
    pub unsafe fn find(index: u32) -> Option<&'static Vcpu> {
        // SAFETY: null or a leaked Vcpu, all of which only its thread touches.
        // ORDERING: as in `get`.
        TABLE
            .get(index as usize)
            .and_then(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() })
    }

    /// Where in the segment's file a host address is. Looks at the process's
    /// mappings where it is in none that was met; not at once again after it
    /// was in none of those either, so that a program whose marked stores go
    /// nowhere is not slowed by it.
    #[inline(always)]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let ranges = self.ranges.get();
        ranges[0].offset_of(address).or_else(|| self.look_further(address))
    }

    #[cold]
    #[inline(never)]
    fn look_further(&self, address: u64) -> Option<u64> {
        let mut ranges = self.ranges.get();
        if let Some(at) = ranges.iter().position(|range| range.offset_of(address).is_some()) {
            ranges.swap(0, at);
            self.ranges.set(ranges);
            return ranges[0].offset_of(address);
        }
        let now = ticks();
        if now.wrapping_sub(self.missed.get()) < PAUSE {
            return None;
        }
        let found = fs::read("/proc/self/maps")
            .ok()
            .and_then(|maps| look_up(&maps, self.segment.address(), address));
        let Some(range) = found else {
            self.missed.set(now);
            return None;
        };
        ranges.rotate_right(1);
        ranges[0] = range;
        self.ranges.set(ranges);
        range.offset_of(address)
    }

    /// The ring for this vCPU's points; claims one at first use, as of `now`.
    #[inline(always)]
    pub fn producer(&'static self, now: u64) -> Option<Producer<'static>> {
        match self.relay.get() {
            Some(relay) => Some(relay.producer),
            None => self.claim(now),
        }
    }

    #[cold]
    #[inline(never)]
    fn claim(&'static self, now: u64) -> Option<Producer<'static>> {
        if now.wrapping_sub(self.refused.get()) < PAUSE {
            return None;
        }
        let segment = self.segment;
        let client = (0..segment.relays).find(|&client| {
            let taken = &TAKEN[client as usize];
            if taken.swap(true, Ordering::Acquire) {
                return false;
            }
            let locked = segment.lock(client);
            if !locked {
                taken.store(false, Ordering::Release);
            }
            locked
        });
        let Some((client, memory)) = client.and_then(|c| Some((c, segment.client(c)?))) else {
            self.refused.set(now);
            return None;
        };
        let name = format!("vcpu {}", self.index);
        // SAFETY: take nothing, and cannot fail.
        let (pid, tid) = unsafe { (libc::getpid() as u32, libc::gettid() as u32) };
        let info = LeaseInfo { pid, tid, clock: ClockKind::Tsc, name: &name };
        let lease = Lease::new(token(), now, &info);
        let producer = Producer::lease(memory, &self.state, lease, false);
        // One for each lease, and small.
        let waker = Box::leak(Box::new(Waker { segment, client }));
        let producer = producer.waking(waker);
        self.relay.set(Some(Relay { client, producer }));
        Some(producer)
    }

    /// The relay's ring is full.
    #[cold]
    pub fn hurry(&self) {
        if let Some(relay) = self.relay.get() {
            self.segment.ring(relay.client);
        }
    }

    /// The vCPU ends: another can have the relay.
    pub fn release(&self) {
        let Some(relay) = self.relay.take() else { return };
        relay.producer.release();
        self.segment.unlock(relay.client);
        TAKEN[relay.client as usize].store(false, Ordering::Release);
        // The next vCPU of this number is another thread, but of the same
        // process: what is mapped where stays true.
        self.refused.set(0);
    }
}

#[cold]
#[inline(never)]
fn make(segment: &'static Segment, index: u32, entry: &AtomicPtr<Vcpu>) -> &'static Vcpu {
    let vcpu = Box::leak(Box::new(Vcpu {
        segment,
        index,
        ranges: Cell::default(),
        missed: Cell::new(0),
        relay: Cell::new(None),
        refused: Cell::new(0),
        state: ProducerState::new(),
        recorded: Cell::new(0),
    }));
    // ORDERING: pairs with the Acquire in `get`.
    entry.store(vcpu, Ordering::Release);
    vcpu
}

/// Ends all leases and gives how many points were recorded.
///
/// # Safety
/// No vCPU runs.
pub unsafe fn release_all() -> u64 {
    TABLE
        .iter()
        // SAFETY: as in `get`; the caller's promise.
        .filter_map(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() })
        .map(|vcpu| {
            vcpu.release();
            vcpu.recorded.get()
        })
        .sum()
}

/// In a forked child, whose only thread calls this: it has no relay and no
/// lock; those of its parent are its parent's.
pub fn forget_all(segment: &Segment) {
    segment.reopen();
    for entry in &TABLE {
        entry.store(std::ptr::null_mut(), Relaxed);
    }
    for taken in &TAKEN {
        taken.store(false, Relaxed);
    }
}

/// Rings the host when the relay's ring fills.
struct Waker {
    segment: &'static Segment,
    client: u32,
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waker({})", self.client)
    }
}

impl Wake for Waker {
    fn wake(&self) {
        self.segment.ring(self.client);
    }
}

/// Random, nonzero.
fn token() -> u64 {
    let mut token = 0u64;
    // SAFETY: writes at most 8 bytes to `token`.
    unsafe { libc::getrandom((&raw mut token).cast(), 8, 0) };
    // Without a random one: no two leases are at one time.
    (if token == 0 { ticks() } else { token }) | 1
}

/// No relay for this point.
#[cold]
pub fn refused() {
    count(Counter::NoRelay);
}
