//! The atomics of the ring, from `core` or, under `--cfg loom`, from loom.
//!
//! Shared memory is a slice of [`AtomicU64`]: one writer per word, plain loads
//! and stores only. A locked instruction on a page that is mapped uncached
//! locks the bus, so the ring does no read-modify-write; a segment's words, which
//! are plain memory, may.

#[cfg(not(loom))]
pub use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence},
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// loom has no signals, so nothing can come between: nothing to model.
#[cfg(loom)]
pub fn compiler_fence(_: Ordering) {}
