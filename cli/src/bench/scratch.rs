//! A session that a run of a benchmark writes and nobody reads.

use anyhow::{Context, Result};
use hypertrace_trace::{Session, SessionConfig};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A folder on tmpfs where there is one, removed in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let name =
            format!("hypertrace-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = base.join(name);
        std::fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn session(&self) -> Result<Session> {
        Ok(Session::create(SessionConfig::new(self.0.join("session")))?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder left behind is all that can go wrong.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
