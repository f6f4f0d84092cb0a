//! A running `hypertrace serve`.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::command::Hypertrace;
use crate::interrupt;

/// A running `hypertrace serve`.
#[derive(Debug)]
pub struct Server {
    process: Child,
    /// Directory of its session.
    pub session: PathBuf,
}

impl Server {
    /// Starts it with these options and a session in this folder, and waits until it serves.
    #[track_caller]
    pub fn start(hypertrace: Hypertrace, folder: &Path, options: &[&str]) -> Server {
        let session = folder.join("session");
        let mut command = hypertrace.command(["serve", "--quiet", "--out"]);
        command.arg(&session).args(options).stderr(Stdio::piped());
        interrupt::with_default_signals(&mut command);
        let process = command.spawn().unwrap();
        let server = Server { process, session };
        while !server.session.join("session.json").exists() {
            sleep(Duration::from_millis(5));
        }
        server
    }

    /// Ends it, which must succeed.
    #[track_caller]
    pub fn end(self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let ended = self.process.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}
