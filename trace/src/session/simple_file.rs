//! The simple backend's file. This file receives the declared events of the packets that were taken out of
//! the host rings.

use crate::ctf::{Domain, Folder, HOST_CLOCK, HostClock, WriteFailed};
use crate::drain::TraceState;
use crate::drain::stats::{Failures, SIMPLE};
use crate::simple::Simple;
use hypertrace_abi::clock::ticks;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Maximum time that the switch to another file waits while the reader of the old pipe makes no progress. The
/// session drains no ring during this time.
const SWITCH_PATIENCE: Duration = Duration::from_millis(100);
/// Maximum time that the session's end waits while the reader of the pipe makes no progress.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The simple backend's file, if there is one.
#[derive(Default)]
pub(crate) struct SimpleFile {
    pub file: Option<Simple>,
    /// Number of lost events at the last look. The number counts events of host rings, and events that belong
    /// to no stream.
    lost: u64,
}

impl SimpleFile {
    /// Switches to the file at `path`.
    pub fn set(
        &mut self,
        path: &Path,
        dir: &Folder,
        clock: &HostClock,
        failures: &mut Failures,
    ) -> Result<(), WriteFailed> {
        let now = ticks();
        let same = self.file.as_mut().and_then(|old| Some((old.is(path)?, old)));
        if let Some((false, pipe)) = same {
            // A pipe cannot be written from its beginning again. So if the path leads to the pipe of the
            // present file, then this file stays, and is only switched on.
            pipe.set(true, now);
            return Ok(());
        }
        let same = same.is_some();
        let mut new = Simple::create(path, dir, clock, now)?;
        if let Some(mut old) = self.file.take() {
            let (left, closed) =
                if same { (old.discard_unread(), Ok(())) } else { old.close(SWITCH_PATIENCE) };
            new.lost(left);
            failures.note(SIMPLE, closed);
        }
        self.file = Some(new);
        Ok(())
    }

    /// Closes the file, at the session's end.
    pub fn close(&mut self, state: &mut TraceState) {
        self.note_losses(state);
        if let Some(file) = &mut self.file {
            let (_, closed) = file.close(END_PATIENCE);
            state.failures.note(SIMPLE, closed);
        }
    }

    /// Records the events of a packet of this domain, which a source's turn has committed. The file has only
    /// events of the host.
    pub fn take(&mut self, domain: Domain, state: &TraceState) {
        if domain == Domain::Host
            && let Some(file) = &mut self.file
        {
            let base = state.clocks.base(HOST_CLOCK);
            file.record_packet(state.buffer.events(), base, |dense| state.classes.text(dense));
        }
    }

    /// Writes the records of a pass.
    pub fn end_pass(&mut self, state: &mut TraceState) {
        self.note_losses(state);
        if let Some(file) = &mut self.file {
            state.failures.note(SIMPLE, file.pass(&state.clocks.host, ticks()));
        }
    }

    /// Tells the file how many events the session has lost since the last look.
    fn note_losses(&mut self, state: &TraceState) {
        let hosts = state.stats.iter().filter(|stats| stats.domain == Domain::Host);
        let lost = hosts.map(|stats| stats.ledger.lost());
        let lost = lost.fold(state.unattached.events(), u64::saturating_add);
        let more = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        if let Some(file) = &mut self.file {
            file.lost(more);
        }
    }
}

/// Formats a human-readable status.
impl fmt::Display for SimpleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            None => f.write_str("simple: none"),
            Some(simple) => write!(
                f,
                "simple: {} {}, {} records, {} dropped, {} bytes waiting",
                simple.path().display(),
                if simple.is_on() { "on" } else { "off" },
                simple.recorded,
                simple.dropped,
                simple.waiting()
            ),
        }
    }
}
