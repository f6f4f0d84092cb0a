//! Recordings of processes that were killed: found, completed, and their instances removed.

use crate::complete::{Summary, complete};
use crate::error::Error;
use crate::instance::{self, Instance};
use crate::owner::Owner;
use crate::pages::Pages;
use crate::registry;
use crate::state::{Left, State, open_dir};
use crate::stats::Stats;
use crate::threads::Names;
use crate::tracefs;
use hypertrace_trace::Share;
use hypertrace_trace::ctf::Folder;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A killed process's recording, found by [`sweep`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// Name of its instance.
    pub instance: String,
    /// Directory of its data, if that is known.
    pub dir: Option<PathBuf>,
    /// Its contents; `None` if it holds nothing, or its directory is not known or not this user's.
    pub summary: Result<Option<Summary>, Error>,
}

/// Completes the recording that a killed process left in a session's directory. `None`: there is
/// none, or its process lives.
///
/// # Errors
/// If the directory is another user's, or the files cannot be read or written.
pub fn recover(dir: &Path) -> Result<Option<Summary>, Error> {
    let dir = open_dir(dir, Share::Owner)?;
    match State::left(shared_as_is(dir))? {
        Left::Files(state) => finish(state),
        Left::Nothing | Left::InUse => Ok(None),
    }
}

/// Returns true if a killed process, or one that records now, has left files in this directory.
pub fn is_incomplete(dir: &Path) -> bool {
    dir.join(crate::state::FOLDER).is_dir()
}

/// Completes the recordings of all killed processes of this user, and removes their instances.
pub fn sweep() -> Vec<Recovered> {
    let names = instance::orphans().into_iter().chain(registry::orphans());
    let names: BTreeSet<String> = names.collect();
    names.into_iter().filter_map(|name| one(&name)).collect()
}

fn one(name: &str) -> Option<Recovered> {
    let dir = registry::find(name);
    let recovered =
        |summary| Some(Recovered { instance: name.to_owned(), dir: dir.clone(), summary });
    let left = dir.as_ref().and_then(|dir| {
        let dir = open_dir(dir, Share::Owner).ok()?;
        State::left(shared_as_is(dir)).ok()
    });
    let state = match left {
        // Another process completes it at this moment.
        Some(Left::InUse) => return None,
        Some(Left::Files(state)) => Some(state),
        Some(Left::Nothing) | None => None,
    };
    // Another recording may have been made there since.
    let is_its = |state: &State| match state.json() {
        Ok(Some(json)) => json.owner == name,
        // Killed at its beginning.
        Ok(None) => true,
        Err(_) => false,
    };
    match state.filter(is_its) {
        Some(state) => match finish(state) {
            Ok(summary) => recovered(Ok(summary)),
            Err(why) => recovered(Err(why)),
        },
        None => {
            // Its data belong nowhere.
            let removed = remove_instance(name);
            registry::remove(name);
            removed.then(|| recovered(Ok(None))).flatten()
        }
    }
}

/// Completes a recording, with what is left in the kernel's buffers if its instance exists.
fn finish(state: State) -> Result<Option<Summary>, Error> {
    let json = state.json()?;
    let mut names = Names::default();
    let mut stats = Vec::new();
    let name = json.as_ref().map(|json| json.owner.clone());
    let is_ours = |name: &&String| Owner::parse(name).is_some_and(|owner| owner.is_gone());
    let instance = name.as_ref().filter(is_ours).and_then(|name| {
        let root = tracefs::find().ok()?;
        Instance::open(root, name).ok()
    });
    if let (Some(json), Some(instance)) = (&json, instance) {
        instance.switch(false)?;
        let pages = Pages::open(&instance, state.folder.clone(), json.page_size)?;
        if let Some(why) = pages.finish() {
            return Err(why);
        }
        stats = Stats::of(&instance)?;
        names.add_lines(&instance.root().text("saved_cmdlines").unwrap_or_default());
        // From here on the files have everything.
        instance
            .remove()
            .map_err(|e| Error::System("remove an instance of the kernel's trace", e))?;
    }
    let summary = complete(state, stats, names, true)?;
    if let Some(name) = name {
        registry::remove(&name);
    }
    Ok(summary)
}

/// Removes an instance. Returns false if there is none.
fn remove_instance(name: &str) -> bool {
    let instance = tracefs::find().ok().and_then(|root| Instance::open(root, name).ok());
    instance.is_some_and(|instance| instance.remove().is_ok())
}

/// Returns the directory with its present modes for new files.
fn shared_as_is(dir: Folder) -> Folder {
    let mode = dir.stat().map_or(0, |stat| stat.st_mode);
    let share = match mode & 0o055 {
        0o055 => Share::All,
        0o050 => Share::Group,
        _ => Share::Owner,
    };
    dir.shared(share)
}
