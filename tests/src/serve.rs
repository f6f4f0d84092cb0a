//! `hypertrace serve`, and the devices of QEMU that it serves.

use hypertrace_test_support::wait_until;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::Hypertrace;
use crate::interrupt;

/// A running `hypertrace serve`.
#[derive(Debug)]
pub struct Server {
    hypertrace: Hypertrace,
    /// The server's process; `None`: the server has ended.
    process: Option<Child>,
    /// The session's folder.
    pub session: PathBuf,
    /// Options of QEMU for a VM with the device.
    pub device: Vec<String>,
}

impl Server {
    /// Starts to serve a file in this folder.
    #[track_caller]
    pub fn of_file(hypertrace: Hypertrace, folder: &Path) -> Server {
        let file = folder.join("memory");
        let memory =
            format!("memory-backend-file,id=ht,share=on,mem-path={},size=16M", file.display());
        let device = ["-object", &memory, "-device", "ivshmem-plain,memdev=ht"];
        let device = device.map(str::to_owned).to_vec();
        Server::start(hypertrace, folder, "memory", &["--file", file.to_str().unwrap()], device)
    }

    /// Starts to serve a socket in this folder, with these options.
    #[track_caller]
    pub fn of_socket(hypertrace: Hypertrace, folder: &Path, options: &[&str]) -> Server {
        let socket = folder.join("socket");
        let path = socket.to_str().unwrap();
        let device = device_at(path);
        Server::start(
            hypertrace,
            folder,
            "socket",
            &[&["--socket", path], options].concat(),
            device,
        )
    }

    #[track_caller]
    fn start(
        hypertrace: Hypertrace,
        folder: &Path,
        served: &str,
        options: &[&str],
        device: Vec<String>,
    ) -> Server {
        fs::create_dir_all(folder).unwrap();
        let session = folder.join("session");
        let mut command = hypertrace.command(["serve", "-o"]);
        command.arg(&session).args(options).stderr(Stdio::piped());
        interrupt::with_default_signals(&mut command);
        let process = Some(command.spawn().unwrap());
        let mut server = Server { hypertrace, process, session, device };
        // Stock QEMU would make a file of its own if it started before the served file exists.
        let made = [server.session.join("session.json"), folder.join(served)];
        wait_until("a session", || {
            if server.process.as_mut().unwrap().try_wait().unwrap().is_some() {
                panic!("the server has ended: {:?}", server.output());
            }
            made.iter().all(|path| path.exists())
        });
        server
    }

    /// Returns the id of the server's process.
    pub fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.process.as_ref().unwrap()), signal).unwrap();
    }

    /// Ends the server, which must succeed. Returns the numbers of `info --json`.
    #[track_caller]
    pub fn end(mut self) -> Value {
        self.stop();
        self.hypertrace.info(&self.session)
    }

    /// Ends the server, which must succeed. Returns what the server has written to stderr.
    #[track_caller]
    pub fn stop(&mut self) -> String {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the server's end, which must be a success. Returns what the server has written to stderr.
    #[track_caller]
    pub fn wait(&mut self) -> String {
        let (code, said) = self.output();
        assert_eq!(code, Some(0), "{said}");
        said
    }

    /// Ends the server. Returns the server's exit code, and what the server has written to stderr.
    #[track_caller]
    pub fn ended(&mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        self.output()
    }

    fn output(&mut self) -> (Option<i32>, String) {
        let ended = self.process.take().unwrap().wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    }
}

/// Returns options of QEMU for a VM with the device that is served at this socket.
pub fn device_at(socket: &str) -> Vec<String> {
    let device = format!(
        r#"{{"driver":"vfio-user-pci","x-no-posted-writes":true,"socket":{{"type":"unix","path":"{socket}"}}}}"#
    );
    vec!["-device".to_owned(), device]
}

impl Server {
    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Server {
    /// Kills the server if a test has failed.
    fn drop(&mut self) {
        self.kill();
    }
}
