//! Target `reader`: if a session is damaged anywhere, then the reader returns an error that names a file, and
//! never panics.

use crate::input::Input;
use crate::session::write_sample;
use hypertrace_test_support::kept;
use hypertrace_timeline::{ClockMaps, Recording, Result, Session, SessionStat};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Files of a session.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Maximum number of times that an input damages the session.
const MAX_DAMAGE: usize = 64;

/// Panics if the reader panics on a damaged session, or returns an error that names no file.
pub fn run(bytes: &[u8]) {
    let files = damage_all(sample().clone(), &mut Input::new(bytes));
    let dir = TempDir::new().expect("a directory");
    write(&files, dir.path());
    if let Err(error) = read(dir.path()) {
        let said = error.to_string();
        assert!(said.contains(&*dir.path().to_string_lossy()), "names no file: {said}");
    }
}

/// Reads a session with each of the readers.
pub fn read(dir: &Path) -> Result<usize> {
    let session = Session::open(dir)?;
    SessionStat::of(&session)?;
    let maps = ClockMaps::of(&session)?;
    let recording = Recording::of([(session, maps)], []);
    Ok(kept::events(&recording)?.len())
}

/// Writes files to a directory.
pub fn write(files: &Files, dir: &Path) {
    for (name, content) in files {
        let path = dir.join(name);
        let parent = path.parent().expect("it has a name");
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, content))
            .expect("room");
    }
}

/// Reads all files in a directory, except for the file `metadata`, because this reader does not use
/// `metadata`.
pub fn files_of(dir: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("metadata") {
                let name = path.strip_prefix(dir).expect("it is in there").to_owned();
                files.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    files
}

/// Returns a complete session. The first call writes the session.
fn sample() -> &'static Files {
    static SAMPLE: OnceLock<Files> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = TempDir::new().expect("a directory");
        write_sample(dir.path());
        files_of(&dir.path().join("s"))
    })
}

/// Damages files as the input says.
pub fn damage_all(mut files: Files, input: &mut Input<'_>) -> Files {
    for _ in 0..MAX_DAMAGE {
        if input.is_empty() {
            break;
        }
        damage(&mut files, input);
    }
    files
}

/// Damages one file.
fn damage(files: &mut Files, input: &mut Input<'_>) {
    let at = input.below(files.len().max(1));
    let Some((name, content)) = files.iter_mut().nth(at) else { return };
    let place = place(input, content.len());
    match input.below(8) {
        // Overwrite a field or a word.
        0..=2 => overwrite(content, place, &input.value().to_le_bytes()),
        3 => overwrite(content, place, &(input.value() as u32).to_le_bytes()),
        4 => overwrite(content, place, &input.bytes(16)),
        5 => content.truncate(place),
        6 => {
            content.splice(place..place, input.bytes(200));
        }
        _ => {
            let (name, content) = (name.clone(), content.clone());
            match input.below(3) {
                // Duplicate packets in a stream's next file.
                0 => {
                    let twin = format!("{}{}", name.display(), input.u8() % 4);
                    files.insert(twin.into(), content);
                }
                1 => {
                    files.remove(&name);
                }
                _ => {
                    // Replace or remove a packet.
                    let (from, to) = (place & !127, usize::from(input.u8()) * 128);
                    let packet = content.get(from..content.len().min(from + 256));
                    let packet = packet.unwrap_or_default().to_vec();
                    if let Some(content) = files.get_mut(&name) {
                        overwrite(content, to, &packet);
                    }
                }
            }
        }
    }
}

/// Decodes the place of a packet header's field, a word, or any byte.
fn place(input: &mut Input<'_>, len: usize) -> usize {
    let at = match input.below(3) {
        0 => usize::from(input.u8()) * 128 + input.below(16) * 8,
        1 => usize::from(input.u16()) * 8,
        _ => usize::from(input.u16()),
    };
    at % (len + 1)
}

fn overwrite(content: &mut [u8], at: usize, bytes: &[u8]) {
    content.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn a_damaged_session_is_read_or_named(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            run(&bytes);
        }
    }

    #[test]
    fn the_undamaged_session_is_whole() {
        let dir = TempDir::new().unwrap();
        write_sample(dir.path());
        assert!(read(&dir.path().join("s")).unwrap() > 250);
    }
}
