//! A reader of stream files' packet headers by docs/session.md, independent of the crates that write and read
//! packets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER: u64 = 128;
const MAGIC: u32 = 0xc1fc_1fc1;

/// Numbers of records in committed packets of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Records in the streams of guests' clients.
    pub guest: u64,
    /// Records in the streams of the VMM's threads.
    pub host: u64,
}

impl Committed {
    /// Returns the number of records in all streams.
    pub fn all(&self) -> u64 {
        self.guest + self.host
    }
}

/// Counts the records of all files in `DIR/ctf`; 0 if there is no such folder.
///
/// # Errors
/// If a file does not consist of packets from beginning to end.
pub fn committed(dir: &Path) -> io::Result<Committed> {
    let mut found = Committed::default();
    let entries = match std::fs::read_dir(dir.join("ctf")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let count = match name.to_string_lossy() {
            name if name.starts_with("guest-") => &mut found.guest,
            name if name.starts_with("host-") => &mut found.host,
            _ => continue,
        };
        *count += records(&File::open(entry.path())?)?;
    }
    Ok(found)
}

/// Counts the records of one file.
///
/// # Errors
/// As for [`committed`].
pub fn records_of(file: &Path) -> io::Result<u64> {
    records(&File::open(file)?)
}

fn records(file: &File) -> io::Result<u64> {
    let (mut at, mut count) = (0, 0);
    let end = file.metadata()?.len();
    while at < end {
        let mut header = [0; HEADER as usize];
        file.read_exact_at(&mut header, at)?;
        let word = |offset: usize| {
            let bytes = header[offset..offset + 8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        let (content, size) = (word(40) / 8, word(48) / 8);
        let whole = word(0) as u32 == MAGIC && (HEADER..=size).contains(&content);
        if !whole || !size.is_multiple_of(HEADER) || size > end - at {
            return Err(io::Error::other(format!("no packet at byte {at}")));
        }
        let mut body = vec![0; (content - HEADER) as usize];
        file.read_exact_at(&mut body, at + HEADER)?;
        count += events(&body);
        at += size;
    }
    Ok(count)
}

/// Counts the events of a packet. An event is a timestamp of 8 bytes, an id of 4 bytes, and two u16. The
/// first u16 is the number of words that follow. No padding follows the last event.
fn events(body: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while at < body.len() {
        let words = u16::from_le_bytes([body[at + 12], body[at + 13]]);
        at += 16 + 8 * usize::from(words);
        count += 1;
    }
    count
}
