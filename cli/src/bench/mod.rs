//! `hypertrace bench`: the cost of each operation on this machine, beside its floor.
//!
//! Every row alternates with its floor, run by run, and reports the median of
//! the paired ratios: disturbances by the machine affect both.
//! `docs/benchmarks.md` explains each row.

mod c;
mod child;
mod cpus;
mod device;
mod drain;
mod emulated;
mod hostile;
mod kvm;
mod peers;
mod qemu;
mod ring;
mod rows;
mod scratch;
mod sigsegv;
mod table;
mod trace;
mod tracefs;
mod trigger;
mod user;

/// Events declared in `trace-events`.
mod events {
    hypertrace_trace::include_events!();
}

use crate::output::print;
use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rows::{Context, ROWS, Row};
use serde::Serialize;

/// Measure the cost of each operation on this machine, beside its floor
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hypertrace bench                         every row
  hypertrace bench ring_emit ring_drain    two rows, and the floors they need
  hypertrace bench --runs 31 --json        more runs, for a script

A ratio is a row's time divided by its floor's: the median over the runs, which
alternate. Times differ from machine to machine and from minute to minute; ratios
much less. docs/benchmarks.md explains each row.")]
pub struct BenchArgs {
    /// Rows to measure, by name or by the beginning of a name (default: all)
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Runs of each row, alternating with its floor
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1001))]
    runs: u32,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Serve a benchmark in another process
    #[arg(long, hide = true)]
    serve: bool,
}

/// One measured row, as `--json` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    name: &'static str,
    /// Median time in nanoseconds; null if not measured.
    ns: Option<f64>,
    /// Row that it is compared with.
    floor: Option<&'static str>,
    /// Median of paired ratios.
    ratio: Option<f64>,
    /// Interquartile range of the paired ratios (of the times, where there is
    /// no floor).
    iqr: Option<f64>,
    runs: usize,
    target: Option<&'static str>,
    met: Option<bool>,
    note: String,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: table::Machine,
    rows: &'a [Measured],
}

/// Runs the command.
///
/// # Errors
/// If a row is unknown.
pub fn run(args: &BenchArgs) -> Result<()> {
    if args.serve {
        return child::serve();
    }
    let wanted: Vec<&Row> = if args.rows.is_empty() {
        ROWS.iter().collect()
    } else {
        for name in &args.rows {
            if !ROWS.iter().any(|row| row.name.starts_with(name.as_str())) {
                let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
                bail!(crate::Usage(format!("no row {name:?}; there are {}", known.join(", "))));
            }
        }
        ROWS.iter()
            .filter(|row| args.rows.iter().any(|name| row.name.starts_with(name.as_str())))
            .collect()
    };
    let mut context = Context::new()?;
    let mut measured = Vec::new();
    // Shown on stderr, and only if that is a terminal.
    let style = ProgressStyle::with_template("{pos}/{len} {msg} {elapsed}")?;
    let progress = ProgressBar::new(wanted.len() as u64).with_style(style);
    for row in wanted {
        progress.set_message(row.name);
        measured.push(measure(row, args.runs as usize, &mut context));
        // A running bpftrace would use CPU time during the next rows.
        context.bpftrace = None;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let machine = table::machine(&context);
    if args.json {
        let report = serde_json::to_string(&Report { machine, rows: &measured })?;
        print(format_args!("{report}\n"))
    } else {
        print(table::text(&machine, &measured))
    }
}

/// Measures a row and its floor alternately.
fn measure(row: &Row, runs: usize, context: &mut Context) -> Measured {
    let mut result = Measured {
        name: row.name,
        ns: None,
        floor: row.floor.map(|floor| floor.name()),
        ratio: None,
        iqr: None,
        runs: 0,
        target: row.target.map(|target| target.text),
        met: None,
        note: row.note.to_owned(),
    };
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let floor = match row.floor {
            Some(floor) => match floor.run(context) {
                Ok(ns) => Some(ns),
                Err(why) => {
                    result.note = format!("not measured: {why:#}");
                    return result;
                }
            },
            None => None,
        };
        match (row.run)(context) {
            Ok(ns) => times.push(ns),
            Err(why) => {
                result.note = format!("not measured: {why:#}");
                return result;
            }
        }
        if let (Some(floor), Some(&ns)) = (floor, times.last()) {
            ratios.push(row.compare(ns, floor));
        }
    }
    result.runs = times.len();
    let (median, iqr) = table::median_and_iqr(&mut times);
    result.ns = Some(median);
    result.iqr = Some(iqr);
    if !ratios.is_empty() {
        let (median, iqr) = table::median_and_iqr(&mut ratios);
        result.ratio = Some(median);
        result.iqr = Some(iqr);
    }
    result.met = row.target.map(|target| target.is_met(result.ratio.unwrap_or(median)));
    result
}
