//! Rings of the VMM's own threads: a fixed pool from which each thread claims one.
//!
//! The thread of a vCPU records reference points and its own events in its ring without a lock, an allocation
//! or a wait. A ring needs no lock and no wait, because only the thread that has claimed the ring writes to
//! the ring, and only the drain loop reads the ring. A host ring has the layout of a client's ring.
#![allow(unsafe_code)] // one lifetime, see `Claim`; one pointer, see `HELD`

use super::registry;
use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_abi::layout::{Geometry, GeometryError, WORD, guest_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, LeaseInfo, Producer, ProducerState, Wake};
use hypertrace_format::limits::MAX_LOST;
use rustix::thread::gettid;
use std::alloc::{Layout, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64 as StdAtomicU64};
use std::sync::{Arc, Once, OnceLock};
use zerocopy::{AllocError, FromZeros};

/// One ring of the pool.
#[derive(Debug)]
pub(crate) struct HostRing {
    area: Box<[AtomicU64]>,
    geometry: Geometry,
    mode: RingMode,
    state: ProducerState,
    claimed: AtomicBool,
    /// Minimum length of a pause in ticks: the first event after such a pause wakes the drain loop.
    pause: u64,
    waker: Arc<Waker>,
}

/// Wakes the drain loop, which empties the rings.
#[derive(Default)]
pub(crate) struct Waker {
    call: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// True if a thread has woken the drain loop, and the drain loop has not begun a pass yet.
    called: AtomicBool,
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("called", &self.called).finish_non_exhaustive()
    }
}

impl Wake for Waker {
    fn wake(&self) {
        if let Some(call) = self.call.get()
            && !self.called.load(Ordering::Relaxed)
            && !self.called.swap(true, Ordering::Relaxed)
        {
            call();
        }
    }
}

// SAFETY: only the thread that has claimed the ring uses `state`, and all fields of `state` are atomic. All
// other fields of the ring are `Sync`.
unsafe impl Sync for HostRing {}

impl HostRing {
    /// Returns a ring of `ring_bytes`, with a schema log that is large enough for any VMM's events.
    fn new(
        ring_bytes: u64,
        mode: RingMode,
        pause: u64,
        waker: &Arc<Waker>,
    ) -> Result<HostRing, GeometryError> {
        let geometry = Geometry {
            clients: 1,
            legacy_args: 1,
            ring_bytes,
            block_bytes: (ring_bytes / 16).min(64 * 1024),
            schema_bytes: 64 * 1024,
        };
        geometry.check()?;
        Ok(HostRing {
            area: zeros((geometry.client_stride() / WORD) as usize),
            geometry,
            mode,
            state: ProducerState::new(),
            claimed: AtomicBool::new(false),
            pause,
            waker: Arc::clone(waker),
        })
    }

    /// Returns the memory that the producer and the consumer share.
    pub fn memory(&self) -> Option<ClientMemory<'_>> {
        ClientMemory::new(&self.area, &self.geometry, self.mode)
    }

    /// Returns the position up to which the ring is written now.
    pub fn head(&self) -> u64 {
        // ORDERING: pairs with the Release of head in `Producer::publish`: later operations of this thread
        // happen after the stores of the records before head.
        self.area[guest_page::HEAD].load(Ordering::Acquire)
    }

    /// Returns true if a thread is in the middle of an emit.
    pub fn is_busy(&self) -> bool {
        self.state.interrupted_since().is_some()
    }

    /// Returns true if a thread has claimed the ring.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }
}

/// Returns `words` zeros. The zeros lie in fresh pages of the kernel: a page takes no memory before the first
/// write to the page.
fn zeros(words: usize) -> Box<[AtomicU64]> {
    <[AtomicU64]>::new_box_zeroed_with_elems(words).unwrap_or_else(|AllocError| {
        handle_alloc_error(Layout::array::<AtomicU64>(words).unwrap_or(Layout::new::<u64>()))
    })
}

/// A thread's claim to a ring.
struct Claim {
    session: u64,
    producer: Producer<'static>,
    /// Keeps the ring alive, because `producer` points to the ring.
    ring: Arc<HostRing>,
}

impl Claim {
    fn new(session: u64, ring: &Arc<HostRing>, name: &str, now: u64) -> Option<Claim> {
        // ORDERING: pairs with the Release in `drop`, so that this thread sees all stores of the previous
        // thread to the ring's private state.
        if ring.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let ring = Arc::clone(ring);
        // SAFETY: the ring lives on the heap, at one address, until the last Arc to it is dropped. The Claim
        // owns one Arc. The producer holds these references, and a caller never gets the producer for longer
        // than the caller borrows the Claim. All data to which the producer refers are either atomic or never
        // written.
        let long: &'static HostRing = unsafe { &*Arc::as_ptr(&ring) };
        let (pid, tid) = (std::process::id(), gettid().as_raw_pid() as u32);
        let info = LeaseInfo { pid, tid, name };
        let lease = Lease::new(token(), ClockKind::Tsc, now, &info);
        let producer = Producer::lease(long.memory()?, &long.state, lease, false)
            .waking(&*long.waker, long.pause);
        // The claim itself must wake the drain loop. The lease record counts as an event, so the thread's
        // first event does not follow a pause, and does not wake the drain loop.
        ring.waker.wake();
        Some(Claim { session, producer, ring })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.producer.release();
        // ORDERING: pairs with the Acquire in `Claim::new`.
        self.ring.claimed.store(false, Ordering::Release);
    }
}

/// Returns a random token that is not zero.
fn token() -> u64 {
    RandomState::new().hash_one(ticks()) | 1
}

/// Registers a handler for forks. In the child, the handler removes the claim and the default session, and
/// switches the backend of the rings off. Otherwise the child would keep the claim of the forking thread: a
/// claim to a copy of the ring, which no drain loop empties.
fn forget_at_fork() {
    extern "C" fn child() {
        HELD.set(ptr::null());
        DEFAULT.store(ptr::null_mut(), Ordering::Relaxed);
        PROCESS.store(0, Ordering::Relaxed);
        FORKS.fetch_add(1, Ordering::Relaxed);
        registry::forget_sessions();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `child` only stores to atomics and to a thread-local without a destructor. If the machine
        // has no memory left, `child` is not registered, and the events of a forked child go to the child's
        // copy of a ring.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

thread_local! {
    /// The thread's claim, for the hot path: null, or a pointer to the claim in `OWNED`. This value is a
    /// plain word without a destructor, so a thread can read it without a check.
    static HELD: Cell<*const Claim> = const { Cell::new(ptr::null()) };
    static OWNED: Owned = const { Owned(RefCell::new(None)) };
    /// Ledger that counts the thread's events if the thread found no ring.
    static DENIED: RefCell<Option<Arc<Unattached>>> = const { RefCell::new(None) };
}

/// A session's count of lost events that belong to no stream: the events of the VMM's threads that found no
/// ring, and the events of processes that hold no client.
#[derive(Debug, Default)]
pub(crate) struct Unattached(StdAtomicU64);

impl Unattached {
    /// Returns the number of all lost events that belong to no stream.
    pub fn events(&self) -> u64 {
        self.0.load(Ordering::Relaxed).min(MAX_LOST)
    }

    /// Counts more events.
    pub fn add(&self, events: u64) {
        let sum = |sum: u64| Some(sum.saturating_add(events).min(MAX_LOST));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

/// Holds the thread's claim, and gives the claim back when the thread ends.
struct Owned(RefCell<Option<Box<Claim>>>);

impl Owned {
    /// Replaces the claim. Returns `None` if the thread gets no new claim. If the thread is in the middle of
    /// an emit, the old claim stays, and the call also returns `None`.
    fn replace(&self, claim: impl FnOnce() -> Option<Claim>) -> Option<()> {
        // If this code runs in a signal handler that interrupted a replacement, the cell is borrowed already.
        let mut slot = self.0.try_borrow_mut().ok()?;
        // An emit calls foreign code (a field's `put`, the waker), which may call this function. The emit
        // holds a reference to the claim until it ends.
        if slot.as_ref().is_some_and(|claim| claim.ring.state.interrupted_since().is_some()) {
            return None;
        }
        HELD.set(ptr::null());
        // The old claim is dropped first, so that the thread may get the same ring again.
        *slot = None;
        let claim = slot.insert(Box::new(claim()?));
        HELD.set(&raw const **claim);
        Some(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        HELD.set(ptr::null());
    }
}

/// Calls `f` with the calling thread's claim, if there is one.
#[inline(always)]
fn held<R>(f: impl FnOnce(&Claim) -> R) -> Option<R> {
    let claim = HELD.get();
    // SAFETY: if the pointer is not null, it points to the claim in this thread's `OWNED`: `replace` and the
    // destructor set the pointer to null before they drop that claim. `f` keeps no reference, and the claim
    // lives until `f` returns: the destructor runs only when this thread ends, and `replace` runs only on
    // this thread. `f` may call foreign code (a field's `put` and `words`, the waker) only through the
    // producer in the middle of an emit. During an emit, the producer's `busy` word is set, and `replace`
    // refuses.
    (!claim.is_null()).then(|| f(unsafe { &*claim }))
}

/// The rings for threads without a claim: see [`Session::install`](crate::Session::install).
static DEFAULT: AtomicPtr<HostRings> = AtomicPtr::new(ptr::null_mut());
/// Number of events that were lost because the thread belonged to no session and there was no default
/// session.
static UNATTACHED: StdAtomicU64 = StdAtomicU64::new(0);
/// Number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Number of bits in a process number.
#[cfg(feature = "events")]
const PROCESS_BITS: u32 = 22;
/// Random number of this process, or 0 if the process has not drawn the number yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns a random number of this process, which has 22 bits and is not 0. Only the first call makes a
/// system call. A pid is not enough, because another process can have the same pid, in another PID namespace
/// or at a later time.
#[cfg(feature = "events")]
#[inline(always)]
pub fn process_number() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => note_process(),
        number => number,
    }
}

#[cfg(feature = "events")]
#[cold]
fn note_process() -> u32 {
    // The handler is registered before the number is stored, because a forked child must not find its
    // parent's number.
    forget_at_fork();
    // The pid is part of the hash, because a forked child has its parent's `RandomState`, too.
    let random = RandomState::new().hash_one((std::process::id(), ticks()));
    let number = ((random >> (u64::BITS - PROCESS_BITS)) as u32).max(1);
    // Another thread may have drawn a number meanwhile.
    match PROCESS.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => number,
        Err(other) => other,
    }
}

/// Returns the number of declared events that were lost because the thread was attached to no session and
/// there was no default session.
pub(crate) fn unattached() -> u64 {
    UNATTACHED.load(Ordering::Relaxed)
}

/// Records a declared event on the calling thread's ring. The ring may belong to any session.
#[cfg(feature = "events")]
#[inline(always)]
pub fn emit<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    let claim = HELD.get();
    if claim.is_null() {
        return emit_first(site, fields);
    }
    // SAFETY: as in `held`.
    let claim = unsafe { &*claim };
    claim.producer.emit((site, fields), ticks)
}

/// Records a thread's first event.
#[cfg(feature = "events")]
#[cold]
#[inline(never)]
fn emit_first<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    let rings = DEFAULT.load(Ordering::Acquire);
    if rings.is_null() {
        let denied = |ledger: &RefCell<Option<Arc<Unattached>>>| {
            // The cell is borrowed if this code runs in a signal handler that interrupted an attach.
            ledger.try_borrow().ok()?.as_ref()?.add(1);
            Some(())
        };
        if DENIED.try_with(denied).ok().flatten().is_none() {
            UNATTACHED.fetch_add(1, Ordering::Relaxed);
        }
        return Emit::Unleased;
    }
    // SAFETY: `install` stored a pointer to rings that are never freed.
    let rings = unsafe { &*rings };
    rings.emit(site, fields)
}

/// Claims a ring of the default session for the calling thread. Returns `false` if no ring is free, or if
/// there is no default session.
pub fn attach(name: &str) -> bool {
    let rings = DEFAULT.load(Ordering::Acquire);
    // SAFETY: `install` stored a pointer to rings that are never freed.
    !rings.is_null() && unsafe { &*rings }.attach(name)
}

/// The pool of a session's rings.
#[derive(Debug)]
pub(crate) struct HostRings {
    session: u64,
    pub rings: Box<[Arc<HostRing>]>,
    waker: Arc<Waker>,
    /// [`FORKS`] of the process whose drain loop empties the rings. Any other process has only a copy of the
    /// rings, which no drain loop empties.
    forks: AtomicU32,
    pub unattached: Arc<Unattached>,
}

impl HostRings {
    pub fn new(
        count: usize,
        ring_bytes: u64,
        mode: RingMode,
        pause: u64,
    ) -> Result<HostRings, GeometryError> {
        static SESSIONS: StdAtomicU64 = StdAtomicU64::new(1);
        forget_at_fork();
        let waker = Arc::<Waker>::default();
        let rings = (0..count)
            .map(|_| HostRing::new(ring_bytes, mode, pause, &waker).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let forks = FORKS.load(Ordering::Relaxed).into();
        Ok(HostRings { session, rings, waker, forks, unattached: Arc::default() })
    }

    /// Returns true if the rings belong to this process.
    pub fn are_here(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks.load(Ordering::Relaxed)
    }

    /// Makes this process the owner of the rings, after a fork. Returns `false` if this process owns the
    /// rings already.
    pub fn adopt(&self) -> bool {
        let forks = FORKS.load(Ordering::Relaxed);
        self.forks.swap(forks, Ordering::Relaxed) != forks
    }

    /// Leaves the rings to another process. Returns `false` if another process owns the rings already.
    pub fn leave(&self) -> bool {
        // No process counts `u32::MAX` forks, so no process owns the rings until a process adopts them.
        self.forks.swap(u32::MAX, Ordering::Relaxed) == FORKS.load(Ordering::Relaxed)
    }

    /// Claims a ring for the calling thread under a name. Returns `false` if no ring is free.
    pub fn attach(&self, name: &str) -> bool {
        self.attach_at(name, ticks())
    }

    fn attach_at(&self, name: &str, now: u64) -> bool {
        let claim = |owned: &Owned| owned.replace(|| self.claim(name, now)).is_some();
        let attached = OWNED.try_with(claim).unwrap_or(false);
        let _ = DENIED.try_with(|denied| {
            if let Ok(mut denied) = denied.try_borrow_mut() {
                *denied = (!attached).then(|| Arc::clone(&self.unattached));
            }
        });
        attached
    }

    /// From this call on, each thread without a ring claims one of these rings.
    pub fn install(self: &Arc<Self>) {
        // The rings are never freed, because some thread may be about to use the pointer.
        DEFAULT.store(Arc::into_raw(Arc::clone(self)).cast_mut(), Ordering::Release);
    }

    /// Records an event on the calling thread's ring in this pool.
    #[inline]
    pub fn emit<S: Site, F: Fields>(&self, site: S, fields: F) -> Emit {
        self.record(ticks, |producer| producer.emit((site, fields), ticks))
    }

    /// Calls `emit` with the calling thread's ring. At the first call, claims a ring with `now` as the time
    /// of the claim. Returns `None` if no ring is free, or if the thread is ending.
    #[inline]
    pub fn with<R>(
        &self,
        now: impl FnOnce() -> u64,
        emit: impl FnOnce(&Producer<'_>) -> R,
    ) -> Option<R> {
        let ours = held(|claim| claim.session) == Some(self.session);
        if !ours && !self.claim_now(now()) {
            return None;
        }
        held(|claim| emit(&claim.producer))
    }

    /// Records one event: calls `emit` as `with` does. Counts the event as lost if the thread gets no ring.
    #[inline]
    pub fn record(
        &self,
        now: impl FnOnce() -> u64,
        emit: impl FnOnce(&Producer<'_>) -> Emit,
    ) -> Emit {
        self.with(now, emit).unwrap_or_else(|| {
            self.unattached.add(1);
            Emit::Unleased
        })
    }

    #[cold]
    fn claim_now(&self, now: u64) -> bool {
        let thread = std::thread::current();
        self.attach_at(thread.name().unwrap_or("thread"), now)
    }

    fn claim(&self, name: &str, now: u64) -> Option<Claim> {
        if !self.are_here() {
            return None;
        }
        self.rings.iter().find_map(|ring| Claim::new(self.session, ring, name, now))
    }

    /// Returns true if the calling thread's ring has room for a record of `words` words, or if the thread has
    /// no ring in this pool.
    pub fn has_room(&self, words: u64) -> bool {
        let room =
            |claim: &Claim| claim.session != self.session || claim.producer.has_room(1, words);
        held(room).unwrap_or(true)
    }

    /// Makes `call` wake the drain loop when a ring fills. Returns `false` if another function is registered
    /// already.
    pub fn wake_by(&self, call: Box<dyn Fn() + Send + Sync>) -> bool {
        self.waker.call.set(call).is_ok()
    }

    /// Wakes the drain loop.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Returns true if the first record of a thread after a pause wakes the drain loop.
    pub fn wakes(&self) -> bool {
        self.waker.call.get().is_some()
    }

    /// Notes that the drain loop begins a pass.
    pub fn woken(&self) {
        self.waker.called.store(false, Ordering::Relaxed);
    }
}
