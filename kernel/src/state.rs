//! The folder of a recording that is not complete: its files survive a kill at any instant.
//!
//! `.kernel/head` has the descriptions, `.kernel/recording.json` the identity, and `.kernel/cpuN` the
//! pages of each CPU as the kernel made them. They become `kernel.dat` at the end, or when another
//! process finds them. The folder is locked while a process uses it.

use crate::error::Error;
use crate::source::Source;
use hypertrace_trace::ctf::Folder;
use hypertrace_trace::ctf::folder::{read_at, retry};
use hypertrace_trace::session_json;
use hypertrace_trace::{Share, own_directory};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The recording's file in a session's directory.
pub const FILE: &str = "kernel.dat";

pub(crate) const FOLDER: &str = ".kernel";
pub(crate) const HEAD: &str = "head";
const JSON: &str = "recording.json";

/// Most bytes of `head`: formats of all events of a kernel are 4 MiB.
const MOST_HEAD: usize = 64 << 20;
/// Most bytes of the JSON files: names of 65,536 threads, a session with all its streams.
const MOST_JSON: usize = 64 << 20;

/// Returns the name of the file of a CPU's pages.
pub(crate) fn cpu_file(cpu: u32) -> String {
    format!("cpu{cpu}")
}

/// `recording.json`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecordingJson {
    pub version: u32,
    pub source: Source,
    /// Name of the owner, which is its instance's if it has one.
    pub owner: String,
    pub boot_id: String,
    pub trace_id: u64,
    pub page_size: usize,
    pub cpus: Vec<u32>,
    /// Milliseconds that a hypervisor had taken from all CPUs at the beginning.
    #[serde(default)]
    pub stolen_ms: Option<u64>,
    /// Lines of threads' numbers and names at the beginning.
    pub names: String,
}

/// The value of `version`.
pub(crate) const VERSION: u32 = 1;

/// The folder, locked.
#[derive(Debug)]
pub(crate) struct State {
    /// The session's directory.
    pub dir: Folder,
    pub folder: Folder,
}

/// Remains of a recording in a session's directory.
#[derive(Debug)]
pub(crate) enum Left {
    /// None
    Nothing,
    /// A process records, or completes them
    InUse,
    /// Those of a process that has ended
    Files(State),
}

/// Opens a session's directory.
pub(crate) fn open_dir(path: &Path, share: Share) -> Result<Folder, Error> {
    own_directory(path, share)?.ok_or_else(|| Error::NoSession(path.to_owned()))
}

impl State {
    /// Makes the folder in a session's directory.
    pub fn create(dir: Folder) -> Result<State, Error> {
        let path = dir.path().to_owned();
        if dir.stat_of(session_json::FILE).is_err() {
            return Err(Error::NoSession(path));
        }
        if dir.stat_of(FILE).is_ok() {
            return Err(Error::Recorded(path));
        }
        let folder = match dir.create(FOLDER) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Busy(path));
            }
            made => made.map_err(|e| failed("make", &dir, FOLDER, e))?,
        };
        if !lock(&folder) {
            return Err(Error::Busy(path));
        }
        Ok(State { dir, folder })
    }

    /// Opens the folder that a killed process left.
    pub fn left(dir: Folder) -> Result<Left, Error> {
        let folder = match dir.folder(FOLDER) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Left::Nothing),
            Err(error) => return Err(failed("open", &dir, FOLDER, error)),
        };
        // A process that had it may have completed and removed it in between.
        let is_current = |folder: &Folder| {
            let now = dir.stat_of(FOLDER).map(|stat| (stat.st_dev, stat.st_ino)).ok();
            now.is_some() && folder.stat().map(|stat| (stat.st_dev, stat.st_ino)).ok() == now
        };
        let is_free = lock(&folder) && is_current(&folder);
        Ok(if is_free { Left::Files(State { dir, folder }) } else { Left::InUse })
    }

    /// Writes the descriptions, and then the identity, without which the folder holds nothing.
    pub fn begin(&self, head: &[u8], json: &RecordingJson) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(json)
            .map_err(|e| failed("encode", &self.folder, JSON, e.into()))?;
        let files = [(HEAD, head), (JSON, &text)];
        files.into_iter().try_for_each(|(name, bytes)| {
            let written = self.folder.replace(name, bytes);
            written.map_err(|e| failed("write", &self.folder, name, e.source))
        })
    }

    /// Reads the identity; `None` if the owner was killed before it was written.
    pub fn json(&self) -> Result<Option<RecordingJson>, Error> {
        let Some(text) = whole(&self.folder, JSON, MOST_JSON)? else { return Ok(None) };
        let json: RecordingJson =
            serde_json::from_slice(&text).map_err(|e| self.damaged(JSON, e.to_string()))?;
        let is_good = json.version == VERSION
            && json.page_size.is_power_of_two()
            && (4096..=65536).contains(&json.page_size);
        let why = || format!("version {}, page size {}", json.version, json.page_size);
        if is_good { Ok(Some(json)) } else { Err(self.damaged(JSON, why())) }
    }

    /// Reads the descriptions.
    pub fn head(&self) -> Result<Vec<u8>, Error> {
        let head = whole(&self.folder, HEAD, MOST_HEAD)?;
        head.ok_or_else(|| self.damaged(HEAD, "it is missing".into()))
    }

    fn damaged(&self, name: &str, why: String) -> Error {
        Error::Damaged { path: self.folder.path().join(name), why }
    }

    /// Returns the ticks per second of the host's clock, as the session has measured it.
    pub fn frequency(&self) -> Result<u64, Error> {
        let name = session_json::FILE;
        let text = whole(&self.dir, name, MOST_JSON)?;
        let text = text.ok_or_else(|| Error::NoSession(self.dir.path().to_owned()))?;
        let json: session_json::SessionJson = serde_json::from_slice(&text).map_err(|e| {
            Error::File { action: "read", path: self.dir.path().join(name), source: e.into() }
        })?;
        let clock = json.clocks.iter().find(|clock| clock.id == 0);
        Ok(clock.map_or(1_000_000_000, |clock| clock.frequency.max(1)))
    }

    /// Removes the folder.
    pub fn remove(self) -> Result<(), Error> {
        let State { dir, .. } = self;
        dir.remove_folder(FOLDER).map_err(|e| failed("remove", &dir, FOLDER, e))
    }
}

/// Locks a folder for this process, until its descriptor is closed. Returns false if another process uses it.
fn lock(folder: &Folder) -> bool {
    retry(|| flock(folder, FlockOperation::NonBlockingLockExclusive)).is_ok()
}

/// Reads a file; `None` if there is none.
fn whole(folder: &Folder, name: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
    let read = folder.file(name, OFlags::RDONLY).and_then(|(file, stat)| {
        let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if size > most {
            let why = format!("it has {size} bytes, more than {most}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut bytes = vec![0; size];
        let read = read_at(file, &mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    });
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", folder, name, error)),
    }
}

pub(crate) fn failed(action: &'static str, at: &Folder, name: &str, source: io::Error) -> Error {
    Error::File { action, path: at.path().join(name), source }
}
