//! Peak memory of a process.
//!
//! The code is unsafe because of wait4(2) and malloc_trim(3), which std does not have.
#![allow(unsafe_code)]

use std::process::{Command, Stdio};

use crate::command::Ran;

/// Runs a command. Returns the command's result and its peak memory in bytes. The peak is at least this
/// process's memory, so tests that need much memory themselves must not run at the same time.
#[track_caller]
#[allow(clippy::zombie_processes)] // wait4 collects it
pub fn run(command: &mut Command) -> (Ran, u64) {
    // The output goes to files, because nobody would read pipes while this process waits.
    let [mut stdout, mut stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let [out, err] = [&stdout, &stderr].map(|file| Stdio::from(file.try_clone().unwrap()));
    // The kernel counts the command's peak from the peak of the process that starts the command, so this
    // process first releases free memory.
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only releases free memory.
    unsafe {
        libc::malloc_trim(0);
    }
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
    let mut status = 0;
    // SAFETY: `usage` is plain data, which the call writes; the child belongs to this process, and only this
    // call waits for it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = child.id() as libc::pid_t;
        assert_eq!(libc::wait4(pid, &mut status, 0, &mut usage), pid);
        usage
    };
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let ran = Ran { code, stdout: text(&mut stdout), stderr: text(&mut stderr) };
    // The value is in KiB on Linux.
    (ran, usage.ru_maxrss as u64 * 1024)
}

fn text(file: &mut std::fs::File) -> String {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
