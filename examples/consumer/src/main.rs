// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An exporter with a format of the example: a line for each region, with the parts of the region's time in
//! nanoseconds.
//!
//! ```text
//! $ region-lines SESSION..
//! lookup 17 duration=5120 on_cpu=4100 blocked=1020 by "program/0 server"
//! ```

use anyhow::Result;
use hypertrace_timeline::regions::{Options, Region, Regions};
use hypertrace_timeline::{Consumer, Given, Recording};
use std::io::{self, BufWriter, Write};

/// Writes a line for each region.
struct Lines<'a, W> {
    regions: &'a Regions,
    out: W,
}

impl<W: Write> Consumer for Lines<'_, W> {
    type Error = anyhow::Error;

    fn region(&mut self, region: &Region<'_>) -> Result<bool> {
        let sample = region.sample;
        let group = &self.regions.groups[usize::from(sample.group)];
        write!(self.out, "{} {} duration={}", group.name, sample.id, sample.duration_ns())?;
        for (part, ns) in sample.times.iter().filter(|(_, ns)| *ns > 0) {
            write!(self.out, " {}={ns}", part.key())?;
        }
        if let Some(event) = region.begin {
            // A program chooses its own name, so the name is in quotes and escaped.
            write!(self.out, " by {:?}", event.source.text)?;
        }
        writeln!(self.out)?;
        Ok(true)
    }
}

fn main() -> Result<()> {
    let given = Vec::from_iter(std::env::args_os().skip(1).map(Given::new));
    let recording = Recording::open(&given)?;
    let regions = Regions::of(&recording, &Options::default())?;
    let mut lines = Lines { regions: &regions, out: BufWriter::new(io::stdout().lock()) };
    recording.read_regions(&regions, &mut lines)?;
    Ok(lines.out.flush()?)
}
