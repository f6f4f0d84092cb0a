//! Makes a session of a journal.
//!
//! A VMM that can open no file writes its session as a journal to a descriptor
//! ([`Destination::Journal`](crate::Destination)). [`receive`] carries out the operations of the journal's
//! frames in a directory, one frame after the other. So readers can read the directory as a session even
//! before the journal ends.
//!
//! A hostile guest may have taken over the VMM that writes the journal. So a journal can only cause
//! operations of a session: files have names of streams in one directory, each packet follows the last packet
//! of its file, and sizes and numbers are bounded. The receiver checks a whole frame before it carries out
//! the frame's operation. If a journal is cut or damaged, the directory keeps the session that the earlier
//! frames made.
//!
//! The receiver does not check the contents of packets and descriptions, because readers of a session do not
//! trust these contents.

use crate::ctf::files::{Description, FileId, Files, HIDDEN, clear};
use crate::ctf::journal::frame::{
    FrameHeader, HEADER_BYTES as FRAME_BYTES, KEEP, Kind, LARGEST, MAGIC, MAX_FILE_BYTES,
    MAX_PACKET_BYTES, VERSION, sum,
};
use crate::ctf::{Domain, PacketHeader, Share, WriteFailed};
use crate::session::{SessionError, default_open_files, is_stream, prepare};
use hypertrace_format::error::BadInput;
use hypertrace_format::folder::is_bad_path;
use hypertrace_format::limits::{MAX_CLASSES_BYTES, MAX_METADATA, MAX_SESSION_JSON};
use hypertrace_format::packet::{HEADER_BYTES, MAGIC as PACKET_MAGIC};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use zerocopy::FromBytes;

/// Maximum number of stream files of a session. If these files have the default size, they take 4 TiB.
pub const MAX_FILES: usize = 1 << 16;

/// Size of a packet's header in bytes.
const UNIT: u64 = HEADER_BYTES as u64;

/// Counts of a journal that was read to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Number of frames, including the last frame.
    pub frames: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Number of stream files that were created.
    pub files: usize,
}

/// Error of reading a journal. The directory has the session that the frames before the error made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] SessionError),
    /// A file of the session cannot be written.
    #[error(transparent)]
    Write(#[from] WriteFailed),
    /// The journal cannot be read.
    #[error("cannot read the journal at byte {at}")]
    Read {
        /// Offset of the frame in the journal.
        at: u64,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The journal ends after a whole frame, but without the end of its session. The writer was killed.
    #[error("the journal ends at byte {at} without the end of its session")]
    Unfinished {
        /// Size of the journal in bytes.
        at: u64,
    },
    /// The input is no journal, or is a damaged journal, or has an operation that no session has.
    #[error("the journal is damaged at byte {at}: {what}")]
    Damaged {
        /// Offset of the frame in the journal.
        at: u64,
        /// Fault of the frame.
        what: String,
    },
}

impl BadInput for ReceiveError {
    fn is_bad_input(&self) -> bool {
        match self {
            ReceiveError::Directory(why) => why.is_bad_input(),
            ReceiveError::Damaged { .. } => true,
            ReceiveError::Read { source, .. } => is_bad_path(source),
            ReceiveError::Write(_) | ReceiveError::Unfinished { .. } => false,
        }
    }
}

/// Reads a journal to its end, and carries out the journal's operations in the directory `dir`. The directory
/// must be empty or not exist. `share` says which users may read the files.
///
/// # Errors
/// If the directory cannot be used or written, or the journal cannot be read to its end. If the journal does
/// not begin with the description of a session, the call leaves no file in the directory.
pub fn receive(
    journal: &mut impl Read,
    dir: &Path,
    share: Share,
) -> Result<Received, ReceiveError> {
    let dir = prepare(dir, None, share)?;
    let files = Files::open(&dir, HIDDEN, default_open_files())?;
    let mut session =
        Receiver { files, is_begun: false, streams: BTreeMap::new(), payload: Vec::new() };
    let mut done = Received::default();
    let received = session.receive(journal, &mut done);
    if !session.is_begun {
        clear(&dir);
    }
    done.files = session.streams.len();
    received.map(|()| done)
}

/// A stream file that takes packets.
#[derive(Debug)]
struct StreamFile {
    id: FileId,
    len: u64,
    /// Offset of the file's filler.
    at: u64,
}

/// The reason why a frame was not carried out: the frame is wrong, or a write failed.
enum Fault {
    Frame(String),
    Write(WriteFailed),
}

impl From<WriteFailed> for Fault {
    fn from(failed: WriteFailed) -> Fault {
        Fault::Write(failed)
    }
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Frame(what.into()))
}

struct Receiver {
    files: Files,
    /// True if all descriptions exist. In this case, the trace's folder has its final name.
    is_begun: bool,
    /// Stream files by name. `None` stands for a file that was closed.
    streams: BTreeMap<String, Option<StreamFile>>,
    payload: Vec<u8>,
}

impl Receiver {
    fn receive(
        &mut self,
        journal: &mut impl Read,
        done: &mut Received,
    ) -> Result<(), ReceiveError> {
        loop {
            let at = done.bytes;
            let failed = |source| ReceiveError::Read { at, source };
            let damaged = |what| ReceiveError::Damaged { at, what };
            self.payload.clear();
            let unread = journal.take(FRAME_BYTES as u64).read_to_end(&mut self.payload);
            let header = match unread.map_err(failed)? {
                0 => return Err(ReceiveError::Unfinished { at }),
                FRAME_BYTES => FrameHeader::read_from_bytes(&self.payload),
                n => return Err(damaged(format!("it is cut after {n} bytes of a frame's header"))),
            };
            let Ok(header) = header else { return Err(damaged("it has no header".into())) };
            let kind = check(&header, done.frames).map_err(damaged)?;

            self.payload.clear();
            let length = u64::from(header.length);
            let read = journal.take(length).read_to_end(&mut self.payload).map_err(failed)?;
            if read as u64 != length {
                let what = format!("it is cut after {read} of {length} bytes of a frame's payload");
                return Err(damaged(what));
            }
            if sum(&self.payload) != header.payload_sum {
                return Err(damaged("a frame's payload does not match its checksum".into()));
            }
            self.apply(kind, &header).map_err(|fault| match fault {
                Fault::Frame(what) => damaged(what),
                Fault::Write(failed) => failed.into(),
            })?;
            done.bytes += FRAME_BYTES as u64 + length;
            done.frames += 1;
            if kind == Kind::End {
                return Ok(());
            }
        }
    }

    fn apply(&mut self, kind: Kind, header: &FrameHeader) -> Result<(), Fault> {
        let name = header.name().unwrap_or("?");
        if let Kind::Replace | Kind::Append = kind {
            return self.describe(kind, name, header.at);
        }
        let Receiver { files, streams, payload, .. } = self;
        let is_of_stream = matches!(kind, Kind::Create | Kind::Write | Kind::Close);
        if is_of_stream && !is_stream_name(name) || !is_of_stream && !name.is_empty() {
            return wrong("its name is not one of a stream's file");
        }
        if !self.is_begun {
            return wrong("it does not begin with all descriptions");
        }
        match kind {
            Kind::Replace | Kind::Append | Kind::End => {}
            Kind::Create => {
                if streams.len() >= MAX_FILES || streams.contains_key(name) {
                    return wrong(format!(
                        "the file {name} was created before, or is one too many"
                    ));
                }
                let stream = create(files, name, header.at, payload)?;
                streams.insert(name.to_owned(), Some(stream));
            }
            Kind::Write => match streams.get_mut(name) {
                Some(Some(stream)) => write(files, stream, header.at, payload)?,
                _ => return wrong(format!("there is no open file {name}")),
            },
            Kind::Close => {
                let Some(stream) = streams.get_mut(name).and_then(Option::take) else {
                    return wrong(format!("there is no open file {name}"));
                };
                let end = match header.at {
                    KEEP => None,
                    at if at == stream.at => Some(at),
                    at => return wrong(format!("{name} cannot be cut to {at} bytes")),
                };
                files
                    .close(&stream.id, end)
                    .map_err(WriteFailed::on("shorten", &files.path(name)))?;
            }
        }
        Ok(())
    }

    /// Replaces a file that describes the session, or appends to it at offset `at`. As soon as all
    /// descriptions exist, gives the trace's folder its final name.
    fn describe(&mut self, kind: Kind, name: &str, at: u64) -> Result<(), Fault> {
        let Some(what) = Description::ALL.into_iter().find(|what| what.name() == name) else {
            return wrong("its name is not one of a description");
        };
        let most = match what {
            Description::Session => MAX_SESSION_JSON,
            Description::Classes => MAX_CLASSES_BYTES,
            Description::Metadata => MAX_METADATA,
        };
        let Receiver { files, payload, .. } = self;
        let before = if kind == Kind::Append { files.len(what) } else { 0 };
        let len = before + payload.len() as u64;
        if len > most || at != before {
            return wrong(format!("{name} cannot have {len} bytes, of them new from byte {at} on"));
        }
        if kind == Kind::Append {
            if !self.is_begun || what == Description::Session {
                return wrong(format!("nothing can be appended to {name}"));
            }
            return Ok(files.append(what, payload)?);
        }
        files.replace(what, payload)?;
        if !self.is_begun && Description::ALL.iter().all(|what| files.len(*what) > 0) {
            files.appear()?;
            self.is_begun = true;
        }
        Ok(())
    }
}

/// Checks a header without its payload, and returns the frame's operation.
fn check(header: &FrameHeader, number: u64) -> Result<Kind, String> {
    if header.magic != MAGIC {
        return Err("there is no frame of a journal".into());
    }
    if header.version != VERSION {
        return Err(format!("it has version {}, and this program reads {VERSION}", header.version));
    }
    if header.own_sum() != header.header_sum {
        return Err("a frame's header does not match its checksum".into());
    }
    if header.sequence != number {
        return Err(format!("it is frame {}, and frame {number} was expected", header.sequence));
    }
    let Some(kind) = Kind::of(header.kind) else {
        return Err(format!("there is no kind {} of frames", header.kind));
    };
    let most = match kind {
        Kind::Replace | Kind::Append => LARGEST,
        Kind::Create => 2 * HEADER_BYTES,
        Kind::Write => MAX_PACKET_BYTES + 2 * HEADER_BYTES,
        Kind::Close | Kind::End => 0,
    };
    if header.length as usize > most {
        return Err(format!("a frame of kind {kind:?} has {} bytes", header.length));
    }
    Ok(kind)
}

/// Returns true if a session can have a stream file of this name.
fn is_stream_name(name: &str) -> bool {
    let numbers = |domain: Domain| {
        let (client, number) =
            name.strip_prefix(domain.name())?.strip_prefix('-')?.split_once('-')?;
        let (client, number) = (client.parse::<u32>().ok()?, number.parse::<u32>().ok()?);
        // Any other spelling of the same numbers is refused, so that each stream file has only one name.
        let is_exact = name == format!("{}-{client:03}-{number:04}", domain.name());
        (is_exact && number < u32::MAX / 2).then_some(is_stream(domain as u32, client))
    };
    [Domain::Host, Domain::Guest].into_iter().find_map(numbers) == Some(true)
}

/// Creates a stream file.
fn create(files: &mut Files, name: &str, len: u64, head: &[u8]) -> Result<StreamFile, Fault> {
    if !len.is_multiple_of(UNIT) || !(2 * UNIT..=MAX_FILE_BYTES).contains(&len) {
        return wrong(format!("{name} cannot have {len} bytes"));
    }
    if !are_packets(head, [UNIT, len - UNIT]) {
        return wrong(format!("{name} does not begin with two packets"));
    }
    let made = files.create(name, len, head);
    let id = made.map_err(WriteFailed::on("create", &files.path(name)))?;
    Ok(StreamFile { id, len, at: UNIT })
}

/// Writes a packet and the following filler, or only a filler. The last write has the first header: the
/// header of the packet or, if there is no packet, the header of the filler. This write is the commit.
fn write(files: &mut Files, stream: &mut StreamFile, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    let name = &stream.id.name;
    let length = bytes.len() as u64;
    let left = stream.len - stream.at;
    let is_packet = length > UNIT;
    // The bytes end with the header of a filler, so the file always has room for a filler.
    if at != stream.at || length < UNIT || !length.is_multiple_of(UNIT) || length > left {
        return wrong(format!("{length} bytes cannot be written to {name} at byte {at}"));
    }
    let packet = length - UNIT;
    let (header, body) = bytes.split_at(HEADER_BYTES);
    let is_whole = match is_packet {
        true => are_packets(bytes, [packet, left - packet]),
        false => are_packets(bytes, [left]),
    };
    if !is_whole {
        return wrong(format!("no packet for {name} at byte {at}"));
    }
    let failed =
        |files: &Files, source| WriteFailed { action: "write", path: files.path(name), source };
    files.write(&stream.id, body, at + UNIT).map_err(|why| failed(files, why))?;
    files.write(&stream.id, header, at).map_err(|why| failed(files, why))?;
    stream.at += packet;
    Ok(())
}

/// Returns true if the bytes begin with the header of a packet and end with the header of a filler: the
/// packet has the first size of `sizes`, and the filler has the last size. If `sizes` has only one size, both
/// headers are the same header.
fn are_packets<const N: usize>(bytes: &[u8], sizes: [u64; N]) -> bool {
    let first = PacketHeader::read_from_prefix(bytes).map(|(header, _)| header);
    let last = PacketHeader::read_from_suffix(bytes).map(|(_, header)| header);
    let (Ok(first), Ok(last)) = (first, last) else { return false };
    let is_one = |header: &PacketHeader, size: u64| {
        header.magic == PACKET_MAGIC
            && header.packet_size == size * 8
            && (UNIT * 8..=size * 8).contains(&header.content_size)
    };
    let is_filler = last.content_size == UNIT * 8;
    sizes.first().is_some_and(|size| is_one(&first, *size))
        && sizes.last().is_some_and(|size| is_one(&last, *size))
        && is_filler
}
