// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A shadow stack, and its frames.

use super::Settings;

/// Maximum number of recorded frames of a stack: less than the number of depths that a record can have.
pub const MAX_FRAMES: usize = 1023;

/// Address that stands for a function without a name: no instruction in the function was observed yet. No
/// instruction can have this address.
pub(super) const UNNAMED: u64 = u64::MAX;

/// Returns the address of a function that has a name.
#[inline]
pub(super) fn named(address: u64) -> u64 {
    address.min(UNNAMED - 1)
}

/// Function that is being executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Stack slot of the return address
    pub slot: u64,
    /// The return address, or 0
    pub back: u64,
    /// Address of the function, or [`UNNAMED`]
    pub function: u64,
    /// Time of the entry, or of the stack's last resumption
    pub time: u64,
}

/// Range of addresses from which a stack is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Nothing was called yet
    Unknown,
    /// Aligned region of a kernel's stack. The value is the upper bits of the region's addresses
    Kernel(u64),
    /// Any other stack of this address space, recognized by addresses near the stack's frames
    Near(u64),
}

impl Region {
    /// Returns the region of a slot in a space.
    pub fn of(slot: u64, space: u64, settings: &Settings) -> Self {
        if slot >> 63 == 1 {
            Region::Kernel(slot >> settings.kernel_stack_bits)
        } else {
            Region::Near(space)
        }
    }

    pub fn is_near(self) -> bool {
        matches!(self, Region::Near(_))
    }
}

/// A shadow stack; [`Open`](super::open::Open) has the stack's frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub region: Region,
    /// First slot that is on this stack
    pub low: u64,
    /// Number of bytes from `low` that are on this stack
    pub size: u64,
    /// Number of frames
    pub len: usize,
    /// Number of outermost frames whose entries are written
    pub written: usize,
    /// Number of calls beyond [`MAX_FRAMES`] that have not returned
    pub beyond: u64,
    /// Slot of the last event
    pub last: u64,
    /// Sequence number of the last change to this stack. The changes are counted over all stacks of the track
    pub used: u64,
}

impl Stack {
    pub fn empty(region: Region, last: u64, used: u64) -> Self {
        Stack { region, low: 0, size: 0, len: 0, written: 0, beyond: 0, last, used }
    }
}

/// Function that ends if the next event is a return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// The innermost function.
    #[default]
    Innermost,
    /// The innermost function. The function has loaded its return address, so the function is about to
    /// return, or to jump to another function.
    Loaded,
    /// A function without a frame.
    Unknown,
    /// A function that has changed the stack. The function's end is recorded already.
    Ended,
}
