// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between a device and a trace engine.
//!
//! The device knows the guest's memory but no schemas. The sink knows schemas and files but no guest. The VMM
//! connects the two.

use crate::config::RingMode;
use crate::layout::local::TRIGGERS_BYTES;
use crate::layout::{MASK_BYTES, WORD};
use crate::record::ClockKind;
use crate::ring::Consumer;
use crate::trace_parent::TraceParent;
use core::time::Duration;

/// Outcome of a reference point, and the status in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The point is in the host's trace.
    Recorded = 0,
    /// No trace wanted the point.
    Filtered = 1,
    /// The host had no room for the point, and has counted the point as lost.
    Failed = 2,
    /// The slot is malformed, and the host has counted the slot as a fault.
    Invalid = 3,
    /// The point exceeds the client's rate limit, and the host has counted the point as limited.
    Limited = 4,
}

/// A reference point, copied once out of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct ReferencePoint<'a> {
    /// Id of the client to whose register the guest stored. This number is less than the device's number of
    /// clients.
    pub client: u32,
    /// Sequence number of the point, chosen by the guest.
    pub seq: u32,
    /// Event id, as the guest claims. [`crate::record::id::HYPERTRACE`] for a 2016 event.
    pub id: u32,
    /// Hash of the event's name, as the guest claims.
    pub name_hash: u32,
    /// Id of the guest's CPU, as the guest claims.
    pub cpu: u32,
    /// Time of the guest's clock before the store, as the guest claims. 0 for a 2016 event.
    pub guest_time: u64,
    /// The host's raw counter when the store arrived.
    pub host_time: u64,
    /// Payload words, encoded as the schema of the id says.
    pub words: &'a [u64],
}

/// Result of one call of [`DrainSink::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of ring words taken and committed.
    pub words: u64,
    /// Whether the client has more to take now.
    pub more: bool,
}

/// Facts about a client that a sink has read from records and texts. The guest sends these facts only once.
#[derive(Clone, Copy, Debug)]
pub struct KnownClient<'a> {
    /// Id of the client.
    pub client: u32,
    /// Token of the client's holder, 0 if there was no holder.
    pub token: u64,
    /// Clock of the holder's timestamps.
    pub clock: ClockKind,
    /// Name of the holder, as the guest claims.
    pub name: &'a str,
    /// Schema texts of the client's events.
    pub texts: &'a [&'a str],
}

/// A set of event names, with a bit for each `hash % 4096`, as in page L of a segment. All names with the
/// same bit are in the set, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSet(pub [u64; NAME_SET_WORDS]);

/// Number of words in a [`NameSet`].
const NAME_SET_WORDS: usize = (TRIGGERS_BYTES / WORD) as usize;

impl NameSet {
    /// The empty set.
    pub const EMPTY: NameSet = NameSet([0; NAME_SET_WORDS]);

    /// The set of all names.
    pub const ALL: NameSet = NameSet([u64::MAX; NAME_SET_WORDS]);

    /// Returns the place of the name with this hash: the index of a word, and a mask of the bit.
    #[inline(always)]
    pub const fn place(name_hash: u32) -> (usize, u64) {
        let bit = name_hash as usize % (NAME_SET_WORDS * 64);
        (bit / 64, 1 << (bit % 64))
    }

    /// Adds the name with this hash.
    pub fn set(&mut self, name_hash: u32) {
        let (word, bit) = NameSet::place(name_hash);
        self.0[word] |= bit;
    }
}

/// Settings of a sink at the beginning of a pass.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PassConfig {
    /// The guests' enable mask, one byte per slot (0 is on), if the mask may have changed since the last
    /// pass. The mask is always present in the first pass of a [generation](DrainSink::begin_generation),
    /// which begins with all names on.
    pub mask: Option<[u8; MASK_BYTES as usize]>,
    /// Names of the reference points that may have an effect in the host, for which
    /// [`EventSink::reference_point`] must be called. A relay may record other points in its ring, on the
    /// host's behalf.
    pub points: NameSet,
}

impl PassConfig {
    /// Returns the configuration after `change` has modified it.
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

/// Facts about a trace session that a device tells its guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's UUID.
    pub session: [u8; 16],
    /// Behaviour of a full ring.
    pub ring_mode: RingMode,
    /// Ticks per second of the guests' TSC, 0 if unknown.
    pub guest_frequency: u64,
    /// Ticks per second of the host's raw counter, 0 if unknown.
    pub host_frequency: u64,
    /// The caller's span, during which the session is recorded.
    pub trace_parent: Option<TraceParent>,
}

impl SessionInfo {
    /// Returns the information after `change` has modified it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut SessionInfo)) -> SessionInfo {
        change(&mut self);
        self
    }
}

/// The trace engine, as a device sees it.
///
/// A sink that wraps another sink forwards every method.
pub trait EventSink: Send + Sync {
    /// Returns the facts for the config page. Every call returns the same facts.
    fn session_info(&self) -> SessionInfo;

    /// Records the point or counts it, on the vCPU's thread. Takes no lock, allocates nothing and never
    /// waits.
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status;

    /// Returns whether the calling thread could record any reference point now. If the thread has no room and
    /// the host can let the point wait, the host drains the rings first.
    fn has_room_for_point(&self) -> bool {
        true
    }

    /// Calls `work` once with the drain loop's side of the sink, for a whole pass or between two passes. No
    /// other caller gets this side meanwhile. Reference points do not wait for `work`.
    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink));
}

/// A sink that has other owners besides the device.
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

/// The side of a sink that the drain loop's thread uses. The default methods suit a sink that keeps nothing.
pub trait DrainSink {
    /// Begins a pass over all clients. The sink notes the ends of its own rings now: the clients' schema logs
    /// contain the schemas of all records that vCPU threads made before this call. Returns the settings from
    /// now on.
    fn begin_pass(&mut self) -> PassConfig {
        PassConfig::default()
    }

    /// Begins another generation of guests with another clock, after a reset or a restore. Ring positions and
    /// sequence numbers do not continue, and consumers count losses and faults from 0. After a reset, all
    /// rings are empty and nothing is `known`. After a restore, guests do not send the facts in `known`
    /// again. The sink cannot trust these facts more than the facts that guests send.
    ///
    /// Returns the generation's clock epoch, at least `epoch`. The caller has drained or discarded all
    /// earlier records, and never calls this during a pass.
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        let _ = known;
        epoch
    }

    /// Begins a [generation](DrainSink::begin_generation) of events that were in the rings before this host
    /// served the rings, or before the machine was restored. Nothing relates the times of these events to the
    /// host's times. The default method begins an ordinary generation. The machine may have run since the
    /// host's raw counter was `since`, so the records of the next generation may be as old as `since`.
    fn begin_found(&mut self, epoch: u32, known: &[KnownClient<'_>], since: u64) -> u32 {
        let _ = since;
        self.begin_generation(epoch, known)
    }

    /// Calls `each` with the facts about each client, for a snapshot of the device. The device fills in the
    /// tokens. The device never calls this during a pass.
    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        let _ = each;
    }

    /// Announces the last passes, which take everything that is left. No producer runs any more, so the sink
    /// need not protect clients from each other.
    fn last_pass(&mut self) {}

    /// Takes the number of further events that were lost in processes without a client. A process without a
    /// client has no ring that could report the losses.
    fn unattached(&mut self, more: u64) {
        let _ = more;
    }

    /// Takes at most one packet of records out of the client's ring, commits the packet, and advances the
    /// ring's tail.
    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained;

    /// Ends the pass: the sink drains its own rings up to the ends that it noted.
    fn end_pass(&mut self) {}

    /// Returns a time after a pass. During this time, the sink needs no other pass, unless somebody wakes the
    /// drain loop. The sink's own rings are then empty, and the last pass has found nothing in these rings. A
    /// thread that records in these rings after a [pause](crate::drain::PAUSE) wakes the loop. If the result
    /// is zero, the loop keeps its timer. [`Duration::MAX`] is for ever.
    fn quiet_for(&mut self) -> Duration {
        Duration::ZERO
    }
}
