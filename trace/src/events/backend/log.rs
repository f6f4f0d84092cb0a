//! `log`: one line on stderr for each event. One write writes the whole line.
//!
//! The lines have the format of QEMU's log backend: `PID@SECONDS.MICROSECONDS:NAME TEXT`, in Unix time. The
//! backend is synchronous: the thread waits until the line is written.

use crate::events::line::Line;
use std::fmt::Write;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that could not be written.
pub fn lost() -> u64 {
    LOST.load(Relaxed)
}

pub(super) fn write(line: &Line) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut head = Line::new();
    // Writing to a `Line` does not fail.
    let _ = write!(head, "{}@{}.{:06}:", std::process::id(), now.as_secs(), now.subsec_micros());
    let mut whole = [0; 2 * crate::events::line::MAX_LINE + 1];
    let mut len = 0;
    for part in [head.as_bytes(), line.as_bytes(), b"\n"] {
        whole[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    // `eprintln!` would panic if stderr is closed, and would make one write for each piece of the line.
    if std::io::stderr().write_all(&whole[..len]).is_err() {
        LOST.fetch_add(1, Relaxed);
    }
}
