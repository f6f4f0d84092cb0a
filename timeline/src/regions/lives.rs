// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lives of threads' numbers. Several threads can have the same id, one after another. The life tells which
//! of these threads is meant.

use super::followed::{TIDS, Tids};

/// Index of a thread, from 0, among all threads that had the same id.
pub(super) type Life = u16;
/// Stands for the life of an unknown thread: several threads had the same number, and nothing says which of
/// these threads is meant.
pub(super) const UNKNOWN: Life = Life::MAX;

/// The life that each thread id of a machine has now. The first thread that the recording shows with an id
/// has the life 0.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Lives, by thread id. The memory is allocated when the first thread ends.
    all: Box<[Life]>,
    /// Ids of threads that had a CPU since the previous thread with the same id ended.
    seen: Tids,
}

impl Lives {
    /// Returns the life of the thread that now has the id `tid`.
    pub fn of(&self, tid: u32) -> Life {
        self.all.get(tid as usize).copied().unwrap_or(0)
    }

    /// Notes that a thread has a CPU.
    pub fn see(&mut self, tid: u32) {
        self.seen.insert(tid);
    }

    /// Notes that a thread ended, so that another thread may get its id.
    pub fn end(&mut self, tid: u32) {
        self.seen.remove(tid);
        if self.all.is_empty() {
            self.all = vec![0; TIDS].into();
        }
        if let Some(life) = self.all.get_mut(tid as usize) {
            *life = (*life + 1).min(UNKNOWN - 1);
        }
    }

    /// Notes that a thread begins. If a thread with this number already had a CPU, then the event of that
    /// thread's end is missing.
    pub fn begin(&mut self, tid: u32) {
        if self.seen.contains(tid) {
            self.end(tid);
        }
    }
}
