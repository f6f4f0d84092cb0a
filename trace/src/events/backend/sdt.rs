//! `sdt`: probes in SystemTap's format, which bpftrace, perf, gdb and SystemTap list and attach to. The
//! provider is `hypertrace`, with one probe per event.
//!
//! Each probe is a no-op and a semaphore, a word that the kernel increments when a tool attaches. The probe's
//! arguments are made only while a tool is attached. A string is a C string: it ends at its first NUL, or
//! after 256 bytes.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// With lld, the last page of the data that becomes read-only (RELRO) and the first page of the data after it
/// are the same page of the file, mapped twice. The kernel increments a semaphore in the first mapping of the
/// semaphore's place in the file, which would be the wrong mapping for that page. The semaphores' section
/// follows `.data`, so a whole page in `.data` keeps the semaphores out of the shared page.
static PAGE: [AtomicU8; 4096] = [const { AtomicU8::new(1) }; 4096];

/// Makes the linker keep the page.
pub(super) fn begin() {
    black_box(&PAGE)[0].store(1, Relaxed);
}
