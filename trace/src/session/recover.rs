//! Recovery: makes a separate session of the records that are still in the rings of a killed process. The new
//! session is in the folder `recovered/` of the killed session.
//!
//! Recovery does not change the killed session. The packets of the killed session show the position of each
//! ring at the last commit, and the losses that the killed process had counted. The new session has the
//! clocks and the event classes of the killed session under the same ids, so that readers take the two
//! sessions as one.
//!
//! The files may come from anywhere, so recovery checks each number before use. An impossible number is an
//! error. The error names the file and, if possible, the byte.

use super::config::{Destination, SessionConfig};
use super::create::host_rings;
use super::engine::Engine;
use super::error::SessionError;
use super::handle::Session;
use super::summary::Summary;
use crate::ctf::files::{CTF, Description, HIDDEN, Root};
use crate::ctf::{Clocks, Domain, Folder, PacketHeader, WriteFailed, random_uuid};
use crate::drain::source::Next;
use crate::drain::{Classes, Source, Stats, TraceState};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::ring::Losses;
use hypertrace_format::classes::{self, Line};
use hypertrace_format::clock::FREQUENCIES;
use hypertrace_format::error::DirectoryError;
use hypertrace_format::folder::read_at;
use hypertrace_format::limits::{
    MAX_CLASSES, MAX_CLASSES_BYTES, MAX_CLIENTS, MAX_GUEST_TSCS, MAX_HOST_STREAMS, MAX_LOST,
    MAX_SESSION_CLOCKS, MAX_SESSION_JSON,
};
use hypertrace_format::packet::{HEADER_BYTES, MAGIC};
use hypertrace_format::session_json::{
    EventJson, FILE, FORMAT, RECOVERED, SessionJson, StreamJson, VERSION,
};
use hypertrace_format::uuid;
use rustix::fs::{OFlags, Stat};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Name of the new session until it is complete.
const INCOMPLETE: &str = ".recovered";

/// Number of tries to lock a session, and the pause between two tries. Several tries are needed, because
/// another thread may fork a child process during a recovery. The child keeps the recovery's lock until the
/// child executes its program.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The state of a client's ring at the last commit of a killed process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Ring position after the last committed word.
    pub position: u64,
    /// Sequence number of the next record.
    pub sequence: u64,
    /// Token of the last holder, or 0 if there was none.
    pub token: u64,
    /// Losses of the ring's last generation that the killed process had counted. The sum of the losses is
    /// exact, but the counts of each cause may be up to a second old.
    pub lost: Losses,
}

impl Session {
    /// Makes the session `recovered/` in the directory of a session that a killed process left. The killed
    /// session must have this UUID. `take` drains the rings into the new session. Each ring begins at the
    /// position of the killed process's last [commit](Session::committed). The new session gets its name when
    /// it is complete.
    ///
    /// # Errors
    /// If the killed session does not exist, was ended or is already being recovered, if `recovered/` exists
    /// already, or if the new session cannot be written. After an error, no part of the new session is left.
    pub fn recover(
        config: SessionConfig,
        uuid: [u8; 16],
        take: impl FnOnce(&Session),
    ) -> Result<Summary, SessionError> {
        let Destination::Path(path) = &config.destination else {
            let why = "a session is recovered in its directory, by its path";
            return Err(SessionError::not_in_a_journal(why));
        };
        let not_found = || DirectoryError::unusable(path)(io::ErrorKind::NotFound.into());
        let dir = Folder::open_own(path, config.share)?.ok_or_else(not_found)?;
        // The lock is needed, because a second recovery would remove the files of this recovery.
        let lock = |tries: u32| {
            if tries > 0 {
                thread::sleep(LOCK_PAUSE);
            }
            dir.lock_alone()
        };
        if !(0..LOCK_TRIES).any(lock) {
            return Err(SessionError::not_recoverable(path, "another recovery of it is running"));
        }
        let found = look(&dir, &uuid)?;
        let target = path.join(RECOVERED);
        if dir.stat_of(RECOVERED).is_ok() {
            let why = "it exists: the session was recovered before. To recover the session again, move this \
                       directory away";
            return Err(SessionError::not_recoverable(&target, why));
        }
        // A killed recovery has taken no record out of the rings, so the incomplete session of an earlier
        // recovery can be removed.
        remove(&dir);
        let made = dir.create(INCOMPLETE).map_err(WriteFailed::on("create", &target));
        let recovered = made.map_err(SessionError::from).and_then(|folder| {
            let session = Session::begin_recovered(config, folder, found)?;
            take(&session);
            let failed = session.engine().failed.take();
            let summary = failed.map_or_else(|| session.finish(), |failed| Err(failed.into()))?;
            dir.rename(INCOMPLETE, RECOVERED).map_err(WriteFailed::on("create", &target))?;
            Ok(summary)
        });
        recovered.inspect_err(|_| remove(&dir))
    }

    fn begin_recovered(
        mut config: SessionConfig,
        folder: Folder,
        found: KilledSession,
    ) -> Result<Session, SessionError> {
        let clocks = Clocks::restore(&found.json, found.epoch)
            .ok_or_else(|| SessionError::not_recoverable(folder.path(), "it has no clocks"))?;
        let rings = host_rings(&config, RingMode::Discard, clocks.host.frequency)?;
        let uuid = random_uuid();
        let mut state = TraceState::new(Root::Directory(folder.clone()), uuid, clocks);
        config.apply(&mut state);
        state.trace.completes = Some(found.json.uuid.clone());
        state.trace.origin.clone_from(&found.json.origin);
        state.trace.served = found.json.served;
        let parent = found.json.trace_parent.as_deref();
        state.trace.trace_parent = parent.and_then(|text| text.parse().ok());
        state.classes = Classes::recovered(&found.events).ok_or_else(|| {
            let why = "the event classes in its classes.jsonl are damaged";
            SessionError::not_recoverable(folder.path(), why)
        })?;
        folder.create(HIDDEN).map_err(WriteFailed::on("create", folder.path()))?;
        state.begin_trace(folder, uuid)?;
        let mut engine = Engine::new(state, &rings, config.relays, None);
        engine.recover(found);
        Ok(Session::with(engine, rings, RingMode::Discard, None))
    }
}

/// Removes an incomplete new session.
fn remove(dir: &Folder) {
    if let Ok(folder) = dir.folder(INCOMPLETE) {
        let _ = folder.remove_all().and_then(|()| dir.remove_empty(INCOMPLETE));
    }
}

/// One stream, with facts from the stream's files.
#[derive(Debug)]
struct FoundStream {
    /// The last packet of the stream's last file.
    last: PacketHeader,
    /// For each epoch, the number of lost events in all files of the stream.
    lost: BTreeMap<u32, u64>,
}

/// A session that a killed process left.
#[derive(Debug)]
pub(crate) struct KilledSession {
    json: SessionJson,
    events: Vec<EventJson>,
    streams: BTreeMap<(u32, u32), FoundStream>,
    /// The latest epoch of any packet.
    epoch: u32,
}

/// Looks at a directory, which must hold a session of this UUID that was not ended.
fn look(dir: &Folder, uuid: &[u8; 16]) -> Result<KilledSession, SessionError> {
    let path = dir.path();
    let wrong = |why: &str| SessionError::not_recoverable(path, why);
    let failed = DirectoryError::unusable(path);
    let mut json: SessionJson = serde_json::from_slice(&read(dir, FILE, MAX_SESSION_JSON)?)
        .map_err(|e| wrong(&format!("its {FILE}: {e}")))?;
    if json.format != FORMAT || json.version != VERSION {
        return Err(wrong("its session.json is of another format"));
    }
    if json.uuid != uuid::text(u128::from_be_bytes(*uuid)) {
        return Err(wrong("its UUID differs: it is not the session of these programs"));
    }
    if json.finished {
        return Err(wrong("its session was ended: there is nothing to recover"));
    }
    let text = read(dir, classes::FILE, MAX_CLASSES_BYTES)?;
    let mut events = Vec::new();
    for (at, line) in classes::lines(&text) {
        match line {
            Ok(Line::Event(event)) => events.push(event),
            Ok(Line::Clock(clock)) if clock.id as usize == json.clocks.len() => {
                json.clocks.push(clock)
            }
            Ok(Line::Clock(_)) => {}
            Err(e) => return Err(wrong(&format!("its classes.jsonl at byte {at}: {e}"))),
        }
    }
    check(&json, &events).map_err(|why| wrong(&format!("its description is damaged: {why}")))?;

    let ctf = dir.folder(CTF).map_err(&failed)?;
    let mut found = KilledSession { json, events, streams: BTreeMap::new(), epoch: 0 };
    for name in ctf.all_names().map_err(&failed)? {
        // A file whose name begins with a dot was still being made at the kill.
        if name == Description::Metadata.name() || name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let damaged = |why| SessionError::not_recoverable(&path.join(CTF).join(&name), why);
        let file = ctf.file(&name, OFlags::RDONLY).map_err(|why| damaged(why.to_string()))?;
        found.scan(file, uuid).map_err(damaged)?;
    }
    Ok(found)
}

/// Reads a description, which may have at most `most` bytes.
fn read(dir: &Folder, name: &str, most: u64) -> Result<Vec<u8>, SessionError> {
    let wrong = |why: String| SessionError::not_recoverable(dir.path(), why);
    let (file, stat) = match dir.file(name, OFlags::RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(wrong(format!("it holds something else than a session: it has no {name}")));
        }
        opened => opened.map_err(|e| wrong(format!("its {name}: {e}")))?,
    };
    let len = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if len > most {
        return Err(wrong(format!(
            "its {name} has {len} bytes, more than the {most} that a session can have"
        )));
    }
    let mut text = vec![0; len as usize];
    let read = read_at(&file, &mut text, 0).map_err(|e| wrong(format!("its {name}: {e}")))?;
    text.truncate(read);
    Ok(text)
}

/// Checks the numbers of a description that recovery uses.
fn check(json: &SessionJson, events: &[EventJson]) -> Result<(), String> {
    for (clock, id) in json.clocks.iter().zip(0..) {
        let domain = if id == 0 { Domain::Host } else { Domain::Guest };
        if clock.id != id || clock.domain != domain {
            return Err(format!("clock {id} is not where it belongs"));
        }
        if !FREQUENCIES.contains(&clock.frequency) {
            return Err(format!("clock {id} has a frequency of {}", clock.frequency));
        }
    }
    if let Some(boot) = &json.boot_id
        && boot.len() != 36
    {
        return Err(format!("it has a boot_id of {} bytes instead of 36", boot.len()));
    }
    for (what, count, most) in [
        ("clocks", json.clocks.len(), MAX_SESSION_CLOCKS),
        ("events", events.len(), MAX_CLASSES),
        ("TSCs of guests", json.guest_tscs.len(), MAX_GUEST_TSCS),
    ] {
        if count > most {
            return Err(format!("it has {count} {what}, and a session has at most {most}"));
        }
    }
    Ok(())
}

impl KilledSession {
    /// Reads the packets' headers of a file. Each packet must have a magic number, so the scan of a file
    /// without data ends at once. An error names the damaged byte.
    fn scan(&mut self, (file, stat): (OwnedFd, Stat), uuid: &[u8; 16]) -> Result<(), String> {
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let (mut before, mut lost) = (None, BTreeMap::new());
        let mut at = 0;
        while at < len {
            let damaged = |what: String| format!("damaged at byte {at}: {what}");
            let mut header = PacketHeader::new_zeroed();
            let read = read_at(&file, header.as_mut_bytes(), at);
            if read.map_err(|e| damaged(e.to_string()))? < HEADER_BYTES {
                return Err(damaged("a part of a packet's header".into()));
            }
            self.check(&header, before.as_ref(), (uuid, len - at)).map_err(damaged)?;
            let until = before.map_or(0, |before: PacketHeader| before.events_discarded);
            *lost.entry(header.epoch).or_default() += header.events_discarded.saturating_sub(until);
            before = Some(header);
            at = at.saturating_add(header.packet_size / 8);
        }
        let Some(last) = before else { return Ok(()) };
        self.epoch = self.epoch.max(last.epoch);
        let stream = self.streams.entry((last.domain, last.client));
        let stream = stream.or_insert(FoundStream { last, lost: BTreeMap::new() });
        for (epoch, more) in lost {
            let sum = stream.lost.entry(epoch).or_default();
            *sum = sum.saturating_add(more).min(MAX_LOST);
        }
        // Readers order packets by the same values.
        let place = |p: &PacketHeader| (p.epoch, p.faults, p.ring_end, p.sequence);
        if place(&last) >= place(&stream.last) {
            stream.last = last;
        }
        Ok(())
    }

    /// Checks a packet's header against the previous header, and against `rest`, the number of bytes from
    /// this header to the file's end.
    fn check(
        &self,
        header: &PacketHeader,
        before: Option<&PacketHeader>,
        (uuid, rest): (&[u8; 16], u64),
    ) -> Result<(), String> {
        const UNIT: u64 = HEADER_BYTES as u64 * 8;
        let PacketHeader { content_size, packet_size, stream_id, domain, client, .. } = *header;
        if header.magic != MAGIC {
            return Err("no packet begins here".into());
        }
        if header.uuid != *uuid {
            return Err("a packet of another session".into());
        }
        let whole = content_size >= UNIT
            && content_size % 8 == 0
            && content_size <= packet_size
            && packet_size % UNIT == 0
            && (content_size == UNIT || packet_size / 8 <= rest);
        if !whole {
            return Err(format!("a packet of {packet_size} bits with {content_size} of content"));
        }
        if !is_stream(domain, client) {
            return Err(format!("a packet of client {client} in domain {domain}"));
        }
        let clocks = self.json.clocks.len();
        if stream_id as usize >= clocks || (domain == Domain::Host as u32 && stream_id != 0) {
            return Err(format!("a packet of clock {stream_id} of {clocks}"));
        }
        let same =
            |b: &PacketHeader| (b.stream_id, b.domain, b.client) == (stream_id, domain, client);
        if before.is_some_and(|before| !same(before)) {
            return Err("a packet of another stream".into());
        }
        match header.events_discarded {
            0..=MAX_LOST => Ok(()),
            n => Err(format!("no stream has {n} lost events")),
        }
    }

    /// Returns the clients that have streams.
    pub fn guests(&self) -> impl Iterator<Item = u32> {
        let guest = Domain::Guest as u32;
        let own = self.streams.keys().filter(move |(domain, _)| *domain == guest);
        own.map(|(_, client)| *client)
    }

    /// Returns the number of unattached events that the killed process had counted, and sets the number to
    /// zero.
    pub fn take_unattached(&mut self) -> u64 {
        std::mem::take(&mut self.json.lost_unattached)
    }

    /// Prepares a source so that it continues at the end of its stream in the killed session.
    pub fn begin(&self, source: &mut Source, stats: &mut Stats) {
        let Some(FoundStream { last, .. }) = self.stream(source.domain, source.number) else {
            return;
        };
        source.clock = Some(last.stream_id);
        stats.clock = last.stream_id;
        source.earlier = Some(last.lease_token);
        let (sequence, position) = (last.sequence, last.ring_end);
        source.next = Next { sequence, position, ..Next::default() };
        if let Some(said) = self.said(source.domain, source.number) {
            stats.name.clone_from(&said.name);
        }
    }

    fn stream(&self, domain: Domain, number: u32) -> Option<&FoundStream> {
        self.streams.get(&(domain as u32, number))
    }

    fn said(&self, domain: Domain, number: u32) -> Option<&StreamJson> {
        self.json.streams.iter().find(|said| (said.domain, said.client) == (domain, number))
    }

    /// Returns the state of a ring at the last commit.
    pub fn committed(&self, domain: Domain, number: u32) -> Committed {
        let said = self.said(domain, number).map(StreamJson::causes).unwrap_or_default();
        // If the ring has no stream file, only `session.json` has the counts.
        let Some(FoundStream { last, lost }) = self.stream(domain, number) else {
            return Committed { lost: said, ..Committed::default() };
        };
        let mut left = lost.get(&last.epoch).copied().unwrap_or(0);
        let [busy, unattached, overwritten] =
            [said.busy, said.unattached, said.overwritten].map(|said| {
                let part = said.min(left);
                left -= part;
                part
            });
        let lost = Losses { full: left, busy, unattached, overwritten };
        let (position, sequence, token) = (last.ring_end, last.sequence, last.lease_token);
        Committed { position, sequence, token, lost }
    }
}

/// Returns true if a session can have a stream with this domain and number.
pub(crate) fn is_stream(domain: u32, number: u32) -> bool {
    let guest = domain == Domain::Guest as u32 && number < MAX_CLIENTS;
    guest || domain == Domain::Host as u32 && number < MAX_HOST_STREAMS
}
