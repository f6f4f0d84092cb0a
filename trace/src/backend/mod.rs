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

use crate::event::EVENTS;
use crate::text::Line;
use bitflags::bitflags;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

bitflags! {
    /// A set of backends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Backends: u32 {
        /// The threads' rings, which `session` and `simple` are written from.
        /// There while a [`Session`](crate::Session) is.
        const RING = 1;
        /// Lines on stderr.
        const LOG = 2;
        /// Messages to syslog.
        const SYSLOG = 4;
        /// Lines in the kernel's trace, by trace_marker.
        const FTRACE = 8;
        /// Records in the kernel's trace, by trace_marker_raw.
        const FTRACE_RAW = 16;
        /// SDT probes, for bpftrace, perf and SystemTap.
        const SDT = 32;
        /// Those that write an event as text.
        const TEXT = Self::LOG.bits() | Self::SYSLOG.bits() | Self::FTRACE.bits();
    }
}

/// Those that are on.
pub(crate) static BACKENDS: AtomicU32 = AtomicU32::new(0);

/// Those that are on.
pub fn active() -> Backends {
    Backends::from_bits_retain(BACKENDS.load(SeqCst))
}

/// Adds backends. For [`Backends::FTRACE`] and [`Backends::FTRACE_RAW`]
/// [open](ftrace::open) an instance first.
pub fn add(backends: Backends) {
    if backends.contains(Backends::SDT) {
        sdt::begin();
    }
    BACKENDS.fetch_or(backends.bits(), SeqCst);
    settle();
}

/// Takes backends away.
pub fn remove(backends: Backends) {
    BACKENDS.fetch_and(!backends.bits(), SeqCst);
    settle();
}

/// Sessions that have not ended: who wants the rings.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn session_began() {
    if SESSIONS.fetch_add(1, SeqCst) == 0 {
        add(Backends::RING);
    }
}

pub(crate) fn session_ended() {
    if SESSIONS.fetch_sub(1, SeqCst) == 1 {
        remove(Backends::RING);
        // Another may have begun in between.
        if SESSIONS.load(SeqCst) > 0 {
            add(Backends::RING);
        }
    }
}

fn settle() {
    for event in EVENTS {
        event.settle();
    }
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
