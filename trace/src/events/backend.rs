//! Backends: the destinations of declared events. Any set of backends can be active, chosen at run time.
//!
//! `session` and `simple` share the threads' rings, which a writer empties, so an event costs a few stores.
//! `log`, `syslog`, `ftrace` and `sdt` are synchronous by nature: the thread of each event makes a system
//! call (or takes a trap, if a probe is attached).

pub mod ftrace;
pub mod log;
pub mod sdt;
pub mod syslog;

use super::line::Line;
use super::registry::activate;
pub use super::registry::{Backends, active, remove};

/// Adds backends. Before adding [`Backends::FTRACE`] or [`Backends::FTRACE_RAW`], [open](ftrace::open) an
/// instance.
pub fn add(backends: Backends) {
    if backends.contains(Backends::SDT) {
        sdt::begin();
    }
    activate(backends);
}

/// Writes a line to each text backend.
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
