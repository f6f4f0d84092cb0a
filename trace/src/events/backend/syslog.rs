//! `syslog`: one message per event, at level info.
//!
//! The backend is synchronous and takes libc's own lock, so a thread may wait for other threads.
#![allow(unsafe_code)] // libc's syslog(3)

use crate::events::line::{Line, MAX_LINE};

pub(super) fn write(line: &Line) {
    let mut text = [0u8; MAX_LINE + 1];
    let len = line.as_bytes().len();
    text[..len].copy_from_slice(line.as_bytes());
    // SAFETY: the format takes one C string, and `text` is a C string: the line has no NUL, and at least one
    // NUL follows the line.
    unsafe { libc::syslog(libc::LOG_INFO | libc::LOG_USER, c"%s".as_ptr(), text.as_ptr()) };
}
