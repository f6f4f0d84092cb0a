//! Registers of the vCPU that a thread runs.

use crate::api::{Register, Registers};

/// Some registers, found by their names. They have the same numbers on all vCPUs; a read is that of the thread's vCPU.
#[derive(Debug)]
pub struct Reader<const N: usize> {
    registers: Registers,
    found: Vec<Register>,
}

impl<const N: usize> Reader<N> {
    /// Finds the registers of these names. `None` if there is not each of them.
    pub fn open(names: [&str; N]) -> Option<Reader<N>> {
        let registers = Registers::list()?;
        let found = names.iter().map(|name| registers.find(name)).collect::<Option<_>>()?;
        Some(Reader { registers, found })
    }

    /// Reads them.
    #[inline]
    pub fn read(&mut self) -> Option<[u64; N]> {
        let mut values = [0; N];
        for (value, register) in values.iter_mut().zip(&self.found) {
            *value = self.registers.read(*register)?;
        }
        Some(values)
    }
}
