//! Handles a segment's file that is cut off while it is mapped: the next look at it ends the process with a
//! message instead of a core.
//!
//! The process does not continue, because it would record words that are not there as if they were. The part
//! that was committed to the session is whole, as after any kill.
//!
//! Unsafe, because a signal handler makes system calls.
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

/// Watches this segment's file: if a process that can write to the file
/// truncates it, this process writes `said` to stderr and ends with status 1.
/// For programs that only trace others; a memfd cannot be truncated. This function can be called once in a
/// process, and a watched segment must not be unmapped.
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
        // SAFETY: system calls that a handler may make, with memory that stays.
        unsafe {
            libc::write(libc::STDERR_FILENO, said.as_ptr().cast(), said.len());
            libc::_exit(1);
        }
    }
    false
}
