//! `hypertrace record` of programs that close descriptors they do not know.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{this_test, traced};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of files. No program of these tests has so many other descriptors.
const FILES: i32 = 64;

/// Returns a `record` command with these options and this test as the program.
fn run_test(dir: &Path, options: &[&str], name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir.join("S")).args(options);
    traced::program(&mut command, name, argument);
    command
}

fn total(dir: &Path, count: &str) -> u64 {
    HYPERTRACE.info(&dir.join("S"))["total"][count].as_u64().unwrap()
}

fn count(dir: &Path, event: &str) -> usize {
    HYPERTRACE.report(&dir.join("S")).iter().filter(|line| line.event == event).count()
}

/// Closes all descriptors except the standard streams, as daemons do, and opens files under the same numbers.
fn close_all_and_open_files(dir: &Path) -> Vec<File> {
    for descriptor in 3..3 + FILES {
        // SAFETY: of these descriptors, the test uses none, and the library must tolerate the close of its
        // own.
        let _ = unsafe { libc::close(descriptor) };
    }
    let files = (0..FILES).map(|n| File::create(dir.join(n.to_string())).unwrap());
    files.collect()
}

/// Sets, or only tests, a lock of a whole file. Returns whether no other open file description has such a
/// lock.
fn lock(file: &File, command: libc::c_int) -> bool {
    // SAFETY: a lock of zeros only is a valid lock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: fcntl reads and writes `lock`.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) }, 0);
    lock.l_type == libc::F_UNLCK as libc::c_short || command == libc::F_OFD_SETLK
}

/// Returns the exit code of a forked child that runs `child`.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child ends in `_exit`, and never returns to the test harness.
    unsafe {
        let id = libc::fork();
        if id == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(code.unwrap_or(101));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(id, &mut status, 0), id);
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn a_programs_files_under_the_librarys_number_are_left_alone_and_all_is_recorded() {
    if let Some(dir) = traced::argument() {
        let dir = Path::new(&dir);
        hypertrace::event!("before");
        let files = close_all_and_open_files(dir);
        let (locked, unlocked) = files.split_at(files.len() / 2);
        assert!(locked.iter().all(|file| lock(file, libc::F_OFD_SETLK)));

        std::thread::spawn(|| hypertrace::event!("thread")).join().unwrap();
        let code = fork(|| {
            hypertrace::event!("forked");
            let metadata: Result<Vec<_>, _> = files.iter().map(File::metadata).collect();
            i32::from(metadata.is_err())
        });
        assert_eq!(code, 0, "a child has all of its files");
        hypertrace::event!("after");

        let is_free = |n: usize| {
            let again = File::options().write(true).open(dir.join(n.to_string())).unwrap();
            lock(&again, libc::F_OFD_GETLK)
        };
        assert!((0..locked.len()).all(|n| !is_free(n)), "its own locks are there");
        assert!((locked.len()..locked.len() + unlocked.len()).all(is_free), "and no others");
        return;
    }
    // In the first turn, the library's descriptor has the value of a locked file's descriptor. In the second
    // turn, the library's descriptor has the value of an unlocked file's descriptor.
    for half in [0, FILES / 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = run_test(dir.path(), &[], this_test!(), dir.path().to_str().unwrap());
        // SAFETY: only dup is called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let dups = (0..half).all(|_| libc::dup(0) >= 0);
                dups.then_some(()).ok_or_else(std::io::Error::last_os_error)
            });
        }

        run(&mut command).ok();

        for event in ["before", "thread", "forked", "after"] {
            assert_eq!(count(dir.path(), event), 1, "{event}");
        }
        assert_eq!((total(dir.path(), "lost"), total(dir.path(), "faults_total")), (0, 0));
    }
}

#[test]
fn a_program_that_cannot_open_its_segment_again_has_its_events_counted() {
    const EVENTS: u64 = 100;
    if let Some(dir) = traced::argument() {
        let dir = Path::new(&dir);
        let segment = dir.join("segment");
        hypertrace::event!("before");
        let files = close_all_and_open_files(dir);
        // The file is a segment, too, but not this session's segment.
        fs::copy(&segment, dir.join("copy")).unwrap();
        fs::rename(dir.join("copy"), &segment).unwrap();

        // The thread that looks first finds that the locks are gone.
        std::thread::spawn(|| hypertrace::event!("thread")).join().unwrap();
        (0..EVENTS).for_each(|n| hypertrace::event!("after", n));
        drop(files);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let options = ["--clients", "2", "--ring", "64K", "--segment", segment.to_str().unwrap()];

    let ran = run(&mut run_test(dir.path(), &options, this_test!(), dir.path().to_str().unwrap()));

    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(0), 1), "{ran:?}");
    assert!(ran.stderr.contains("it is another file than before"), "{ran:?}");
    assert_eq!(["before", "thread", "after"].map(|event| count(dir.path(), event)), [1, 0, 0]);
    assert_eq!((total(dir.path(), "events"), total(dir.path(), "lost")), (1, 1 + EVENTS));
    assert_eq!(total(dir.path(), "lost_unattached"), 1 + EVENTS);
}

#[test]
fn losses_of_a_client_that_was_left_are_counted_exactly() {
    const EVENTS: u64 = 100_000;
    if let Some(dir) = traced::argument() {
        (0..EVENTS).for_each(|n| hypertrace::event!("flood", n, m = n));
        let _files = close_all_and_open_files(Path::new(&dir));
        std::thread::spawn(|| hypertrace::event!("thread")).join().unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = ["--clients", "1", "--ring", "64K"];

    run(&mut run_test(dir.path(), &options, this_test!(), dir.path().to_str().unwrap())).ok();

    assert_eq!(total(dir.path(), "events") + total(dir.path(), "lost"), EVENTS + 1);
}

#[test]
fn children_that_inherit_no_descriptor_are_traced() {
    const CHILDREN: usize = 10;
    match traced::argument().as_deref() {
        Some("parent") => {
            for _ in 0..CHILDREN {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(std::env::args().skip(1)).env("HYPERTRACE_TEST_PROGRAM", "child");
                // SAFETY: only fcntl is called between fork and exec.
                unsafe {
                    child.pre_exec(|| {
                        for descriptor in 3..1024 {
                            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
                        }
                        Ok(())
                    });
                }
                assert!(child.stdout(Stdio::null()).status().unwrap().success());
            }
        }
        Some(_) => hypertrace::event!("child"),
        None => {
            let dir = tempfile::tempdir().unwrap();

            run(&mut run_test(dir.path(), &[], this_test!(), "parent")).ok();

            assert_eq!((count(dir.path(), "child"), total(dir.path(), "lost")), (CHILDREN, 0));
        }
    }
}

#[test]
fn a_program_that_may_not_look_at_run_inherits_the_descriptor() {
    if traced::argument().is_some() {
        let location = std::env::var_os("HYPERTRACE_SEGMENT").unwrap();
        // The process is another user's process, without rights.
        // SAFETY: `setuid` takes a number and no memory.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        assert!(File::open(location).is_err());
        hypertrace::event!("inherited");
        return;
    }
    // SAFETY: geteuid takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("not run: a program of another user, which only root starts");
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    run(&mut run_test(dir.path(), &[], this_test!(), "-")).ok();

    assert_eq!(count(dir.path(), "inherited"), 1);
}
