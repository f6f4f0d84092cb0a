// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Classifies instructions: calls, returns, and jumps that can be tail calls.

mod aarch64;
mod stack_pointer;
mod x86_64;

pub use stack_pointer::{StackPointerChange, stack_pointer_change};

/// Maximum distance in bytes between a call's end and a nearby target. A nearby target need not be a
/// function.
///
/// Linux fills the return buffer with calls to nearby code, and position-independent code reads the program
/// counter with such a call.
pub const AHEAD: u64 = 32;

/// Instruction set of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// x86-64 in 64-bit mode.
    X86_64,
    /// AArch64, little endian.
    Aarch64,
}

/// Kind of an instruction that changes the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionKind {
    /// Call whose target is in the instruction.
    Call,
    /// Call whose target is 0 to [`AHEAD`] bytes after the instruction. The call is a function call only if
    /// symbols say that a function begins at the target.
    CallAhead,
    /// Call whose target is in a register or in memory.
    CallIndirect,
    /// Call through a far pointer (x86-64).
    CallFar,
    /// Return of a function.
    Return,
    /// Return through a far pointer (x86-64).
    ReturnFar,
    /// Return from an interrupt or exception: `iretq`, `eret`.
    ReturnFromException,
    /// Jump whose target is in the instruction. The jump is a tail call if its target is a function's first
    /// byte.
    Jump,
    /// Jump whose target is in a register or in memory.
    JumpIndirect,
    /// Call of a more privileged level: `syscall`, `sysenter`, `svc`, `hvc`, `smc`.
    SystemCall,
    /// Return to a less privileged level by `sysret` or `sysexit` (x86-64).
    SystemReturn,
    /// `mov sp, xN` (AArch64). Only this instruction leads to another stack.
    StackPointerSet,
    /// Store of the link register x30 to a place that the stack pointer addresses (AArch64). A function that
    /// calls other functions saves the return address with such a store.
    LinkStore,
    /// Load of the link register from a place that the stack pointer addresses (AArch64): the function is
    /// about to return, or to jump to another function.
    LinkLoad,
}

impl InstructionKind {
    /// Returns whether the instruction calls a function.
    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(
            self,
            InstructionKind::Call | InstructionKind::CallIndirect | InstructionKind::CallFar
        )
    }

    /// Returns whether the instruction returns from a function.
    #[must_use]
    pub fn is_return(self) -> bool {
        matches!(self, InstructionKind::Return | InstructionKind::ReturnFar)
    }
}

/// Instruction that changes the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Kind of the instruction.
    pub kind: InstructionKind,
    /// Length of the instruction in bytes.
    pub length: u8,
    /// Address of the target, if the instruction contains it.
    pub target: Option<u64>,
}

impl Instruction {
    fn new(kind: InstructionKind, length: u8) -> Self {
        Instruction { kind, length, target: None }
    }

    /// Returns a direct call or jump whose target is `distance` bytes after the instruction's end.
    fn direct(kind: InstructionKind, length: u8, address: u64, distance: i64) -> Self {
        let next = address.wrapping_add(length.into());
        let is_ahead = kind == InstructionKind::Call && (0..=AHEAD as i64).contains(&distance);
        let kind = if is_ahead { InstructionKind::CallAhead } else { kind };
        Instruction { kind, length, target: Some(next.wrapping_add_signed(distance)) }
    }
}

/// Classifies the instruction that begins with `bytes`, at `address`. Returns `None` for an instruction of no
/// [`InstructionKind`], and for incomplete or invalid bytes. Conditional jumps have no kind.
#[must_use]
pub fn decode(architecture: Architecture, bytes: &[u8], address: u64) -> Option<Instruction> {
    match architecture {
        Architecture::X86_64 => x86_64::decode(bytes, address),
        Architecture::Aarch64 => aarch64::decode(bytes, address),
    }
}

/// Number of bytes of code that show whether the code is a stub.
pub const STUB: usize = 12;

/// Returns whether code is a stub, that is, a jump through a pointer. A program or library calls functions of
/// other files through stubs.
#[must_use]
pub fn is_stub(architecture: Architecture, bytes: &[u8; STUB]) -> bool {
    match architecture {
        Architecture::X86_64 => x86_64::is_stub(bytes),
        Architecture::Aarch64 => aarch64::is_stub(bytes),
    }
}
