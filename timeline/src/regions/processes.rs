// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Finds the thread that began the end of a process with several threads.
//!
//! If a thread calls `exit_group`, or if a signal ends a thread, then the whole process ends: the kernel
//! sends SIGKILL to all other threads. Each of these other threads takes the SIGKILL before the thread ends.
//! The thread that began the end takes no SIGKILL. A thread that returns from its start routine takes no
//! SIGKILL either, but does not end the process. So a thread is named only if no other thread can have begun
//! the end. Suppose that one thread of the process slept, or was started, after another thread had ended.
//! Then the process had not been told to end by that time, so the ended thread did not begin the process's
//! end.

use std::collections::HashMap;

/// Maximum number of processes whose end is kept, of some 100 bytes each.
const MAX: usize = 1 << 16;

/// Serial number of a process. `None` if the process began before the recording: such a process may have
/// threads that nothing shows.
pub(super) type Number = Option<u32>;

/// A thread that may have begun the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginner {
    /// Id of the thread; `None` if an interrupt sent the signal.
    pub tid: Option<u32>,
    /// Place of the thread's last record at the time `time`.
    pub at: u64,
    /// Time at which the thread ended, or sent the signal.
    pub time: i64,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Time until which no thread was told to end.
    alive_until: i64,
    /// Last two threads that ended without SIGKILL, the later one first.
    ended: [Option<Beginner>; 2],
    /// Last thread that sent SIGKILL to the process.
    sent: Option<Beginner>,
}

/// The processes that began in a recording.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Serial number of the process that began last.
    last: u32,
    ends: HashMap<u32, End>,
}

impl Processes {
    /// Returns the serial number of a new process.
    pub fn start(&mut self) -> Number {
        self.last = self.last.wrapping_add(1);
        Some(self.last)
    }

    /// Processes the end of a thread that took no SIGKILL.
    pub fn ended(&mut self, process: Number, by: Beginner, first: u64) {
        if let Some(end) = self.end(process, first) {
            end.ended = [Some(by), end.ended[0]];
        }
    }

    /// Processes a SIGKILL that a thread sent to a process.
    pub fn sent(&mut self, process: Number, by: Beginner, first: u64) {
        if let Some(end) = self.end(process, first) {
            end.sent = Some(by);
        }
    }

    /// Processes the SIGKILL of a thread. Until the time `alive_until`, the thread had not been told to end.
    pub fn killed(&mut self, process: Number, alive_until: i64, first: u64) {
        if let Some(end) = self.end(process, first) {
            end.alive_until = end.alive_until.max(alive_until);
        }
    }

    /// Returns the thread that began the end of a process, if no other thread can have begun the end.
    pub fn beginner(&self, process: Number) -> Option<Beginner> {
        let end = self.ends.get(&process?)?;
        let all = end.ended.iter().chain([&end.sent]).flatten();
        let mut possible = all.filter(|by| by.time >= end.alive_until);
        possible.next().filter(|_| possible.next().is_none()).copied()
    }

    /// Forgets all ends, because events are missing.
    pub fn forget(&mut self) {
        self.ends.clear();
    }

    /// Returns the end of a process. If there are too many ends, the ends whose records are older than
    /// `first` are forgotten. If too many ends remain, all ends are forgotten.
    fn end(&mut self, process: Number, first: u64) -> Option<&mut End> {
        let process = process?;
        if self.ends.len() >= MAX && !self.ends.contains_key(&process) {
            self.ends.retain(|_, end| {
                let all = end.ended.iter().chain([&end.sent]).flatten();
                all.map(|by| by.at).max().is_some_and(|at| at >= first)
            });
            if self.ends.len() >= MAX {
                self.forget();
            }
        }
        let new = End { alive_until: i64::MIN, ended: [None; 2], sent: None };
        Some(self.ends.entry(process).or_insert(new))
    }
}
