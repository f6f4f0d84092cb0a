//! Scoreboards: numbers of each vCPU, to which the guest's instructions add without a callback. Scoreboards
//! exist from API 2 on.
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

use super::code::Instruction;
use super::symbol::Symbol;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;

/// `qemu_plugin_u64`: a number in an element of a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Number {
    scoreboard: *mut c_void,
    offset: usize,
}

static NEW: Symbol = Symbol::new(c"qemu_plugin_scoreboard_new");
static FIND: Symbol = Symbol::new(c"qemu_plugin_scoreboard_find");
static INLINE: Symbol = Symbol::new(c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu");

/// A fixed set of numbers for each vCPU. All numbers are 0 at first.
#[derive(Debug)]
pub struct Scoreboard {
    /// QEMU's scoreboard, which lives as long as the process.
    pointer: *mut c_void,
    numbers: usize,
}

// SAFETY: QEMU's functions take a scoreboard on any thread.
unsafe impl Send for Scoreboard {}
// SAFETY: QEMU's functions take a scoreboard on any thread. Only the thread that runs a vCPU passes this
// vCPU's number to `with`.
unsafe impl Sync for Scoreboard {}

impl Scoreboard {
    /// Makes a scoreboard with `numbers` numbers for each vCPU. Returns `None` before API 2.
    pub fn new(numbers: usize) -> Option<Scoreboard> {
        FIND.find().and(INLINE.find())?;
        // SAFETY: QEMU's function has this type in all versions that have the function.
        let new: extern "C" fn(usize) -> *mut c_void = unsafe { transmute(NEW.find()?) };
        let pointer = new(numbers * size_of::<u64>());
        (!pointer.is_null()).then_some(Scoreboard { pointer, numbers })
    }

    /// Calls `f` with the number at `index` of a vCPU. Returns `None` if there is no such number.
    ///
    /// # Safety
    /// The calling thread runs this vCPU.
    #[inline]
    pub unsafe fn with<R>(
        &self,
        vcpu: c_uint,
        index: usize,
        f: impl FnOnce(&mut u64) -> R,
    ) -> Option<R> {
        if index >= self.numbers {
            return None;
        }
        // SAFETY: QEMU's function has this type in all versions that have the function. The element stays
        // where it is while a vCPU runs, and only code of this vCPU uses the element.
        unsafe {
            let find: extern "C" fn(*mut c_void, c_uint) -> *mut u64 = transmute(FIND.find()?);
            let numbers = find(self.pointer, vcpu);
            if numbers.is_null() { None } else { numbers.add(index).as_mut().map(f) }
        }
    }
}

impl Instruction<'_> {
    /// Makes each vCPU add `value` to its own number at `index` of the scoreboard before each execution of
    /// this instruction. The sum wraps around.
    pub fn adds(&self, scoreboard: &Scoreboard, index: usize, value: u64) {
        let Some(inline) = INLINE.find().filter(|_| index < scoreboard.numbers) else { return };
        let number = Number { scoreboard: scoreboard.pointer, offset: index * size_of::<u64>() };
        // SAFETY: QEMU's function has this type in all versions that have the function.
        unsafe {
            let inline: extern "C" fn(*mut c_void, c_int, Number, u64) = transmute(inline);
            inline(self.pointer(), ADD, number, value);
        }
    }
}
