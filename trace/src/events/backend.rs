//! Backends: the destinations of declared events. Any set of backends can be active, chosen at run time.
//!
//! `session` and `simple` share the threads' rings. An event for these backends costs only a few stores, and
//! a writer empties the rings. `log`, `syslog`, `ftrace` and `sdt` are synchronous by nature: the thread of
//! each event makes a system call, or takes a trap if a tool is attached to a probe.

pub mod ftrace;
pub mod log;
pub mod sdt;
pub mod syslog;

use super::line::Line;
use super::registry::activate;
pub use super::registry::{Backends, active, remove};

/// Adds backends. [Open](ftrace::open) an instance before you add [`Backends::FTRACE`] or
/// [`Backends::FTRACE_RAW`].
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
