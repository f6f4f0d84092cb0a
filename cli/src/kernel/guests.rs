//! The guests' kernels' recordings in a session: they arrive as events, and become files.

use crate::interrupt::Interrupts;
use crate::output::say;
use crate::temporary::Temporary;
use hypertrace_export::choice::PIECE_EVENT;
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::Folder;
use hypertrace_kernel::{Error, GuestRecordings, PIECE, Piece};
use hypertrace_timeline::{
    Domain, KernelTrace, Record, Recording, Session, Stream, UnreadPart, ValueRef,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Opens the recordings of guests' kernels that have ended in a session with this index, without times. Reports why others
/// are not `shown`.
pub fn open(number: usize, session: &Session, shown: &str) -> Vec<KernelTrace> {
    if !session.classes().iter().any(|class| *class.name == *PIECE_EVENT) {
        return Vec::new();
    }
    // A signal ends the command when the folder is removed.
    let interrupts = Interrupts::catch();
    // Readers change nothing in a session, which may be another user's. The open files outlive the folder.
    let place = std::env::var_os("TMPDIR").map_or(PathBuf::from("/var/tmp"), PathBuf::from);
    let folder = match Temporary::create(&place, "hypertrace-") {
        Ok(folder) => folder,
        Err(why) => {
            complain(session, shown, &format_args!("{why:#}; TMPDIR can name another one"));
            return Vec::new();
        }
    };
    let by_descriptor = folder.folder().by_descriptor();
    let mut traces = Vec::new();
    let opened = folder.folder().clone().moved(by_descriptor);
    for made in assemble(session, &opened, shown).made {
        if made.has_losses {
            say(format_args!("a guest's kernel: {}", without_folder(&made.line, &made.path)));
        }
        match KernelTrace::of_guest(number, &made.path) {
            Ok(trace) => traces.push(trace),
            Err(why) => complain(session, shown, &without_folder(&error_chain(&why), &made.path)),
        }
    }
    drop(folder);
    interrupts.end();
    traces
}

/// Reports the recordings of guests' kernels that are not `shown`, as their times are not known.
pub fn say_without_times(recording: &Recording, shown: &str) {
    for unread in recording.unread.iter().filter(|unread| unread.what == UnreadPart::Guest) {
        let (session, _) = &recording.sessions[unread.session];
        let mut why = error_chain(&unread.why);
        if let hypertrace_timeline::Error::NoGuestClock { path, .. } = &unread.why {
            why = without_folder(&why, path);
        }
        complain(session, shown, &why);
    }
}

/// Returns a text about a file with the file's name in place of its path.
fn without_folder(text: &str, path: &Path) -> String {
    let folder = path.parent().unwrap_or(Path::new(""));
    text.replace(&format!("{}/", folder.display()), "")
}

/// The file of a recording.
#[derive(Debug)]
pub struct Made {
    pub path: PathBuf,
    /// What is in it.
    pub line: String,
    has_losses: bool,
}

impl Made {
    /// Returns its name in its folder.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the path by which it is opened in the folder where it was made, whatever has that folder's path by now.
    pub fn in_folder(&self, folder: &Folder) -> PathBuf {
        folder.by_descriptor().join(self.name())
    }
}

/// The files of a session's recordings.
#[derive(Debug)]
pub struct Assembled {
    pub made: Vec<Made>,
    /// Whether no file is missing because it could not be made.
    pub is_whole: bool,
}

/// Makes the files of the recordings in a folder. Reports why others are not `shown`.
pub fn assemble(session: &Session, folder: &Folder, shown: &str) -> Assembled {
    let streams = session.streams().iter().filter(|stream| stream.domain == Domain::Guest);
    let clients: Vec<&Stream> = streams.filter(|stream| has_pieces(session, stream)).collect();
    let (mut made, mut is_whole) = (Vec::new(), true);
    let mut fail = |why: &Error| {
        is_whole = false;
        complain(session, shown, &error_chain(why));
    };
    // Each reason is said once, however many recordings it is of.
    let (mut undescribed, mut unended, mut beyond) = (false, false, None);
    for stream in &clients {
        let mut recordings =
            GuestRecordings::new(folder, stream.client, clients.len(), session.json().finished);
        if let Err(why) = add_pieces(&mut recordings, session, stream) {
            fail(&why);
        }
        let found = match recordings.finish() {
            Ok(found) => found,
            Err(why) => {
                fail(&why);
                continue;
            }
        };
        undescribed |= found.undescribed;
        unended |= found.unended;
        beyond = beyond.or(found.beyond);
        for file in found.files {
            match file {
                Ok(summary) => made.push(Made {
                    line: super::line(&summary, None),
                    has_losses: summary.asked.lost() > 0
                        || !summary.asked.losses_known
                        || !summary.damage.is_empty(),
                    path: summary.path,
                }),
                Err(why) => fail(&why),
            }
        }
    }
    if undescribed {
        complain(session, shown, &"the guest has not described them");
    }
    if unended {
        say(format_args!(
            "{}: a guest's kernel is still being recorded: its events are not {shown} yet",
            session.dir().display()
        ));
    }
    if let Some(most) = beyond {
        let why = format_args!("there are more than {most} recordings of a client");
        complain(session, shown, &why);
    }
    Assembled { made, is_whole }
}

/// Adds the pieces in a stream.
fn add_pieces(
    recordings: &mut GuestRecordings<'_>,
    session: &Session,
    stream: &Stream,
) -> Result<(), Error> {
    let mut records = stream.records(session.classes());
    let mut bytes = Vec::with_capacity(PIECE);
    // After a signal, nothing is read. The command that shows the session reports damage.
    while Interrupts::came().is_none()
        && let Ok(Some(record)) = records.read()
    {
        if *record.class.name == *PIECE_EVENT
            && let Some((recording, file, at)) = piece(&record, &mut bytes)
        {
            let piece = Piece::new(recording, file, at, &bytes);
            let clock = record.packet.stream_id;
            let frequency = session.json().clock(clock).map_or(1_000_000_000, |c| c.frequency);
            recordings.add(record.packet.lease_token, (clock, frequency), &piece)?;
        }
    }
    Ok(())
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

fn complain(session: &Session, shown: &str, why: &dyn std::fmt::Display) {
    let dir = session.dir().display();
    say(format_args!("{dir}: events of a guest's kernel are not {shown}: {why}"));
}

/// Takes a piece's bytes. Returns its recording, file and offset; `None` if it is none.
fn piece<'a>(record: &Record<'a>, bytes: &mut Vec<u8>) -> Option<(u64, &'a str, u64)> {
    let mut values = record.values();
    let (recording, file, at, len, data) =
        (values.next()?, values.next()?, values.next()?, values.next()?, values.next()?);
    let (
        ValueRef::Unsigned(recording),
        ValueRef::Str(file),
        ValueRef::Unsigned(at),
        ValueRef::Unsigned(len),
        ValueRef::Words(data),
    ) = (recording, file, at, len, data)
    else {
        return None;
    };
    bytes.clear();
    bytes.extend(data.iter().take(PIECE / 8).flat_map(|word| word.to_le_bytes()));
    bytes.truncate(usize::try_from(len).ok()?);
    Some((recording, std::str::from_utf8(file).ok()?, at))
}
