//! Observed places in the guest's code, one for each instruction and privilege level.
//!
//! QEMU keeps a word for each observed instruction, and passes the word to the callback. The word is the
//! address of the place.

use super::level::Level;
use std::collections::HashMap;

/// Maximum number of places at the same time. A place takes some 150 bytes. If there are no places left, then
/// further instructions are only counted. The plugin observes such instructions again after QEMU has dropped
/// all translated code because QEMU's memory for code was full.
const MAX: usize = 1 << 22;

/// Event of an instruction that is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call.
    Call,
    /// A call whose target is just ahead. No function begins at the target.
    CallAhead,
    /// A return.
    Return,
    /// A jump to another function.
    Jump,
    /// A jump to a thunk.
    ThunkJump,
    /// The instruction copies another register to the stack pointer.
    StackPointerSet,
    /// The instruction sets the stack pointer to another value on the same stack.
    StackPointerLost,
    /// A function stores its return address on the stack.
    LinkStore,
    /// A function loads its return address from the stack.
    LinkLoad,
}

/// An instruction that is observed.
#[derive(Debug, PartialEq, Eq)]
pub struct Site {
    /// Address of the instruction.
    pub at: u64,
    /// Address of the next instruction, to which a call returns.
    pub next: u64,
    /// Address of the called function, if the instruction contains it.
    pub target: Option<u64>,
    /// First address of the function that contains the instruction, if a symbol names this function.
    pub function: Option<u64>,
    /// Privilege level at which the instruction runs.
    pub level: Level,
}

impl Site {
    /// Returns the word that QEMU passes to the callbacks of the place.
    pub fn word(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

/// Number of places in a piece of memory.
const PIECE: usize = 1024;

/// The places of all translated code.
#[derive(Debug, Default)]
pub struct Sites {
    /// Places that QEMU's callbacks get. Each piece has room for [`PIECE`] places. The places do not move.
    pieces: Vec<Vec<Site>>,
    /// Piece and index of the newest place for an address and level.
    newest: HashMap<(u64, Level), (usize, usize)>,
    left_out: u64,
}

impl Sites {
    /// Returns the place for an instruction. The place lives until [`Sites::forget`]. The same code may be
    /// translated several times.
    pub fn place(&mut self, site: Site) -> Option<*const Site> {
        let key = (site.at, site.level);
        let newest = self.newest.get(&key);
        let known = newest.and_then(|&(piece, index)| self.pieces.get(piece)?.get(index));
        if let Some(known) = known.filter(|known| **known == site) {
            return Some(known);
        }
        // The place is new, or the guest has changed the code at this address. After a change, the old place
        // may still be in use.
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            if self.pieces.len() == MAX / PIECE {
                self.left_out += 1;
                return None;
            }
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let piece = self.pieces.len() - 1;
        let places = self.pieces.last_mut()?;
        self.newest.insert(key, (piece, places.len()));
        places.push(site);
        places.last().map(std::ptr::from_ref)
    }

    /// Forgets all places, because QEMU has dropped all translated code.
    pub fn forget(&mut self) {
        *self = Sites { left_out: self.left_out, ..Sites::default() };
    }

    /// Returns the addresses of all observed instructions, sorted.
    pub fn addresses(&self) -> Vec<u64> {
        let mut addresses: Vec<u64> = self.newest.keys().map(|(at, _)| *at).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Returns the number of translated instructions that are not observed.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(target: u64) -> Site {
        Site { at: 16, next: 21, target: Some(target), function: None, level: Level(3) }
    }

    #[test]
    fn code_that_is_translated_again_takes_no_memory() {
        let mut sites = Sites::default();
        let first = sites.place(site(1)).unwrap();
        assert_eq!(first, sites.place(site(1)).unwrap());
        assert_eq!(sites.pieces[0].len(), 1);
    }

    #[test]
    fn code_that_has_changed_has_another_place() {
        let mut sites = Sites::default();
        let [first, changed] = [1, 2].map(|target| sites.place(site(target)).unwrap());
        assert_ne!(first, changed);
        assert_eq!(
            sites.pieces[0].iter().map(|site| site.target).collect::<Vec<_>>(),
            [Some(1), Some(2)]
        );
        sites.forget();
        assert_eq!((sites.pieces.len(), sites.newest.len()), (0, 0));
    }
}
