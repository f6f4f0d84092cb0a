//! Registers and results of the program whose regions spend time in known ways. With a store to a register,
//! the program asks its VMM to spend time.

/// A region is about to begin. The VMM ignores the stored value.
pub const BEFORE: u64 = 0;
/// The VMM computes for a while before it answers.
pub const COMPUTE: u64 = 8;
/// The VMM sleeps for a while before it answers.
pub const SLEEP: u64 = 16;
/// The VMM starts a thread that occupies the vCPU's CPU for a while. The VMM answers at once. When the thread
/// is done, the VMM posts the value as result [`COMPETED`].
pub const COMPETE: u64 = 24;
/// A region has ended. The stored value is the guest's time inside the region, before its end.
pub const AFTER: u64 = 32;
/// The store follows the store to [`AFTER`]. The stored value is the guest's time inside the region, after
/// its beginning.
pub const BEGAN: u64 = 40;

/// Result that the VMM posts.
pub const COMPETED: usize = 0;
/// Result of the guest: number of ticks for which the guest ran in regions `computed`.
pub const RAN: usize = 1;
/// Result of the guest: number of ticks for which the guest was away in regions `computed`.
pub const AWAY: usize = 2;
