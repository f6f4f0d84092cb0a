// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory of all shadow stacks of a track: allocated once, and used as stacks need it.

/// Frames of a stack that are recorded: as many depths as a record can have.
pub const MAX_FRAMES: usize = 1023;

/// Address of a function that no instruction has named yet. No instruction fits at this address.
pub(super) const UNNAMED: u64 = u64::MAX;

/// Returns the address of a function that has a name.
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
    /// Any other stack: addresses near those of its frames
    Near,
}

/// One shadow stack without its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub region: Region,
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
        Stack { region, len: 0, written: 0, beyond: 0, last, used }
    }
}

/// Frames of all stacks. Zeroed memory of arrays is not touched until it is used, so that a bound costs nothing.
pub(super) struct Frames(Vec<[u64; 4]>);

impl Frames {
    pub fn new(stacks: usize) -> Self {
        Frames(vec![[0; 4]; stacks.saturating_mul(MAX_FRAMES)])
    }

    pub fn get(&self, stack: usize, index: usize) -> Frame {
        let [slot, back, function, time] = self.0[stack * MAX_FRAMES + index];
        Frame { slot, back, function, time }
    }

    pub fn set(&mut self, stack: usize, index: usize, frame: Frame) {
        let Frame { slot, back, function, time } = frame;
        self.0[stack * MAX_FRAMES + index] = [slot, back, function, time];
    }
}
