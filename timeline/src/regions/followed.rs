// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The threads in the filter of a kernel's recording. A switch or a wake-up is recorded if the event names a
//! thread in the filter, even if the event also names another thread. No further events of that other thread
//! are recorded.

use super::marks::Kernel;
use crate::format;

/// Limit of thread ids: Linux's `PID_MAX_LIMIT`.
pub(super) const TIDS: usize = 1 << 22;
/// States of a thread that has ended: `EXIT_DEAD` and `EXIT_ZOMBIE`.
pub(super) const ENDED: i64 = 0x30;

/// A set of threads, with a bit for each number.
#[derive(Debug, Default)]
pub(super) struct Tids(Box<[u64]>);

/// The threads that a recording's filter has.
#[derive(Debug)]
pub(super) struct Followed {
    /// Threads in the filter; `None` if there is no filter.
    threads: Option<Tids>,
}

impl Tids {
    /// Adds a thread. Numbers that Linux does not use are left out.
    pub fn insert(&mut self, tid: u32) {
        if self.0.is_empty() {
            self.0 = vec![0; TIDS / 64].into();
        }
        if let Some(word) = self.0.get_mut(tid as usize / 64) {
            *word |= 1 << (tid % 64);
        }
    }

    /// Removes a thread.
    pub fn remove(&mut self, tid: u32) {
        if let Some(word) = self.0.get_mut(tid as usize / 64) {
            *word &= !(1 << (tid % 64));
        }
    }

    /// Returns whether a thread is in the set.
    pub fn contains(&self, tid: u32) -> bool {
        self.0.get(tid as usize / 64).is_some_and(|word| word >> (tid % 64) & 1 == 1)
    }
}

impl Followed {
    /// Makes the set that the filter has at the recording's beginning.
    pub fn new(first: Option<&[u32]>) -> Followed {
        let set = |threads: &[u32]| {
            let mut tids = Tids::default();
            threads.iter().for_each(|tid| tids.insert(*tid));
            tids
        };
        Followed { threads: first.map(set) }
    }

    /// Returns whether all events of a thread are recorded.
    pub fn has(&self, tid: u32) -> bool {
        self.threads.as_ref().is_none_or(|threads| threads.contains(tid))
    }

    /// If an event proves that a thread is in the filter, adds the thread.
    pub fn add(&mut self, kernel: Kernel, fields: format::Fields<'_>, running: u32) {
        let Some(threads) = &mut self.threads else { return };
        let tid = |field| fields.number(field).and_then(|tid| u32::try_from(tid).ok());
        match kernel {
            Kernel::Switch { prev, next, .. } => match (tid(prev), tid(next)) {
                // At least one of both threads must be in the filter, and the filter never has the idle
                // thread.
                (Some(0), Some(other)) | (Some(other), Some(0)) => threads.insert(other),
                _ => {}
            },
            // The kernel adds each thread that a thread in the filter starts.
            Kernel::Start { tid: field } => {
                if let Some(child) = tid(field).filter(|_| threads.contains(running)) {
                    threads.insert(child);
                }
            }
            Kernel::Wakeup { .. } | Kernel::SwitchIn { .. } | Kernel::SwitchOut { .. } => {}
            // The event names no other thread, so the thread that had the event is in the filter.
            _ => threads.insert(running),
        }
    }

    /// Removes the thread that ended with an event, because another thread may get the same id.
    pub fn remove(&mut self, kernel: Kernel, fields: format::Fields<'_>) {
        let Some(threads) = &mut self.threads else { return };
        if let Kernel::Switch { prev, state, .. } = kernel
            && fields.number(state).is_some_and(|state| state & ENDED != 0)
            && let Some(tid) = fields.number(prev).and_then(|tid| u32::try_from(tid).ok())
        {
            threads.remove(tid);
        }
    }
}
