//! Handles a segment's file that is cut off while the file is mapped: the next access to the lost memory ends
//! the process with a message instead of a core dump.
//!
//! The process does not continue, because the process would record words that the file no longer has. The
//! records that were committed to the session are complete, as after any kill.
//!
//! The code is unsafe because a signal handler makes system calls.
#![allow(unsafe_code)]

use hypertrace_segment::{Segment, bus_error};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

/// State of the handler.
struct Watched {
    /// Addresses where the segment is mapped.
    at: Range<usize>,
    said: String,
}

static WATCHED: OnceLock<Watched> = OnceLock::new();

/// Watches this segment's file: if a process truncates the file, this process writes `said` to stderr and
/// ends with status 1. This function is for programs that only trace other programs. A segment in a memfd
/// needs no watch, because the memfd cannot be truncated. This function can be called once in a process, and
/// a watched segment must not be unmapped.
///
/// # Errors
/// If the process watches a segment already.
pub fn end_if_cut(segment: &Segment, said: &str) -> io::Result<()> {
    let watched = Watched { at: segment.mapping().range(), said: format!("{said}\n") };
    let is_first = WATCHED.set(watched).is_ok() && bus_error::watch(end_if_in_segment);
    if is_first { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
}

/// Ends the process if the address is in the segment.
fn end_if_in_segment(address: usize) -> bool {
    if let Some(Watched { said, .. }) = WATCHED.get().filter(|own| own.at.contains(&address)) {
        // SAFETY: a signal handler may make these system calls, and the memory of the text is never freed.
        unsafe {
            libc::write(libc::STDERR_FILENO, said.as_ptr().cast(), said.len());
            libc::_exit(1);
        }
    }
    false
}
