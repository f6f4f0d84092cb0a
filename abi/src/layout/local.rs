//! A segment: the MMIO window as a file that programs share with a host.
//!
//! The regions stand where [`Geometry`](super::Geometry) puts them in the
//! window, the config page says no `TRAPS`, and the control region is plain
//! memory. What traps would do, the words here do: a client that has stored to
//! its registers rings its bell, and wakes the host if that sleeps.

/// How a program finds the segment: the environment variable with its path.
pub const ENVIRONMENT: &str = "HYPERTRACE_SEGMENT";
/// How it stores to the segment's registers, `marked` (the default) or
/// `syscall`: see [`mark`](super::mark).
pub const STORE_ENVIRONMENT: &str = "HYPERTRACE_STORE";

/// Page L, written by the host, but for [`WATCH`] and [`LOST_UNATTACHED`]: offset in the config region.
pub const PAGE_L: u64 = 0x1000;
/// The bells: offset in the config region. A byte for each client, which adds 1
/// to say "look at my registers", by an atomic add to the u64 that the byte is in:
/// all sides access these words whole. A bell that comes around carries into the
/// next one, which then rings for nothing.
pub const BELLS: u64 = 0x2000;

/// u32 in page L, a shared futex: what the host looks at, one of [`watch`].
pub const WATCH: u64 = 0;
/// u64 in page L: the host adds 1 at every pass of its loop, at least every
/// [`BEAT_MS`].
pub const BEAT: u64 = 64;
/// u32 in page L: a [`State`].
pub const STATE: u64 = 128;
/// u32 in page L: the host's process id.
pub const HOST_PID: u64 = 132;
/// u64 in page L: the host's raw counter when the segment was made.
pub const BEGAN: u64 = 136;
/// u64 in page L: running total of events of threads without a client, in
/// processes that hold none. Many may do so, each by an atomic add.
pub const LOST_UNATTACHED: u64 = 192;
/// In page L, [`TRIGGERS_BYTES`] bytes: bit `hash(name) % 4096` is set if a
/// point of this name must be handled by the host itself, not for it.
pub const TRIGGERS: u64 = 0x200;
/// Bytes of the set at [`TRIGGERS`].
pub const TRIGGERS_BYTES: u64 = 512;
/// The host's heart beats at least so often, milliseconds.
pub const BEAT_MS: u64 = 50;

/// The byte of the file that a host locks (open file description lock) while
/// it serves; byte *n* is client *n*'s.
pub const HOST_LOCK: u64 = 1 << 16;

/// What the host looks at.
pub mod watch {
    /// All bells.
    pub const BELLS: u32 = 0;
    /// Nothing: it sleeps on this word. Who wakes it stores [`BELLS`] first, so
    /// that a host which is just about to sleep does not.
    pub const ASLEEP: u32 = 1;
    /// All bells, and the slot of client *n* with `CLIENT` + *n*: that client
    /// need not ring for a reference point.
    pub const CLIENT: u32 = 2;
}

/// What the host says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It does not serve yet.
    New = 0,
    /// It serves.
    Serving = 1,
    /// It has ended: nothing is taken any more.
    Ended = 2,
}
