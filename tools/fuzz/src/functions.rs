//! Target `functions`: a function trace that is damaged anywhere. The reader either returns an error that
//! names the file, or leaves out the damaged bytes of a task and reports them with the file's name. Damage
//! never makes the trace's sums, a flame graph, a timeline, or a copy for uftrace panic. Any name of a
//! function can be shown.

use crate::input::Input;
use crate::reader::{damage_all, files_of, write};
use hypertrace_export::uftrace::{Source, beside};
use hypertrace_functions::Result;
use hypertrace_functions::read::{Flame, Spans, Summary, Trace};
use hypertrace_functions::symbols::{MAX_NAME, Symbol};
use hypertrace_functions::write::cut;
use hypertrace_test_support::{functions, kept};
use hypertrace_timeline::{Form, FunctionTrace, Given, Recording};
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

/// Panics if the reader panics on a damaged trace, or returns an error that does not name the file.
pub fn run(bytes: &[u8]) {
    shows(&format!("_Z{}", String::from_utf8_lossy(bytes)));
    shows(&format!("_R{}", String::from_utf8_lossy(bytes)));
    let mut input = Input::new(bytes);
    let folder = TempDir::new().expect("a directory");
    let whole = files_of(&functions::write(folder.path()));
    let dir = TempDir::new().expect("a directory");
    write(&damage_all(whole, &mut input), dir.path());
    let name = dir.path().display().to_string();
    // `read` cuts the trace. `shown` and `exported` therefore run first, while the trace still has everything
    // that a killed recorder leaves.
    for said in [shown(dir.path()), exported(dir.path())].into_iter().flatten() {
        assert!(said.contains(&name), "names no file: {said}");
    }
    match read(dir.path()) {
        Ok(summary) => {
            for error in &summary.damage {
                assert!(error.to_string().contains(&name), "names no file: {error}");
            }
        }
        Err(error) => assert!(error.to_string().contains(&name), "names no file: {error}"),
    }
}

/// Panics if a symbol's readable name is too long, or takes too long to make.
fn shows(symbol: &str) {
    // The symbol is cut to the length that names from files have.
    let end = (0..=MAX_NAME.min(symbol.len())).rev().find(|end| symbol.is_char_boundary(*end));
    let symbol = &symbol[..end.unwrap_or(0)];
    let begin = Instant::now();
    let name = Symbol { address: 0, size: 1, name: symbol }.demangled();
    assert!(name.len() <= MAX_NAME, "{} bytes", name.len());
    assert!(begin.elapsed().as_secs() < 20, "{symbol} takes {:?}", begin.elapsed());
}

fn read(path: &Path) -> Result<Summary> {
    cut(path)?;
    Ok(Summary::of(&Trace::open(path)?))
}

/// Reads the trace as a source of a timeline. Returns the error if the trace is damaged.
fn shown(path: &Path) -> Option<String> {
    let recording = match Recording::open(&[Given { form: Form::Functions, ..Given::new(path) }]) {
        Ok(recording) => recording,
        Err(error) => return Some(error.to_string()),
    };
    let mut last = i64::MIN;
    let read = kept::each_event(&recording, |event| {
        assert!(event.ts_ns >= last, "time runs backwards");
        last = event.ts_ns;
    });
    read.err().map(|error| error.to_string())
}

/// Copies the trace, and makes a flame graph of a part of the time. Returns the error if the trace is
/// damaged.
fn exported(path: &Path) -> Option<String> {
    let functions = FunctionTrace::open(path).ok()?;
    let flame = Flame::of(functions.trace(), Some(&Spans::new([(2_000, 5_000)])));
    let sum: u64 = flame.stacks().iter().map(|(_, time)| *time).fold(0, u64::saturating_add);
    // Each task has at most 3,000 ns.
    assert!(sum <= 3_000 * functions.trace().tasks().len() as u64, "{sum} ns in 3,000");
    let out = TempDir::new().expect("a directory");
    let recording = Recording::default();
    let source = Source { recording: &recording, modules: &[], text: &|_| None };
    let said = beside(&source, &functions, out.path()).err()?.to_string();
    // If two modules have the same name, then the error names the copy, because no file of the trace is at
    // fault. Here, the trace's path replaces the copy's path.
    Some(said.replace(&*out.path().to_string_lossy(), &path.to_string_lossy()))
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

        #[test]
        fn any_symbol_has_a_name(
            parts in prop::collection::vec(prop::sample::select(PARTS), 1..5),
            times in 1..60_usize,
            tail in prop::collection::vec(prop::sample::select(PARTS), 0..5),
        ) {
            for head in ["_Z", "_Z1fI", "_Z1fDT", "_RNvC"] {
                shows(&format!("{head}{}{}", parts.concat().repeat(times), tail.concat()));
            }
        }
    }

    /// Parts of mangled names.
    const PARTS: &[&str] = &[
        "nw", "na", "gs", "I", "IL", "St", "Sa", "S_", "S0_", "T_", "T0_", "X", "DT", "J", "E",
        "F", "N", "L_Z", "cv", "sr", "ds", "qu", "il", "cl", "1a", "i", "v", "P", "Dp", "Ul", "M",
        "A_", "st", "C1", "_", "B_", "Cs0_1a", "TB_", "NvB_", "R", "K",
    ];

    #[test]
    fn the_undamaged_function_trace_is_whole() {
        let folder = TempDir::new().unwrap();
        let summary = read(&functions::write(folder.path())).unwrap();
        assert_eq!((summary.calls, summary.unfinished, summary.damage.len()), (7, 0, 0));
    }
}
