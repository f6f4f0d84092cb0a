//! `ftrace`: events in the kernel's own trace, between the kernel's events.
//!
//! An instance's `trace_marker` takes events as text. The text is formatted on the stack, and written with
//! one write of its exact size. An instance's `trace_marker_raw` takes raw events. A raw event consists of
//! the event's id as a u32, which the kernel shows, and of the words of the payload. Both files are
//! synchronous: each event costs a system call of half a microsecond.

use crate::events::line::Line;
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::event::Fields;
use hypertrace_format::folder::open_regular;
use rustix::fs::{CWD, OFlags};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64 as Count, Ordering::Relaxed};

/// Maximum number of words in a raw record's payload. An event with more words is lost and counted.
const RAW_WORDS: usize = 128;

static LOST: Count = Count::new(0);
static REPORTED: AtomicBool = AtomicBool::new(false);
static OPEN: OnceLock<Instance> = OnceLock::new();

struct Instance {
    path: PathBuf,
    marker: File,
    raw: File,
}

/// Reason why an instance cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FtraceError {
    /// A file of the instance cannot be opened.
    #[error(
        "cannot open {} for writing: give the folder of a tracefs instance (is tracefs mounted? mount -t tracefs none DIR)",
        path.display()
    )]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Markers already go to an instance. A process cannot change the instance, because threads may be
    /// writing markers.
    #[error("markers go to {} already", .0.display())]
    Busy(PathBuf),
}

/// Opens a tracefs instance (or tracefs itself) for markers. After this call, add
/// [`Backends::FTRACE`](super::Backends::FTRACE) or `FTRACE_RAW`.
///
/// # Errors
/// If one of the instance's two files cannot be opened, or if another instance is open already.
pub fn open(instance: &Path) -> Result<(), FtraceError> {
    let file = |name: &str| {
        let path = instance.join(name);
        // Files are not created, so that a folder outside tracefs stays unchanged.
        open_regular(CWD, &path, OFlags::WRONLY)
            .map(|(file, _)| File::from(file))
            .map_err(|source| FtraceError::Open { path, source })
    };
    let (marker, raw) = (file("trace_marker")?, file("trace_marker_raw")?);
    let opened = Instance { path: instance.to_owned(), marker, raw };
    match OPEN.get_or_init(|| opened) {
        now if now.path == instance => Ok(()),
        other => Err(FtraceError::Busy(other.path.clone())),
    }
}

/// Returns the number of events that the kernel did not take.
pub fn lost() -> u64 {
    LOST.load(Relaxed)
}

fn write(file: impl Fn(&Instance) -> &File, bytes: &[u8]) {
    let Some(instance) = OPEN.get() else {
        LOST.fetch_add(1, Relaxed);
        return;
    };
    let mut file = file(instance);
    // A partial write is not continued, because its rest would be a second event. The kernel writes either
    // the whole event or no part of it.
    let why = match file.write(bytes) {
        Ok(_) => return,
        Err(why) => why,
    };
    LOST.fetch_add(1, Relaxed);
    // If the trace is off (EBADF) or full, the loss is counted and reported once, and the VM continues to
    // run.
    if !REPORTED.swap(true, Relaxed) {
        // `eprintln!` would panic if stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "hypertrace: the kernel does not take markers in {}: {why}; events for ftrace are \
             counted as lost until it does",
            instance.path.display()
        );
    }
}

pub(super) fn mark(line: &Line) {
    write(|instance| &instance.marker, line.as_bytes());
}

pub(crate) fn raw<F: Fields>(id: u32, fields: F) {
    let words: [AtomicU64; RAW_WORDS] = [const { AtomicU64::new(0) }; RAW_WORDS];
    let mut bytes = [0; 4 + 8 * RAW_WORDS];
    let len = fields.words();
    if len > RAW_WORDS {
        LOST.fetch_add(1, Relaxed);
        return;
    }
    fields.put(&words);
    bytes[..4].copy_from_slice(&id.to_ne_bytes());
    for (to, from) in bytes[4..].chunks_exact_mut(8).zip(&words[..len]) {
        to.copy_from_slice(&from.load(Relaxed).to_ne_bytes());
    }
    write(|instance| &instance.raw, &bytes[..4 + 8 * len]);
}
