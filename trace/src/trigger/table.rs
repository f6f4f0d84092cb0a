//! The table in which vCPU threads look up rules, and its replacement.
//!
//! A reader marks that it looks by a plain store to a word of its own, then
//! loads the pointer. There is no fence between the two: the replacing thread
//! makes every thread of the process pass one instead (`membarrier`), and
//! then waits for those that still look. Where the kernel cannot do that, old
//! tables stay until the session ends.
#![allow(unsafe_code)] // one pointer

use super::rule::Rule;
use rustix::thread::{MembarrierCommand, membarrier};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Bits of the filter: with 256 rules one miss in 16 looks further.
const FILTER_BITS: u32 = 4096;
/// Parts of the table; with 256 rules there is one in each.
const SLOTS: usize = 256;

/// Rules by their event's name; never changed.
pub(super) struct Table {
    /// A bit for each hash that there is, so that a miss is one load.
    filter: Box<[u64; FILTER_BITS as usize / 64]>,
    /// Where each slot's rules begin, and the last one's end.
    slots: Box<[u16; SLOTS + 1]>,
    /// Sorted by slot, then number.
    rules: Box<[Arc<Rule>]>,
}

impl Table {
    pub fn new(rules: &[Arc<Rule>]) -> Table {
        let mut filter = Box::new([0; FILTER_BITS as usize / 64]);
        for rule in rules {
            let bit = rule.hash % FILTER_BITS;
            filter[bit as usize / 64] |= 1 << (bit % 64);
        }
        let mut rules: Box<[_]> = rules.into();
        rules.sort_by_key(|rule| (slot(rule.hash), rule.number));
        let begin = |at| rules.partition_point(|rule| slot(rule.hash) < at) as u16;
        let slots = Box::new(std::array::from_fn(begin));
        Table { filter, slots, rules }
    }

    #[inline(always)]
    fn may_match(&self, hash: u32) -> bool {
        let bit = hash % FILTER_BITS;
        self.filter[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    /// Returns the rules for an event's name, in the order in which they were added.
    pub fn rules(&self, hash: u32) -> impl Iterator<Item = &Arc<Rule>> {
        let slot = slot(hash);
        let rules = &self.rules[self.slots[slot].into()..self.slots[slot + 1].into()];
        rules.iter().filter(move |rule| rule.hash == hash)
    }
}

fn slot(hash: u32) -> usize {
    hash as usize % SLOTS
}

/// Calls the closure when it is dropped, also by a panic.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The current table.
#[derive(Debug, Default)]
pub(super) struct Current {
    /// Null while there is no rule.
    table: AtomicPtr<Table>,
    /// Threads that look and have no word of their own.
    strangers: AtomicU32,
}

impl Current {
    /// Calls `look` with the table, if there is a rule that may be about this
    /// name. `looking` is the thread's own word, which
    /// [`replace`](Self::replace) knows.
    #[inline(always)]
    pub fn with(&self, hash: u32, looking: Option<&AtomicU32>, look: impl FnOnce(&Table)) {
        if self.table.load(Ordering::Relaxed).is_null() {
            return;
        }
        match looking {
            Some(word) => {
                word.store(1, Ordering::Relaxed);
                // ORDERING: the CPU may load before it stores; `replace` sees
                // to it that it does not where it matters.
                compiler_fence(Ordering::SeqCst);
                // ORDERING: pairs with the Acquire in `wait`: all looks at the
                // table are over.
                let _end = AtEnd(|| word.store(0, Ordering::Release));
                self.look(hash, look);
            }
            None => {
                // ORDERING: SeqCst as a fence between this and the load; pairs
                // with the SeqCst in `replace`.
                self.strangers.fetch_add(1, Ordering::SeqCst);
                // ORDERING: as above.
                let _end = AtEnd(|| _ = self.strangers.fetch_sub(1, Ordering::Release));
                self.look(hash, look);
            }
        }
    }

    #[inline(always)]
    fn look(&self, hash: u32, look: impl FnOnce(&Table)) {
        // ORDERING: pairs with the swap in `replace`: the table is there.
        let table = self.table.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw`; freed by `replace` only after
        // every thread that may have loaded it has ended its look, which this one does
        // after this function, by `AtEnd`.
        if let Some(table) = unsafe { table.as_ref() }
            && table.may_match(hash)
        {
            look(table);
        }
    }

    /// Puts another table in place, and frees the old one when no thread looks at
    /// it any more. One caller at a time.
    pub fn replace<'w>(&self, table: Option<Table>, words: impl Iterator<Item = &'w AtomicU32>) {
        let new = table.map_or(ptr::null_mut(), |table| Box::into_raw(Box::new(table)));
        // ORDERING: SeqCst: before the looks at the words below.
        let old = self.table.swap(new, Ordering::SeqCst);
        if old.is_null() {
            return;
        }
        if !every_thread_fences() {
            // Small, and as many as rules were changed.
            return;
        }
        words.for_each(wait);
        wait(&self.strangers);
        // SAFETY: from `Box::into_raw`, and swapped out here, so freed once. A
        // thread that loads the pointer now gets the new one; a thread that
        // loaded the old one had its word set before: its store was before its
        // fence above, or its load after, and it has been cleared since.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: from `Box::into_raw`; no thread looks, this is `&mut`.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}

/// Waits until no thread looks at the table.
fn wait(word: &AtomicU32) {
    // ORDERING: pairs with the Release at a look's end.
    while word.load(Ordering::Acquire) != 0 {
        thread::yield_now();
    }
}

/// Makes every running thread of the process pass a full fence. `false`: the
/// kernel cannot.
fn every_thread_fences() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    *REGISTERED.get_or_init(register) && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_look_that_panics_does_not_keep_the_table() {
        let current = Current::default();
        let word = AtomicU32::new(0);
        for looking in [Some(&word), None] {
            let rule = Rule::parse("on tick do events none off", 1, |_| None).unwrap();
            let hash = rule.hash;
            current.replace(Some(Table::new(&[Arc::new(rule)])), [&word].into_iter());

            let look = || current.with(hash, looking, |_| panic!("in the middle of a look"));
            assert!(catch_unwind(AssertUnwindSafe(look)).is_err());

            assert_eq!(word.load(Ordering::Relaxed), 0);
            assert_eq!(current.strangers.load(Ordering::Relaxed), 0);
            // Does not return while a look has not ended.
            current.replace(None, [&word].into_iter());
        }
    }
}
