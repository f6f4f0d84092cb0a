//! Where sessions are: the directory that a recording makes, and the one that is read.

use crate::Usage;
use anyhow::{Context, Result, bail};
use hypertrace_format::folder::{Folder, Share};
use hypertrace_trace::session_json;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::fs::{flock, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The directory of a session that nobody named.
pub const DEFAULT: &str = "hypertrace.data";
/// Where the last one goes.
const OLD: &str = "hypertrace.data.old";

/// Largest `session.json` that is looked at.
const MOST_JSON: u64 = 64 << 20;

/// Returns the directory for a new session: the one that was given, or the default one. A session that is there
/// becomes `hypertrace.data.old`, in place of the one before it.
///
/// # Errors
/// If what is in the default place is not a session of this user that has ended.
pub fn output(given: Option<&Path>) -> Result<PathBuf> {
    if given.is_none() {
        let here =
            Folder::open(Path::new("."), Share::Owner).context("cannot use this directory")?;
        make_room(&here)?;
    }
    Ok(given.unwrap_or(Path::new(DEFAULT)).to_owned())
}

/// Returns the directory that a recording joins: the one that was given, or the default one if a session is being
/// recorded there. Otherwise, as [`output`].
///
/// # Errors
/// As [`output`].
pub fn joined(given: Option<&Path>) -> Result<PathBuf> {
    let is_live = |found: Option<Ended>| matches!(found, Some(Err(NotEnded::Live)));
    if given.is_none() {
        let here =
            Folder::open(Path::new("."), Share::Owner).context("cannot use this directory")?;
        if is_live(found(&here, DEFAULT)?.map(|found| found.state)) {
            return Ok(DEFAULT.into());
        }
    }
    output(given)
}

/// Why a session may neither be moved nor removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotEnded {
    Live,
    Killed,
}

type Ended = std::result::Result<(), NotEnded>;

/// A session of this user.
struct Found {
    folder: OwnedFd,
    state: Ended,
}

/// Moves the session in the default place away, and removes the one that was moved before.
fn make_room(here: &Folder) -> Result<()> {
    let Some(last) = found(here, DEFAULT)? else { return Ok(()) };
    check(&last, DEFAULT)?;
    if let Some(old) = found(here, OLD)? {
        check(&old, OLD)?;
        let removed = remove_all(&old.folder)
            .and_then(|()| unlinkat(here, OLD, AtFlags::REMOVEDIR).map_err(Into::into));
        removed.with_context(|| format!("cannot remove {OLD}"))?;
    }
    // Whatever has got its name meanwhile stays.
    renameat_with(here, DEFAULT, here, OLD, RenameFlags::NOREPLACE)
        .with_context(|| format!("cannot rename {DEFAULT} to {OLD}"))
}

/// Refuses a session that is being recorded, or whose events may still be recovered.
fn check(found: &Found, name: &str) -> Result<()> {
    let why = match found.state {
        Ok(()) => return Ok(()),
        Err(NotEnded::Live) => "a session is being recorded in it: wait for its end",
        Err(NotEnded::Killed) => {
            "its recorder was killed, and nothing has recovered it: do that, or move it away \
             or remove it"
        }
    };
    bail!(Usage(format!("{name}: {why}; or name another directory with -o")))
}

/// Finds a session of this user in a directory. `None`: nothing has this name.
///
/// # Errors
/// If something else has it.
fn found(here: &Folder, name: &str) -> Result<Option<Found>> {
    let refuse = |why: &str| {
        Usage(format!("{name} is {why}: move it away, or name another directory with -o"))
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match openat(here, name, flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => bail!(refuse("not a session's directory")),
        Err(why) => return Err(why).with_context(|| format!("cannot look at {name}")),
    };
    let folder = Folder::of(folder, Path::new(name), Share::Owner);
    folder.check_own().map_err(|why| Usage(format!("{why}; name another directory with -o")))?;
    let Ok((json, _)) = folder.file(session_json::FILE, OFlags::RDONLY) else {
        bail!(refuse("not a session's directory"));
    };
    let mut text = Vec::new();
    let read = fs::File::from(json).take(MOST_JSON).read_to_end(&mut text);
    read.with_context(|| format!("cannot read {name}/{}", session_json::FILE))?;
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let Some(finished) = json["finished"].as_bool() else {
        bail!(refuse("not a session's directory"));
    };
    let state = if has_writer(&folder) {
        Err(NotEnded::Live)
    } else if finished || folder.stat_of("recovered").is_ok() {
        Ok(())
    } else {
        Err(NotEnded::Killed)
    };
    let folder = openat(&folder, ".", flags, Mode::empty()).context("cannot open a directory")?;
    Ok(Some(Found { folder, state }))
}

/// Returns whether a process writes the session: it has locked the folder of the trace.
fn has_writer(folder: &Folder) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let locked = openat(folder, "ctf", flags, Mode::empty())
        .and_then(|ctf| flock(ctf, FlockOperation::NonBlockingLockExclusive));
    locked == Err(Errno::WOULDBLOCK)
}

/// Removes what is in a directory. No link is followed on the way.
fn remove_all(folder: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            remove_all(&openat(folder, name, flags, Mode::empty())?)?;
            unlinkat(folder, name, AtFlags::REMOVEDIR)?;
        } else {
            unlinkat(folder, name, AtFlags::empty())?;
        }
    }
    Ok(())
}
