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
//! In a VM whose VMM has the device, this program traces into the session of that VMM. On a host, the same
//! program is traced without a VM:
//!
//! ```console
//! $ cargo build
//! $ hypertrace record -o S target/debug/program
//! $ hypertrace report S
//! ```
//!
//! An event costs a timestamp and a few stores to its thread's own ring, in memory that the host shares: no
//! exit to the VMM, no lock, no allocation, no formatting, and no system call but the one that wakes a
//! sleeping recorder. Without a device, or if the host has switched the event off, an event costs a load, a
//! test and a branch.
//!
//! * [`event!`] records events at high rates.
//! * [`commit!`] records an event that must not be dropped: once it returns [`Emit::Recorded`], the record is
//!   in memory that the host owns, and survives the thread.
//! * [`reference_point!`] records an event that is ordered with the host's events, and costs one exit. The
//!   host stamps the event with its own clock and answers ([`Reply`]).
//! * [`region!`] and [`reference_region!`] mark the beginning and the end of a piece of work.
//! * [`hypertrace()`] records events of the 2016 interface, which carry numbers only.
//!
//! # Programs on Linux
//!
//! The library finds the device at the process's first event, and leases a client for each thread at the
//! thread's first event. [`open`] finds the device earlier, and returns what it found, or why there is no
//! device and what to do: "not traced: no hypertrace device: ..., start it with: hypertrace record -o DIR
//! PROG".
//!
//! ```
//! match hypertrace::open(&hypertrace::Options::default()) {
//!     Ok(info) => println!("clients {:?}, {:?}", info.clients, info.memory_type),
//!     Err(why) => println!("not traced: {why}"),
//! }
//! ```
//!
//! Threads that end give their clients back; a forked child leases clients of its own. After [`open`],
//! [`event!`] is safe in a signal handler: an event that interrupts another event is counted, not recorded.
//! [`counts()`] returns how many events this process lost, and why; the host learns some of these numbers.
//!
//! # Bare metal
//!
//! The program makes a [`Channel`] from the device's addresses, and leases a [`Client`] of the channel;
//! `event!(client: c, "name", ...)` uses that client.
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
//! An emit never fails: the library counts each event that it cannot record, and the host shows the count. If
//! a ring is full, the library counts further events until the host has drained the ring. An event in a ring
//! that is a quarter full wakes a sleeping host.
//!
//! # Features
//!
//! * `std` (default): Linux. Without `std`, the library is `no_std`, and macros need a named client.
//! * `c`: for the C library alone. The C library reads the enable mask by the mask's symbol name.
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

/// Functions that macros and the C library call if the program names no client. Needs the feature `std`.
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
/// Fields are integers, floats, `bool`, `&str`, `&[u64]`, raw pointers, and [`Hex`]. If the event is switched
/// off, the values of fields are not computed. The macro returns nothing: an event that cannot be recorded is
/// counted, and the host shows the count.
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

/// Records an event that must not be dropped. The event may use the reserved part of the ring; if the
/// reserved part is full, too, the macro waits for a bounded time for the host to drain. Takes the arguments
/// of [`event!`] and returns an [`Emit`].
///
/// After [`Emit::Recorded`] the event is in memory that the host shares, after all that this thread recorded
/// before, and survives the thread. The host may not have seen the event yet: see [`reference_point!`] for
/// that.
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

/// Records an event that is ordered with the host's events, and waits until the host has handled the event.
/// In a VM, the event costs one exit. With a segment, the thread waits for the host's thread for a bounded
/// time. Takes the arguments of [`event!`] and returns a [`Result`]`<`[`Reply`]`, `[`Emit`]`>`.
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
