//! A flight recorder: rings overwrite their oldest records, and what they hold
//! is written as a session of its own when somebody asks: a snapshot.

use crate::folder::Folder;
use crate::stream::WriteFailed;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// Snapshots whose outcome is kept, for who asked.
const KEPT: usize = 64;

/// Why there is no snapshot.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The session writes all the time.
    #[error(
        "this session is no flight recorder: the VMM makes one with \
         SessionConfig {{ output: Output::Snapshots, .. }}"
    )]
    NotARecorder,
    /// The drain loop has not come.
    #[error("nobody has drained the rings for 10 s: is the drain loop running?")]
    NobodyDrains,
    /// The session ended before.
    #[error("the session has ended")]
    Ended,
    /// It could not be written. What was is whole.
    #[error(transparent)]
    Write(Arc<WriteFailed>),
}

/// What became of a snapshot: its directory.
pub(crate) type Outcome = Result<PathBuf, SnapshotError>;

/// Which snapshots were asked for, and what became of them.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Where they go.
    root: Folder,
    /// The last one that was begun.
    begun: u64,
    /// The last one that somebody asked for.
    asked: u64,
    /// One is being written.
    pub taking: bool,
    /// A write of it that failed.
    pub failed: Option<WriteFailed>,
    outcomes: VecDeque<(u64, Outcome)>,
}

impl Recorder {
    pub fn new(root: Folder) -> Recorder {
        Recorder {
            root,
            begun: 0,
            asked: 0,
            taking: false,
            failed: None,
            outcomes: VecDeque::new(),
        }
    }

    /// Asks for a snapshot; gives its number. Who asks before it begins gets
    /// the same.
    pub fn ask(&mut self) -> u64 {
        self.asked = self.begun + 1;
        self.asked
    }

    /// Begins what was asked for: makes its directory.
    pub fn begin(&mut self) -> Option<Result<Folder, WriteFailed>> {
        if self.taking || self.asked <= self.begun {
            return None;
        }
        self.begun += 1;
        self.taking = true;
        self.failed = None;
        let made = self.root.create(&name(self.begun));
        Some(made.map_err(WriteFailed::on("create", &self.dir(self.begun))))
    }

    /// It is written, or cannot be.
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

    /// What became of this one; `None` if it is not written yet.
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
        write!(f, "flight recorder: {}, {} snapshots", self.root.path().display(), self.begun)
    }
}
