//! `hypertrace-mark` in shell scripts under `hypertrace record`, and without a host.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::linux::static_program;
use hypertrace_tests::report::Line;
use hypertrace_tests::wait_until;
use serde_json::{Value, json};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns a shell that runs a script, in which `mark` is the program.
fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("mark() {{ \"$MARK\" \"$@\"; }}\n{script}")]);
    shell.env("MARK", static_program("hypertrace-mark"));
    shell
}

/// A script that was traced.
struct Traced {
    folder: TempDir,
    printed: String,
    lines: Vec<Line>,
}

impl Traced {
    #[track_caller]
    fn new(script: &str) -> Traced {
        let folder = tempfile::tempdir().unwrap();
        let session = folder.path().join("session");
        let script = shell(script);
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(&session).arg("--").arg(script.get_program()).args(script.get_args());
        command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let printed = run(&mut command).ok();
        let lines = HYPERTRACE.report(&session);
        Traced { folder, printed, lines }
    }

    fn session(&self) -> PathBuf {
        self.folder.path().join("session")
    }

    /// Returns the names and fields of all events except leases.
    fn events(&self) -> Vec<(&str, Value)> {
        let events = self.lines.iter().filter(|line| line.event != "lease");
        events.map(|line| (&*line.event, Value::Object(line.fields.clone()))).collect()
    }
}

#[test]
fn marks_are_events_with_the_fields_that_the_script_gives() {
    let traced = Traced::new(
        "mark boot-done; mark --ring disk device=/dev/vda n=2 delta=-2 flags=0x1f; mark --sync point",
    );

    let expected = [
        ("boot_done", json!({"any_client": true})),
        (
            "disk",
            json!({"device": "/dev/vda", "n": 2, "delta": -2, "flags": 31, "any_client": true}),
        ),
        ("point", json!({"any_client": true})),
    ];
    assert_eq!(traced.events(), expected);
    let points = traced.lines.iter().filter(|line| line.reference.is_some());
    assert_eq!(Vec::from_iter(points.map(|line| &*line.event)), ["point"]);
}

#[test]
fn a_region_begins_in_one_process_and_ends_in_another() {
    let traced = Traced::new(
        "mark --begin all; mark start
         for id in 1 2 3; do mark --begin step id=$id; done
         for id in 1 2 3; do (mark --end step id=$id); done
         mark done; mark --end all",
    );

    let session = traced.session();
    let regions = HYPERTRACE.regions(&session, &[]);
    assert_eq!(regions, [("all".into(), 1), ("step".into(), 3)]);
    let between = HYPERTRACE.regions(&session, &["--between", "start", "done"]);
    assert_eq!(between, [("start to done".into(), 1)]);
}

#[test]
fn a_command_keeps_its_status_and_is_a_region() {
    let traced = Traced::new(
        "mark ok id=1 -- true; printf '%s ' $?
         mark id=2 -- sh -c 'exit 3'; printf '%s ' $?
         mark kill id=3 -- sh -c 'kill -KILL $$'; printf '%s ' $?
         mark gone id=4 -- ./no-such-file 2>/dev/null; printf '%s ' $?
         mark dir id=5 -- / 2>/dev/null; echo $?",
    );

    let statuses = [0, 3, 137, 127, 126];
    assert_eq!(traced.printed, "0 3 137 127 126\n");
    let begin = |id: u64, line: &str| json!({"id": id, "command": line});
    let end = |id: u64| json!({"id": id, "status": statuses[id as usize - 1]});
    let expected = [
        ("ok_begin", begin(1, "true")),
        ("ok_end", end(1)),
        ("sh_begin", begin(2, "sh -c exit 3")),
        ("sh_end", end(2)),
        ("kill_begin", begin(3, "sh -c kill -KILL $$")),
        ("kill_end", end(3)),
        ("gone_begin", begin(4, "./no-such-file")),
        ("gone_end", end(4)),
        ("dir_begin", begin(5, "/")),
        ("dir_end", end(5)),
    ];
    assert_eq!(traced.events(), expected);
}

#[test]
fn a_signal_ends_the_command_and_its_region_ends() {
    // The script sends the signal once the command has written to the pipe.
    let traced = Traced::new(
        "pipe=$(mktemp -u); mkfifo $pipe
         \"$MARK\" term id=1 -- sh -c \"echo > $pipe; exec sleep 600\" & mark=$!
         read line < $pipe; kill -TERM $mark; wait $mark; echo $?; rm $pipe",
    );

    assert_eq!(traced.printed, "143\n");
    let end = json!({"id": 1, "status": 143});
    assert_eq!(traced.events().last(), Some(&("term_end", end)));
}

#[test]
fn without_a_host_a_script_is_not_disturbed() {
    let ran = run(shell("mark a; mark --begin b; mark --sync c; mark -- sh -c 'exit 3'; echo $?")
        .env_remove("HYPERTRACE_SEGMENT"));
    assert_eq!(ran.ok(), "3\n");
}

#[test]
fn without_a_host_a_command_is_the_same_process() {
    let mut child = shell("exec \"$MARK\" -- sh -c 'kill -KILL $$'").spawn().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_required_host_that_is_missing_is_a_failure_that_says_what_to_do() {
    for arguments in ["a", "--begin a", "-- touch touched"] {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = shell(&format!("mark --require {arguments}"));
        let said = run(shell.current_dir(&folder)).failed(125);
        assert!(said.starts_with("hypertrace-mark: not recorded: no hypertrace device"), "{said}");
        assert!(said.ends_with("start it with: hypertrace record -o DIR PROG\n"), "{said}");
        assert!(!Path::exists(&folder.path().join("touched")));
    }
}

#[test]
fn the_help_fits_80_columns() {
    let help = run(&mut shell("mark --help")).ok();
    assert!(help.lines().count() > 10 && help.lines().all(|line| line.len() <= 80), "{help}");
}

#[test]
fn wrong_arguments_are_a_failure_that_names_them() {
    let Ran { code, stdout, stderr } = run(&mut shell("mark --bogin a"));
    assert_eq!((code, &*stdout), (Some(125), ""));
    assert_eq!(stderr, "hypertrace-mark: --bogin is not understood; see hypertrace-mark --help\n");
}

#[test]
fn a_mark_that_is_required_fails_after_the_hosts_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let shown = folder.path().display();
    // The program that outlives `record` has none of the streams of `record`.
    let script = shell(&format!(
        "(until test -e {shown}/ended; do sleep 0.01; done; mark late; echo \"late: $?\"
          mark --require required; echo \"required: $?\"; mark --require --sync point; echo \"point: $?\"
          mv {shown}/out {shown}/whole) </dev/null >{shown}/out 2>&1 & mark early"
    ));
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(path("session")).arg("--");
    command.arg(script.get_program()).args(script.get_args());
    command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut command).ok();
    File::create(path("ended")).unwrap();
    wait_until("the whole output", || path("whole").exists());

    let printed = fs::read_to_string(path("whole")).unwrap();

    for line in ["late: 0", "required: 125", "point: 125"] {
        assert!(printed.lines().any(|found| found == line), "{line} is not in {printed}");
    }
    let why = "hypertrace-mark: not recorded: ";
    assert_eq!(printed.matches(why).count(), 2, "{printed}");
    assert_eq!(printed.matches("its host has ended").count(), 2, "{printed}");
}
