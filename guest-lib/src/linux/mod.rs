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
//! A first event in a signal handler leases a client without allocating; but
//! if it is the process's first, it looks for the device, which allocates:
//! programs of that kind call [`open`] first. So do those that close descriptors
//! which they do not know, the library's among them: the next event opens the
//! device again.

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

/// Returns the clock with which this process stamps its events if no option names a clock, and the reason for that clock.
///
/// # Errors
/// If the environment names no clock.
pub fn default_clock() -> Result<(Clock, Reason), OpenError> {
    clock::choose(&Options::default(), 0)
}

/// Opens the device for this process. An event without an open channel does the
/// same with the default options, but reports no error, and no later event tries
/// again; this always does.
///
/// If a channel is open already, it stays, and this returns its description. A
/// forked child opens its parent's device.
///
/// # Errors
/// If there is no device, or the system does not let this process use it. The
/// message says what, where, and what to do.
pub fn open(options: &Options) -> Result<Info, OpenError> {
    process::open(options, thread::prepare)
}

/// Writes a line to stderr for a library, if that can be done at once: the program does not wait, and no signal
/// is sent to it, if nobody reads.
#[doc(hidden)]
pub fn say(line: &str) {
    sys::say(line);
}

/// Returns true if this process has a channel whose host has ended: what it traces is lost. Only shared memory
/// shows it, that of `hypertrace record` and `hypertrace serve --file`. Also if the guest's kernel has taken the device away.
pub fn host_has_ended() -> bool {
    process::has_host_ended()
}

/// Returns the span in whose course the host records this process, by W3C's Trace Context: the program's own tracing
/// can continue that trace. Its text, by `to_string()`, is the value of a `traceparent` header. The device
/// is looked for if no event has done so.
///
/// `None` if there is no device, or its host has no such span. It is the span of when this process opened the device,
/// also in a VM that is restored from a snapshot later.
///
/// ```
/// if let Some(parent) = hypertrace::trace_parent() {
///     println!("traceparent: {parent}");
/// }
/// ```
pub fn trace_parent() -> Option<TraceParent> {
    process::trace_parent(thread::prepare)
}

/// Makes `channel` this process's, in place of a device: shared memory, or a
/// device that the program has mapped by itself.
///
/// Processes that share it give each a descriptor of the same `lock` file,
/// open for writing (the memory's own file will do), whose byte *n* is client
/// *n*'s. A forked child uses the same memory, which has to be inherited, and with the same file, which `/proc/self/fd` opens anew; without
/// a file, it gets no client.
///
/// # Errors
/// If a channel is open already, or has no client to lease.
pub fn install(channel: Channel<'static>, lock: Option<File>) -> Result<Info, OpenError> {
    process::install(channel, lock, thread::prepare)
}
