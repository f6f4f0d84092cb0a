//! Where a device and a trace engine meet.
//!
//! The device knows the guest's memory and no schema; the sink knows schemas
//! and files and no guest. The VMM wires one to the other.

use crate::layout::WORD;
use crate::layout::local::TRIGGERS_BYTES;
use crate::ring::Consumer;

/// What became of a reference point; also the reply's status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It stands in the host's trace.
    Recorded = 0,
    /// Nobody wanted it.
    Filtered = 1,
    /// The host had no room: counted.
    Failed = 2,
    /// The slot is not one: counted.
    Invalid = 3,
    /// Over the client's rate bound: counted.
    Limited = 4,
}

/// A reference point, copied once out of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct ReferencePoint<'a> {
    /// Whose page was stored to; below the device's number of clients.
    pub client: u32,
    /// The guest's number for it.
    pub seq: u32,
    /// Event id, as the guest says; [`crate::record::id::HYPERTRACE`] for an
    /// event of the 2016 interface.
    pub id: u32,
    /// Hash of the event's name, as the guest says.
    pub name_hash: u32,
    /// The guest CPU, as the guest says.
    pub cpu: u32,
    /// The guest's clock before the store, as the guest says; 0 from 2016.
    pub guest_time: u64,
    /// The host's raw counter at entry.
    pub host_time: u64,
    /// Payload, as the id's schema says.
    pub words: &'a [u64],
}

/// What one call of [`EventSink::drain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Ring words taken and committed.
    pub words: u64,
    /// There is more to take now.
    pub more: bool,
}

/// Names of events, by their hash: a bit for each `hash % 4096`, as page L of a
/// segment has them. Names of one bit go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSet(pub [u64; NAME_SET_WORDS]);

/// Words of a [`NameSet`].
pub const NAME_SET_WORDS: usize = (TRIGGERS_BYTES / WORD) as usize;

impl NameSet {
    /// No name.
    pub const EMPTY: NameSet = NameSet([0; NAME_SET_WORDS]);

    /// Returns where a name is, by its hash: the word's index, and the bit in it.
    #[inline(always)]
    pub const fn place(name_hash: u32) -> (usize, u64) {
        let bit = name_hash as usize % (NAME_SET_WORDS * 64);
        (bit / 64, 1 << (bit % 64))
    }

    /// Adds a name, by its hash.
    pub fn set(&mut self, name_hash: u32) {
        let (word, bit) = NameSet::place(name_hash);
        self.0[word] |= bit;
    }

    /// Adds all that there are.
    pub fn set_all(&mut self) {
        self.0 = [u64::MAX; NAME_SET_WORDS];
    }
}

/// The trace engine, as a device sees it.
pub trait EventSink: Send + Sync {
    /// On the vCPU's thread: records the point or counts it. Takes no lock,
    /// allocates nothing, waits for nothing.
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status;

    /// On the drain loop's thread, at a pass's begin: sets in `names`, which is
    /// empty, what reference points may make the host do something, so that
    /// [`EventSink::reference_point`] has to be called for them. All others
    /// may be recorded for the host, in a relay's ring.
    fn points_to_handle(&self, names: &mut NameSet) {
        names.set_all();
    }

    /// On the drain loop's thread: a pass over all clients begins. Whatever a
    /// vCPU thread recorded before this call has its schema in some client's
    /// log, so the sink notes how far its own rings go.
    fn begin_pass(&self) {}

    /// On the drain loop's thread, at a pass's begin: calls `set` with the
    /// enable mask that the guest is to have, a byte per slot, 0 is on; not if
    /// it is as it was.
    fn update_mask(&self, set: &mut dyn FnMut(&[u8; 4096])) {
        let _ = set;
    }

    /// On the drain loop's thread: no producer runs any more, so the passes from
    /// now on take all there will ever be. The sink need not protect others
    /// from them.
    fn last_pass(&self) {}

    /// On the drain loop's thread: takes the running total of events that were
    /// lost in processes which hold no client, and so no ring that tells them. Never
    /// decreasing.
    fn unattached(&self, total: u64) {
        let _ = total;
    }

    /// On the drain loop's thread: takes at most one packet of records out of
    /// the client's ring, commits it, and advances the ring's tail.
    fn drain(&self, client: u32, consumer: &mut Consumer<'_>) -> Drained;

    /// On the drain loop's thread: the pass ends; the sink drains its own
    /// rings as far as it noted.
    fn end_pass(&self) {}
}
