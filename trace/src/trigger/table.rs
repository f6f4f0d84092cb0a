//! The table in which the threads of vCPUs look up rules, and the replacement of the table.
//!
//! To look up a rule, a thread loads the number of the current table. A replaced table stays until the
//! session ends. So no thread can hold a freed table, and no thread needs a lock or frees memory.

use super::rule::Rule;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of slots in a table: the maximum number of rules.
const SLOTS: usize = 256;

/// The rules of a session. The key is the name of the rule's events. A table never changes.
pub(super) struct Table {
    /// For each slot, the index of the slot's first rule. The last entry is the number of all rules.
    slots: Box<[u16; SLOTS + 1]>,
    /// Rules sorted by slot, then by rule id.
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

    /// Returns the rules in the slot of an event's name, in the order in which the rules were added. The slot
    /// has the rules for this name, and perhaps also rules for other names.
    #[inline(always)]
    fn slot(&self, hash: u32) -> &[Arc<Rule>] {
        let slot = slot(hash);
        &self.rules[self.slots[slot].into()..self.slots[slot + 1].into()]
    }
}

fn slot(hash: u32) -> usize {
    hash as usize % SLOTS
}

/// All tables of a session. The last table is the current table.
#[derive(Default)]
pub(super) struct Tables {
    /// Number of tables so far, or 0 if no rule was ever added.
    number: AtomicUsize,
    all: OnceLock<Box<[OnceLock<Table>]>>,
}

impl Tables {
    /// Returns the rules for an event of this name, and perhaps also rules for other events.
    #[inline(always)]
    pub fn slot(&self, hash: u32) -> &[Arc<Rule>] {
        // ORDERING: pairs with the Release in `replace`, so that this thread sees the whole table.
        match self.number.load(Ordering::Acquire) {
            0 => &[],
            number => self.get(number - 1).map_or(&[], |table| table.slot(hash)),
        }
    }

    fn get(&self, index: usize) -> Option<&Table> {
        self.all.get()?.get(index)?.get()
    }

    /// Returns the number of tables so far.
    pub fn len(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// Makes `table` the current table. Only one caller may replace the table at a time.
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
