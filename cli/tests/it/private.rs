//! Access to sessions: private to the user whatever the umask is, shared with `--share`, and at an
//! unpredictable path if `-o` is missing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::command::{Demo, Hypertrace, run};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns a command of `hypertrace` that runs with a umask.
fn with_umask(umask: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh", HYPERTRACE.0]).args(args);
    command
}

/// Lists a directory and everything in it.
fn all(dir: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, meta));
    }
    assert!(found.len() >= 4, "{}", dir.display());
    found
}

#[track_caller]
fn check(dir: &Path, folders: u32, files: u32) {
    for (path, meta) in all(dir) {
        let expected = if meta.is_dir() { folders } else { files };
        assert_eq!(meta.mode() & 0o7777, expected, "{}", path.display());
    }
}

#[test]
fn files_of_a_run_are_private_to_its_user() {
    let dir = tempfile::tempdir().unwrap();
    for umask in ["000", "077"] {
        let out = dir.path().join(umask);
        let segment = dir.path().join("segment");
        // The script runs under `record`, so the socket and the segment exist.
        let script = format!("stat -c %a {} {}/control.sock", segment.display(), out.display());
        let args = [
            "record",
            "--quiet",
            "--segment",
            segment.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
        ];
        let mut command = with_umask(umask, &[&args[..], &["--", "sh", "-c", &script]].concat());

        assert_eq!(run(&mut command).ok(), "600\n600\n");

        check(&out, 0o700, 0o600);
    }
}

#[test]
fn a_session_can_be_shared_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    for (who, folders, files) in [("group", 0o750, 0o640), ("all", 0o755, 0o644)] {
        let out = dir.path().join(who);
        let args = ["record", "--quiet", "--share", who, "-o", out.to_str().unwrap(), "--", "true"];
        run(&mut with_umask("077", &args)).ok();
        check(&out, folders, files);
    }
    let out = dir.path().join("demo");
    run(HYPERTRACE.demo(&out, 1).args(["--share", "group"])).ok();
    check(&out, 0o750, 0o640);
}

#[test]
fn a_demo_without_a_directory_makes_one_with_an_unpredictable_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = with_umask("000", &["demo", "--json", "--vcpus", "1"]);
    let child = command.env("TMPDIR", dir.path()).stdout(std::process::Stdio::piped()).spawn();
    let child = child.unwrap();
    let id = child.id();
    let demo: Demo = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();

    let name = demo.session.file_name().unwrap().to_str().unwrap();
    assert_eq!(demo.session.parent().unwrap(), dir.path());
    assert!(name.starts_with("hypertrace-demo-") && !name.ends_with(&id.to_string()), "{name}");
    assert_eq!(HYPERTRACE.report(&demo.session).len() as u64, demo.records);
    check(&demo.session, 0o700, 0o600);
}
