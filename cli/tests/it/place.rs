//! The default directory, `hypertrace.data`: what commands move and remove there, and what they do not.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hypertrace_tests::command::{Hypertrace, Ran, copy_program, run};
use hypertrace_tests::{capability, wait_until};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Runs a command in a directory.
fn at(dir: &Path, args: &[&str]) -> Ran {
    run(HYPERTRACE.command(args).current_dir(dir))
}

fn record(dir: &Path) -> Ran {
    at(dir, &["record", "--quiet", "true"])
}

/// Records a session and puts a file of this name into the session's directory, to recognize the session.
fn recorded(dir: &Path, mark: &str) {
    assert_eq!(record(dir).code, Some(0));
    fs::write(dir.join("hypertrace.data").join(mark), "").unwrap();
}

/// Changes the description of a session. Returns the session's UUID.
fn change(session: &Path, change: &dyn Fn(&mut Value)) -> Value {
    let path = session.join("session.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
    json["uuid"].clone()
}

#[track_caller]
fn assert_here(dir: &Path, names: &[&str]) {
    let mut left: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, names);
}

#[test]
fn a_recording_that_does_not_begin_leaves_all_sessions_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "first");
    recorded(dir, "second");
    let names = ["hypertrace.data", "hypertrace.data.old"];
    for args in [
        &["record", "-a", "-e", "none:none", "true"][..],
        &["record", "--kernel", "-e", "none:none", "true"],
        &["record", "-p", "1", "-e", "none:none"],
    ] {
        let ran = at(dir, args);

        // For another user than root, the first command fails before it looks for the event, which does not
        // exist.
        assert_ne!(ran.code, Some(0), "{args:?}: {ran:?}");
        assert_here(dir, &names);
        assert!(dir.join("hypertrace.data/second").exists(), "{args:?}");
        assert!(dir.join("hypertrace.data.old/first").exists(), "{args:?}");
    }
    // A recorder that was killed before its recording began has left another directory.
    let older = dir.join(".hypertrace.data.older");
    fs::rename(dir.join("hypertrace.data.old"), &older).unwrap();
    recorded(dir, "third");
    assert!(older.join("first").exists(), "no session was hidden");
    recorded(dir, "fourth");
    assert_here(dir, &names);
    assert!(dir.join("hypertrace.data.old/third").exists());
}

#[test]
fn the_last_session_is_kept_as_old_and_the_one_before_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "first");
    fs::create_dir_all(dir.join("hypertrace.data/kept/deep")).unwrap();
    symlink("/etc", dir.join("hypertrace.data/kept/link")).unwrap();

    recorded(dir, "second");
    assert!(dir.join("hypertrace.data.old/first").exists());
    recorded(dir, "third");

    assert_here(dir, &["hypertrace.data", "hypertrace.data.old"]);
    assert!(dir.join("hypertrace.data/third").exists());
    assert!(dir.join("hypertrace.data.old/second").exists());
    assert!(Path::new("/etc/passwd").exists());
    for command in ["report", "info"] {
        assert_eq!(at(dir, &[command]).code, Some(0), "{command}");
    }
}

#[test]
fn a_reader_that_locks_a_session_that_has_ended_keeps_no_recorder_away() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "first");
    let reader = File::open(dir.join("hypertrace.data/ctf")).unwrap();
    flock(&reader, FlockOperation::LockShared).unwrap();

    recorded(dir, "second");

    assert!(dir.join("hypertrace.data.old/first").exists());
}

#[test]
fn a_command_that_starts_nothing_moves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path(), "first");

    assert_eq!(at(dir.path(), &["record", "/no/such/program"]).code, Some(127));
    assert_eq!(at(dir.path(), &["record", "--ring", "96K", "true"]).code, Some(2));
    assert_eq!(at(dir.path(), &["record"]).code, Some(2));

    assert_here(dir.path(), &["hypertrace.data"]);
    assert!(dir.path().join("hypertrace.data/first").exists());
}

#[test]
fn what_is_no_session_of_this_user_that_has_ended_stays() {
    let refused = |make: &dyn Fn(&Path), part: &str| {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let before = fs::read_dir(dir.path()).unwrap().count();
        let said = record(dir.path()).failed(2);
        assert!(said.contains(part) && said.contains("-o"), "{part}: {said}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before, "{part}");
        assert!(fs::symlink_metadata(dir.path().join("hypertrace.data")).is_ok(), "{part}");
    };
    let data = |dir: &Path| dir.join("hypertrace.data");
    let unfinished = |dir: &Path| {
        let path = data(dir).join("session.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["finished"] = false.into();
        fs::write(path, json.to_string()).unwrap();
    };
    refused(&|dir| fs::write(data(dir), "mine").unwrap(), "is not a session's directory");
    refused(&|dir| fs::create_dir(data(dir)).unwrap(), "is not a session's directory");
    refused(&|dir| symlink("/etc", data(dir)).unwrap(), "is not a session's directory");
    refused(
        &|dir| {
            recorded(dir, "first");
            fs::rename(data(dir), dir.join("elsewhere")).unwrap();
            symlink("elsewhere", data(dir)).unwrap();
        },
        "is not a session's directory",
    );
    refused(
        &|dir| {
            recorded(dir, "first");
            fs::write(data(dir).join("session.json"), "{}").unwrap();
        },
        "is not a session's directory",
    );
    refused(
        &|dir| {
            recorded(dir, "first");
            unfinished(dir);
        },
        "nothing has recovered it",
    );
    refused(
        &|dir| {
            recorded(dir, "first");
            fs::write(dir.join("hypertrace.data.old"), "mine").unwrap();
        },
        "hypertrace.data.old is not a session's directory",
    );
    if rustix::process::geteuid().is_root() {
        refused(
            &|dir| {
                recorded(dir, "first");
                chown(data(dir), Some(65534), None).unwrap();
            },
            "belongs to user 65534",
        );
    }
}

#[test]
fn a_killed_session_of_which_all_was_recovered_is_moved_as_one_that_was_ended() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path(), "first");
    let data = dir.path().join("hypertrace.data");
    let killed = change(&data, &|json| json["finished"] = false.into());
    let recovered = data.join("recovered");
    fs::create_dir(&recovered).unwrap();
    fs::copy(data.join("session.json"), recovered.join("session.json")).unwrap();
    for (completes, finished) in [("another".into(), true), (killed.clone(), false)] {
        change(&recovered, &|json| {
            json["completes"] = completes.clone();
            json["finished"] = finished.into();
        });
        assert!(record(dir.path()).failed(2).contains("nothing has recovered it"));
    }
    change(&recovered, &|json| json["finished"] = true.into());

    assert_eq!(record(dir.path()).code, Some(0));

    assert!(dir.path().join("hypertrace.data.old/recovered/session.json").exists());
}

#[test]
fn a_session_that_is_being_recorded_is_joined_or_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path(), "first");
    let data = dir.path().join("hypertrace.data");
    change(&data, &|json| json["finished"] = false.into());
    let ctf = File::open(data.join("ctf")).unwrap();
    flock(&ctf, FlockOperation::LockShared).unwrap();

    let said = record(dir.path()).failed(2);

    assert!(said.contains("a session is being recorded in it"), "{said}");
    assert!(dir.path().join("hypertrace.data/first").exists());
    // The command ends at once, because no process has this number.
    let pid = i32::MAX.to_string();
    let said = at(dir.path(), &["record", "-p", &pid]).failed(2);
    assert!(said.contains("there is no process"), "{said}");
    assert_here(dir.path(), &["hypertrace.data"]);
}

#[test]
fn a_session_that_cannot_be_moved_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let [programs, here] = ["programs", "here"].map(|name| dir.path().join(name));
    [&programs, &here].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    for (path, mode) in [(dir.path(), 0o755), (&programs, 0o755), (&here, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = programs.join("hypertrace");
    copy_program(HYPERTRACE.0, &program);
    let record = || {
        let mut command = Command::new(&program);
        command.args(["record", "--quiet", "true"]).current_dir(&here);
        // Root may write everywhere, so the command runs as another user.
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        run(&mut command)
    };
    assert_eq!(record().code, Some(0));
    fs::set_permissions(&here, fs::Permissions::from_mode(0o555)).unwrap();

    let said = record().failed(1);

    fs::set_permissions(&here, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(said.contains("cannot rename hypertrace.data"), "{said}");
    assert!(here.join("hypertrace.data/session.json").exists());
}

#[test]
fn without_a_session_here_the_next_step_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["report", "regions"] {
        let said = at(dir.path(), &[command]).failed(2);
        assert!(said.contains("record one here: hypertrace record PROGRAM"), "{said}");
    }
}

#[test]
fn an_unknown_option_is_answered_with_the_one_that_it_is_like() {
    let ran = HYPERTRACE.run(["record", "--out", "S", "true"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("'--output'"), "{ran:?}");
}

#[test]
fn help_shows_each_command_in_80_columns() {
    let help = HYPERTRACE.run(["--help"]).ok();

    for line in help.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    // Clap's own list, for shells' completions, has all commands.
    let listed = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  -"));
    assert_eq!(listed.count(), 15, "{help}");
}

#[test]
fn a_session_that_another_command_has_just_moved_is_not_removed() {
    let Some(strace) = capability::program("strace") else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "first");
    // The slow command has looked at one of the two places, and not yet at the other place.
    let log = dir.join("log");
    let mut slow = Command::new(strace);
    slow.args(["-f", "-e", "trace=openat", "-e", "inject=openat:delay_enter=1500000", "-P"]);
    slow.arg("hypertrace.data.old").arg("-o").arg(&log).arg(HYPERTRACE.0);
    slow.args(["record", "--quiet", "true"]).current_dir(dir);
    let slow = slow.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the first look", || fs::metadata(&log).is_ok_and(|log| log.len() > 0));
    let mut other = HYPERTRACE.command(["record", "--quiet", "sh", "-c", "read line"]);
    let mut other = other.current_dir(dir).stdin(Stdio::piped()).spawn().unwrap();

    let ran = slow.wait_with_output().unwrap();

    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(dir.join("hypertrace.data.old/first").exists(), "{said}");
    drop(other.stdin.take());
    other.wait().unwrap();
    capability::used("strace");
}

#[test]
fn the_kernels_events_of_a_killed_command_are_completed_before_its_place_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--kernel", "sleep", "30"]);
    let mut child = command.current_dir(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    while !said.contains("recording the kernel's events") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    let is_perf = said.contains("by perf");
    child.kill().unwrap();
    child.wait().unwrap();
    let data = dir.path().join("hypertrace.data");
    assert!(data.join(".kernel").exists());

    let told = record(dir.path()).failed(2);

    assert!(told.contains("nothing has recovered it"), "{told}");
    assert!(data.join("kernel.dat").exists() && !data.join(".kernel").exists(), "{told}");
    if is_perf {
        capability::missing("tracefs", said);
    } else {
        capability::used("tracefs");
    }
}
