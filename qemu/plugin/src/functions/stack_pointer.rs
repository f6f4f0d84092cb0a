//! The stack pointers of vCPUs of AArch64.
//!
//! A read of a register costs some 50 ns. Most instructions that change the stack pointer add a constant
//! number. QEMU's translated code adds these numbers to a copy of the stack pointer. The copy is valid until
//! an instruction sets the stack pointer in another way, or until the privilege level changes. After such a
//! change, the next use of the copy reads the register. If an instruction is repeated after a page fault,
//! then the code adds the number twice. The wrong copy does no harm: the kernel handles the fault at another
//! privilege level, and the change of the level makes the copy invalid. Each level has its own stack pointer,
//! and its own copy.
//!
//! If several vCPUs share a thread, then the plugin uses no copies. The reason is that in QEMU up to 11.1,
//! the code that adds the numbers works only for the first of these vCPUs.
//!
//! The code is unsafe because the copies are QEMU's.
#![allow(unsafe_code)]

use super::level::{LEVELS, Level};
use super::reader::{self, Kept};
use crate::api::{Instruction, Scoreboard};
use std::cell::RefCell;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of uses of the copy between two comparisons of the copy with the register.
const CHECKED: u32 = 64;

thread_local! {
    static READER: Kept<1> = const { RefCell::new(None) };
}

/// Reads the stack pointer of the vCPU that this thread runs.
pub fn read() -> Option<u64> {
    let [pointer] = reader::read(&READER, ["sp"])?;
    Some(pointer)
}

/// The state of a copy.
#[derive(Debug, Default)]
pub struct Copy {
    is_valid: bool,
    uses: u32,
}

impl Copy {
    /// Reports that the copy may have another value than the register.
    #[inline]
    pub fn lose(&mut self) {
        self.is_valid = false;
    }
}

/// Copies of the stack pointers of all vCPUs, by level.
#[derive(Debug)]
pub struct StackPointer {
    copies: Scoreboard,
    /// Whether a valid copy was wrong.
    is_wrong: AtomicBool,
    /// Whether the plugin has stopped using the copies, because several vCPUs share a thread.
    is_given_up: AtomicBool,
}

impl StackPointer {
    /// Makes the copies. Returns `None` before API 2.
    pub fn new() -> Option<StackPointer> {
        let copies = Scoreboard::new(LEVELS)?;
        let [is_wrong, is_given_up] = [false; 2].map(AtomicBool::new);
        Some(StackPointer { copies, is_wrong, is_given_up })
    }

    /// Adds a number to the copy at each execution of an instruction.
    pub fn follow(&self, instruction: &Instruction<'_>, level: Level, number: i64) {
        if !self.is_given_up.load(Relaxed) {
            instruction.adds(&self.copies, level.0.into(), number.cast_unsigned());
        }
    }

    /// Gives the copies up: from now on, each use reads the register.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Relaxed);
    }

    /// Returns whether a copy was found to be wrong. From then on, no copy is used.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong.load(Relaxed)
    }

    /// Returns the stack pointer of a level.
    ///
    /// # Safety
    /// The calling thread runs this vCPU.
    #[inline]
    pub unsafe fn value(&self, vcpu: c_uint, level: Level, copy: &mut Copy) -> Option<u64> {
        copy.uses = copy.uses.wrapping_add(1);
        if copy.is_valid && !copy.uses.is_multiple_of(CHECKED) {
            // SAFETY: by the caller's promise, the calling thread runs this vCPU.
            return unsafe { self.copies.with(vcpu, level.0.into(), |number| *number) };
        }
        // SAFETY: by the caller's promise, the calling thread runs this vCPU.
        unsafe { self.check(vcpu, level, copy) }
    }

    /// Reads the register, and corrects the copy.
    ///
    /// # Safety
    /// As for [`StackPointer::value`].
    #[cold]
    unsafe fn check(&self, vcpu: c_uint, level: Level, copy: &mut Copy) -> Option<u64> {
        let value = read()?;
        if self.is_given_up.load(Relaxed) {
            return Some(value);
        }
        // SAFETY: by the caller's promise, the calling thread runs this vCPU.
        let known = unsafe {
            self.copies.with(vcpu, level.0.into(), |number| std::mem::replace(number, value))
        };
        if copy.is_valid && known != Some(value) {
            self.is_wrong.store(true, Relaxed);
        }
        copy.is_valid = !self.is_wrong();
        Some(value)
    }
}
