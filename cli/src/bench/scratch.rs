//! Temporary sessions of benchmarks, which are not read.

use anyhow::{Context, Result, ensure};
use hypertrace_trace::{Session, SessionConfig};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Temporary folder, on tmpfs where there is one.
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

    /// Writes files: their names and texts.
    pub fn write(&self, files: &[(&str, &str)]) -> Result<()> {
        files.iter().try_for_each(|(name, text)| Ok(fs::write(self.path().join(name), text)?))
    }

    /// Runs a command in the folder to its end. Returns its output.
    ///
    /// # Errors
    /// If it fails: the error is its output on stderr.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let output = command.current_dir(self.path()).output();
        let output = output.with_context(|| format!("cannot start {name}"))?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name}: {}", why.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn session(&self) -> Result<Session> {
        Ok(Session::create(SessionConfig::new(self.path().join("session")))?)
    }
}
