// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between a device and a trace engine.
//!
//! The device knows the guest's memory but no schema; the sink knows schemas
//! and files but no guest. The VMM connects them.

use crate::config::RingMode;
use crate::layout::local::TRIGGERS_BYTES;
use crate::layout::{MASK_BYTES, WORD};
use crate::record::ClockKind;
use crate::ring::Consumer;
use crate::trace_parent::TraceParent;
use core::time::Duration;

/// Outcome of a reference point; also the status word of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The point is in the host's trace.
    Recorded = 0,
    /// No trace wanted the point.
    Filtered = 1,
    /// The host had no room: counted.
    Failed = 2,
    /// The slot is malformed: counted.
    Invalid = 3,
    /// The point exceeds the client's rate limit: counted.
    Limited = 4,
}

/// A reference point, copied once out of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct ReferencePoint<'a> {
    /// Client whose register was stored to; below the device's number of clients.
    pub client: u32,
    /// The guest's number for the point.
    pub seq: u32,
    /// Event id, by the guest's account; [`crate::record::id::HYPERTRACE`] for an
    /// event of the 2016 interface.
    pub id: u32,
    /// Hash of the event's name, by the guest's account.
    pub name_hash: u32,
    /// The guest CPU, by the guest's account.
    pub cpu: u32,
    /// The guest's clock before the store, by the guest's account; 0 from 2016.
    pub guest_time: u64,
    /// The host's raw counter when the store arrived.
    pub host_time: u64,
    /// Payload, in the encoding of the id's schema.
    pub words: &'a [u64],
}

/// Result of one call of [`DrainSink::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of ring words taken and committed.
    pub words: u64,
    /// Whether there is more to take now.
    pub more: bool,
}

/// Facts about a client from records and texts that a sink has taken: the guest sends them once.
#[derive(Clone, Copy, Debug)]
pub struct KnownClient<'a> {
    /// The client.
    pub client: u32,
    /// Token of its holder, 0 if there was none.
    pub token: u64,
    /// Clock of the holder's timestamps.
    pub clock: ClockKind,
    /// Name of the holder, by the guest's account.
    pub name: &'a str,
    /// Schema texts of the client's events.
    pub texts: &'a [&'a str],
}

/// A set of event names, as a bit for each `hash % 4096`, as in page L of a segment.
/// Names with the same bit are in the set together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSet(pub [u64; NAME_SET_WORDS]);

/// Number of words in a [`NameSet`].
const NAME_SET_WORDS: usize = (TRIGGERS_BYTES / WORD) as usize;

impl NameSet {
    /// The empty set.
    pub const EMPTY: NameSet = NameSet([0; NAME_SET_WORDS]);

    /// The set of all names.
    pub const ALL: NameSet = NameSet([u64::MAX; NAME_SET_WORDS]);

    /// Returns the place of a name, given its hash: the index of a word, and a mask of its bit.
    #[inline(always)]
    pub const fn place(name_hash: u32) -> (usize, u64) {
        let bit = name_hash as usize % (NAME_SET_WORDS * 64);
        (bit / 64, 1 << (bit % 64))
    }

    /// Adds a name, given its hash.
    pub fn set(&mut self, name_hash: u32) {
        let (word, bit) = NameSet::place(name_hash);
        self.0[word] |= bit;
    }
}

/// Settings of a sink at the beginning of a pass.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PassConfig {
    /// The guest's enable mask, a byte per slot, 0 is on, if it may have changed since the last pass. The sink
    /// gives it in the first pass of each [generation](DrainSink::begin_generation), because the device's mask is all on
    /// until then.
    pub mask: Option<[u8; MASK_BYTES as usize]>,
    /// Names of the reference points that may have an effect in the host: [`EventSink::reference_point`]
    /// must be called for those. Others may be recorded on the host's behalf, in a relay's ring.
    pub points: NameSet,
}

impl PassConfig {
    /// Returns the configuration as `change` leaves it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut PassConfig)) -> PassConfig {
        change(&mut self);
        self
    }
}

impl Default for PassConfig {
    /// Leaves the mask as it is. Every point may have an effect.
    fn default() -> PassConfig {
        PassConfig { mask: None, points: NameSet::ALL }
    }
}

/// Facts about a trace that a device tells its guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's UUID.
    pub session: [u8; 16],
    /// Behaviour of a full ring.
    pub ring_mode: RingMode,
    /// Ticks per second of the guests' TSC, 0 if not known.
    pub guest_frequency: u64,
    /// Ticks per second of the host's raw counter, 0 if not known.
    pub host_frequency: u64,
    /// The span in whose course the session is recorded.
    pub trace_parent: Option<TraceParent>,
}

impl SessionInfo {
    /// Returns the information as `change` leaves it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut SessionInfo)) -> SessionInfo {
        change(&mut self);
        self
    }
}

/// The trace engine, as a device sees it.
///
/// A sink around another one forwards every method.
pub trait EventSink: Send + Sync {
    /// Returns the facts for the config page. They stay the same.
    fn session_info(&self) -> SessionInfo;

    /// Records the point or counts it, on the vCPU's thread. Takes no lock, allocates
    /// nothing, waits for nothing.
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status;

    /// Returns whether the calling thread could record any reference point now. A host that
    /// can let a point wait drains first if not.
    fn has_room_for_point(&self) -> bool {
        true
    }

    /// Gives the drain loop's side of the sink to `work`, once, and to nothing else meanwhile: for a whole pass,
    /// or for calls between two. Reference points do not wait for it.
    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink));
}

/// Someone beside the device has the sink too.
#[cfg(feature = "host")]
impl<S: EventSink + ?Sized> EventSink for alloc::sync::Arc<S> {
    fn session_info(&self) -> SessionInfo {
        (**self).session_info()
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        (**self).reference_point(point)
    }

    fn has_room_for_point(&self) -> bool {
        (**self).has_room_for_point()
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        (**self).with_drain(work);
    }
}

/// Calls `work` with the drain loop's side of a sink, and returns its result.
///
/// # Panics
/// If the sink does not call `work`.
pub fn with_drain<R>(
    sink: &(impl EventSink + ?Sized),
    work: impl FnOnce(&mut dyn DrainSink) -> R,
) -> R {
    let (mut work, mut result) = (Some(work), None);
    sink.with_drain(&mut |drain| result = work.take().map(|work| work(drain)));
    result.expect("the sink calls it")
}

/// The side of a sink that the drain loop's thread uses. The defaults are those of a sink that keeps nothing.
pub trait DrainSink {
    /// Begins a pass over all clients. Everything that a vCPU
    /// thread recorded before this call has its schema in some client's log, so the sink
    /// notes the ends of its own rings. Returns what guests have to know from now on.
    fn begin_pass(&mut self) -> PassConfig {
        PassConfig::default()
    }

    /// Begins another generation of guests, after a reset or a restore, with another clock: positions in
    /// rings and sequence numbers do not follow those before, and consumers count losses and faults from 0.
    /// After a reset all rings are empty and nothing is known. After a restore, guests continue with
    /// what is `known` of their clients, and do not send that again. It is as untrusted as what guests send.
    ///
    /// Returns the generation's clock epoch, at least `epoch`. Everything before was drained or
    /// discarded. Called in no pass.
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        let _ = known;
        epoch
    }

    /// Begins a [generation](DrainSink::begin_generation) of events that were in the rings before this host
    /// served them, or before their machine was restored: nothing relates their times to the host's. A sink
    /// that does not say so gives them the clock of what the host sees meanwhile. The machine may have run since the
    /// host's raw counter was `since`: records of the generation that follows may be as old.
    fn begin_found(&mut self, epoch: u32, known: &[KnownClient<'_>], since: u64) -> u32 {
        let _ = since;
        self.begin_generation(epoch, known)
    }

    /// Calls `each` with the facts about each client, for a snapshot of the device. Tokens are the
    /// device's to fill in. Called in no pass.
    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        let _ = each;
    }

    /// Announces the last passes: no producer runs any more, so
    /// the passes from now on take everything that is left. The sink need not protect
    /// clients from each other in them.
    fn last_pass(&mut self) {}

    /// Takes the number of further events that were lost in processes which hold no
    /// client, and so have no ring to report them in.
    fn unattached(&mut self, more: u64) {
        let _ = more;
    }

    /// Takes at most one packet of records out of the client's ring, commits it, and
    /// advances the ring's tail.
    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained;

    /// Ends the pass: the sink drains its own rings up to the
    /// noted ends.
    fn end_pass(&mut self) {}

    /// Returns for how long the sink needs no other pass unless the drain loop is woken: its own rings are empty, the last
    /// pass found nothing there, and a thread that records there after a [pause](crate::drain::PAUSE) wakes the loop.
    /// Called after a pass. If zero, the loop keeps its timer; [`Duration::MAX`] is for ever.
    fn quiet_for(&mut self) -> Duration {
        Duration::ZERO
    }
}
