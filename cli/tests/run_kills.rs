//! SIGKILL for traced programs: what they had committed is in the session, once, and everybody reads
//! it. `HYPERTRACE_TEST_KILLS` says how often.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::random::Random;
use hypertrace_tests::traced::{self, NOTES, Notes};
use hypertrace_tests::{babeltrace2, packets};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn kills() -> u64 {
    std::env::var("HYPERTRACE_TEST_KILLS").map_or(5, |kills| kills.parse().unwrap())
}

/// `run` of this test as a program that commits until it is killed.
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

/// Everybody reads it: as many events.
fn check_readers(session: &Path) {
    let committed = packets::committed(session).unwrap().all();
    let report = run(HYPERTRACE.command(["report"]).arg(session)).ok();
    assert_eq!(report.lines().count() as u64, committed);
    if let Some(read) = babeltrace2::read(&session.join("ctf")) {
        assert_eq!(read.clean(), committed);
    }
}

#[test]
fn a_killed_program_is_recorded_to_its_last_commit() {
    let name = "a_killed_program_is_recorded_to_its_last_commit";
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
fn a_killed_run_is_completed_or_made_anew_from_its_segment() {
    let name = "a_killed_run_is_completed_or_made_anew_from_its_segment";
    if let Some(notes) = traced::argument() {
        traced::commit_until_killed(&Notes::at(Path::new(&notes)));
    }
    let mut random = Random::seeded();
    let mut commits = Vec::new();
    for _ in 0..kills() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let segment = dir.path().join("segment");
        let options = ["--clients", "4", "--segment", segment.to_str().unwrap()];
        let (mut running, notes) = start(dir.path(), &options, name);
        notes.wait(NOTES[1], 1);
        std::thread::sleep(Duration::from_micros(random.below(50_000)));

        running.kill().unwrap();
        // It goes on alone for a moment, and counts what nobody takes.
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
        recover(&session).ok();
        commits.push(traced::check_commits(&session, &notes, false));
        check_readers(&session);
        assert!(packets::committed(&session).unwrap().all() >= before);
        // Again, there is nothing to complete; and another's session is refused.
        assert!(recover(&session).failed(2).contains("was ended"));
        let other = dir.path().join("other");
        run(HYPERTRACE.command(["run", "--quiet", "--out"]).arg(&other).args(["--", "true"])).ok();
        assert!(recover(&other).failed(2).contains("UUID"));
        // A new one has what the dead host had not given back.
        let new = dir.path().join("new");
        recover(&new).ok();
        check_readers(&new);
    }
    println!("{} kills, after {commits:?} commits", commits.len());
}
