// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Which of the threads that have one number after another is meant.

use super::followed::{TIDS, Tids};

/// Number of a thread among those that had its number, from 0.
pub(super) type Life = u16;
/// Which of them it is, is not known.
pub(super) const UNKNOWN: Life = Life::MAX;

/// The threads of a machine that have a number now. A thread that was not seen before the recording's first event of it is the
/// first with its number.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// By thread's number. Its memory is used where a thread has ended.
    all: Box<[Life]>,
    /// Numbers of threads that had a CPU since the thread before ended.
    seen: Tids,
}

impl Lives {
    /// Returns which thread has a number.
    pub fn of(&self, tid: u32) -> Life {
        self.all.get(tid as usize).copied().unwrap_or(0)
    }

    /// Notes that a thread has a CPU.
    pub fn see(&mut self, tid: u32) {
        self.seen.insert(tid);
    }

    /// Notes that a thread ended: another one may get its number.
    pub fn end(&mut self, tid: u32) {
        self.seen.remove(tid);
        if self.all.is_empty() {
            self.all = vec![0; TIDS].into();
        }
        if let Some(life) = self.all.get_mut(tid as usize) {
            *life = (*life + 1).min(UNKNOWN - 1);
        }
    }

    /// Notes that a thread begins. If another one had its number, that one's end is missing.
    pub fn begin(&mut self, tid: u32) {
        if self.seen.contains(tid) {
            self.end(tid);
        }
    }
}
