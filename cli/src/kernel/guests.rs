//! The guests' kernels' recordings in a session: they arrive as events, and become files.

use crate::interrupt::Interrupts;
use crate::output::say;
use anyhow::Context;
use hypertrace_format::error::error_chain;
use hypertrace_kernel::{Assembly, Error, PIECE, Piece};
use hypertrace_timeline::{ClockMaps, Domain, KernelTrace, Record, Session, Stream, ValueRef};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the events that a guest's `record --guest` makes of its recording's pieces.
const PIECE_EVENT: &str = "guest_kernel";

/// Name of the reference points that it makes for its clock, and of the events after them.
const CLOCK_EVENT: &str = "guest_kernel_clock";

/// Most recordings of a lease: any program of the guest can send some, and root's recorder has a lease of its own.
const MOST_OF_LEASE: usize = 4;

/// Most recordings of a session: an equal number of each client that sends some, one at least.
const MOST: usize = 1024;

/// Returns whether an event of this name only carries a guest's recording, whose own events are shown.
pub fn is_carrier(name: &str) -> bool {
    [PIECE_EVENT, CLOCK_EVENT].contains(&name)
}

/// Opens the recordings of guests' kernels that have ended in a session with this index. Reports why others are not
/// `shown`.
pub fn open(number: usize, session: &Session, maps: &ClockMaps, shown: &str) -> Vec<KernelTrace> {
    if !session.classes().iter().any(|class| *class.name == *PIECE_EVENT) {
        return Vec::new();
    }
    // A signal ends the command when the folder is removed.
    let interrupts = Interrupts::catch();
    // Readers change nothing in a session, which may be another user's. The open files outlive the folder.
    let place = std::env::var_os("TMPDIR").map_or(PathBuf::from("/var/tmp"), PathBuf::from);
    let folder = tempfile::Builder::new().prefix("hypertrace-").tempdir_in(&place);
    let folder =
        match folder.with_context(|| format!("cannot make a folder in {}", place.display())) {
            Ok(folder) => folder,
            Err(why) => {
                complain(session, shown, &format_args!("{why:#}; TMPDIR can name another one"));
                return Vec::new();
            }
        };
    let without_folder = |text: &str| text.replace(&format!("{}/", folder.path().display()), "");
    let mut traces = Vec::new();
    for made in assemble(session, folder.path(), shown) {
        if made.has_losses {
            say(format_args!("a guest's kernel: {}", without_folder(&made.line)));
        }
        match KernelTrace::of_guest(number, session, maps, &made.path) {
            Ok(trace) => traces.push(trace),
            Err(why) => complain(session, shown, &without_folder(&error_chain(&why))),
        }
    }
    drop(folder);
    interrupts.end();
    traces
}

/// The file of a recording.
#[derive(Debug)]
pub struct Made {
    pub path: PathBuf,
    /// What is in it.
    pub line: String,
    has_losses: bool,
}

/// Makes the files of the recordings in a folder, at most [`MOST`]. Reports why others are not `shown`.
pub fn assemble(session: &Session, folder: &Path, shown: &str) -> Vec<Made> {
    let streams = session.streams().iter().filter(|stream| stream.domain == Domain::Guest);
    let senders: Vec<&Stream> = streams.filter(|stream| has_pieces(session, stream)).collect();
    let most = (MOST / senders.len().max(1)).max(1);
    let mut all = Vec::new();
    let mut left_out = LeftOut::default();
    // After a signal, nothing is read.
    for stream in senders {
        let (ended, made, left_out) = (0, Vec::new(), &mut left_out);
        let mut client = Client { session, shown, most, ended, made, left_out };
        if let Err(why) = client.assemble(stream, folder) {
            complain(session, shown, &error_chain(&why));
        }
        all.append(&mut client.made);
    }
    if left_out.undescribed {
        complain(session, shown, &"the guest has not described them");
    }
    if left_out.unended {
        say(format_args!(
            "{}: a guest's kernel is still being recorded: its events are not {shown} yet",
            session.dir().display()
        ));
    }
    if left_out.beyond {
        complain(
            session,
            shown,
            &format_args!("there are more than {most} recordings of a client"),
        );
    }
    all
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

/// Why recordings have no file: each is said once, however many there are.
#[derive(Default)]
struct LeftOut {
    undescribed: bool,
    unended: bool,
    beyond: bool,
}

/// The recordings of a client.
struct Client<'a> {
    session: &'a Session,
    shown: &'a str,
    /// Most recordings of it, and those that were put together.
    most: usize,
    ended: usize,
    made: Vec<Made>,
    left_out: &'a mut LeftOut,
}

impl Client<'_> {
    /// Makes the files of the recordings.
    fn assemble(&mut self, stream: &Stream, folder: &Path) -> Result<(), Error> {
        // By clock and number.
        let mut found: BTreeMap<(u32, u64), Assembly> = BTreeMap::new();
        let mut lease = None;
        let mut records = stream.records(self.session.classes());
        let mut bytes = Vec::with_capacity(PIECE);
        // The command that shows the session reports damage.
        while Interrupts::came().is_none()
            && let Ok(Some(record)) = records.read()
        {
            if *record.class.name != *PIECE_EVENT {
                continue;
            }
            let Some((recording, file, at)) = piece(&record, &mut bytes) else { continue };
            let (clock, token) = (record.packet.stream_id, record.packet.lease_token);
            if lease.is_some_and(|lease| lease != token) {
                self.finish(std::mem::take(&mut found))?;
            }
            lease = Some(token);
            let key = (clock, recording);
            if !found.contains_key(&key) {
                // Only one at a time is being described: one without descriptions before another has none.
                let mut undescribed = Vec::new();
                for (key, assembly) in &mut found {
                    if !assembly.is_described()? {
                        undescribed.push(*key);
                    }
                }
                undescribed.iter().for_each(|key| drop(found.remove(key)));
                if found.len() == MOST_OF_LEASE {
                    continue;
                }
                if self.ended + found.len() >= self.most {
                    self.left_out.beyond = true;
                    continue;
                }
                let client = stream.client;
                let name =
                    format!("guest-kernel-{clock}-{client}-{token:016x}-{recording:016x}.dat");
                found.insert(key, Assembly::new(folder, &name));
            }
            if let Some(assembly) = found.get_mut(&key) {
                assembly.add(&Piece::new(recording, file, at, &bytes))?;
            }
        }
        self.finish(found)
    }

    /// Makes the files of the recordings that have ended.
    fn finish(&mut self, found: BTreeMap<(u32, u64), Assembly>) -> Result<(), Error> {
        let json = self.session.json();
        for ((clock, _), mut assembly) in found {
            self.ended += usize::from(assembly.is_described()?);
            if !assembly.is_ended() && !json.finished {
                self.left_out.unended = true;
                assembly.discard()?;
                continue;
            }
            let frequency = json.clock(clock).map_or(1_000_000_000, |clock| clock.frequency);
            match assembly.finish(clock, frequency.max(1)) {
                Ok(Some(summary)) => self.made.push(Made {
                    line: super::line(&summary, None),
                    has_losses: summary.lost() > 0
                        || !summary.losses_known
                        || !summary.damage.is_empty(),
                    path: summary.path,
                }),
                Ok(None) => self.left_out.undescribed = true,
                // Those of the other recordings are.
                Err(why) => complain(self.session, self.shown, &error_chain(&why)),
            }
        }
        Ok(())
    }
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
