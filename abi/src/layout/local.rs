// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A segment: the MMIO window as a file that programs share with a host.
//!
//! The regions have the offsets that [`Geometry`](super::Geometry) gives them in the window, the config page
//! lacks the feature `TRAPS`, and the control region is plain memory. The words defined here replace the
//! traps: after a store to its registers, a client rings its own bell, and wakes the host if the host sleeps.

/// Environment variable that contains the path of the segment.
pub const ENVIRONMENT: &str = "HYPERTRACE_SEGMENT";

/// Offset of page L in the config region. The host writes this page, except for [`WATCH`],
/// [`LOST_UNATTACHED`] and [`BOOT`].
pub const PAGE_L: u64 = 0x1000;
/// Offset of the bells in the config region. Each client has a byte. The client's holder adds 1 to this byte
/// to make the host look at the client's registers. The addition is an atomic operation on the whole u64 that
/// contains the byte, because the host and all clients access these words as u64s. When a byte wraps, the
/// carry goes to the next byte. The host then looks at the next client in vain.
pub const BELLS: u64 = 0x2000;

/// u32 in page L, a shared futex: one of the values in [`watch`], which tells what the host polls.
pub const WATCH: u64 = 0;
/// u64 in page L: a counter that the host increments in every pass of its loop, at least once every
/// [`BEAT_MS`] milliseconds.
pub const BEAT: u64 = 64;
/// u32 in page L: a [`State`].
pub const STATE: u64 = 128;
/// u32 in page L: the host's process id.
pub const HOST_PID: u64 = 132;
/// u64 in page L: the host's raw counter when the segment was made.
pub const BEGAN: u64 = 136;
/// u64 in page L: running total of events of threads without a client, in processes that hold no client.
/// Processes add to the total atomically.
pub const LOST_UNATTACHED: u64 = 192;
/// u64 in page L: the number of the guest's boot, nonzero. Guests write this word if host and guest run under
/// different kernels. Before a process of a new boot uses the segment, the process stores the boot's number
/// in this word. The process then waits until [`BOOT_SEEN`] has the same value.
pub const BOOT: u64 = 256;
/// u64 in page L: the number of a guest's boot. The host takes only records of this boot..
pub const BOOT_SEEN: u64 = 320;
/// u64 in page L: [`ConfigPage::end_mark`](crate::config::ConfigPage::end_mark) once the host has ended and
/// has taken the last records. Programs ignore all other values, so that a stray store does not end their
/// tracing.
pub const END: u64 = 384;
/// Offset in page L of a set of [`TRIGGERS_BYTES`] bytes: bit `hash(name) % 4096` is set if the host itself
/// must handle points of this name. A plugin may record other points on the host's behalf.
pub const TRIGGERS: u64 = 0x200;
/// Size in bytes of the set at [`TRIGGERS`].
pub const TRIGGERS_BYTES: u64 = 512;
/// Maximum time between two increments of [`BEAT`], in milliseconds.
pub const BEAT_MS: u64 = 50;

/// Offset in the file of the byte that a host locks while the host serves. The lock is an open file
/// description lock. The holder of client *n* locks byte *n*.
pub const HOST_LOCK: u64 = 1 << 16;

/// Values of [`WATCH`]: what the host polls.
pub mod watch {
    /// All bells.
    pub const BELLS: u32 = 0;
    /// Nothing: the host sleeps on this word. Before a client wakes the host, the client stores [`BELLS`], so
    /// that a host that is about to sleep on this word does not fall asleep.
    pub const ASLEEP: u32 = 1;
    /// The host polls all bells. With `CLIENT` + *n*, the host also polls the slot of client *n*, so client
    /// *n* need not ring its bell for a reference point.
    pub const CLIENT: u32 = 2;
}

/// State of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The host does not serve yet.
    New = 0,
    /// The host serves.
    Serving = 1,
    /// The host is ending: the host answers no points, and takes the records in the rings for the last time.
    Ended = 2,
}
