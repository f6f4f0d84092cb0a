//! Privilege levels, by the registers of the vCPU that translates.

use crate::api::{Register, Registers};
use std::cell::RefCell;

/// A privilege level: the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

/// Number of levels.
pub const LEVELS: usize = 4;

impl Level {
    /// That of programs.
    pub const PROGRAMS: Level = Level(3);

    /// Returns its name, the same as in QEMU's own plugin.
    pub fn name(self) -> String {
        format!("Ring{}", self.0)
    }
}

/// Bit of EFER: the CPU is in long mode.
const LONG_MODE: u64 = 1 << 10;
/// Selector of Linux for 32-bit programs, whose instructions are others.
const PROGRAMS_32: u64 = 0x23;

/// The registers that say the level.
struct Reader {
    registers: Registers,
    cs: Register,
    efer: Register,
}

thread_local! {
    /// Registers have the same numbers on all vCPUs; a read is that of the thread's vCPU.
    static READER: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

/// Returns the level of the code that this thread's vCPU translates; `None` for code of 16 or 32 bits, or if
/// the registers cannot be read.
pub fn of_translated() -> Option<Level> {
    READER.with_borrow_mut(|reader| {
        if reader.is_none() {
            *reader = open();
        }
        let Reader { registers, cs, efer } = reader.as_mut()?;
        let (cs, efer) = (registers.read(*cs)?, registers.read(*efer)?);
        let is_64 = efer & LONG_MODE != 0 && cs & 0xffff != PROGRAMS_32;
        is_64.then_some(Level((cs & 3) as u8))
    })
}

fn open() -> Option<Reader> {
    let registers = Registers::list()?;
    let (cs, efer) = (registers.find("cs")?, registers.find("efer")?);
    Some(Reader { registers, cs, efer })
}
