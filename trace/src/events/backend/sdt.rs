//! `sdt`: probes of SystemTap's format, which bpftrace, perf, gdb and
//! SystemTap list and attach to: provider `hypertrace`, one per event.
//!
//! Each is a no-op and a semaphore, a word that the kernel counts up where a
//! tool attaches; the probe's arguments are made only then. A string is C's:
//! it ends at its first NUL, or after 256 bytes.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// With lld, the last page of what becomes read-only (RELRO) and the first of
/// the data behind it are the same page of the file, mapped twice; the kernel
/// counts up a semaphore in the first mapping of its place in the file, so in
/// that page it would be the wrong one. The semaphores' section follows
/// `.data`: a page there keeps them out of the shared one.
static PAGE: [AtomicU8; 4096] = [const { AtomicU8::new(1) }; 4096];

/// Has the page linked in.
pub(super) fn begin() {
    black_box(&PAGE)[0].store(1, Relaxed);
}
