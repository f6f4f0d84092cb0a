//! Privilege levels, by the registers of the vCPU that translates.

use crate::api::{Register, Registers};
use crate::target::Target;
use std::cell::RefCell;

/// A privilege level: on x86-64 the ring, on AArch64 the exception level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

/// Number of levels.
pub const LEVELS: usize = 4;

impl Level {
    /// Returns its name, as QEMU's own plugin has it.
    pub fn name(self, target: Target) -> String {
        match target {
            Target::X86_64 => format!("Ring{}", self.0),
            Target::Aarch64 => format!("EL{}", self.0),
        }
    }

    /// Returns that of programs.
    pub fn of_programs(target: Target) -> Level {
        match target {
            Target::X86_64 => Level(3),
            Target::Aarch64 => Level(0),
        }
    }
}

/// Bit of EFER on x86-64: the CPU is in long mode.
const LONG_MODE: u64 = 1 << 10;
/// Selector of Linux for 32-bit programs, whose instructions are others.
const PROGRAMS_32: u64 = 0x23;

/// The registers that say the level.
struct Reader {
    registers: Registers,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    X86 { cs: Register, efer: Register },
    Aarch64 { cpsr: Register },
}

thread_local! {
    /// Registers have the same numbers on all vCPUs; a read is that of the thread's vCPU.
    static READER: RefCell<Option<Reader>> = const { RefCell::new(None) };
}

/// Returns the level of the code that this thread's vCPU translates; `None` for code of 16 or 32 bits, or if
/// the registers cannot be read.
pub fn of_translated(target: Target) -> Option<Level> {
    READER.with_borrow_mut(|reader| {
        if reader.is_none() {
            *reader = open(target);
        }
        let Reader { registers, kind } = reader.as_mut()?;
        match *kind {
            Kind::X86 { cs, efer } => {
                let (cs, efer) = (registers.read(cs)?, registers.read(efer)?);
                let is_64 = efer & LONG_MODE != 0 && cs & 0xffff != PROGRAMS_32;
                is_64.then_some(Level((cs & 3) as u8))
            }
            Kind::Aarch64 { cpsr } => {
                let state = registers.read(cpsr)?;
                // Bit 4: AArch32.
                (state & 1 << 4 == 0).then_some(Level((state >> 2 & 3) as u8))
            }
        }
    })
}

fn open(target: Target) -> Option<Reader> {
    let registers = Registers::list()?;
    let kind = match target {
        Target::X86_64 => Kind::X86 { cs: registers.find("cs")?, efer: registers.find("efer")? },
        Target::Aarch64 => Kind::Aarch64 { cpsr: registers.find("cpsr")? },
    };
    Some(Reader { registers, kind })
}
