//! A lane: one ring's way into its stream, and what was counted on it.

use crate::budget::Payer;
use crate::classes::{ClassRef, Classes, Table};
use crate::packet::{Domain, PacketHeader};
use crate::session_json::StreamJson;
use crate::stream::Stream;
use crate::text::Escaped;
use hypertrace_abi::record::{ClockKind, Header};
use hypertrace_abi::ring::{FAULT_KINDS, Fault, LoggedSchema, Losses};
use std::collections::BTreeMap;
use std::fmt;

/// Segments that one lane may begin in a clock epoch because its lessee or its
/// clock changed, so that a hostile guest cannot fill the folder with files.
/// After that its timestamps are clamped into the file that is open. A VMM that
/// begins an epoch allows as many again.
pub const MAX_RESTARTS: u32 = 64;

/// Clients that a device can have (`hypertrace_abi::layout::Geometry::check`).
pub const MAX_CLIENTS: u32 = 1024;

/// Most that a count of lost events may say: readers take all ones for "not
/// known", and Python for a large number.
pub const MOST_LOST: u64 = i64::MAX as u64;

/// The clock of all host rings.
pub(crate) const HOST_CLOCK: u32 = 0;

/// Slots of the cache of known ids.
pub(crate) const CACHE: usize = 128;

/// What is known of an id, at hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    /// The whole second header word of a plain record of this id, if all of
    /// them have the same length; else 0, which is a pad's.
    pub meta: u64,
    /// The same with the dense id.
    pub out: u64,
    pub id: u32,
    pub class: Option<ClassRef>,
    /// Known, and not wanted.
    pub filtered: bool,
}

impl Cached {
    pub fn new(id: u32, class: ClassRef, wanted: bool) -> Cached {
        // What is not wanted is none of the hot path's.
        let words = class.shape.fixed_words().filter(|_| wanted);
        Cached {
            meta: words.map_or(0, |words| Header::meta(id, words, 0)),
            out: words.map_or(0, |words| Header::meta(class.dense, words, 0)),
            id,
            class: Some(class),
            filtered: !wanted,
        }
    }
}

/// What was recorded, by what it is. Every CTF event is one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub events: u64,
    pub reference_points: u64,
    pub stamps: u64,
    pub leases: u64,
    pub time_faults: u64,
}

impl Counts {
    pub fn records(&self) -> u64 {
        self.events + self.reference_points + self.stamps + self.leases + self.time_faults
    }

    pub fn add(&mut self, more: &Counts) {
        self.events += more.events;
        self.reference_points += more.reference_points;
        self.stamps += more.stamps;
        self.leases += more.leases;
        self.time_faults += more.time_faults;
    }
}

/// What `session.json` says of a lane.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub domain: Domain,
    pub number: u32,
    pub clock: u32,
    pub name: String,
    /// In this lane's own stream.
    pub counts: Counts,
    /// Of this client, in streams of host rings.
    pub reference_points: u64,
    pub lost: Losses,
    pub filtered: u64,
    pub faults: [u64; FAULT_KINDS],
    /// Faults of this client's reference points.
    pub point_faults: [u64; FAULT_KINDS],
}

impl Stats {
    pub fn new(domain: Domain, number: u32) -> Stats {
        Stats {
            domain,
            number,
            clock: 0,
            name: String::new(),
            counts: Counts::default(),
            reference_points: 0,
            lost: Losses::default(),
            filtered: 0,
            faults: [0; FAULT_KINDS],
            point_faults: [0; FAULT_KINDS],
        }
    }

    /// The same in another trace: nothing is recorded there yet.
    pub fn restart(&mut self) {
        let new = Stats::new(self.domain, self.number);
        *self = Stats { clock: self.clock, name: std::mem::take(&mut self.name), ..new };
    }

    /// Rings of the pool that no thread claimed are no streams.
    pub fn is_used(&self) -> bool {
        self.domain == Domain::Guest || self.counts.records() > 0 || self.lost() > 0
    }

    pub fn lost(&self) -> u64 {
        self.lost.total().min(MOST_LOST)
    }

    pub fn faults(&self) -> u64 {
        self.faults.iter().chain(&self.point_faults).fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub fn faults_by_kind(&self) -> BTreeMap<String, u64> {
        Fault::ALL
            .iter()
            .map(|kind| {
                let i = *kind as usize;
                (kind.name().to_owned(), self.faults[i].saturating_add(self.point_faults[i]))
            })
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    pub fn to_json(&self) -> StreamJson {
        StreamJson {
            domain: self.domain.name().into(),
            client: self.number,
            clock: self.clock,
            name: self.name.clone(),
            events: self.counts.events,
            // A host ring's are its clients'.
            reference_points: match self.domain {
                Domain::Host => 0,
                Domain::Guest => self.counts.reference_points + self.reference_points,
            },
            stamps: self.counts.stamps,
            lost_full: self.lost.full.min(MOST_LOST),
            lost_busy: self.lost.busy.min(MOST_LOST),
            lost_unattached: self.lost.unattached.min(MOST_LOST),
            lost_overwritten: self.lost.overwritten.min(MOST_LOST),
            filtered: self.filtered,
            faults: self.faults_by_kind(),
        }
    }
}

/// For people.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Escaped(self.name.as_bytes());
        let points = self.reference_points + self.counts.reference_points;
        let (records, lost, filtered) = (self.counts.records(), self.lost(), self.filtered);
        write!(
            f,
            "\"{name}\", {records} records, {points} reference points, {lost} lost, \
             {filtered} filtered, {} faults",
            self.faults()
        )
    }
}

/// Counts of a client's reference points that stand in a packet which is not
/// committed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingPoints {
    pub points: u64,
    pub filtered: u64,
    pub faults: [u64; FAULT_KINDS],
}

/// The lease whose records are drained now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLease {
    pub token: u64,
    pub epoch: u32,
    /// Its first timestamp.
    pub first: u64,
}

/// Who said so in a lease record.
#[derive(Debug)]
pub(crate) struct Lessee {
    pub token: u64,
    pub clock: ClockKind,
    pub name: String,
}

/// One ring's way into its stream.
#[derive(Debug)]
pub(crate) struct Lane {
    pub domain: Domain,
    pub number: u32,
    /// Where its [`Stats`] are.
    pub stats: usize,
    /// The budget that its new names are paid from.
    pub payer: Payer,
    /// The version of the classes with the texts that were read last, until
    /// those are on disk and their room in the schema log is given back.
    pub learned: Option<u64>,
    pub table: Table,
    pub cache: Box<[Cached; CACHE]>,
    pub stream: Option<Stream>,
    pub clock: Option<u32>,
    pub lease: Option<OpenLease>,
    /// The timestamp that the next record must not be before, raw.
    pub last: u64,
    /// The next packet begins a new file.
    pub new_file: bool,
    /// Number of the next ring record.
    pub sequence: u64,
    pub ring_end: u64,
    /// Segments begun in this epoch, see [`MAX_RESTARTS`].
    pub restarts: u32,
    /// Files, lost events and faults that an earlier process left, and its last
    /// lessee.
    pub files: u32,
    pub token_told: u64,
    pub told: u64,
    pub faults_told: u64,
    /// Where its last packet ended in the ring, and the number of the record
    /// after it.
    pub ring_told: u64,
    pub sequence_told: u64,
    pub pending: PendingPoints,
    /// When a packet was committed last, host's raw counter.
    pub committed_at: u64,
    /// In a flight recorder: the last lessee, whose lease record may be
    /// overwritten by now.
    pub lessee: Option<Lessee>,
    /// Where the snapshot that is being taken ends in this ring.
    pub until: Option<u64>,
    /// There was more to take at the last look.
    pub unfinished: bool,
    /// The next record waits for a later pass: until `session.json` and the
    /// metadata may be replaced for it, or its text was read.
    pub is_deferred: bool,
    /// Passes since all of its schema log was read.
    pub behind: u32,
    /// Of a host ring: looks at a point that waited for its text, since the ring
    /// was last empty.
    pub waits: u32,
    /// The part of the ring, from where to where, whose classes were declared
    /// while its records wait for the files to be replaced.
    pub announced: Option<(u64, u64)>,
}

impl Lane {
    pub fn new(domain: Domain, number: u32, stats: usize) -> Lane {
        Lane {
            domain,
            number,
            stats,
            payer: Payer::Lane(stats),
            learned: None,
            table: Table::default(),
            cache: Box::new([Cached::default(); CACHE]),
            stream: None,
            clock: None,
            lease: None,
            last: 0,
            new_file: false,
            sequence: 0,
            ring_end: 0,
            restarts: 0,
            files: 0,
            token_told: 0,
            told: 0,
            faults_told: 0,
            ring_told: 0,
            sequence_told: 0,
            pending: PendingPoints::default(),
            committed_at: 0,
            lessee: None,
            until: None,
            unfinished: false,
            is_deferred: false,
            behind: 0,
            waits: 0,
            announced: None,
        }
    }

    /// Goes on in another trace, from the ring's beginning; what is known of
    /// schemas stays.
    pub fn restart(&mut self) {
        (self.stream, self.lease, self.new_file) = (None, None, false);
        (self.last, self.sequence, self.ring_end, self.restarts) = (0, 0, 0, 0);
        (self.until, self.unfinished, self.committed_at) = (None, false, 0);
        self.announced = None;
        self.pending = PendingPoints::default();
        // The classes that it knows by heart are not described there.
        self.forget();
    }

    /// Takes in a text of its schema log.
    pub fn learn(&mut self, classes: &mut Classes, logged: &LoggedSchema) -> Result<(), Fault> {
        let learned = self.table.learn(self.payer, classes, logged);
        if matches!(learned, Err(Fault::SchemaHash)) {
            // What it meant so far may stand in the cache.
            self.cache[logged.id as usize % CACHE] = Cached::default();
        }
        if let Some(class) = learned?
            && self.domain == Domain::Guest
        {
            classes.see(class.dense);
        }
        Ok(())
    }

    pub fn prefix(&self) -> String {
        format!("{}-{:03}", self.domain.name(), self.number)
    }

    /// Forgets what is known of ids by heart: what they mean has changed.
    pub fn forget(&mut self) {
        *self.cache = [Cached::default(); CACHE];
    }

    /// Whether the last packet says less than is known by now.
    pub fn owes(&self, stats: &Stats) -> bool {
        self.stream.as_ref().is_some_and(|stream| {
            let PacketHeader { faults, events_filtered, .. } = *stream.last();
            stream.told() != stats.lost()
                || faults != stats.faults()
                || events_filtered != stats.filtered
        })
    }
}

/// The guest's lanes, by client.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    lanes: Vec<Option<Box<Lane>>>,
}

impl Guests {
    /// The lane of a client; a new one if it has none. `None` if there is no
    /// such client.
    pub fn lane(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Lane> {
        Some(self.slot(client, stats)?.as_mut()?)
    }

    /// The lane of a client, taken out until it is [put back](Self::put).
    pub fn take(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<Box<Lane>> {
        self.slot(client, stats)?.take()
    }

    /// Puts a lane back that was [taken out](Self::take).
    pub fn put(&mut self, lane: Box<Lane>) {
        let client = lane.number as usize;
        if let Some(slot) = self.lanes.get_mut(client) {
            *slot = Some(lane);
        }
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten().map(|lane| &mut **lane)
    }

    fn slot(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Option<Box<Lane>>> {
        if client >= MAX_CLIENTS {
            return None;
        }
        let index = client as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        let slot = &mut self.lanes[index];
        if slot.is_none() {
            *slot = Some(Box::new(Lane::new(Domain::Guest, client, stats.len())));
            stats.push(Stats::new(Domain::Guest, client));
        }
        Some(slot)
    }
}
