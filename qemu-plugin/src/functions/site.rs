//! Places in the guest's code that are observed: one for each instruction and privilege level.
//!
//! QEMU keeps a word for each observed instruction, and passes it to the callback: the address of the place.

use super::level::Level;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Most places that are remembered, 64 bytes each and their key. Code beyond is not observed, and counted.
const MOST: usize = 1 << 23;

/// Event of an instruction that is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call.
    Call,
    /// A call of a place just ahead, which is no function.
    CallAhead,
    /// A return.
    Return,
    /// A jump to another function.
    Jump,
    /// A jump to a thunk.
    ThunkJump,
    /// The stack pointer gets the value of another register.
    StackPointerSet,
    /// The stack pointer gets another value on the same stack.
    StackPointerLost,
    /// A function stores its return address on the stack.
    LinkStore,
    /// A function loads its return address from there.
    LinkLoad,
}

/// An instruction that is observed.
#[derive(Debug, PartialEq, Eq)]
pub struct Site {
    /// Its address.
    pub at: u64,
    /// Address of the next instruction, to which a call returns.
    pub next: u64,
    /// Address of the called function, if the instruction contains it.
    pub target: Option<u64>,
    /// First address of the function that it is in, if the symbols have one.
    pub function: Option<u64>,
    /// Privilege level at which it runs.
    pub level: Level,
}

impl Site {
    /// Returns the word that QEMU keeps for it.
    pub fn word(&'static self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

/// All places, which live as long as the process: QEMU may run code that it has translated at any time.
#[derive(Debug, Default)]
pub struct Sites {
    all: HashMap<(u64, Level), &'static Site>,
    left_out: u64,
}

impl Sites {
    /// Returns the place for an instruction. Code is translated again when QEMU's memory for it is full.
    pub fn place(&mut self, site: Site) -> Option<&'static Site> {
        let is_full = self.all.len() >= MOST;
        match self.all.entry((site.at, site.level)) {
            Entry::Occupied(known) if **known.get() == site => Some(known.get()),
            // The guest has changed its code: the old place may be in use still.
            entry if !is_full => Some(*entry.insert_entry(Box::leak(Box::new(site))).get()),
            _ => {
                self.left_out += 1;
                None
            }
        }
    }

    /// Returns the number of translated instructions that are not observed.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_is_translated_again_takes_no_memory() {
        let mut sites = Sites::default();
        let site = |target| Site {
            at: 16,
            next: 21,
            target: Some(target),
            function: None,
            level: Level(3),
        };
        let first = sites.place(site(1)).unwrap();
        assert!(std::ptr::eq(first, sites.place(site(1)).unwrap()));
        let changed = sites.place(site(2)).unwrap();
        assert_eq!((first.target, changed.target, sites.all.len()), (Some(1), Some(2), 1));
    }
}
