//! Trace events from a guest, on the host's timeline.
//!
//! ```
//! # let (lba, sectors) = (7u64, 8u32);
//! hypertrace::event!("disk_read", lba, len = sectors * 512);
//! ```
//!
//! An event is a timestamp and a few stores into this thread's own ring in
//! memory that the host shares: no exit, no system call, no lock, no
//! allocation, no formatting. With no device, or with this event switched off
//! by the host, it is a load, a test and a branch.
//!
//! * [`event!`] for volume.
//! * [`reference_point!`] for order: one exit to the host, which stamps it with
//!   its own clock and answers ([`Reply`]).
//! * [`Client::stamp`] for clocks: a point that the host's kernel stamps.
//! * [`hypertrace()`] for the numbers-only interface of 2016.
//!
//! On bare metal, a [`Channel`] is made from the device's addresses and a
//! [`Client`] from a channel; `event!(client: c, "name", ...)` uses it. With
//! the feature `std` (Linux), the library finds the device and leases a client
//! for each thread by itself.
//!
//! What it does not do: it never fails where it emits. What cannot be recorded
//! is counted, and the host shows the count.
#![cfg_attr(not(any(feature = "std", test)), no_std)]

mod channel;
mod client;
mod mask;
mod mmio;
mod time;

pub use channel::{Channel, OpenError};
pub use client::{Client, Reply, hypertrace};
pub use mask::is_on;
pub use time::Clock;

pub use hypertrace_abi::event::{Field, Fields, Hex, Site};
pub use hypertrace_abi::ring::{Emit, LeaseInfo, ProducerState};
pub use hypertrace_abi::sink::Status;

#[doc(hidden)]
pub use hypertrace_abi as abi;

/// Records an event: a name, then fields `name` or `name = value`.
///
/// Fields are integers, floats, `bool`, `&str`, `&[u64]`, raw pointers, and
/// [`Hex`]. Their values are not computed when the event is switched off.
/// Gives what became of it as [`Emit`]; nothing has to be done with that.
///
/// `event!(client: &c, "name", ...)` uses that [`Client`]; without it, the
/// calling thread's is used (feature `std`).
#[macro_export]
macro_rules! event {
    (client: $client:expr, $name:literal $($fields:tt)*) => {{
        const SLOT: usize = $crate::abi::schema::mask_slot($name);
        if $crate::is_on(SLOT) {
            let (site, fields) = $crate::abi::event_type!($name $($fields)*);
            $client.emit(site, fields);
        }
    }};
}

/// Records an event in order with what the host does, and waits for the host
/// to have it: one exit. Takes what [`event!`] takes, gives a
/// [`Result`]`<`[`Reply`]`, `[`Emit`]`>`.
#[macro_export]
macro_rules! reference_point {
    (client: $client:expr, $name:literal $($fields:tt)*) => {{
        let (site, fields) = $crate::abi::event_type!($name $($fields)*);
        $client.reference_point(site, fields)
    }};
}
