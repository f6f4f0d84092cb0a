//! A table with a row for each run, for other programs.

use super::Side;
use hypertrace_export::escape::Csv;
use hypertrace_timeline::regions::Part;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// Formats a row for each run and name of regions.
pub fn csv(sides: &[Side; 2]) -> String {
    let mut out = "time,run,side,region,count,typical_ns,mean_ns,p50_ns,p99_ns,lost".to_owned();
    Part::ALL.iter().for_each(|part| out.extend([",", part.key_ns()]));
    out.push('\n');
    for (side, runs) in ["a", "b"].into_iter().zip(sides) {
        for (dir, run) in runs {
            for (name, region) in &run.regions {
                let percentile = |at: usize| region.percentiles_ns.get(at).unwrap_or(0);
                // Writing to a String does not fail.
                let _ = write!(
                    out,
                    "{},{},{side},{},{},{:.3},{:.3},{},{},{}",
                    run.started_unix_ns / 1_000_000_000,
                    Csv(dir.as_os_str().as_bytes()),
                    Csv(name.as_bytes()),
                    region.count,
                    region.typical.mean.duration_ns(),
                    region.all.duration_ns(),
                    percentile(50),
                    percentile(99),
                    run.lost
                );
                region.typical.mean.parts_ns.iter().for_each(|ns| _ = write!(out, ",{ns:.3}"));
                out.push('\n');
            }
        }
    }
    out
}
