// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The recordings of guests' kernels in a session. The events of a session hold the pieces of a recording,
//! and the reader reads the recording's pages from these events.

use super::KernelTrace;
use super::file::{Content, TraceFile};
use crate::error::{Error, Result};
use crate::inputs::ctf::{Domain, Record, Session, Stream};
use crate::inputs::regular::{Opened, open_stream, read_at};
use crate::value::ValueRef;
use hypertrace_kernel::{GuestFile, GuestRecordings, PIECE, Piece, PieceLocation, Summary};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the event that holds a piece of a guest's recording.
pub const PIECE_EVENT: &str = "guest_kernel";

/// The recording of a guest's kernel in a session. The recording has the contents of a trace.dat, but is not
/// a file.
#[derive(Debug)]
pub struct GuestKernel {
    recording: GuestFile,
    files: Arc<Files>,
}

/// The files of a stream. At most one of these files is open.
#[derive(Debug)]
struct Files {
    paths: Vec<PathBuf>,
    open: Mutex<Option<(u32, Opened)>>,
}

impl Files {
    /// Fills `bytes` with the piece that lies at a location.
    fn read(&self, bytes: &mut [u8], PieceLocation { file, at }: PieceLocation) -> Result<()> {
        let path = self.paths.get(file as usize).map_or(Path::new(""), |path| path);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &mut *open {
            Some((number, opened)) if *number == file => opened,
            other => &mut other.insert((file, open_stream(path)?)).1,
        };
        let read = read_at(&opened.file, bytes, at).map_err(Error::io(path))?;
        if read < bytes.len() {
            let expected = format!("{} bytes of an event", bytes.len());
            return Err(Error::damaged(path, at, expected, "the end of the file"));
        }
        Ok(())
    }
}

impl GuestKernel {
    /// Finds the ended recordings in a session, and gives each recording to `each`. Returns the reasons why
    /// other recordings are not read, each reason once.
    pub fn find(session: &Session, each: &mut dyn FnMut(GuestKernel)) -> Vec<Error> {
        let mut unread = Vec::new();
        if !session.classes().iter().any(|class| *class.name == *PIECE_EVENT) {
            return unread;
        }
        let streams = session.streams().iter().filter(|stream| stream.domain == Domain::Guest);
        let clients: Vec<&Stream> = streams.filter(|stream| has_pieces(session, stream)).collect();
        let (mut undescribed, mut unended, mut beyond) = (false, false, None);
        for stream in &clients {
            let has_ended = session.json().finished;
            let mut recordings = GuestRecordings::new(stream.client, clients.len(), has_ended);
            let paths = stream.segments.iter().map(|segment| segment.path.clone()).collect();
            let files = Arc::new(Files { paths, open: Mutex::new(None) });
            let mut hand_over = |all: Vec<GuestFile>| {
                for recording in all {
                    each(GuestKernel { recording, files: files.clone() });
                }
            };
            let mut records = stream.records(session.classes());
            let mut bytes = Vec::with_capacity(PIECE);
            // Damage ends the loop without an error, because the reader of the session's events reports
            // damage.
            while let Ok(Some(_)) = records.read() {
                let place = records.place();
                if let Some(record) = records.last()
                    && *record.class.name == *PIECE_EVENT
                    && let Some((piece, location)) = piece(&record, place, &mut bytes)
                {
                    let clock = record.packet.stream_id;
                    let frequency =
                        session.json().clock(clock).map_or(1_000_000_000, |c| c.frequency);
                    recordings.add(record.packet.lease_token, (clock, frequency), &piece, location);
                    hand_over(recordings.take());
                }
            }
            let found = recordings.finish();
            hand_over(found.files);
            undescribed |= found.undescribed;
            unended |= found.unended;
            beyond = beyond.or(found.beyond);
        }
        let mut note = |is_coming, why: String| unread.push(Error::GuestKernels { why, is_coming });
        if undescribed {
            note(false, "the guest has not described them".into());
        }
        if unended {
            note(true, "a guest's kernel is still being recorded".into());
        }
        if let Some((most, whose)) = beyond {
            note(false, format!("there are more than {most} recordings of {whose}"));
        }
        unread
    }

    /// Returns what the recording contains. The path in the summary is only a name. There is no file of this
    /// path.
    pub fn summary(&self) -> &Summary {
        &self.recording.summary
    }

    /// Returns a reader of the recording's bytes from the beginning. The bytes are the contents of a
    /// trace.dat.
    pub fn reader(&self) -> impl Read {
        Reader { of: self, at: 0 }
    }

    /// Opens the recording as a trace of the session with this index. The recording's events have no times
    /// until [`KernelTrace::set_guest`] gives the trace a clock.
    ///
    /// # Errors
    /// If the recording is damaged. A recording may be damaged at any time, because the guest determines its
    /// contents.
    pub fn open(self, number: usize) -> Result<KernelTrace> {
        let path = self.summary().path.clone();
        let mut file = TraceFile::open(&path, Content::Guest(self.into()))?;
        if let Content::Guest(kernel) = &mut file.content {
            kernel.recording.keep_pages();
        }
        Ok(KernelTrace { session: Some(number), ..KernelTrace::of_file(file) })
    }

    /// Returns the size of the recording in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.recording.bytes()
    }

    /// Reads from an offset of the recording into `bytes`. Returns the number of bytes that were read, which
    /// is smaller at the end of the recording.
    pub(super) fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<usize> {
        self.recording.read_at(bytes, at, |piece, location| self.files.read(piece, location))
    }
}

/// A position in a recording.
struct Reader<'a> {
    of: &'a GuestKernel,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.of.read_at(bytes, self.at).map_err(io::Error::other)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Returns whether a client has sent a piece of a recording.
fn has_pieces(session: &Session, stream: &Stream) -> bool {
    let mut records = stream.records(session.classes());
    while let Ok(Some(record)) = records.read() {
        if *record.class.name == *PIECE_EVENT {
            return true;
        }
    }
    false
}

/// Returns the piece that a record holds, and the place of the piece's bytes. Returns `None` if the record
/// holds no piece. `place` is the place of the record's payload.
fn piece<'a>(
    record: &Record<'a>,
    place: Option<(u32, u64)>,
    bytes: &'a mut Vec<u8>,
) -> Option<(Piece<'a>, PieceLocation)> {
    let mut values = record.values();
    let (recording, name, at, len, data) =
        (values.next()?, values.next()?, values.next()?, values.next()?, values.next()?);
    let (
        ValueRef::Unsigned(recording),
        ValueRef::Str(name),
        ValueRef::Unsigned(at),
        ValueRef::Unsigned(len),
        ValueRef::Array(data),
        None,
    ) = (recording, name, at, len, data, values.next())
    else {
        return None;
    };
    let (data, (file, payload)) = (data.words()?, place?);
    // The piece's bytes are the last field of the record, so these bytes end at the end of the payload.
    let location =
        PieceLocation { file, at: payload + 8 * (record.payload.len() - data.len()) as u64 };
    bytes.clear();
    bytes.extend(data.iter().take(PIECE / 8).flat_map(|word| word.to_le_bytes()));
    bytes.truncate(usize::try_from(len).ok()?);
    Some((Piece::new(recording, std::str::from_utf8(name).ok()?, at, bytes), location))
}
