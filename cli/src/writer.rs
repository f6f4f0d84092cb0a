//! The process that writes a session: whether it is there.

use hypertrace_timeline::Session;
use rustix::fs::FlockOperation::NonBlockingLockExclusive;
use rustix::fs::{Mode, OFlags, flock, open};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time without a sign of a writer after which it is looked for. While events come, it
/// replaces `session.json` once a second, for each MiB of it.
const SILENCE: Duration = Duration::from_secs(3);

/// Returns a line for a session that was not ended, with what to do about it.
pub fn unfinished(session: &Session) -> Option<String> {
    let json = session.json();
    let said = "not finished: still being written, or its writer was ended";
    let recover =
        "; if that was `hypertrace run --segment FILE`: hypertrace run --recover FILE --out DIR";
    (!json.finished).then(|| format!("{said}{}", if json.programs { recover } else { "" }))
}

/// Signs of the writer of a session.
#[derive(Debug)]
pub struct Writer {
    json: PathBuf,
    /// Inode and time of `session.json`.
    seen: Option<(u64, i64, i64)>,
    since: Instant,
}

impl Writer {
    pub fn new(dir: &Path) -> Writer {
        Writer { json: dir.join("session.json"), seen: None, since: Instant::now() }
    }

    /// Notes a sign of the writer.
    pub fn is_alive(&mut self, now: Instant) {
        self.since = now;
    }

    /// Returns whether there was no sign of the writer for [`SILENCE`].
    pub fn is_silent(&mut self, now: Instant) -> bool {
        let found = fs::metadata(&self.json).ok();
        let found = found.map(|found| (found.ino(), found.mtime(), found.mtime_nsec()));
        if found != self.seen {
            self.seen = found;
            self.since = now;
        }
        now.duration_since(self.since) >= SILENCE
    }
}

/// Returns whether a process may write the session in a directory: one that writes it has locked the folder
/// of the trace.
pub fn look(dir: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let locked = open(dir.join("ctf"), flags, Mode::empty())
        .and_then(|dir| flock(dir, NonBlockingLockExclusive));
    // A directory that cannot be locked tells nothing.
    locked.is_err()
}
