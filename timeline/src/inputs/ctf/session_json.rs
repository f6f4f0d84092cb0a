// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads and checks `session.json` and `classes.jsonl`, with bounds on their sizes. The writer defines the
//! types.

use super::packet::Domain;
use crate::error::{Error, Result};
use crate::inputs::regular::{Opened, not_regular, open, open_stream, read_at};
use hypertrace_abi::event::cut;
use hypertrace_abi::ring::MAX_NAME_BYTES;
use hypertrace_format::classes::{self, Line};
use hypertrace_format::limits::{
    MAX_CLASSES, MAX_CLASSES_BYTES, MAX_GUEST_TSCS, MAX_SESSION_CLOCKS, MAX_SESSION_JSON,
    MAX_STREAMS,
};
pub use hypertrace_format::session_json::{
    ClockJson as Clock, EventJson, FILE, GuestTsc, RECOVERED, StreamJson,
};
use hypertrace_format::session_json::{FORMAT, MAX_TSC_SHIFT, SessionJson as Whole, VERSION};
use hypertrace_format::uuid;
use serde::de::{Expected, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of counters of a device, and of kinds of faults of a stream.
const MAX_COUNTERS: usize = 4096;
/// Members that are checked before all other members.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u64,
}

/// Lists whose lengths are checked before the whole file is parsed.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only read, to be counted")]
struct Lengths {
    clocks: AtMost<IgnoredAny, MAX_SESSION_CLOCKS>,
    #[serde(default)]
    streams: AtMost<StreamLengths, MAX_STREAMS>,
    #[serde(default)]
    guest_tscs: AtMost<IgnoredAny, MAX_GUEST_TSCS>,
    #[serde(default)]
    device: AtMost<IgnoredAny, MAX_COUNTERS>,
}

#[derive(Default, Deserialize)]
#[expect(dead_code, reason = "only read, to be counted")]
struct StreamLengths {
    #[serde(default)]
    faults: AtMost<IgnoredAny, MAX_COUNTERS>,
}

/// A list or a map of at most `N` elements.
#[derive(Default)]
struct AtMost<T, const N: usize>(PhantomData<T>);

impl<T, const N: usize> AtMost<T, N> {
    /// Counts the elements that `next` reads.
    fn count<E: serde::de::Error>(
        self,
        mut next: impl FnMut() -> std::result::Result<bool, E>,
    ) -> std::result::Result<Self, E>
    where
        Self: Expected,
    {
        let mut count = 0;
        while next()? {
            if count == N {
                return Err(E::invalid_length(N + 1, &self));
            }
            count += 1;
        }
        Ok(self)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for AtMost<T, N> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Self, A::Error> {
        self.count(|| Ok(seq.next_element::<T>()?.is_some()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self, A::Error> {
        self.count(|| Ok(map.next_entry::<IgnoredAny, T>()?.is_some()))
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for AtMost<T, N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        d.deserialize_any(AtMost(PhantomData))
    }
}

/// The checked description of a session.
#[derive(Clone, Debug)]
pub struct SessionJson {
    /// UUID of the trace.
    pub uuid: [u8; 16],
    /// ID of the host's boot. `None` if the boot is unknown.
    pub boot_id: Option<u128>,
    /// Event classes except the reserved ones.
    pub events: Vec<EventJson>,
    whole: Whole,
    /// Clocks in `classes.jsonl`.
    later: Vec<Clock>,
    /// Size of the part of `classes.jsonl` that was read, in bytes.
    read: u64,
    /// Identity of the `session.json` that was read.
    identity: Identity,
    /// Contents of `recovered/`. The clocks, classes and counts of `recovered/` are included in the fields
    /// above.
    recovered: Option<Recovered>,
}

/// Data that was recovered after the session's process was killed.
#[derive(Clone, Debug)]
struct Recovered {
    uuid: [u8; 16],
    /// Streams with the counts of the killed process. `own` has the streams with the counts of the recovery.
    killed: Vec<StreamJson>,
    own: Vec<StreamJson>,
}

/// Inode of a file, and the time of its last change in seconds and nanoseconds.
type Identity = (u64, i64, i64);

fn identity(found: &Metadata) -> Identity {
    (found.ino(), found.mtime(), found.mtime_nsec())
}

/// Gives access to the members of `session.json` in the writer's type. `clocks` includes the clocks from
/// `classes.jsonl`.
impl Deref for SessionJson {
    type Target = Whole;

    fn deref(&self) -> &Whole {
        &self.whole
    }
}

impl SessionJson {
    /// Reads and checks the files in a session's directory, and in its `recovered/` if there is one.
    ///
    /// # Errors
    /// If there is no `session.json`, the file is not from hypertrace, or a file breaks a rule.
    pub fn read(dir: &Path) -> Result<SessionJson> {
        let mut json = SessionJson::read_own(dir)?;
        let path = dir.join(RECOVERED);
        match std::fs::symlink_metadata(&path) {
            // A session that has ended needs no recovery, so `recovered/` is ignored.
            _ if json.finished => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            found => json.add_recovered(dir, &path, &found.map_err(Error::io(&path))?)?,
        }
        Ok(json)
    }

    fn read_own(dir: &Path) -> Result<SessionJson> {
        let mut json = SessionJson::read_json(dir)?;
        json.read_classes(dir)?;
        Ok(json)
    }

    /// Adds what was recovered. The recovered part must have all clocks and classes of the session with the
    /// same ids, and may have further clocks and classes.
    fn add_recovered(&mut self, dir: &Path, path: &Path, found: &Metadata) -> Result<()> {
        let wrong = |why: &str| {
            let why = format!("{why}; to read {} without it, move it away", dir.display());
            Error::NotASession { path: path.to_owned(), why }
        };
        if !found.is_dir() || !path.join(FILE).exists() {
            return Err(wrong("it is not the directory of what was recovered"));
        }
        if found.uid() != std::fs::metadata(dir).map_err(Error::io(dir))?.uid() {
            return Err(wrong("it belongs to another user than the session"));
        }
        let SessionJson { uuid, events, whole, .. } = SessionJson::read_own(path)?;
        if whole.completes.as_deref().and_then(uuid::parse) != Some(u128::from_be_bytes(self.uuid))
        {
            return Err(wrong("it was recovered for another session"));
        }
        if !whole.finished {
            return Err(wrong("its recovery was not finished"));
        }
        let map = |clock: &Clock| (clock.domain, clock.epoch, clock.frequency, clock.base);
        let has =
            |clock: &Clock| whole.clocks.iter().any(|c| c.id == clock.id && map(c) == map(clock));
        if !self.clocks.iter().all(has) || !events.starts_with(&self.events) {
            return Err(wrong("it has other clocks or event classes than the session"));
        }
        self.events = events;
        let known: BTreeSet<u32> = self.clocks.iter().map(|clock| clock.id).collect();
        self.whole.clocks.extend(whole.clocks.into_iter().filter(|c| !known.contains(&c.id)));
        let killed = self.whole.streams.clone();
        for own in &whole.streams {
            let is_same = |s: &&mut StreamJson| (s.domain, s.client) == (own.domain, own.client);
            match self.whole.streams.iter_mut().find(is_same) {
                Some(stream) => stream.add(own),
                None => self.whole.streams.push(own.clone()),
            }
        }
        self.whole.lost_unattached = self.lost_unattached.saturating_add(whole.lost_unattached);
        self.whole.finished = true;
        self.recovered = Some(Recovered { uuid, killed, own: whole.streams });
        Ok(())
    }

    /// Returns whether packets of this UUID belong to the session.
    pub(crate) fn has_uuid(&self, uuid: &[u8; 16]) -> bool {
        *uuid == self.uuid || self.recovered.as_ref().is_some_and(|r| r.uuid == *uuid)
    }

    /// Returns the folders with stream files.
    pub(crate) fn folders(&self, dir: &Path) -> Vec<PathBuf> {
        let recovered = self.recovered.as_ref().map(|_| dir.join(RECOVERED));
        [dir.to_owned()].into_iter().chain(recovered).collect()
    }

    /// Returns the streams without files. The losses of such streams stand only in the descriptions.
    /// `has_files` is called with the UUID of the packets, the domain and the client.
    pub(crate) fn without_files<'a>(
        &'a self,
        has_files: &dyn Fn(&[u8; 16], Domain, u32) -> bool,
    ) -> Vec<&'a StreamJson> {
        let described = match &self.recovered {
            None => vec![(&self.uuid, &self.whole.streams)],
            Some(r) => vec![(&self.uuid, &r.killed), (&r.uuid, &r.own)],
        };
        let all = described.into_iter().flat_map(|(uuid, all)| all.iter().map(move |s| (uuid, s)));
        all.filter(|(uuid, s)| !has_files(uuid, s.domain, s.client)).map(|(_, s)| s).collect()
    }

    /// Reads `session.json` again if the file was replaced. Keeps the data from `classes.jsonl`.
    ///
    /// # Errors
    /// As [`SessionJson::read`].
    pub(crate) fn read_again(&mut self, dir: &Path) -> Result<()> {
        let found = std::fs::metadata(dir.join(FILE));
        if self.recovered.is_some() || found.is_ok_and(|found| identity(&found) == self.identity) {
            return Ok(());
        }
        let SessionJson { uuid, boot_id, whole, identity, .. } = SessionJson::read_json(dir)?;
        (self.uuid, self.boot_id, self.whole, self.identity) = (uuid, boot_id, whole, identity);
        self.add_later(dir)
    }

    /// Reads the lines that the writer has appended to `classes.jsonl`. The writer appends a class or a clock
    /// before the first packet that needs the class or clock.
    ///
    /// # Errors
    /// As [`SessionJson::read`].
    pub(crate) fn read_classes(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(classes::FILE);
        let Opened { file, len } = open_stream(&path)?;
        if len > MAX_CLASSES_BYTES {
            let most = format!("at most {MAX_CLASSES_BYTES} bytes");
            return Err(Error::damaged(&path, 0, most, format!("{len} bytes")));
        }
        let mut text = vec![0; len.saturating_sub(self.read) as usize];
        let read = read_at(&file, &mut text, self.read).map_err(Error::io(&path))?;
        text.truncate(classes::whole(&text[..read]));
        for (at, line) in classes::lines(&text) {
            let wrong = |found: String| {
                let expected = "a line with an event class or a clock";
                Error::damaged(&path, self.read + at as u64, expected, found)
            };
            match line.map_err(|why| wrong(why.to_string()))? {
                Line::Event(_) if self.events.len() >= MAX_CLASSES => {
                    return Err(wrong(format!("more than {MAX_CLASSES} event classes")));
                }
                Line::Clock(_) if self.later.len() >= MAX_SESSION_CLOCKS => {
                    return Err(wrong(format!("more than {MAX_SESSION_CLOCKS} clocks")));
                }
                Line::Event(event) => self.events.push(event),
                Line::Clock(clock) => self.later.push(clock),
            }
        }
        self.read += text.len() as u64;
        self.add_later(dir)
    }

    /// Adds the clocks of `classes.jsonl` that are missing in `session.json`.
    fn add_later(&mut self, dir: &Path) -> Result<()> {
        for clock in &self.later {
            if self.whole.clocks.iter().all(|known| known.id != clock.id) {
                self.whole.clocks.push(clock.clone());
            }
        }
        let path = dir.join(classes::FILE);
        check_clocks(&self.whole.clocks).map_err(Error::description(&path))
    }

    fn read_json(dir: &Path) -> Result<SessionJson> {
        let path = dir.join(FILE);
        let wrong = Error::description(&path);
        let Opened { file, len } = open(&path).map_err(|why| match not_regular(&why) {
            Some(found) => wrong(format!("expected a regular file, found {found}")),
            None => missing(dir, &path, why),
        })?;
        if len > MAX_SESSION_JSON {
            return Err(wrong(format!(
                "{len} bytes are too many for the description of a session, which has at most \
                 {MAX_SESSION_JSON}"
            )));
        }
        let identity = identity(&file.metadata().map_err(Error::io(&path))?);
        let mut text = vec![0; len as usize];
        let read = read_at(&file, &mut text, 0).map_err(Error::io(&path))?;
        text.truncate(read);
        // The format and version are checked first, because the rest of a newer version may differ.
        let kind: Kind = serde_json::from_slice(&text).map_err(|error| match error.is_eof() {
            true => wrong(format!(
                "cut after {read} bytes; without it, babeltrace2 can still read {}",
                dir.join("ctf").display()
            )),
            false => wrong(format!("not the description of a hypertrace session: {error}")),
        })?;
        if kind.format != FORMAT {
            return Err(wrong(format!(
                "expected format {FORMAT:?}, found {:?}: not a hypertrace session",
                kind.format
            )));
        }
        if kind.version != u64::from(VERSION) {
            return Err(wrong(format!(
                "expected version {VERSION}, found {}: written by another hypertrace; use that \
                 one's report",
                kind.version
            )));
        }
        serde_json::from_slice::<Lengths>(&text).map_err(|e| wrong(e.to_string()))?;
        let mut whole: Whole = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        for stream in &mut whole.streams {
            // The name is cut to the writer's maximum size, because each event is shown with the name.
            stream.name.truncate(cut(&stream.name, MAX_NAME_BYTES).len());
        }
        let uuid = uuid::parse(&whole.uuid).map(u128::to_be_bytes).ok_or_else(|| {
            wrong(format!("expected a uuid of the form 8-4-4-4-12, found {:?}", whole.uuid))
        })?;
        let boot_id = whole.boot_id.as_deref().map(|text| {
            uuid::parse(text).ok_or_else(|| {
                wrong(format!("expected a boot_id of the form 8-4-4-4-12, found {text:?}"))
            })
        });
        check_clocks(&whole.clocks).map_err(&wrong)?;
        if let Some(said) = whole.guest_tscs.iter().find(|said| !said.tsc.is_possible()) {
            let GuestTsc { multiplier, shift, .. } = said.tsc;
            return Err(wrong(format!(
                "expected a TSC of a guest with a multiplier of at least 1 and a shift of at most \
                 {MAX_TSC_SHIFT}, found {multiplier} and {shift}"
            )));
        }
        Ok(SessionJson {
            uuid,
            boot_id: boot_id.transpose()?,
            events: Vec::new(),
            whole,
            later: Vec::new(),
            read: 0,
            identity,
            recovered: None,
        })
    }

    /// Returns the names of the traced side and of the host's side: `guest` and `vmm`, or `program` and
    /// `host` if there is no VMM.
    pub fn sides(&self) -> [&'static str; 2] {
        if self.programs { ["program", "host"] } else { ["guest", "vmm"] }
    }

    /// Returns the clock with this id.
    pub fn clock(&self, id: u32) -> Option<&Clock> {
        self.clocks.iter().find(|c| c.id == id)
    }

    /// Returns the number of events of all streams, including reference points, as the writer counted them.
    pub(crate) fn events(&self) -> u64 {
        let counts = self.streams.iter().flat_map(|s| [s.events, s.reference_points]);
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the description of a stream.
    pub fn stream(&self, domain: Domain, client: u32) -> Option<&StreamJson> {
        self.streams.iter().find(|s| s.domain == domain && s.client == client)
    }
}

fn check_clocks(clocks: &[Clock]) -> std::result::Result<(), String> {
    let mut ids = BTreeSet::new();
    for clock in clocks {
        let id = clock.id;
        if !ids.insert(id) {
            return Err(format!("clock {id} stands twice"));
        }
        for (name, hz) in [("frequency", clock.frequency), ("host_frequency", clock.host_frequency)]
        {
            if !(1_000..=1_000_000_000_000).contains(&hz) {
                return Err(format!("clock {id}: expected a {name} of 10^3 to 10^12, found {hz}"));
            }
        }
    }
    if !clocks.iter().any(|c| c.domain == Domain::Host) {
        return Err("expected a clock of the host, found none".into());
    }
    Ok(())
}

/// Returns the error for a `session.json` that cannot be opened. The error says what the path refers to.
fn missing(dir: &Path, path: &Path, source: io::Error) -> Error {
    let not_a_session = |why: &str| Error::NotASession { path: dir.to_owned(), why: why.into() };
    if !dir.exists() && source.kind() == io::ErrorKind::NotFound {
        return not_a_session("no such directory; give the one that holds the session");
    }
    if dir.metadata().is_ok_and(|m| !m.is_dir()) {
        return not_a_session(
            "not a directory; give the directory of a session, which holds session.json",
        );
    }
    if source.kind() != io::ErrorKind::NotFound {
        return Error::io(path)(source);
    }
    if dir.parent().is_some_and(|up| up.join(FILE).is_file()) {
        return not_a_session("part of a session; give the directory above it");
    }
    if dir.join("metadata").is_file() || dir.join("ctf/metadata").is_file() {
        return not_a_session(
            "a CTF trace without session.json: not a hypertrace session; other readers of CTF, \
             such as babeltrace2, may open it",
        );
    }
    not_a_session("no session.json in it: not a hypertrace session")
}
