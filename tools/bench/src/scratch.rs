//! Temporary sessions of benchmarks. Nobody reads these sessions.

use anyhow::{Context, Result, bail, ensure};
use hypertrace_trace::{Session, SessionConfig};
use hypertrace_vmm::{DeviceConfig, Geometry, Hypertrace};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};
use tempfile::TempDir;

/// Maximum time of a command. Some tracers do not end if one of their libraries cannot be loaded.
const LIMIT: Duration = Duration::from_secs(60);

/// Temporary folder, on tmpfs if this machine has one.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Result<Scratch> {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let made = tempfile::Builder::new().prefix("hypertrace-bench-").tempdir_in(&base);
        Ok(Scratch(made.with_context(|| format!("cannot make a folder in {}", base.display()))?))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts a device with a session, and a drain thread.
    pub fn device(&self, geometry: Geometry, vcpus: u32) -> Result<Hypertrace> {
        let config = DeviceConfig::new(vcpus).with(|config| config.geometry = geometry);
        Ok(Hypertrace::with_session(self.session()?, config)?)
    }

    /// Starts a device without doorbells: all registers trap, as if the device ran in a process of its own.
    pub fn server(&self, geometry: Geometry) -> Result<Hypertrace> {
        let config = DeviceConfig::new(0).with(|config| {
            config.geometry = geometry;
            config.has_doorbells = false;
        });
        Ok(Hypertrace::with_session(self.session()?, config)?)
    }

    /// Writes files, each given by name and text.
    pub fn write(&self, files: &[(&str, &str)]) -> Result<()> {
        files.iter().try_for_each(|(name, text)| Ok(fs::write(self.path().join(name), text)?))
    }

    /// Runs a command in the folder to its end. Returns its output.
    ///
    /// # Errors
    /// If the command fails; the error is the command's output on stderr. If the command, or a process that
    /// the command has started, does not end in time. All these processes are then killed.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        self.run_within(LIMIT, command)
    }

    fn run_within(&self, limit: Duration, command: &mut Command) -> Result<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.current_dir(self.path()).stdin(Stdio::null()).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("cannot start {name}"))?;
        let pid = Pid::from_child(&child);
        let (ended, end) = mpsc::channel();
        // The thread also waits for the processes that the command has started, because these processes may
        // end later than the command.
        thread::spawn(move || ended.send(child.wait_with_output()));
        let Ok(output) = end.recv_timeout(limit) else {
            let _ = kill_process_group(pid, Signal::KILL);
            bail!("{name} has not ended after {} s, and is killed", limit.as_secs_f64());
        };
        let output = output.with_context(|| format!("cannot read what {name} says"))?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name}: {}", why.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn session(&self) -> Result<Session> {
        Ok(Session::create(SessionConfig::new(self.path().join("session")))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_command_that_does_not_end_is_killed_with_what_it_has_started() {
        let scratch = Scratch::new().unwrap();
        let script = "sleep 1000 & echo $! > pid; wait";

        let ran =
            scratch.run_within(Duration::from_millis(500), Command::new("sh").args(["-c", script]));

        let said = ran.unwrap_err().to_string();
        assert_eq!(said, "sh has not ended after 0.5 s, and is killed");
        let pid = fs::read_to_string(scratch.path().join("pid")).unwrap();
        // A zombie counts as ended: the killed process may still wait until its new parent reads the exit
        // status.
        let runs = || {
            let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
            status.is_ok_and(|status| !status.contains("State:\tZ"))
        };
        let begin = Instant::now();
        while runs() {
            assert!(begin.elapsed() < LIMIT, "{pid} runs");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
