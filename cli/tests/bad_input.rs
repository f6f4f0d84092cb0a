//! Unusable input: reported once, with its name and exit code 2 (1 if the machine is at fault), and left
//! unchanged.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::peak;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Runs the demo in `dir`, which fails with this code. Returns its message.
#[track_caller]
fn refused(dir: &Path, code: i32) -> String {
    let said = run(&mut HYPERTRACE.demo(dir, 1)).failed(code);
    assert!(said.contains(dir.to_str().unwrap()), "{said}");
    said
}

/// Records a session of one vCPU.
fn session() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    run(&mut HYPERTRACE.demo(dir.path(), 1)).ok();
    dir
}

/// Asserts that `report` and `stat` of `dir` end with code 2 and a message with all of `parts`.
#[track_caller]
fn unreadable(dir: &Path, parts: &[&str]) {
    for command in ["report", "stat"] {
        let said = run(HYPERTRACE.command([command]).arg(dir)).failed(2);
        for part in parts {
            assert!(said.contains(part), "{part:?}: {said}");
        }
        let harmless = |c: char| c == '\n' || !c.is_control();
        assert!(said.chars().all(harmless), "{said:?}");
    }
}

#[test]
fn an_unknown_option_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");

    let ran = run(HYPERTRACE.demo(&session, 1).arg("--frobnicate"));

    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--frobnicate") && ran.stdout.is_empty(), "{ran:?}");
    assert!(!session.exists());
}

#[test]
fn a_directory_that_is_not_empty_is_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes"), "mine").unwrap();

    let said = refused(dir.path(), 2);

    assert!(said.contains("not empty"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read(dir.path().join("notes")).unwrap(), b"mine");
}

#[test]
fn a_session_is_not_overwritten_by_another() {
    let session = session();
    let json = fs::read(session.path().join("session.json")).unwrap();

    refused(session.path(), 2);

    assert_eq!(fs::read(session.path().join("session.json")).unwrap(), json);
    run(HYPERTRACE.command(["stat"]).arg(session.path())).ok();
}

#[test]
fn a_file_is_refused_as_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();

    assert!(refused(&file, 2).contains("not a directory"));
    assert!(refused(&file.join("S"), 2).contains("Not a directory"));

    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_directory_without_write_permission_is_refused() {
    refused(Path::new("/proc/hypertrace"), 2);
    let Some(disk) = Mount::new("tmpfs", "ro") else { return };
    assert!(refused(&disk.path().join("S"), 2).contains("Read-only"));
}

#[test]
fn a_full_disk_is_not_wrong_usage() {
    for options in ["size=4k", "nr_inodes=2"] {
        let Some(disk) = Mount::new("tmpfs", options) else { return };
        assert!(refused(&disk.path().join("S"), 1).contains("No space left on device"));
    }
}

#[test]
fn a_directory_without_a_session_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    unreadable(&dir.path().join("gone"), &["gone: no such directory"]);
    unreadable(dir.path(), &["no session.json in it"]);
    let json = dir.path().join("session.json");
    unreadable_json(&json, "", "session.json");
    unreadable_json(&json, r#"{"format":"another","version":1}"#, "session.json");
    unreadable_json(&json, r#"{"format":"hypertrace-session","version":99}"#, "99");
}

#[track_caller]
fn unreadable_json(file: &Path, text: &str, part: &str) {
    fs::write(file, text).unwrap();
    unreadable(file.parent().unwrap(), &[part]);
    assert_eq!(fs::read(file).unwrap(), text.as_bytes());
}

#[test]
fn a_cut_description_is_said_to_be_cut() {
    let session = session();
    let file = session.path().join("session.json");
    let text = fs::read_to_string(&file).unwrap();

    for len in [0, 1, text.len() / 2] {
        fs::write(&file, &text[..len]).unwrap();
        let cut = format!("session.json: cut after {len} bytes");
        unreadable(session.path(), &[&cut, "babeltrace2 can still read", "/ctf"]);
    }
}

#[test]
fn a_command_that_fails_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], out: &str| {
        let mut command = HYPERTRACE.command([args[0], "--out"]);
        let ran = run(command.arg(dir.path().join(out)).args(&args[1..]));
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    };
    fs::create_dir(dir.path().join("kept")).unwrap();

    // No process has this number.
    let gone = i32::MAX.to_string();
    fails(&["record", "--pid", &gone], "a/b/S");
    fails(&["record", "--pid", &gone], "kept");
    fails(&["record", "--pid", &gone], "kept/S");
    fails(&["run", "--segment", "/proc/none/segment", "--", "true"], "S");

    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"], "directories that were there stay");
    assert_eq!(fs::read_dir(dir.path().join("kept")).unwrap().count(), 0);
}

#[test]
fn record_says_what_it_can_record() {
    let dir = tempfile::tempdir().unwrap();

    let said = run(HYPERTRACE.command(["record", "--out"]).arg(dir.path())).failed(2);

    assert!(said.contains("--pid PID") && said.contains("-- CMD"), "{said}");
}

#[test]
fn another_users_session_mentions_how_it_is_shared() {
    if !rustix::process::geteuid().is_root() {
        capability::missing("root", "only root can be another user");
        return;
    }
    let session = session();
    fs::set_permissions(session.path(), Permissions::from_mode(0o700)).unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("hypertrace");
    // By another process: a child of another test that has our descriptor makes the copy busy.
    run(Command::new("cp").arg(HYPERTRACE.0).arg(&program)).ok();
    for args in [&["regions"][..], &["report"], &["stat"]] {
        let mut command = Command::new(&program);
        command.args(args).arg(session.path()).uid(65534).gid(65534).current_dir("/");

        let said = run(&mut command).failed(2);

        for part in ["Permission denied", "it is of user 0", "--share"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// Most memory that `report` and `stat` may use, whatever `session.json` contains.
const MOST_MEMORY: u64 = 256 << 20;

#[test]
fn a_large_description_takes_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session.json");
    // Written in small steps: a child's peak begins with this process's memory.
    let write = |bytes: usize| {
        let mut out = std::io::BufWriter::new(fs::File::create(&file).unwrap());
        let uuid = "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5";
        write!(out, r#"{{"format":"hypertrace-session","version":1,"uuid":"{uuid}","clocks":[],"#)?;
        write!(out, r#""events":[],"started_unix_ns":0,"finished":true,"streams":["#)?;
        let stream = r#"{"domain":"host","client":1}"#;
        for _ in 0..(bytes - 200) / (stream.len() + 1) {
            write!(out, "{stream},")?;
        }
        write!(out, "{stream}]}}")?;
        out.flush()
    };
    // One of the largest size allowed, and a far larger one.
    let most = hypertrace_timeline::limits::MAX_BYTES as usize;
    for (bytes, part) in [(most, "at most 3073"), (175 << 20, "too many")] {
        write(bytes).unwrap();
        for command in ["report", "stat"] {
            let (ran, memory) = peak::run(HYPERTRACE.command([command]).arg(dir.path()));
            let said = ran.failed(2);
            assert!(said.contains("session.json") && said.contains(part), "{said}");
            assert!(memory < MOST_MEMORY, "{command} of {bytes} bytes took {memory}");
        }
    }
}

#[test]
fn damage_is_reported_with_file_and_byte() {
    // The magic and size of the first packet with events, and the time and id of its first event.
    for offset in [128, 128 + 48, 256, 256 + 8] {
        for name in ["ctf/guest-000-0000", "ctf/host-000-0000"] {
            let session = session();
            let path = session.path().join(name);
            if !path.exists() {
                // Without KVM, no VMM is traced.
                continue;
            }
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[0xee; 4], offset).unwrap();
            let bytes = fs::read(&path).unwrap();

            unreadable(session.path(), &[&format!("{name}: damaged at byte {offset}: expected")]);

            assert!(fs::read(&path).unwrap() == bytes, "the file is unchanged");
        }
    }
}

#[test]
fn a_guests_strings_are_escaped_on_the_terminal() {
    let session = session();
    let path = session.path().join("session.json");
    let text = fs::read_to_string(&path).unwrap();
    let evil = r"\u001b]0;owned\u0007\u202e\r";
    fs::write(&path, text.replace("request(", &format!("request{evil}("))).unwrap();
    unreadable(session.path(), &["session.json", "request\\u{1b}]0;owned"]);

    let dir = tempfile::tempdir().unwrap();
    unreadable(&dir.path().join("\x1b[2J\u{202e}"), &["\\u{1b}[2J\\u{202e}: no such directory"]);
}
