//! A vCPU's own state: the vCPU's relay, and the addresses of the vCPU's last stores.
//!
//! A relay is a client of the segment that no program leases. The plugin writes all points of one vCPU into
//! the relay's ring, no matter which client has made the points. In the same way, a vCPU's thread in a VMM
//! writes points into a host ring.
//!
//! The code is unsafe, because it finds a vCPU's state by the vCPU's number, and because it reads memory that
//! the guest has mapped.
#![allow(unsafe_code)]

use super::attached::Attached;
use super::place::{Range, look_up};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::{PAGE, WORD};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_segment::token;
use std::cell::UnsafeCell;
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, Ordering::Relaxed};

/// Maximum number of vCPUs, that is threads of a program, that can have a relay. This number also bounds the
/// memory of the vCPUs' state.
const VCPUS: usize = 4096;
/// Maximum number of clients of a segment.
const CLIENTS: usize = 1024;
/// Number of mappings of the segment that a vCPU remembers.
const RANGES: usize = 4;
/// Minimum time between two searches for an address if the first search fails, and between two claims of a
/// relay if the first claim fails, in ticks of the counter. The time is tens of milliseconds.
const PAUSE: u64 = 1 << 26;

static TABLE: [AtomicPtr<Entry>; VCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; VCPUS];
/// Whether a vCPU of this process has the relay. The table is needed, because the locks of the segment's file
/// exclude only other processes.
static CLAIMED: [AtomicBool; CLIENTS] = [const { AtomicBool::new(false) }; CLIENTS];

/// A vCPU of the table. Only the vCPU's own thread uses `vcpu`. Other threads read `recorded`. An entry is
/// never freed; the next vCPU with the same number uses the entry again.
pub struct Entry {
    vcpu: UnsafeCell<Vcpu>,
    /// Number of recorded points. Only the vCPU's own thread stores this number.
    pub recorded: AtomicU64,
}

// SAFETY: only the vCPU's own thread accesses `vcpu`. Each caller of `Entry::vcpu` has to promise that the
// caller is on this thread.
unsafe impl Sync for Entry {}

/// State that only the vCPU's own thread uses.
pub struct Vcpu {
    segment: &'static Attached,
    index: u32,
    ranges: [Range; RANGES],
    /// The register that emitted the last point. The register is remembered, because most points come from
    /// the same register as the point before them.
    pub last: Option<Emitter>,
    /// Time in ticks of the last search that found no offset for an address.
    missed: u64,
    relay: Option<Relay>,
    /// Time in ticks at which an attempt to claim a relay found no free relay.
    refused: u64,
    state: &'static ProducerState,
}

/// A page of a client.
pub type Page = [AtomicU64; (PAGE / WORD) as usize];

/// A client's register EMIT to which a vCPU has stored.
#[derive(Clone, Copy)]
pub struct Emitter {
    /// QEMU's address of the register in the guest's mapping.
    pub address: u64,
    /// Client whose register this is.
    pub client: u32,
    /// Page G of the client, at the guest's address of that page. The plugin uses the guest's address for the
    /// load, because right after the guest's store, a load by another address would wait until the store is
    /// in the cache.
    pub guest: NonNull<Page>,
    /// Page H of the client.
    pub host: &'static Page,
}

/// A client of the segment that this vCPU has claimed.
struct Relay {
    client: u32,
    producer: Producer<'static>,
}

impl Entry {
    /// Finds the vCPU with this number. At the vCPU's first store, makes the entry of the vCPU. Returns
    /// `None` if the number is too high.
    #[inline(always)]
    pub fn get(segment: &'static Attached, index: u32) -> Option<&'static Entry> {
        let entry = TABLE.get(index as usize)?;
        load(entry).or_else(|| make(segment, index, entry))
    }

    /// Finds the vCPU with this index, if this vCPU has stored to a register.
    pub fn find(index: u32) -> Option<&'static Entry> {
        load(TABLE.get(index as usize)?)
    }

    /// Returns the vCPU's own part.
    ///
    /// # Safety
    /// The caller is a callback of this vCPU, on the vCPU's thread, and has no other reference to the vCPU.
    /// QEMU's user mode makes one callback at a time for a vCPU, on the vCPU's thread.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // because of the cell, as the callers promise
    pub unsafe fn vcpu(&self) -> &mut Vcpu {
        // SAFETY: by the caller's promise, this thread has no other reference to the vCPU.
        unsafe { &mut *self.vcpu.get() }
    }
}

#[inline(always)]
fn load(entry: &AtomicPtr<Entry>) -> Option<&'static Entry> {
    // SAFETY: the pointer is null, or `make` has leaked the entry. ORDERING: pairs with the Release in
    // `make`. The thread that called `make` may be another thread, which had the vCPU's number before.
    unsafe { entry.load(Ordering::Acquire).as_ref() }
}

impl Vcpu {
    /// Returns the vCPU's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns a host address's offset in the segment's file. If no known mapping contains the address, reads
    /// the process's mappings. If a read does not find the address, then the next read is delayed, so that
    /// reads do not slow down a program whose marked stores go to other memory.
    #[inline(always)]
    pub fn offset_of(&mut self, address: u64) -> Option<u64> {
        self.ranges[0].offset_of(address).or_else(|| self.look_further(address))
    }

    /// Returns this page's address in the guest's mapping that contained the last address. If this mapping
    /// does not contain the page, returns the page's address in the plugin's mapping.
    pub fn as_guest(&self, segment: &Attached, page: &'static Page) -> NonNull<Page> {
        let at = self.ranges[0].address_of(segment.offset_of(page), PAGE);
        at.and_then(|at| NonNull::new(at as *mut Page)).unwrap_or(page.into())
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
        // The guest may have replaced the mapping of the last point's pages with another mapping.
        self.last = None;
        self.ranges.rotate_right(1);
        self.ranges[0] = range;
        range.offset_of(address)
    }

    /// Returns the ring for this vCPU's points. The first call claims a relay. `now` is the time of the
    /// claim.
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
            let claimed = &CLAIMED[client as usize];
            if claimed.swap(true, Ordering::Acquire) {
                return false;
            }
            let locked = segment.lock.lock(client);
            if !locked {
                claimed.store(false, Ordering::Release);
            }
            locked
        });
        let Some((client, memory)) = client.and_then(|c| Some((c, segment.client(c)?))) else {
            self.refused = now;
            return;
        };
        let name = format!("vcpu {}", self.index);
        // SAFETY: both calls take no argument, and cannot fail.
        let (pid, tid) = unsafe { (libc::getpid() as u32, libc::gettid() as u32) };
        let info = LeaseInfo { pid, tid, name: &name };
        let lease = Lease::new(token(), ClockKind::Tsc, now, &info);
        let producer = Producer::lease(*memory, self.state, lease, false);
        let producer = match segment.bells.get(client as usize) {
            // A point after a long pause need not wake the host, because the host of a segment looks at the
            // rings regularly anyway.
            Some(bell) => producer.waking(bell, u64::MAX),
            None => producer,
        };
        self.relay = Some(Relay { client, producer });
    }

    /// Wakes the host. Callers call this function if the relay's ring is full.
    #[cold]
    pub fn wake_host(&self) {
        if let Some(relay) = &self.relay {
            self.segment.local.ring(relay.client);
        }
    }

    /// Releases the relay for another vCPU, because this vCPU ends.
    pub fn release(&mut self) {
        let Some(relay) = self.relay.take() else { return };
        relay.producer.release();
        self.segment.lock.unlock(relay.client);
        CLAIMED[relay.client as usize].store(false, Ordering::Release);
    }
}

#[cold]
#[inline(never)]
fn make(
    segment: &'static Attached,
    index: u32,
    entry: &AtomicPtr<Entry>,
) -> Option<&'static Entry> {
    let vcpu = Vcpu {
        segment,
        index,
        ranges: [Range::default(); RANGES],
        last: None,
        missed: 0,
        relay: None,
        refused: 0,
        state: Box::leak(Box::new(ProducerState::new())),
    };
    let made = Box::new(Entry { vcpu: UnsafeCell::new(vcpu), recorded: AtomicU64::new(0) });
    // ORDERING: pairs with the Acquire in `load`.
    entry.store(Box::into_raw(made), Ordering::Release);
    load(entry)
}

/// Returns the number of points that all vCPUs have recorded. The function does not release the vCPUs'
/// relays, because other vCPUs may be in a callback now; the end of the process unlocks the relays.
pub fn recorded() -> u64 {
    TABLE.iter().filter_map(load).map(|entry| entry.recorded.load(Relaxed)).sum()
}

/// Forgets all relays and locks in a forked child, because the relays and locks belong to the parent. The
/// child's only thread calls this function.
pub fn forget_all(segment: &Attached) {
    segment.lock.reopen();
    for entry in &TABLE {
        entry.store(std::ptr::null_mut(), Relaxed);
    }
    for claimed in &CLAIMED {
        claimed.store(false, Relaxed);
    }
}

/// Loads the value that the guest has stored to a register. `address` is the register's address in the
/// guest's mapping.
#[inline(always)]
pub fn stored_at(address: u64) -> u64 {
    // SAFETY: the address is aligned, as registers are, and the guest's store to the address is done. The
    // page is mapped, as `store::emit` explains.
    unsafe { (*(address as *const AtomicU64)).load(Relaxed) }
}
