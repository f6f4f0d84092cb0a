//! Backends: where declared events go. Values chosen at run time, any set at
//! once.
//!
//! `session` and `simple` share the threads' rings, which a writer empties; an
//! event is a few stores. `log`, `syslog`, `ftrace` and `sdt` are synchronous
//! by nature: each event is a system call (or a trap, where a probe is
//! attached) on the thread that it happens on.

pub mod ftrace;
pub mod log;
pub mod sdt;
pub mod syslog;

use super::line::Line;
use super::registry::activate;
pub use super::registry::{Backends, active, remove};

/// Adds backends. For [`Backends::FTRACE`] and [`Backends::FTRACE_RAW`]
/// [open](ftrace::open) an instance first.
pub fn add(backends: Backends) {
    if backends.contains(Backends::SDT) {
        sdt::begin();
    }
    activate(backends);
}

/// Writes a line to each backend of text.
pub(crate) fn text(on: Backends, line: &Line) {
    if on.contains(Backends::FTRACE) {
        ftrace::mark(line);
    }
    if on.contains(Backends::LOG) {
        log::write(line);
    }
    if on.contains(Backends::SYSLOG) {
        syslog::write(line);
    }
}
