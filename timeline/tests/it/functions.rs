// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Function traces on the timeline of a session of the same boot.

use hypertrace_format::error::BadInput;
use hypertrace_functions::clock::Anchor;
use hypertrace_functions::symbols::Source;
use hypertrace_test_support::kept::{self, Entry};
use hypertrace_test_support::{functions, made};
use hypertrace_timeline::{ClockMaps, FunctionTrace, Needs, Recording, Session};
use made::*;
use std::path::{Path, PathBuf};

/// Host's counter at a trace's time 0: 500 ns after the session's tick 0.
const BEGIN: u64 = 1_000_500;
const MAIN: u64 = 0x40_1000;
const WORK: u64 = 0x40_1100;

fn anchor(boot: &str) -> Anchor {
    let boot_id = Some(boot.into());
    // The anchor and the session read different times from the system's clock. This difference does not
    // matter, because within one boot the reader uses the counter.
    Anchor { boot_id, counter: BEGIN, frequency: GHZ, unix_ns: START_NS + 77_777 }
}

/// Writes a trace of one task below a folder.
fn write(folder: &Path, name: &str, boot: &str, records: &[(u64, char, u64)]) -> PathBuf {
    let path = folder.join(name);
    functions::write_task(&path, &anchor(boot), records);
    path
}

/// Opens a trace with the names of two functions.
fn open(folder: &Path, path: &Path) -> FunctionTrace {
    let symbols = folder.join("symbols");
    std::fs::write(&symbols, "401000 T main\n401100 T work\n401200 D data\n").unwrap();
    let mut trace = FunctionTrace::open(path).unwrap();
    trace.add_symbols(&Source { path: symbols, offset: 0 }).unwrap();
    trace
}

/// Opens a session with host events at these ticks.
fn session(made: &Made) -> (Session, ClockMaps) {
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    (session, maps)
}

fn with_host_events(boot: &str, ticks: &[u64]) -> Made {
    let mut packet = Packet::host(0);
    for &tick in ticks {
        packet = packet.event(tick, VCPU_EXIT, &[1]);
    }
    Made::of_boot(Some(boot)).stream("host-000-0000", &[packet])
}

/// Returns the entries in a short form: name, function, nanoseconds since the session's start.
fn shown(
    sessions: impl Into<Vec<(Session, ClockMaps)>>,
    functions: impl Into<Vec<FunctionTrace>>,
) -> Vec<String> {
    let recording = Recording { functions: functions.into(), ..Recording::of(sessions, []) };
    let (entries, _) = kept::entries(&recording, Needs::ALL).unwrap();
    let mut shown = Vec::new();
    for entry in entries {
        shown.push(match entry {
            Entry::Event(event) => {
                let fields = event.fields.iter().map(|(name, value)| format!(" {name}={value:?}"));
                let fields: String = fields.collect();
                let since = event.ts_ns - START_NS;
                format!("{since} {} {}{fields} {:?}", event.source, event.name, event.bound_ns)
            }
            Entry::Lost(lost) => format!("{} lost {}", lost.ts_ns.unwrap() - START_NS, lost.events),
        });
    }
    shown
}

#[test]
fn an_event_stands_inside_the_function_that_emitted_it() {
    let folder = tempfile::tempdir().unwrap();
    let records = [(0, '+', MAIN), (100, '+', WORK), (300, '-', WORK), (400, '-', MAIN)];
    let path = write(folder.path(), "F", BOOT, &records);
    // Some events are in the same nanosecond as the entry or the exit.
    let made = with_host_events(BOOT, &[600, 700, 800]);
    let sessions = [session(&made)];
    let mut functions = open(folder.path(), &path);
    functions.place(&[&sessions[0].0], None).unwrap();

    let shown = shown(sessions, [functions]);

    let expected = [
        r#"500 functions/cpu0 Ring3 function_entry name=Name("main") depth=Unsigned(0) Some(1)"#,
        r#"600 functions/cpu0 Ring3 function_entry name=Name("work") depth=Unsigned(1) Some(1)"#,
    ];
    assert_eq!(shown[0], expected[0], "{shown:#?}");
    let at = |what: &str| shown.iter().position(|line| line.contains(what)).unwrap();
    let exit = |name: &str| at(&format!(r#"function_exit name=Name("{name}")"#));
    let inner = shown.iter().filter(|line| line.contains("vcpu_exit")).count();
    assert_eq!(inner, 3);
    assert!(shown.contains(&expected[1].to_owned()), "{shown:#?}");
    assert!(at("700 vmm") > at("600 functions") && at("700 vmm") < exit("work"), "{shown:#?}");
    assert!(exit("work") < exit("main"));
}

#[test]
fn losses_and_functions_without_a_name_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let records = [(10, '+', 0x50_0000), (20, '!', 7), (30, '-', 0x50_0000)];
    let path = write(folder.path(), "F", BOOT, &records);
    let made = with_host_events(BOOT, &[1]);
    let sessions = [session(&made)];
    let mut functions = open(folder.path(), &path);
    functions.place(&[&sessions[0].0], None).unwrap();

    let shown = shown(sessions, [functions]);

    assert!(shown[1].contains("function_entry address=Hex(5242880)"), "{shown:#?}");
    assert_eq!(shown[2], "520 lost 7");
}

#[test]
fn a_trace_of_another_boot_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "F", OTHER_BOOT, &[(0, '+', MAIN)]);
    let made = with_host_events(BOOT, &[1]);
    let (session, _) = session(&made);
    let mut functions = open(folder.path(), &path);

    let error = functions.place(&[&session], None).unwrap_err();

    assert!(error.is_bad_input());
    let said = error.to_string();
    assert!(said.contains("F: recorded on another machine, or after another boot"), "{said}");
    assert!(said.contains(&made.path().display().to_string()), "{said}");
}

#[test]
fn a_trace_without_a_session_has_its_own_anchor() {
    let folder = tempfile::tempdir().unwrap();
    let first = write(folder.path(), "F", BOOT, &[(0, '+', MAIN), (9, '-', MAIN)]);
    let second = write(folder.path(), "G", BOOT, &[(5, '+', WORK)]);
    let other = write(folder.path(), "H", OTHER_BOOT, &[]);
    let first = open(folder.path(), &first);
    let mut second = open(folder.path(), &second);
    second.place(&[], Some(&first)).unwrap();

    assert!(open(folder.path(), &other).place(&[], Some(&first)).is_err());
    assert_eq!(first.start_unix_ns(), START_NS + 77_777);
    let shown = shown([], [first, second]);

    assert!(shown[1].starts_with("77782 G:functions/cpu0 Ring3 function_entry"), "{shown:#?}");
    assert!(shown[2].starts_with("77786 F:functions/cpu0 Ring3 function_exit"), "{shown:#?}");
}

#[test]
fn a_directory_without_an_anchor_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "F", BOOT, &[]);
    std::fs::remove_file(path.join("hypertrace.json")).unwrap();

    let error = FunctionTrace::open(&path).unwrap_err();

    assert!(error.is_bad_input() && error.to_string().contains("no hypertrace.json"), "{error}");
}

#[test]
fn damaged_records_are_left_out_with_a_warning_that_has_file_and_byte() {
    let folder = tempfile::tempdir().unwrap();
    let records = [(0, '+', MAIN), (5, '+', MAIN), (7, '-', MAIN), (9, '-', MAIN)];
    let path = write(folder.path(), "F", BOOT, &records);
    let records = path.join("103.dat");
    let mut bytes = std::fs::read(&records).unwrap();
    bytes[16 + 8] = 0;
    std::fs::write(&records, bytes).unwrap();
    let functions = vec![open(folder.path(), &path)];
    let recording = Recording { functions, ..Recording::default() };

    let (entries, warnings) = kept::entries(&recording, Needs::ALL).unwrap();

    assert_eq!(entries.len(), 3, "{entries:?}");
    let [warning] = &*warnings else { panic!("{warnings:?}") };
    assert!(warning.contains("103.dat: damaged at byte 16"), "{warning}");
}

#[test]
fn an_events_time_in_the_trace_is_between_those_of_its_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "F", BOOT, &[]);
    let made = with_host_events(BOOT, &[700]);
    let sessions = [session(&made)];
    let mut functions = open(folder.path(), &path);
    functions.place(&[&sessions[0].0], None).unwrap();

    assert_eq!(functions.time_at(START_NS + 700), 200);
    assert_eq!(functions.time_at(START_NS), 0);
}
