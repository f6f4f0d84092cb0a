//! Directories that commands write to: another user's is refused, and if a directory's path changes, the
//! command goes on in the same directory.

use hypertrace_compare::FILE;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::linux::static_program;
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// An empty directory of another user. As root, the test makes this directory; as another user, the test
/// finds a directory of the system.
struct Foreign(PathBuf, Option<TempDir>);

impl Foreign {
    fn find() -> Option<Foreign> {
        if geteuid().is_root() {
            let dir = tempfile::tempdir().unwrap();
            let made = dir.path().join("theirs");
            fs::create_dir(&made).unwrap();
            chown(&made, Some(65534), None).unwrap();
            return Some(Foreign(made, Some(dir)));
        }
        let is_foreign = |dir: &PathBuf| {
            fs::metadata(dir).is_ok_and(|found| found.uid() != geteuid().as_raw())
                && fs::read_dir(dir).is_ok_and(|mut names| names.next().is_none())
        };
        let found =
            ["/mnt", "/srv", "/media", "/opt"].map(PathBuf::from).into_iter().find(is_foreign);
        if found.is_none() {
            capability::missing("second-user", "no empty directory of another user is here");
        }
        found.map(|dir| Foreign(dir, None))
    }
}

#[test]
fn an_empty_directory_of_another_user_is_refused_by_every_command_that_writes_to_one() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&session).args(["--", "true"])).ok();
    let Some(Foreign(theirs, _made)) = Foreign::find() else { return };
    let [s, d] = [&session, &theirs].map(|path| path.to_str().unwrap());
    let commands: [&[&str]; 10] = [
        &["record", "-o", d, "--", "true"],
        &["record", "-a", "-o", d],
        &["demo", "-o", d],
        &["serve", "--file", "/dev/shm/hypertrace-foreign", "-o", d],
        &["receive", "/dev/null", "-o", d],
        &["compare", "--run", "-n", "1", "-o", d, "true", "true"],
        &["compare", "--run", "-n", "1", "--keep", "samples", "-o", d, "true", "true"],
        &["export", s, "--to", "trace-dat", "-o", d],
        &["export", s, "--to", "ctf", "-o", d],
        &["man", d],
    ];
    for command in commands {
        let said = run(HYPERTRACE.command(command).current_dir(dir.path())).failed(2);
        assert!(said.contains("belongs to user"), "{command:?}: {said}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0, "{command:?}");
    }
    if _made.is_some() {
        capability::used("second-user");
    }
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// The traced command exchanges the directory for a link. Another user who may write to the parent directory
/// could do the same.
#[test]
fn runs_of_a_comparison_whose_directory_is_exchanged_for_a_link_touch_nothing_there() {
    for keep in ["sessions", "samples"] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (out, moved, victim) = (at("R"), at("moved"), at("victim"));
        for name in ["a-01", "b-01", "warm-up"] {
            fs::create_dir_all(victim.join(name).join("sub")).unwrap();
            fs::write(victim.join(name).join("sub/precious"), "mine").unwrap();
        }
        let shown = [&out, &moved, &victim].map(|path| path.display().to_string());
        let exchange = format!(
            "test -L {0} || {{ mv {0} {1} && ln -s {2} {0}; }}",
            shown[0], shown[1], shown[2]
        );
        let command = |work: &str| format!("\"$MARK\" --begin work; {work}; \"$MARK\" --end work");
        let mut compare = HYPERTRACE.command(["compare", "--run", "-n", "1", "--keep", keep, "-o"]);
        compare.arg(&out).args([command(&exchange), command("true")]);

        let ran = run(compare.env("MARK", static_program("hypertrace-mark")));

        assert_eq!(ran.code, Some(0), "{keep}: {ran:?}");
        for name in ["a-01", "b-01", "warm-up"] {
            assert_eq!(names(&victim.join(name)), ["sub"], "{keep}");
            assert_eq!(fs::read(victim.join(name).join("sub/precious")).unwrap(), b"mine");
        }
        assert_eq!(names(&moved), ["a-01", "b-01"], "{keep}");
        if keep == "samples" {
            assert_eq!(names(&moved.join("a-01")), [FILE]);
        }
    }
}
