//! A flight recorder: the rings overwrite their oldest records. On request, the recorder writes the contents
//! of the rings as a snapshot, which is a separate session.

use crate::ctf::{Folder, WriteFailed};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits on the snapshots that guests take with triggers on the guests' reference points. Limits are needed,
/// because a snapshot can be as large as all rings together. The session counts the snapshots that it refuses
/// ([`Summary::snapshots_refused`](crate::Summary::snapshots_refused)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimit {
    /// Maximum number of snapshots in the whole session.
    pub most: u32,
    /// Minimum time from one snapshot to the next.
    pub interval: Duration,
}

impl Default for SnapshotLimit {
    /// Returns a limit of 16 snapshots in all, and one a second.
    fn default() -> Self {
        SnapshotLimit { most: 16, interval: Duration::from_secs(1) }
    }
}

/// How many of the newest snapshots keep their outcomes in the recorder. The callers that asked for the
/// snapshots read these outcomes.
const KEPT: usize = 64;

/// Error of taking a snapshot.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The session is no flight recorder: it writes its trace all the time.
    #[error(
        "this session is no flight recorder: the VMM makes one with \
         SessionConfig {{ output: Output::Snapshots, .. }}"
    )]
    NotARecorder,
    /// The drain loop has made no pass.
    #[error("the rings were not drained for 10 s: is the drain loop running?")]
    NotDrained,
    /// The session ended before the snapshot was written.
    #[error("the session has ended")]
    Ended,
    /// The snapshot could not be written. The written part of the snapshot is valid.
    #[error(transparent)]
    Write(Arc<WriteFailed>),
    /// A guest may take no snapshot now. Either too little time has passed since guests last took a snapshot,
    /// or the guests have taken their maximum number of snapshots.
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

/// Outcome of a snapshot: the snapshot's directory, or an error.
pub(crate) type Outcome = Result<PathBuf, SnapshotError>;

/// The requests for snapshots, and the outcomes of the snapshots.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Directory of the snapshots.
    root: Folder,
    /// Sequence number of the last snapshot that was begun.
    begun: u64,
    /// Sequence number of the last requested snapshot.
    asked: u64,
    /// True while a snapshot is being written.
    pub taking: bool,
    /// The first failed write of the present snapshot.
    pub failed: Option<WriteFailed>,
    outcomes: VecDeque<(u64, Outcome)>,
    limit: SnapshotLimit,
    /// Number of snapshots that guests' triggers have requested, and the instant of the last such request.
    triggered: u32,
    triggered_at: Option<Instant>,
    /// Number of refused requests of guests' triggers.
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

    /// Requests a snapshot, and returns the snapshot's number. All callers that request a snapshot before it
    /// begins get the same number.
    ///
    /// # Errors
    /// If a guest has reached its limit.
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

    /// If a snapshot is requested, begins the snapshot: makes its directory.
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

    /// Ends the present snapshot after it was written or has failed.
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

    /// Returns true if a snapshot is requested or is being written.
    pub fn is_busy(&self) -> bool {
        self.taking || self.asked > self.begun
    }

    /// Returns the outcome of this snapshot, or `None` if it is not written yet.
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

/// Formats a human-readable status.
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
