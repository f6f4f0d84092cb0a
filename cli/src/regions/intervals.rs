//! What each thread did, as JSON lines.

use anyhow::{Context, Result};
use hypertrace_export::json;
use hypertrace_timeline::regions::{Options, ThreadInterval};
use hypertrace_timeline::{Consumer, Recording, Warning};
use std::io::{self, Write as _};

/// Prints a line for each interval of each thread, the intervals of a thread in order of time. Returns the
/// warnings.
pub fn print(recording: &Recording) -> Result<Vec<Warning>> {
    let out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut printer = Printer { start: recording.start_unix_ns(), out };
    let regions = recording.regions(&Options::default(), &mut printer)?;
    printer.out.flush().context("cannot write")?;
    Ok(regions.warnings)
}

struct Printer {
    /// Unix time of the start in nanoseconds.
    start: i64,
    out: io::BufWriter<io::StdoutLock<'static>>,
}

impl Consumer for Printer {
    type Error = anyhow::Error;

    fn interval(&mut self, thread: &ThreadInterval<'_>) -> Result<()> {
        writeln!(self.out, "{}", json::interval(thread, self.start)).context("cannot write")
    }
}
