//! Target `recover`: damage to the session and the segment of a killed process. The recovery writes a
//! recovered session into a folder of the damaged session, or returns an error that names a file. The
//! recovery never panics.

use crate::input::Input;
use crate::reader::{self, Files, damage_all, files_of};
use crate::segment::leave;
use crate::setup::Setup;
use crate::vmm::Options;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Panics if the recovery of damaged files panics, or returns an error that does not name a file.
pub fn run(bytes: &[u8]) {
    let files = damage_all(sample().clone(), &mut Input::new(bytes));
    let dir = TempDir::new().expect("a directory");
    reader::write(&files, dir.path());
    let mut before = files_of(dir.path());
    let config = options().config(&dir.path().join("s"));
    let recovered = hypertrace_user::recover(&dir.path().join("segment"), config);
    let named = |said: String| {
        assert!(said.contains(&*dir.path().to_string_lossy()), "names no file: {said}");
    };
    match recovered {
        Ok(_) => {
            // The recovery does not notice damage to payloads, because only a reader looks at payloads.
            if let Err(error) = reader::read(&dir.path().join("s")) {
                named(error.to_string());
            }
        }
        Err(error) => named(error.to_string()),
    }
    let mut after = files_of(dir.path());
    // Only the segment may have changed: recovery marks in the segment that no host drains its rings any
    // more.
    after.retain(|path, _| !path.starts_with("s/recovered") && path != "segment");
    before.remove(Path::new("segment"));
    assert!(before == after, "something was changed");
}

fn options() -> Options {
    Options { same_counter: true, programs: true, ..Options::plain() }
}

/// Returns the session and the segment of a killed process. The first call writes the session and the
/// segment.
fn sample() -> &'static Files {
    static SAMPLE: OnceLock<Files> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = TempDir::new().expect("a directory");
        let setup = Setup::decode(&mut Input::new(&[0]));
        // The operations are events and points of the honest client, then passes, and then more events.
        let ops: Vec<u8> =
            [36, 20, 26, 2, 0, 18, 1, 37, 30, 3, 36, 20, 23, 31, 2, 36, 9, 38, 32, 1, 36, 9]
                .repeat(3);
        leave(dir.path(), &setup, &options(), &mut Input::new(&ops));
        files_of(dir.path())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_damaged_session_is_recovered_or_named(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            run(&bytes);
        }
    }

    #[test]
    fn the_undamaged_session_is_recovered() {
        let dir = TempDir::new().unwrap();
        reader::write(sample(), dir.path());
        let out = dir.path().join("s");
        let segment = dir.path().join("segment");
        let before = reader::read(&out).unwrap() as u64;
        let (_, summary) = hypertrace_user::recover(&segment, options().config(&out)).unwrap();
        assert!(summary.records > 5 && before > 40, "{before} {summary:?}");
        assert_eq!(reader::read(&out).unwrap() as u64, before + summary.records);
    }
}
