//! Going on with a session that a killed process left: what its files say.
//!
//! The packets on disk are the truth about how far each ring was committed;
//! `session.json` and the metadata were replaced before the packets that need
//! them. New packets go to new files behind the old ones, which are whole.

use crate::classes::{Classes, Table};
use crate::clock::Clocks;
use crate::lane::{Lane, Stats};
use crate::metadata::Uuid;
use crate::packet::{Domain, HEADER_BYTES, MAGIC, PacketHeader};
use crate::session::SessionError;
use crate::session_json::{FILE, FORMAT, SessionJson, StreamJson, VERSION};
use hypertrace_abi::ring::{FAULT_KINDS, Fault};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zerocopy::FromBytes;

/// Where a client's ring was committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Ring position behind the last committed word.
    pub position: u64,
    /// Number of the next record.
    pub sequence: u64,
    /// The token of the last lessee, 0 if there was none.
    pub token: u64,
    /// Faults so far, by kind.
    pub faults: [u64; FAULT_KINDS],
}

/// What was found of one stream.
#[derive(Debug)]
struct FoundStream {
    /// Number behind that of its last file.
    files: u32,
    /// What its last file ends with.
    last: PacketHeader,
    /// Lost events that all of its files tell.
    told: u64,
}

/// A session as it was left.
#[derive(Debug)]
pub(crate) struct Found {
    pub json: SessionJson,
    streams: BTreeMap<(u32, u32), FoundStream>,
}

/// Looks at a directory with a session of this UUID that was not ended.
pub(crate) fn look(dir: &Path, uuid: &[u8; 16]) -> Result<Found, SessionError> {
    let wrong = |why: &str| SessionError::NotResumable { path: dir.to_owned(), why: why.into() };
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    let text = match std::fs::read(dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(wrong("it holds something else than a session"));
        }
        read => read.map_err(failed)?,
    };
    let json: SessionJson = serde_json::from_slice(&text).map_err(|e| wrong(&e.to_string()))?;
    if json.format != FORMAT || json.version != VERSION {
        return Err(wrong("its session.json is of another format"));
    }
    if json.uuid != Uuid(uuid).to_string() {
        return Err(wrong("its UUID is another's: it is not the session of these programs"));
    }
    if json.finished {
        return Err(wrong("its session was ended: there is nothing to complete"));
    }
    let mut streams = BTreeMap::<(u32, u32), FoundStream>::new();
    for entry in std::fs::read_dir(dir.join("ctf")).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.rsplit_once('-'));
        let Some(number) = number.filter(|(prefix, _)| !prefix.starts_with('.')) else { continue };
        let Ok(number) = number.1.parse::<u32>() else { continue };
        let Some(last) = last_header(&path).map_err(failed)? else { continue };
        let found = streams.entry((last.domain, last.client));
        let found = found.or_insert(FoundStream { files: 0, last, told: 0 });
        found.told = found.told.saturating_add(last.events_discarded);
        if number >= found.files {
            (found.files, found.last) = (number.saturating_add(1), last);
        }
    }
    Ok(Found { json, streams })
}

/// The last packet's header in a stream's file. In one that was being written,
/// it is the filler's, which carries all counters.
fn last_header(path: &Path) -> io::Result<Option<PacketHeader>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let (mut at, mut last) = (0, None);
    while at + HEADER_BYTES as u64 <= len {
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, at)?;
        let Ok(header) = PacketHeader::read_from_bytes(&bytes) else { break };
        let size = header.packet_size / 8;
        if header.magic != MAGIC || size < HEADER_BYTES as u64 {
            break;
        }
        last = Some(header);
        at = at.saturating_add(size);
    }
    Ok(last)
}

impl Found {
    /// The event classes, with the ids that they had, declared for all clocks.
    pub fn classes(&self, dir: &Path) -> Result<Classes, SessionError> {
        let mut classes = Classes::new();
        let clocks = self.json.clocks.len() as u32;
        let restored = self.json.events.iter().all(|event| classes.restore(event, clocks));
        restored.then_some(()).ok_or_else(|| SessionError::NotResumable {
            path: dir.to_owned(),
            why: "the event classes in its session.json are damaged".into(),
        })?;
        Ok(classes)
    }

    /// Clients that have streams.
    pub fn guests(&self) -> impl Iterator<Item = u32> {
        let guest = Domain::Guest as u32;
        self.streams.keys().filter(move |(domain, _)| *domain == guest).map(|(_, client)| *client)
    }

    /// Where the stream of a lane ended.
    pub fn resume(
        &self,
        lane: &mut Lane,
        stats: &mut Stats,
        classes: &mut Classes,
        clocks: &Clocks,
    ) {
        lane.table = Table::of_all(classes);
        let Some(found) = self.streams.get(&(lane.domain as u32, lane.number)) else { return };
        let last = &found.last;
        (lane.files, lane.told) = (found.files, found.told);
        lane.ring_end = last.ring_end;
        lane.sequence = last.sequence;
        lane.clock = Some(last.stream_id);
        lane.last = clocks.base(last.stream_id).saturating_add(last.timestamp_end);
        lane.faults_told = last.faults;
        lane.token_told = last.lease_token;
        let said = self.json.streams.iter();
        let mut said = said.filter(|s| (&*s.domain, s.client) == (lane.domain.name(), lane.number));
        if let Some(said) = said.next() {
            restore(stats, said);
        }
        stats.clock = last.stream_id;
        stats.filtered = last.events_filtered;
        // What the file tells, session.json may not know of yet.
        let known = stats.faults();
        stats.faults[Fault::Sequence as usize] += last.faults.saturating_sub(known);
    }

    /// Where the ring of a client was committed.
    pub fn committed(&self, lane: &Lane, stats: &Stats) -> Committed {
        Committed {
            position: lane.ring_end,
            sequence: lane.sequence,
            token: lane.token_told,
            faults: stats.faults,
        }
    }
}

fn restore(stats: &mut Stats, said: &StreamJson) {
    stats.name.clone_from(&said.name);
    stats.counts.events = said.events;
    stats.counts.stamps = said.stamps;
    stats.counts.reference_points = said.reference_points;
    for kind in Fault::ALL {
        stats.faults[kind as usize] = said.faults.get(kind.name()).copied().unwrap_or(0);
    }
}
