// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times in which a hypervisor took time from the machine of a session.

use super::store::Store;
use crate::sort;

/// Times of each session: in order, and apart from each other.
#[derive(Debug)]
pub(super) struct Steals(Vec<Vec<(i64, i64)>>);

impl Steals {
    /// Takes the times of all recordings of each session.
    pub fn new(mut all: Vec<Vec<(i64, i64)>>) -> Steals {
        for of_session in &mut all {
            sort::by_key(of_session, |times| *times);
            of_session.dedup_by(|next, before| {
                let joins = next.0 <= before.1;
                before.1 = if joins { before.1.max(next.1) } else { before.1 };
                joins
            });
        }
        Steals(all)
    }

    /// Counts the regions that one of the times touches.
    pub fn hit(&self, store: &Store, regions: &[u32]) -> u64 {
        if self.0.iter().all(Vec::is_empty) {
            return 0;
        }
        let is_hit = |index: &&u32| {
            let sample = store.get(**index);
            let Some(times) = self.0.get(usize::from(sample.session)) else { return false };
            let next = times.partition_point(|(_, to)| *to <= sample.begin_ns);
            times.get(next).is_some_and(|(from, _)| *from < sample.end_ns())
        };
        regions.iter().filter(is_hit).count() as u64
    }
}
