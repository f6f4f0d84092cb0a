//! Blocks and instructions that QEMU translates.
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

use super::access::{AccessCallback, Accesses};
use super::{COPIES, served};
use std::ffi::{c_uint, c_void};
use std::marker::PhantomData;

/// A block that QEMU is translating.
#[repr(C)]
pub(super) struct Tb([u8; 0]);

/// An instruction of a block.
#[repr(C)]
struct Insn([u8; 0]);

/// Registers that a callback reads (`qemu_plugin_cb_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reads {
    /// No register.
    Nothing = 0,
    /// Any register. Before the callback, QEMU stores the registers' values to memory, and these stores cost
    /// time.
    Registers = 1,
}

/// Function that QEMU calls before the execution of an instruction. The arguments are the index of the vCPU,
/// and the word that the plugin passed at the registration.
pub type ExecCallback = extern "C" fn(c_uint, *mut c_void);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        callback: AccessCallback,
        reads: Reads,
        accesses: Accesses,
        word: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        callback: ExecCallback,
        reads: Reads,
        word: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut Insn;
    // This function has one of two types. The version that QEMU passes at installation decides which of the
    // two types the function has.
    fn qemu_plugin_insn_data();
    fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    fn qemu_plugin_insn_vaddr(insn: *const Insn) -> u64;
    fn qemu_plugin_insn_haddr(insn: *const Insn) -> *const u8;
}

/// A block that QEMU is translating, valid while the callback runs.
#[derive(Debug)]
pub struct Block(*mut Tb);

impl Block {
    /// # Safety
    /// `tb` is the block that QEMU passed to the callback that runs.
    pub(super) unsafe fn new(tb: *mut Tb) -> Block {
        Block(tb)
    }

    /// Returns the block's instructions.
    pub fn instructions(&self) -> impl Iterator<Item = Instruction<'_>> {
        // SAFETY: `new`'s promise.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        (0..count).map(|index| Instruction {
            // SAFETY: the caller of `new` has promised that the block is valid, and `index` is less than the
            // number of instructions.
            insn: unsafe { qemu_plugin_tb_get_insn(self.0, index) },
            block: PhantomData,
        })
    }
}

/// An instruction of a [`Block`].
#[derive(Debug)]
pub struct Instruction<'a> {
    insn: *mut Insn,
    block: PhantomData<&'a Block>,
}

/// Maximum size of an instruction in bytes. x86-64 allows one byte less.
const LONGEST: usize = 16;

impl Instruction<'_> {
    /// Returns the instruction's size in bytes.
    pub fn size(&self) -> usize {
        // SAFETY: the instruction is valid, because its block lives as long as `self`. The methods below rely
        // on this, too.
        unsafe { qemu_plugin_insn_size(self.insn) }
    }

    /// Calls `look` with the instruction's bytes.
    pub fn with_bytes<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut copy = [0u8; LONGEST];
        let len = self.size().min(LONGEST);
        let data = qemu_plugin_insn_data as *const ();
        // SAFETY: before API 3, the function has the first of these two types. From API 3 on, the function
        // has the second type. A function of the first type returns a pointer to the bytes, and a function of
        // the second type copies the bytes. The number of bytes is the result of `qemu_plugin_insn_size`.
        unsafe {
            if served() < COPIES {
                let data: extern "C" fn(*const Insn) -> *const u8 = std::mem::transmute(data);
                let bytes = data(self.insn);
                if !bytes.is_null() {
                    std::ptr::copy_nonoverlapping(bytes, copy.as_mut_ptr(), len);
                }
            } else {
                let data: extern "C" fn(*const Insn, *mut u8, usize) -> usize =
                    std::mem::transmute(data);
                data(self.insn, copy.as_mut_ptr(), len);
            }
        }
        look(&copy[..len])
    }

    /// Returns the instruction's guest address.
    pub fn address(&self) -> u64 {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_vaddr(self.insn) }
    }

    /// Returns the address of the instruction's code in QEMU's own memory.
    pub fn host_address(&self) -> Option<u64> {
        // SAFETY: as above.
        let at = unsafe { qemu_plugin_insn_haddr(self.insn) };
        (!at.is_null()).then_some(at as u64)
    }

    /// Returns the instruction's address in QEMU's memory minus the instruction's guest address.
    pub fn guest_base(&self) -> Option<u64> {
        Some(self.host_address()?.wrapping_sub(self.address()))
    }

    /// Returns QEMU's pointer to the instruction.
    pub(super) fn pointer(&self) -> *mut c_void {
        self.insn.cast()
    }

    /// Registers `callback`, which QEMU calls with `word` after each access of this kind that the instruction
    /// makes.
    pub fn on_access(&self, accesses: Accesses, reads: Reads, callback: AccessCallback, word: u64) {
        let word = word as *mut c_void;
        // SAFETY: the instruction is valid, as in `size`. For QEMU, the word is only a number; only the
        // callback uses the word as a pointer.
        unsafe { qemu_plugin_register_vcpu_mem_cb(self.insn, callback, reads, accesses, word) };
    }

    /// Registers `callback`, which QEMU calls with `word` before each execution of the instruction.
    pub fn on_execution(&self, reads: Reads, callback: ExecCallback, word: u64) {
        // SAFETY: as above.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(self.insn, callback, reads, word as *mut c_void);
        }
    }
}
