// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shadow stacks. A shadow stack knows which functions are being executed, because each function's return
//! address has its own stack slot.
//!
//! [`Stacks`] belongs to one track, usually a virtual CPU at one privilege level, and to one thread. The
//! recorder reports each executed call and return with the stack slot of the return address, so the guest
//! needs no frame pointers. A slot identifies a function's execution. An event's slot also shows which
//! functions have ended without a return: all functions whose slots are below the event's slot.
//!
//! A track has one shadow stack for each stack of the guest. The shadow stacks recognize a kernel's stack by
//! its aligned region, and any other stack by the distance of its addresses. When the guest changes to
//! another stack, all functions of the old stack get exits with the time of the change, and all functions of
//! the new stack get entries with this time. Therefore the records of a track are always balanced.
//!
//! An entry has the time of the call, and is written only at the next event. Before the next event, the
//! called function may have no name (after an indirect call), or a wrong name (after a call of a retpoline).
//! With [`Settings::min`], an entry is written only when the function has lasted long enough.
//!
//! Calls of AArch64 leave the return address in a register. A recorder that can read the stack pointer
//! reports the place below the stack pointer as the call's slot. A recorder that cannot read the stack
//! pointer reports where functions store and load their return addresses ([`Linked`]).
//!
//! The guest chooses all addresses. Memory is bounded by [`Settings::stacks`] and [`MAX_FRAMES`]. For an
//! event, the shadow stacks search all stacks at most twice. The shadow stacks write at most two records for
//! each frame of two stacks. [`Counts`] counts everything beyond these bounds.

mod counts;
mod linked;
mod open;
mod stack;
mod track;

pub use counts::Counts;
pub use linked::Linked;
pub use stack::MAX_FRAMES;
pub use track::Stacks;

/// Settings of a track. The default records everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of stacks that a track remembers at the same time, at least 1. Each stack may use up to
    /// 32 KiB of memory.
    pub stacks: usize,
    /// Binary logarithm of the size and alignment of a kernel's stacks. A kernel's addresses have the topmost
    /// bit set.
    pub kernel_stack_bits: u32,
    /// For stacks that are not a kernel's: maximum distance in bytes between the known range of a stack and
    /// the slot of another call or return on this stack.
    pub reach: u64,
    /// Minimum duration of recorded functions in nanoseconds.
    pub min: u64,
    /// Number of depths that are recorded, at most [`MAX_FRAMES`].
    pub depth: usize,
    /// Whether a program's functions stay open while the program is in the kernel. The records then show the
    /// kernel's functions inside the program's functions. This setting is for a track of all privilege
    /// levels.
    pub nested: bool,
    /// Whether nothing is recorded before [`Stacks::replay`].
    pub paused: bool,
    /// Whether only [`Stacks::begins`] names functions that were called indirectly. A recorder that observes
    /// only some functions needs this setting. Without this setting, any event in a function names the
    /// function.
    pub named_at_start: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            stacks: 256,
            kernel_stack_bits: 14,
            // Nearly all functions have frames smaller than the reach, and the stacks of most threads are
            // farther apart than the reach.
            reach: 256 << 10,
            min: 0,
            depth: MAX_FRAMES,
            nested: false,
            paused: false,
            named_at_start: false,
        }
    }
}

/// An executed call instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Address of the instruction, or any other address in the calling function. If the calling function was
    /// itself called indirectly, then this address names the calling function.
    pub at: u64,
    /// Stack slot of the return address. If the return address is in a register (AArch64), then this is the
    /// place below the stack pointer to which a push would store the return address.
    pub slot: u64,
    /// The return address, or 0 if unknown.
    pub return_address: u64,
    /// Address of the called function, if known.
    pub target: Option<u64>,
}

/// An executed return instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Return {
    /// Address of the instruction, or any other address in the same function.
    pub at: u64,
    /// Stack slot of the return address, as in [`Call`]. If the slot is unknown, then the return ends the
    /// innermost function. If the return was another function's, then the slot of the next call corrects the
    /// error.
    pub slot: Option<u64>,
    /// Address to which the instruction returns, if known.
    pub value: Option<u64>,
}

/// An executed jump to a function's first byte. Such a jump is a tail call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jump {
    /// Address of the instruction, or any other address in the same function.
    pub at: u64,
    /// Address of the function; `None` if the function is not recorded. Thunks are no functions, so jumps to
    /// thunks must not be reported.
    pub target: Option<u64>,
}
