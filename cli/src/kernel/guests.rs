//! The guests' kernels' recordings in a session: they arrive as events, and become files.

use crate::output::say;
use anyhow::Result;
use hypertrace_kernel::{Assembly, Error, PIECE, Piece, is_assembled, note_assembled};
use hypertrace_timeline::{Domain, Record, Session, SessionJson, ValueRef};
use hypertrace_trace::control::error_chain;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

/// Name of the events that a guest's `record --guest` makes of its recording's pieces.
const PIECE_EVENT: &str = "guest_kernel";

/// Name of the reference points that it makes for its clock, and of the events after them.
const CLOCK_EVENT: &str = "guest_kernel_clock";

/// Most recordings of a session.
const MOST: usize = 32;

/// Returns whether an event of this name only carries a guest's recording, whose own events are shown.
pub fn is_carrier(name: &str) -> bool {
    [PIECE_EVENT, CLOCK_EVENT].contains(&name)
}

/// A recording in a session's streams.
#[derive(Debug, Default)]
struct Found {
    is_ended: bool,
    assembly: Option<Assembly>,
}

/// Makes the files of the guests' recordings that have ended, if the session has some. Reports what it
/// did; a failure is no error, as the rest of the session can be read.
pub fn complete(dir: &Path) {
    match try_complete(dir) {
        Ok(()) => {}
        Err(Error::Busy(_)) => say(format_args!(
            "{}: events of a guest's kernel are not shown: another command makes their file now; show the \
             session again",
            dir.display()
        )),
        Err(why) => say(format_args!(
            "{}: events of a guest's kernel are not shown: {}",
            dir.display(),
            error_chain(&why)
        )),
    }
}

fn try_complete(dir: &Path) -> Result<(), Error> {
    // The command that shows the session reports what is wrong with it.
    let Some(session) = with_recordings(dir) else { return Ok(()) };
    let mut found: BTreeMap<(u32, u64), Found> = BTreeMap::new();
    let mut has_more = false;
    each_piece(&session, |piece, clock| {
        let is_full = found.len() == MOST;
        match found.entry((clock, piece.recording)) {
            Entry::Vacant(_) if is_full => has_more = true,
            entry => entry.or_default().is_ended |= piece.file == "end.json",
        }
        Ok(())
    })?;
    if has_more {
        say(format_args!(
            "{}: only the first {MOST} recordings of guests' kernels are shown",
            dir.display()
        ));
    }
    let is_finished = session.json().finished;
    for (&(clock, number), recording) in &mut found {
        if recording.is_ended || is_finished {
            recording.assembly = Assembly::create(dir, clock, number)?;
        } else {
            say(format_args!(
                "{}: a guest's kernel is still being recorded: its events are not shown yet",
                dir.display()
            ));
        }
    }
    if found.values().any(|recording| recording.assembly.is_some()) {
        each_piece(&session, |piece, clock| {
            let recording = found.get_mut(&(clock, piece.recording));
            match recording.and_then(|recording| recording.assembly.as_mut()) {
                Some(assembly) => assembly.add(&piece),
                None => Ok(()),
            }
        })?;
    }
    let complain = |why: &dyn std::fmt::Display| {
        say(format_args!("{}: events of a guest's kernel are not shown: {why}", dir.display()));
    };
    let mut is_whole = is_finished && !has_more;
    for ((id, _), recording) in found {
        let Some(assembly) = recording.assembly else { continue };
        let clock = session.json().clock(id);
        let frequency = clock.map_or(1_000_000_000, |clock| clock.frequency.max(1));
        match assembly.finish(id, frequency) {
            Ok(Some(summary)) => {
                say(format_args!("a guest's kernel: {}", super::line(&summary, None)));
            }
            Ok(None) => {
                // Each command says so.
                is_whole = false;
                complain(&"the guest has not described them");
            }
            // Those of the other recordings are.
            Err(why) => {
                is_whole = false;
                complain(&error_chain(&why));
            }
        }
    }
    if is_whole { note_assembled(dir) } else { Ok(()) }
}

/// Opens a session if a recording may be in it whose file was not made. It is not read otherwise: that takes
/// as long as to show it.
fn with_recordings(dir: &Path) -> Option<Session> {
    if is_assembled(dir) {
        return None;
    }
    let name = format!("{PIECE_EVENT}(");
    let json = SessionJson::read(dir).ok()?;
    json.events
        .iter()
        .any(|event| event.schema.starts_with(&name))
        .then(|| Session::open(dir).ok())?
}

/// Passes the pieces of all recordings in a session, those of a stream in order, with the clock of their guest.
fn each_piece(
    session: &Session,
    mut pass: impl FnMut(Piece<'_>, u32) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(PIECE);
    for stream in session.streams().iter().filter(|stream| stream.domain == Domain::Guest) {
        let mut records = stream.records(session.classes());
        // The command that shows the session reports damage.
        while let Ok(Some(record)) = records.read() {
            if *record.class.name == *PIECE_EVENT
                && let Some((recording, file, at)) = piece(&record, &mut bytes)
            {
                pass(Piece::new(recording, file, at, &bytes), record.packet.stream_id)?;
            }
        }
    }
    Ok(())
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
