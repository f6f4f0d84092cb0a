// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts of events that the shadow stacks of a track have handled, and of events that the shadow stacks
//! could not record.

/// Counts of a track. All counts are running totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of reported calls.
    pub calls: u64,
    /// Number of reported returns.
    pub returns: u64,
    /// Number of recorded tail calls.
    pub tail_calls: u64,
    /// Number of changes to another stack.
    pub switches: u64,
    /// Number of stacks that were forgotten because there were too many stacks. The least recently used stack
    /// is forgotten first.
    pub evicted: u64,
    /// Number of calls deeper than [`MAX_FRAMES`](super::MAX_FRAMES), which are not recorded.
    pub too_deep: u64,
    /// Number of functions that ended without a return. `longjmp`, exceptions, and context switches within a
    /// shared stack end functions in this way.
    pub vanished: u64,
    /// Number of indirectly called functions that have no record. Such a function ended before any of its
    /// instructions was observed.
    pub unnamed: u64,
    /// Number of jumps by which retpolines and similar thunks reached a function. Such a thunk executes a
    /// call, and then a return instruction that jumps to the function.
    pub thunks: u64,
    /// Number of returns to an address that is not the return address of the call.
    pub changed: u64,
    /// Number of returns that have the return address of a call, but another slot or another stack than the
    /// call.
    pub moved: u64,
    /// Number of returns of functions whose calls are not known. Such a function was called before the
    /// recording began, or on a stack that was forgotten.
    pub before: u64,
    /// Number of misses. A miss is a return that belongs to no call, although the stack has functions whose
    /// calls are known.
    pub unmatched: u64,
    /// Number of events whose time was before the last event's time. The time of such an event becomes the
    /// last time plus 1 ns.
    pub backwards: u64,
}
