//! SIGKILL for `record`: after the next start, the kernel has no instance left, and each recording can be
//! read.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use hypertrace_kernel::Recording;
use hypertrace_tests::command::{Hypertrace, Ran, copy_program, run};
use hypertrace_tests::interrupt::{send, with_default_signals};
use hypertrace_tests::trace_cmd;
use hypertrace_tests::tracefs::{self, Instance};
use hypertrace_tests::{capability, kill, namespace, wait_until};
use hypertrace_trace::{Session, SessionConfig};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Starts to record a process.
fn record(dir: &Path, pid: u32) -> Child {
    let mut command = HYPERTRACE.command(["record", "-o"]);
    command.arg(dir).args(["--pid", &pid.to_string()]).stderr(Stdio::piped());
    with_default_signals(&mut command).spawn().unwrap()
}

/// A process that the test has started. Dropping `Killed` kills the process, also if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Folder with one test's notes of instances. Other tests look in other folders, so no other test completes
/// the recordings that this test leaves.
struct Notes(tempfile::TempDir);

impl Notes {
    fn new() -> Notes {
        Notes(tempfile::tempdir().unwrap())
    }

    /// Returns a command that keeps its notes in this folder. Returns `None`, with a report, if a command
    /// cannot have such a folder.
    fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Option<Command> {
        let place = "/run/hypertrace";
        let mount = format!("mkdir -p {place} && mount --bind {} {place}", self.0.path().display());
        namespace::inside(&mount, &HYPERTRACE.command(arguments))
    }

    /// Starts to record this process, and waits until the recording has begun. `None`, with a report, if the
    /// kernel's trace cannot be used.
    fn recorder(&self, dir: &Path, more: &[&str]) -> Option<Killed> {
        let mut command = self.command(["record", "-o"])?;
        command.arg(dir).args(["--pid", &std::process::id().to_string()]).args(more);
        let command = with_default_signals(&mut command);
        let mut recorder = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        let mut stderr = BufReader::new(recorder.0.stderr.take().unwrap());
        while !said.contains("recording the kernel's events") {
            if stderr.read_line(&mut said).unwrap() == 0 {
                assert!(said.contains("perf_event_open"), "{said}");
                capability::missing("tracefs", said);
                return None;
            }
        }
        recorder.0.stderr = Some(stderr.into_inner());
        if said.contains("by perf") {
            capability::missing("tracefs", said);
            return None;
        }
        capability::used("tracefs");
        Some(recorder)
    }

    /// Runs another recording, which looks for recordings that were left.
    fn start_another(&self) -> Ran {
        let dir = tempfile::tempdir().unwrap();
        let mut command = self.command(["record", "--kernel", "--quiet", "-o"]).unwrap();
        let ran = run(command.arg(dir.path()).args(["--", "true"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }

    /// Adds the remains of a recorder that was killed before it recorded: an instance that is switched on, a
    /// note about the instance, and an empty folder. Returns the instance.
    fn remains(&self, own: &Instance, session: &Path) -> PathBuf {
        let ran =
            run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(session).args(["--", "true"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        fs::create_dir(session.join(".kernel")).unwrap();
        let instance = instance_of_an_ended_process(own);
        symlink(session, self.0.path().join(instance.file_name().unwrap())).unwrap();
        instance
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // A failed test leaves an instance and its note. Another recording removes both, because without the
        // note nobody would find the instance.
        if fs::read_dir(self.0.path()).is_ok_and(|mut notes| notes.next().is_some())
            && let (Some(mut command), Ok(dir)) =
                (self.command(["record", "--kernel", "--quiet", "-o"]), tempfile::tempdir())
        {
            let _ = command.arg(dir.path()).args(["--", "true"]).output();
        }
    }
}

/// Makes an instance whose name contains the id of an ended process, as a recorder names its instances.
fn instance_of_an_ended_process(own: &Instance) -> PathBuf {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let instance = own.dir().parent().unwrap().join(format!("hypertrace.{}.1.0", ended.id()));
    fs::create_dir(&instance).unwrap();
    instance
}

#[test]
fn an_instance_without_a_note_is_another_users() {
    let Some(own) = Instance::new() else { return };
    let notes = Notes::new();
    if notes.command(["--version"]).is_none() {
        return;
    }
    let instance = instance_of_an_ended_process(&own);

    notes.start_another();

    assert_eq!(fs::read_to_string(instance.join("tracing_on")).unwrap().trim(), "1");
    tracefs::remove(&instance).unwrap();
    capability::used("tracefs");
}

#[test]
fn a_recording_whose_instance_is_gone_is_completed_by_the_next_start() {
    let Some(own) = Instance::new() else { return };
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    let out = dir.path().join("S");
    let Some(recorder) = notes.recorder(&out, &[]) else { return };
    drop(recorder);
    let note = fs::read_dir(notes.0.path()).unwrap().next().unwrap().unwrap();
    // The instance is removed, as if a kill came between the removal of the instance and the making of the
    // file.
    tracefs::remove(&own.dir().parent().unwrap().join(note.file_name())).unwrap();

    let ran = notes.start_another();

    assert!(ran.stderr.contains(", losses unknown"), "{ran:?}");
    assert!(out.join("kernel.dat").exists() && !out.join(".kernel").exists(), "{ran:?}");
    assert_eq!(fs::read_dir(notes.0.path()).unwrap().count(), 0);
}

#[test]
fn remains_in_another_users_folder_are_not_completed() {
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    let out = dir.path().join("S");
    let Some(recorder) = notes.recorder(&out, &[]) else { return };
    drop(recorder);
    for name in [".kernel", "session.json"] {
        chown(out.join(name), Some(65534), None).unwrap();

        let ran = run(notes.command(["report"]).unwrap().arg(&out));

        assert!(ran.stderr.contains("belongs to user 65534"), "{name}: {ran:?}");
        assert!(
            !out.join("kernel.dat").exists() && out.join(".kernel").exists(),
            "{name}: {ran:?}"
        );
        chown(out.join(name), Some(0), None).unwrap();
    }
    let ran = run(notes.command(["report"]).unwrap().arg(&out));
    assert!(out.join("kernel.dat").exists(), "{ran:?}");
}

#[test]
fn readers_are_told_about_a_recording_in_progress_and_cannot_hold_it_up() {
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    let out = dir.path().join("S");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let Some(recorder) = notes.recorder(&out, &["--share", "all"]) else { return };

    let owners = run(notes.command(["report"]).unwrap().arg(&out));

    assert!(owners.stderr.contains("still being recorded, and are not shown yet"), "{owners:?}");
    let program = dir.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &program);
    let mut report = Command::new(program);
    let readers = run(report.arg("report").arg(&out).uid(65534).gid(65534).current_dir("/"));
    assert!(
        readers.stderr.contains("user 0 has to complete them with `hypertrace report`"),
        "{readers:?}"
    );
    // Only the owner can open the folder, so nobody else can lock the folder.
    let mode = fs::metadata(out.join(".kernel")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(recorder);
    notes.start_another();
    assert_eq!(fs::metadata(out.join("kernel.dat")).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn the_instance_of_a_process_that_was_killed_before_it_recorded_is_removed() {
    let Some(own) = Instance::new() else { return };
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    if notes.command(["--version"]).is_none() {
        return;
    }
    let session = dir.path().join("S");
    let instance = notes.remains(&own, &session);

    let ran = notes.start_another();

    assert!(!instance.exists(), "{ran:?}");
    assert!(!session.join(".kernel").exists(), "{ran:?}");
    assert_eq!(ran.stderr, "", "nothing was recorded, so nothing was dropped");
    assert_eq!(fs::read_dir(notes.0.path()).unwrap().count(), 0);
    capability::used("tracefs");
}

#[test]
fn an_instance_whose_folder_cannot_be_read_stays_until_it_can() {
    let Some(own) = Instance::new() else { return };
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    if notes.command(["--version"]).is_none() {
        return;
    }
    let session = dir.path().join("S");
    let instance = notes.remains(&own, &session);
    let json = session.join(".kernel/recording.json");
    fs::write(&json, "{\"version\": 9").unwrap();

    let ran = notes.start_another();

    assert!(instance.exists(), "{ran:?}");
    assert!(ran.stderr.contains("recording.json is damaged"), "{ran:?}");
    fs::remove_file(&json).unwrap();
    let ran = notes.start_another();
    assert!(!instance.exists(), "{ran:?}");
    capability::used("tracefs");
}

#[test]
fn pages_on_disk_that_cannot_be_opened_are_not_replaced() {
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    let out = dir.path().join("S");
    let Some(recorder) = notes.recorder(&out, &[]) else { return };
    drop(recorder);
    let file = out.join(".kernel/cpu0");
    let pages = fs::read(&file).ok();
    let _ = fs::remove_file(&file);
    symlink(dir.path().join("elsewhere"), &file).unwrap();
    let report = || run(notes.command(["report"]).unwrap().arg(&out));

    let ran = report();

    assert!(ran.stderr.contains("cpu0: it is a link, not a regular file"), "{ran:?}");
    assert!(out.join(".kernel").exists() && !out.join("kernel.dat").exists(), "{ran:?}");
    fs::remove_file(&file).unwrap();
    if let Some(pages) = pages {
        fs::write(&file, pages).unwrap();
    }
    let ran = report();
    assert!(ran.stderr.contains(", none lost"), "{ran:?}");
    assert!(out.join("kernel.dat").exists(), "{ran:?}");
}

#[test]
fn an_instance_that_another_program_has_open_is_removed_by_the_next_start() {
    let Some(own) = Instance::new() else { return };
    let (notes, dir) = (Notes::new(), tempfile::tempdir().unwrap());
    let out = dir.path().join("S");
    let Some(mut recorder) = notes.recorder(&out, &[]) else { return };
    let prefix = format!("hypertrace.{}.", recorder.0.id());
    let instances = fs::read_dir(own.dir().parent().unwrap()).unwrap();
    let mut instances = instances.map(|entry| entry.unwrap());
    let is_its = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    let instance = instances.find(is_its).unwrap().path();
    let open = fs::File::open(instance.join("trace_pipe")).unwrap();

    send("INT", recorder.0.id().into());

    let mut said = String::new();
    recorder.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(recorder.0.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.contains("another program has files of the kernel's trace instance"), "{said}");
    assert!(said.contains(", none lost") && out.join("kernel.dat").exists(), "{said}");
    drop(open);
    assert_eq!(notes.start_another().stderr, "", "nothing was dropped");
    assert!(!instance.exists());
}

#[test]
fn a_killed_recording_is_completed_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let busy = "while :; do /bin/true; done";
    let busy = Killed(Command::new("sh").args(["-c", busy]).spawn().unwrap());
    // `own` mounts tracefs, so the test sees the recorders' instances beside `own`.
    let Some(own) = Instance::new() else { return };
    let instances = own.dir().parent().unwrap();
    let mut pids = Vec::new();
    let start = |n: u64| {
        let mut recorder = record(&dir.path().join(n.to_string()), busy.0.id());
        // A third of the kills come at any instant of the recorder's start, a third while the recorder
        // records, and a third while the recorder ends.
        if !n.is_multiple_of(3) {
            let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines();
            let started = |line: &str| line.contains("recording the kernel's events");
            assert!(lines.any(|line| started(&line.unwrap())));
        }
        if n % 3 == 2 {
            thread::sleep(Duration::from_millis(n * 7 % 30));
            send("INT", recorder.id().into());
        }
        recorder
    };
    kill::sweep(
        5,
        Duration::from_millis(60),
        start,
        |recorder| {
            // The recorder may have ended already.
            kill::kill(recorder);
            true
        },
        |recorder| pids.push(recorder.id()),
    );

    let out = dir.path().join("last");
    let last = run(HYPERTRACE.command(["record", "--kernel", "-o"]).arg(&out).args(["--", "true"]));

    assert_eq!(last.code, Some(0), "{last:?}");
    let left: Vec<String> = fs::read_dir(instances)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| pids.iter().any(|pid| name.starts_with(&format!("hypertrace.{pid}."))))
        .collect();
    assert_eq!(left, [""; 0], "{last:?}");
    capability::used("tracefs");
    let mut read = 0;
    for n in 0..pids.len() {
        let session = dir.path().join(n.to_string());
        assert!(!session.join(".kernel").exists(), "{n}: {last:?}");
        let file = session.join("kernel.dat");
        // Recordings that were killed at the start may have made no file.
        assert!(file.exists() || n % 3 == 0, "{n}: {last:?}");
        if file.exists() {
            let Some(events) = trace_cmd::read(&file) else { return };
            assert!(events.is_sorted_by_key(|event| event.time), "{n}");
            read += usize::from(!events.is_empty());
            run(HYPERTRACE.command(["report"]).arg(&session)).reported();
        }
    }
    assert!(read >= pids.len() / 3, "{read} of {pids:?} have events");
}

/// Number of system calls of a flood, and minimum size of a call's event in bytes.
const CALLS: u64 = 40_000;
const EVENT_BYTES: u64 = 60;

#[test]
fn pages_that_were_on_disk_and_pages_in_the_kernel_make_one_recording() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let dd = format!("read line; dd if=/dev/zero of=/dev/null bs=1 count={}", CALLS / 2);
    let mut shell = Command::new("sh");
    shell.args(["-c", &dd]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    let mut command = HYPERTRACE.command(["record", "-e", "raw_syscalls:sys_enter", "-o"]);
    command.arg(&out).args([
        "--pid",
        &shell.id().to_string(),
        "--pid",
        &std::process::id().to_string(),
    ]);
    let mut recorder = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(recorder.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Recordings of other tests' processes may be completed first.
    let said = |line: &String| {
        line.contains("recording the kernel's events") || line.contains("cannot be used")
    };
    let said = lines.into_iter().find(said).unwrap();
    if said.contains("cannot be used") {
        capability::missing("tracefs", said);
        let _ = (shell.kill(), shell.wait());
        return;
    }
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    let on_disk = || -> u64 {
        let files = fs::read_dir(out.join(".kernel")).unwrap().map(|entry| entry.unwrap());
        let pages = files.filter(|file| file.file_name().to_string_lossy().starts_with("cpu"));
        pages.map(|file| file.metadata().unwrap().len()).sum()
    };
    // The calls of this test itself are recorded, so the kernel's buffers always have some.
    wait_until("pages on the disk", || on_disk() >= CALLS * EVENT_BYTES * 9 / 10);

    drop(recorder);

    let report = run(HYPERTRACE.command(["report"]).arg(&out));
    assert_eq!(report.code, Some(0), "{report:?}");
    capability::used("tracefs");
    // Another test's recorder may complete the recording at the same time.
    wait_until("the recording", || !out.join(".kernel").exists());
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    // On a busy machine, the kernel writes pages that are not full. A disk of the same size then holds fewer
    // events.
    assert!(events.len() as u64 >= CALLS * 7 / 10, "{}", events.len());
    assert!(events.is_sorted_by_key(|event| event.time));
}

#[test]
fn a_demo_whose_options_are_refused_records_nothing_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    for options in [
        ["--trace", "file=/nonexistent/x"],
        ["--trace", "events=/nonexistent"],
        ["--trace-backend", "x"],
    ] {
        let notes = Notes::new();
        let session = folder.path().join("S");
        let Some(mut command) = notes.command(["demo", "-o"]) else { return };

        let ran = run(command.arg(&session).args(options));

        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(!session.exists(), "{options:?}");
        // A note exists as long as the kernel's trace has an instance of the command.
        assert_eq!(fs::read_dir(notes.0.path()).unwrap().count(), 0, "{options:?}");
    }
}

#[test]
fn a_recording_that_its_program_drops_is_complete_and_in_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let [place, moved] = ["S", "moved"].map(|name| folder.path().join(name));
    let session = Session::create(SessionConfig::new(&place)).unwrap();
    // Any user who may write to the parent directory can move the session.
    fs::rename(&place, &moved).unwrap();
    Session::create(SessionConfig::new(&place)).unwrap().finish().unwrap();
    let mut config = hypertrace_kernel::Config::beside(session.folder().unwrap());
    config.pids = vec![std::process::id()];
    let recording = match Recording::start(&config) {
        Ok(recording) => recording,
        Err(why) => return capability::missing("tracefs", why),
    };

    drop(recording);

    assert!(moved.join("kernel.dat").exists());
    assert!(!place.join("kernel.dat").exists());
    assert!(!moved.join(".kernel").exists());
    drop(session);
}
