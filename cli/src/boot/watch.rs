//! Looks for a stage in a recording while it is made.

use crate::output::say;
use anyhow::Result;
use hypertrace_format::folder::Folder;
use hypertrace_timeline::boot::{Boots, Options};
use hypertrace_timeline::{Given, Recording};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Minimum time between two looks.
const PERIOD: Duration = Duration::from_millis(100);
/// Minimum time between two looks, as a multiple of the duration of the first of the two looks. A look reads
/// all events. With this pause, all looks together take at most a tenth of a CPU.
const PAUSE: u32 = 9;
/// Number of failed looks, one after the other, after which the failure is reported. A single look can fail
/// because the recording ends meanwhile.
const FAILED: u32 = 2;
/// Name of the copy of a recording, in the directory of the boots.
const COPY: &str = ".copy";

/// Runs `look` again and again, until a look has seen the stage, or until `is_over` becomes true. A look that
/// copies a recording ends only after the copy, even if `is_over` becomes true meanwhile.
pub fn watch(look: impl Fn() -> Result<bool>, is_over: &AtomicBool) {
    // Number of looks that have failed since the last successful look.
    let mut failed = 0;
    while !is_over.load(Relaxed) {
        let begun = Instant::now();
        match look() {
            Ok(true) => return,
            Ok(false) => failed = 0,
            Err(why) => {
                failed += 1;
                if failed == FAILED {
                    let why =
                        format_args!("--until cannot look into the growing recording: {why:#}");
                    say(format_args!("{why}; --limit or Ctrl-C ends the VMM"));
                }
            }
        }
        let next = Instant::now() + pause(begun.elapsed());
        while Instant::now() < next && !is_over.load(Relaxed) {
            thread::sleep(PERIOD / 5);
        }
    }
}

/// Looks for the stage `options.until` in the recording in `dir`. `out` is the directory of the boots, for a
/// copy of the recording. Returns whether the stage has begun; false if `is_over` becomes true meanwhile.
pub fn look(out: &Folder, dir: &Path, options: &Options, is_over: &AtomicBool) -> Result<bool> {
    let seen = look_into_copy(out, dir, options, is_over);
    // The copy may not exist, because the look may have failed before, so an error is ignored.
    let _ = out.remove(COPY);
    seen
}

fn look_into_copy(
    out: &Folder,
    dir: &Path,
    options: &Options,
    is_over: &AtomicBool,
) -> Result<bool> {
    let file = out.new_file(COPY)?;
    if !hypertrace_kernel::copy(dir, &file)? {
        return Ok(false);
    }
    let copy = out.by_descriptor().join(COPY);
    // The session is opened, too, because the session contains the events of the VMM and of programs in the
    // guest.
    let recording = Recording::open(&[Given::new(dir), Given::new(copy)])?;
    Ok(Boots::has_begun(&recording, options, || is_over.load(Relaxed))?)
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
