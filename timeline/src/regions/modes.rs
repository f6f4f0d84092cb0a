// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The maximum time that a guest's thread can have run, if only the host's kernel was recorded. The maximum
//! is the time in which at least one vCPU may have been in guest mode.
//!
//! The guest's kernel may move its thread to another vCPU at any time, and the host does not see such a move.
//! So the thread may have run while any vCPU was in guest mode, and did not run while all vCPUs were proven
//! to be out of guest mode.

use super::parts::{Interval, Part};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of kept times in which a vCPU was out of guest mode, of 16 bytes each. Beyond this number,
/// no times are kept, and each vCPU counts as possibly in guest mode at any time.
const MAX_TIMES: usize = 1 << 22;

/// The times in which the threads of a session's host were out of guest mode.
#[derive(Debug, Default)]
pub(super) struct GuestModes {
    /// For each index of a thread, the times out of guest mode, in order.
    out: BTreeMap<usize, Vec<(i64, i64)>>,
    /// Threads that have been in guest mode at some time. Each such thread runs a vCPU.
    vcpus: BTreeSet<usize>,
    times: usize,
}

impl GuestModes {
    /// Adds the next proven interval of a thread. `is_merged`: whether the interval is the sum of several
    /// intervals.
    pub fn take(&mut self, thread: usize, interval: &Interval, is_merged: bool) {
        match interval.part {
            Part::Guest => {
                self.vcpus.insert(thread);
            }
            Part::Unknown => {}
            _ if is_merged => {}
            _ => {
                let out = self.out.entry(thread).or_default();
                match out.last_mut() {
                    Some((_, to)) if *to == interval.from => *to = interval.to,
                    _ if self.times < MAX_TIMES => {
                        out.push((interval.from, interval.to));
                        self.times += 1;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns the times in which all vCPUs were out of guest mode; `None` if there is no vCPU, or if nothing
    /// shows a vCPU in `known` in guest mode. `is_its`: whether a thread may run this guest.
    pub fn all_out(
        &self,
        mut known: impl Iterator<Item = usize>,
        is_its: impl Fn(usize) -> bool,
    ) -> Option<AllOut> {
        if known.any(|vcpu| !self.vcpus.contains(&vcpu)) {
            return None;
        }
        let vcpus = Vec::from_iter(self.vcpus.iter().filter(|vcpu| is_its(**vcpu)));
        let out = vcpus.iter().filter_map(|vcpu| self.out.get(vcpu)).flatten();
        let mut borders = Vec::from_iter(out.flat_map(|(from, to)| [(*from, 1), (*to, -1)]));
        borders.sort_unstable();
        let (mut all, mut count, mut since, mut ns) = (Vec::new(), 0, None, 0);
        for (at, change) in borders {
            count += change;
            match since {
                Some(from) if count < vcpus.len() as i64 => {
                    all.push((from, at, ns));
                    ns += at.abs_diff(from);
                    since = None;
                }
                None if count == vcpus.len() as i64 => since = Some(at),
                _ => {}
            }
        }
        (!vcpus.is_empty()).then_some(AllOut(all))
    }
}

/// The times in which no vCPU was in guest mode, in order. Each time comes with the sum of all earlier times.
#[derive(Debug)]
pub(super) struct AllOut(Vec<(i64, i64, u64)>);

impl AllOut {
    /// Returns the maximum time in nanoseconds that a thread of the guest can have run between two times.
    pub fn at_most(&self, from: i64, to: i64) -> u64 {
        let until = |time: i64| {
            let after = self.0.partition_point(|(from, ..)| *from < time);
            let last = after.checked_sub(1).map(|last| self.0[last]);
            last.map_or(0, |(from, to, before)| before + to.min(time).abs_diff(from))
        };
        let all = to.saturating_sub(from).max(0).unsigned_abs();
        all.saturating_sub(until(to).saturating_sub(until(from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a thread that changes between guest mode and the kernel at these times. One interval of the
    /// thread is unknown.
    fn take(modes: &mut GuestModes, thread: usize, times: &BTreeSet<i64>) -> Vec<(i64, i64)> {
        let mut out = Vec::new();
        let ends = Vec::from_iter(times.iter().copied());
        for (number, pair) in ends.windows(2).enumerate() {
            let part = match number % 3 {
                0 => Part::Guest,
                1 if number == 4 => Part::Unknown,
                1 => Part::Kernel,
                _ => Part::Blocked,
            };
            let (from, to) = (pair[0], pair[1]);
            modes.take(
                thread,
                &Interval { from, to, part, reason: 0, cause: 0, ended_by: None },
                false,
            );
            if ![Part::Guest, Part::Unknown].contains(&part) {
                out.push((from, to));
            }
        }
        out
    }

    proptest! {
        #[test]
        fn a_thread_can_have_run_whenever_any_vcpu_may_have_been_in_guest_mode(
            first in prop::collection::btree_set(0..200i64, 2..20),
            second in prop::collection::btree_set(0..200i64, 2..20),
            from in 0..200i64,
            length in 0..200i64,
        ) {
            let mut modes = GuestModes::default();
            let out = [take(&mut modes, 3, &first), take(&mut modes, 8, &second)];
            let is_out = |at: i64| out.iter().all(|of| of.iter().any(|(a, b)| *a <= at && at < *b));
            let expected = (from..from + length).filter(|at| !is_out(*at)).count() as u64;

            let found = modes.all_out([3, 8].into_iter(), |_| true).unwrap().at_most(from, from + length);

            prop_assert_eq!(found, expected);
        }
    }
}
