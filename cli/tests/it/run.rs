//! `hypertrace record`: programs on this host, traced without a VM.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hypertrace_tests::command::{Hypertrace, copy_program, run};
use hypertrace_tests::interrupt::{send, with_default_signals};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::{babeltrace2, this_test, traced, wait_until};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns a `record` command with these options and this test as the program.
fn run_test(dir: &Path, options: &[&str], name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir).args(options);
    traced::program(&mut command, name, argument);
    command
}

/// Returns a `record` command for this shell script.
fn run_script(dir: &Path, script: &str) -> Command {
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir).args(["--", "sh", "-c", script]);
    command
}

fn names_of(dir: &Path, event: &str) -> Vec<String> {
    let lines = HYPERTRACE.report(dir).into_iter();
    lines.filter(|line| line.event == event).map(|line| line.source).collect()
}

#[test]
fn every_event_of_a_program_with_four_threads_is_recorded() {
    let (events, points) = traced::sizes(250_000);
    if traced::argument().is_some() {
        assert_eq!(traced::four_threads(events, points), 0);
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    run(&mut run_test(dir.path(), &[], this_test!(), "-")).ok();

    traced::check_four_threads(dir.path(), events, points);
    let stat = HYPERTRACE.info(dir.path());
    let total = stat["total"].clone();
    assert_eq!((total["lost"].as_u64(), total["faults_total"].as_u64()), (Some(0), Some(0)));
    assert_eq!(stat["missing"], 0);
    let shown = run(HYPERTRACE.command(["info"]).arg(dir.path())).ok();
    assert!(shown.contains("host/0") && !shown.contains("vmm/"), "{shown}");
    let Some(read) = babeltrace2::count(&dir.path().join("ctf")) else { return };
    assert_eq!(Some(read), total["records"].as_u64());
}

#[test]
fn a_program_that_never_calls_the_library_leaves_an_empty_session_and_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = |n: u32| dir.path().join(n.to_string());

    let ended = |n, script| run(&mut run_script(&sessions(n), script)).code;

    assert_eq!(ended(1, "true"), Some(0));
    assert_eq!(ended(2, "exit 7"), Some(7));
    assert_eq!(ended(3, "kill -TERM $$"), Some(128 + 15));
    assert_eq!(ended(4, "kill -KILL $$"), Some(128 + 9));
    assert_eq!(run(&mut run_script(&sessions(5), "echo said")).ok(), "said\n");
    for n in 1..=5 {
        assert_eq!(HYPERTRACE.report(&sessions(n)).len(), 0);
    }
}

const TRACE_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn the_callers_span_is_in_the_session_and_the_program_gets_it() {
    let name = this_test!();
    if traced::argument().is_some() {
        let parent = hypertrace::trace_parent();
        let text = parent.map_or("none".into(), |parent| parent.to_string());
        // The text is on a line of its own, among the lines of the test harness.
        println!("\n{text}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (wrong, long) = (TRACE_PARENT.to_uppercase(), "x".repeat(100_000));
    for (n, (text, kept)) in
        [(TRACE_PARENT, TRACE_PARENT), (&wrong, "none"), ("", "none"), (&long, "none")]
            .into_iter()
            .enumerate()
    {
        let dir = place.path().join(n.to_string());
        let ran = run(run_test(&dir, &[], name, "-").env("TRACEPARENT", text));

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.lines().any(|line| line == kept), "{}", ran.stdout);
        let json = fs::read_to_string(dir.join("session.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let of_session = json.get("trace_parent").map_or("none", |text| text.as_str().unwrap());
        assert_eq!(of_session, kept);
        let said = "TRACEPARENT in the environment is not used";
        assert_eq!(ran.stderr.contains(said), text == wrong || text == long, "{}", ran.stderr);
        assert!(ran.stderr.len() < 1_000, "{} bytes", ran.stderr.len());
        assert!(text != wrong || ran.stderr.contains("at byte 4"), "{}", ran.stderr);
    }
}

#[test]
fn a_fork_and_an_exec_get_their_own_clients() {
    let name = "a_fork_and_an_exec_get_their_own_clients";
    match traced::argument().as_deref() {
        Some("parent") => {
            hypertrace::event!("before");
            let mut child = Command::new(std::env::current_exe().unwrap());
            traced::program(&mut child, name, "child");
            // The arguments after the dashes are for `hypertrace record`.
            let args: Vec<_> = child.get_args().skip(2).map(ToOwned::to_owned).collect();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(args).env("HYPERTRACE_TEST_PROGRAM", "child");
            assert!(child.status().unwrap().success());
            fork(|| hypertrace::event!("forked"));
            hypertrace::event!("after");
        }
        Some(_) => hypertrace::event!("executed"),
        None => {
            let dir = tempfile::tempdir().unwrap();

            run(&mut run_test(dir.path(), &[], name, "parent")).ok();

            let [before, forked, executed, after] =
                ["before", "forked", "executed", "after"].map(|event| names_of(dir.path(), event));
            assert_eq!([before.len(), forked.len(), executed.len(), after.len()], [1; 4]);
            assert_eq!(before, after);
            assert!(before != forked, "{before:?} {forked:?}");
            let leases = HYPERTRACE.report(dir.path()).into_iter();
            let mut pids: Vec<_> = leases.filter_map(|line| line.number("pid")).collect();
            pids.sort();
            pids.dedup();
            assert_eq!(pids.len(), 3);
        }
    }
}

/// Runs `child` in a forked child, and waits for its end.
#[allow(unsafe_code)]
pub fn fork(child: impl FnOnce()) {
    // SAFETY: the child calls the library, and ends without returning to the test harness.
    unsafe {
        let id = libc::fork();
        if id == 0 {
            child();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(id, std::ptr::null_mut(), 0), id);
    }
}

#[test]
fn programs_at_the_same_time_share_a_session() {
    if traced::argument().is_some() {
        for n in 0..1000u64 {
            assert_eq!(hypertrace::commit!("shared", n), hypertrace::Emit::Recorded);
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = run_script(dir.path(), r#"for i in 1 2 3; do "$0" "$@" & done; wait"#);
    let mut program = Command::new("-");
    traced::program(&mut program, this_test!(), "-");
    command.args(program.get_args().skip(1)).env("HYPERTRACE_TEST_PROGRAM", "-");

    run(&mut command);

    let mut sources = names_of(dir.path(), "shared");
    assert_eq!(sources.len(), 3000);
    let pids = HYPERTRACE.report(dir.path()).into_iter();
    let mut pids: Vec<_> =
        pids.filter(|line| line.event == "lease").filter_map(|line| line.number("pid")).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    sources.dedup();
    assert!(!sources.is_empty());
}

/// Guard that ends a `record` when its test ends, also if the test panics.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // `record` forwards the signal to the program. The recorder or the program may have ended already, so
        // an error is ignored.
        let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn events_are_switched_and_triggers_act_while_it_runs() {
    if let Some(notes) = traced::argument() {
        let notes = traced::Notes::at(Path::new(&notes));
        notes.set(0, 1);
        let is_on = || hypertrace::is_on(hypertrace::abi::schema::mask_slot("loud"));
        wait_until("off", || {
            hypertrace::event!("loud");
            !is_on()
        });
        notes.set(0, 2);
        // The point's trigger switches the event on again.
        hypertrace::reference_point!("louder").unwrap();
        wait_until("on", is_on);
        hypertrace::event!("loud");
        notes.set(0, 3);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes");
    let notes = traced::Notes::at(&path);
    let session = dir.path().join("S");
    let mut command = run_test(&session, &[], this_test!(), path.to_str().unwrap());
    let mut running = Running(command.stdout(Stdio::null()).spawn().unwrap());
    let ctl =
        |words: &str| run(HYPERTRACE.command(["ctl", "-d"]).arg(&session).args(words.split(' ')));
    notes.wait(0, 1);
    // If an event is still in the ring when the event is switched off, the event is filtered.
    wait_until("an event", || {
        assert!(running.0.try_wait().unwrap().is_none(), "it ended early");
        !names_of(&session, "loud").is_empty()
    });

    ctl("trigger add on louder do events loud on").ok();
    ctl("trace-event loud off").ok();

    notes.wait(0, 3);
    assert!(running.0.wait().unwrap().success());
    assert!(names_of(&session, "loud").len() >= 2);
}

#[test]
fn a_program_that_cannot_run_is_named_and_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let file = dir.path().join("program");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    let refused = |program: &Path, code| {
        let said = run(HYPERTRACE
            .command(["record", "--quiet", "-o"])
            .arg(&session)
            .arg("--")
            .arg(program));
        assert!(!session.exists());
        said.failed(code)
    };

    let missing = refused(Path::new("/nowhere/program"), 127);
    assert!(missing.contains("/nowhere/program: no such program"), "{missing}");
    let missing = refused(Path::new("no-such-program-anywhere"), 127);
    assert!(missing.contains("no such program in PATH"), "{missing}");
    assert!(refused(&file, 126).contains("cannot be executed"));
    let usage = run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&session));
    assert_eq!(usage.code, Some(2));
}

/// Copies `true`, with a mode that every user can execute, and changes its owner.
fn copy_of_true(dir: &Path, mode: u32, owner: Option<(u32, u32)>) -> std::io::Result<PathBuf> {
    let copy = dir.join("true");
    // If the copy replaced the contents of an existing file, the owner would stay.
    let _ = fs::remove_file(&copy);
    copy_program("/bin/true", &copy);
    if let Some((user, group)) = owner {
        std::os::unix::fs::chown(&copy, Some(user), Some(group))?;
    }
    fs::set_permissions(&copy, fs::Permissions::from_mode(mode))?;
    Ok(copy)
}

/// Returns whether set-id bits have no effect in a folder, and prints the answer.
fn is_nosuid(dir: &Path) -> bool {
    let flags = rustix::fs::statvfs(dir).unwrap().f_flag;
    let is = flags.contains(rustix::fs::StatVfsMountFlags::NOSUID);
    if is {
        println!("not run: {} is mounted nosuid", dir.display());
    }
    is
}

#[test]
fn a_setuid_program_is_named_and_started() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().metadata().unwrap();
    let other = Some((mine.uid() + 1, mine.gid() + 1));
    let started = |copy: &Path, name: &str| {
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(dir.path().join(name)).arg("--").arg(copy);
        run(&mut command)
    };
    if is_nosuid(dir.path()) {
        return;
    }
    if copy_of_true(dir.path(), 0o4755, other).is_err() {
        println!("not run: programs with rights of others, as this user cannot make any");
        return;
    }
    for (mode, part) in [(0o4755, "setuid to user"), (0o2755, "setgid to group")] {
        let copy = copy_of_true(dir.path(), mode, other).unwrap();
        let said = started(&copy, part).failed(0);
        assert!(said.contains("true will not be traced: it is") && said.contains(part), "{said}");
    }
    let copy = copy_of_true(dir.path(), 0o4755, None).unwrap();
    started(&copy, "its owner's").ok();
    let copy = copy_of_true(dir.path(), 0o755, other).unwrap();
    started(&copy, "no bits").ok();
}

#[test]
fn a_program_with_file_capabilities_is_named_and_started() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if is_nosuid(dir.path()) {
        return;
    }
    let copy = copy_of_true(dir.path(), 0o755, None).unwrap();
    // The capability has version 2, is effective, and is CAP_NET_RAW.
    let raw = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let given =
        rustix::fs::setxattr(&copy, "security.capability", &raw, rustix::fs::XattrFlags::empty());
    if let Err(why) = given {
        println!("not run: a program with file capabilities, as this user cannot make one: {why}");
        return;
    }
    // A copy of the command, because the original may be accessible to root only.
    let command = dir.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &command);
    let mut as_nobody = Command::new(command);
    as_nobody.args(["record", "--quiet", "-o"]).arg(dir.path().join("S")).arg("--").arg(&copy);

    let said = run(as_nobody.current_dir("/").uid(65534).gid(65534)).failed(0);

    assert!(said.contains("true will not be traced: it has file capabilities"), "{said}");
    // Root has this capability anyway.
    let mut as_root = HYPERTRACE.command(["record", "--quiet", "-o"]);
    run(as_root.arg(dir.path().join("T")).arg("--").arg(&copy)).ok();
}

#[test]
fn a_directory_takes_one_run() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut run_script(dir.path(), "true")).ok();
    let first = fs::read(dir.path().join("session.json")).unwrap();

    let said = run(&mut run_script(dir.path(), "true")).failed(2);

    assert!(said.contains("has a session"), "{said}");
    assert_eq!(fs::read(dir.path().join("session.json")).unwrap(), first);
}

#[test]
fn two_runs_into_one_new_directory_at_once_are_one_run() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let session = dir.path().join("S");
        let start = || run_script(&session, "sleep 0.1").stderr(Stdio::null()).spawn();
        let mut both = [start().unwrap(), start().unwrap()];
        let mut codes = both.each_mut().map(|run| run.wait().unwrap().code());
        codes.sort();
        assert_eq!(codes, [Some(0), Some(2)]);
        HYPERTRACE.report(&session);
    }
}

#[test]
fn a_lack_of_descriptors_or_memory_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let mut few = Command::new("sh");
    few.args(["-c", r#"ulimit -n 4; exec "$0" "$@""#, HYPERTRACE.0, "record", "-o"]);
    few.arg(&session).args(["--", "true"]);
    let said = run(&mut few).failed(1);
    assert!(said.contains("Too many open files"), "{said}");

    let Some(disk) = Mount::new("tmpfs", "size=4m") else { return };
    let segment = disk.path().join("segment");
    let mut full = HYPERTRACE.command(["record", "--quiet", "-o"]);
    full.arg(&session).arg("--segment").arg(&segment).args(["--", "true"]);
    let said = run(&mut full).failed(1);
    for part in ["cannot reserve", segment.to_str().unwrap(), "fewer clients", "No space left"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!segment.exists());
    // A smaller segment fits, and is removed at the end.
    let mut fits =
        HYPERTRACE.command(["record", "--quiet", "--clients", "4", "--ring", "64K", "-o"]);
    fits.arg(dir.path().join("T")).arg("--segment").arg(&segment).args(["--", "true"]);
    run(&mut fits).ok();
    assert!(!segment.exists());
}

#[test]
fn a_full_disk_is_reported_and_losses_are_counted() {
    const EVENTS: u64 = 200_000;
    if traced::argument().is_some() {
        for n in 0..EVENTS {
            hypertrace::event!("flood", n, m = n);
        }
        return;
    }
    let Some(disk) = Mount::new("tmpfs", "size=1m") else { return };
    let session = disk.path().join("S");

    let said = run(&mut run_test(&session, &["--ring", "16M"], this_test!(), "-")).failed(1);

    for part in ["is incomplete", "No space left on device"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let total = HYPERTRACE.info(&session)["total"].clone();
    let [events, lost] = ["events", "lost"].map(|count| total[count].as_u64().unwrap());
    assert!(lost > 0, "{total}");
    assert!(events + lost >= EVENTS, "{total}");
}

#[test]
fn two_hundred_threads_on_64_clients_are_recorded_or_counted_exactly() {
    const THREADS: u64 = 200;
    const EVENTS: u64 = 100;
    if traced::argument().is_some() {
        let all = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
                    all.wait();
                });
            }
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    run(&mut run_test(dir.path(), &["--clients", "64"], this_test!(), "-")).ok();

    let total = HYPERTRACE.info(dir.path())["total"].clone();
    let [events, lost, unattached] =
        ["events", "lost", "lost_unattached"].map(|count| total[count].as_u64().unwrap());
    assert_eq!(events + lost, THREADS * EVENTS);
    assert!(unattached >= (THREADS - 64) * EVENTS, "{total}");
}

#[test]
fn short_threads_find_room_in_a_ring_while_the_recorder_is_stopped() {
    const THREADS: u64 = 200;
    if traced::argument().is_some() {
        hypertrace::event!("first");
        let recorder = rustix::process::getppid().unwrap();
        rustix::process::kill_process(recorder, rustix::process::Signal::STOP).unwrap();
        // The threads run one after another, and use the same ring.
        for n in 0..THREADS {
            std::thread::spawn(move || hypertrace::event!("short", n)).join().unwrap();
        }
        rustix::process::kill_process(recorder, rustix::process::Signal::CONT).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    run(&mut run_test(dir.path(), &["--clients", "2"], this_test!(), "-")).ok();

    let total = HYPERTRACE.info(dir.path())["total"].clone();
    assert_eq!((&total["events"], &total["lost"]), (&(THREADS + 1).into(), &0.into()), "{total}");
}

#[test]
fn the_closing_line_has_losses_causes_and_remedies() {
    const EVENTS: u64 = 1_000_000;
    if traced::argument().is_some() {
        let all = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    hypertrace::event!("first");
                    all.wait();
                });
            }
        });
        (0..EVENTS).for_each(|n| hypertrace::event!("flood", n, m = n));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--clients", "1", "--ring", "64K", "-o"]);
    traced::program(command.arg(dir.path()), this_test!(), "-");

    let ran = run(&mut command);

    let total = HYPERTRACE.info(dir.path())["total"].clone();
    let count = |count: &str| total[count].as_u64().unwrap();
    assert_eq!((ran.code, count("events") + count("lost")), (Some(0), EVENTS + 2));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    for part in [
        "events in ",
        " ring full (raise --ring, 64K now)",
        " no free client (raise --clients, 1 now)",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // The report has the same numbers, at the places of the losses.
    let lost = HYPERTRACE.losses(dir.path());
    assert_eq!(lost.iter().map(|lost| lost.events).sum::<u64>(), count("lost"));
    let events: Vec<_> = HYPERTRACE.report(dir.path());
    let times = |event: &str| {
        events.iter().filter(|e| e.event == event).map(|e| e.ts_ns).collect::<Vec<_>>()
    };
    let flood = times("flood");
    let within = |at: i64| flood.first().unwrap() <= &at && &at <= flood.last().unwrap();
    assert!(lost.iter().any(|lost| lost.ts_ns.is_some_and(within)), "{lost:?}");
    if let Some(read) = babeltrace2::read(&dir.path().join("ctf")) {
        assert_eq!(read.complete(), count("records"));
    }
}

#[test]
fn the_closing_line_reports_no_losses_and_quiet_omits_it() {
    let dir = tempfile::tempdir().unwrap();
    let run_in = |name: &str, options: &[&str]| {
        let session = dir.path().join(name);
        let mut command = HYPERTRACE.command(["record", "-o"]);
        command.arg(&session).args(options).args(["--", "true"]);
        (run(&mut command), session)
    };

    let (said, session) = run_in("S", &[]);
    let expected = format!("hypertrace: 0 events in {}, none lost\n", session.display());
    let (closing, hint) = said.stderr.split_at(expected.len());
    assert_eq!((said.code, closing, &*said.stdout), (Some(0), &*expected, ""));
    // `true` never calls the library.
    assert!(hint.starts_with("hypertrace: no program has traced: "), "{hint}");
    for part in ["does not call hypertrace", "HYPERTRACE_SEGMENT", "--segment FILE"] {
        assert!(hint.contains(part), "{part}: {hint}");
    }
    run_in("T", &["--quiet"]).0.ok();
    run_in("U", &["-q"]).0.ok();
}

#[test]
fn a_program_that_records_nothing_is_one_that_traces() {
    if traced::argument().is_some() {
        // This event makes the library lease a client, and no event is recorded.
        hypertrace::event!("off");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "-o"]);
    traced::program(command.arg(dir.path()), this_test!(), "-");

    let said = run(&mut command).failed(0);

    assert!(said.ends_with(", none lost\n"), "{said}");
}

/// Returns two files for stderr: a device that is full, and a pipe without a reader.
fn useless() -> [Stdio; 2] {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (_, closed) = std::io::pipe().unwrap();
    [full.into(), closed.into()]
}

#[test]
fn a_stderr_that_takes_nothing_changes_neither_the_program_nor_its_session() {
    let dir = tempfile::tempdir().unwrap();
    for (n, stderr) in useless().into_iter().enumerate() {
        let session = dir.path().join(n.to_string());
        let mut command = HYPERTRACE.command(["record", "-o"]);
        command.arg(&session).args(["--", "sh", "-c", "exit 7"]).stderr(stderr);
        assert_eq!(run(&mut command).code, Some(7));
        assert_eq!(HYPERTRACE.info(&session)["finished"], true);
    }
    let mine = dir.path().metadata().unwrap();
    let other = Some((mine.uid() + 1, mine.gid() + 1));
    if is_nosuid(dir.path()) || copy_of_true(dir.path(), 0o4755, other).is_err() {
        println!("not run: programs with rights of others");
        return;
    }
    for (n, stderr) in useless().into_iter().enumerate() {
        let session = dir.path().join(format!("setuid {n}"));
        let mut command = HYPERTRACE.command(["record", "-o"]);
        command.arg(&session).arg("--").arg(dir.path().join("true")).stderr(stderr);
        assert_eq!(run(&mut command).code, Some(0));
        assert_eq!(HYPERTRACE.info(&session)["finished"], true);
    }
}

/// Returns a command that may write at most 40 MB to each file. A whole stream file is larger.
fn limited(action: &str) -> Command {
    let mut command = Command::new("sh");
    // The limit is in blocks of 512 bytes.
    let script = format!(r#"trap {action} XFSZ; ulimit -f 80000; exec "$0" "$@""#);
    command.args(["-c", &script, HYPERTRACE.0, "record", "--quiet", "-o"]);
    command
}

#[test]
fn a_limit_of_a_files_size_is_said_and_what_is_missing_is_counted() {
    const EVENTS: u64 = 1000;
    let name = "run::a_limit_of_a_files_size_is_said_and_what_is_missing_is_counted";
    if traced::argument().is_some() {
        (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let mut command = limited("-");
    command.arg(&session).args(["--clients", "16"]);
    traced::program(&mut command, name, "-");

    let said = run(&mut command).failed(1);

    for part in ["is incomplete", "RLIMIT_FSIZE, 40960000"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let stat = HYPERTRACE.info(&session);
    assert_eq!(stat["finished"], true);
    assert!(stat["total"]["lost"].as_u64().unwrap() >= EVENTS, "{stat}");
    // The segment of 256 clients is larger than the limit.
    let refused = dir.path().join("T");
    let said = run(limited("-").arg(&refused).args(["--", "true"])).failed(1);
    for part in ["the segment in memory", "RLIMIT_FSIZE, 40960000"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!refused.exists(), "the directory that it made is removed");
}

#[test]
fn the_program_ignores_the_signal_of_that_limit_where_its_starter_did() {
    let dir = tempfile::tempdir().unwrap();
    for (action, is_ignored) in [("-", false), ("''", true)] {
        let mut command = limited(action);
        command.arg(dir.path().join(action)).args(["--clients", "4"]);

        let shown = run(command.args(["--", "grep", "SigIgn", "/proc/self/status"])).ok();

        let set = u64::from_str_radix(shown.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(set >> (libc::SIGXFSZ - 1) & 1 == 1, is_ignored, "trap {action} XFSZ: {shown}");
    }
}

#[test]
fn events_of_a_process_without_a_client_are_counted() {
    const EVENTS: u64 = 1000;
    match traced::argument().as_deref() {
        Some("parent") => {
            // This event takes the only client.
            hypertrace::event!("step");
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(std::env::args().skip(1)).env("HYPERTRACE_TEST_PROGRAM", "child");
            assert!(child.stdout(Stdio::null()).status().unwrap().success());
        }
        Some(_) => (0..EVENTS).for_each(|n| hypertrace::event!("step", n)),
        None => {
            let dir = tempfile::tempdir().unwrap();

            run(&mut run_test(dir.path(), &["--clients", "1"], this_test!(), "parent")).ok();

            let stat = HYPERTRACE.info(dir.path());
            let total = |count: &str| stat["total"][count].as_u64().unwrap();
            assert_eq!(
                (total("events"), total("lost"), total("lost_unattached")),
                (1, EVENTS, EVENTS)
            );
            assert_eq!(stat["streams"][0]["lost"], 0, "{stat}");
            let shown = run(HYPERTRACE.command(["info"]).arg(dir.path())).ok();
            assert!(shown.contains("lost by threads without a ring: no free client 1,000"));
        }
    }
}

#[test]
fn processes_that_outlive_the_program_are_said_whether_they_have_traced_or_not() {
    // In the first case, two processes outlive the program with the segment's descriptor. In the second case,
    // one process outlives the program without the descriptor. In the third case, no process outlives the
    // program.
    let cases = [
        (&[][..], "sleep 60 & sleep 60 &", "2 processes outlive the recording"),
        (&["--segment", "segment"], "sleep 60 &", "1 process outlives the recording"),
        (&[], "sleep 60 & kill $!; wait", ""),
    ];
    for (options, script, said) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut command = HYPERTRACE.command(["record", "-o", "S", "--clients", "4"]);
        command.args(options).args(["sh", "-c", &format!("exec >/dev/null 2>&1; {script}")]);

        let ran = run(command.current_dir(dir.path()));

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let lines: Vec<_> = ran.stderr.lines().collect();
        assert!(lines[0].ends_with("0 events in S, none lost"), "{script}: {lines:?}");
        // While a process can still trace, `record` does not give reasons why nothing was traced.
        assert_eq!(lines.len(), 2, "{script}: {lines:?}");
        match said {
            "" => assert!(lines[1].contains("no program has traced"), "{lines:?}"),
            said => {
                assert!(lines[1].contains(said), "{script}: {lines:?}");
                assert!(lines[1].contains("events from now on are lost: "), "{lines:?}");
            }
        }
    }
}

/// Number of events of a process that outlives the program.
const LATER: u64 = 1000;

/// Emits events as one of two processes: the program, or the program's child, which outlives the program.
/// Returns false if this process has neither role.
fn daemon() -> bool {
    match traced::argument().as_deref() {
        Some("parent") => {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(std::env::args().skip(1)).env("HYPERTRACE_TEST_PROGRAM", "child");
            child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // Nobody waits for the child.
            drop(child.spawn().unwrap());
            hypertrace::event!("step");
        }
        Some(_) => {
            // The child sleeps longer than the program lives.
            std::thread::sleep(std::time::Duration::from_millis(500));
            (0..LATER).for_each(|n| hypertrace::event!("step", n));
        }
        None => return false,
    }
    true
}

#[test]
fn a_recording_that_waits_has_the_events_of_all_processes_that_outlive_the_program() {
    if daemon() {
        return;
    }
    for (options, segment) in [(&["--wait"][..], None), (&["--wait", "--segment"], Some("segment"))]
    {
        let dir = tempfile::tempdir().unwrap();
        let segment = segment.map(|name| dir.path().join(name).display().to_string());
        let options = options.iter().copied().chain(segment.as_deref());
        let session = dir.path().join("S");

        let name = this_test!();
        run(&mut run_test(&session, &Vec::from_iter(options), name, "parent")).ok();

        let total = HYPERTRACE.info(&session)["total"].clone();
        assert_eq!((total["events"].as_u64(), total["lost"].as_u64()), (Some(LATER + 1), Some(0)));
    }
}

#[test]
fn a_recording_that_waits_ends_by_a_signal_too() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--wait", "-o"]);
    command.arg(&session).args(["sh", "-c", "exec >/dev/null 2>&1; sleep 60 & exit 3"]);
    let mut running =
        Running(with_default_signals(&mut command).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = said.next().unwrap();
    assert!(first.contains("the program has ended; 1 process can still trace: "), "{first}");

    send("TERM", running.0.id().into());

    let said = Vec::from_iter(said);
    assert!(said.iter().any(|line| line.contains("1 process outlives the recording")), "{said:?}");
    assert_eq!(running.0.wait().unwrap().code(), Some(3));
    assert_eq!(HYPERTRACE.info(&session)["finished"], true);
}

#[test]
fn a_signal_that_ends_the_program_ends_a_recording_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (session, ready) = (dir.path().join("S"), dir.path().join("ready"));
    let mut command = HYPERTRACE.command(["record", "-q", "--wait", "-o"]);
    command.arg(&session).args(["sh", "-c", "sleep 60 & touch \"$READY\"; exec sleep 60"]);
    command.stdout(Stdio::null()).env("READY", &ready);
    let mut running = Running(with_default_signals(&mut command).spawn().unwrap());
    wait_until("ready", || ready.exists());

    send("TERM", running.0.id().into());

    assert_eq!(running.0.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(HYPERTRACE.info(&session)["finished"], true);
}

#[test]
fn without_a_program_those_that_something_else_starts_are_recorded() {
    if daemon() {
        return;
    }
    for waits in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (session, segment) = (dir.path().join("S"), dir.path().join("segment"));
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(&session).arg("--segment").arg(&segment).args(waits.then_some("--wait"));
        let mut running = Running(with_default_signals(&mut command).spawn().unwrap());
        wait_until("the segment", || segment.exists());
        let mut service = Command::new(std::env::current_exe().unwrap());
        service.args([this_test!(), "--exact", "--nocapture"]).stdout(Stdio::null());
        service.env("HYPERTRACE_SEGMENT", &segment).env("HYPERTRACE_TEST_PROGRAM", "child");

        run(&mut service).ok();

        if !waits {
            send("INT", running.0.id().into());
        }
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
        let total = HYPERTRACE.info(&session)["total"].clone();
        assert_eq!((total["events"].as_u64(), total["lost"].as_u64()), (Some(LATER), Some(0)));
    }
}

#[test]
fn a_session_that_is_there_is_removed_only_if_the_user_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let record = |options: &[&str]| {
        let mut command = HYPERTRACE.command(["record", "-q", "-o", "S"]);
        run(command.args(options).arg("true").current_dir(dir.path()))
    };
    let uuid = || HYPERTRACE.info(&dir.path().join("S"))["uuid"].clone();
    record(&[]).ok();
    let first = uuid();

    let said = record(&[]).failed(2);

    assert!(said.contains("S has a session") && said.contains("--overwrite"), "{said}");
    assert_eq!(uuid(), first);
    record(&["--overwrite"]).ok();
    assert_ne!(uuid(), first);
    let old = dir.path().join("S.old");
    assert_eq!(HYPERTRACE.info(&old)["uuid"], first);
    let second = uuid();
    // The next recording removes the older session, but a recording that cannot begin moves nothing.
    let said = record(&["--overwrite", "--segment", "none/segment"]).failed(2);
    assert!(said.contains("none"), "{said}");
    assert_eq!((uuid(), HYPERTRACE.info(&old)["uuid"].clone()), (second.clone(), first));
    record(&["--overwrite"]).ok();
    assert_eq!(HYPERTRACE.info(&old)["uuid"], second);
    record(&["--overwrite"]).ok();
    // A directory that is no session stays, even with a description.
    let (session, foreign) = (dir.path().join("S"), dir.path().join("F"));
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("session.json"), r#"{"uuid":"x","finished":true}"#).unwrap();
    fs::rename(&session, dir.path().join("T")).unwrap();
    fs::rename(&foreign, &session).unwrap();
    let said = record(&["--overwrite"]).failed(2);
    assert!(said.contains("S is not a session's directory"), "{said}");
    assert!(session.join("session.json").exists());
    // The target of a link stays, too.
    fs::remove_dir_all(&session).unwrap();
    symlink("T", &session).unwrap();
    assert_ne!(record(&["--overwrite"]).code, Some(0));
    assert!(dir.path().join("T/ctf").exists());
}

#[test]
fn a_session_of_a_killed_recorder_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "-q", "-o", "S", "--segment", "segment"]);
    let mut running = Running(command.current_dir(dir.path()).spawn().unwrap());
    wait_until("the segment", || dir.path().join("segment").exists());
    let uuid = || HYPERTRACE.info(&dir.path().join("S"))["uuid"].clone();
    wait_until("the session", || dir.path().join("S/session.json").exists());
    let overwrite = || {
        let mut command = HYPERTRACE.command(["record", "-q", "--overwrite", "-o", "S", "true"]);
        run(command.current_dir(dir.path())).failed(2)
    };
    let first = uuid();
    assert!(overwrite().contains("being recorded"), "{first}");
    running.0.kill().unwrap();
    running.0.wait().unwrap();

    let said = overwrite();

    assert!(said.contains("its recorder was killed"), "{said}");
    assert_eq!(uuid(), first);
}

/// Runs a script in its own process group and sends it SIGINT, as a terminal does, once the file
/// `ready` exists. Returns the exit code.
fn interrupted(dir: &Path, script: &str) -> Option<i32> {
    let ready = dir.join("ready");
    let mut command = run_script(&dir.join("S"), script);
    with_default_signals(command.env("READY", &ready)).process_group(0);
    let mut running = Running(command.spawn().unwrap());
    wait_until("ready", || ready.exists());
    send("INT", -i64::from(running.0.id()));
    running.0.wait().unwrap().code()
}

#[test]
fn an_interrupt_ends_the_program_and_completes_its_session() {
    for (script, code) in [
        (r#"touch "$READY"; while :; do sleep 1; done"#, 130),
        (r#"trap "exit 7" INT; touch "$READY"; while :; do sleep 0.1; done"#, 7),
    ] {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(interrupted(dir.path(), script), Some(code), "{script}");
        assert_eq!(HYPERTRACE.info(&dir.path().join("S"))["finished"], true);
    }
}

#[test]
fn a_session_says_which_command_on_which_machine_recorded_it() {
    let dir = tempfile::tempdir().unwrap();
    // The command line contains texts that are syntax in the description's language, and a sequence that a
    // terminal would execute.
    let script = "true '\"\\; }; /* \u{1b}[31m\n$HOME'";
    run(&mut run_script(dir.path(), script)).ok();

    let json = HYPERTRACE.info(dir.path());
    let origin = json["origin"]["command"].as_str().unwrap();
    assert!(origin.ends_with(script), "{origin:?}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(json["origin"]["host"], host.trim_end());
    let shown = run(HYPERTRACE.command(["info"]).arg(dir.path())).ok();
    assert!(shown.contains("Z, by hypertrace ") && !shown.contains('\u{1b}'), "{shown}");
    let metadata = fs::read_to_string(dir.path().join("ctf/metadata")).unwrap();
    assert!(metadata.contains("true '\\\"\\\\; }; /* ?[31m?$HOME'\";"), "{metadata}");
    let Some(read) = babeltrace2::count(&dir.path().join("ctf")) else { return };
    assert_eq!(Some(read), json["total"]["records"].as_u64());
}
