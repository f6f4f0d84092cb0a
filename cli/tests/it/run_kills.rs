//! SIGKILL for traced programs: their commits are in the session exactly once, and every reader reads
//! them. `HYPERTRACE_TEST_KILLS` is the number of kills.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hypertrace_abi::config::{CONFIG_WORDS, ConfigPage};
use hypertrace_abi::layout::{PAGE, Region};
use hypertrace_abi::zerocopy::IntoBytes;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::random::Random;
use hypertrace_tests::traced::{self, NOTES, Notes};
use hypertrace_tests::{babeltrace2, packets};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn kills() -> u64 {
    std::env::var("HYPERTRACE_TEST_KILLS").map_or(5, |kills| kills.parse().unwrap())
}

/// Starts a `run` of this test as a program that commits until it is killed.
fn start(dir: &Path, options: &[&str], name: &str) -> (Child, Notes) {
    let path = dir.join("notes");
    let notes = Notes::at(&path);
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(dir.join("S")).args(options);
    traced::program(&mut command, name, path.to_str().unwrap());
    (command.stdout(Stdio::null()).spawn().unwrap(), notes)
}

fn kill(process: u64) {
    let sent = Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Asserts that all readers count the same number of events.
fn check_readers(session: &Path) {
    let committed = packets::committed(session).unwrap().all();
    let report = run(HYPERTRACE.command(["report"]).arg(session)).reported();
    assert_eq!(report.lines().count() as u64, committed);
    let stat = HYPERTRACE.stat(session);
    assert_eq!(
        (&stat["missing"], &stat["unusable_reference_points"]),
        (&0.into(), &0.into()),
        "{stat}"
    );
    if let Some(read) = babeltrace2::read(&session.join("ctf")) {
        assert_eq!(read.clean(), committed);
    }
}

/// Asserts that the message of `--recover` and session.json have the number that readers count.
fn check_total(session: &Path, said: &str) {
    let committed = packets::committed(session).unwrap().all();
    assert!(said.contains(&format!(" holds {committed} records now")), "{committed}: {said}");
    let told = std::fs::read(session.join("session.json")).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let stat = HYPERTRACE.stat(session);
    assert_eq!(stat["total"]["records"], committed);
    for kind in ["events", "reference_points", "stamps"] {
        let streams = told["streams"].as_array().unwrap().iter();
        let total: u64 = streams.map(|stream| stream[kind].as_u64().unwrap()).sum();
        assert_eq!(stat["total"][kind], total, "{kind}");
    }
}

#[test]
fn a_killed_programs_commits_are_all_recorded() {
    let name = "a_killed_programs_commits_are_all_recorded";
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let mut random = Random::seeded();
    let mut commits = Vec::new();
    for _ in 0..kills() {
        let dir = tempfile::tempdir().unwrap();
        let (mut running, notes) = start(dir.path(), &[], name);
        notes.wait(NOTES[1], 1);
        std::thread::sleep(Duration::from_micros(random.below(50_000)));

        kill(notes.get(NOTES[0]));

        assert_eq!(running.wait().unwrap().code(), Some(128 + 9));
        let session = dir.path().join("S");
        commits.push(traced::check_commits(&session, &notes, true));
        check_readers(&session);
    }
    println!("{} kills, after {commits:?} commits", commits.len());
}

#[test]
fn a_killed_run_is_recovered_into_its_session_or_a_new_one() {
    let name = "a_killed_run_is_recovered_into_its_session_or_a_new_one";
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let mut random = Random::seeded();
    let mut commits = Vec::new();
    for _ in 0..kills() {
        let dir = tempfile::tempdir().unwrap();
        let segment = dir.path().join("segment");
        let options = ["--clients", "4", "--segment", segment.to_str().unwrap()];
        let (mut running, notes) = start(dir.path(), &options, name);
        notes.wait(NOTES[1], 1);
        std::thread::sleep(Duration::from_micros(random.below(50_000)));

        running.kill().unwrap();
        // The program runs on without a host for a moment, and counts its losses.
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
        kill(notes.get(NOTES[0]));
        running.wait().unwrap();

        let recover = |session: &Path| {
            let mut command = HYPERTRACE.command(["run", "--recover"]);
            run(command.arg(&segment).arg("--out").arg(session))
        };
        let session = dir.path().join("S");
        let before = packets::committed(&session).unwrap().all();
        HYPERTRACE.report(&session);
        check_total(&session, &recover(&session).ok());
        commits.push(traced::check_commits(&session, &notes, false));
        check_readers(&session);
        assert!(packets::committed(&session).unwrap().all() >= before);
        // The second time, nothing is left to complete, and the session of another segment is refused.
        assert!(recover(&session).failed(2).contains("was ended"));
        let other = dir.path().join("other");
        run(HYPERTRACE.command(["run", "--quiet", "--out"]).arg(&other).args(["--", "true"])).ok();
        assert!(recover(&other).failed(2).contains("UUID"));
        // A new session has the records whose space the dead host had not returned.
        let new = dir.path().join("new");
        check_total(&new, &recover(&new).ok());
        check_readers(&new);
    }
    println!("{} kills, after {commits:?} commits", commits.len());
}

#[test]
fn sessions_recovered_from_forged_ring_positions_are_readable() {
    let name = "sessions_recovered_from_forged_ring_positions_are_readable";
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let options = ["--clients", "2", "--segment", segment.to_str().unwrap()];
    let (mut running, notes) = start(dir.path(), &options, name);
    notes.wait(NOTES[1], 1000);
    running.kill().unwrap();
    running.wait().unwrap();
    kill(notes.get(NOTES[0]));
    // The host's lock ended with the host. The program does not matter.
    let file = File::options().read(true).write(true).open(&segment).unwrap();
    let mut page = [0; CONFIG_WORDS];
    file.read_exact_at(page.as_mut_bytes(), 0).unwrap();
    let geometry = ConfigPage::from_words(&page).geometry().unwrap();
    // head and tail of client 0, on its pages G and H.
    let head = geometry.window_offset(Region::Rings) + geometry.client_offset(0);
    let tail = head + PAGE;
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    let (head_was, tail_was) = (word(head), word(tail));
    for (number, (head_is, tail_is)) in [
        (head_was, u64::MAX),
        (head_was, u64::MAX - 1000),
        (head_was, 1 << 63),
        (head_was, head_was + 2),
        (u64::MAX, tail_was),
        // A host that had no CPU has taken nothing yet.
        (5, tail_was + 100),
        (1 << 40, 1 << 50),
    ]
    .into_iter()
    .enumerate()
    {
        file.write_all_at(&u64::to_le_bytes(head_is), head).unwrap();
        file.write_all_at(&u64::to_le_bytes(tail_is), tail).unwrap();
        let new = dir.path().join(format!("new{number}"));

        let mut command = HYPERTRACE.command(["run", "--recover"]);
        let said = run(command.arg(&segment).arg("--out").arg(&new)).ok();

        check_total(&new, &said);
        check_readers(&new);
        assert!(HYPERTRACE.stat(&new)["total"]["faults"]["head"].as_u64() > Some(0), "{number}");
    }
}
