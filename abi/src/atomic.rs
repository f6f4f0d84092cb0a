// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The atomics of the ring, from `core` or, under `--cfg hypertrace_loom`, from loom.
//!
//! Shared memory is a slice of [`AtomicU64`]: one writer per word, plain loads and stores only. The ring does
//! no read-modify-write, because a locked instruction on an uncached page locks the bus. In a segment, which
//! is plain memory, read-modify-write is allowed.

#[cfg(not(hypertrace_loom))]
pub use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence},
};

#[cfg(hypertrace_loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// Does nothing: loom has no signals, and this fence only orders a thread against its own signal handler.
#[cfg(hypertrace_loom)]
pub fn compiler_fence(_: Ordering) {}
