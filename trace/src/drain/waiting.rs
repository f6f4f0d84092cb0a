//! Waiting: why reference points stay in their ring until a later pass.
//!
//! A point waits for the schema text that it needs, which the drain has
//! had no time to read. The wait is bounded, so that one client cannot hold up others.

/// Passes in which a client's points wait for texts of its log that there was no
/// time to read. A client that keeps its log full for longer has its points
/// recorded untyped: other clients' points are in the same host ring. A host ring
/// does not wait more often than this either, however many clients' logs are full
/// in turns, until all of it has been taken.
const MOST_WAITS: u32 = 16;

/// Records that a drain left in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rest {
    /// None.
    #[default]
    Empty,
    /// Some, which the next call may take.
    Ready,
    /// Some, and the first of them waits for a later pass.
    Waits,
}

/// State of a look at a client's schema log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// All of it was read, or there is none.
    Read,
    /// As much was read as one call may read; more is there.
    InPart,
    /// The client was given no time, or it wrote on while the log was read.
    Growing,
}

/// State of a source whose records wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Records that the last drain left in the ring.
    pub rest: Rest,
    /// Of a client: passes since all of its schema log was read.
    unread: u32,
    /// Of a host ring: looks at a point that waited for its text, since the ring
    /// was last empty.
    points: u32,
}

/// State of the waits of all sources in this pass.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// The guests' schema logs were not read since the host rings were noted:
    /// a point of which nothing is known waits for the next pass.
    pub is_partial: bool,
    /// Clients whose schema logs there was no time to read: the same for their
    /// points.
    unread: u32,
    /// No producer runs any more, so that no guest can ask for more.
    pub is_last: bool,
}

impl Waiting {
    /// Notes the state of the client's schema log, here and in the pass.
    pub fn log(&mut self, pass: &mut Pass, log: Log) {
        let before = self.is_unread();
        self.unread = match log {
            Log::Read => 0,
            Log::InPart => self.unread.max(1),
            Log::Growing => self.unread.saturating_add(1),
        };
        pass.unread = pass.unread + u32::from(self.is_unread()) - u32::from(before);
    }

    /// Returns whether the client's points wait for texts that were not read.
    fn is_unread(&self) -> bool {
        (1..=MOST_WAITS).contains(&self.unread)
    }

    /// Forgets what was not read: nothing more is read that a point could wait for.
    pub fn stop(&mut self) {
        self.unread = 0;
    }

    /// Returns whether a point of this host ring waits if its text is not known.
    pub fn points_wait(&self, pass: &Pass) -> bool {
        pass.is_partial || !pass.is_last && pass.unread > 0 && self.points < MOST_WAITS
    }

    /// Notes whether a packet ended at a point that waits for its text, or else whether
    /// the ring has more.
    pub fn looked(&mut self, waits: bool, more: bool) {
        self.points = match waits {
            true => self.points.saturating_add(1),
            _ if more => self.points,
            _ => 0,
        };
    }
}

impl Pass {
    /// Returns whether some client's log is to be read on.
    pub fn waits(&self) -> bool {
        self.unread > 0
    }

    /// Forgets the clients whose logs were not read.
    pub fn stop(&mut self) {
        self.unread = 0;
    }
}
