//! Fires a declared event. The event's generated function calls this code.

use super::backend::{self, Backends};
use super::line::Line;
use super::registry::TraceEvent;
use super::rings;
use hypertrace_abi::event::{Fields, Site};

/// Passes an event to the backends for which the event is on.
#[doc(hidden)]
#[inline(always)]
pub fn fire<S: Site, F: Fields>(
    event: &'static TraceEvent,
    on: u32,
    site: S,
    fields: F,
    text: impl FnOnce(&mut Line),
    probe: impl FnOnce(),
) {
    if on & Backends::RING.bits() != 0 {
        rings::emit(site, fields);
    }
    if on & !Backends::RING.bits() != 0 {
        others::<S, F>(event, Backends::from_bits_retain(on), fields, text, probe);
    }
}

/// Passes an event to the backends that are synchronous by nature.
#[cold]
#[inline(never)]
fn others<S: Site, F: Fields>(
    event: &'static TraceEvent,
    on: Backends,
    fields: F,
    text: impl FnOnce(&mut Line),
    probe: impl FnOnce(),
) {
    if on.contains(Backends::SDT) {
        probe();
    }
    if on.contains(Backends::FTRACE_RAW) {
        backend::ftrace::raw(event.id(), fields);
    }
    if on.intersects(Backends::TEXT) {
        let mut line = Line::new();
        line.push(S::NAME.as_bytes());
        line.push(b" ");
        text(&mut line);
        backend::text(on, &line);
    }
}

/// An event whose declaration has the word `disable`.
#[doc(hidden)]
pub struct DisabledEvent;

impl DisabledEvent {
    /// Returns 0, because the event is off.
    #[inline(always)]
    pub const fn on(&self) -> u32 {
        0
    }
}

/// Evaluates to true if a declared event is on. A program can then compute expensive arguments only for an
/// event that is on: `if enabled!(trace::disk_read) { trace::disk_read(lba, &expensive()) }`.
#[macro_export]
macro_rules! enabled {
    ($($event:tt)*) => {
        $($event)*::EVENT.on() != 0
    };
}

/// Includes the functions that the crate's build script has made from the crate's `trace-events` file with
/// `hypertrace-trace-build`: `mod trace { include_events!(); }`.
#[macro_export]
macro_rules! include_events {
    () => {
        include!(concat!(env!("OUT_DIR"), "/trace-events.rs"));
    };
}
