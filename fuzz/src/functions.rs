//! Target `functions`: damage anywhere in a function trace causes an error that names the file, or ends a
//! task's part, and never a panic.

use crate::input::Input;
use crate::reader::{damage_all, files_of, write};
use hypertrace_functions::Result;
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::write::cut;
use std::path::Path;
use tempfile::TempDir;

/// A small trace, which the crate's own tests have too.
#[path = "../../functions/tests/data/mod.rs"]
mod data;

/// Panics if a damaged trace makes the reader panic, or return an error without the file's name.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let folder = TempDir::new().expect("a directory");
    let whole = files_of(&data::write(folder.path()));
    let dir = TempDir::new().expect("a directory");
    write(&damage_all(whole, &mut input), dir.path());
    let name = dir.path().display().to_string();
    match read(dir.path()) {
        Ok(summary) => {
            for error in &summary.damage {
                assert!(error.to_string().contains(&name), "names no file: {error}");
            }
        }
        Err(error) => assert!(error.to_string().contains(&name), "names no file: {error}"),
    }
}

fn read(path: &Path) -> Result<Summary> {
    cut(path)?;
    Ok(Summary::of(&Trace::open(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn a_damaged_function_trace_is_read_or_named(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            run(&bytes);
        }
    }

    #[test]
    fn the_undamaged_function_trace_is_whole() {
        let folder = TempDir::new().unwrap();
        let summary = read(&data::write(folder.path())).unwrap();
        assert_eq!((summary.calls, summary.unfinished, summary.damage.len()), (7, 0, 0));
    }
}
