//! SIGKILL for traced programs: the session has their commits exactly once, and every reader reads the
//! commits.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hypertrace_abi::config::{CONFIG_WORDS, ConfigPage};
use hypertrace_abi::layout::{Geometry, PAGE, Region, WORD};
use hypertrace_abi::zerocopy::IntoBytes;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::traced::{self, NOTES, Notes};
use hypertrace_tests::{babeltrace2, kill, packets, this_test};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of kills of each kind, and maximum time that a program commits before a kill.
const KILLS: u64 = 5;
const SPAN: Duration = Duration::from_millis(50);

/// A `record` of this test as a program that commits until the program is killed.
struct Running {
    dir: TempDir,
    run: Child,
    notes: Notes,
}

/// Starts a `record`, and waits for the program's first commit.
fn start(options: &[&str], name: &str) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes");
    let notes = Notes::at(&path);
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    // The command runs in the test's directory.
    command.current_dir(dir.path()).arg(dir.path().join("S")).args(options);
    traced::program(&mut command, name, path.to_str().unwrap());
    let run = command.stdout(Stdio::null()).spawn().unwrap();
    notes.wait(NOTES[1], 1);
    Running { dir, run, notes }
}

fn kill_program(notes: &Notes) -> bool {
    let process = notes.get(NOTES[0]).to_string();
    Command::new("kill").args(["-KILL", &process]).status().unwrap().success()
}

/// Asserts that all readers count the same number of events, in the session and in what was recovered.
fn check_readers(session: &Path) {
    let parts = [session.to_owned(), session.join("recovered")];
    let committed = parts.each_ref().map(|part| packets::committed(part).unwrap().all());
    for (part, committed) in parts.iter().zip(committed).filter(|(part, _)| part.exists()) {
        if let Some(read) = babeltrace2::read(&part.join("ctf")) {
            assert_eq!(read.clean(), committed);
        }
    }
    let committed: u64 = committed.iter().sum();
    // JSON shows leases, too.
    let report = run(HYPERTRACE.command(["report", "--json"]).arg(session)).reported();
    assert_eq!(report.lines().count() as u64, committed);
    let stat = HYPERTRACE.info(session);
    assert_eq!(
        (&stat["missing"], &stat["unusable_reference_points"]),
        (&0.into(), &0.into()),
        "{stat}"
    );
    assert_eq!(stat["total"]["records"], committed);
}

/// Asserts that the message of `recover` and session.json have the number of records that readers count.
fn check_total(session: &Path, said: &str) {
    let committed = packets::committed(session).unwrap().all();
    assert!(said.contains(&format!(" holds {committed} records, ")), "{committed}: {said}");
    let told = std::fs::read(session.join("session.json")).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let stat = HYPERTRACE.info(session);
    assert_eq!(stat["total"]["records"], committed);
    for kind in ["events", "reference_points"] {
        let streams = told["streams"].as_array().unwrap().iter();
        let total: u64 = streams.map(|stream| stream[kind].as_u64().unwrap()).sum();
        assert_eq!(stat["total"][kind], total, "{kind}");
    }
}

#[test]
fn a_killed_programs_commits_are_all_recorded() {
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    kill::sweep(
        KILLS,
        SPAN,
        |_| start(&[], this_test!()),
        |running| kill_program(&running.notes),
        |mut running| {
            assert_eq!(running.run.wait().unwrap().code(), Some(128 + 9));
            let session = running.dir.path().join("S");
            traced::check_commits(&session, &running.notes, true);
            check_readers(&session);
        },
    );
}

#[test]
fn a_killed_run_is_recovered_into_its_session_or_a_new_one() {
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let mut recoveries = (0..20_000).step_by(1_700).cycle().map(Duration::from_micros);
    let mut moments = (0..2_000).step_by(370).cycle().map(Duration::from_micros);
    kill::sweep(
        KILLS,
        SPAN,
        |_| start(&["--clients", "4", "--segment", "segment"], this_test!()),
        |running| {
            let in_time = kill::kill(&mut running.run);
            // For a moment, the program runs without a host, and counts its losses.
            std::thread::sleep(moments.next().unwrap());
            kill_program(&running.notes) && in_time
        },
        |Running { dir, notes, .. }| {
            let segment = dir.path().join("segment");
            let recover = |session: &Path| {
                let mut command = HYPERTRACE.command(["recover"]);
                run(command.arg(&segment).arg(session))
            };
            let session = dir.path().join("S");
            HYPERTRACE.report(&session);
            let file = |name: &str| std::fs::read(session.join(name)).unwrap();
            let before = ["session.json", "classes.jsonl", "ctf/metadata"].map(file);
            // A recovery that is killed leaves everything to the next recovery.
            let mut command = HYPERTRACE.command(["recover"]);
            command.arg(&segment).arg(&session).stdout(Stdio::null());
            let mut first = command.spawn().unwrap();
            std::thread::sleep(recoveries.next().unwrap());
            kill::kill(&mut first);
            if !session.join("recovered").exists() {
                check_total(&session.join("recovered"), &recover(&session).ok());
            }
            assert!(!session.join(".recovered").exists());
            assert!(["session.json", "classes.jsonl", "ctf/metadata"].map(file) == before);
            traced::check_commits(&session, &notes, false);
            check_readers(&session);
            let mut follow = HYPERTRACE.command(["report", "--follow", "--json"]);
            let follow = run(follow.arg(&session)).reported();
            assert_eq!(
                follow.lines().count() as u64,
                HYPERTRACE.info(&session)["total"]["records"]
            );
            // A second recovery has nothing left to recover, and a recovery into the session of another
            // segment is refused.
            assert!(recover(&session).failed(2).contains("was recovered before"));
            let other = dir.path().join("other");
            run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&other).args(["--", "true"]))
                .ok();
            assert!(recover(&other).failed(2).contains("UUID"));
            // A new session has the records whose space the dead host had not returned.
            let new = dir.path().join("new");
            check_total(&new, &recover(&new).ok());
            check_readers(&new);
        },
    );
}

/// Opens a segment whose programs and host were killed.
fn open(segment: &Path) -> (File, Geometry) {
    let file = File::options().read(true).write(true).open(segment).unwrap();
    let mut page = [0; CONFIG_WORDS];
    file.read_exact_at(page.as_mut_bytes(), 0).unwrap();
    let geometry = ConfigPage::from_words(&page).geometry().unwrap();
    (file, geometry)
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn sessions_recovered_from_forged_ring_positions_are_readable() {
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let Running { dir, run: mut host, notes } =
        start(&["--clients", "2", "--segment", "segment"], this_test!());
    let segment = dir.path().join("segment");
    notes.wait(NOTES[1], 1000);
    assert!(kill::kill(&mut host) && kill_program(&notes));
    // The host's lock ended with the host. Whether the program lives does not matter.
    let (file, geometry) = open(&segment);
    // head and tail of client 0, on its pages G and H.
    let head = geometry.window_offset(Region::Rings) + geometry.client_offset(0);
    let tail = head + PAGE;
    let (head_was, tail_was) = (word(&file, head), word(&file, tail));
    for (number, (head_is, tail_is)) in [
        (head_was, u64::MAX),
        (head_was, u64::MAX - 1000),
        (head_was, 1 << 63),
        (head_was, head_was + 2),
        (u64::MAX, tail_was),
        // If a host had no CPU yet, the host has taken no records.
        (5, tail_was + 100),
        (1 << 40, 1 << 50),
    ]
    .into_iter()
    .enumerate()
    {
        file.write_all_at(&u64::to_le_bytes(head_is), head).unwrap();
        file.write_all_at(&u64::to_le_bytes(tail_is), tail).unwrap();
        let new = dir.path().join(format!("new{number}"));

        let mut command = HYPERTRACE.command(["recover"]);
        let said = run(command.arg(&segment).arg(&new)).ok();

        check_total(&new, &said);
        check_readers(&new);
        assert!(HYPERTRACE.info(&new)["total"]["faults"]["head"].as_u64() > Some(0), "{number}");
    }
}

/// Index of a note: the id of the client that breaks the rules.
const HOSTILE: u64 = 3;

#[test]
fn a_ring_forged_to_repeat_committed_blocks_leaves_the_killed_session_readable() {
    if let Some(notes) = traced::argument() {
        let notes = Notes::at(Path::new(&notes));
        let client = hypertrace::with_client(|client| client.index()).unwrap();
        notes.set(HOSTILE, client.into());
        // The client fills some blocks.
        for n in 0..20_000u64 {
            hypertrace::with_client(|client| client.wait_for_room(1, 1));
            hypertrace::event!("hostile", n);
        }
        std::thread::spawn(move || traced::commit_until_killed(&notes)).join().unwrap();
    }
    let Running { dir, run: mut host, notes } =
        start(&["--clients", "2", "--segment", "segment"], this_test!());
    let segment = dir.path().join("segment");
    notes.wait(NOTES[1], 1000);
    assert!(kill::kill(&mut host) && kill_program(&notes));
    let (file, geometry) = open(&segment);
    let client = geometry.client_offset(notes.get(HOSTILE) as u32);
    let head = geometry.window_offset(Region::Rings) + client;
    let (block, ring) = (geometry.block_bytes / WORD, geometry.ring_bytes / WORD);
    let committed = word(&file, head + PAGE);
    assert!((2 * block..ring).contains(&committed), "{committed} of {ring}");
    // head is more than a ring after the committed position, and tail names the second block again.
    for (at, value) in [(head, 2 * ring), (head + PAGE, ring + block)] {
        file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
    let session = dir.path().join("S");

    run(HYPERTRACE.command(["recover"]).arg(&segment).arg(&session)).ok();

    traced::check_commits(&session, &notes, false);
    run(HYPERTRACE.command(["report"]).arg(&session)).reported();
    let stat = HYPERTRACE.info(&session);
    assert!(stat["total"]["faults"]["sequence"].as_u64() > Some(0), "{stat}");
}
