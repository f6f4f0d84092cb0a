//! `sdt`: probes in SystemTap's format, which bpftrace, perf, gdb and SystemTap list and attach to. The
//! provider is `hypertrace`, with one probe per event.
//!
//! Each probe is a no-op and a semaphore, a word that the kernel increments when a tool attaches. The program
//! computes the probe's arguments only while a tool is attached. A string argument is a C string: the string
//! ends at its first NUL, or after 256 bytes.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A whole page in `.data`, which keeps the semaphores out of a page that is mapped twice. If lld links the
/// program, one page of the file holds both the end of the data that becomes read-only (RELRO) and the
/// beginning of the later data. This page is mapped twice. The kernel increments a semaphore in the first
/// mapping of the semaphore's place in the file. For a semaphore in the shared page, the first mapping would
/// be the wrong mapping. The section of the semaphores follows `.data`.
static PAGE: [AtomicU8; 4096] = [const { AtomicU8::new(1) }; 4096];

/// Uses [`PAGE`], because the linker would drop an unused page.
pub(super) fn begin() {
    black_box(&PAGE)[0].store(1, Relaxed);
}
