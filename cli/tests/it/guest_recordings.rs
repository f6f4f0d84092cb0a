//! Recordings of guests' kernels, which commands on the host find while the session continues.

use hypertrace_test_support::made;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::thread;

use hypertrace::{event, reference_point};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::traced::{self, Notes};
use hypertrace_tests::{this_test, wait_until};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Notes: number of recordings that the program has sent, and number that the program may send.
const SENT: u64 = 0;
const ALLOWED: u64 = 1;

/// Numbers of the recordings. The larger number comes first, so the test notices if recordings are numbered
/// by their order.
const RECORDINGS: [u64; 2] = [0xf00d, 0xbeef];

/// Size of a page's header in bytes: time, and count of bytes.
const HEADER: usize = 16;

/// Returns descriptions without an event.
fn head() -> Vec<u8> {
    let mut head = b"\x17\x08\x44tracing7\0\0\x08\0\x10\0\0none\0\0\0\0\0\0\0\0\0\0".to_vec();
    let info = [&b"header_page\0"[..], &[0; 8], b"header_event\0", &[0; 8]].concat();
    for (id, body) in [(16u16, &info[..]), (17, &[0; 4]), (18, &[0; 4]), (20, &[0; 4])] {
        head.extend(id.to_le_bytes());
        head.extend([0; 6]);
        head.extend((body.len() as u64).to_le_bytes());
        head.extend(body);
    }
    head
}

/// Returns a page with one event.
fn page() -> Vec<u8> {
    let mut page = vec![0; HEADER];
    page[8] = 8;
    page.extend([1, 0, 0, 0, 7, 7, 7, 7]);
    page
}

fn send(recording: u64, file: &str, bytes: &[u8]) {
    let data: Vec<u64> = bytes
        .chunks(8)
        .map(|part| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    let (at, len) = (0u64, bytes.len() as u32);
    event!("guest_kernel", recording, file, at, len, data = &data[..]);
}

/// Contents of `recording.json`.
fn description(recording: u64) -> Vec<u8> {
    let json = serde_json::json!({
        "version": 1, "source": "tracefs", "owner": "hypertrace.1.2.3", "boot_id": "", "trace_id": recording,
        "page_size": 4096, "cpus": [0], "names": "",
    });
    json.to_string().into_bytes()
}

/// Contents of `end.json`.
const END: &[u8] = br#"{"stats":[],"names":""}"#;

fn send_recording(recording: u64) {
    send(recording, "head", &head());
    send(recording, "recording.json", &description(recording));
    send(recording, "cpu0", &page());
    send(recording, "end.json", END);
    reference_point!("sent").unwrap();
}

/// As a program, sends one recording after another, each when the test allows it.
fn program(notes: &str) {
    let notes = Notes::at(Path::new(notes));
    for (n, recording) in (1..).zip(RECORDINGS) {
        send_recording(recording);
        notes.set(SENT, n);
        wait_until("allowed", || notes.get(ALLOWED) >= n);
    }
}

fn start(dir: &Path, name: &str) -> (Child, Notes) {
    let path = dir.join("notes");
    let notes = Notes::at(&path);
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir.join("S"));
    traced::program(&mut command, name, path.to_str().unwrap());
    (command.stdout(Stdio::null()).spawn().unwrap(), notes)
}

/// Returns the files that `export` makes of the recordings in a session.
fn exported(session: &Path) -> BTreeSet<String> {
    let out = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["export", "--to", "trace-dat", "-o"]);
    run(command.arg(out.path()).arg(session)).code.unwrap();
    names(out.path())
}

fn names(folder: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    names.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn has(files: &BTreeSet<String>, recording: u64) -> bool {
    files.iter().any(|name| name.ends_with(&format!("-{recording:016x}.dat")))
}

#[test]
fn a_recording_that_comes_after_another_was_shown_is_shown_too() {
    if let Some(notes) = traced::argument() {
        return program(&notes);
    }
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("S");
    let (mut process, notes) = start(folder.path(), this_test!());
    wait_until("sent", || notes.get(SENT) == 1);
    wait_until("exported", || exported(&session).len() == 1);
    assert!(has(&exported(&session), RECORDINGS[0]));
    notes.set(ALLOWED, 2);
    assert!(process.wait().unwrap().success());

    let all = exported(&session);

    assert!(all.len() == 2 && RECORDINGS.iter().all(|number| has(&all, *number)), "{all:?}");
}

#[test]
fn a_command_that_shows_a_recording_writes_nothing() {
    if let Some(notes) = traced::argument() {
        return program(&notes);
    }
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("S");
    let (mut process, notes) = start(folder.path(), this_test!());
    notes.set(ALLOWED, 2);
    assert!(process.wait().unwrap().success());
    let before = names(&session);

    for command in ["report", "info", "regions"] {
        // Commands can make no file in a temporary directory.
        let ran = run(HYPERTRACE.command([command]).arg(&session).env("TMPDIR", "/no/such/folder"));
        // The descriptions have no layout of a page, so the file is no trace.
        assert!(ran.stderr.contains("beef.dat: damaged at byte 68: expected pages"), "{ran:?}");
    }

    assert_eq!(names(&session), before);
}

/// Plays a program: two threads begin many recordings, and send some of these recordings. One of these
/// threads has the client that the thread of the last recording gets afterwards. The other thread has another
/// client.
fn noisy_program() {
    let noise = || {
        for number in 0..40 {
            send(1_000 + number, "cpu0", &page());
            send_recording(number);
        }
    };
    let is_done = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(noise).join().unwrap();
        scope.spawn(|| {
            noise();
            is_done.wait();
            is_done.wait();
        });
        is_done.wait();
        scope.spawn(|| send_recording(RECORDINGS[0])).join().unwrap();
        is_done.wait();
    });
}

#[test]
fn recordings_of_any_program_leave_room_for_those_of_another() {
    if traced::argument().is_some() {
        return noisy_program();
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut process, _) = start(folder.path(), this_test!());
    assert!(process.wait().unwrap().success());

    let files = exported(&folder.path().join("S"));

    assert!(has(&files, RECORDINGS[0]), "{files:?}");
    assert_eq!(files.len(), 9, "four of each of the others: {files:?}");
}

/// Pieces of a recording's files, each at the beginning of its file.
type Pieces<'a> = &'a [(&'a str, &'a [u8])];

/// Makes a session in which a client has `count` leases, and each lease sends these pieces of a recording.
fn leases(count: u64, pieces: Pieces<'_>) -> made::Made {
    let schema = made::PIECE;
    let events = format!(r#"[{{"id":16,"schema":"{schema}","reference_point":false}}]"#);
    let made = made::Made::with_json(&made::json(&made::clocks(), &events, "[]"));
    let mut packets = vec![made::Packet::guest(0)];
    for token in 1..=count {
        let packet = made::Packet::guest(0).after(packets.last().unwrap()).with64(80, token);
        let add = |packet: made::Packet, (file, bytes): &(&str, &[u8])| {
            packet.piece((token, 16), (file, 0), bytes)
        };
        packets.push(pieces.iter().fold(packet, add));
    }
    made.stream("guest-000-0000", &packets)
}

#[test]
fn recordings_of_many_leases_are_found_up_to_their_number() {
    let (head, json) = (head(), description(7));
    let made = leases(
        1_100,
        &[("head", &head), ("recording.json", &json), ("cpu0", &page()), ("end.json", END)],
    );

    let files = exported(made.path());

    assert_eq!(files.len(), 1_024);
}

#[test]
fn recordings_that_are_not_shown_are_reported_once() {
    for (pieces, why) in [
        (&[("cpu0", &page()[..])][..], "the guest has not described them"),
        (&[("head", &head()), ("recording.json", &description(7))], "is still being recorded"),
    ] {
        let made = leases(20, pieces);
        let json = made.path().join("session.json");
        let text = fs::read_to_string(&json).unwrap();
        let is_finished = pieces.len() == 1;
        fs::write(&json, text.replace("\"finished\":true", &format!("\"finished\":{is_finished}")))
            .unwrap();

        let ran = run(HYPERTRACE.command(["report"]).arg(made.path()));

        assert_eq!(ran.stderr.matches(why).count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn damage_on_many_cpus_is_reported_in_a_line() {
    let files: Vec<String> = (0..100).map(|cpu| format!("cpu{cpu}")).collect();
    let mut json: serde_json::Value = serde_json::from_slice(&description(7)).unwrap();
    json["cpus"] = (0..100).collect();
    let (head, json, mut page) = (head(), json.to_string(), page());
    // The page has a record that is longer than the page.
    page[HEADER] = 28;
    let mut pieces = vec![("head", &head[..]), ("recording.json", json.as_bytes())];
    pieces.extend(files.iter().map(|file| (&**file, &page[..])));
    pieces.push(("end.json", END));
    let made = leases(1, &pieces);

    let ran = run(HYPERTRACE.command(["report"]).arg(made.path()));

    assert_eq!(ran.stderr.matches("begins no event").count(), 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("; damage in 96 more places"), "{}", ran.stderr);
}

#[test]
fn a_program_outside_of_a_vm_has_no_kernel_to_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(folder.path().join("S")).args(["--", HYPERTRACE.0, "forward"]);

    let said = run(&mut command).failed(2);

    assert!(said.contains("`hypertrace record --kernel` records the host's kernel"), "{said}");
}
