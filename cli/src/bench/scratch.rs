//! Temporary sessions of benchmarks, which are not read.

use anyhow::{Context, Result};
use hypertrace_trace::{Session, SessionConfig};
use std::path::Path;
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

    pub fn session(&self) -> Result<Session> {
        Ok(Session::create(SessionConfig::new(self.path().join("session")))?)
    }
}
