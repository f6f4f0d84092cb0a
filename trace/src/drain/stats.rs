//! Accounts: recorded events, lost events and faults of each source, and failed writes.

use crate::ctf::{Domain, WriteFailed};
use crate::events::Escaped;
use hypertrace_abi::ring::{FAULT_KINDS, Fault, Losses};
use hypertrace_format::limits::MAX_LOST;
use hypertrace_format::session_json::StreamJson;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Numbers of recorded events by kind. Every CTF event has one of these kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub events: u64,
    pub reference_points: u64,
    pub leases: u64,
    pub time_faults: u64,
}

impl Recorded {
    pub fn records(&self) -> u64 {
        self.events + self.reference_points + self.leases + self.time_faults
    }

    pub fn add(&mut self, more: &Recorded) {
        self.events += more.events;
        self.reference_points += more.reference_points;
        self.leases += more.leases;
        self.time_faults += more.time_faults;
    }
}

/// A stream's ledger: counts of emitted events that are in no packet of the stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    /// Numbers of lost events by cause. The first entry is for this generation of the ring, and the second
    /// entry is for all earlier generations. The ring's own totals do not include earlier generations.
    lost: [Losses; 2],
    /// Number of events that no rule wanted.
    pub filtered: u64,
}

impl Ledger {
    /// Returns for each cause the lost events of all generations. Each number is at most [`MAX_LOST`].
    pub fn causes(&self) -> Losses {
        let Losses { full, busy, unattached, overwritten } = self.lost[0].plus(&self.lost[1]);
        let [full, busy, unattached, overwritten] =
            [full, busy, unattached, overwritten].map(|lost| lost.min(MAX_LOST));
        Losses { full, busy, unattached, overwritten }
    }

    /// Returns the number of lost events of all causes.
    pub fn lost(&self) -> u64 {
        self.causes().total().min(MAX_LOST)
    }
}

/// Accounts of a source, for `session.json`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub domain: Domain,
    pub number: u32,
    pub clock: u32,
    pub name: String,
    /// Counts of this source's own stream.
    pub counts: Recorded,
    /// Number of this client's reference points in streams of host rings.
    pub reference_points: u64,
    pub ledger: Ledger,
    pub faults: [u64; FAULT_KINDS],
    /// Numbers of faults that the ring's own counts lack, such as the faults in earlier generations.
    before: [u64; FAULT_KINDS],
    /// Counts of faults in this client's reference points.
    pub point_faults: [u64; FAULT_KINDS],
}

impl Stats {
    pub fn new(domain: Domain, number: u32) -> Stats {
        Stats { domain, number, ..Stats::default() }
    }

    /// Resets the counts for a new trace, which has no events yet.
    pub fn restart(&mut self) {
        let new = Stats::new(self.domain, self.number);
        *self = Stats { clock: self.clock, name: std::mem::take(&mut self.name), ..new };
    }

    /// Begins a new generation, in which the ring counts from 0 again.
    pub fn begin_generation(&mut self) {
        let [now, before] = &mut self.ledger.lost;
        (*before, *now) = (before.plus(now), Losses::default());
        self.before = self.faults;
    }

    /// Counts a fault that this generation's ring does not count.
    pub fn fault(&mut self, fault: Fault) {
        for faults in [&mut self.before, &mut self.faults] {
            faults[fault as usize] = faults[fault as usize].saturating_add(1);
        }
    }

    /// Notes the counts of this generation's ring.
    pub fn note(&mut self, lost: &Losses, faults: &[u64; FAULT_KINDS]) {
        self.ledger.lost[0] = *lost;
        self.faults = self.before;
        for (total, more) in self.faults.iter_mut().zip(faults) {
            *total = total.saturating_add(*more);
        }
    }

    /// Returns true if the stream exists. A ring that no thread has claimed has no stream.
    pub fn is_used(&self) -> bool {
        self.domain == Domain::Guest || self.counts.records() > 0 || self.ledger.lost() > 0
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
        let Losses { full, busy, unattached, overwritten } = self.ledger.causes();
        StreamJson {
            domain: self.domain,
            client: self.number,
            clock: self.clock,
            name: self.name.clone(),
            events: self.counts.events,
            // The reference points in a host ring are counted for the points' clients.
            reference_points: match self.domain {
                Domain::Host => 0,
                Domain::Guest => self.counts.reference_points + self.reference_points,
            },
            lost_full: full,
            lost_busy: busy,
            lost_unattached: unattached,
            lost_overwritten: overwritten,
            filtered: self.ledger.filtered,
            faults: self.faults_by_kind(),
        }
    }
}

/// Formats a human-readable status.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Escaped(self.name.as_bytes());
        let points = self.reference_points + self.counts.reference_points;
        let (records, lost) = (self.counts.records(), self.ledger.lost());
        let filtered = self.ledger.filtered;
        write!(
            f,
            "\"{name}\", {records} records, {points} reference points, {lost} lost, \
             {filtered} filtered, {} faults",
            self.faults()
        )
    }
}

/// Counts of a client's reference points in a packet that is not committed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingPoints {
    pub points: u64,
    pub filtered: u64,
    pub faults: [u64; FAULT_KINDS],
}

/// Callback for failed writes. The session calls the callback at the first failed write. A later failure
/// causes a call only if all writers have worked again in between. The callback runs in the middle of a
/// drain, so it must not call the session.
pub type OnWriteFailed = Box<dyn Fn(&WriteFailed) + Send>;

/// Number that stands in [`Failures::failed`] for `session.json` and the metadata.
pub(crate) const SESSION_FILES: usize = usize::MAX;
/// Number that stands in [`Failures::failed`] for the simple backend's file.
pub(crate) const SIMPLE: usize = usize::MAX - 1;
/// Number that stands in [`Failures::failed`] for the bytes that wait for the reader of a journal.
pub(crate) const JOURNAL: usize = usize::MAX - 2;

/// Counts and reports failed writes.
#[derive(Default)]
pub(crate) struct Failures {
    pub count: u64,
    pub on_failed: Option<OnWriteFailed>,
    /// Numbers of the writers whose last write failed. The number of a source is the index of the source's
    /// [`Stats`], and the other writers have the numbers [`SESSION_FILES`], [`SIMPLE`] and [`JOURNAL`].
    failing: BTreeSet<usize>,
}

impl Failures {
    /// Notes the result of a write. Returns the result's value, if the write worked.
    pub fn note<T>(&mut self, whose: usize, written: Result<T, WriteFailed>) -> Option<T> {
        match &written {
            Ok(_) => self.worked(whose),
            Err(failed) => self.failed(whose, failed),
        }
        written.ok()
    }

    /// Counts a failed write. If no other writer is failing already, reports the failed write.
    pub fn failed(&mut self, whose: usize, failed: &WriteFailed) {
        self.count += 1;
        if self.failing.is_empty()
            && let Some(report) = &self.on_failed
        {
            report(failed);
        }
        self.failing.insert(whose);
    }

    /// Returns true if the last write of some writer failed, so that the writer must try again.
    pub fn is_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Notes that a write of `whose` worked, so that the next failure of `whose` is reported again.
    #[inline]
    pub fn worked(&mut self, whose: usize) {
        if !self.failing.is_empty() {
            self.failing.remove(&whose);
        }
    }
}
