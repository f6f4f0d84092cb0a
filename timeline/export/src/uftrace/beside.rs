// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes a function trace, with the events of sessions among the calls.

use super::{Counts, Source, add_modules, overlap};
use crate::Result;
use hypertrace_functions::write::Directory;
use hypertrace_timeline::{EntryRef, FunctionTrace, Needs, Warning};
use std::path::Path;

/// Copies a function trace into a new or empty directory, and adds the names of the modules. The export also
/// adds the events of the sessions, and converts their times to the clock of the function trace. If the file
/// system can link files, the export links files of records instead of copying them. Returns the faults of
/// inputs that could be read in spite of these faults.
///
/// # Errors
/// If an input is damaged, or the directory cannot be written.
pub fn beside(
    source: &Source<'_>,
    functions: &FunctionTrace,
    out: &Path,
) -> Result<(Counts, Vec<Warning>)> {
    let trace = functions.trace();
    let mut directory = Directory::create(out, "guest", "hypertrace export")?;
    directory.add_tasks(trace.tasks().iter().cloned())?;
    let mut warnings = Vec::new();
    for task in trace.tasks() {
        let records = trace.path().join(format!("{}.dat", task.tid));
        warnings.extend(directory.take_records(task.tid, &records)?);
    }
    add_modules(&mut directory, source.modules)?;
    for (name, symbols) in trace.modules() {
        // Modules that the caller gave take precedence over the trace's own modules.
        if !source.modules.iter().any(|given| overlap(&given.symbols, symbols)) {
            directory.add_module(name, symbols)?;
        }
    }
    if let Some(anchor) = trace.anchor() {
        directory.write_anchor(anchor)?;
    }
    let mut counts = Counts {
        tasks: trace.tasks().len() as u64,
        without_name: directory.names_left_out() as u64,
        ..Counts::default()
    };
    let mut events = directory.events()?;
    let mut time = 0;
    let needs = Needs::default().without_functions();
    warnings.extend(source.recording.read(&needs, &mut |entry: &EntryRef<'_>| {
        // Losses at unknown times come last. Such a loss gets the time of the last entry before the loss.
        time = entry.ts_ns().map_or(time, |unix_ns| functions.time_at(unix_ns));
        if let Some(text) = (source.text)(entry) {
            events.write(time, &text)?;
            counts.events += 1;
        }
        Result::Ok(true)
    })?);
    events.finish()?;
    Ok((counts, warnings))
}
