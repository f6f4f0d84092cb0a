//! `hypertrace functions`: which functions took the time.

mod flame;
mod region;

use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::{Busy, Faults, grouped, print, print_json, progress, say};
use crate::place;
use crate::report;
use crate::temporary::Temporary;
use anyhow::{Result, bail};
use hypertrace_export::escape::Escaped;
use hypertrace_export::uftrace::{self, Counts};
use hypertrace_format::session_json;
use hypertrace_functions::read::{By, Caller, Flame, Function, Spans, Summary, Trace};
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::{Module, Recording};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Show which functions took the time
///
/// DIR is a function trace of QEMU's plugin (functions=DIR), any directory of
/// uftrace, a session with a function trace in its folder `functions`, or a session
/// of a program whose functions are compiled in. The functions' names come from the
/// trace and from the files of --symbols.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directory of the function trace
    #[arg(value_name = "DIR", default_value = place::DEFAULT)]
    dir: PathBuf,

    /// Take the names of functions from this file: an ELF file, a System.map, or a copy of
    /// /proc/kallsyms, moved by an offset
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,

    /// Count only time in the session's regions of this name
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// Take the regions from this session, recorded at the same time as DIR. Needed if DIR is not inside
    /// the session
    #[arg(long, value_name = "DIR", requires = "region")]
    session: Option<PathBuf>,

    /// Write a flame graph instead: one file for a browser, which needs no other file and no network.
    /// An older flame graph with this name is replaced; any other file is an error
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "callers"])]
    flame: Option<PathBuf>,

    /// Show this many functions [default: 20, with --json all]
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,

    /// Sort functions by this number, the largest first
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
    /// Time from the call to the return
    Total,
    /// Number of calls
    Calls,
}

const EXAMPLES: &str = "\
Examples:
  qemu-system-x86_64 ... -plugin ./libhypertrace_qemu_plugin_7.so,functions=F
  hypertrace functions F --symbols System.map | less
  hypertrace functions F --flame F.svg   the same as a flame graph
  hypertrace record --qemu qemu-x86_64 --functions S/functions -o S ./prog
  hypertrace functions S --region batch  only in the regions `batch`
  hypertrace functions F --session S --region batch
                                         the same with a trace elsewhere
  uftrace replay -d F                    every call, by uftrace

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Folder of a session that holds the session's function trace.
pub const FOLDER: &str = "functions";

/// Number of functions that the text shows by default.
const DEFAULT_LIMIT: usize = 20;

/// Maximum number of callers that are shown for a function.
const MAX_CALLERS: usize = 5;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.flame {
        flame::PAGE.check(path)?;
    }
    // For a session, the function trace in its folder is shown.
    let of_session = args.dir.join(session_json::FILE).exists();
    let dir = if of_session { args.dir.join(FOLDER) } else { args.dir.clone() };
    if of_session && !dir.exists() {
        // After a signal, the temporary directory is removed before the process ends.
        let interrupts = Interrupts::catch();
        let mut faults = Faults::default();
        let shown = compiled(args, &mut faults).and_then(|(made, counts)| {
            show(args, &made.folder().by_descriptor().join(FOLDER), true, &counts, faults)
        });
        interrupts.end();
        return shown;
    }
    show(args, &dir, of_session, &Counts::default(), Faults::default())
}

/// Shows a function trace. `of_session`: whether the trace belongs to the session in `args`. `made` counts
/// the calls that are not in the trace, for a session whose functions are compiled in. `faults` are the
/// faults of the session.
fn show(
    args: &Args,
    dir: &Path,
    of_session: bool,
    made: &Counts,
    mut faults: Faults,
) -> Result<()> {
    let session = args.session.as_deref().or(of_session.then_some(&args.dir));
    let mut trace = Trace::open(dir)?;
    faults.say(trace.warnings().iter().cloned());
    // A trace that was made from a session already has the names of `--symbols`.
    let is_made = of_session && dir.parent() != Some(&args.dir);
    for source in args.symbols.iter().filter(|_| !is_made) {
        trace.add_symbols(source)?;
    }
    let spans = args.region.as_deref().map(|name| region::spans(dir, session, name)).transpose()?;
    let progress = watched(&mut trace)?;
    if let Some(path) = &args.flame {
        let flame = Flame::of(&trace, spans.as_ref());
        progress.finish_and_clear();
        return flame::write(path, &trace, flame, made, faults);
    }
    let mut summary = Summary::within(&trace, spans.as_ref());
    progress.finish_and_clear();
    // Damaged records are counted as faults, and the sums of all other records are shown.
    let damaged = summary.damage.len();
    summary.damage.drain(..).for_each(|why| faults.add(why));
    if let (Some(region), true) = (&args.region, summary.calls == 0) {
        say(format_args!(
            "no call of the trace is in a region {}: were the trace and the session recorded at the same \
             time?",
            Escaped(region.as_bytes())
        ));
    }
    let by = match args.by {
        Order::SelfTime => By::SelfTime,
        Order::Total => By::Total,
        Order::Calls => By::Calls,
    };
    let default = if args.json { usize::MAX } else { DEFAULT_LIMIT };
    let shown = Shown { trace: &trace, summary: &summary, spans: spans.as_ref(), made };
    let top = summary.top(args.limit.unwrap_or(default), by);
    match args.json {
        true => print_json(json!(shown.json(&top, damaged)))?,
        false => print(shown.text(args, &top))?,
    }
    faults.end()
}

/// What is shown, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Json {
    calls: u64,
    unfinished: u64,
    orphans: u64,
    lost: u64,
    damage: usize,
    too_deep: u64,
    without_entry: u64,
    without_track: u64,
    functions_in_all: usize,
    regions_ns: Option<u64>,
    functions: Vec<OfFunction>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct OfFunction {
    name: String,
    symbol: Option<String>,
    address: u64,
    calls: u64,
    total_ns: u64,
    self_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

/// What the command shows.
struct Shown<'a> {
    trace: &'a Trace,
    summary: &'a Summary,
    spans: Option<&'a Spans>,
    made: &'a Counts,
}

/// Returns a progress bar. The bar advances while the calls of a trace are read.
fn watched(trace: &mut Trace) -> Result<ProgressBar> {
    let template = "{percent}% of {human_len} records {elapsed}";
    let progress = progress(trace.most_records(), template)?;
    // The display begins at once, because the first part of the trace may be long.
    progress.tick();
    let shown = progress.clone();
    trace.watch(move |records| shown.inc(records));
    Ok(progress)
}

/// Makes a function trace in a temporary directory. The trace has the calls in a session whose programs were
/// compiled to trace their own functions.
fn compiled(args: &Args, faults: &mut Faults) -> Result<(Temporary, Counts)> {
    let recording = report::open(&args.dir)?;
    if !recording.has_compiled_functions() {
        bail!(Usage(format!(
            "{}: a session without a function trace in its folder `{FOLDER}`: give the directory of the trace, or \
             record one (`hypertrace record --qemu Q --functions F -o S PROGRAM`)",
            args.dir.display()
        )));
    }
    let made = Temporary::create(&std::env::temp_dir(), "hypertrace-functions-")?;
    let modules = args.symbols.iter().map(Module::read).collect::<Result<Vec<_>, _>>()?;
    // The trace needs only calls, so the kernels' traces are left out.
    let recording = Recording { traces: Vec::new(), ..recording };
    let source = uftrace::Source { recording: &recording, modules: &modules, text: &|_| None };
    let _busy = Busy::with("reading calls");
    let (counts, warnings) =
        uftrace::compiled(&source, &made.folder().by_descriptor().join(FOLDER))?;
    faults.say(warnings);
    Ok((made, counts))
}

/// Returns a function's name, or its address.
fn name(trace: &Trace, address: u64) -> String {
    let symbol = trace.function(address);
    symbol.map_or_else(|| format!("{address:#x}"), |symbol| symbol.demangled().into_owned())
}

impl Shown<'_> {
    fn text(&self, args: &Args, top: &[&Function]) -> String {
        let Shown { trace, summary, spans, made } = self;
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
            if !args.callers {
                continue;
            }
            let callers = summary.callers(function.address);
            for Caller { function, calls, total, .. } in callers.iter().take(MAX_CALLERS) {
                let from =
                    function.map_or("(outermost)".into(), |address| self::name(trace, address));
                let _ = writeln!(
                    out,
                    "{:>12} {:>12} {calls:>10}    from {}",
                    "",
                    us(*total),
                    Escaped(from.as_bytes())
                );
            }
        }
        let others = summary.functions() - top.len();
        if others > 0 {
            let _ = writeln!(out, "{:>36}  {} more functions: -n", "", grouped(others as u64));
        }
        let Summary { calls, unfinished, lost, orphans, .. } = summary;
        let number = |number: u64| grouped(number);
        let _ = write!(
            out,
            "\n{} calls, {} without an end, {} records lost",
            number(*calls),
            number(*unfinished),
            number(*lost)
        );
        if *orphans > 0 {
            let _ = write!(out, ", {} exits without an entry", number(*orphans));
        }
        let left_out = made.left_out();
        if !left_out.is_empty() {
            let _ = write!(out, ", {left_out}");
        }
        out.push('\n');
        if let Some((spans, name)) = spans.zip(args.region.as_deref()) {
            let time = us(spans.total());
            let _ = writeln!(out, "in {time} us of regions {}", Escaped(name.as_bytes()));
        }
        out
    }

    fn json(&self, top: &[&Function], damaged: usize) -> Json {
        let Shown { trace, summary, spans, made } = self;
        let functions = top.iter().map(|function| {
            let name = name(trace, function.address);
            let symbol = trace.function(function.address).filter(|symbol| symbol.name != name);
            OfFunction {
                symbol: symbol.map(|symbol| symbol.name.to_owned()),
                name,
                address: function.address,
                calls: function.calls,
                total_ns: function.total,
                self_ns: function.self_time,
                min_ns: function.min,
                max_ns: function.max,
            }
        });
        Json {
            calls: summary.calls,
            unfinished: summary.unfinished,
            orphans: summary.orphans,
            lost: summary.lost,
            damage: damaged,
            too_deep: made.too_deep,
            without_entry: made.without_entry,
            without_track: made.without_track,
            functions_in_all: summary.functions(),
            regions_ns: spans.map(Spans::total),
            functions: functions.collect(),
        }
    }
}
