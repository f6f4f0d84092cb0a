// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts of what the shadow stacks of a track saw, and of what they could not record.

/// Counts of a track, all running totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that were reported.
    pub calls: u64,
    /// Returns that were reported.
    pub returns: u64,
    /// Tail calls that were recorded.
    pub tail_calls: u64,
    /// Changes to another stack.
    pub switches: u64,
    /// Stacks that were forgotten, the least recently used first, because there were too many.
    pub evicted: u64,
    /// Calls deeper than [`MAX_FRAMES`](super::MAX_FRAMES), which are not recorded.
    pub too_deep: u64,
    /// Functions that ended without a return: `longjmp`, exceptions, and context switches in a stack that is shared.
    pub vanished: u64,
    /// Functions of indirect calls that ended before an instruction named them, which are not recorded.
    pub unnamed: u64,
    /// Jumps by a return instruction right after a call, as retpolines make: the function is the one jumped to.
    pub thunks: u64,
    /// Returns to another address than the one that the call pushed.
    pub changed: u64,
    /// Returns at another slot than their call's, or on another stack, found by the return address.
    pub moved: u64,
    /// Returns of functions that were called before the beginning, or on a stack that was forgotten.
    pub before: u64,
    /// Returns without a call, within functions whose calls are known: the misses.
    pub unmatched: u64,
    /// Times that were before the last one, and were replaced by the one after it.
    pub backwards: u64,
}
