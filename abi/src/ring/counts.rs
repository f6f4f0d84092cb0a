//! What a host counts of one producer: its faults and the events that it lost.

/// What a producer can do wrong. Each is counted; none stops the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fault {
    /// Head went backwards, or farther than the ring is large.
    Head,
    /// A record's length leaves its block or passes head.
    Length,
    /// A block's sequence number is not what its predecessors lead to.
    Sequence,
    /// A block without a lease token.
    Token,
    /// A running total of lost events went backwards or jumped.
    Losses,
    /// The schema log's counter or an entry's length cannot be.
    SchemaLog,
    /// A schema text that is not one.
    SchemaText,
    /// A schema text whose hash is not its id, or another text's id.
    SchemaHash,
    /// More schemas than the host keeps.
    SchemaTable,
    /// A record whose id has no schema.
    UnknownId,
    /// A record that is not as long as its schema says.
    Payload,
    /// A timestamp that went backwards.
    TimeBackwards,
    /// A timestamp from the future.
    TimeFuture,
}

/// Kinds of [`Fault`].
pub const FAULT_KINDS: usize = 13;

impl Fault {
    /// All, in the order of their numbers.
    pub const ALL: [Fault; FAULT_KINDS] = [
        Fault::Head,
        Fault::Length,
        Fault::Sequence,
        Fault::Token,
        Fault::Losses,
        Fault::SchemaLog,
        Fault::SchemaText,
        Fault::SchemaHash,
        Fault::SchemaTable,
        Fault::UnknownId,
        Fault::Payload,
        Fault::TimeBackwards,
        Fault::TimeFuture,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Head => "head",
            Fault::Length => "length",
            Fault::Sequence => "sequence",
            Fault::Token => "token",
            Fault::Losses => "losses",
            Fault::SchemaLog => "schema_log",
            Fault::SchemaText => "schema_text",
            Fault::SchemaHash => "schema_hash",
            Fault::SchemaTable => "schema_table",
            Fault::UnknownId => "unknown_id",
            Fault::Payload => "payload",
            Fault::TimeBackwards => "time_backwards",
            Fault::TimeFuture => "time_future",
        }
    }
}

/// Running totals of lost events, by cause. Never decreasing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Dropped by the producer: no room.
    pub full: u64,
    /// Dropped by the producer: inside an interrupted emit.
    pub busy: u64,
    /// Dropped by threads without a client, of a process that held this one.
    pub unattached: u64,
    /// Written, but gone before they were taken: overwritten, skipped because
    /// what stood before them could not be read, or left in the ring when the
    /// host could not keep them at the end.
    pub overwritten: u64,
}

impl Losses {
    /// All causes together.
    pub fn total(&self) -> u64 {
        let Losses { full, busy, unattached, overwritten } = *self;
        [busy, unattached, overwritten].into_iter().fold(full, u64::saturating_add)
    }
}

/// A running total that the guest writes: the host counts its growth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    said: u64,
    counted: u64,
}

impl Total {
    /// More than any producer can drop between two looks.
    const MOST: u64 = 1 << 48;

    /// Returns the sum of all growth so far.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Counts the growth since the last look. `false`, and nothing counted, if the word
    /// cannot be a running total.
    pub fn look(&mut self, word: u64) -> bool {
        let growth = word.wrapping_sub(self.said);
        self.said = word;
        let sane = growth < Total::MOST;
        if sane {
            self.counted = self.counted.saturating_add(growth);
        }
        sane
    }
}
