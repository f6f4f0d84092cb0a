//! `hypertrace run` of programs that close descriptors they do not know.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::traced;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// `run` with these options and this test as the program.
fn run_test(dir: &Path, options: &[&str], name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(dir.join("S")).args(options);
    traced::program(&mut command, name, argument);
    command
}

fn total(dir: &Path, count: &str) -> u64 {
    HYPERTRACE.stat(&dir.join("S"))["total"][count].as_u64().unwrap()
}

fn count(dir: &Path, event: &str) -> usize {
    HYPERTRACE.report(&dir.join("S")).iter().filter(|line| line.event == event).count()
}

#[test]
fn children_that_inherit_no_descriptor_are_traced() {
    const CHILDREN: usize = 10;
    let name = "children_that_inherit_no_descriptor_are_traced";
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

            run(&mut run_test(dir.path(), &[], name, "parent")).ok();

            assert_eq!((count(dir.path(), "child"), total(dir.path(), "lost")), (CHILDREN, 0));
        }
    }
}

#[test]
fn a_program_that_may_not_look_at_run_inherits_the_descriptor() {
    let name = "a_program_that_may_not_look_at_run_inherits_the_descriptor";
    if traced::argument().is_some() {
        let location = std::env::var_os("HYPERTRACE_SEGMENT").unwrap();
        // Another user's process, as seen by one without rights.
        // SAFETY: takes a number.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        assert!(File::open(location).is_err());
        hypertrace::event!("inherited");
        return;
    }
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("not run: a program of another user, which only root starts");
        return;
    }
    let dir = tempfile::tempdir().unwrap();

    run(&mut run_test(dir.path(), &[], name, "-")).ok();

    assert_eq!(count(dir.path(), "inherited"), 1);
}
