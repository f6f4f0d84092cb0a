//! The table in which vCPU threads look up rules, and its replacement.
//!
//! A look is a load of the current table's number. A table that was replaced stays until the session ends, so
//! no thread can hold one that is gone: a thread takes no lock and frees nothing.

use super::rule::Rule;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Parts of a table; with 256 rules there is one in each.
const SLOTS: usize = 256;

/// Rules by their event's name; never changed.
pub(super) struct Table {
    /// Where each slot's rules begin, and the last one's end.
    slots: Box<[u16; SLOTS + 1]>,
    /// Sorted by slot, then number.
    rules: Box<[Arc<Rule>]>,
}

impl Table {
    pub fn new(rules: &[Arc<Rule>]) -> Table {
        let mut rules: Box<[_]> = rules.into();
        rules.sort_by_key(|rule| (slot(rule.hash), rule.number));
        let begin = |at| rules.partition_point(|rule| slot(rule.hash) < at) as u16;
        let slots = Box::new(std::array::from_fn(begin));
        Table { slots, rules }
    }

    /// Returns the rules in the slot of an event's name, in the order in which they were added: those for this name,
    /// and perhaps others'.
    #[inline(always)]
    fn slot(&self, hash: u32) -> &[Arc<Rule>] {
        let slot = slot(hash);
        &self.rules[self.slots[slot].into()..self.slots[slot + 1].into()]
    }
}

fn slot(hash: u32) -> usize {
    hash as usize % SLOTS
}

/// All tables of a session, of which the last is the current one.
#[derive(Default)]
pub(super) struct Tables {
    /// Number of tables so far; 0 while there was no rule.
    number: AtomicUsize,
    all: OnceLock<Box<[OnceLock<Table>]>>,
}

impl Tables {
    /// Returns the rules that may be about an event of this name.
    #[inline(always)]
    pub fn slot(&self, hash: u32) -> &[Arc<Rule>] {
        // ORDERING: pairs with the Release in `replace`: the table is there.
        match self.number.load(Ordering::Acquire) {
            0 => &[],
            number => self.get(number - 1).map_or(&[], |table| table.slot(hash)),
        }
    }

    fn get(&self, index: usize) -> Option<&Table> {
        self.all.get()?.get(index)?.get()
    }

    /// Returns how many tables there were.
    pub fn len(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// Makes another table the current one. One caller at a time.
    pub fn replace(&self, table: Table) {
        let all =
            self.all.get_or_init(|| (0..super::MAX_CHANGES).map(|_| OnceLock::new()).collect());
        let number = self.len();
        if let Some(place) = all.get(number) {
            let _ = place.set(table);
            // ORDERING: pairs with the Acquire in `slot`.
            self.number.store(number + 1, Ordering::Release);
        }
    }
}
