//! Tests of the export for uftrace: uftrace reads the output, and events are inside the functions that
//! emitted them.

use hypertrace_export::uftrace::{Counts, Source, beside, compiled};
use hypertrace_format::error::BadInput;
use hypertrace_functions::clock::Anchor;
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::symbols::{self, Symbols};
use hypertrace_functions::write::WINDOW;
use hypertrace_test_support::{functions, made, uftrace as reader};
use hypertrace_timeline::{EntryRef, EventKind, FunctionTrace, Given, Module, Recording, ValueRef};
use made::*;
use reader::outputs;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const MAIN: u64 = 0x40_1000;
const WORK: u64 = 0x40_1100;

/// Returns the names of two functions, at their addresses in a file.
fn module(folder: &Path, is_in_file: bool) -> Module {
    let path = folder.join("symbols");
    fs::write(&path, "401000 T main\n401100 T work\n401200 D data\n").unwrap();
    let symbols = Symbols::read(&symbols::Source { path, offset: 0 }).unwrap();
    Module { name: "program".into(), symbols, is_in_file }
}

/// Returns the text of an entry: the name of an event, or the number of lost events.
fn text(entry: &EntryRef<'_>) -> Option<String> {
    match entry {
        EntryRef::Event(event) if event.kind == EventKind::Lease => None,
        EntryRef::Event(event) => Some(event.name.to_string()),
        EntryRef::Lost(lost) => Some(format!("{} lost", lost.events)),
    }
}

/// Ids of the events that a program with compiled-in functions declares.
const ENTRY: u32 = 16;
const EXIT: u32 = 17;
const OTHER: u32 = 18;
const MODULE: u32 = 19;
const EVENTS: &str = r#"[
    {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
    {"id":17,"schema":"function_exit(address:x64)","reference_point":false},
    {"id":18,"schema":"other(n:u64)","reference_point":false},
    {"id":19,"schema":"function_module(offset:x64,begin:x64,end:x64,path:str)","reference_point":false}
]"#;

/// Makes a session of a program. Each client has these packets, with times of the host's clock.
fn program(clients: &[&[Packet]]) -> Made {
    let clock = clock(0, "host", 0, GHZ, 1_000_000, START_NS);
    let json = json(&format!("[{clock}]"), EVENTS, "[]");
    let made = Made::with_json(&json.replacen('{', r#"{"programs":true,"#, 1));
    clients.iter().enumerate().fold(made, |made, (client, packets)| {
        made.stream(&format!("guest-{client:03}-0000"), packets)
    })
}

fn client(number: u32) -> Packet {
    Packet::new(1, number, 0)
}

fn open(made: &Made) -> Recording {
    Recording::open(&[Given::new(made.path())]).unwrap()
}

/// Exports a program's session. Returns the counts, and the directory.
fn export(made: &Made, folder: &Path, is_in_file: bool) -> (Counts, PathBuf) {
    let (recording, modules) = (open(made), [module(folder, is_in_file)]);
    let source = Source { recording: &recording, modules: &modules, text: &text };
    let out = folder.join("out");
    (compiled(&source, &out).unwrap().0, out)
}

/// Writes a function trace with two functions. The first function lasts from 100 to 900 ns after the
/// session's start, and the second function is inside the first.
fn function_trace(folder: &Path) -> PathBuf {
    let path = folder.join("F");
    let anchor =
        Anchor { boot_id: Some(BOOT.into()), counter: 1_000_000, frequency: GHZ, unix_ns: 0 };
    let calls = [(100, '+', MAIN), (300, '+', WORK), (600, '-', WORK), (900, '-', MAIN)];
    functions::write_task(&path, &anchor, &calls);
    path
}

/// Exports a function trace together with a session that has a host event at each of these ticks.
fn export_beside(folder: &Path, path: &Path, ticks: &[u64]) -> PathBuf {
    let mut packet = Packet::host(0);
    for &tick in ticks {
        packet = packet.event(tick, VCPU_EXIT, &[1]);
    }
    let made = Made::of_boot(Some(BOOT)).stream("host-000-0000", &[packet]);
    let (recording, modules) = (open(&made), [module(folder, false)]);
    let mut functions = FunctionTrace::open(path).unwrap();
    functions.place(&[&recording.sessions[0].0], None).unwrap();
    let source = Source { recording: &recording, modules: &modules, text: &text };
    let out = folder.join("out");
    let (counts, warnings) = beside(&source, &functions, &out).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!((counts.tasks, counts.events), (1, ticks.len() as u64));
    out
}

#[test]
fn events_stand_among_the_calls_of_a_function_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = function_trace(folder.path());

    let out = export_beside(folder.path(), &path, &[200, 400, 700]);

    for lines in outputs(&["replay", "-f", "none"], &out, "") {
        let event = "/* external-data: vcpu_exit */";
        let expected =
            ["main() {", event, "work() {", event, "} /* work */", event, "} /* main */"];
        assert_eq!(lines, expected);
    }
    let events = fs::read_to_string(out.join("extern.dat")).unwrap();
    assert_eq!(events.lines().nth(1), Some("0.000000400 vcpu_exit"));
}

#[test]
fn records_are_linked_and_those_of_a_killed_recorder_copied_without_its_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = function_trace(folder.path());
    let records = path.join("103.dat");

    let out = export_beside(folder.path(), &path, &[200]);

    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&out.join("103.dat")), inode(&records));
    fs::remove_dir_all(&out).unwrap();
    fs::File::options().append(true).open(&records).unwrap().set_len(WINDOW).unwrap();

    let out = export_beside(folder.path(), &path, &[200]);

    assert_eq!(fs::metadata(out.join("103.dat")).unwrap().len(), 4 * 16);
    assert_eq!(fs::metadata(&records).unwrap().len(), WINDOW);
    assert!(Trace::open(&out).unwrap().anchor().is_some());
}

#[test]
fn compiled_in_functions_have_a_track_for_each_thread() {
    let folder = tempfile::tempdir().unwrap();
    let first = client(0)
        .lease(100, 7, "first")
        .event(200, ENTRY, &[MAIN])
        .event(300, OTHER, &[1])
        .event(400, ENTRY, &[WORK])
        .event(500, OTHER, &[2])
        .event(600, EXIT, &[WORK])
        .event(900, EXIT, &[MAIN]);
    let second =
        client(1).lease(100, 8, "second").event(450, ENTRY, &[WORK]).event(700, EXIT, &[WORK]);
    let made = program(&[&[first], &[second]]);

    let (counts, out) = export(&made, folder.path(), false);

    assert_eq!((counts.tasks, counts.events, &*counts.left_out()), (2, 2, ""));
    let trace = Trace::open(&out).unwrap();
    let names: Vec<_> = trace.tasks().iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&"first") && names.contains(&"second"), "{names:?}");
    for lines in outputs(&["replay", "-f", "none"], &out, "") {
        let event = "/* external-data: other */";
        let expected = [
            "main() {",
            event,
            "work() {",
            "work() {",
            event,
            "} /* work */",
            "} /* work */",
            "} /* main */",
        ];
        assert_eq!(lines, expected);
    }
}

#[test]
fn events_are_inside_their_functions_if_the_counter_has_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    // Three events of the first thread have the tick 300. Another thread has events at the next tick.
    let first = client(0)
        .lease(100, 7, "first")
        .event(200, ENTRY, &[MAIN])
        .event(250, ENTRY, &[WORK])
        .event(300, OTHER, &[1])
        .event(300, OTHER, &[2])
        .event(300, EXIT, &[WORK])
        .event(900, EXIT, &[MAIN]);
    let second = client(1)
        .lease(100, 8, "second")
        .event(280, ENTRY, &[WORK])
        .event(301, OTHER, &[3])
        .event(301, EXIT, &[WORK]);
    let numbered = |entry: &EntryRef<'_>| match entry {
        EntryRef::Event(event) => match event.fields.iter().next() {
            Some((_, ValueRef::Unsigned(number))) => Some(format!("{} {number}", event.name)),
            _ => None,
        },
        EntryRef::Lost(_) => None,
    };
    let made = program(&[&[first], &[second]]);
    let (recording, modules) = (open(&made), [module(folder.path(), false)]);
    let source = Source { recording: &recording, modules: &modules, text: &numbered };
    let out = folder.path().join("out");

    compiled(&source, &out).unwrap();

    for lines in outputs(&["replay", "-f", "none"], &out, "") {
        let event = |number| format!("/* external-data: other {number} */");
        let is_end = |line: &&String| line.starts_with('}');
        let inside: Vec<_> = lines.iter().skip(3).take_while(|line| !is_end(line)).collect();
        assert_eq!(inside, [&event(1), &event(2), &event(3)], "{lines:#?}");
    }
}

#[test]
fn a_client_with_another_holder_is_another_track() {
    let folder = tempfile::tempdir().unwrap();
    let first = client(0).lease(100, 7, "first").event(200, ENTRY, &[MAIN]).event(300, OTHER, &[1]);
    // The first thread was killed, so its function has no exit.
    let second = client(0).after(&first).lease(400, 8, "second").event(500, ENTRY, &[WORK]);
    let made = program(&[&[first, second.event(800, EXIT, &[WORK])]]);

    let (counts, out) = export(&made, folder.path(), false);

    assert_eq!((counts.tasks, &*counts.left_out()), (2, ""));
    let summary = Summary::of(&Trace::open(&out).unwrap());
    assert_eq!((summary.calls, summary.unfinished, summary.orphans), (2, 0, 0));
    assert_eq!(summary.function(WORK).unwrap().total, 300);
    for lines in outputs(&["report"], &out, "") {
        assert!(lines.iter().any(|line| line.ends_with(" 1 work")), "{lines:#?}");
    }
}

#[test]
fn threads_of_one_number_are_tracks_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let packet = |number| {
        client(number).lease(100, 7, "same").event(200, ENTRY, &[MAIN]).event(900, EXIT, &[MAIN])
    };
    let made = program(&[&[packet(0)], &[packet(1)], &[packet(2)]]);

    let (counts, out) = export(&made, folder.path(), false);

    assert_eq!((counts.tasks, &*counts.left_out()), (3, ""));
    let trace = Trace::open(&out).unwrap();
    let mut numbers = Vec::from_iter(trace.tasks().iter().map(|task| task.tid));
    numbers.sort_unstable();
    assert_eq!(numbers, [43, 1_000_000_000, 1_000_000_001]);
    assert_eq!(Summary::of(&trace).calls, 3);
}

#[test]
fn functions_whose_names_are_too_long_together_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    let line = |number: u64| format!("{:x} T {number}{}\n", 0x1000 + number, "x".repeat(4_000));
    fs::write(&path, Vec::from_iter((0..20_000).map(line)).concat()).unwrap();
    let module = Module::read(&symbols::Source { path, offset: 0 }).unwrap();
    let functions = module.symbols.len() as u64;
    let modules = [module];
    let made = [
        program(&[&[client(0).event(200, ENTRY, &[MAIN]).event(300, EXIT, &[MAIN])]]),
        Made::of_boot(Some(BOOT)),
    ];
    let recordings = made.each_ref().map(open);
    let [compiled_in, traced] =
        recordings.each_ref().map(|recording| Source { recording, modules: &modules, text: &text });
    let mut trace = FunctionTrace::open(&function_trace(folder.path())).unwrap();
    trace.place(&[&recordings[1].sessions[0].0], None).unwrap();
    let outs = ["compiled", "beside"].map(|name| folder.path().join(name));

    let counts =
        [compiled(&compiled_in, &outs[0]).unwrap().0, beside(&traced, &trace, &outs[1]).unwrap().0];

    for (counts, out) in counts.iter().zip(&outs) {
        let trace = Trace::open(out).unwrap();
        let named: u64 = trace.modules().map(|(_, names)| names.len() as u64).sum();
        assert!((1..functions).contains(&counts.without_name), "{counts:?}");
        assert!(counts.without_name + named >= functions, "{counts:?}, {named}");
    }
}

#[test]
fn the_place_of_a_program_is_that_of_its_own_event() {
    let folder = tempfile::tempdir().unwrap();
    let moved = 0x5555_0000_0000;
    let packet = client(0)
        .lease(100, 7, "main")
        .event_str(150, MODULE, &[moved, moved, moved + 0x50_0000], b"/usr/bin/program")
        .event_str(160, MODULE, &[1, 1, 2], b"/lib/libc.so")
        // Another process has the same file at a different place. The place in the first of these events is
        // used.
        .event_str(170, MODULE, &[2 * moved, 1, 2], b"/usr/bin/program")
        .event(200, ENTRY, &[MAIN + moved])
        .event(300, EXIT, &[MAIN + moved]);
    let made = program(&[&[packet]]);

    let (counts, out) = export(&made, folder.path(), true);

    assert_eq!(counts.events, 0);
    assert_eq!(Trace::open(&out).unwrap().function(MAIN + moved).unwrap().name, "main");
    for lines in outputs(&["report"], &out, "") {
        assert!(lines.iter().any(|line| line.ends_with(" 1 main")), "{lines:#?}");
    }
}

#[test]
fn exits_without_an_entry_and_an_end_without_exits_balance() {
    let folder = tempfile::tempdir().unwrap();
    let packet = client(0)
        .lease(100, 7, "main")
        .event(150, EXIT, &[WORK])
        .event(200, ENTRY, &[MAIN])
        .event(300, ENTRY, &[WORK])
        .event(400, OTHER, &[1]);
    let made = program(&[&[packet]]);

    let (counts, out) = export(&made, folder.path(), false);

    assert_eq!((counts.tasks, counts.events, counts.without_entry), (1, 1, 1));
    let summary = Summary::of(&Trace::open(&out).unwrap());
    assert_eq!((summary.calls, summary.unfinished, summary.orphans), (2, 0, 0));
    outputs(&["replay"], &out, "");
}

#[test]
fn lost_events_are_counted_and_a_function_that_is_called_again_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let first =
        client(0).lease(100, 7, "main").event(200, ENTRY, &[MAIN]).event(300, ENTRY, &[WORK]);
    // 3 events were lost after this packet's events.
    let second = client(0).after(&first).with64(56, 3).event(350, OTHER, &[1]);
    let third = client(0)
        .after(&second)
        .event(400, ENTRY, &[WORK])
        .event(500, EXIT, &[WORK])
        .event(900, EXIT, &[MAIN]);
    let made = program(&[&[first, second, third]]);

    let (counts, out) = export(&made, folder.path(), false);

    assert_eq!(counts.left_out(), "");
    let summary = Summary::of(&Trace::open(&out).unwrap());
    assert_eq!((summary.calls, summary.unfinished, summary.lost), (3, 0, 3));
    let depths = outputs(&["graph", "-f", "none"], &out, "");
    for lines in depths {
        assert!(lines.iter().any(|line| line == "(1) main"), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "(2) work"), "{lines:#?}");
    }
}

#[test]
fn a_session_without_functions_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let made = Made::new();
    let recording = open(&made);
    let source = Source { recording: &recording, modules: &[], text: &text };
    let out = folder.path().join("out");

    let error = compiled(&source, &out).unwrap_err();

    assert!(error.is_bad_input() && error.to_string().contains("no functions"), "{error}");
    assert!(!out.exists());
}
