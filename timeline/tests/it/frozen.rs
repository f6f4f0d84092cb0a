// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that the reader gives the same entries for the session in `frozen/` as when the session was added.
//! The session has the version that the reader takes. These files never change. If the format changes, the
//! format gets a new version, and the new version gets its own session in `frozen/`. Times of guests may move
//! within their bounds when the map of clocks changes.

use hypertrace_test_support::kept::{self, Entry};
use hypertrace_timeline::{ClockMaps, Needs, Recording, Session, SessionStat};
use hypertrace_trace::session_json::VERSION;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn frozen(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/frozen/version-{version}"))
}

/// Formats all entries of a session, one per line, and the session's totals.
fn entries(dir: &Path) -> String {
    let session = Session::open(dir).unwrap();
    let stat = SessionStat::of(&session).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let (entries, _) = kept::entries(&recording, Needs::ALL).unwrap();
    let mut text = String::new();
    for entry in entries {
        match entry {
            Entry::Event(e) => {
                let bound = e.bound_ns.map_or("?".into(), |bound| bound.to_string());
                let (ts, source, name) = (e.ts_ns, e.source.escape_debug(), &e.name);
                write!(text, "{ts} +-{bound} {source}: {name} {:?} {}", e.kind, e.flags).unwrap();
                for (name, value) in &e.fields {
                    write!(text, " {name}={value:?}").unwrap();
                }
                writeln!(text).unwrap();
            }
            Entry::Lost(lost) => {
                let source = lost.source.text.escape_debug();
                writeln!(text, "{:?} {source}: {} lost", lost.ts_ns, lost.events).unwrap();
            }
        }
    }
    let total = &stat.total;
    let (events, points) = (total.events, total.reference_points);
    let (lost, faults) = (total.lost, total.faults);
    writeln!(text, "{events} events, {points} points, {lost} lost, {faults} faults").unwrap();
    text
}

/// Returns the time, the bound and the rest of a line. A loss gets the bound of the previous event.
fn parts(line: &str, before: i64) -> (i64, i64, &str) {
    if let Some((ts, rest)) = line.split_once(" +-") {
        let (bound, what) = rest.split_once(' ').unwrap();
        return (ts.parse().unwrap(), bound.parse().unwrap(), what);
    }
    // The line of a guest's loss begins with the time of one of the guest's events.
    match line.strip_prefix("Some(").and_then(|line| line.split_once(')')) {
        Some((ts, what)) => (ts.parse().unwrap(), before, what),
        None => (0, before, line),
    }
}

#[test]
fn a_session_of_each_version_gives_the_same_entries_as_when_it_was_written() {
    {
        let version = VERSION;
        let dir = frozen(version);
        let expected = std::fs::read_to_string(dir.join("expected.txt")).unwrap();
        let found = entries(&dir);
        assert_eq!(found.lines().count(), expected.lines().count(), "version {version}");
        let mut before = 0;
        for (found, expected) in found.lines().zip(expected.lines()) {
            let (ts, bound, what) = parts(found, before);
            let (was, _, expected) = parts(expected, before);
            before = bound;
            assert_eq!(what, expected, "version {version}");
            assert!((ts - was).abs() <= bound, "version {version}: {found}");
        }
    }
}
