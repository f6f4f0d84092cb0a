//! Trace events from a guest, on the host's timeline.
//!
//! ```console
//! $ cargo add hypertrace --path ../hypertrace/guest-lib
//! ```
//!
//! ```
//! fn read(lba: u64) {
//!     let _region = hypertrace::region!("disk_read", id = lba);
//!     hypertrace::event!("queued", lba, bytes = 8 * 512u32);
//! }
//!
//! (0..3).for_each(read);
//! hypertrace::commit!("done", status = "ok");
//! ```
//!
//! On a host, as a program with no VM; in a VM whose VMM has the device, the same
//! program traces into the session of that VMM:
//!
//! ```console
//! $ cargo build
//! $ hypertrace record -o S target/debug/program
//! $ hypertrace report S
//! ```
//!
//! An event is a timestamp and a few stores into this thread's own ring in
//! memory that the host shares: no exit, no lock, no allocation, no formatting,
//! and no system call but one that wakes a recorder at rest. With no device, or with this event switched off
//! by the host, it is a load, a test and a branch.
//!
//! * [`event!`] for volume.
//! * [`commit!`] for what must not be dropped: on return the record is in memory
//!   that the host owns, whatever becomes of the thread.
//! * [`reference_point!`] for order: one exit to the host, which stamps it with
//!   its own clock and answers ([`Reply`]).
//! * [`region!`] and [`reference_region!`] for a beginning and its end.
//! * [`hypertrace()`] for the numbers-only interface of 2016.
//!
//! # Programs on Linux
//!
//! The library finds the device at the first event, and leases a client for each
//! thread at that thread's first. [`open`] does it earlier, and returns what it
//! found, or why there is no device and what to do: "not traced: no hypertrace
//! device: ..., start it with: hypertrace record -o DIR PROG".
//!
//! ```
//! match hypertrace::open(&hypertrace::Options::default()) {
//!     Ok(info) => println!("clients {:?}, {:?}", info.clients, info.memory_type),
//!     Err(why) => println!("not traced: {why}"),
//! }
//! ```
//!
//! Threads that end give their clients back; a forked child gets its own. In a
//! signal handler, [`event!`] is as safe as anywhere: one that interrupts
//! another is counted, not recorded. [`counts()`] returns what the host does not show.
//!
//! # Bare metal
//!
//! A [`Channel`] is made from the device's addresses and a [`Client`] from a
//! channel; `event!(client: c, "name", ...)` uses it.
//!
//! ```no_run
//! use hypertrace::{Channel, Client, LeaseInfo, OpenError, ProducerState};
//!
//! fn boot(window: *mut u8) -> Result<(), OpenError> {
//!     // SAFETY: the window of the device, mapped by the boot code and never unmapped.
//!     let channel = unsafe { Channel::at_window(window)? };
//!     let state = ProducerState::new();
//!     let info = LeaseInfo { pid: 0, tid: 0, name: "boot" };
//!     let client = Client::lease(channel, 0, &state, 1, &info)?;
//!     hypertrace::event!(client: &client, "stage", n = 1u8);
//!     client.release();
//!     Ok(())
//! }
//! ```
//!
//! # Limits
//!
//! An emit never fails: an event that cannot be recorded is counted, and the host
//! shows the count. It is not for more events than a ring takes until the host
//! drains it: those are counted too. An event in a ring that is a quarter full wakes a host that sleeps.
//!
//! # Features
//!
//! * `std` (default): Linux. Without it the library is `no_std`, and macros need a
//!   named client.
//! * `c`: for the C library alone, which looks at the enable mask by its name.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![warn(missing_debug_implementations)]

mod channel;
mod client;
mod counts;
mod error;
mod legacy;
#[cfg(feature = "std")]
mod linux;
mod local;
mod mask;
mod mmio;
mod os;
mod region;
mod time;

pub use channel::Channel;
pub use client::{Client, Reply};
#[cfg(feature = "std")]
pub use counts::{ProcessCounts, counts};
pub use error::OpenError;
pub use legacy::hypertrace;
#[cfg(feature = "std")]
pub use linux::{
    ChannelLocation, Info, MemoryType, Options, default_clock, host_has_ended, install, open, poll,
    say, trace_parent, with_client,
};
pub use mask::is_on;
pub use time::Clock;

pub use hypertrace_abi::event::{Field, Fields, Hex, Site};
pub use hypertrace_abi::record::ClockKind;
pub use hypertrace_abi::region::Region;
pub use hypertrace_abi::ring::{Emit, LeaseInfo, ProducerState};
pub use hypertrace_abi::sink::Status;
pub use hypertrace_abi::trace_parent::TraceParent;

#[doc(hidden)]
pub use hypertrace_abi as abi;

/// The functions that macros and the C library call where no client is named. Needs the feature `std`.
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod this_thread {
    pub use crate::linux::thread::{
        can_retry, commit, emit, emit_leased, hypertrace_as, next_region, on_new_client,
        process_number, reference_point,
    };
}

/// Records an event: a name, then fields `name` or `name = value`.
///
/// Fields are integers, floats, `bool`, `&str`, `&[u64]`, raw pointers, and
/// [`Hex`]. Their values are not computed when the event is switched off.
/// It returns nothing: an event that cannot be recorded is counted, and the host
/// shows the count.
///
/// Uses the calling thread's client (feature `std`), or the [`Client`] that is
/// named first:
///
/// ```
/// let (lba, path) = (7u64, "/etc/hosts");
/// hypertrace::event!("disk_read", lba, len = 512u32);
/// hypertrace::event!("opened", path, address = hypertrace::Hex(0xfee0_0000));
/// hypertrace::event!("tick");
///
/// fn on_vcpu(client: &hypertrace::Client) {
///     hypertrace::event!(client: client, "tick");
/// }
/// ```
#[macro_export]
macro_rules! event {
    (client: $client:expr, $name:expr $(, $($fields:tt)*)?) => {{
        const SLOT: usize = $crate::abi::schema::mask_slot($name);
        if $crate::is_on(SLOT) {
            let (site, fields) = $crate::abi::event_type!($name $(, $($fields)*)?);
            $client.emit(site, fields);
        }
    }};
    ($name:expr $(, $($fields:tt)*)?) => {{
        const SLOT: usize = $crate::abi::schema::mask_slot($name);
        if $crate::is_on(SLOT) {
            let (site, fields) = $crate::abi::event_type!($name $(, $($fields)*)?);
            $crate::this_thread::emit(site, fields);
        }
    }};
}

/// Records an event that must not be dropped: it may use the part of the ring
/// that is kept for such, and where even that is full, waits, bounded, for the
/// host to drain. Takes what [`event!`] takes, gives an [`Emit`].
///
/// After [`Emit::Recorded`] the event is in memory that the host has too, after all
/// that this thread recorded before, and survives the thread. The host
/// need not have seen it: see [`reference_point!`] for that.
///
/// ```
/// let sent = 7u64;
/// if hypertrace::commit!("sent", sent) != hypertrace::Emit::Recorded {
///     eprintln!("not in the trace");
/// }
/// ```
#[macro_export]
macro_rules! commit {
    (client: $client:expr, $name:literal $($fields:tt)*) => {{
        let (site, fields) = $crate::abi::event_type!($name $($fields)*);
        $client.commit(site, fields)
    }};
    ($name:literal $($fields:tt)*) => {{
        let (site, fields) = $crate::abi::event_type!($name $($fields)*);
        $crate::this_thread::commit(site, fields)
    }};
}

/// Records an event in order with what the host does, and waits for the host
/// to have handled it: one exit from a VM; over a segment a bounded wait for the
/// host's thread. Takes what [`event!`] takes, gives a
/// [`Result`]`<`[`Reply`]`, `[`Emit`]`>`.
///
/// ```
/// match hypertrace::reference_point!("irq", line = 3u8) {
///     Ok(reply) => println!("the host had it at {}", reply.host_time),
///     Err(why) => println!("not recorded: {why:?}"),
/// }
/// ```
#[macro_export]
macro_rules! reference_point {
    (client: $client:expr, $name:expr $(, $($fields:tt)*)?) => {{
        let (site, fields) = $crate::abi::event_type!($name $(, $($fields)*)?);
        $client.reference_point(site, fields)
    }};
    ($name:expr $(, $($fields:tt)*)?) => {{
        let (site, fields) = $crate::abi::event_type!($name $(, $($fields)*)?);
        $crate::this_thread::reference_point(site, fields)
    }};
}

// The example of README.md.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
