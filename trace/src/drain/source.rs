//! A source moves one ring's records into the ring's stream, and knows the ring's holder.

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
    /// Counter that stamps the guest's events. The guest gives the kind and the frequency of this counter.
    pub counter: Counter,
    pub lease: Option<OpenLease>,
    /// The holder, if the holder's lease record is no longer in the ring. Only the rings of a flight recorder
    /// and of a restored guest have such a holder.
    pub holder: Option<Holder>,
    pub next: Next,
    pub file: StreamFile,
    /// Token of the ring's holder, if a killed process has already taken the holder's lease record out of the
    /// ring.
    pub earlier: Option<u64>,
    pub pending: PendingPoints,
    /// Ring position at which the current snapshot ends.
    pub until: Option<u64>,
    /// True if the last drain left records or texts that the next drain may take.
    pub has_rest: bool,
    /// True if the guest was restored.
    pub is_restored: bool,
    /// True if the next record is the first after a restore. The guest may have been saved in the middle of
    /// this record's emit. In this case, the record's timestamp is from the clock before the restore, and
    /// says nothing about later records.
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
    /// True if the ring began anew after the last packet: the ring's new positions and sequence numbers do
    /// not continue the old positions and numbers.
    pub begins_anew: bool,
    /// Number of files that the guest has begun in this epoch, see
    /// [`MAX_RESTARTS`](crate::limits::MAX_RESTARTS).
    pub restarts: u32,
    /// Ticks of the host's raw counter at the last commit of a packet.
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

    /// Prepares the source for a new trace, which begins with the oldest record of the ring. The source keeps
    /// its schemas.
    pub fn restart(&mut self) {
        (self.lease, self.until) = (None, None);
        (self.next, self.file) = (Next::default(), StreamFile::default());
        self.pending = PendingPoints::default();
        self.has_rest = false;
        self.is_first_after_restore = self.is_restored;
        // The new trace does not describe the classes in the cache yet.
        self.texts.forget();
    }

    /// Begins a new generation of the guest, in which the ring begins anew. The first generation has number
    /// 0, and the new generation has number `number`.
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

    /// Continues with a holder whose lease record is in an earlier session.
    pub fn restore(&mut self, holder: Holder) {
        self.holder = Some(holder);
        (self.is_restored, self.is_first_after_restore) = (true, true);
    }

    /// Returns the end of the last packet: the position in the ring, the next sequence number, and the number
    /// of faults. The last taken record may end at another position, because unwanted records are in no
    /// packet, and the position in a ring can go back. Before the first packet, returns the position and the
    /// sequence number of the next record. A recovery begins with these values.
    pub fn end(&self) -> (u64, u64, u64) {
        match self.file.stream.as_ref().map(Stream::last) {
            Some(last) if self.file.begins_anew => (0, 0, last.faults),
            Some(last) => (last.ring_end, last.sequence, last.faults),
            None => (self.next.position, self.next.sequence, 0),
        }
    }

    /// Returns the beginning of the source's file names. In a file name, the file's number follows.
    pub fn prefix(&self) -> String {
        format!("{}-{:03}", self.domain.name(), self.number)
    }
}

/// The lease whose records the drain takes now.
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

/// Returns the kind of clock for the number in a lease record.
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
    // The code reads three bytes more than the maximum. These bytes may end in the middle of a letter. Such a
    // letter is beyond the maximum, and the loop below cuts the letter off.
    let most = bytes.len().min(MAX_NAME_BYTES + 3);
    let mut name = String::from_utf8_lossy(&bytes[..most]).into_owned();
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    Some(name)
}

/// For each client, the guests' source.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    sources: Vec<Option<Box<Source>>>,
    number: u64,
    /// Texts that a killed process may have read, of all clients together.
    pub earlier: Arc<RecoveredClasses>,
}

impl Guests {
    /// Returns the source of a client. If the client has no source yet, makes a new source. Returns `None` if
    /// no client can have this number.
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
