//! A flight recorder: rings overwrite their oldest records, and what they hold
//! is written as a session of its own on request: a snapshot.

use crate::ctf::{Folder, WriteFailed};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bounds of the snapshots that guests take, by triggers on their reference points.
/// Each can be as large as all rings together. Refused ones are counted
/// ([`Summary::snapshots_refused`](crate::Summary::snapshots_refused)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimit {
    /// In all.
    pub most: u32,
    /// The least time from one to the next.
    pub interval: Duration,
}

impl Default for SnapshotLimit {
    /// 16 in all, one a second.
    fn default() -> Self {
        SnapshotLimit { most: 16, interval: Duration::from_secs(1) }
    }
}

/// Snapshots whose outcome is kept, for those that asked.
const KEPT: usize = 64;

/// Error of taking a snapshot.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The session writes all the time.
    #[error(
        "this session is no flight recorder: the VMM makes one with \
         SessionConfig {{ output: Output::Snapshots, .. }}"
    )]
    NotARecorder,
    /// The drain loop has not come.
    #[error("the rings were not drained for 10 s: is the drain loop running?")]
    NotDrained,
    /// The session ended before.
    #[error("the session has ended")]
    Ended,
    /// It could not be written. The written part is whole.
    #[error(transparent)]
    Write(Arc<WriteFailed>),
    /// A guest has taken as many as it may, for now or at all.
    #[error("a guest's trigger has taken its share of snapshots (SessionConfig::guests_snapshots)")]
    Refused,
}

/// The party that asks for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The VMM, or a user of its monitor.
    Owner,
    /// A trigger on a guest's reference point.
    Guest,
}

/// Outcome of a snapshot: its directory.
pub(crate) type Outcome = Result<PathBuf, SnapshotError>;

/// Snapshots that were asked for, and their outcomes.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Where they go.
    root: Folder,
    /// The last one that was begun.
    begun: u64,
    /// The last one that was asked for.
    asked: u64,
    /// One is being written.
    pub taking: bool,
    /// A write of it that failed.
    pub failed: Option<WriteFailed>,
    outcomes: VecDeque<(u64, Outcome)>,
    limit: SnapshotLimit,
    /// Snapshots that guests' triggers began, and when the last one was asked for.
    triggered: u32,
    triggered_at: Option<Instant>,
    /// Snapshots that were refused to guests' triggers.
    pub refused: u64,
}

impl Recorder {
    pub fn new(root: Folder, limit: SnapshotLimit) -> Recorder {
        Recorder {
            limit,
            triggered: 0,
            triggered_at: None,
            refused: 0,
            root,
            begun: 0,
            asked: 0,
            taking: false,
            failed: None,
            outcomes: VecDeque::new(),
        }
    }

    /// Asks for a snapshot, and returns its number. All that ask before it
    /// begins get the same.
    ///
    /// # Errors
    /// If it is a guest that asks, beyond its limit.
    pub fn ask(&mut self, asker: Asker) -> Result<u64, SnapshotError> {
        if asker == Asker::Guest && self.asked <= self.begun {
            let now = Instant::now();
            let SnapshotLimit { most, interval } = self.limit;
            let soon = self.triggered_at.is_some_and(|last| now.duration_since(last) < interval);
            if soon || self.triggered >= most {
                self.refused += 1;
                return Err(SnapshotError::Refused);
            }
            self.triggered += 1;
            self.triggered_at = Some(now);
        }
        self.asked = self.begun + 1;
        Ok(self.asked)
    }

    /// Begins what was asked for: makes its directory.
    pub fn begin(&mut self) -> Option<Result<Folder, WriteFailed>> {
        if self.taking || self.asked <= self.begun {
            return None;
        }
        self.begun += 1;
        self.taking = true;
        self.failed = None;
        let made = self.root.create(name(self.begun));
        Some(made.map_err(WriteFailed::on("create", &self.dir(self.begun))))
    }

    /// Ends the snapshot: it is written, or cannot be.
    pub fn end(&mut self) {
        self.taking = false;
        let outcome = match self.failed.take() {
            Some(failed) => Err(SnapshotError::Write(Arc::new(failed))),
            None => Ok(self.dir(self.begun)),
        };
        self.outcomes.push_back((self.begun, outcome));
        if self.outcomes.len() > KEPT {
            self.outcomes.pop_front();
        }
    }

    /// Returns whether a snapshot is being written, or was asked for.
    pub fn is_busy(&self) -> bool {
        self.taking || self.asked > self.begun
    }

    /// Returns what became of this snapshot; `None` if it is not written yet.
    pub fn outcome(&self, number: u64) -> Option<Outcome> {
        let (_, outcome) = self.outcomes.iter().find(|(ended, _)| *ended == number)?;
        Some(outcome.clone())
    }

    fn dir(&self, number: u64) -> PathBuf {
        self.root.path().join(name(number))
    }
}

fn name(number: u64) -> String {
    format!("snapshot-{number:04}")
}

/// For people.
impl std::fmt::Display for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Recorder { begun, refused, .. } = self;
        write!(f, "flight recorder: {}, {begun} snapshots", self.root.path().display())?;
        match refused {
            0 => Ok(()),
            refused => write!(f, ", {refused} refused to the guest's triggers"),
        }
    }
}
