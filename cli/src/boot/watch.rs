//! Looks for a stage in a recording while it is made.

use crate::output::say;
use anyhow::Result;
use hypertrace_format::folder::Folder;
use hypertrace_timeline::boot::{Boots, Options};
use hypertrace_timeline::{Given, Recording};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Minimum time between two looks.
const PERIOD: Duration = Duration::from_millis(100);
/// Minimum time between two looks, as a multiple of the time of the look before. A look reads all events, so
/// looks together take up to a tenth of a CPU.
const PAUSE: u32 = 9;
/// Number of failed looks, one after the other, after which the failure is reported. A single look can fail
/// because the recording ends meanwhile.
const FAILED: u32 = 2;
/// Name of the copy of a recording, in the directory of the boots.
const COPY: &str = ".copy";

/// A stage that is looked for.
pub struct Watch {
    /// Directory of the boots, for copies of the recording.
    out: Folder,
    /// Directory of the recording.
    dir: PathBuf,
    options: Options,
    next: Instant,
    /// Number of looks that have failed since the last successful look.
    failed: u32,
}

impl Watch {
    /// Returns a watch for the stage `options.until` of the recording in `dir`.
    pub fn new(out: Folder, dir: PathBuf, options: Options) -> Watch {
        Watch { out, dir, options, next: Instant::now(), failed: 0 }
    }

    /// Looks for the stage if a look is due. Returns whether the stage has begun.
    pub fn sees(&mut self) -> bool {
        let begun = Instant::now();
        if begun < self.next {
            return false;
        }
        let seen = self.look();
        // The look may have failed before it made the copy, so an error is ignored.
        let _ = self.out.remove(COPY);
        self.next = Instant::now() + pause(begun.elapsed());
        self.failed = if seen.is_err() { self.failed.saturating_add(1) } else { 0 };
        if let Err(why) = &seen
            && self.failed == FAILED
        {
            let why = format_args!("--until cannot look into the growing recording: {why:#}");
            say(format_args!("{why}; --limit or Ctrl-C ends the VMM"));
        }
        seen.unwrap_or(false)
    }

    fn look(&self) -> Result<bool> {
        let file = self.out.new_file(COPY)?;
        if !hypertrace_kernel::copy(&self.dir, &file)? {
            return Ok(false);
        }
        let copy = self.out.by_descriptor().join(COPY);
        // The session is opened with the copy, because the session has the events of the VMM and of programs
        // in the guest.
        let recording = Recording::open(&[Given::new(&self.dir), Given::new(copy)])?;
        Ok(Boots::has_begun(&recording, &self.options)?)
    }
}

/// Returns the time from the end of a look to the next look.
fn pause(took: Duration) -> Duration {
    PERIOD.max(took.saturating_mul(PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_at_most_a_tenth_of_a_cpu() {
        for ms in [0, 1, 11, 50, 3_000] {
            let took = Duration::from_millis(ms);
            assert!(took * 10 <= took + pause(took) && pause(took) >= PERIOD, "{ms}");
        }
    }
}
