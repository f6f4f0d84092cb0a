//! The directories of sessions: where a recording makes a session, and where commands read a session.

use crate::Usage;
use crate::kernel;
use crate::output::say;
use anyhow::{Context, Result, bail};
use hypertrace_format::folder::{Folder, Share};
use hypertrace_format::limits::MAX_SESSION_JSON;
use hypertrace_trace::session_json;
use rustix::fs::{OFlags, RenameFlags, Stat, renameat_with};
use serde::Deserialize;
use std::cell::RefCell;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Default directory of a session.
pub const DEFAULT: &str = "hypertrace.data";

/// Members of a `session.json` that are read here.
#[derive(Deserialize)]
struct Description {
    uuid: String,
    completes: Option<String>,
    finished: bool,
}

/// The directory of a new session, and the sessions that were renamed to make room for the new session.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    moved: RefCell<Option<Moved>>,
}

/// Sessions that were renamed. The last session got a new name: its former name and `.old`. If a session had
/// the new name already, this older session is hidden until the new recording has begun.
#[derive(Debug)]
struct Moved {
    here: Folder,
    name: String,
    /// Former and new names, in the order of the renames.
    renamed: Vec<[String; 2]>,
    /// Hidden session.
    older: Option<Folder>,
}

impl Output {
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the hidden older session, because the new recording has begun.
    pub fn settle(&self) {
        let Some(Moved { here, name, older: Some(folder), .. }) = self.moved.take() else { return };
        if let Err(why) = remove(&here, &folder, &older(&name)) {
            say(format_args!("{why:#}"));
        }
    }

    /// If nothing was recorded, gives the sessions their names back. Otherwise, keeps the new names as
    /// [`Output::settle`] does.
    pub fn give_back(&self) {
        let is_free = |moved: &Moved| {
            moved.here.stat_of(&*moved.name).is_err_and(|why| why.kind() == ErrorKind::NotFound)
        };
        if self.moved.borrow().as_ref().is_some_and(is_free) {
            let moved = self.moved.take();
            if let Some(Err(why)) = moved.as_ref().map(Moved::give_back) {
                say(format_args!("{why:#}"));
            }
        }
        self.settle();
    }
}

impl Moved {
    /// Renames a session. If the renamed folder is another folder than `folder`, an error is returned.
    fn rename(&mut self, folder: &Folder, from: &str, to: &str) -> Result<()> {
        rename(&self.here, from, to)?;
        self.renamed.push([from, to].map(str::to_owned));
        let id = |stat: Stat| (stat.st_dev, stat.st_ino);
        if self.here.stat_of(to).map(id)? != folder.stat().map(id)? {
            let why = format!("{from} was made by another command at this moment: try again");
            bail!(Usage(why));
        }
        Ok(())
    }

    /// Gives the sessions their names back.
    fn give_back(&self) -> Result<()> {
        self.renamed.iter().rev().try_for_each(|[from, to]| rename(&self.here, to, from))
    }
}

fn old(name: &str) -> String {
    format!("{name}.old")
}

/// Returns a hidden name, because a user may have chosen any other name.
fn older(name: &str) -> String {
    format!(".{name}.older")
}

/// Removes a session. Another folder may have got the session's name meanwhile. This folder stays, unless it
/// is empty.
fn remove(here: &Folder, session: &Folder, name: &str) -> Result<()> {
    let removed = session.remove_all().and_then(|()| here.remove_empty(name));
    removed.with_context(|| format!("cannot remove {name}, the session before the last one"))
}

/// Renames a directory. If another file or folder has the new name by now, it is not replaced.
fn rename(here: &Folder, from: &str, to: &str) -> Result<()> {
    renameat_with(here, from, here, to, RenameFlags::NOREPLACE)
        .with_context(|| format!("cannot rename {from} to {to}"))
}

/// Returns the directory for a new session: the given or the default directory. If the default directory has
/// a session, this session is renamed: `.old` is added to its name. With `overwrites`, a session in the given
/// directory is renamed, too. A session that already has the new name is hidden, and [`Output::settle`]
/// removes the hidden session.
///
/// # Errors
/// If the directory contains anything other than an ended session of this user, or if the given directory has
/// a session and `overwrites` is false.
pub fn output(given: Option<&Path>, overwrites: bool) -> Result<Output> {
    let path = given.unwrap_or(Path::new(DEFAULT));
    let made = |moved| Output { path: path.to_owned(), moved: RefCell::new(moved) };
    let above = Folder::above(path, Share::Owner);
    // If the directory above cannot be opened, the new session cannot be made either. The error of the later
    // attempt to make the session says why.
    let Some((above, name)) =
        above.ok().and_then(|(above, name)| Some((above, name.into_string().ok()?)))
    else {
        return Ok(made(None));
    };
    if given.is_none() || overwrites {
        // `complete` takes the path, because its message about a recording contains the path.
        let is_recorded = !kernel::complete(path);
        return Ok(made(make_room(above, &name, is_recorded)?));
    }
    if matches!(find(&above, &name), Ok(Some((_, State::Ended | State::Killed)))) {
        bail!(Usage(format!(
            "{} has a session: name another directory with -o, or give --overwrite, which renames the session to \
             {name}.old",
            path.display()
        )));
    }
    Ok(made(None))
}

/// Returns the directory that a recording joins: the given directory, or the default directory if a session
/// is being recorded there. Otherwise, or if `overwrites` is true, does the same as [`output`].
///
/// # Errors
/// As [`output`].
pub fn joined(given: Option<&Path>, overwrites: bool) -> Result<Output> {
    let made = |path: &Path| Output { path: path.to_owned(), moved: RefCell::new(None) };
    match given {
        Some(given) if !overwrites => Ok(made(given)),
        None if matches!(find(&here()?, DEFAULT)?, Some((_, State::Live))) => {
            Ok(made(Path::new(DEFAULT)))
        }
        _ => output(given, overwrites),
    }
}

fn here() -> Result<Folder> {
    Folder::open(Path::new("."), Share::Owner).context("cannot use this directory")
}

/// State of a session, which decides what may be done with the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The session may be moved.
    Ended,
    Live,
    Killed,
}

/// Renames the session of this name to `NAME.old`, and hides the session that had that name. `is_recorded`:
/// the kernel's events are still recorded into the session.
fn make_room(here: Folder, name: &str, is_recorded: bool) -> Result<Option<Moved>> {
    if here.stat_of(name).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let old_name = old(name);
    // `old` is found before `last`: another command may rename `last` to `old_name` at any moment, and `last`
    // must not be renamed twice.
    let old = find(&here, &old_name);
    let Some((folder, last)) = find(&here, name)? else { return Ok(None) };
    check(if is_recorded { State::Live } else { last }, name)?;
    let mut moved = Moved { here, name: name.to_owned(), renamed: Vec::new(), older: None };
    let older = match old? {
        Some((old, state)) => {
            check(state, &old_name)?;
            let older_name = older(name);
            // A command that was killed before its recording began has left this session.
            if let Some((left, state)) = find(&moved.here, &older_name)? {
                check(state, &older_name)?;
                remove(&moved.here, &left, &older_name)?;
            }
            Some((old, older_name))
        }
        None => None,
    };
    let mut rename = || {
        if let Some((old, older_name)) = &older {
            moved.rename(old, &old_name, older_name)?;
        }
        moved.rename(&folder, name, &old_name)
    };
    if let Err(why) = rename() {
        moved.give_back()?;
        return Err(why);
    }
    moved.older = older.map(|(old, _)| old);
    Ok(Some(moved))
}

/// Refuses a session that is being recorded, or whose events may still be recovered.
fn check(state: State, name: &str) -> Result<()> {
    let why = match state {
        State::Ended => return Ok(()),
        State::Live => "a session is being recorded in it: wait for its end",
        State::Killed => {
            "its recorder was killed, and nothing has recovered it: if the recorder had a --segment FILE, \
             run hypertrace recover FILE; if not, move the session away or remove it"
        }
    };
    bail!(Usage(format!("{name}: {why}; or name another directory with -o")))
}

/// Finds a session of this user in a directory. `None`: the name does not exist.
///
/// # Errors
/// If something other than a session has this name.
fn find(here: &Folder, name: &str) -> Result<Option<(Folder, State)>> {
    let foreign = || {
        let why = "not a session's directory: move it away, or name another directory with -o";
        Usage(format!("{name} is {why}"))
    };
    let folder = match here.folder(name) {
        Ok(folder) => folder,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        // For a link, the error says that links are refused.
        Err(why) if why.kind() == ErrorKind::PermissionDenied => {
            return Err(why).with_context(|| format!("cannot look at {name}"));
        }
        Err(_) => bail!(foreign()),
    };
    folder.check_own().map_err(|why| Usage(format!("{why}; name another directory with -o")))?;
    let read = description(&folder);
    let json = read.with_context(|| format!("cannot read {name}/{}", session_json::FILE))?;
    // A `session.json` alone is no sign of a session, because anybody may have made the file.
    let Some(json) = json.filter(|_| folder.folder("ctf").is_ok()) else { bail!(foreign()) };
    // If a recorder was killed, `recover` writes the events that the recorder left to a separate session. The
    // killed session counts as ended once the separate session is finished.
    let is_recovered = || {
        let recovered = folder.folder(session_json::RECOVERED).and_then(|r| description(&r));
        let is_its = |r: Description| r.completes.as_ref() == Some(&json.uuid) && r.finished;
        recovered.is_ok_and(|recovered| recovered.is_some_and(is_its))
    };
    // The lock is checked last, because readers of a shared session can lock the session, too.
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

/// Reads the `session.json` of a folder, if the file describes a session.
fn description(folder: &Folder) -> io::Result<Option<Description>> {
    let Ok((json, _)) = folder.file(session_json::FILE, OFlags::RDONLY) else { return Ok(None) };
    let mut text = Vec::new();
    fs::File::from(json).take(MAX_SESSION_JSON).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}
