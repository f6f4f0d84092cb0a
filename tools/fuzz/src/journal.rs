//! Target `journal`: whatever a journal says, the journal's reader writes only the files of a session, and
//! writes no more bytes than have arrived. The reader returns a session that can be read, or an error that
//! says where the fault is.

use crate::input::Input;
use crate::reader::read;
use hypertrace_abi::event_type;
use hypertrace_trace::ctf::journal::frame::{FrameHeader, HEADER_BYTES, KEEP, Kind};
use hypertrace_trace::receive::{ReceiveError, receive};
use hypertrace_trace::{Destination, Session, SessionConfig, Share};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum number of times that an input damages the journal.
const MAX_DAMAGE: usize = 32;

/// A frame.
#[derive(Clone)]
struct Frame {
    header: FrameHeader,
    payload: Vec<u8>,
}

/// Panics if the reader of a damaged journal panics, or writes files that do not belong to a session.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let journal = damaged(sample().to_vec(), &mut input);
    let dir = TempDir::new().expect("a directory");
    let out = dir.path().join("s");
    match receive(&mut &journal[..], &out, Share::Owner) {
        Ok(received) => assert!(received.bytes <= journal.len() as u64),
        Err(ReceiveError::Damaged { at, .. } | ReceiveError::Unfinished { at }) => {
            assert!(at <= journal.len() as u64);
        }
        Err(other) => panic!("{other:?}"),
    }
    let written = check(&out);
    // The bound is the number of bytes that arrived, plus a block of the file system for each frame.
    let frames = journal.len().div_ceil(HEADER_BYTES) as u64;
    assert!(written <= journal.len() as u64 + frames * (16 << 10), "{written} bytes");
    // The reader either reads what was received, or returns an error that names a file.
    if out.join("session.json").exists()
        && let Err(error) = read(&out)
    {
        let said = error.to_string();
        assert!(said.contains(&*out.to_string_lossy()), "names no file: {said}");
    }
}

/// Checks the names in a session's directory. Returns the number of bytes that the directory's files take on
/// the disk.
fn check(out: &Path) -> u64 {
    let entries = |dir: &Path| std::fs::read_dir(dir).expect("a folder");
    let mut written = 0;
    for entry in entries(out).map(|entry| entry.expect("an entry")) {
        let name = entry.file_name();
        assert!(
            ["session.json", "classes.jsonl", "ctf"].iter().any(|known| name == *known),
            "{name:?}"
        );
        written += entry.metadata().expect("it is there").blocks() * 512;
    }
    let ctf = out.join("ctf");
    for entry in ctf.exists().then(|| entries(&ctf)).into_iter().flatten() {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let is_stream = name.starts_with("host-") || name.starts_with("guest-");
        assert!(is_stream || name == "metadata", "{name}");
        written += entry.metadata().expect("it is there").blocks() * 512;
    }
    written
}

/// Returns the frames of a whole journal. The first call writes the journal.
fn sample() -> &'static [Frame] {
    static SAMPLE: OnceLock<Vec<Frame>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let (to, mut from) = UnixStream::pair().expect("a socket");
        from.set_nonblocking(true).expect("a socket");
        let mut config = SessionConfig::new("J");
        config.destination = Destination::Journal(to.into(), "J".into());
        (config.packet_bytes, config.file_bytes) = (40 << 10, 64 << 10);
        let session = Session::create(config).expect("a session");
        session.attach("vmm");
        let writer = session.start_writer(std::time::Duration::from_secs(60)).expect("a thread");
        for n in 0..2_000u64 {
            while !session.has_room(1, 16) {
                std::thread::yield_now();
            }
            session.emit(event_type!("tick", n, text = "some text to fill a file"));
        }
        drop(writer);
        session.finish().expect("a session");
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        frames(&bytes)
    })
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Ok((header, rest)) = FrameHeader::read_from_prefix(bytes) {
        let (payload, rest) = rest.split_at(header.length as usize);
        frames.push(Frame { header, payload: payload.to_vec() });
        bytes = rest;
    }
    frames
}

/// Damages frames as the input says, and gives most damaged frames valid checksums again.
fn damaged(mut frames: Vec<Frame>, input: &mut Input<'_>) -> Vec<u8> {
    for _ in 0..MAX_DAMAGE {
        if input.is_empty() || frames.is_empty() {
            break;
        }
        let at = input.below(frames.len());
        let other = frames[input.below(frames.len())].clone();
        let frame = &mut frames[at];
        match input.below(8) {
            0 => {
                use Kind::{Append, Close, Create, End, Replace, Write};
                let kinds = [Replace, Append, Create, Write, Close, End];
                frame.header.kind = input.pick(&kinds) as u16;
            }
            1 => {
                let near = other.header.at.wrapping_add(input.u8().into()).wrapping_sub(128);
                let any = input.value();
                frame.header.at = input.pick(&[near, any, KEEP]);
            }
            2 => frame.header.name = other.header.name,
            3 => {
                let at = input.below(frame.header.name.len());
                frame.header.name[at] = input.u8();
            }
            4 => {
                let at = usize::from(input.u16()) % frame.payload.len().max(1);
                let value = input.value().to_le_bytes();
                frame.payload.iter_mut().skip(at).zip(value).for_each(|(to, from)| *to = from);
            }
            5 => frame.payload.truncate(input.u16().into()),
            6 => frames.insert(at, other),
            _ => drop(frames.remove(at)),
        }
    }
    let is_sealed = !input.one_in(8);
    let mut bytes = Vec::new();
    for (frame, number) in frames.iter_mut().zip(0..) {
        if is_sealed {
            frame.header.sequence = number;
            frame.header.length = frame.payload.len() as u32;
            frame.header.seal(&frame.payload);
        }
        bytes.extend_from_slice(frame.header.as_bytes());
        bytes.extend_from_slice(&frame.payload);
    }
    if input.one_in(4) {
        bytes.truncate(input.u32() as usize % (bytes.len() + 1));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn a_damaged_journal_is_received_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            run(&bytes);
        }
    }

    #[test]
    fn the_undamaged_journal_is_whole() {
        let journal = damaged(sample().to_vec(), &mut Input::new(&[]));
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("s");

        let received = receive(&mut &journal[..], &out, Share::Owner).unwrap();

        assert!(received.files > 1, "{received:?}");
        assert_eq!(read(&out).unwrap(), 2_001);
    }
}
