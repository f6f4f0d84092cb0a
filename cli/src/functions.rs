//! `hypertrace functions`: which functions of a guest took the time.

use crate::escape::Escaped;
use crate::output::{print, say};
use hypertrace_functions::read::{By, Caller, Function, Summary, Trace};
use hypertrace_functions::symbols::Source;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Show which functions of a guest took the time
///
/// DIR is a function trace of QEMU's plugin (functions=DIR), or any directory of uftrace. Names come from
/// DIR, and from the files of --symbols.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directory of the function trace
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Names: an ELF file, a System.map, or what /proc/kallsyms has, moved by an offset
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,

    /// Number of functions
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Order: self, total or calls
    #[arg(long, value_name = "KEY", value_enum, default_value_t)]
    by: Order,

    /// Show the callers of each function, too
    #[arg(long)]
    callers: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Order of functions.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Order {
    /// Time in the function itself
    #[default]
    #[value(name = "self")]
    SelfTime,
    /// Time until it returned
    Total,
    /// Number of calls
    Calls,
}

const EXAMPLES: &str = "\
Examples:
  qemu-system-x86_64 ... -plugin libhypertrace_qemu_plugin_7.so,functions=F
  hypertrace functions F --symbols System.map | less
  uftrace replay -d F                    every call, by uftrace

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Most callers of a function that are shown.
const MOST_CALLERS: usize = 5;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut trace = Trace::open(&args.dir)?;
    for source in &args.symbols {
        trace.add_symbols(source)?;
    }
    let summary = Summary::of(&trace);
    summary.damage.iter().for_each(say);
    let by = match args.by {
        Order::SelfTime => By::SelfTime,
        Order::Total => By::Total,
        Order::Calls => By::Calls,
    };
    let top = summary.top(args.top, by);
    print(if args.json { json(&trace, &summary, &top) } else { text(args, &trace, &summary, &top) })
}

fn name(trace: &Trace, address: u64) -> String {
    trace.function(address).map_or_else(|| format!("{address:#x}"), |symbol| symbol.name.to_owned())
}

fn text(args: &Args, trace: &Trace, summary: &Summary, top: &[&Function]) -> String {
    let mut out = format!("{:>12} {:>12} {:>10}  function\n", "self us", "total us", "calls");
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
    for function in top {
        let (own, total) = (us(function.self_time), us(function.total));
        let name = name(trace, function.address);
        let _ = writeln!(
            out,
            "{own:>12} {total:>12} {:>10}  {}",
            function.calls,
            Escaped(name.as_bytes())
        );
        let callers = summary.callers(function.address);
        for Caller { function, calls, total, .. } in
            callers.iter().take(if args.callers { MOST_CALLERS } else { 0 })
        {
            let from = function.map_or("(outermost)".into(), |address| self::name(trace, address));
            let _ = writeln!(
                out,
                "{:>12} {:>12} {calls:>10}    from {}",
                "",
                us(*total),
                Escaped(from.as_bytes())
            );
        }
    }
    let Summary { calls, unfinished, lost, .. } = summary;
    let _ = writeln!(out, "\n{calls} calls, {unfinished} without an end, {lost} records lost");
    out
}

fn json(trace: &Trace, summary: &Summary, top: &[&Function]) -> String {
    let functions = top.iter().map(|function| {
        serde_json::json!({
            "name": name(trace, function.address), "address": function.address, "calls": function.calls,
            "total_ns": function.total, "self_ns": function.self_time, "min_ns": function.min, "max_ns": function.max,
        })
    });
    let functions = Vec::from_iter(functions);
    let json = serde_json::json!({
        "functions": functions, "calls": summary.calls, "unfinished": summary.unfinished,
        "orphans": summary.orphans, "lost": summary.lost, "damage": summary.damage.len(),
    });
    format!("{json}\n")
}
