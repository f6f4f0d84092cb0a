//! Rings of the VMM's own threads: a fixed pool, claimed per thread.
//!
//! A vCPU's thread records reference points and its own events here without a
//! lock, an allocation or a wait: a ring has one producer, the thread that
//! claimed it, and one consumer, the drain loop. The layout is a client's.
#![allow(unsafe_code)] // one lifetime, see `Claim`

use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::{Geometry, GeometryError, guest_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Lease, LeaseInfo, Producer, ProducerState,
};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as StdAtomicU64};

/// One ring of the pool.
#[derive(Debug)]
pub(crate) struct HostRing {
    area: Box<[AtomicU64]>,
    geometry: Geometry,
    state: ProducerState,
    claimed: AtomicBool,
}

fn words(count: u64) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl HostRing {
    /// A ring of this many bytes, and a schema log that is large enough for
    /// any VMM's events.
    pub fn new(ring_bytes: u64) -> Result<HostRing, GeometryError> {
        let geometry = Geometry {
            clients: 1,
            legacy_args: 1,
            ring_bytes,
            block_bytes: (ring_bytes / 16).min(64 * 1024),
            schema_bytes: 64 * 1024,
        };
        geometry.check()?;
        Ok(HostRing {
            area: words(geometry.client_stride() / 8),
            geometry,
            state: ProducerState::new(),
            claimed: AtomicBool::new(false),
        })
    }

    fn memory(&self) -> Option<ClientMemory<'_>> {
        ClientMemory::new(&self.area, &self.geometry, RingMode::Discard)
    }
}

/// The drain loop's side of a host ring.
#[derive(Debug)]
pub(crate) struct HostConsumer {
    ring: Arc<HostRing>,
    state: ConsumerState,
    /// What stood in page G when a pass began: the consumer sees the ring only
    /// so far.
    noted: Box<[AtomicU64]>,
}

impl HostConsumer {
    pub fn new(ring: Arc<HostRing>) -> HostConsumer {
        HostConsumer {
            ring,
            state: ConsumerState::default(),
            noted: words(hypertrace_abi::layout::PAGE / 8),
        }
    }

    /// Notes how far the ring goes now.
    pub fn note(&self) {
        // Head first: the schemas of all records below it are in the log.
        for word in
            [guest_page::HEAD, guest_page::LOST_FULL, guest_page::LOST_BUSY, guest_page::SCHEMA_LEN]
        {
            // ORDERING: pairs with the Release of head in `Producer::publish`
            // and of the log's length in `schema_log::append`; the consumer
            // that loads from `noted` is this thread.
            let value = self.ring.area[word].load(Ordering::Acquire);
            self.noted[word].store(value, Ordering::Relaxed);
        }
    }

    /// The ring as far as was noted.
    pub fn consumer(&mut self) -> Option<Consumer<'_>> {
        let mut memory = self.ring.memory()?;
        memory.guest = &self.noted;
        Some(Consumer::new(memory, &mut self.state))
    }
}

/// A thread's hold on a ring.
struct Claim {
    session: u64,
    producer: Producer<'static>,
    /// Keeps what `producer` points to.
    ring: Arc<HostRing>,
}

impl Claim {
    fn new(session: u64, ring: &Arc<HostRing>, name: &str, now: u64) -> Option<Claim> {
        // ORDERING: pairs with the Release in `drop`: whatever the thread
        // before wrote to the ring's private state is seen here.
        if ring.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let ring = Arc::clone(ring);
        // SAFETY: the ring lives on the heap, at one address, until the last
        // Arc to it is dropped; the Claim owns one, and the producer, whose
        // references these become, is never given out longer than the Claim
        // is borrowed. Everything behind it is atomic or not written to.
        let long: &'static HostRing = unsafe { &*Arc::as_ptr(&ring) };
        let info =
            LeaseInfo { pid: std::process::id(), tid: thread_id(), clock: ClockKind::Tsc, name };
        let producer =
            Producer::lease(long.memory()?, &long.state, Lease::new(token(), now, &info), false);
        Some(Claim { session, producer, ring })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.producer.release();
        // ORDERING: pairs with the Acquire in `new`.
        self.ring.claimed.store(false, Ordering::Release);
    }
}

fn thread_id() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Random, nonzero.
fn token() -> u64 {
    RandomState::new().hash_one(ticks()) | 1
}

thread_local! {
    static CLAIM: RefCell<Option<Claim>> = const { RefCell::new(None) };
}

/// The pool of a session.
#[derive(Debug)]
pub(crate) struct HostRings {
    session: u64,
    rings: Box<[Arc<HostRing>]>,
}

impl HostRings {
    pub fn new(count: usize, ring_bytes: u64) -> Result<HostRings, GeometryError> {
        static SESSIONS: StdAtomicU64 = StdAtomicU64::new(1);
        let rings = (0..count)
            .map(|_| HostRing::new(ring_bytes).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(HostRings { session: SESSIONS.fetch_add(1, Ordering::Relaxed), rings })
    }

    /// The drain loop's sides.
    pub fn consumers(&self) -> Vec<HostConsumer> {
        self.rings.iter().map(|ring| HostConsumer::new(Arc::clone(ring))).collect()
    }

    /// Claims a ring for the calling thread, under a name. `false`: none is
    /// free.
    pub fn attach(&self, name: &str) -> bool {
        CLAIM
            .try_with(|cell| {
                let Ok(mut slot) = cell.try_borrow_mut() else {
                    return false;
                };
                // First what it had, so that it may get the same again.
                *slot = None;
                *slot = self.claim(name, ticks());
                slot.is_some()
            })
            .unwrap_or(false)
    }

    /// Gives the calling thread's ring to `emit`; claims one at first use, as
    /// of `now`. `None`: there is none to be had, or the thread ends.
    #[inline]
    pub fn with<R>(&self, now: u64, emit: impl FnOnce(&Producer<'_>) -> R) -> Option<R> {
        CLAIM
            .try_with(|cell| {
                if let Ok(slot) = cell.try_borrow()
                    && let Some(claim) = slot.as_ref()
                    && claim.session == self.session
                {
                    return Some(emit(&claim.producer));
                }
                self.claim_now(cell, now)?;
                let slot = cell.try_borrow().ok()?;
                Some(emit(&slot.as_ref()?.producer))
            })
            .ok()
            .flatten()
    }

    #[cold]
    fn claim_now(&self, cell: &RefCell<Option<Claim>>, now: u64) -> Option<()> {
        // A signal handler in the middle of an emit finds it borrowed.
        let mut slot = cell.try_borrow_mut().ok()?;
        *slot = None;
        let thread = std::thread::current();
        *slot = self.claim(thread.name().unwrap_or("thread"), now);
        Some(())
    }

    fn claim(&self, name: &str, now: u64) -> Option<Claim> {
        self.rings.iter().find_map(|ring| Claim::new(self.session, ring, name, now))
    }
}
