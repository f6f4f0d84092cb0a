//! Recordings of killed processes: finds and completes them, and removes their instances.

use crate::complete::{Summary, Taken, complete, take};
use crate::error::Error;
use crate::instance::Instance;
use crate::owner::Owner;
use crate::pages::Buffers;
use crate::registry;
use crate::source::Source;
use crate::state::{Buffer, RecordingJson, State, boot_id, open_dir};
use crate::stats::Stats;
use crate::threads::Names;
use crate::tracefs::{self, Dir};
use hypertrace_format::folder::{Folder, Share};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum wait for another process that completes the same recording.
const PATIENCE: Duration = Duration::from_secs(10);

/// The recording of a killed process, found by [`sweep`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// Name of the recording's instance.
    pub instance: String,
    /// Directory of the recording's data.
    pub dir: PathBuf,
    /// Contents of the recording, or `None` if the recording holds nothing or the directory is gone.
    pub summary: Result<Option<Summary>, Error>,
    /// Number of events that were removed with the instance, because their recording no longer exists.
    pub dropped: u64,
}

/// Completes the recording that a killed process left in a session's directory. Returns `None` if the process
/// left no recording.
///
/// # Errors
/// [`Error::Busy`] if the recording process lives, or if another process needs longer than 10 s to complete
/// the recording. Any other error if the directory belongs to another user, or if the files cannot be read or
/// written.
pub fn recover(dir: &Path) -> Result<Option<Summary>, Error> {
    let dir = shared_as_is(open_dir(dir, Share::Owner)?);
    let end = Instant::now() + PATIENCE;
    loop {
        match State::left(dir.clone()) {
            // Another process may be completing the recording: for instance, each start of a recording
            // completes the recordings of killed processes.
            Err(Error::Busy(_)) if Instant::now() < end && State::is_orphan(&dir) => {
                sleep(Duration::from_millis(10));
            }
            left => return left?.map_or(Ok(None), finish),
        }
    }
}

/// Returns true if this directory has the files of a recording that has not been completed. The recording's
/// process may have been killed, or may still record.
pub fn is_incomplete(dir: &Path) -> bool {
    dir.join(crate::state::FOLDER).is_dir()
}

/// Completes the recordings of all killed processes of this user, and removes their instances.
pub fn sweep() -> Vec<Recovered> {
    // Without tracefs, this process can remove no instances. Besides, the notes may name processes outside of
    // this PID namespace, so nobody knows which of these processes have ended.
    let Ok(root) = tracefs::find() else { return Vec::new() };
    registry::orphans().iter().filter_map(|name| one(&root, name)).collect()
}

fn one(root: &Dir, name: &str) -> Option<Recovered> {
    let dir = registry::find(name)?;
    let mut dropped = 0;
    let mut recovered = || {
        let state = left(&dir, name)?;
        let summary = state.map_or(Ok(None), finish)?;
        // There is no summary if the process was killed before the recording had an identity, if the process
        // was killed after it had made the file, or if the directory is gone.
        if summary.is_none() {
            dropped = forget(root, name)?;
        }
        Ok(summary)
    };
    match recovered() {
        // Another process completes the recording at this moment.
        Err(Error::Busy(_)) => None,
        summary => Some(Recovered { instance: name.to_owned(), dir, summary, dropped }),
    }
}

/// Opens the folder of an instance's recording. Returns `None` if the directory has no such folder.
fn left(dir: &Path, name: &str) -> Result<Option<State>, Error> {
    let dir = match open_dir(dir, Share::Owner) {
        Err(Error::NoSession(_)) => return Ok(None),
        opened => opened?,
    };
    let Some(state) = State::left(shared_as_is(dir))? else { return Ok(None) };
    // A later recording may use the same directory.
    let is_others = state.json()?.is_some_and(|json| json.owner != name);
    Ok(Some(state).filter(|_| !is_others))
}

/// Completes a recording. If the recording's instance exists, the recording gets the remaining events of the
/// instance's buffers.
fn finish(state: State) -> Result<Option<Summary>, Error> {
    let mut taken = Taken::default();
    if let Some(json) = state.json()? {
        let instances = instances_of(&json)?;
        if !instances.is_empty() {
            let pages = |instances: &[(Buffer, Instance)]| {
                Buffers::open(instances, state.folder.clone(), json.page_size)
            };
            taken = take(instances, pages, &state)?;
        }
    }
    complete(state, Names::default(), taken, true)
}

/// Opens the remaining instances of a recording whose process has ended.
///
/// # Errors
/// If this process cannot find out whether instances exist. If an instance exists, the recording without the
/// pages in the instance's buffers would lack events.
fn instances_of(json: &RecordingJson) -> Result<Vec<(Buffer, Instance)>, Error> {
    let is_possible = json.source == Source::Tracefs
        && json.boot_id == boot_id()
        && Owner::parse(&json.owner).is_some_and(|owner| owner.is_gone());
    let mut found = Vec::new();
    for buffer in json.buffers().filter(|_| is_possible) {
        let instance = Instance::find(tracefs::find()?, &buffer.instance(&json.owner))?;
        found.extend(instance.map(|instance| (buffer, instance)));
    }
    Ok(found)
}

/// Removes the instances of an owner, and the owner's note. Returns the number of events in the buffers of
/// the instances.
fn forget(root: &Dir, name: &str) -> Result<u64, Error> {
    let mut dropped = 0u64;
    for buffer in Buffer::ALL {
        let Some(instance) = Instance::find(root.clone(), &buffer.instance(name))? else {
            continue;
        };
        instance.switch(false)?;
        let stats = instance.stats()?;
        dropped = stats.iter().map(Stats::unread).fold(dropped, u64::saturating_add);
        instance
            .remove()
            .map_err(|e| Error::System("remove an instance of the kernel's trace", e))?;
    }
    registry::remove(name);
    Ok(dropped)
}

/// Returns the directory, and derives the mode of new files from the directory's present mode, so that the
/// same users have access.
pub(crate) fn shared_as_is(dir: Folder) -> Folder {
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
    use crate::complete::Counts;
    use crate::state::{EndJson, FILE, FOLDER, VERSION, cpu_file};
    use crate::trace_dat::Description;
    use hypertrace_format::error::error_chain;
    use std::fs;

    /// Returns the identity of a recording that used the kernel's trace during an earlier boot. Such a
    /// recording has no instance any more.
    fn json() -> RecordingJson {
        RecordingJson {
            clock: crate::clock::Clock::Tsc,
            reading: None,
            version: VERSION,
            source: Source::Tracefs,
            owner: "hypertrace.1.2.3".into(),
            boot_id: "another".into(),
            trace_id: 1,
            stolen_ms: None,
            page_size: 4096,
            cpus: vec![0, 1],
            names: String::new(),
            threads: None,
            system: None,
            has_cpus: false,
        }
    }

    /// Makes a session with the remains of a recording: two pages of CPU 0, and one page of CPU 1.
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
        // The page has a time, a length of 8 bytes, and an event of two words.
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
        // The removal fails at a subfolder, wherever the subfolder stands in the order of the names.
        fs::create_dir(folder.join("obstacle")).unwrap();
        assert!(matches!(recover(dir.path()), Err(Error::File { action: "remove", .. })));
        assert!(!folder.join("recording.json").exists(), "what is left is no recording");
        let whole = fs::read(dir.path().join(FILE)).unwrap();
        fs::remove_dir(folder.join("obstacle")).unwrap();
        // A kill in the middle of a removal leaves these files: the identity, but no pages.
        fs::write(folder.join("recording.json"), serde_json::to_vec(&json()).unwrap()).unwrap();
        fs::write(folder.join("head"), "").unwrap();

        assert_eq!(recover(dir.path()).unwrap(), None);

        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), whole);
        assert!(!folder.exists());
    }

    #[test]
    fn remains_with_something_else_in_the_place_of_a_file_are_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
        let node = |at: &Path, kind| mknodat(CWD, at, kind, Mode::RUSR, makedev(1, 5)).is_ok();
        let make = |kind, at: &Path| match kind {
            "a pipe" => node(at, FileType::Fifo),
            // Only root can make a device.
            "a device" => node(at, FileType::CharacterDevice),
            "a link" => std::os::unix::fs::symlink("/dev/zero", at).is_ok(),
            _ => fs::create_dir(at).is_ok(),
        };
        for kind in ["a pipe", "a device", "a link", "a directory"] {
            for name in ["recording.json", "head", "cpu0", "cpu1", "end.json"] {
                let dir = remains(&json());
                let file = dir.path().join(FOLDER).join(name);
                let _ = fs::remove_file(&file);
                if !make(kind, &file) {
                    continue;
                }

                let said = error_chain(&recover(dir.path()).unwrap_err());

                assert!(said.contains(name) && said.contains(kind), "{kind} as {name}: {said}");
                assert!(!dir.path().join(FILE).exists());
            }
        }
    }

    #[test]
    fn a_recording_that_another_process_completes_is_waited_for() {
        let dir = remains(&json());
        let locked = fs::File::open(dir.path().join(FOLDER)).unwrap();
        locked.lock().unwrap();
        let other = std::thread::spawn(move || {
            sleep(Duration::from_millis(200));
            locked.unlock().unwrap();
        });

        let summary = recover(dir.path());

        assert_eq!(summary.unwrap().unwrap().asked.events, 3);
        other.join().unwrap();
    }

    #[test]
    fn losses_are_known_although_the_instance_is_gone() {
        let dir = remains(&json());
        let stats = "entries: 0\noverrun: 7\ncommit overrun: 0\nread events: 5\n";
        let stats = vec![Stats { cpu: 0, text: stats.into() }];
        let end = EndJson { stats, names: "12 vcpu0\n".into(), ..EndJson::default() };
        let text = serde_json::to_vec(&end).unwrap();
        fs::write(dir.path().join(FOLDER).join("end.json"), text).unwrap();

        let summary = recover(dir.path()).unwrap().unwrap();

        // CPU 0 has two events, but the kernel counted five.
        let Counts { events, overwritten, unwritten, losses_known } = summary.asked;
        assert_eq!((events, overwritten, unwritten, losses_known), (3, 7, 3, true));
    }

    #[test]
    fn without_the_kernels_counters_losses_are_unknown() {
        let dir = remains(&json());
        let summary = recover(dir.path()).unwrap().unwrap();
        assert_eq!((summary.asked.events, summary.asked.losses_known), (3, false));
    }

    #[test]
    fn the_threads_of_the_filter_are_in_the_file() {
        for (threads, expected) in [(Some(vec![12, 34]), true), (None, false)] {
            let dir = remains(&json());
            let state = State::left(open_dir(dir.path(), Share::Owner).unwrap()).unwrap().unwrap();
            threads.into_iter().for_each(|threads| state.set_threads(threads).unwrap());
            drop(state);

            let summary = recover(dir.path()).unwrap().unwrap();

            let file = fs::read(summary.path).unwrap();
            let text = String::from_utf8_lossy(&file);
            assert_eq!(text.contains("; threads=12,34\0"), expected);
        }
    }

    #[test]
    fn forged_numbers_of_cpus_are_damage() {
        for cpus in [vec![u32::MAX], vec![8192], vec![0; 20], vec![1, 0]] {
            let dir = remains(&RecordingJson { cpus: cpus.clone(), ..json() });
            assert!(matches!(recover(dir.path()), Err(Error::Damaged { .. })), "{cpus:?}");
        }
    }

    #[test]
    fn an_owner_that_names_a_file_elsewhere_is_damage_and_the_file_stays() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "mine").unwrap();
        let owner = format!("{}{}", "../".repeat(9), file.display());
        let dir = remains(&RecordingJson { owner, ..json() });

        assert!(matches!(recover(dir.path()), Err(Error::Damaged { .. })));

        assert!(file.exists());
    }

    #[test]
    fn a_hole_in_a_file_of_pages_is_not_copied() {
        let dir = remains(&json());
        let file = dir.path().join(FOLDER).join(cpu_file(1));
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(1 << 30).unwrap();

        let summary = recover(dir.path()).unwrap().unwrap();

        assert_eq!((summary.asked.events, summary.damage.len()), (3, 1), "{summary:?}");
        assert!(fs::metadata(summary.path).unwrap().len() < 1 << 16);
    }

    #[test]
    fn a_session_without_the_hosts_clock_is_an_error() {
        let dir = remains(&json());
        let session = dir.path().join("session.json");
        let mut text: serde_json::Value =
            serde_json::from_slice(&fs::read(&session).unwrap()).unwrap();
        text["clocks"] = serde_json::json!([]);
        fs::write(&session, text.to_string()).unwrap();

        assert!(matches!(recover(dir.path()), Err(Error::File { action: "use", .. })));
    }
}
