//! The file of declared events that the simple backend writes: read by its rules.

use std::path::PathBuf;

/// The words that a file begins with.
const BEGIN: [u64; 3] = [u64::MAX, 0xf2b1_77cb_0aa4_29b4, 4];
/// The id of a record that tells how many are missing.
const DROPPED: u64 = 0xffff_ffff_ffff_fffe;
/// Bytes of an event's record before its arguments.
const EVENT_BYTES: usize = 32;

/// A file, and how many events belong there.
#[derive(Clone, Debug)]
pub struct SimpleFile {
    /// Where it is.
    pub path: PathBuf,
    /// Declared events that fired while it was written.
    pub fired: u64,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Events.
    pub events: u64,
    /// Events that are missing, as the file tells.
    pub dropped: u64,
}

impl SimpleFile {
    /// Panics if it is no whole file, or lacks an event without telling. `filtered`
    /// points may be missing, as nobody wanted them. A relay can add events.
    pub fn check(&self, filtered: u64, relays: u32) {
        let bytes = std::fs::read(&self.path).expect("it was written");
        let held = read(&bytes);
        let told = held.events + held.dropped;
        assert!(told <= self.fired || relays > 0, "{held:?} of {self:?}");
        assert!(self.fired <= told + filtered, "{held:?} of {self:?}");
    }
}

/// Reads a file to its end.
fn read(bytes: &[u8]) -> Held {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 8).unwrap_or_else(|| panic!("torn at byte {at}"));
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    };
    let half = |at: usize| word(at - 4) >> 32;
    BEGIN.iter().enumerate().for_each(|(n, begin)| assert_eq!(word(8 * n), *begin));
    let (mut at, mut held, mut names) = (24, Held::default(), Vec::new());
    while at < bytes.len() {
        let id = word(at + 8);
        at = match word(at) {
            0 => {
                let len = half(at + 16) as usize;
                let name = bytes.get(at + 20..at + 20 + len).expect("a whole name");
                assert!(name.starts_with(b"fuzz_") || name == b"guest_hypertrace");
                assert!(!names.contains(&id), "a name is told once");
                names.push(id);
                at + 20 + len
            }
            1 => {
                // From the id on.
                let len = word(at + 24) as u32 as usize;
                assert!(len >= EVENT_BYTES - 8, "byte {at}: {len} bytes");
                if id == DROPPED {
                    held.dropped += word(at + EVENT_BYTES);
                } else {
                    assert!(names.contains(&id), "byte {at}: no name was told");
                    held.events += 1;
                }
                at + 8 + len
            }
            other => panic!("byte {at}: a record of type {other}"),
        };
    }
    assert_eq!(at, bytes.len(), "torn");
    held
}
