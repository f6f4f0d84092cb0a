//! Decides which events of guests are wanted. Rules with patterns decide, and the enable mask follows from
//! the rules.
//!
//! A guest's names arrive with their schemas. The known names are the seen names, and the names in rules
//! without `*` and `?`. A slot of the mask is off only if at least one known name hashes to the slot, and all
//! such names are off. So an unknown name stays on, unless the name shares a slot with a name that is off. If
//! a seen name could not be remembered, the name's slot stays on. If an unwanted event passes the mask, the
//! drain filters the event.

use crate::events::Pattern;
use hypertrace_abi::layout::MASK_BYTES;
use hypertrace_abi::schema::mask_slot;
use std::collections::BTreeMap;

/// Maximum number of remembered names. Without this limit, a guest could add any number of names.
pub const MAX_NAMES: usize = 4096;
/// Maximum number of remembered rules. A repeated rule counts once.
pub const MAX_RULES: usize = 1024;

/// The enable mask: a byte for each slot. A byte of 0 means on.
pub type Mask = [u8; MASK_BYTES as usize];

/// Error of a rule beyond the maximum number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_RULES} rules: say \"trace-event * on\" to begin anew")]
pub struct TooManyRules;

/// Rules and names of guest events.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Rules in the order in which they were added. For each name, the last rule that matches the name
    /// decides.
    rules: Vec<(Pattern, bool)>,
    /// Seen names, and whether they are wanted.
    seen: BTreeMap<String, bool>,
    /// True for each slot of a seen name that is not remembered. No other name may switch such a slot off.
    forgotten: [bool; MASK_BYTES as usize],
    /// True if the rules or names have changed since the mask was made.
    changed: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted {
            rules: Vec::new(),
            seen: BTreeMap::new(),
            forgotten: [false; MASK_BYTES as usize],
            changed: false,
        }
    }
}

impl Wanted {
    /// Returns true if events of this name are wanted.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.rules.iter().rev().find(|(rule, _)| rule.matches(name)).is_none_or(|(_, on)| *on)
    }

    /// Notes a name. Returns true if events of this name are wanted.
    pub fn see(&mut self, name: &str) -> bool {
        if let Some(wanted) = self.seen.get(name) {
            return *wanted;
        }
        let wanted = self.is_wanted(name);
        if self.seen.len() < MAX_NAMES {
            self.seen.insert(name.to_owned(), wanted);
        } else if std::mem::replace(&mut self.forgotten[mask_slot(name)], true) {
            return wanted;
        }
        // Without rules, all slots of the mask are on, and a further name does not change the mask.
        self.changed |= !self.rules.is_empty();
        wanted
    }

    /// Adds a rule, and returns how many of the seen names match the rule.
    ///
    /// # Errors
    /// If there are too many rules.
    pub fn set(&mut self, rule: &Pattern, on: bool) -> Result<usize, TooManyRules> {
        // The new rule makes some older rules ineffective, and these rules are dropped.
        let hidden = |old: &Pattern| *old == *rule || rule.as_str() == "*";
        self.rules.retain(|(old, _)| !hidden(old));
        // `* on` is the initial state, so it needs no rule.
        if !(on && rule.as_str() == "*") {
            if self.rules.len() >= MAX_RULES {
                return Err(TooManyRules);
            }
            self.rules.push((rule.clone(), on));
        }
        let mut about = 0;
        for (_, wanted) in self.seen.iter_mut().filter(|(name, _)| rule.matches(name)) {
            *wanted = on;
            about += 1;
        }
        self.changed = true;
        Ok(about)
    }

    /// Iterates over the seen names. Each name comes with true if its events are wanted.
    pub fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        self.seen.iter().map(|(name, on)| (&**name, *on))
    }

    /// Makes the next call of [`Wanted::changed_mask`] return the mask even if the mask has not changed,
    /// because a new device may have another mask.
    pub fn publish(&mut self) {
        self.changed = true;
    }

    /// Returns the mask, if it may have changed since the last call.
    pub fn changed_mask(&mut self) -> Option<Mask> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let exact = self.rules.iter().filter(|(rule, _)| rule.is_exact());
        let exact: Vec<_> = exact.map(|(rule, _)| rule.as_str()).collect();
        let named = exact.into_iter().map(|name| (name, self.is_wanted(name)));
        // Each slot has two flags: the first is true if a known name hashes to the slot, the second is true
        // if such a name is wanted.
        let mut slots = [(false, false); MASK_BYTES as usize];
        for (name, on) in self.names().chain(named) {
            let slot = &mut slots[mask_slot(name)];
            *slot = (true, slot.1 || on);
        }
        let mut mask = slots.map(|(known, on)| u8::from(known && !on));
        for (byte, _) in mask.iter_mut().zip(self.forgotten).filter(|(_, forgotten)| *forgotten) {
            *byte = 0;
        }
        Some(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    fn off(mask: &Mask) -> Vec<usize> {
        (0..mask.len()).filter(|slot| mask[*slot] == 1).collect()
    }

    /// Returns another name in the same slot.
    fn sharing(name: &str) -> String {
        let same = |other: &String| mask_slot(other) == mask_slot(name);
        (0..).map(|n| format!("other{n}")).find(same).unwrap()
    }

    #[test]
    fn a_pattern_is_for_names_as_they_arrive() {
        let mut wanted = Wanted::default();
        wanted.see("disk_read");
        assert_eq!(wanted.set(&pattern("disk_*"), false), Ok(1));
        assert_eq!(off(&wanted.changed_mask().unwrap()), [mask_slot("disk_read")]);
        assert!(!wanted.see("disk_write"));
        assert!(wanted.see("net"));
        let mut both = vec![mask_slot("disk_read"), mask_slot("disk_write")];
        both.sort();
        assert_eq!(off(&wanted.changed_mask().unwrap()), both);
        assert!(wanted.changed_mask().is_none());
    }

    #[test]
    fn a_name_is_off_before_it_was_ever_seen() {
        let mut wanted = Wanted::default();
        assert_eq!(wanted.set(&pattern("not_yet"), false), Ok(0));
        assert_eq!(off(&wanted.changed_mask().unwrap()), [mask_slot("not_yet")]);
        assert!(!wanted.see("not_yet"));
    }

    #[test]
    fn a_slot_with_something_wanted_stays_on() {
        let mut wanted = Wanted::default();
        let other = sharing("disk_read");
        wanted.set(&pattern("disk_read"), false).unwrap();
        wanted.see(&other);
        assert!(off(&wanted.changed_mask().unwrap()).is_empty());
        assert!(!wanted.is_wanted("disk_read"));
        wanted.set(&pattern("*"), false).unwrap();
        // The rule `*` has replaced the rule for the exact name, but the seen name remains.
        assert_eq!(off(&wanted.changed_mask().unwrap()), [mask_slot(&other)]);
    }

    #[test]
    fn a_name_that_is_not_remembered_is_not_switched_off() {
        let mut wanted = Wanted::default();
        let noise: Vec<String> = (0..MAX_NAMES).map(|n| format!("noise_{n}")).collect();
        for name in &noise {
            wanted.see(name);
        }
        let of_noise = |name: &String| noise.iter().any(|n| mask_slot(n) == mask_slot(name));
        let victim = (0..).map(|n| format!("victim_{n}")).find(of_noise).unwrap();
        assert!(wanted.see(&victim));
        wanted.set(&pattern("noise_*"), false).unwrap();
        let mask = wanted.changed_mask().unwrap();
        assert!(wanted.is_wanted(&victim) && mask[mask_slot(&victim)] == 0);
        let others = noise.iter().filter(|name| mask_slot(name) != mask_slot(&victim));
        assert!(others.into_iter().all(|name| mask[mask_slot(name)] == 1));
    }

    #[test]
    fn the_last_rule_decides_and_all_on_begins_anew() {
        let mut wanted = Wanted::default();
        wanted.set(&pattern("*"), false).unwrap();
        wanted.set(&pattern("a*"), true).unwrap();
        assert!(wanted.is_wanted("ab") && !wanted.is_wanted("b"));
        wanted.set(&pattern("*"), true).unwrap();
        assert!(wanted.rules.is_empty() && wanted.is_wanted("b"));
        for n in 0..MAX_RULES {
            wanted.set(&pattern(&format!("n{n}")), false).unwrap();
        }
        wanted.set(&pattern("n7"), true).unwrap();
        assert_eq!(wanted.set(&pattern("one_more"), true), Err(TooManyRules));
    }
}
