//! Sessions that this process records, for `record` and `demo`.

use crate::output::say;
use anyhow::{Result, bail};
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::Missing;
use hypertrace_trace::monitor::Monitor;
use hypertrace_trace::{Session, SessionConfig, Share};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Runs a command that records in this directory. If the command fails, removes the directory, provided that
/// the command made the directory and the directory is empty.
pub fn tidy<T>(dir: Option<&Path>, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let missing = dir.map(Missing::look);
    run().inspect_err(|_| missing.iter().for_each(Missing::remove))
}

/// First failure to write a session. Later failures mostly follow from the first.
#[derive(Default)]
pub struct Failure(Arc<OnceLock<String>>);

impl Failure {
    /// Returns the configuration of a session in this directory. The session's first write failure is kept in
    /// `self`.
    pub fn of_session(&self, dir: &Path, share: Share) -> SessionConfig {
        let first = Arc::clone(&self.0);
        SessionConfig::new(dir).with(|config| {
            config.share = share;
            config.on_write_failed =
                Some(Box::new(move |failed| drop(first.set(error_chain(failed)))));
        })
    }

    /// Checks that an ended session is complete; `written` is the result of its end.
    ///
    /// # Errors
    /// If a write failed. The session is then readable only up to the failed write, and the error's message
    /// names the failure.
    pub fn check(&self, written: Result<()>) -> Result<()> {
        match self.0.get() {
            Some(why) => bail!("{why}"),
            None => written,
        }
    }
}

/// Serves the session's monitor. If the session cannot make its control socket, says why and returns `None`.
pub fn serve(session: &Session) -> Option<Monitor> {
    let monitor = session.serve();
    monitor.inspect_err(|error| say(format_args!("no control socket: {}", error_chain(error)))).ok()
}
