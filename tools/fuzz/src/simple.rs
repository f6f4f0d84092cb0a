//! A reader of the simple backend's file. The reader checks the file's format.

use std::path::PathBuf;

/// First words of a file.
const BEGIN: [u64; 3] = [u64::MAX, 0xf2b1_77cb_0aa4_29b4, 4];
/// Id of a record with the number of missing events.
const DROPPED: u64 = 0xffff_ffff_ffff_fffe;
/// Number of bytes of an event's record before the event's arguments.
const EVENT_BYTES: usize = 32;

/// A file, and the number of its events.
#[derive(Clone, Debug)]
pub struct SimpleFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of declared events that fired while the file was written.
    pub fired: u64,
}

/// Counts of a file's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of events.
    pub events: u64,
    /// Number of missing events, as the file counts them.
    pub dropped: u64,
}

impl SimpleFile {
    /// Panics if the file is incomplete, or if an event is missing and not counted. Up to `filtered` points
    /// may be missing. The file may count up to `lost` points that fired while `guest_hypertrace` was off. A
    /// relay can add events.
    pub fn check(&self, filtered: u64, lost: u64, relays: u32) {
        let bytes = std::fs::read(&self.path).expect("it was written");
        let held = read(&bytes);
        let told = held.events + held.dropped;
        let most = self.fired + lost;
        assert!(held.events <= self.fired && told <= most || relays > 0, "{held:?} of {self:?}");
        assert!(self.fired <= told + filtered, "{held:?} of {self:?}");
    }
}

/// Reads a whole file.
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
                // Length of the record, counted from the id on.
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
