//! Sessions that this process records, for `record` and `demo`.

use crate::output::say;
use anyhow::{Result, bail};
use hypertrace_format::error::error_chain;
use hypertrace_trace::monitor::Monitor;
use hypertrace_trace::{Session, SessionConfig, Share};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Runs a command that records in this directory. If it fails, directories that it made and that are
/// empty are removed again.
pub fn tidy<T>(dir: Option<&Path>, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_missing = |dir: &&Path| {
        let found = fs::symlink_metadata(dir);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let above = dir.into_iter().flat_map(Path::ancestors);
    let missing: Vec<&Path> = above.take_while(is_missing).collect();
    run().inspect_err(|_| {
        // From within; one that is not empty stays, with those around it.
        let _ = missing.iter().all(|dir| fs::remove_dir(dir).is_ok());
    })
}

/// The first failure to write a session: later ones mostly follow from it.
#[derive(Default)]
pub struct Failure(Arc<OnceLock<String>>);

impl Failure {
    /// Returns the configuration of a session in this directory, which reports its failures here.
    pub fn of_session(&self, dir: &Path, share: Share) -> SessionConfig {
        let first = Arc::clone(&self.0);
        SessionConfig {
            share,
            on_write_failed: Some(Box::new(move |failed| drop(first.set(error_chain(failed))))),
            ..SessionConfig::new(dir)
        }
    }

    /// Checks that an ended session is complete; `written` is the result of its end.
    ///
    /// # Errors
    /// If it is readable only up to a failure. The message has the failure and the losses.
    pub fn check(&self, written: Result<()>) -> Result<()> {
        match self.0.get() {
            Some(why) => bail!("{why}"),
            None => written,
        }
    }
}

/// Serves the session's monitor. Without its socket, a message says so.
pub fn serve(session: &Session) -> Option<Monitor> {
    let monitor = session.serve();
    monitor.inspect_err(|error| say(format_args!("no control socket: {}", error_chain(error)))).ok()
}
