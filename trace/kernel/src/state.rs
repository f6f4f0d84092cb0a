//! The folder of an incomplete recording. The folder's files survive a kill of the recorder at any instant.
//!
//! `.kernel/head` has the descriptions, and `.kernel/recording.json` the identity. `.kernel/cpuN` and
//! `.kernel/cpusN` have the pages of a CPU, exactly as the kernel gave them. `.kernel/end.json` has the
//! kernel's counters. At the end of the recording, the recorder makes `kernel.dat` from all these files. If
//! the recorder was killed, another process that finds the files makes `kernel.dat`. A process that uses the
//! folder locks the folder.
//!
//! The recording of a guest's kernel consists of the same files, but without the folder: events of the
//! session hold the contents of these files.

use crate::clock::{Clock, Reading};
use crate::error::Error;
use crate::owner::Owner;
use crate::source::Source;
use crate::stats::{MAX_CPUS, Stats};
use hypertrace_format::error::of_contents;
use hypertrace_format::folder::{self, Folder, Share, read_at, retry};
use hypertrace_format::session_json;
use rustix::fs::{FlockOperation, OFlags, Stat, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// Name of the recording's file in a session's directory.
pub const FILE: &str = "kernel.dat";

pub(crate) const FOLDER: &str = session_json::KERNEL_FOLDER;

pub(crate) const HEAD: &str = "head";
pub(crate) const JSON: &str = "recording.json";
pub(crate) const END: &str = "end.json";

/// Maximum size of `head` in bytes. The formats of all events of a kernel take 4 MiB.
pub(crate) const MAX_HEAD: usize = 64 << 20;
/// Maximum size of a JSON file in bytes. The names of 65,536 threads fit into this size, and also a session
/// with all its streams.
pub(crate) const MAX_JSON: usize = 64 << 20;

/// The buffers of a recording. Each buffer is an instance of the kernel's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// The events that the caller has chosen, recorded for the threads of the chosen processes
    Asked,
    /// For all threads of the machine, the events that show which thread runs on each CPU, and what woke the
    /// thread
    Cpus,
}

impl Buffer {
    pub const ALL: [Buffer; 2] = [Buffer::Asked, Buffer::Cpus];

    /// Returns the buffer's name in a recording's file. Readers show the buffer that has no name before the
    /// other buffers.
    pub fn name(self) -> &'static str {
        match self {
            Buffer::Asked => "",
            Buffer::Cpus => "cpus",
        }
    }

    /// Returns the name of the buffer's instance in a recording of this owner.
    pub fn instance(self, owner: &str) -> String {
        match self {
            Buffer::Asked => owner.to_owned(),
            Buffer::Cpus => format!("{owner}.cpus"),
        }
    }

    /// Returns the name of the file of a CPU's pages.
    pub fn file(self, cpu: u32) -> String {
        match self {
            Buffer::Asked => cpu_file(cpu),
            Buffer::Cpus => format!("cpus{cpu}"),
        }
    }
}

/// Returns the name of the file that holds a CPU's pages of [`Buffer::Asked`].
pub(crate) fn cpu_file(cpu: u32) -> String {
    format!("cpu{cpu}")
}

/// The contents of `recording.json`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecordingJson {
    pub version: u32,
    pub source: Source,
    /// Clock of the pages.
    #[serde(default)]
    pub clock: Clock,
    /// A reading of this clock and of the counter when the recording began. `None` if the clock is the
    /// counter.
    #[serde(default)]
    pub reading: Option<Reading>,
    /// Name of the owner. If the owner has an instance, the instance has the same name.
    pub owner: String,
    pub boot_id: String,
    pub trace_id: u64,
    pub page_size: usize,
    pub cpus: Vec<u32>,
    /// Time that a hypervisor had taken from all CPUs when the recording began, in milliseconds.
    #[serde(default)]
    pub stolen_ms: Option<u64>,
    /// Lines with the ids and names of threads when the recording began.
    pub names: String,
    /// Threads in the kernel's filter when the recording began. If one of these threads starts a thread, the
    /// kernel adds the new thread to the filter. `None` if the recording has no filter, as with perf.
    #[serde(default)]
    pub threads: Option<Vec<u32>>,
    /// System, host name, release and machine, from uname(2). `None` stands for the values of this machine.
    #[serde(default)]
    pub system: Option<String>,
    /// True if the recording also has [`Buffer::Cpus`].
    #[serde(default)]
    pub has_cpus: bool,
}

impl RecordingJson {
    /// Returns the recording's buffers.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> + use<> {
        let has_cpus = self.has_cpus;
        Buffer::ALL.into_iter().filter(move |buffer| has_cpus || *buffer == Buffer::Asked)
    }

    /// Returns true if the recording has one buffer with the events of all threads.
    pub fn has_all(&self) -> bool {
        self.source == Source::Tracefs && self.threads.is_none()
    }

    /// Returns true if a machine can have these numbers, and an instance can have the owner's name. The name
    /// matters, because the note with this name is removed at the end.
    pub fn is_good(&self) -> bool {
        self.version == VERSION
            && Owner::parse(&self.owner).is_some()
            && self.page_size.is_power_of_two()
            && (4096..=65536).contains(&self.page_size)
            && self.cpus.is_sorted_by(|a, b| a < b)
            && self.cpus.last().is_none_or(|last| *last < MAX_CPUS as u32)
    }
}

/// The contents of `end.json`: facts that the kernel knows only as long as it records.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EndJson {
    /// Counters of the buffers. These counters show how many events were lost.
    pub stats: Vec<Stats>,
    /// Lines with threads' numbers and names.
    pub names: String,
    /// Counters of the buffers of [`Buffer::Cpus`].
    #[serde(default)]
    pub cpus: Vec<Stats>,
    /// A reading as in [`RecordingJson::reading`], but when the recording ended.
    #[serde(default)]
    pub reading: Option<Reading>,
    /// A time as in [`RecordingJson::stolen_ms`], but when the recording ended. Only a guest sends this
    /// number.
    #[serde(default)]
    pub stolen_ms: Option<u64>,
}

/// The value of `version`.
pub(crate) const VERSION: u32 = 1;

/// The folder, locked by this process.
#[derive(Debug)]
pub(crate) struct State {
    /// The session's directory.
    pub dir: Folder,
    pub folder: Folder,
}

/// Returns the identity of this boot of the machine, empty if it cannot be read.
pub(crate) fn boot_id() -> String {
    hypertrace_format::clock::boot_id().unwrap_or_default()
}

/// Opens a session's directory.
pub(crate) fn open_dir(path: &Path, share: Share) -> Result<Folder, Error> {
    Folder::open_own(path, share)?.ok_or_else(|| Error::NoSession(path.to_owned()))
}

impl State {
    /// Makes the folder in a session's directory.
    pub fn create(dir: Folder) -> Result<State, Error> {
        let path = dir.path().to_owned();
        if !exists(&dir, session_json::FILE)? {
            return Err(Error::NoSession(path));
        }
        if exists(&dir, FILE)? {
            return Err(Error::Recorded(path));
        }
        // Only this user may open the folder: no other user has to read the folder, and a reader could lock
        // it.
        let folder = match dir.clone().shared(Share::Owner).create(FOLDER) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Busy(path));
            }
            made => made.map_err(|e| failed("make", &dir, FOLDER, e))?,
        };
        State { dir, folder }.locked()
    }

    /// Returns true if the recording's file exists already. In this case, the folder only has to be removed.
    pub fn is_complete(&self) -> Result<bool, Error> {
        exists(&self.dir, FILE)
    }

    /// Opens the folder that a process left, or returns `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Busy`] if a process still records, or completes the recording.
    pub fn left(dir: Folder) -> Result<Option<State>, Error> {
        let folder = match dir.clone().shared(Share::Owner).folder(FOLDER) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &dir, FOLDER, error)),
        };
        // If other users may write to the directory, the folder may belong to one of these users.
        let stat = folder.stat().map_err(|e| failed("open", &dir, FOLDER, e))?;
        check_owner(&folder, "", &stat)?;
        State { dir, folder }.locked().map(Some)
    }

    /// Returns true if the recording process has ended. If the folder is still locked, another process
    /// completes the recording's files.
    pub fn is_orphan(dir: &Folder) -> bool {
        let Ok(folder) = dir.clone().shared(Share::Owner).folder(FOLDER) else { return true };
        let json = State { dir: dir.clone(), folder }.json().ok().flatten();
        json.and_then(|json| Owner::parse(&json.owner)).is_some_and(|owner| owner.is_gone())
    }

    /// Locks the folder for this process, until its descriptor is closed.
    fn locked(self) -> Result<State, Error> {
        let id = |stat: io::Result<Stat>| stat.map(|stat| (stat.st_dev, stat.st_ino)).ok();
        let is_free =
            retry(|| flock(&self.folder, FlockOperation::NonBlockingLockExclusive)).is_ok();
        // Between the open and the lock, the process that had the lock may have completed the recording and
        // removed the folder.
        let now = id(self.dir.stat_of(FOLDER));
        let is_current = now.is_some() && id(self.folder.stat()) == now;
        let busy = || Error::Busy(self.dir.path().to_owned());
        if is_free && is_current { Ok(self) } else { Err(busy()) }
    }

    /// Writes the descriptions and then the identity. A folder without an identity counts as empty.
    pub fn begin(&self, head: &[u8], json: &RecordingJson) -> Result<(), Error> {
        self.replace(HEAD, head)?;
        self.replace_json(JSON, json)
    }

    /// Adds the threads of the kernel's filter to the identity.
    pub fn set_threads(&self, threads: Vec<u32>) -> Result<(), Error> {
        let json = self.json()?.ok_or_else(|| self.damaged(JSON, "it is missing".into()))?;
        self.replace_json(JSON, &RecordingJson { threads: Some(threads), ..json })
    }

    /// Writes the facts that the kernel knows at the recording's end.
    pub fn end(&self, end: &EndJson) -> Result<(), Error> {
        self.replace_json(END, end)
    }

    fn replace_json(&self, name: &str, json: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(json);
        self.replace(name, &text.map_err(|e| failed("encode", &self.folder, name, e.into()))?)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let written = self.folder.replace(name, bytes);
        written.map(drop).map_err(|e| failed("write", &self.folder, name, e.source))
    }

    /// Reads the identity. Returns `None` if the owner was killed before the identity was written.
    pub fn json(&self) -> Result<Option<RecordingJson>, Error> {
        let Some(json) = self.read_json::<RecordingJson>(JSON)? else { return Ok(None) };
        let why = || {
            let RecordingJson { version, owner, page_size, cpus, .. } = &json;
            let cpus = cpus.len();
            format!(
                "version {version}, owner {owner:?}, page size {page_size}, or one of {cpus} CPUs"
            )
        };
        if json.is_good() { Ok(Some(json)) } else { Err(self.damaged(JSON, why())) }
    }

    /// Reads the facts that the kernel knew at the recording's end. Returns `None` if the owner was killed
    /// before it wrote these facts.
    pub fn ended(&self) -> Result<Option<EndJson>, Error> {
        self.read_json(END)
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(text) = whole(&self.folder, name, MAX_JSON)? else { return Ok(None) };
        let json = serde_json::from_slice(&text);
        json.map(Some).map_err(|e| self.damaged(name, e.to_string()))
    }

    /// Reads the descriptions.
    pub fn head(&self) -> Result<Vec<u8>, Error> {
        let head = whole(&self.folder, HEAD, MAX_HEAD)?;
        head.ok_or_else(|| self.damaged(HEAD, "it is missing".into()))
    }

    fn damaged(&self, name: &str, why: String) -> Error {
        Error::Damaged { path: self.folder.path().join(name), why: of_contents(&why) }
    }

    /// Returns the frequency of the host's clock in ticks per second. The session has measured this
    /// frequency.
    pub fn frequency(&self) -> Result<u64, Error> {
        let name = session_json::FILE;
        let text = whole(&self.dir, name, MAX_JSON)?;
        let text = text.ok_or_else(|| Error::NoSession(self.dir.path().to_owned()))?;
        let json: session_json::SessionJson = serde_json::from_slice(&text).map_err(|e| {
            let why = of_contents(&e.to_string());
            failed("read", &self.dir, name, io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        let clock = json.clocks.iter().find(|clock| clock.id == 0 && clock.frequency > 0);
        clock.map(|clock| clock.frequency).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "it has no clock of the host");
            failed("use", &self.dir, name, source)
        })
    }

    /// Removes the folder. The identity is removed first, because a folder without an identity counts as
    /// empty if a kill interrupts the removal.
    pub fn remove(self) -> Result<(), Error> {
        let State { dir, folder } = self;
        match folder.remove(JSON) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &folder, JSON, error));
            }
            _ => {}
        }
        dir.remove_folder(FOLDER).map_err(|e| failed("remove", &dir, FOLDER, e))
    }
}

/// Checks that a file, or the folder itself, belongs to this user.
fn check_owner(at: &Folder, name: &str, stat: &Stat) -> Result<(), Error> {
    Ok(folder::check_owner(stat, &at.path().join(name))?)
}

/// Returns true if a file exists. If the system refuses the check, returns an error.
fn exists(at: &Folder, name: &str) -> Result<bool, Error> {
    match at.stat_of(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("look for", at, name, error)),
    }
}

/// Reads a file. Returns `None` if the file does not exist.
fn whole(folder: &Folder, name: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
    let (file, stat) = match folder.file(name, OFlags::RDONLY) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", folder, name, error)),
    };
    check_owner(folder, name, &stat)?;
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > most {
        let why = format!("it has {size} bytes, more than {most}");
        return Err(failed("read", folder, name, io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    let mut bytes = vec![0; size];
    let read = read_at(file, &mut bytes, 0).map_err(|e| failed("read", folder, name, e))?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

pub(crate) fn failed(action: &'static str, at: &Folder, name: &str, source: io::Error) -> Error {
    Error::File { action, path: at.path().join(name), source }
}
