//! A source: moves one ring's records into the ring's stream, and knows who holds the ring.

use super::budget::Account;
use super::classes::{ClassRef, Classes, RecoveredClasses, Table, Texts};
use super::stats::{PendingPoints, Stats};
use crate::ctf::{Domain, Stream};
use hypertrace_abi::clock::Counter;
use hypertrace_abi::event::cut;
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::MAX_NAME_BYTES;
use hypertrace_abi::schema::Value;
use hypertrace_abi::sink::KnownClient;
use hypertrace_format::limits::{MAX_CLIENTS, MAX_GENERATIONS};
use std::sync::Arc;

/// State of moving one ring's records into the ring's stream.
#[derive(Debug)]
pub(crate) struct Source {
    pub domain: Domain,
    pub number: u32,
    /// Index of the source's [`Stats`](super::stats::Stats).
    pub stats: usize,
    pub texts: Texts,
    pub clock: Option<u32>,
    /// Counter with which the guest stamps, as the guest says.
    pub counter: Counter,
    pub lease: Option<OpenLease>,
    /// The holder, if its lease record is no longer in the ring: of a flight recorder, or of a guest that was
    /// restored.
    pub holder: Option<Holder>,
    pub next: Next,
    pub file: StreamFile,
    /// Token of the holder whose lease record a killed process has already taken.
    pub earlier: Option<u64>,
    pub pending: PendingPoints,
    /// Ring position at which the current snapshot ends.
    pub until: Option<u64>,
    /// True if the last drain left something that the next one may take.
    pub has_rest: bool,
    /// True if the guest was restored.
    pub is_restored: bool,
    /// True if the next record is the first after a restore. The emit of that record may have been under way
    /// when the guest was saved: its timestamp is then of the clock before, and says nothing about later
    /// records.
    pub is_first_after_restore: bool,
}

/// Place of the next record of a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    /// Minimum timestamp of the next record, in ticks of the source's clock.
    pub timestamp: u64,
    /// Sequence number of the next record.
    pub sequence: u64,
    /// Ring position after the last record that was taken.
    pub position: u64,
}

/// The file that a source writes.
#[derive(Debug, Default)]
pub(crate) struct StreamFile {
    pub stream: Option<Stream>,
    /// True if the next packet begins a new file.
    pub is_next_new: bool,
    /// True if the ring began anew since the last packet: its positions and numbers do not follow the last
    /// ones.
    pub begins_anew: bool,
    /// Number of files begun in this epoch, see [`MAX_RESTARTS`](crate::limits::MAX_RESTARTS).
    pub restarts: u32,
    /// The host's raw counter when a packet was last committed.
    pub committed_at: u64,
}

impl Source {
    pub fn new(domain: Domain, number: u32, stats: usize) -> Source {
        Source {
            domain,
            number,
            stats,
            texts: Texts::new(Account::Source(stats)),
            clock: None,
            counter: Counter::default(),
            lease: None,
            holder: None,
            next: Next::default(),
            file: StreamFile::default(),
            earlier: None,
            pending: PendingPoints::default(),
            until: None,
            has_rest: false,
            is_restored: false,
            is_first_after_restore: false,
        }
    }

    /// Begins with another trace, from the ring's beginning. The source keeps its schemas.
    pub fn restart(&mut self) {
        (self.lease, self.until) = (None, None);
        (self.next, self.file) = (Next::default(), StreamFile::default());
        self.pending = PendingPoints::default();
        self.has_rest = false;
        self.is_first_after_restore = self.is_restored;
        // The other trace does not describe the classes in the cache yet.
        self.texts.forget();
    }

    /// Begins the generation `number` after the first one, whose ring begins anew.
    pub fn begin_generation(&mut self, number: u32) {
        (self.lease, self.clock, self.holder) = (None, None, None);
        (self.is_restored, self.is_first_after_restore) = (false, false);
        self.next = Next::default();
        self.has_rest = false;
        self.texts.forget();
        self.file.begins_anew = true;
        if number < MAX_GENERATIONS {
            self.file.restarts = 0;
        }
    }

    /// Continues with a holder whose lease record is in another session.
    pub fn restore(&mut self, holder: Holder) {
        self.holder = Some(holder);
        (self.is_restored, self.is_first_after_restore) = (true, true);
    }

    /// Returns where the last packet ended: position, next sequence number, and faults. The last record may
    /// have ended elsewhere: unwanted records are in no packet, and a ring can go back meanwhile. Before the
    /// first packet, returns where a recovery begins.
    pub fn end(&self) -> (u64, u64, u64) {
        match self.file.stream.as_ref().map(Stream::last) {
            Some(last) if self.file.begins_anew => (0, 0, last.faults),
            Some(last) => (last.ring_end, last.sequence, last.faults),
            None => (self.next.position, self.next.sequence, 0),
        }
    }

    /// Returns the part of the source's file names before their number.
    pub fn prefix(&self) -> String {
        format!("{}-{:03}", self.domain.name(), self.number)
    }
}

/// The lease whose records are drained now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLease {
    pub token: u64,
    pub epoch: u32,
    /// The first timestamp of the lease.
    pub first: u64,
}

/// A ring's holder, as its lease record describes it.
#[derive(Debug)]
pub(crate) struct Holder {
    pub token: u64,
    pub clock: ClockKind,
    pub name: String,
}

impl Holder {
    /// Returns the holder of a restored client.
    pub fn of(known: &KnownClient<'_>) -> Holder {
        let name = cut(known.name, MAX_NAME_BYTES).to_owned();
        Holder { token: known.token, clock: known.clock, name }
    }

    /// Reads the payload of a lease record. Returns `None` if the payload is malformed.
    pub fn parse(classes: &Classes, payload: &[u64]) -> Option<Holder> {
        let class = classes.reserved(id::LEASE)?;
        class.shape.check(payload)?;
        let &[token, _pid, _tid, clock, ..] = payload else { return None };
        Some(Holder { token, clock: clock_kind(clock), name: lease_name(&class, payload)? })
    }
}

/// Returns the clock that a lease record's word names.
pub(crate) fn clock_kind(word: u64) -> ClockKind {
    match word == ClockKind::MonotonicRaw as u64 {
        true => ClockKind::MonotonicRaw,
        false => ClockKind::Tsc,
    }
}

/// Returns the name in a lease record, cut to [`MAX_NAME_BYTES`].
pub(crate) fn lease_name(class: &ClassRef, payload: &[u64]) -> Option<String> {
    let Value::Str(bytes) = class.shape.values(payload).last()? else {
        return None;
    };
    // Three bytes more are read, so that a letter cut in two here is cut off below.
    let most = bytes.len().min(MAX_NAME_BYTES + 3);
    let mut name = String::from_utf8_lossy(&bytes[..most]).into_owned();
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    Some(name)
}

/// The guests' sources, by client.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    sources: Vec<Option<Box<Source>>>,
    number: u64,
    /// Texts of any client that a killed process may have read.
    pub earlier: Arc<RecoveredClasses>,
}

impl Guests {
    /// Returns the source of a client, a new one if there was none. Returns `None` if no client has this
    /// number.
    pub fn source(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Source> {
        if client >= MAX_CLIENTS {
            return None;
        }
        let index = client as usize;
        if self.sources.len() <= index {
            self.sources.resize_with(index + 1, || None);
        }
        let Guests { sources, number, earlier } = self;
        Some(sources[index].get_or_insert_with(|| {
            *number += 1;
            let mut source = Source::new(Domain::Guest, client, stats.len());
            source.texts.table = Table::recovered(Arc::clone(earlier));
            stats.push(Stats::new(Domain::Guest, client));
            Box::new(source)
        }))
    }

    /// Returns the number of sources.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Iterates over the sources.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().flatten().map(|source| &**source)
    }

    /// Iterates over the sources.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Source> {
        self.sources.iter_mut().flatten().map(|source| &mut **source)
    }
}
