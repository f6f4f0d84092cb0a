//! A cell, in which a thread finds its client.
//!
//! The code is unsafe because a thread fills a cell through a shared reference. A thread has a cell if this
//! thread has set the cell's bit in the process's bitmap.
#![allow(unsafe_code)]

use crate::client::Client;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// A place for a client. Cells are never freed, so a thread-local pointer to a cell is always good.
pub(super) struct ClientCell {
    client: UnsafeCell<MaybeUninit<Client<'static>>>,
    slot: usize,
    /// The next cell that the same thread holds.
    next: AtomicPtr<ClientCell>,
    /// Token of the lease, if the last look found another holder; else 0.
    pub(super) suspect: AtomicU64,
    /// Head of the client's ring at the last look.
    pub(super) looked_at: AtomicU64,
    /// Number of events that the client's threads had tried to emit at the last look. Looks that do not find
    /// the host do not change this number.
    pub(super) attempted: AtomicU64,
    /// Number of events that the client's threads had tried to emit when the present look began.
    pub(super) attempted_now: AtomicU64,
}

// SAFETY: only `fill` writes `client`, and the caller of `fill` has the cell's bit. Only the thread that
// called `fill` reads `client`.
unsafe impl Sync for ClientCell {}
// SAFETY: as above.
unsafe impl Send for ClientCell {}

impl ClientCell {
    pub(super) fn new(slot: usize) -> ClientCell {
        ClientCell {
            client: UnsafeCell::new(MaybeUninit::uninit()),
            slot,
            next: AtomicPtr::new(std::ptr::null_mut()),
            suspect: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            attempted: AtomicU64::new(0),
            attempted_now: AtomicU64::new(0),
        }
    }

    /// Fills the cell for the calling thread.
    ///
    /// # Safety
    /// The calling thread has the cell, and no thread uses the client that is in the cell.
    pub(super) unsafe fn fill(&self, client: Client<'static>) {
        // SAFETY: the caller promises that no other thread looks at the cell. Clients need no drop.
        unsafe { (*self.client.get()).write(client) };
        self.suspect.store(0, Relaxed);
        self.looked_at.store(0, Relaxed);
    }

    /// Returns the client.
    ///
    /// # Safety
    /// The cell was filled for this thread.
    #[inline(always)]
    pub(super) unsafe fn client(&self) -> &Client<'static> {
        // SAFETY: the cell was filled, and is not filled again while this thread holds it.
        unsafe { (*self.client.get()).assume_init_ref() }
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Puts this cell in front of the cells that the thread holds.
    pub(super) fn push_to(&'static self, held: &AtomicPtr<ClientCell>) {
        self.next.store(held.load(Relaxed), Relaxed);
        held.store(std::ptr::from_ref(self).cast_mut(), Relaxed);
    }

    /// Takes the first of the cells that the thread holds.
    pub(super) fn pop_from(held: &AtomicPtr<ClientCell>) -> Option<&'static ClientCell> {
        // SAFETY: the list holds cells only, and cells are never freed.
        let first = unsafe { held.load(Relaxed).as_ref() }?;
        held.store(first.next.load(Relaxed), Relaxed);
        Some(first)
    }
}
