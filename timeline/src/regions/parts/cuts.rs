// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times at which regions begin and end in an account, and the time of regions whose part is
//! not known yet.
//!
//! A region that begins makes a *cut*: it has the sums so far, which become known with the next marks. A
//! region that ends takes the difference, and leaves its time without a part here, 12 bytes.

use super::{Part, Reason, Sums};

/// The sums of a thread at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub sums: Sums,
    /// Time before it that waits for the end of its mode.
    pub pending: u64,
    /// Time since the mark before it.
    pub open: u64,
}

impl Cut {
    fn is_known(&self) -> bool {
        (self.pending, self.open) == (0, 0)
    }
}

/// A time whose part is not known yet. Packed: there may be one for each region.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    region: u32,
    /// Lower and upper half.
    time: [u32; 2],
}

/// The cuts of an account that are held, and the regions with a time whose part is not known yet.
#[derive(Debug, Default)]
pub struct Cuts {
    /// By number, and the numbers that are free.
    all: Vec<Cut>,
    free: Vec<u32>,
    /// Numbers of those whose sums are not known yet.
    waiting: Vec<u32>,
    /// Whether some became known.
    has_news: bool,
    /// Regions with a time of the thread whose part is not known yet: on a CPU, and off it.
    unknown: [Vec<Unknown>; 2],
    /// The parts, since they are known.
    found: [Option<(Part, Reason)>; 2],
}

impl Cuts {
    /// Adds a cut. Returns its number.
    pub(super) fn add(&mut self, cut: Cut) -> u32 {
        let number = match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = cut;
                number
            }
            None => {
                self.all.push(cut);
                (self.all.len() - 1) as u32
            }
        };
        if !cut.is_known() {
            self.waiting.push(number);
        }
        number
    }

    /// Returns whether no cut is held, and no region waits for a part of its time.
    pub fn is_unused(&self) -> bool {
        self.free.len() == self.all.len() && self.unknown.iter().all(Vec::is_empty)
    }

    /// Returns whether the sums at a cut are known.
    pub fn is_known(&self, number: u32) -> bool {
        self.all[number as usize].is_known()
    }

    /// Returns whether sums at cuts became known since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Returns a cut, and forgets it.
    pub(super) fn take(&mut self, number: u32) -> Cut {
        if !self.is_known(number)
            && let Some(at) = self.waiting.iter().rposition(|waiting| *waiting == number)
        {
            self.waiting.swap_remove(at);
        }
        self.free.push(number);
        self.all[number as usize]
    }

    /// Forgets a cut.
    pub fn forget(&mut self, number: u32) {
        self.take(number);
    }

    /// Notes the time of a region whose part is not known yet.
    pub fn owe(&mut self, region: u32, unknown: [u64; 2]) {
        for (owed, time) in self.unknown.iter_mut().zip(unknown).filter(|(_, time)| *time > 0) {
            owed.push(Unknown { region, time: [time as u32, (time >> 32) as u32] });
        }
    }

    /// Returns whether the part of such a time became known.
    pub fn has_found(&self) -> bool {
        self.found.iter().any(Option::is_some)
    }

    /// Takes the regions with a time whose part became known: index and time, and the part with the
    /// reason of an exit.
    pub fn found(&mut self) -> Option<(impl Iterator<Item = (u32, u64)> + use<>, Part, Reason)> {
        let at = self.found.iter().position(Option::is_some)?;
        let (part, reason) = self.found[at].take()?;
        let owed = std::mem::take(&mut self.unknown[at]).into_iter();
        let time = |[low, high]: [u32; 2]| u64::from(high) << 32 | u64::from(low);
        Some((owed.map(move |owed| (owed.region, time(owed.time))), part, reason))
    }

    /// Lets the time since the last mark wait for the end of its mode.
    pub(super) fn hold(&mut self) {
        for number in &self.waiting {
            let cut = &mut self.all[*number as usize];
            cut.pending += std::mem::take(&mut cut.open);
        }
    }

    /// Adds the time off the CPU before the cuts to a part.
    pub(super) fn end_off(&mut self, part: Part) {
        self.find(1, part, 0);
        self.settle_with(|cut| cut.sums.add(part, 0, std::mem::take(&mut cut.open)));
    }

    /// Adds all time before the cuts to a part.
    pub(super) fn settle(&mut self, part: Part, reason: Reason) {
        self.find(0, part, reason);
        self.find(1, part, reason);
        self.settle_with(|cut| {
            let time = std::mem::take(&mut cut.pending) + std::mem::take(&mut cut.open);
            cut.sums.add(part, reason, time);
        });
    }

    /// Notes the part of the time of regions, on a CPU or off it.
    fn find(&mut self, off: usize, part: Part, reason: Reason) {
        // The first one is right: the regions are taken before others are added.
        if !self.unknown[off].is_empty() {
            self.found[off].get_or_insert((part, reason));
        }
    }

    /// Changes the cuts that wait, and lets those go that wait for nothing more.
    fn settle_with(&mut self, change: impl Fn(&mut Cut)) {
        if self.waiting.is_empty() {
            return;
        }
        let before = self.waiting.len();
        let all = &mut self.all;
        self.waiting.retain(|number| {
            let cut = &mut all[*number as usize];
            change(cut);
            !cut.is_known()
        });
        self.has_news |= self.waiting.len() < before;
    }

    /// Returns the sums at a cut, if they are known.
    #[cfg(test)]
    pub fn sums_at(&self, number: u32) -> Sums {
        assert!(self.is_known(number));
        self.all[number as usize].sums
    }
}
