//! Linux: finds the device, and gives each thread a client of its own.
//!
//! ```text
//! event! -> thread   CURRENT: one thread-local pointer ----------> ClientCell: Client
//!             | first event, fork, revoked, stale                    ^
//!             v                                                      | claim
//!           process  the channel, a bitmap of clients, wiped states -+
//!             | opened once        | one byte per client
//!             v                    v
//!  device: module, segment, pci (uio), ivshmem, window   lock file
//! ```
//!
//! A thread's first event may be in a signal handler: the event leases a client without allocating. The
//! process's first event looks for the device, which allocates, so a program whose first event may be in a
//! handler calls [`open`] before. A program may close all descriptors that it does not know, including the
//! library's descriptors. Such a program then calls [`open`] again. Otherwise the next event opens the device
//! again.

mod cell;
mod clock;
mod cpus;
mod device;
mod function;
mod ivshmem;
mod losses;
mod mapping;
mod module;
mod name;
mod opened;
mod options;
mod pci;
mod pin;
mod process;
mod refresher;
mod segment;
mod sys;
pub(crate) mod thread;
mod uio;
mod window;

pub use mapping::MemoryType;
pub use options::{ChannelLocation, Info, Options};
pub use thread::{poll, with_client};

use crate::channel::Channel;
use crate::error::OpenError;
use crate::time::Clock;
use hypertrace_abi::clock::Reason;
use hypertrace_abi::trace_parent::TraceParent;
use std::fs::File;

/// Returns the clock with which this process stamps its events if no option names a clock, and the reason for
/// that clock.
///
/// # Errors
/// If the environment variable `HYPERTRACE_CLOCK` has a value that is no clock's name.
pub fn default_clock() -> Result<(Clock, Reason), OpenError> {
    clock::choose(&Options::default(), 0)
}

/// Opens the device for this process. If no channel is open at an event, the library opens the device with
/// the default options, and reports no error. If there is no device, later events do not try again. `open`
/// always tries.
///
/// If a channel is open already, `open` keeps that channel and returns its description. A forked child opens
/// its parent's device.
///
/// # Errors
/// If there is no device, or the system does not let this process use the device. The message says what
/// failed, where, and what to do.
pub fn open(options: &Options) -> Result<Info, OpenError> {
    process::open(options, thread::prepare)
}

/// Writes a line to stderr for a library, if stderr takes the line at once. If nobody reads stderr, the
/// program does not wait and gets no signal.
#[doc(hidden)]
pub fn say(line: &str) {
    sys::say(line);
}

/// Returns true if the host of this process's channel has ended, or the guest's kernel has taken the device
/// away: events are lost then. Only the shared memory of `hypertrace record` and `hypertrace serve --file`
/// shows a host's end.
pub fn host_has_ended() -> bool {
    process::has_host_ended()
}

/// Returns the span during which the host records this process, as W3C's Trace Context defines a span: the
/// program's own tracing can continue that trace. The span's `to_string()` is the value of a `traceparent`
/// header. Looks for the device if no event has looked for it.
///
/// Returns `None` if there is no device, or if the host has no such span. The span is read when this process
/// opens the device, and stays the same in a VM that is restored from a snapshot later.
///
/// ```
/// if let Some(parent) = hypertrace::trace_parent() {
///     println!("traceparent: {parent}");
/// }
/// ```
pub fn trace_parent() -> Option<TraceParent> {
    process::trace_parent(thread::prepare)
}

/// Makes `channel` this process's channel, in place of a device: shared memory, or a device that the program
/// has mapped by itself.
///
/// Processes that share the channel pass descriptors of the same `lock` file. The descriptors are open for
/// writing, and the memory's own file will do. The holder of client *n* locks byte *n* of the lock file. A
/// forked child uses the same memory, so the memory has to be inherited. The child opens the same lock file
/// anew through `/proc/self/fd`. Without a lock file, a child gets no client.
///
/// # Errors
/// If a channel is open already, or `channel` has no client to lease.
pub fn install(channel: Channel<'static>, lock: Option<File>) -> Result<Info, OpenError> {
    process::install(channel, lock, thread::prepare)
}
