// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sessions made byte by byte, without the project's writer. These sessions decide what a reader must accept,
//! and what a reader must refuse.

use crate::trace_dat::TraceDat;
use std::path::{Path, PathBuf};

pub const UUID: [u8; 16] = [0xa5; 16];
pub const UUID_TEXT: &str = "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5";
/// Unix time at tick 0 of the host's clock.
pub const START_NS: i64 = 1_700_000_000_000_000_000;
pub const GHZ: u64 = 1_000_000_000;
/// Raw ticks at tick 0 of the guest's clock.
pub const GUEST_BASE: u64 = 5_000;

/// Dense ids of [`EVENTS`].
pub const DISK_READ: u32 = 16;
pub const OPENED: u32 = 17;
pub const CHECKPOINT_POINT: u32 = 18;
pub const VCPU_EXIT: u32 = 19;
pub const ALL_TYPES: u32 = 20;
pub const EVENTS: &str = r#"[
    {"id":16,"schema":"disk_read(lba:u64,len:u32)","reference_point":false},
    {"id":17,"schema":"opened(name:str)","reference_point":false},
    {"id":18,"schema":"checkpoint(n:u64)","reference_point":true},
    {"id":19,"schema":"vcpu_exit(reason:u32)","reference_point":false},
    {"id":20,"schema":"all(a:u8,b:i8,c:f64,d:bool,e:x64,s:str,w:[u64])","reference_point":false}
]"#;

/// Schema of the event that carries a piece of a guest's recording.
pub const PIECE: &str = "guest_kernel(recording:u64,file:str,at:u64,len:u32,data:[u64])";

/// Adds the event [`PIECE`] with this id to other events.
pub fn with_pieces(events: &str, id: u32) -> String {
    let piece = format!(r#",{{"id":{id},"schema":"{PIECE}","reference_point":false}}]"#);
    events.trim_end().strip_suffix(']').unwrap().to_owned() + &piece
}

pub fn clock(id: u32, domain: &str, epoch: u32, frequency: u64, base: u64, offset: i64) -> String {
    format!(
        r#"{{"id":{id},"domain":"{domain}","kind":"tsc","epoch":{epoch},"frequency":{frequency},
            "base":{base},"offset_ns":{offset},"host_frequency":{GHZ}}}"#
    )
}

pub fn clocks() -> String {
    let host = clock(0, "host", 0, GHZ, 1_000_000, START_NS);
    let guest = clock(1, "guest", 0, GHZ, GUEST_BASE, START_NS);
    format!("[{host},{guest}]")
}

/// Returns all descriptions in a single text, for [`Made::with_json`].
pub fn json(clocks: &str, events: &str, streams: &str) -> String {
    format!(
        r#"{{"format":"hypertrace-session","version":2,"uuid":"{UUID_TEXT}",
            "started_unix_ns":{START_NS},"clocks":{clocks},"events":{events},
            "streams":{streams},"device":{{"bad_width":3}},"finished":true}}"#
    )
}

/// Boots of two machines, as in `/proc/sys/kernel/random/boot_id`.
pub const BOOT: &str = "36d00ed1-e68a-4dcf-9f57-8bb3a1fed66d";
pub const OTHER_BOOT: &str = "00000000-e68a-4dcf-9f57-8bb3a1fed66d";

/// Adds the boot to a session.json.
pub fn with_boot(json: &str, boot: Option<&str>) -> String {
    match boot {
        Some(boot) => json.replacen("\"clocks\"", &format!("\"boot_id\":\"{boot}\",\"clocks\""), 1),
        None => json.to_owned(),
    }
}

/// Takes the list `events` out of a JSON text. Returns the rest, and a line for each event.
fn split(json: &str) -> (String, String) {
    let key = "\"events\":[";
    let Some(begin) = json.find(key) else { return (json.to_owned(), String::new()) };
    let list = &json[begin + key.len()..];
    let (mut depth, mut is_text, mut is_escaped) = (0, false, false);
    let mut lines = String::new();
    for (at, c) in list.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_text = !is_text,
            _ if is_text => {}
            '{' => depth += 1,
            '}' => depth -= 1,
            ']' if depth == 0 => {
                let rest = list[at + 1..].trim_start_matches(',');
                return (format!("{}{rest}", &json[..begin]), lines);
            }
            _ => {}
        }
        match (c, depth) {
            ('{', 1) if !is_text => lines += "{\"event\":{",
            ('}', 0) if !is_text => lines += "}}\n",
            (_, 1..) if c != '\n' => lines.push(c),
            _ => {}
        }
    }
    (json.to_owned(), String::new())
}

/// A session's directory.
pub struct Made {
    pub dir: tempfile::TempDir,
}

impl Made {
    /// Makes a session with the usual clocks and events.
    pub fn new() -> Made {
        Made::with_json(&json(&clocks(), EVENTS, "[]"))
    }

    /// Makes a session with the usual clocks and events, and with this boot.
    pub fn of_boot(boot: Option<&str>) -> Made {
        Made::with_json(&with_boot(&json(&clocks(), EVENTS, "[]"), boot))
    }

    /// Makes a session of programs, with these kinds of events.
    pub fn of_programs(events: &str) -> Made {
        let json = json(&clocks(), events, "[]");
        Made::with_json(&json.replacen("\"clocks\"", "\"programs\":true,\"clocks\"", 1))
    }

    /// Makes a session with this `session.json`. The list `events` in `session.json` is written to
    /// `classes.jsonl`.
    pub fn with_json(json: &str) -> Made {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("ctf")).unwrap();
        std::fs::write(dir.path().join("ctf/metadata"), "/* CTF 1.8 */").unwrap();
        let made = Made { dir };
        made.describe(json);
        made
    }

    /// Writes `session.json` and `classes.jsonl` from the text `json`, which has the form that
    /// [`Made::with_json`] takes.
    pub fn describe(&self, json: &str) {
        let (json, lines) = split(json);
        std::fs::write(self.path().join("session.json"), json).unwrap();
        std::fs::write(self.path().join("classes.jsonl"), lines).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("ctf").join(name)
    }

    /// Adds what the VMM says about the guests' TSCs to session.json: JSON objects, separated by commas.
    pub fn tell(&self, tscs: &str) {
        let path = self.dir.path().join("session.json");
        let json = std::fs::read_to_string(&path).unwrap();
        let clocks = format!("\"guest_tscs\":[{tscs}],\"clocks\"");
        std::fs::write(path, json.replacen("\"clocks\"", &clocks, 1)).unwrap();
    }

    /// Sets the kind of the guest's clock in session.json.
    pub fn set_guest_kind(&self, kind: &str) {
        let path = self.dir.path().join("session.json");
        let json = std::fs::read_to_string(&path).unwrap();
        let described = |kind: &str| format!(r#""domain":"guest","kind":"{kind}""#);
        std::fs::write(path, json.replacen(&described("tsc"), &described(kind), 1)).unwrap();
    }

    /// Writes a kernel.dat.
    pub fn kernel(&self, trace: &TraceDat) {
        std::fs::write(self.dir.path().join("kernel.dat"), trace.version_7()).unwrap();
    }

    /// Writes a stream file of these packets.
    pub fn stream(self, name: &str, packets: &[Packet]) -> Made {
        let bytes: Vec<u8> = packets.iter().flat_map(|p| p.bytes()).collect();
        std::fs::write(self.file(name), bytes).unwrap();
        self
    }
}

impl AsRef<Path> for Made {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// A packet that is being made.
#[derive(Clone)]
pub struct Packet {
    pub header: [u8; 128],
    pub events: Vec<u8>,
    pad: usize,
}

impl Packet {
    pub fn new(domain: u32, client: u32, stream_id: u32) -> Packet {
        let mut packet = Packet { header: [0; 128], events: Vec::new(), pad: 0 };
        packet.set32(0, 0xc1fc_1fc1);
        packet.header[4..20].copy_from_slice(&UUID);
        packet.set32(20, stream_id);
        packet.set32(88, client);
        packet.set32(124, domain);
        packet
    }

    pub fn guest(client: u32) -> Packet {
        Packet::new(1, client, 1)
    }

    pub fn host(ring: u32) -> Packet {
        Packet::new(0, ring, 0)
    }

    /// Makes this packet empty, with a size of `size` bytes, so that it fills the rest of the file.
    pub fn filler(mut self, size: u64) -> Packet {
        self.set64(48, size * 8);
        self
    }

    /// Makes the packet begin where another packet ended.
    pub fn after(mut self, last: &Packet) -> Packet {
        self.set64(24, last.get64(32));
        self.set64(32, last.get64(32));
        for counter in [56, 96, 104, 112] {
            self.set64(counter, last.get64(counter));
        }
        self.set64(64, last.get64(72));
        self.set64(72, last.get64(72));
        self
    }

    pub fn set32(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn set64(&mut self, at: usize, value: u64) {
        self.header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub fn with64(mut self, at: usize, value: u64) -> Packet {
        self.set64(at, value);
        self
    }

    fn get64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.header[at..at + 8].try_into().unwrap())
    }

    pub fn event(self, ts: u64, id: u32, payload: &[u64]) -> Packet {
        self.flagged(ts, id, 0, payload, 0)
    }

    /// Adds an event whose last field is a string, after scalar words.
    pub fn event_str(self, ts: u64, id: u32, before: &[u64], text: &[u8]) -> Packet {
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(text);
        let pad = bytes.len().next_multiple_of(8) - bytes.len();
        bytes.resize(bytes.len() + pad, 0);
        let mut payload = before.to_vec();
        payload.extend(bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())));
        self.flagged(ts, id, 0, &payload, pad)
    }

    /// Adds a piece of a guest's recording, as an event [`PIECE`] with this id. A piece is a file's bytes
    /// from an offset on.
    pub fn piece(self, (ts, id): (u64, u32), (file, at): (&str, u64), bytes: &[u8]) -> Packet {
        let words = |bytes: &[u8]| -> Vec<u64> {
            let word =
                |part: &[u8]| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            bytes.chunks(8).map(word).collect()
        };
        let name = [&(file.len() as u32).to_le_bytes()[..], file.as_bytes()].concat();
        let data = words(bytes);
        let (len, count) = (bytes.len() as u64, data.len() as u64);
        self.event(ts, id, &[&[7][..], &words(&name), &[at, len, count], &data].concat())
    }

    /// Adds a finished recording of a guest's kernel, as events [`PIECE`] from a time on.
    pub fn recording(self, at: (u64, u32), kernel: &TraceDat) -> Packet {
        self.pieces(at, &pieces(kernel))
    }

    /// Adds pieces of a guest's recording, as events [`PIECE`] from a time on.
    pub fn pieces(self, (ts, id): (u64, u32), pieces: &[Piece]) -> Packet {
        (ts..).zip(pieces).fold(self, |packet, (now, (name, at, bytes))| {
            packet.piece((now, id), (name, *at), bytes)
        })
    }

    pub fn flagged(mut self, ts: u64, id: u32, flags: u16, payload: &[u64], pad: usize) -> Packet {
        if self.events.is_empty() && self.get64(24) == self.get64(32) {
            self.set64(24, ts);
        }
        self.set64(32, ts);
        self.events.extend(ts.to_le_bytes());
        self.events.extend(id.to_le_bytes());
        self.events.extend((payload.len() as u16).to_le_bytes());
        self.events.extend(flags.to_le_bytes());
        self.events.extend(payload.iter().flat_map(|w| w.to_le_bytes()));
        self.pad = pad;
        let end = self.get64(72);
        self.set64(72, end + 2 + payload.len() as u64);
        self
    }

    /// Adds a reference point of a client, with the guest's raw time.
    pub fn point(self, ts: u64, client: u32, seq: u32, guest_raw: u64, n: u64) -> Packet {
        let payload = [client.into(), 0, seq.into(), guest_raw, n];
        self.flagged(ts, CHECKPOINT_POINT, 1, &payload, 0)
    }

    pub fn lease(self, ts: u64, token: u64, name: &str) -> Packet {
        self.with64(80, token).event_str(ts, 1, &[token, 42, 43, 0], name.as_bytes())
    }

    /// Returns the packet's bytes in a file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        bytes.extend_from_slice(&self.events);
        let content = bytes.len() - self.pad;
        bytes.resize(bytes.len().next_multiple_of(128), 0);
        if self.get64(40) == 0 {
            bytes[40..48].copy_from_slice(&(content as u64 * 8).to_le_bytes());
        }
        if self.get64(48) == 0 {
            let size = bytes.len() as u64 * 8;
            bytes[48..56].copy_from_slice(&size.to_le_bytes());
        }
        bytes
    }
}

/// A piece of a file of a guest's recording: the file's name, the offset in the file, and the bytes.
pub type Piece = (String, u64, Vec<u8>);

/// Returns the pieces of a finished recording of a guest's kernel. An option 9 with the text `stolen_ms=N`
/// gives the kernel's count of stolen time.
pub fn pieces(kernel: &TraceDat) -> Vec<Piece> {
    let counted = kernel.options.iter().find_map(|(id, text)| {
        let text = std::str::from_utf8(text).ok().filter(|_| *id == 9)?;
        text.strip_prefix("stolen_ms=")
    });
    let stolen = |ms: &str| counted.map_or(String::new(), |_| format!(r#","stolen_ms":{ms}"#));
    let cpus = Vec::from_iter((0..kernel.cpus.len()).map(|cpu| cpu.to_string()));
    let description = format!(
        r#"{{"version":1,"source":"tracefs","owner":"hypertrace.1.2.3","boot_id":"{OTHER_BOOT}",
            "trace_id":4096,"page_size":4096,"cpus":[{}],"names":"","system":"Linux guest 6.1.0 x86_64"{}}}"#,
        cpus.join(","),
        stolen("0")
    );
    // Each gap with a stored count stands for 9 lost events.
    let commit = |page: &[u8]| u64::from_le_bytes(page[8..16].try_into().unwrap());
    let is_stored = |page: &[u8]| commit(page) & 1 << 30 != 0;
    let stat = |(cpu, pages): (&String, &Vec<u8>)| {
        let lost = 9 * pages.chunks(4096).filter(|page| is_stored(page)).count();
        format!(r#"{{"cpu":{cpu},"text":"overrun: {lost}"}}"#)
    };
    let stats = Vec::from_iter(cpus.iter().zip(&kernel.cpus).map(stat)).join(",");
    let end = format!(r#"{{"stats":[{stats}],"names":""{}}}"#, stolen(counted.unwrap_or_default()));
    // A page is sent without the bytes after its last event.
    let used = |page: &[u8]| {
        let count = if is_stored(page) { 8 } else { 0 };
        page[..16 + (commit(page) & 0xf_ffff) as usize + count].to_vec()
    };
    let mut parts = vec![("head".to_owned(), 0, kernel.head())];
    parts.push(("recording.json".into(), 0, description.into()));
    for (cpu, pages) in cpus.iter().zip(&kernel.cpus) {
        let pages = (0..).step_by(4096).zip(pages.chunks(4096));
        parts.extend(pages.map(|(at, page)| (format!("cpu{cpu}"), at, used(page))));
    }
    parts.push(("end.json".into(), 0, end.into()));
    let pieces = |(name, start, part): (String, u64, Vec<u8>)| {
        let pieces = (start..).step_by(1024).zip(part.chunks(1024));
        Vec::from_iter(pieces.map(|(at, piece)| (name.clone(), at, piece.to_vec())))
    };
    parts.into_iter().flat_map(pieces).collect()
}
