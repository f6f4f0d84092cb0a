// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The regions that were found, of 152 bytes each. The store also keeps details, such as exits, of as many
//! regions as fit a limit.

use super::parts::{Detail, Times};
use super::spans::inner::Inner;
use crate::inputs::ctf::MAX_CLIENTS;
use std::cmp::Reverse;

/// Number of regions in a chunk. A store of chunks grows without copying regions.
const CHUNK: usize = 1 << 14;
/// Maximum size of details in bytes.
const MAX_DETAILS: usize = 16 << 20;
/// Approximate overhead of an allocation in bytes.
const ALLOCATION: usize = 16;

/// A region that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// Id of the region; 0 between two events.
    pub id: u64,
    /// Unix time of the region's beginning in nanoseconds. Reports show this time minus
    /// [`Recording::start_unix_ns`](crate::Recording::start_unix_ns).
    pub begin_ns: i64,
    /// Time in each part in nanoseconds.
    pub times: Times,
    /// Bound on the error of the duration in nanoseconds. `u32::MAX` if the bound is unknown, or does not
    /// fit.
    pub(super) bound: u32,
    /// Index of the region's group in [`Regions::groups`](super::Regions::groups), which has the region's
    /// name.
    pub group: u16,
    /// Index of the region's thread in the session; [`NO_THREAD`] if the region has no single thread.
    pub(super) thread: u16,
    /// CPU that the region's thread had, if the thread had only one.
    pub(super) cpu: Option<u16>,
    /// The value of [`Sample::span`]; 0 if the region is neither a poll nor a span with polls.
    pub(super) span: u32,
    /// Holder of the client.
    pub(super) holder: Holder,
    /// The value of [`Sample::guest_at_most_ns`], or [`NO_BOUND`] instead of `None`. An `Option` would take
    /// twice the memory.
    pub(super) guest_at_most: u64,
    /// Index of the session in [`Recording::sessions`](crate::Recording::sessions).
    pub session: u16,
    pub(super) state: State,
    /// Number of regions of the same client that were open around this region; 255 if there are 255 or more.
    pub(super) depth: u8,
}

/// Whether a region is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Counted,
    /// The kernel's events of the region's thread were not recorded when the region began or ended. In the
    /// end, the region counts only if no kernel's trace shows any thread of the session.
    Unrecorded,
    /// The region was counted at first, and was dropped later for a reason in
    /// [`NotCounted`](super::NotCounted).
    Dropped,
    /// The region is left out, but may be a child of a counted region.
    Inside,
}

impl State {
    pub fn is_counted(self) -> bool {
        matches!(self, State::Counted | State::Unrecorded)
    }
}

/// Number that stands for the thread of a region that is on no single thread.
pub(super) const NO_THREAD: u16 = u16::MAX;
/// Number for a region that has no bound on its time in the guest, because the region's parts show this time.
pub(super) const NO_BOUND: u64 = u64::MAX;
/// Number that stands for the client of a region between two events of the VMM.
pub(super) const NO_CLIENT: u32 = u32::MAX;

/// A holder of a client: the id of the client, and the serial number of the lease. The id and the number
/// share 4 bytes, because each region has a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder(u32);

impl Holder {
    /// Number of bits of the client's number.
    const CLIENT_BITS: u32 = MAX_CLIENTS.trailing_zeros();
    /// Number that all later leases of a client share if the client has too many leases.
    const LATE: u32 = (1 << (u32::BITS - Holder::CLIENT_BITS)) - 2;
    /// Value that stands for no client. No client's lease has this number.
    pub const NONE: Holder = Holder(u32::MAX);

    /// Makes a holder from the id of a client, which may be [`NO_CLIENT`], and the serial number of the
    /// client's lease.
    pub fn new(client: u32, lease: u32) -> Holder {
        match client < MAX_CLIENTS {
            true => Holder(lease.min(Holder::LATE) << Holder::CLIENT_BITS | client),
            false => Holder::NONE,
        }
    }

    /// Returns the client; `None` between two events of the VMM.
    pub fn client(self) -> Option<u32> {
        (self != Holder::NONE).then_some(self.0 & (MAX_CLIENTS - 1))
    }

    /// Returns whether the value stands for a single holder. After too many leases, one value stands for all
    /// later holders.
    pub fn is_one(self) -> bool {
        self.0 >> Holder::CLIENT_BITS < Holder::LATE
    }
}

impl Sample {
    /// If only the host's kernel was recorded, returns the maximum time in nanoseconds that the region's
    /// thread can have run in the guest. At each instant of this time, at least one vCPU may have run the
    /// guest. The parts of such a region are unknown.
    pub fn guest_at_most_ns(&self) -> Option<u64> {
        Some(self.guest_at_most).filter(|most| *most != NO_BOUND)
    }

    /// Returns the duration of the region in nanoseconds: the sum of its parts.
    pub fn duration_ns(&self) -> u64 {
        self.times.total()
    }

    /// If the region is a span of the crate `tracing` with polls, or a poll, returns the span's id. A span's
    /// polls have the same id as the span. Spans of several sessions have different ids.
    pub fn span(&self) -> Option<u32> {
        Some(self.span).filter(|span| *span > 0)
    }

    /// Returns the time in which the region's thread had a CPU, in nanoseconds.
    pub(super) fn on_cpu_ns(&self) -> u64 {
        self.times.iter().filter(|(part, _)| part.is_on_cpu()).map(|(_, ns)| ns).sum()
    }

    /// Returns the Unix time of the region's end in nanoseconds.
    pub fn end_ns(&self) -> i64 {
        self.begin_ns.saturating_add_unsigned(self.duration_ns())
    }

    /// Returns the bound on the error of the region's duration in nanoseconds; `None` if the bound is
    /// unknown, or more than 4 s.
    pub fn bound_ns(&self) -> Option<u64> {
        Some(self.bound.into()).filter(|_| self.bound != u32::MAX)
    }

    /// Returns the number of regions around this region. Such a region has the same client, or the same
    /// thread of the VMM, and was open when this region ended. The number is 255 if there are more.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns the client of the guest; `None` between two events of the VMM.
    pub fn client(&self) -> Option<u32> {
        self.holder.client()
    }
}

impl Detail {
    /// Returns the size of the detail's own allocations in bytes.
    fn bytes(&self) -> usize {
        let sizes =
            [size_of_val(&*self.exits), size_of_val(&*self.waits), size_of_val(&*self.path)];
        sizes.iter().filter(|size| **size > 0).map(|size| size + ALLOCATION).sum()
    }
}

/// All regions.
#[derive(Debug)]
pub(super) struct Store {
    chunks: Vec<Vec<Sample>>,
    /// For each chunk, the latest end of all regions in this chunk and in all earlier chunks.
    latest: Vec<i64>,
    len: usize,
    /// Indices of regions that are multiples of `stride`, in order, and the regions' details.
    details: Vec<(u32, Detail)>,
    stride: u32,
    bytes: usize,
    /// Parted spans with other spans inside: their indices, and the spans inside them.
    pub inner: Vec<(u32, Box<[Inner]>)>,
}

impl Store {
    pub fn new() -> Store {
        Store {
            chunks: Vec::new(),
            latest: Vec::new(),
            len: 0,
            details: Vec::new(),
            stride: 1,
            bytes: 0,
            inner: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a region that ended at `end`. Returns the region's index.
    pub fn push(&mut self, sample: Sample, end: i64) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
            self.latest.push(self.latest.last().copied().unwrap_or(i64::MIN));
        }
        if let Some(latest) = self.latest.last_mut() {
            *latest = end.max(*latest);
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(sample);
        }
        self.len += 1;
        (self.len - 1) as u32
    }

    pub fn get(&self, index: u32) -> &Sample {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// Returns the times at which a region began and ended.
    pub fn times(&self, index: u32) -> (i64, i64) {
        let sample = self.get(index);
        (sample.begin_ns, sample.end_ns())
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Sample {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// Returns a range of indices with all regions that end at `from` or later. The range may have further
    /// regions that end earlier, because regions of several sessions are not added in the order of their
    /// ends.
    pub fn since(&self, from: i64) -> std::ops::Range<u32> {
        let before = self.latest.partition_point(|latest| *latest < from);
        (before * CHUNK) as u32..self.len as u32
    }

    /// Iterates over the regions that are counted.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.chunks.iter().flatten().filter(|sample| sample.state.is_counted())
    }

    /// Returns the indices of the regions that are counted, sorted by their beginnings.
    pub fn by_begin(&self) -> Vec<u32> {
        let is_counted = |index: &u32| self.get(*index).state.is_counted();
        let mut all = Vec::from_iter((0..self.len as u32).filter(is_counted));
        all.sort_unstable_by_key(|index| {
            let sample = self.get(*index);
            (sample.begin_ns, Reverse(sample.duration_ns()), sample.depth, *index)
        });
        all
    }

    /// Iterates over the regions that are counted, and over regions that may be children of a counted region.
    pub fn with_inside(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.chunks.iter().flatten().filter(|sample| sample.state != State::Dropped)
    }

    /// Returns whether the details of a region are kept.
    pub fn wants(&self, index: u32) -> bool {
        index.is_multiple_of(self.stride)
    }

    /// Keeps details of a region. A region's details come twice: without exits when the region ends, and with
    /// exits when the exits are known. If there are too many details, half of the details are dropped.
    pub fn keep(&mut self, index: u32, detail: Detail) {
        self.bytes += detail.bytes();
        // Most details belong to the region that was added last. A search would miss the CPU's caches, so
        // this region is looked up without a search.
        let is_new = self.details.last().is_none_or(|(last, _)| *last < index);
        let known = match is_new {
            true => None,
            false => self.details.binary_search_by_key(&index, |(known, _)| *known).ok(),
        };
        match known {
            Some(at) => self.details[at].1 = detail,
            None => self.details.push((index, detail)),
        }
        let all =
            |store: &Store| store.bytes + store.details.capacity() * size_of::<(u32, Detail)>();
        // The stride doubles at most 32 times, so the loop ends.
        while all(self) > MAX_DETAILS && self.details.len() > 1 {
            self.stride = self.stride.saturating_mul(2);
            self.details.retain(|(index, _)| index.is_multiple_of(self.stride));
            self.details.shrink_to(self.details.len() * 2);
            self.bytes = self.details.iter().map(|(_, detail)| detail.bytes()).sum();
        }
    }

    pub fn detail(&self, index: u32) -> Option<&Detail> {
        let at = self.details.binary_search_by_key(&index, |(known, _)| *known).ok()?;
        Some(&self.details[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_known_late_is_found_by_its_end() {
        let sample = |begin_ns| Sample {
            id: 0,
            begin_ns,
            times: Times::default(),
            bound: 0,
            group: 0,
            thread: NO_THREAD,
            cpu: None,
            span: 0,
            holder: Holder::new(0, 0),
            guest_at_most: NO_BOUND,
            session: 0,
            state: State::Counted,
            depth: 0,
        };
        let mut store = Store::new();
        let count = 3 * CHUNK as i64;
        for end in 0..count {
            store.push(sample(end), end);
        }
        let late = store.push(sample(5), 5);

        assert_eq!(store.since(count - 1), 2 * CHUNK as u32..late + 1);
        assert!(store.since(count + 1).all(|index| store.get(index).end_ns() <= count));
        // The range begins with the first chunk, because this chunk has regions that ended at 6 or later.
        assert_eq!(store.since(6).start, 0);
    }
}
