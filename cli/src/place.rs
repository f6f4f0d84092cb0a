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

/// What is asked of a `session.json`.
#[derive(Deserialize)]
struct Description {
    uuid: String,
    completes: Option<String>,
    finished: bool,
}

/// Returns the directory for a new session: the one that was given, or the default one. A session in the default one, or with
/// `overwrites` in the given one, is renamed: `.old` is added to its name, in place of the session that had this name.
///
/// # Errors
/// If what is in the directory is not a session of this user that has ended, or if a session is in the given directory.
pub fn output(given: Option<&Path>, overwrites: bool) -> Result<PathBuf> {
    let path = given.unwrap_or(Path::new(DEFAULT));
    let above = Folder::above(path, Share::Owner);
    // Without one, the new session cannot be made, and that says why.
    let Some((above, name)) =
        above.ok().and_then(|(above, name)| Some((above, name.into_string().ok()?)))
    else {
        return Ok(path.to_owned());
    };
    if given.is_none() || overwrites {
        // By the place where its note says that it is.
        let is_recorded = !kernel::complete(path);
        make_room(&above, &name, is_recorded)?;
    } else if matches!(find(&above, &name), Ok(Some((_, State::Ended | State::Killed)))) {
        bail!(Usage(format!(
            "{} has a session: name another directory with -o, or give --overwrite, which renames the session to \
             {name}.old",
            path.display()
        )));
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

/// Moves the session of this name away, and removes the one that was moved before. `is_recorded`: the kernel's events are still
/// recorded into it.
fn make_room(here: &Folder, name: &str, is_recorded: bool) -> Result<()> {
    if here.stat_of(name).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    let old_name = format!("{name}.old");
    // Another command may move the last one at any moment: this is not it, as the last one is found after it.
    let old = find(here, &old_name);
    let Some((folder, last)) = find(here, name)? else { return Ok(()) };
    check(if is_recorded { State::Live } else { last }, name)?;
    if let Some((old, state)) = old? {
        check(state, &old_name)?;
        let removed = old.remove_all().and_then(|()| here.remove_empty(&*old_name));
        removed.with_context(|| format!("cannot remove {old_name}"))?;
    }
    // Whatever has got its name meanwhile stays.
    renameat_with(here, name, here, &*old_name, RenameFlags::NOREPLACE)
        .with_context(|| format!("cannot rename {name} to {old_name}"))?;
    let id = |stat: Stat| (stat.st_dev, stat.st_ino);
    if here.stat_of(&*old_name).map(id)? != folder.stat().map(id)? {
        // It is another command's, which has made it since.
        renameat_with(here, &*old_name, here, name, RenameFlags::NOREPLACE)
            .with_context(|| format!("cannot rename {old_name} to {name}"))?;
        bail!(Usage(format!("{name} was made by another command at this moment: try again")));
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
    // A description alone may be anybody's.
    let Some(json) = json.filter(|_| folder.folder("ctf").is_ok()) else { bail!(foreign()) };
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
