//! What each thread did, as JSON lines.

use super::rows::cause_json;
use anyhow::{Context, Result};
use hypertrace_export::escape::JsonText;
use hypertrace_export::json::{JSON_VERSION, exact};
use hypertrace_timeline::regions::{Options, Regions, ThreadInterval};
use hypertrace_timeline::{Recording, Warning};
use serde_json::json;
use std::io::{self, Write as _};

/// Prints a line for each interval of each thread: those of a thread in order of time. Returns the warnings.
pub fn print(recording: &Recording) -> Result<Vec<Warning>> {
    let (sessions, started_unix_ns) = (&recording.sessions, recording.start_unix_ns());
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut written = Ok(());
    let mut write = |thread: &ThreadInterval<'_>| {
        let interval = thread.interval;
        let is_program = sessions[thread.session].0.json().programs;
        let line = json!({
            "version": JSON_VERSION,
            "session": thread.session,
            "tid": thread.tid,
            "thread": thread.name,
            "t_ns": interval.from.saturating_sub(started_unix_ns),
            "begin_ns": interval.from,
            "duration_ns": interval.length(),
            "part": interval.part.name(is_program),
            "reason": thread.reason,
            "wait": thread.cause.as_ref().map(cause_json),
        });
        if written.is_ok() {
            written = writeln!(out, "{}", JsonText(&exact(line).to_string()));
        }
    };
    let regions = Regions::with_intervals(recording, &Options::default(), &mut write)?;
    written.and_then(|()| out.flush()).context("cannot write")?;
    Ok(regions.warnings)
}
