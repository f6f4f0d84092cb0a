//! A source: one ring's way into its stream.

use super::budget::Payer;
use super::holder::{Holder, OpenLease};
use super::stats::PendingPoints;
use super::texts::Texts;
use super::waiting::{Rest, Waiting};
use crate::ctf::{Domain, Stream};
use hypertrace_abi::clock::Counter;
use hypertrace_format::limits::MAX_GENERATIONS;

/// One ring's way into its stream.
#[derive(Debug)]
pub(crate) struct Source {
    pub domain: Domain,
    pub number: u32,
    /// Index of its [`Stats`](super::stats::Stats).
    pub stats: usize,
    pub texts: Texts,
    pub clock: Option<u32>,
    /// The guest's counter, as it says.
    pub counter: Counter,
    pub lease: Option<OpenLease>,
    /// The holder whose lease record is not in the ring any more: of a flight recorder, or of a guest
    /// that was restored.
    pub holder: Option<Holder>,
    pub next: Next,
    pub file: StreamFile,
    /// Token of the holder whose lease record a killed process has taken.
    pub earlier: Option<u64>,
    pub pending: PendingPoints,
    /// Where the snapshot that is being taken ends in this ring.
    pub until: Option<u64>,
    pub waiting: Waiting,
    /// The guest was restored.
    pub is_restored: bool,
    /// The next record is the first after a restore. It may have been under way at the snapshot: its timestamp
    /// is then of the clock before, and says nothing about the records after it.
    pub is_alone: bool,
}

/// Place of the next record of a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    /// The timestamp that it must not be before, raw.
    pub timestamp: u64,
    /// Its number.
    pub sequence: u64,
    /// The ring's position after the last record that was taken.
    pub position: u64,
}

/// The file that a source writes.
#[derive(Debug, Default)]
pub(crate) struct StreamFile {
    pub stream: Option<Stream>,
    /// The next packet begins a new file.
    pub is_next_new: bool,
    /// The ring began anew since the last packet: its positions and numbers do not follow the last.
    pub begins_anew: bool,
    /// Files begun in this epoch, see [`MAX_RESTARTS`](crate::limits::MAX_RESTARTS).
    pub restarts: u32,
    /// When a packet was committed last, host's raw counter.
    pub committed_at: u64,
}

impl Source {
    pub fn new(domain: Domain, number: u32, stats: usize) -> Source {
        Source {
            domain,
            number,
            stats,
            texts: Texts::new(Payer::Source(stats)),
            clock: None,
            counter: Counter::default(),
            lease: None,
            holder: None,
            next: Next::default(),
            file: StreamFile::default(),
            earlier: None,
            pending: PendingPoints::default(),
            until: None,
            waiting: Waiting::default(),
            is_restored: false,
            is_alone: false,
        }
    }

    /// Begins with another trace, from the ring's beginning; what is known of
    /// schemas stays.
    pub fn restart(&mut self) {
        (self.lease, self.until) = (None, None);
        (self.next, self.file) = (Next::default(), StreamFile::default());
        self.pending = PendingPoints::default();
        self.waiting.rest = Rest::Empty;
        self.is_alone = self.is_restored;
        // The classes in the cache are not described there.
        self.texts.forget();
    }

    /// Begins another generation, this many after the first, whose ring begins anew.
    pub fn begin_generation(&mut self, number: u32) {
        (self.lease, self.clock, self.holder) = (None, None, None);
        (self.is_restored, self.is_alone) = (false, false);
        self.next = Next::default();
        self.waiting.rest = Rest::Empty;
        self.texts.forget();
        self.file.begins_anew = true;
        if number < MAX_GENERATIONS {
            self.file.restarts = 0;
        }
    }

    /// Continues with a holder whose lease record another session has.
    pub fn restore(&mut self, holder: Holder) {
        self.holder = Some(holder);
        (self.is_restored, self.is_alone) = (true, true);
    }

    /// Returns the part of its files' names before their number.
    pub fn prefix(&self) -> String {
        format!("{}-{:03}", self.domain.name(), self.number)
    }
}
