//! Recordings of processes that were killed: found, completed, and their instances removed.

use crate::complete::{Summary, complete};
use crate::error::Error;
use crate::instance::{self, Instance};
use crate::owner::Owner;
use crate::pages::Pages;
use crate::registry;
use crate::state::{State, open_dir};
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
/// none.
///
/// # Errors
/// [`Error::Busy`] if its process lives. If the directory is another user's, or the files cannot be
/// read or written.
pub fn recover(dir: &Path) -> Result<Option<Summary>, Error> {
    let dir = open_dir(dir, Share::Owner)?;
    State::left(shared_as_is(dir))?.map_or(Ok(None), finish)
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
    let left = dir.as_ref().map(|dir| State::left(shared_as_is(open_dir(dir, Share::Owner)?)));
    let state = match left {
        // Another process completes it at this moment.
        Some(Err(Error::Busy(_))) => return None,
        Some(Ok(state)) => state,
        Some(Err(_)) | None => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use crate::state::{FILE, FOLDER, RecordingJson, VERSION, cpu_file};
    use crate::trace_dat::Description;
    use std::fs;

    /// Returns the identity of a recording by the kernel's trace, on another boot: it has no instance.
    fn json() -> RecordingJson {
        RecordingJson {
            version: VERSION,
            source: Source::Tracefs,
            owner: "hypertrace.1.2.3".into(),
            boot_id: "another".into(),
            trace_id: 1,
            page_size: 4096,
            cpus: vec![0, 1],
            names: String::new(),
        }
    }

    /// Makes a session with the remains of a recording: two pages of CPU 0, one of CPU 1.
    fn remains(json: &RecordingJson) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let session = hypertrace_trace::SessionConfig::new(dir.path());
        hypertrace_trace::Session::create(session).unwrap().finish().unwrap();
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        let head = Description { page_size: 4096, ..Description::default() }.to_bytes();
        fs::write(folder.join("head"), head).unwrap();
        fs::write(folder.join("recording.json"), serde_json::to_vec(json).unwrap()).unwrap();
        let mut page = vec![0; 4096];
        // A time, 8 bytes of events, and an event of two words.
        page[..8].copy_from_slice(&9u64.to_ne_bytes());
        page[8..16].copy_from_slice(&8u64.to_ne_bytes());
        page[16..20].copy_from_slice(&1u32.to_ne_bytes());
        fs::write(folder.join(cpu_file(0)), page.repeat(2)).unwrap();
        fs::write(folder.join(cpu_file(1)), &page).unwrap();
        dir
    }

    #[test]
    fn a_kill_while_the_remains_are_removed_leaves_the_file_as_it_is() {
        let dir = remains(&json());
        let folder = dir.path().join(FOLDER);
        // The removal fails at a folder, wherever that is in the order of names.
        fs::create_dir(folder.join("obstacle")).unwrap();
        assert!(matches!(recover(dir.path()), Err(Error::File { action: "remove", .. })));
        assert!(!folder.join("recording.json").exists(), "what is left is no recording");
        let whole = fs::read(dir.path().join(FILE)).unwrap();
        fs::remove_dir(folder.join("obstacle")).unwrap();
        // A kill before the identity was removed, when a part of the pages was.
        fs::write(folder.join("recording.json"), serde_json::to_vec(&json()).unwrap()).unwrap();
        fs::write(folder.join("head"), "").unwrap();

        assert_eq!(recover(dir.path()).unwrap(), None);

        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), whole);
        assert!(!folder.exists());
    }
}
