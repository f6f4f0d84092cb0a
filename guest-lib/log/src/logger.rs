//! The logger.

use crate::destination::Destination;
use crate::message::{Formatting, Message};
use log::{Log, Metadata, Record};

/// A logger that records into a guest's ring or a VMM's backends, and passes records on
/// to the logger `N`.
#[derive(Debug)]
pub struct Logger<D, N = NoLogger> {
    destination: D,
    next: N,
}

/// A logger that does nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoLogger;

#[cfg(feature = "guest")]
impl Logger<crate::Guest> {
    /// Returns a logger for a guest or a program.
    pub const fn guest() -> Self {
        Logger { destination: crate::Guest, next: NoLogger }
    }
}

#[cfg(feature = "host")]
impl Logger<crate::Host> {
    /// Returns a logger for a VMM.
    pub const fn host() -> Self {
        Logger { destination: crate::Host, next: NoLogger }
    }
}

impl<D> Logger<D> {
    /// Returns a logger that passes all records on to `next`. The logger `next` chooses the records that it
    /// takes.
    pub fn and<N: Log>(self, next: N) -> Logger<D, N> {
        Logger { destination: self.destination, next }
    }
}

impl<D: Destination, N: Log> Log for Logger<D, N> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        D::on(metadata.level()) != 0 || self.next.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let on = D::on(record.level());
        if on != 0
            && let Some(formatting) = Formatting::begin()
        {
            let message = Message::of(record.args());
            drop(formatting);
            D::record(on, record.level(), record.target(), &message);
        }
        self.next.log(record);
    }

    fn flush(&self) {
        self.next.flush();
    }
}

impl Log for NoLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn log(&self, _: &Record<'_>) {}

    fn flush(&self) {}
}
