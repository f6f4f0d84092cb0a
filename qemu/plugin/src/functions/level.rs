//! Privilege levels. The plugin reads the level from the registers of the vCPU whose code QEMU translates.

use super::reader::{self, Kept};
use crate::target::Target;
use std::cell::RefCell;

/// A privilege level: the ring of x86-64, the exception level of AArch64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

/// Number of levels.
pub const LEVELS: usize = 4;

/// Levels of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Level of programs.
    pub programs: Level,
    /// Level of kernels.
    pub kernels: Level,
    name: &'static str,
}

impl Levels {
    /// Returns the levels of a guest's architecture.
    pub fn of(target: Target) -> Levels {
        match target {
            Target::X86_64 => Levels { programs: Level(3), kernels: Level(0), name: "Ring" },
            Target::Aarch64 => Levels { programs: Level(0), kernels: Level(1), name: "EL" },
        }
    }

    /// Returns the name of a level, the same as in QEMU's own plugin.
    pub fn name(&self, level: Level) -> String {
        format!("{}{}", self.name, level.0)
    }
}

/// Bit of EFER: the CPU is in long mode.
const LONG_MODE: u64 = 1 << 10;
/// Linux's selector for 32-bit programs. The instructions of 32-bit programs are decoded differently.
const PROGRAMS_32: u64 = 0x23;

/// Bit of PSTATE (`cpsr` to a debugger): the CPU is in AArch32.
const AARCH32: u64 = 1 << 4;

thread_local! {
    static X86_64: Kept<2> = const { RefCell::new(None) };
    static AARCH64: Kept<1> = const { RefCell::new(None) };
}

/// Returns the level of the code that this thread's vCPU translates; `None` for code of 16 or 32 bits, or if
/// the registers cannot be read.
pub fn of_translated(target: Target) -> Option<Level> {
    match target {
        Target::X86_64 => {
            let [cs, efer] = reader::read(&X86_64, ["cs", "efer"])?;
            let is_64 = efer & LONG_MODE != 0 && cs & 0xffff != PROGRAMS_32;
            is_64.then_some(Level((cs & 3) as u8))
        }
        Target::Aarch64 => {
            let [pstate] = reader::read(&AARCH64, ["cpsr"])?;
            (pstate & AARCH32 == 0).then_some(Level((pstate >> 2 & 3) as u8))
        }
    }
}
