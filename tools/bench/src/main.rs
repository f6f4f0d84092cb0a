//! `hypertrace-bench` measures the cost of each operation on this machine, and the operation's floor, which
//! is the smallest possible cost.
//!
//! The runs of a row alternate with runs of the row's floor, because disturbances by the machine then affect
//! both. The benchmark reports the median of the ratios of paired runs. `--list` explains each row.

mod c;
mod child;
mod compare;
mod cpus;
mod device;
mod drain;
mod emulated;
mod export;
mod functions;
mod hostile;
mod init;
mod instructions;
mod kvm;
mod linux;
mod linux_parts;
mod measure;
mod parts;
mod peers;
mod qemu;
mod record;
mod regions;
mod ring;
mod row;
mod rows;
mod scratch;
mod serve;
mod sigsegv;
mod spans;
mod table;
mod timing;
mod trace;
mod trace_dat;
mod tracefs;
mod trigger;
mod user;
mod vfio_user;

/// Events declared in `trace-events`.
mod events {
    hypertrace_trace::include_events!();
}

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use functions::Aarch64;
use indicatif::{ProgressBar, ProgressStyle};
use linux::Linux;
use measure::{Measured, measure};
use row::{Context, Row};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Number of runs of a row, unless the command line gives another number.
const RUNS: u32 = 11;

/// Measure the cost of each operation on this machine, beside its floor
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Examples, after `cargo run --release -p hypertrace-bench --`:
  (nothing)                                    all rows but those that take minutes
  ring_emit ring_drain                         two rows, and the floors they need
  --runs 31 --json                             more runs, for a script
  --linux-guest /boot/vmlinuz linux_ shared_file
                                               rows in a Linux guest of QEMU
  --linux-guest /boot/vmlinuz functions_       function traces; takes minutes

A ratio is a row's time divided by its floor's: the median over the runs, which
alternate. Times differ from machine to machine and from minute to minute;
ratios much less. --list ROW says how a row is measured."
)]
struct Args {
    /// Rows to measure, by name or by the beginning of a name (default: all rows that do not take minutes)
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Runs of each row, alternating with its floor (default: 11, or 3 of a row that takes minutes)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1001))]
    runs: Option<u32>,
    /// Print each row with its target and how it is measured, and measure nothing
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Events of the session of the rows about exports
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    export_events: u64,
    #[command(flatten)]
    linux: Linux,
    #[command(flatten)]
    aarch64: Aarch64,
    /// Serve a benchmark in another process
    #[arg(long, hide = true)]
    serve: bool,
    /// Serve a benchmark as the first process of a guest
    #[arg(long, hide = true)]
    init: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: table::Machine,
    rows: &'a [Measured],
}

fn main() -> ExitCode {
    // `parse` ends the process with exit code 2 on wrong usage.
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) if is_closed_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            // Standard error may be closed, and a panic would hide the exit code.
            let _ = writeln!(io::stderr(), "hypertrace-bench: {why:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the reader of the output is gone.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(args: &Args) -> Result<()> {
    if args.init {
        linux_parts::init()?;
    }
    if args.serve || args.init {
        return serve::serve();
    }
    let wanted = wanted(&args.rows)
        .unwrap_or_else(|why| Args::command().error(ErrorKind::InvalidValue, why).exit());
    if args.list {
        let rows = if args.rows.is_empty() { rows::all().collect() } else { wanted };
        return print(&table::list(&rows, table::columns()));
    }
    let mut context = Context::default();
    context.resource(|| Ok(export::Events(args.export_events)))?;
    context.resource(|| Ok(args.linux.clone()))?;
    context.resource(|| Ok(args.aarch64.clone()))?;
    let mut measured = Vec::new();
    // The progress is shown on stderr, and only if stderr is a terminal.
    let style = ProgressStyle::with_template("{pos}/{len} {msg} {elapsed}")?;
    let progress = ProgressBar::new(wanted.len() as u64).with_style(style);
    for row in wanted {
        let runs = args.runs.or(row.slow).unwrap_or(RUNS);
        // A thread that updates the passed time would disturb some rows, so the passed time is not updated
        // during these rows.
        let tick = Duration::from_millis(if row.slow.is_some() { 500 } else { 0 });
        progress.enable_steady_tick(tick);
        let begin = |run| progress.set_message(format!("{} {}/{runs}", row.name, run + 1));
        measured.push(measure(row, runs as usize, &mut context, begin));
        // A running bpftrace would use CPU time during the next rows.
        context.release::<peers::Bpftrace>();
        progress.inc(1);
    }
    progress.finish_and_clear();
    let machine = table::Machine::new();
    print(&match args.json {
        true => serde_json::to_string(&Report { machine, rows: &measured })? + "\n",
        false => table::text(&machine, &measured, table::columns()),
    })
}

fn print(text: &str) -> Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Returns the rows whose names begin with one of the given names. Without names, returns all rows except for
/// the rows that take minutes.
fn wanted(names: &[String]) -> Result<Vec<&'static Row>, String> {
    let has = |row: &Row, name: &String| row.name.starts_with(name.as_str());
    if let Some(name) = names.iter().find(|name| !rows::all().any(|row| has(row, name))) {
        return Err(format!("no row {name:?}: --list prints all"));
    }
    let is_wanted = |row: &&Row| match names {
        [] => row.slow.is_none(),
        names => names.iter().any(|name| has(row, name)),
    };
    Ok(rows::all().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_takes_minutes_is_measured_if_it_is_named() {
        let is_boot = |row: &&Row| row.name == "functions_boot_x86";
        let by_default = wanted(&[]).unwrap();
        assert!(by_default.len() > 50 && !by_default.iter().any(is_boot));
        assert!(wanted(&["functions_".into()]).unwrap().iter().any(is_boot));
    }
}
