//! Registers of the vCPU that a thread runs.

use crate::api::{Register, Registers};
use std::cell::RefCell;
use std::thread::LocalKey;

/// Registers, found by their names. A register has the same handle on all vCPUs. A read returns the value of
/// the register of the vCPU that the thread runs.
#[derive(Debug)]
pub struct Reader<const N: usize> {
    registers: Registers,
    found: Vec<Register>,
}

impl<const N: usize> Reader<N> {
    /// Finds the registers of these names. Returns `None` if one of these registers does not exist.
    pub fn open(names: [&str; N]) -> Option<Reader<N>> {
        let registers = Registers::list()?;
        let found = names.iter().map(|name| registers.find(name)).collect::<Option<_>>()?;
        Some(Reader { registers, found })
    }

    /// Reads the registers.
    #[inline]
    pub fn read(&mut self) -> Option<[u64; N]> {
        let mut values = [0; N];
        for (value, register) in values.iter_mut().zip(&self.found) {
            *value = self.registers.read(*register)?;
        }
        Some(values)
    }
}

/// A thread's reader, which is made at its first use.
pub type Kept<const N: usize> = RefCell<Option<Reader<N>>>;

/// Reads the registers with these names through the calling thread's reader.
#[inline]
pub fn read<const N: usize>(
    kept: &'static LocalKey<Kept<N>>,
    names: [&str; N],
) -> Option<[u64; N]> {
    kept.with_borrow_mut(|reader| {
        if reader.is_none() {
            *reader = Reader::open(names);
        }
        reader.as_mut()?.read()
    })
}
