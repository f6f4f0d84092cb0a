//! Target `kernel`: if the trace of a kernel is damaged anywhere, then the reader returns an error that names
//! the file, or a warning, and never panics.

use crate::input::Input;
use crate::reader::{Files, damage_all, write};
use hypertrace_test_support::kept;
use hypertrace_test_support::trace_dat::{Page, TraceDat, guest, time_shift, trace_id, tsc2nsec};
use hypertrace_timeline::{KernelTrace, Recording, Result};
use std::path::Path;
use tempfile::TempDir;

const FILE: &str = "kernel.dat";

/// Panics if the reader panics on a damaged trace. The function also panics if the reader's error does not
/// name the file.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let whole = match input.below(3) {
        0 => sample().version_6(),
        1 => sample().version_7(),
        // trace-cmd made this file.
        _ => include_bytes!("../../../timeline/tests/kernel/zstd.dat").to_vec(),
    };
    let files = damage_all(Files::from([(FILE.into(), whole)]), &mut input);
    let dir = TempDir::new().expect("a directory");
    write(&files, dir.path());
    if let Err(error) = read(&dir.path().join(FILE)) {
        let said = error.to_string();
        assert!(said.contains(FILE), "names no file: {said}");
    }
}

/// Reads a trace's counters and events. Returns the number of events.
fn read(path: &Path) -> Result<usize> {
    let mut traces = [KernelTrace::open(path)?, KernelTrace::open(path)?];
    KernelTrace::pair(&mut traces);
    traces[0].stat()?;
    let recording = Recording::of([], traces);
    Ok(kept::events(&recording)?.len())
}

/// Returns a small trace with all options.
fn sample() -> TraceDat {
    let page = |time| Page::at(time).mmio(1, 77, time).switch(2, (77, "a"), 3, (5, "b"));
    let trace = TraceDat::new("x86-tsc").cpu(&[page(1_000), page(2_000).missed(true)]);
    let options = [trace_id(1), guest("g", 1), time_shift(1, -5, 3, 1), tsc2nsec(7, 3)];
    options.into_iter().fold(trace.cpu(&[page(3)]), TraceDat::option)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn a_damaged_trace_is_read_or_named(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            run(&bytes);
        }
    }

    #[test]
    fn the_undamaged_traces_are_whole() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(FILE);
        for bytes in [sample().version_6(), sample().version_7()] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap(), 2 * 6);
        }
    }
}
