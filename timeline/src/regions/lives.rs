// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lives of threads' numbers: a life says which of the threads that had a number, one after another, is
//! meant.

use super::followed::{TIDS, Tids};

/// Number of a thread among the threads that had its number, from 0.
pub(super) type Life = u16;
/// Life of a thread of which it is not known which one is meant.
pub(super) const UNKNOWN: Life = Life::MAX;

/// The threads of a machine that have a number now. If a thread was not seen before, its first event in the
/// recording makes it the first thread with its number.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Life by the thread's number. Memory is allocated once a thread has ended.
    all: Box<[Life]>,
    /// Numbers of threads that had a CPU since the thread before ended.
    seen: Tids,
}

impl Lives {
    /// Returns the life of the thread that has a number.
    pub fn of(&self, tid: u32) -> Life {
        self.all.get(tid as usize).copied().unwrap_or(0)
    }

    /// Notes that a thread has a CPU.
    pub fn see(&mut self, tid: u32) {
        self.seen.insert(tid);
    }

    /// Notes that a thread ended, so that another thread may get its number.
    pub fn end(&mut self, tid: u32) {
        self.seen.remove(tid);
        if self.all.is_empty() {
            self.all = vec![0; TIDS].into();
        }
        if let Some(life) = self.all.get_mut(tid as usize) {
            *life = (*life + 1).min(UNKNOWN - 1);
        }
    }

    /// Notes that a thread begins. If another thread had its number, the event of that thread's end is
    /// missing.
    pub fn begin(&mut self, tid: u32) {
        if self.seen.contains(tid) {
            self.end(tid);
        }
    }
}
