//! Where sessions are: the directory that a recording makes, and the one that is read.

use crate::Usage;
use crate::kernel;
use anyhow::{Context, Result, bail};
use hypertrace_format::folder::{Folder, Share};
use hypertrace_format::limits::MAX_SESSION_JSON;
use hypertrace_trace::session_json;
use rustix::fs::{OFlags, RenameFlags, Stat, renameat_with};
use serde::Deserialize;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The directory of a session that nobody named.
pub const DEFAULT: &str = "hypertrace.data";
/// Where the last one goes.
const OLD: &str = "hypertrace.data.old";

/// What is asked of a `session.json`.
#[derive(Deserialize)]
struct Description {
    uuid: String,
    completes: Option<String>,
    finished: bool,
}

/// Returns the directory for a new session: the one that was given, or the default one. A session that is in the default one
/// becomes `hypertrace.data.old`, in place of the one before it. A session in a given directory is an error, or is removed if
/// `overwrites` says so.
///
/// # Errors
/// If what is in the directory is not a session of this user that has ended.
pub fn output(given: Option<&Path>, overwrites: bool) -> Result<PathBuf> {
    let path = given.unwrap_or(Path::new(DEFAULT));
    // By the place where its note says that it is.
    if given.is_none() || overwrites {
        kernel::complete(path);
    }
    match given {
        None if !overwrites => make_room(&here()?)?,
        _ => empty(path, overwrites)?,
    }
    Ok(path.to_owned())
}

/// Returns the directory that a recording joins: the one that was given, or the default one if a session is being
/// recorded there. Otherwise, or if `overwrites` says so, as [`output`].
///
/// # Errors
/// As [`output`].
pub fn joined(given: Option<&Path>, overwrites: bool) -> Result<PathBuf> {
    match given {
        Some(given) if !overwrites => Ok(given.to_owned()),
        None if matches!(find(&here()?, DEFAULT)?, Some((_, State::Live))) => Ok(DEFAULT.into()),
        _ => output(given, overwrites),
    }
}

/// Removes the session in a directory, or refuses it. A directory with anything else is refused later, when the new session
/// takes the directory.
fn empty(path: &Path, overwrites: bool) -> Result<()> {
    let Ok((above, name)) = Folder::above(path, Share::Owner) else { return Ok(()) };
    let Some(name) = name.to_str() else { return Ok(()) };
    let Ok(Some((folder, state))) = find(&above, name) else { return Ok(()) };
    let shown = path.display();
    match state {
        State::Live => check(state, &shown.to_string()),
        _ if !overwrites => bail!(Usage(format!(
            "{shown} has a session: name another directory with -o, or give --overwrite, which removes the session"
        ))),
        _ => {
            let removed = folder.remove_all().and_then(|()| above.remove_empty(name));
            removed.with_context(|| format!("cannot remove the session in {shown}"))
        }
    }
}

fn here() -> Result<Folder> {
    Folder::open(Path::new("."), Share::Owner).context("cannot use this directory")
}

/// What may be done with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may be moved.
    Ended,
    Live,
    Killed,
}

/// Moves the session in the default place away, and removes the one that was moved before.
fn make_room(here: &Folder) -> Result<()> {
    if here.stat_of(DEFAULT).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    // Another command may move the last one at any moment: this is not it, as the last one is found after it.
    let old = find(here, OLD);
    let Some((folder, last)) = find(here, DEFAULT)? else { return Ok(()) };
    check(last, DEFAULT)?;
    if let Some((old, state)) = old? {
        check(state, OLD)?;
        let removed = old.remove_all().and_then(|()| here.remove_empty(OLD));
        removed.with_context(|| format!("cannot remove {OLD}"))?;
    }
    // Whatever has got its name meanwhile stays.
    renameat_with(here, DEFAULT, here, OLD, RenameFlags::NOREPLACE)
        .with_context(|| format!("cannot rename {DEFAULT} to {OLD}"))?;
    let id = |stat: Stat| (stat.st_dev, stat.st_ino);
    if here.stat_of(OLD).map(id)? != folder.stat().map(id)? {
        // It is another command's, which has made it since.
        renameat_with(here, OLD, here, DEFAULT, RenameFlags::NOREPLACE)
            .with_context(|| format!("cannot rename {OLD} to {DEFAULT}"))?;
        bail!(Usage(format!("{DEFAULT} was made by another command at this moment: try again")));
    }
    Ok(())
}

/// Refuses a session that is being recorded, or whose events may still be recovered.
fn check(state: State, name: &str) -> Result<()> {
    let why = match state {
        State::Ended => return Ok(()),
        State::Live => "a session is being recorded in it: wait for its end",
        State::Killed => {
            "its recorder was killed, and nothing has recovered it: do that if it had a --segment \
             FILE (hypertrace recover FILE), or move it away or remove it"
        }
    };
    bail!(Usage(format!("{name}: {why}; or name another directory with -o")))
}

/// Finds a session of this user in a directory. `None`: nothing has this name.
///
/// # Errors
/// If something else has it.
fn find(here: &Folder, name: &str) -> Result<Option<(Folder, State)>> {
    let foreign = || {
        let why = "not a session's directory: move it away, or name another directory with -o";
        Usage(format!("{name} is {why}"))
    };
    let folder = match here.folder(name) {
        Ok(folder) => folder,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        // A link is refused as such.
        Err(why) if why.kind() == ErrorKind::PermissionDenied => {
            return Err(why).with_context(|| format!("cannot look at {name}"));
        }
        Err(_) => bail!(foreign()),
    };
    folder.check_own().map_err(|why| Usage(format!("{why}; name another directory with -o")))?;
    let read = description(&folder);
    let json = read.with_context(|| format!("cannot read {name}/{}", session_json::FILE))?;
    let Some(json) = json else { bail!(foreign()) };
    // What its recorder had not written is in a session of its own, once all of it is there.
    let is_recovered = || {
        let recovered = folder.folder(session_json::RECOVERED).and_then(|r| description(&r));
        let is_its = |r: Description| r.completes.as_ref() == Some(&json.uuid) && r.finished;
        recovered.is_ok_and(|recovered| recovered.is_some_and(is_its))
    };
    // Readers of a shared session can lock it, too.
    let state = if json.finished || is_recovered() {
        State::Ended
    } else if is_locked(&folder) {
        State::Live
    } else {
        State::Killed
    };
    Ok(Some((folder, state)))
}

/// Returns whether a session of this user is being recorded in a directory.
pub fn is_live(path: &Path) -> bool {
    let Ok(Some(folder)) = Folder::open_own(path, Share::Owner) else { return false };
    let is_unfinished = |json: Description| !json.finished;
    description(&folder).is_ok_and(|json| json.is_some_and(is_unfinished)) && is_locked(&folder)
}

/// Returns whether a recorder, or a reader of a shared session, has locked a session.
fn is_locked(folder: &Folder) -> bool {
    folder.folder("ctf").and_then(|ctf| ctf.is_locked()).unwrap_or(false)
}

/// Reads the `session.json` of a folder, if it has one that a session can have.
fn description(folder: &Folder) -> io::Result<Option<Description>> {
    let Ok((json, _)) = folder.file(session_json::FILE, OFlags::RDONLY) else { return Ok(None) };
    let mut text = Vec::new();
    fs::File::from(json).take(MAX_SESSION_JSON).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}
