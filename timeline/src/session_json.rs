//! `session.json`: what a session says about itself.

use crate::error::{Error, Result};
use crate::file::{NotOpened, Opened, open, read_at};
use crate::packet::Domain;
use hypertrace_abi::ring::Losses;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::Path;

/// Its name in a session's directory.
pub const FILE: &str = "session.json";
const FORMAT: &str = "hypertrace-session";
const VERSION: u64 = 1;
/// Most event classes of a session: as many as its descriptions have room for.
pub const MAX_EVENTS: usize = DESCRIPTIONS / 128;
/// Most clocks of a session.
pub const MAX_CLOCKS: usize = 1024;
/// Most streams of a session: 1,024 clients, as many relays, 1,024 rings of the
/// host and one more.
pub const MAX_STREAMS: usize = 3073;
/// Most counters of a device, or of faults of a stream.
const MAX_COUNTERS: usize = 4096;
/// Bytes of the descriptions of events: 2 MiB of all guests, 16 KiB of each of
/// 1,024 clients, 8 MiB of the host.
const DESCRIPTIONS: usize = (2 << 20) + 1024 * (16 << 10) + (8 << 20);
/// Most bytes of a `session.json`: the descriptions of events, 384 bytes for each
/// clock, 1.5 KiB for each stream, 256 KiB for the rest.
pub const MAX_BYTES: u64 =
    (DESCRIPTIONS + MAX_CLOCKS * 384 + MAX_STREAMS * 1536 + (256 << 10)) as u64;

/// What must be right before the rest can be looked at.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u64,
}

#[derive(Deserialize)]
struct Whole {
    uuid: String,
    started_unix_ns: i64,
    #[serde(default)]
    programs: bool,
    #[serde(deserialize_with = "list::<_, _, MAX_CLOCKS>")]
    clocks: Vec<Clock>,
    #[serde(deserialize_with = "list::<_, _, MAX_EVENTS>")]
    events: Vec<EventJson>,
    #[serde(default, deserialize_with = "list::<_, _, MAX_STREAMS>")]
    streams: Vec<StreamJson>,
    #[serde(default)]
    lost_unattached: u64,
    #[serde(default, deserialize_with = "counters")]
    device: BTreeMap<String, u64>,
    finished: bool,
}

/// A list of at most `N`: no more are taken in than a session has.
fn list<'de, D, T, const N: usize>(d: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T, const N: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {N}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(one) = seq.next_element()? {
                if list.len() == N {
                    return Err(serde::de::Error::invalid_length(N + 1, &self));
                }
                list.push(one);
            }
            Ok(list)
        }
    }
    d.deserialize_seq(List::<T, N>(PhantomData))
}

/// Counters by name, at most [`MAX_COUNTERS`].
fn counters<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<BTreeMap<String, u64>, D::Error> {
    struct Counters;
    impl<'de> Visitor<'de> for Counters {
        type Value = BTreeMap<String, u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_COUNTERS} counters")
        }

        fn visit_map<A: MapAccess<'de>>(
            self,
            mut map: A,
        ) -> std::result::Result<BTreeMap<String, u64>, A::Error> {
            let mut counters = BTreeMap::new();
            while let Some((name, count)) = map.next_entry()? {
                if counters.len() == MAX_COUNTERS {
                    return Err(serde::de::Error::invalid_length(MAX_COUNTERS + 1, &self));
                }
                counters.insert(name, count);
            }
            Ok(counters)
        }
    }
    d.deserialize_map(Counters)
}

/// The file, checked.
#[derive(Clone, Debug)]
pub struct SessionJson {
    /// The trace's UUID.
    pub uuid: [u8; 16],
    /// When the session began.
    pub started_unix_ns: i64,
    /// Whether the guests are programs of the host itself: there is no VMM.
    pub programs: bool,
    /// Clocks; each is a stream class.
    pub clocks: Vec<Clock>,
    /// Event classes, besides the reserved ones.
    pub events: Vec<EventJson>,
    /// What the writer says of each stream.
    pub streams: Vec<StreamJson>,
    /// Events lost in processes that had no client, and so of no stream.
    pub lost_unattached: u64,
    /// Counters of the device.
    pub device: BTreeMap<String, u64>,
    /// Whether the session was ended by its owner.
    pub finished: bool,
}

/// A linear map from ticks to Unix time, and the stream class that uses it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Clock {
    /// Clock and stream class.
    pub id: u32,
    /// Whose clock.
    pub domain: Domain,
    /// `tsc` or `monotonic_raw`.
    pub kind: String,
    /// Clock epoch: it changes at restore, migration and reset.
    pub epoch: u32,
    /// Ticks per second, 10^3 to 10^12.
    pub frequency: u64,
    /// Raw ticks at tick 0 of the streams.
    pub base: u64,
    /// Unix time at the base, nanoseconds.
    pub offset_ns: i64,
    /// Ticks per second of the host's raw counter.
    pub host_frequency: u64,
}

/// An event class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EventJson {
    /// Dense id, as in the packets.
    pub id: u32,
    /// Canonical schema text.
    pub schema: String,
    /// Whether client, cpu, seq and guest time stand before the fields.
    #[serde(default)]
    pub reference_point: bool,
}

/// What the writer counted for a stream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StreamJson {
    /// Who produced it.
    pub domain: Domain,
    /// Client, or number of the host ring.
    pub client: u32,
    /// Its last lessee's name, as the guest says.
    #[serde(default)]
    pub name: String,
    /// The clock of its last packet.
    #[serde(default)]
    pub clock: u32,
    /// Lost because the ring was full.
    #[serde(default)]
    pub lost_full: u64,
    /// Lost inside an interrupted emit.
    #[serde(default)]
    pub lost_busy: u64,
    /// Lost by threads that had no client.
    #[serde(default)]
    pub lost_unattached: u64,
    /// Lost because the ring went round.
    #[serde(default)]
    pub lost_overwritten: u64,
    /// Passed the mask, and nobody wanted them.
    #[serde(default)]
    pub filtered: u64,
    /// Guest faults by kind.
    #[serde(default, deserialize_with = "counters")]
    pub faults: BTreeMap<String, u64>,
}

impl StreamJson {
    /// Lost events, all causes.
    pub fn lost(&self) -> u64 {
        self.causes().total()
    }

    /// Lost events by their causes.
    pub fn causes(&self) -> Losses {
        Losses {
            full: self.lost_full,
            busy: self.lost_busy,
            unattached: self.lost_unattached,
            overwritten: self.lost_overwritten,
        }
    }
}

impl<'de> Deserialize<'de> for Domain {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        match String::deserialize(d)?.as_str() {
            "host" => Ok(Domain::Host),
            "guest" => Ok(Domain::Guest),
            other => Err(serde::de::Error::unknown_variant(other, &["host", "guest"])),
        }
    }
}

impl SessionJson {
    /// Reads and checks the file in a session's directory.
    ///
    /// # Errors
    /// If there is none, or it is not one of ours, or breaks a rule.
    pub fn read(dir: &Path) -> Result<SessionJson> {
        let path = dir.join(FILE);
        let wrong = |why: String| Error::Description { path: path.clone(), why };
        let Opened { file, len } = open(&path).map_err(|why| match why {
            NotOpened::Kind(found) => wrong(format!("expected a regular file, found {found}")),
            NotOpened::Io(source) => missing(dir, &path, source),
        })?;
        if len > MAX_BYTES {
            return Err(wrong(format!(
                "{len} bytes are too many for the description of a session, which has at most \
                 {MAX_BYTES}"
            )));
        }
        let mut text = vec![0; len as usize];
        let read = read_at(&file, &mut text, 0).map_err(Error::io(&path))?;
        text.truncate(read);
        // First what it is: a newer version may have another shape.
        let kind: Kind = serde_json::from_slice(&text)
            .map_err(|e| wrong(format!("not the description of a hypertrace session: {e}")))?;
        if kind.format != FORMAT {
            return Err(wrong(format!(
                "expected format {FORMAT:?}, found {:?}: not a hypertrace session",
                kind.format
            )));
        }
        if kind.version != VERSION {
            return Err(wrong(format!(
                "expected version {VERSION}, found {}: written by another hypertrace; use that \
                 one's report",
                kind.version
            )));
        }
        let whole: Whole = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
        let uuid = uuid(&whole.uuid).ok_or_else(|| {
            wrong(format!("expected a uuid of the form 8-4-4-4-12, found {:?}", whole.uuid))
        })?;
        check_clocks(&whole.clocks).map_err(wrong)?;
        Ok(SessionJson {
            uuid,
            started_unix_ns: whole.started_unix_ns,
            programs: whole.programs,
            clocks: whole.clocks,
            events: whole.events,
            streams: whole.streams,
            lost_unattached: whole.lost_unattached,
            device: whole.device,
            finished: whole.finished,
        })
    }

    /// What the host's side is called: `vmm`, or `host` where there is none.
    pub fn host(&self) -> &'static str {
        if self.programs { "host" } else { "vmm" }
    }

    /// A clock by its id.
    pub fn clock(&self, id: u32) -> Option<&Clock> {
        self.clocks.iter().find(|c| c.id == id)
    }

    /// What the writer says of a stream.
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

/// What to say when `session.json` cannot be opened: what the path is instead.
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

/// 8-4-4-4-12 hexadecimal digits.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    if !groups.iter().map(|g| g.len()).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let digits = groups.concat();
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(uuid)
}
