//! Tests of journals that no session writes. The receiver refuses each such journal and names the place of
//! the fault. The frames before the fault make a session that can be read.

use hypertrace_abi::event_type;
use hypertrace_trace::receive::{MAX_FILES, ReceiveError, Received, receive};
use hypertrace_trace::{Session, SessionConfig, Share};
use std::path::Path;
use tempfile::TempDir;

const HEADER: usize = 72;
const UNIT: u64 = 128;

const REPLACE: u16 = 1;
const CREATE: u16 = 2;
const WRITE: u16 = 3;
const CLOSE: u16 = 4;
const END: u16 = 5;
const APPEND: u16 = 6;

/// Returns the FNV-1a sum of 64 bits, computed word by word, as in `frame.rs`.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A forged journal.
#[derive(Clone, Default)]
struct Forged {
    bytes: Vec<u8>,
    frames: u64,
}

impl Forged {
    /// Begins a journal with all descriptions.
    fn new() -> Forged {
        Forged::default()
            .frame(REPLACE, "classes.jsonl", 0, b"{}\n")
            .frame(REPLACE, "session.json", 0, b"{}")
            .frame(REPLACE, "metadata", 0, b"/* CTF 1.8 */")
    }

    fn frame(self, kind: u16, name: &str, at: u64, payload: &[u8]) -> Forged {
        self.frame_of_length(kind, name, at, payload, payload.len() as u32)
    }

    fn frame_of_length(
        mut self,
        kind: u16,
        name: &str,
        at: u64,
        payload: &[u8],
        length: u32,
    ) -> Forged {
        let mut header = Vec::with_capacity(HEADER);
        header.extend(b"htjl");
        header.extend(2u16.to_le_bytes());
        header.extend(kind.to_le_bytes());
        header.extend(self.frames.to_le_bytes());
        header.extend(at.to_le_bytes());
        header.extend(length.to_le_bytes());
        header.extend([0; 4]);
        header.extend(name.bytes());
        header.resize(56, 0);
        header.extend(sum(payload).to_le_bytes());
        header.extend(sum(&header).to_le_bytes());
        self.bytes.extend(header);
        self.bytes.extend(payload);
        self.frames += 1;
        self
    }

    /// Creates a stream file of length `len`.
    fn file(self, name: &str, len: u64) -> Forged {
        self.frame(CREATE, name, len, &[packet(UNIT, UNIT), packet(UNIT, len - UNIT)].concat())
    }

    fn receive(&self, dir: &Path) -> Result<Received, ReceiveError> {
        receive(&mut &self.bytes[..], dir, Share::Owner)
    }

    /// Asserts that the journal's last frame, which begins at `at`, is refused. Returns the reason.
    #[track_caller]
    fn refused_at(&self, at: usize) -> String {
        let dir = TempDir::new().unwrap();
        match self.receive(dir.path()).unwrap_err() {
            ReceiveError::Damaged { at: place, what } => {
                assert_eq!(place, at as u64, "{what}");
                what
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the header of a packet.
fn packet(content: u64, size: u64) -> Vec<u8> {
    let mut header = vec![0; UNIT as usize];
    header[..4].copy_from_slice(&0xc1fc_1fc1u32.to_le_bytes());
    header[40..48].copy_from_slice(&(content * 8).to_le_bytes());
    header[48..56].copy_from_slice(&(size * 8).to_le_bytes());
    header
}

const NAME: &str = "guest-000-0000";
/// Size of the file `NAME` in bytes.
const LEN: u64 = 10 * UNIT;

#[test]
fn a_journal_as_the_document_describes_it_is_a_session() {
    let body = [packet(2 * UNIT, 2 * UNIT), vec![7; UNIT as usize], packet(UNIT, 7 * UNIT)];
    let journal = Forged::new()
        .file(NAME, LEN)
        .frame(WRITE, NAME, UNIT, &body.concat())
        .frame(WRITE, NAME, 3 * UNIT, &packet(UNIT, 7 * UNIT))
        .frame(CLOSE, NAME, 3 * UNIT, b"")
        .frame(REPLACE, "session.json", 0, b"{ }")
        .frame(APPEND, "metadata", 13, b"event")
        .frame(END, "", 0, b"");
    let dir = TempDir::new().unwrap();

    let received = journal.receive(dir.path()).unwrap();

    assert_eq!((received.frames, received.files), (10, 1));
    assert_eq!(received.bytes, journal.bytes.len() as u64);
    let file = std::fs::read(dir.path().join("ctf").join(NAME)).unwrap();
    assert_eq!(file, [packet(UNIT, UNIT), body[0].clone(), body[1].clone()].concat());
    assert_eq!(std::fs::read(dir.path().join("session.json")).unwrap(), b"{ }");
    assert_eq!(std::fs::read(dir.path().join("ctf/metadata")).unwrap(), b"/* CTF 1.8 */event");
}

#[test]
fn names_that_no_stream_has_are_refused() {
    let names = [
        "",
        "metadata",
        "../session.json",
        "/tmp/guest-000-0000",
        "guest-000-0000/..",
        ".guest-000-0000",
        "guest-0-0",
        "guest-000-00000",
        "guest-1024-0000",
        "host-2049-0000",
        "host-000-4294967295",
        "guest-+01-0000",
        "guest-000-0000-0000",
        "kernel-000-0000",
        "guest-000-0000\u{0}x",
    ];
    for name in names {
        let begun = Forged::new();
        let at = begun.bytes.len();
        let why = begun.file(name, LEN).refused_at(at);
        assert!(why.contains("name"), "{name}: {why}");
    }
}

#[test]
fn packets_that_do_not_continue_their_file_are_refused() {
    let begun = Forged::new().file(NAME, LEN);
    let whole = |size| [packet(UNIT, size), packet(UNIT, LEN - UNIT - size)].concat();
    let cases = [
        ("before the filler", 0, whole(UNIT)),
        ("after the filler's begin", 2 * UNIT, whole(UNIT)),
        ("past the end", u64::MAX - 10, whole(UNIT)),
        ("less than a header", UNIT, vec![0; 100]),
        ("no multiple of a header", UNIT, vec![0; 300]),
        ("no packets", UNIT, vec![0; 256]),
        ("no room for a filler", UNIT, vec![0; LEN as usize]),
        ("another size", UNIT, [packet(UNIT, 2 * UNIT), packet(UNIT, LEN - 2 * UNIT)].concat()),
        ("another filler", UNIT, [packet(UNIT, UNIT), packet(UNIT, UNIT)].concat()),
        ("a filler with contents", UNIT, packet(2 * UNIT, LEN - UNIT)),
        (
            "more contents than bytes",
            UNIT,
            [packet(9 * UNIT, UNIT), packet(UNIT, 8 * UNIT)].concat(),
        ),
    ];
    for (case, at, bytes) in cases {
        let why = begun.clone().frame(WRITE, NAME, at, &bytes).refused_at(begun.bytes.len());
        assert!(why.contains(NAME), "{case}: {why}");
    }
}

#[test]
fn files_that_were_created_before_or_are_closed_or_missing_are_refused() {
    let begun = Forged::new().file(NAME, LEN);
    let closed = begun.clone().frame(CLOSE, NAME, u64::MAX, b"");
    let filler = packet(UNIT, LEN - UNIT);

    let twice = begun.clone().file(NAME, LEN).refused_at(begun.bytes.len());
    let missing = begun.clone().frame(WRITE, "guest-000-0001", UNIT, &filler);
    let missing = missing.refused_at(begun.bytes.len());
    let late = closed.clone().frame(WRITE, NAME, UNIT, &filler).refused_at(closed.bytes.len());
    let again = closed.clone().file(NAME, LEN).refused_at(closed.bytes.len());
    let cut = begun.clone().frame(CLOSE, NAME, 0, b"").refused_at(begun.bytes.len());

    assert!(
        twice.contains("created before") && again.contains("created before"),
        "{twice} {again}"
    );
    assert!(missing.contains("no open file") && late.contains("no open file"), "{missing} {late}");
    assert!(cut.contains("cannot be cut to 0"), "{cut}");
}

#[test]
fn a_length_that_no_frame_has_is_refused() {
    let begun = Forged::new();
    let head = [packet(UNIT, UNIT), packet(UNIT, LEN - UNIT)].concat();
    let at = begun.bytes.len();

    for kind in [REPLACE, CREATE, WRITE, CLOSE, END, APPEND] {
        let long = begun.clone().frame_of_length(kind, "", 0, b"", u32::MAX);
        assert!(long.refused_at(at).contains("has 4294967295 bytes"));
    }
    for len in [0, 100, UNIT, LEN + 1, 1 << 41, !127] {
        let why = begun.clone().frame(CREATE, NAME, len, &head).refused_at(at);
        assert!(why.contains("cannot have"), "{why}");
    }
    let json = begun.clone().frame(REPLACE, "session.json", 0, &vec![0; 8 << 20]).refused_at(at);
    assert!(json.contains("session.json cannot have 8388608 bytes"), "{json}");
}

#[test]
fn a_journal_that_does_not_begin_with_a_description_leaves_nothing() {
    for journal in [
        Forged::default().file(NAME, LEN),
        Forged::default().frame(END, "", 0, b""),
        Forged::default().frame(REPLACE, "", 0, b"{}"),
        Forged::default().frame(APPEND, "metadata", 0, b"{}"),
        Forged { bytes: b"{\"format\": \"hypertrace-session\"}".repeat(10), frames: 0 },
    ] {
        let dir = TempDir::new().unwrap();
        let failed = journal.receive(dir.path()).unwrap_err();
        assert!(matches!(failed, ReceiveError::Damaged { at: 0, .. }), "{failed:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_journal_of_a_part_of_the_descriptions_leaves_nothing() {
    let journal = Forged::default().frame(REPLACE, "session.json", 0, b"{}").frame(END, "", 0, b"");
    let dir = TempDir::new().unwrap();
    let failed = journal.receive(dir.path()).unwrap_err();
    assert!(matches!(failed, ReceiveError::Damaged { at: 74, .. }), "{failed:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_does_not_continue_a_description_is_refused() {
    let begun = Forged::new();
    for (name, at) in [
        ("metadata", 12),
        ("metadata", 14),
        ("metadata", u64::MAX),
        ("session.json", 2),
        ("classes.jsonl", 0),
        ("guest-000-0000", 0),
        ("../metadata", 13),
    ] {
        let why = begun.clone().frame(APPEND, name, at, b"x").refused_at(begun.bytes.len());
        assert!(
            why.contains("cannot have") || why.contains("name") || why.contains("nothing can be"),
            "{why}"
        );
    }
}

#[test]
fn there_are_not_more_files_than_a_session_can_have() {
    let mut journal = Forged::new();
    for number in 0..MAX_FILES {
        let name = format!("guest-000-{number:04}");
        journal = journal.file(&name, 2 * UNIT).frame(CLOSE, &name, UNIT, b"");
    }
    let at = journal.bytes.len();
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();

    let failed = journal.file("guest-001-0000", LEN).receive(dir.path()).unwrap_err();

    match failed {
        ReceiveError::Damaged { at: place, what } => {
            assert_eq!(place, at as u64);
            assert!(what.contains("one too many"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_is_in_use_is_not_touched() {
    let dir = TempDir::new().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    session.attach("vmm");
    session.emit(event_type!("tick", n = 1u32));
    session.finish().unwrap();
    let before = std::fs::read(dir.path().join("session.json")).unwrap();

    let failed = Forged::new().receive(dir.path()).unwrap_err();

    assert!(matches!(failed, ReceiveError::Directory(_)), "{failed:?}");
    assert_eq!(std::fs::read(dir.path().join("session.json")).unwrap(), before);
}
