//! Recordings of guests' kernels, as commands on the host find them while a session continues.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hypertrace::{event, reference_point};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::traced::{self, Notes};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Notes: recordings that the program has sent, and those that it may send.
const SENT: u64 = 0;
const ALLOWED: u64 = 1;

/// Numbers of the recordings, the greater one first: a number by their order would change.
const RECORDINGS: [u64; 2] = [0xf00d, 0xbeef];

/// Bytes of a page's header: time, and count of bytes.
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

fn send_recording(recording: u64) {
    let json = serde_json::json!({
        "version": 1, "source": "tracefs", "owner": "hypertrace.1.2.3", "boot_id": "", "trace_id": recording,
        "page_size": 4096, "cpus": [0], "names": "",
    });
    send(recording, "head", &head());
    send(recording, "recording.json", json.to_string().as_bytes());
    send(recording, "cpu0", &page());
    send(recording, "end.json", br#"{"stats":[],"names":""}"#);
    reference_point!("sent").unwrap();
}

/// As a program, sends one recording after the other, each when the test allows it.
fn program(notes: &str) {
    let notes = Notes::at(Path::new(notes));
    for (n, recording) in (1..).zip(RECORDINGS) {
        send_recording(recording);
        notes.set(SENT, n);
        wait_for(|| notes.get(ALLOWED) >= n);
    }
}

#[track_caller]
fn wait_for(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(10));
    }
}

fn start(dir: &Path, name: &str) -> (Child, Notes) {
    let path = dir.join("notes");
    let notes = Notes::at(&path);
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(dir.join("S"));
    traced::program(&mut command, name, path.to_str().unwrap());
    (command.stdout(Stdio::null()).spawn().unwrap(), notes)
}

/// Returns the files of recordings in a session, after a command that shows it. They are no traces: the
/// descriptions have no layout of a page.
fn shown(session: &Path) -> BTreeSet<String> {
    run(HYPERTRACE.command(["stat"]).arg(session)).code.unwrap();
    let names = fs::read_dir(session).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".dat")).collect()
}

#[test]
fn a_recording_that_comes_after_another_was_shown_is_shown_too() {
    if let Some(notes) = traced::argument() {
        return program(&notes);
    }
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("S");
    let name = "a_recording_that_comes_after_another_was_shown_is_shown_too";
    let (mut process, notes) = start(folder.path(), name);
    wait_for(|| notes.get(SENT) == 1);
    wait_for(|| shown(&session).len() == 1);
    let first = shown(&session);
    notes.set(ALLOWED, 2);
    assert!(process.wait().unwrap().success());

    let all = shown(&session);

    assert!(first.is_subset(&all), "{first:?} {all:?}");
    for recording in RECORDINGS {
        let file = format!("{recording:016x}.dat");
        assert!(all.iter().any(|name| name.ends_with(&file)), "{file}: {all:?}");
    }
    // As by a kill of the command that made them.
    for left in [all.difference(&first).next().unwrap(), ".guest-kernels"] {
        fs::remove_file(session.join(left)).unwrap();
    }
    let parts = session.join(format!(".{}.parts", all.difference(&first).next().unwrap()));
    fs::create_dir(&parts).unwrap();
    let other = fs::File::open(&parts).unwrap();
    other.lock().unwrap();
    let beside = run(HYPERTRACE.command(["stat"]).arg(&session));
    assert!(beside.stderr.contains("another command makes their file now"), "{beside:?}");
    drop(other);
    assert_eq!(shown(&session), all);
    let again = run(HYPERTRACE.command(["stat"]).arg(&session));
    assert!(!again.stderr.contains("a guest's kernel: "), "they are made once: {again:?}");
}

#[test]
fn a_program_outside_of_a_vm_has_no_kernel_to_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(folder.path().join("S")).args(["--", HYPERTRACE.0, "record", "--guest"]);

    let said = run(&mut command).failed(2);

    assert!(said.contains("`hypertrace run --kernel` records this one"), "{said}");
}
