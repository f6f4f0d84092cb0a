//! The simple backend's file. This file gets the declared events of the packets that were taken out of the
//! host rings.

use crate::ctf::{Domain, Folder, HOST_CLOCK, HostClock, WriteFailed};
use crate::drain::stats::{Failures, SIMPLE};
use crate::drain::{Source, TraceState};
use crate::simple::Simple;
use hypertrace_abi::clock::ticks;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Maximum time without progress of a pipe's reader when the simple backend switches to another file. The
/// session drains no ring during this time.
const SWITCH_PATIENCE: Duration = Duration::from_millis(100);
/// Maximum time without progress of a pipe's reader at the session's end.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The simple backend's file, if there is one.
#[derive(Default)]
pub(crate) struct SimpleFile {
    pub file: Option<Simple>,
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
            // A pipe cannot be written from its beginning again, so a new file with the path of the old pipe
            // is the old pipe.
            pipe.set(true, now);
            return Ok(());
        }
        let same = same.is_some();
        let mut new = Simple::create(path, dir, clock, now)?;
        if let Some(mut old) = self.file.take() {
            let (left, closed) =
                if same { (old.discard_unread(), Ok(())) } else { old.close(SWITCH_PATIENCE) };
            new.lost(0, now, left);
            failures.note(SIMPLE, closed);
        }
        self.file = Some(new);
        Ok(())
    }

    /// Closes the file, at the session's end.
    pub fn close(&mut self, failures: &mut Failures) {
        if let Some(file) = &mut self.file {
            let (_, closed) = file.close(END_PATIENCE);
            failures.note(SIMPLE, closed);
        }
    }

    /// If the source's domain is the host, records the events of the packet that the source's turn has
    /// committed.
    pub fn take(&mut self, source: &Source, state: &TraceState) {
        if source.domain == Domain::Host
            && let Some(file) = &mut self.file
        {
            let base = state.clocks.base(HOST_CLOCK);
            let schema = |dense| state.classes.text(dense);
            file.record_packet(source.number, state.buffer.events(), base, schema);
        }
    }

    /// Writes the records of a pass.
    pub fn end_pass(&mut self, clock: &HostClock, failures: &mut Failures) {
        if let Some(file) = &mut self.file {
            failures.note(SIMPLE, file.pass(clock, ticks()));
        }
    }

    /// Notes the number of declared events that a source has lost. The time of the last lost event is `time`.
    pub fn lost(&mut self, source: u32, time: u64, lost: u64) {
        if let Some(file) = &mut self.file {
            file.lost(source, time, lost);
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
