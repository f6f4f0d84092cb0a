//! A seat: where a thread finds its client.
//!
//! Unsafe, because seats are filled by shared references; the bit in the process's
//! bitmap says which thread has a seat.
#![allow(unsafe_code)]

use crate::client::Client;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Never freed, so that a thread-local pointer to one is always good.
pub(super) struct Seat {
    client: UnsafeCell<MaybeUninit<Client<'static>>>,
    slot: usize,
    /// The next seat that the same thread holds.
    next: AtomicPtr<Seat>,
    /// The lease that another's token was seen against at the last look.
    pub(super) suspect: AtomicU64,
    /// Head of the ring at the last look.
    pub(super) looked_at: AtomicU64,
    /// Events that its thread has tried to emit, at the last look before which the host was there.
    pub(super) attempted: AtomicU64,
    /// The same number at a look that is under way.
    pub(super) attempted_now: AtomicU64,
}

// SAFETY: `client` is written only by `fill`, whose caller has the seat's bit,
// and read only by the thread that it was filled for.
unsafe impl Sync for Seat {}
// SAFETY: as above.
unsafe impl Send for Seat {}

impl Seat {
    pub(super) fn new(slot: usize) -> Seat {
        Seat {
            client: UnsafeCell::new(MaybeUninit::uninit()),
            slot,
            next: AtomicPtr::new(std::ptr::null_mut()),
            suspect: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            attempted: AtomicU64::new(0),
            attempted_now: AtomicU64::new(0),
        }
    }

    /// Fills the seat for the calling thread.
    ///
    /// # Safety
    /// The seat is the caller's, and no thread uses the client that is there.
    pub(super) unsafe fn fill(&self, client: Client<'static>) {
        // SAFETY: no other thread looks, says the caller. Clients need no drop.
        unsafe { (*self.client.get()).write(client) };
        self.suspect.store(0, Relaxed);
        self.looked_at.store(0, Relaxed);
    }

    /// Returns the client.
    ///
    /// # Safety
    /// The seat was filled for this thread.
    #[inline(always)]
    pub(super) unsafe fn client(&self) -> &Client<'static> {
        // SAFETY: the seat was filled, and is not filled again while this thread holds it.
        unsafe { (*self.client.get()).assume_init_ref() }
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Puts this seat in front of those that the thread holds.
    pub(super) fn push_to(&'static self, held: &AtomicPtr<Seat>) {
        self.next.store(held.load(Relaxed), Relaxed);
        held.store(std::ptr::from_ref(self).cast_mut(), Relaxed);
    }

    /// Takes the first of the seats that the thread holds.
    pub(super) fn pop_from(held: &AtomicPtr<Seat>) -> Option<&'static Seat> {
        // SAFETY: the list holds seats only, and those are never freed.
        let first = unsafe { held.load(Relaxed).as_ref() }?;
        held.store(first.next.load(Relaxed), Relaxed);
        Some(first)
    }
}
