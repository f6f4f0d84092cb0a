// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A shadow stack, and its frames.

use super::Settings;

/// Frames of a stack that are recorded: as many depths as a record can have.
pub const MAX_FRAMES: usize = 1023;

/// Address of a function that no instruction has named yet. No instruction fits at this address.
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

/// Range of addresses by which a stack is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Nothing was called yet
    Unknown,
    /// Aligned region of a kernel's stack: the upper bits of its addresses
    Kernel(u64),
    /// Any other stack, of this space: addresses near those of its frames
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

/// One shadow stack without its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub region: Region,
    /// First slot that is on this stack
    pub low: u64,
    /// Bytes from there that are on this stack
    pub size: u64,
    /// Number of frames
    pub len: usize,
    /// Number of the frames whose entries are written: the outermost ones
    pub written: usize,
    /// Calls beyond [`MAX_FRAMES`] that have not returned
    pub beyond: u64,
    /// Slot of the last event
    pub last: u64,
    /// Turn of the last use
    pub used: u64,
}

impl Stack {
    pub fn empty(region: Region, last: u64, used: u64) -> Self {
        Stack { region, low: 0, size: 0, len: 0, written: 0, beyond: 0, last, used }
    }
}

/// Function whose return is the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// The innermost one.
    #[default]
    Innermost,
    /// The innermost one, which has loaded its return address: it returns, or jumps to another function.
    Loaded,
    /// A function without a frame.
    Unknown,
    /// A function that has changed the stack: its end is recorded.
    Ended,
}
