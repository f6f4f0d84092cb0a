//! The kernel's events beside a session, for `record`, `demo`, `report` and `info`.

mod guests;

use crate::output::{grouped, say};
use crate::units::shown;
use anyhow::{Context, Result};
use hypertrace_format::error::DirectoryError;
use hypertrace_format::error::error_chain;
use hypertrace_kernel::{
    Config, Counts, Error, Recording, Source, Summary, is_incomplete, recover, sweep,
};
use std::fmt::Write as _;
use std::path::Path;

pub use guests::{say_guests, say_unread};

/// Completes the recordings of killed processes, then starts a recording.
pub fn start(config: &Config) -> Result<Recording> {
    clean();
    Recording::start(config).context("cannot record the kernel's events")
}

/// Starts a recording beside a program, as [`start`] does. If this user cannot record the kernel's events,
/// the program runs all the same: then this function says why and returns `None`. If `config` names events or
/// a buffer size, a failure is an error.
pub fn start_beside(config: &Config) -> Result<Option<Recording>> {
    clean();
    match Recording::start(config) {
        Ok(recording) => Ok(Some(recording)),
        Err(why) if runs_without(&why, &config.events, config.buffer_kib) => {
            say_without(&why.into());
            Ok(None)
        }
        Err(why) => Err(why).context("cannot record the kernel's events"),
    }
}

/// Returns true if a program runs although the kernel's events cannot be recorded.
pub fn runs_without(why: &Error, events: &[String], buffer_kib: Option<u32>) -> bool {
    why.is_of_machine() && events.is_empty() && buffer_kib.is_none()
}

/// Says that the kernel's events are not recorded, and why.
pub fn say_without(why: &anyhow::Error) {
    say(format_args!("the kernel's events are not recorded: {why:#}"));
}

/// Completes the recordings of killed processes, and removes their instances. Reports what was completed.
pub fn clean() {
    for found in sweep() {
        let dir = found.dir.display();
        match found.summary {
            Ok(Some(summary)) => say(completed(&summary)),
            Ok(None) => {}
            Err(why) => say(format_args!(
                "cannot complete the recording that was left in {dir}: {}",
                error_chain(&why)
            )),
        }
        if found.dropped > 0 {
            say(format_args!(
                "removed the kernel's trace instance {} of a killed process, and with the instance {} \
                 events, because their recording in {dir} is gone",
                found.instance,
                grouped(found.dropped)
            ));
        }
    }
}

/// Completes the recording of a killed process in this directory, and reports the result. A failure is no
/// error, because the rest of the session can be read. Returns false if the recording is in progress.
pub fn complete(dir: &Path) -> bool {
    if !is_incomplete(dir) {
        return true;
    }
    match recover(dir) {
        Ok(Some(summary)) => say(completed(&summary)),
        // Nothing was recorded.
        Ok(None) => {}
        Err(Error::Busy(_)) => return false,
        Err(Error::Directory(DirectoryError::NotOwned { path, owner, .. })) if path == dir => {
            say(format_args!(
                "{}: the kernel's events are not shown: either they are still being recorded, or their \
                 recorder was killed and user {owner} has to complete them with `hypertrace report`",
                dir.display()
            ));
        }
        Err(why) => say(format_args!(
            "{}: the kernel's events, of a recording that was left incomplete, are not shown: {}",
            dir.display(),
            error_chain(&why)
        )),
    }
    true
}

/// Completes the recording of a killed process before a session is shown. Reports a recording that is in
/// progress.
pub fn complete_to_show(dir: &Path) {
    if !complete(dir) {
        say(format_args!(
            "{}: the kernel's events are still being recorded, and are not shown yet",
            dir.display()
        ));
    }
}

fn completed(summary: &Summary) -> String {
    let left = summary.instance_left.as_ref().map_or(String::new(), |why| format!("; {why}"));
    format!("completed a recording that was left incomplete: {}{left}", line(summary, None))
}

/// Reports that a recording has begun, and tells what is recorded and what is not.
pub fn say_start(recording: &Recording, dir: &Path, end: &str) {
    let what = match recording.source() {
        Source::Tracefs => systems(recording.events()),
        Source::Perf => "scheduling by perf".into(),
    };
    let threads = match recording.threads() {
        0 => "all threads".into(),
        1 => "1 thread and all that it starts".into(),
        n => format!("{} threads and all that they start", grouped(n as u64)),
    };
    say(format_args!(
        "recording the kernel's events ({what}) of {threads} in {}; {end}",
        dir.display()
    ));
    if let Some(why) = recording.why_perf() {
        say(why);
        say(
            "the recording shows when these threads have a CPU, but no exits of guests and no wake-ups",
        );
    }
}

/// Returns the systems of events, with their numbers of events: `kvm 57, sched 3`.
pub fn systems(events: &[String]) -> String {
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for event in events {
        let system = event.split(':').next().unwrap_or_default();
        match counts.iter_mut().find(|(name, _)| *name == system) {
            Some((_, count)) => *count += 1,
            None => counts.push((system, 1)),
        }
    }
    let counts: Vec<_> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
    counts.join(", ")
}

/// Maximum number of damaged places that one line names. Each CPU's events can have damaged places.
const MAX_DAMAGE: usize = 4;

/// Formats the closing line: events, losses with their causes and what helps, the file.
pub fn line(summary: &Summary, buffer_kib: Option<u32>) -> String {
    let events = if summary.asked.events == 1 { "event" } else { "events" };
    let buffer_kib = buffer_kib.filter(|_| summary.source == Source::Tracefs);
    let mut line = format!(
        "{} kernel {events} (by {}) in {}, {}",
        grouped(summary.asked.events),
        summary.source,
        summary.path.display(),
        losses(&summary.asked, buffer_kib)
    );
    if let Some(cpus) = &summary.cpus {
        // Writing to a String does not fail.
        let _ = write!(
            line,
            "; {} about all threads, {}",
            grouped(cpus.events),
            losses(cpus, buffer_kib)
        );
    }
    for damage in summary.damage.iter().take(MAX_DAMAGE) {
        let _ = write!(line, "; {damage}");
    }
    match summary.damage.len().saturating_sub(MAX_DAMAGE) {
        0 => {}
        more => drop(write!(line, "; damage in {} more places", grouped(more as u64))),
    }
    line
}

/// Formats the losses of a buffer of this size.
fn losses(counts: &Counts, buffer_kib: Option<u32>) -> String {
    match counts.lost() {
        0 if counts.losses_known => return "none lost".into(),
        0 => return "losses unknown".into(),
        _ => {}
    }
    let mut causes = Vec::new();
    if counts.overwritten > 0 {
        let hint = match buffer_kib {
            Some(kib) => {
                format!("buffer full (raise --buffer, {} now)", shown(u64::from(kib) << 10))
            }
            None => "buffer full".into(),
        };
        causes.push(format!("{} {hint}", grouped(counts.overwritten)));
    }
    if counts.unwritten > 0 {
        causes.push(format!("{} read and not written", grouped(counts.unwritten)));
    }
    format!("{} lost: {}", grouped(counts.lost()), causes.join(", "))
}

/// Ends a recording. Returns an error if the recording's file cannot be made, or if the file lacks events
/// because a write failed.
pub fn finish(recording: Recording, is_quiet: bool) -> Result<()> {
    let buffer_kib = recording.buffer_kib();
    let summary = recording.finish().context(
        "the recording of the kernel's events is incomplete; its events stay on the disk and in the kernel's \
         buffers, and `hypertrace report` completes it once the cause is gone",
    )?;
    if !is_quiet {
        say(line(&summary, Some(buffer_kib)));
        if let Some(stolen) = summary.stolen.filter(|stolen| !stolen.is_zero()) {
            say(format_args!(
                "steal time of this machine's CPUs meanwhile: {} ms. No event shows when, so the threads \
                 that had the CPUs seem to have run all the time",
                grouped(stolen.as_millis() as u64)
            ));
        }
    }
    if let Some(why) = &summary.instance_left {
        say(why);
    }
    match summary.failure {
        Some(why) => Err(anyhow::anyhow!(
            "{} lacks {} events: {why}; make room, or use another directory",
            summary.path.display(),
            grouped(summary.asked.unwritten + summary.cpus.map_or(0, |cpus| cpus.unwritten))
        )),
        None => Ok(()),
    }
}
