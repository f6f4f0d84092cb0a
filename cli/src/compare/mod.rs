//! `hypertrace compare`: whether the second of two programs is slower, and in which part.

mod html;
mod runs;
mod table;
mod text;

use crate::interrupt::Interrupts;
use crate::output::{Busy, Faults, counted, grouped, print, print_json, say};
use crate::regions::{listed, of_any};
use crate::report::Inputs;
use crate::{Usage, unreadable};
use anyhow::{Context, Result, bail};
use hypertrace_compare::{
    Answer, Change, Checks, Comparison, FILE, LEAST_RUNS, OLDEST_VERSION, Run, VERSION,
};
use hypertrace_export::escape::Escaped;
use hypertrace_format::error::{BadInput, of_contents};
use hypertrace_format::folder::{Folder, open_regular};
use hypertrace_timeline::Warning;
use hypertrace_timeline::regions::{Options, Regions};
use hypertrace_trace::session_json;
use indicatif::HumanBytes;
use rustix::fs::{CWD, OFlags};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Say whether a build is faster, and in which part
///
/// Each DIR is a run: a session of one execution. `compare` compares runs, not
/// single regions, because all regions of a run share the run's luck. For each run
/// and each name of regions, `compare` computes the trimmed mean (of the run's
/// regions from the 5th to the 75th percentile), the mean of all regions, and the
/// 99th percentile. Each difference has an interval of 95 % (Welch). The verdict is
/// on the trimmed mean, by permutation of the runs, at 1 % for all names together
/// (Benjamini and Hochberg). A verdict needs 5 runs a side for one name, 6 for up
/// to 4 names, and 10 for up to 923. The difference is divided in three ways: into
/// parts, which add up to the difference; into the regions inside; and into exits
/// and waits by their reasons.
///
/// With --run, `compare` records the runs itself: it runs both commands in turn
/// (ABBA), and does not count the first run of each command.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
#[command(override_usage = "hypertrace compare [OPTIONS] DIR DIR\n       \
                            hypertrace compare [OPTIONS] DIR... --with DIR...\n       \
                            hypertrace compare [OPTIONS] --run 'COMMAND A' 'COMMAND B'")]
pub struct Args {
    /// Two sides, each a run or a directory of runs; with --with, runs of the first side; with --run,
    /// two commands of the shell
    #[arg(value_name = "DIR|COMMAND", required = true)]
    first: Vec<OsString>,

    /// Runs of the second side
    #[arg(long, value_name = "DIR", num_args = 1..)]
    with: Vec<PathBuf>,

    /// Record runs of two commands in turn, and compare these
    #[arg(long, conflicts_with = "with")]
    run: bool,

    /// Runs of each command
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, requires = "run",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,

    /// Directory for the runs, new or empty: a-01, b-01 and so on
    #[arg(long, short, value_name = "DIR", default_value = "hypertrace.compare", requires = "run")]
    output: PathBuf,

    /// Record the host kernel's events, too, which divide the time into parts
    #[arg(long, short, requires = "run")]
    kernel: bool,

    /// Keep the session of each run, or only the sums and percentiles that are compared
    #[arg(long, value_name = "WHAT", value_enum, default_value = "sessions", requires = "run")]
    keep: Keep,

    /// Only regions with this name. May be given several times
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,

    /// Exit with 1 if regions are slower by more than this percentage: if the whole interval of the
    /// trimmed mean's difference is beyond it
    #[arg(long, value_name = "slower:PERCENT%", value_parser = limit)]
    fail_on: Option<f64>,

    /// Print one JSON object (docs/json.md)
    #[arg(long, group = "form")]
    json: bool,

    /// Print a line of comma-separated values for each run and name of regions: time, run, side,
    /// region, statistics, parts
    #[arg(long, group = "form")]
    csv: bool,

    /// Write a page for a browser, too, with curves, runs and intervals
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What `compare --run` keeps of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Keep {
    /// The whole session
    Sessions,
    /// A file of some kilobytes
    Samples,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace compare --run --kernel './old --bench' './new --bench'
  hypertrace compare --run -n 20 -o R --keep samples './old' './new'
  hypertrace compare R/a-* --with R/b-*             compare these runs again
  hypertrace compare runs-old runs-new              runs of two directories
  hypertrace compare R/a-* --with R/b-* --fail-on slower:5%
                                                    for a pull request

Exit code: 0 done, 1 failed or slower than --fail-on, 2 wrong usage, runs that
may not be compared, or damaged or foreign input.";

/// Runs of one side, each with the path under which the run is shown.
type Side = Vec<(PathBuf, Run)>;

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.html {
        html::PAGE.check(path)?;
    }
    let few = |runs: usize| match args.fail_on {
        Some(_) if runs < LEAST_RUNS => {
            let why = format!("--fail-on needs {LEAST_RUNS} runs a side, and there are {runs}");
            Err(Usage(why))
        }
        _ => Ok(()),
    };
    let given = if args.run { Default::default() } else { sides_of(args)? };
    few(if args.run { args.runs.into() } else { given[0].len().min(given[1].len()) })?;
    let mut faults = Faults::default();
    let sides = match args.run {
        true => {
            let [a, b] = &*args.first else {
                let why = format!("--run takes two commands, not {}", args.first.len());
                return Err(Usage(why).into());
            };
            if [a, b].iter().all(|command| Path::new(command).is_dir()) {
                let (a, b) = (a.display(), b.display());
                let why = format!("--run takes commands, not directories: compare {a} --with {b}");
                return Err(Usage(why).into());
            }
            runs::record(args, [a, b])?
        }
        false => {
            let _busy = Busy::with("reading the runs");
            [read_all(&given[0], &mut faults)?, read_all(&given[1], &mut faults)?]
        }
    };
    let code = compare(args, sides)?;
    faults.end()?;
    Ok(code)
}

/// Compares runs and prints the result.
fn compare(args: &Args, mut sides: [Side; 2]) -> Result<ExitCode> {
    let names = sides.iter().flatten().flat_map(|(_, run)| run.regions.keys().cloned());
    let known = names.collect::<BTreeSet<String>>();
    if let Some(wrong) = args.name.iter().find(|name| !known.contains(*name) && !known.is_empty()) {
        let why = format!("no region is named {wrong}: there are {}", listed(&known, wrong));
        return Err(Usage(Escaped(why.as_bytes()).to_string()).into());
    }
    if !args.name.is_empty() {
        for run in sides.iter_mut().flatten() {
            run.1.regions.retain(|name, _| args.name.contains(name));
        }
    }
    let [a, b] =
        sides.each_ref().map(|side| side.iter().map(|(_, run)| run).collect::<Vec<&Run>>());
    let checks = Checks::of(&a, &b);
    if let Some(why) = checks.refused {
        let why = Escaped(why.as_bytes());
        return Err(Usage(format!("these runs may not be compared: {why}")).into());
    }
    let comparison = Comparison::of(&a, &b);
    if comparison.differences.is_empty() {
        return Err(Usage("the two sides have no name of regions in common".into()).into());
    }
    if let Some(path) = &args.html {
        html::PAGE.save(path, &html::page(&sides, &comparison, &checks.notes)?)?;
        say(format_args!("wrote {}: open it in a browser", path.display()));
    }
    match args {
        Args { json: true, .. } => {
            print_json(serde_json::to_value(Answer::of(&comparison, &checks.notes))?)?;
        }
        Args { csv: true, .. } => print(table::csv(&sides))?,
        _ => print(text::text(&sides, &comparison))?,
    }
    // Notes are escaped, because any text of a run's file may contain line ends.
    checks.notes.iter().for_each(|note| say(Escaped(note.as_bytes())));
    let Some(limit) = args.fail_on else { return Ok(ExitCode::SUCCESS) };
    let is_beyond = |change: &Change| {
        let least = change.half_width_ns.map(|half| change.difference_ns - half);
        least.is_some_and(|least| least > limit * change.a_ns)
    };
    let slower = comparison.differences.iter().filter(|d| is_beyond(&d.typical.change));
    let slower: Vec<String> = slower.map(|d| Escaped(d.name.as_bytes()).to_string()).collect();
    if slower.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("slower by more than {} %: {}", limit * 100.0, slower.join(", ")));
    Ok(ExitCode::FAILURE)
}

/// Returns the directories of each side's runs.
fn sides_of(args: &Args) -> Result<[Vec<PathBuf>; 2]> {
    let paths = |all: &[OsString]| Vec::from_iter(all.iter().map(PathBuf::from));
    match (&*args.first, &*args.with) {
        ([a, b], []) => Ok([runs_in(Path::new(a))?, runs_in(Path::new(b))?]),
        (first, []) => {
            let are = if first.len() == 1 { "is" } else { "are" };
            let why = format!(
                "give two directories, or runs --with runs; here {are} {} without --with",
                first.len()
            );
            Err(Usage(why).into())
        }
        (first, with) => Ok([paths(first), with.to_vec()]),
    }
}

/// Returns the runs in a directory in the order of their names, or the directory if it is a run.
fn runs_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let is_run = |dir: &Path| [FILE, session_json::FILE].iter().any(|file| dir.join(file).exists());
    if is_run(dir) {
        return Ok(vec![dir.to_owned()]);
    }
    if !dir.is_dir() {
        let why = "no such directory; to run two commands, give --run";
        return Err(Usage(format!("{}: {why}", dir.display())).into());
    }
    let entries = std::fs::read_dir(dir).map_err(unreadable(dir))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths = paths.collect::<Result<Vec<_>, _>>().map_err(unreadable(dir))?;
    let folders = paths.into_iter().filter(|path| path.is_dir());
    let (mut runs, others): (Vec<_>, Vec<_>) = folders.partition(|path| is_run(path));
    runs.sort();
    let refused = |why: String| Err(Usage(format!("{}: {why}", dir.display())).into());
    if runs.is_empty() {
        return refused("neither a session nor a directory of sessions".into());
    }
    // `compare --run` gives its runs names that begin with `a-` and `b-`.
    let has = |side: &[u8]| {
        let names = runs.iter().filter_map(|run| run.file_name());
        names.into_iter().any(|name| name.as_encoded_bytes().starts_with(side))
    };
    if has(b"a-") && has(b"b-") {
        let dir = dir.display();
        return refused(format!("runs of two sides: give {dir}/a-* --with {dir}/b-*"));
    }
    if !others.is_empty() {
        let others = counted(others.len() as u64, "directory");
        say(format_args!("{}: {others} without a session left out", dir.display()));
    }
    Ok(runs)
}

fn read_all(dirs: &[PathBuf], faults: &mut Faults) -> Result<Side> {
    dirs.iter().map(|dir| Ok((dir.clone(), read(dir, faults)?))).collect()
}

/// Reads a run: from the session in the directory, or from the sums that replaced the session. If a part of
/// the session is damaged, the rest is used.
fn read(dir: &Path, faults: &mut Faults) -> Result<Run> {
    if let Some(text) = kept(dir)? {
        let path = dir.join(FILE);
        let damaged = |why: &dyn std::fmt::Display| {
            Usage(format!("{}: {}", path.display(), of_contents(&why.to_string())))
        };
        let Head { version } = serde_json::from_str(&text).map_err(|why| damaged(&why))?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            let why =
                format!("version {version}; this program reads {OLDEST_VERSION} to {VERSION}");
            return Err(damaged(&why).into());
        }
        let run: Run = serde_json::from_str(&text).map_err(|why| damaged(&why))?;
        if !run.is_sound() {
            return Err(damaged(&"a time or a number in it is not possible").into());
        }
        return Ok(run.upgraded());
    }
    let recording = Inputs::of(dir).open(&[])?;
    faults.say(recording.warnings().filter(Warning::is_bad_input));
    // Regions that belong to no thread are divided along their paths.
    let options =
        Options { has_paths: !of_any(&recording.sessions).is_empty(), ..Options::default() };
    let regions = Regions::of(&recording, &options)?;
    faults.say(regions.warnings.iter().filter(|warning| warning.is_bad_input()).cloned());
    if let Some(why) = regions.cut() {
        say(format_args!("{}: {why}", dir.display()));
    }
    let no_session = || Usage(format!("{}: no session", dir.display()));
    let (session, _) = recording.sessions.first().ok_or_else(no_session)?;
    let run = Run::of(session, &regions);
    if run.regions.is_empty() {
        bail!(Usage(format!(
            "{}: no regions: region! of the guest library makes them",
            dir.display()
        )));
    }
    Ok(run)
}

/// Maximum size of a run's file in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The version of a run's file, which is read first.
#[derive(serde::Deserialize)]
struct Head {
    version: u32,
}

/// Reads the file with the kept sums of a run. `None`: there is no such file, so `dir` may be a session.
fn kept(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(FILE);
    let file = match open_regular(CWD, &path, OFlags::RDONLY) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.kind() == ErrorKind::NotADirectory => return Ok(None),
        file => File::from(file.map_err(unreadable(&path))?.0),
    };
    let bytes = file.metadata().map_err(unreadable(&path))?.len();
    if bytes > MAX_BYTES {
        let most = HumanBytes(MAX_BYTES);
        let why = format!("{} bytes; a run has at most {most}", grouped(bytes));
        return Err(Usage(format!("{}: {why}", path.display())).into());
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).map_err(unreadable(&path))?;
    let text = String::from_utf8(text);
    Ok(Some(text.map_err(|why| Usage(format!("{}: {why}", path.display())))?))
}

/// Replaces the session in this directory of the runs by the sums that are compared.
fn keep(dir: &Folder, run: &Run) -> Result<()> {
    let failed = || format!("cannot keep {}", dir.path().display());
    // The sums are written before the session is removed, so the directory has a run at any time.
    dir.replace(FILE, serde_json::to_string(run)?.as_bytes()).with_context(failed)?;
    let names = dir.all_names().with_context(failed)?;
    let mut others = names.iter().filter(|name| *name != FILE);
    others.try_for_each(|name| dir.remove_tree(name)).with_context(failed)
}

/// Returns whether a signal has asked this process to end.
fn is_interrupted() -> bool {
    Interrupts::came().is_some()
}

/// Parses `slower:5%`.
fn limit(text: &str) -> Result<f64, String> {
    let percent = text.strip_prefix("slower:").and_then(|rest| rest.strip_suffix('%'));
    let percent = percent.and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|number| (0.0..=1e6).contains(number));
    percent.map(|number| number / 100.0).ok_or_else(|| "expected slower:5%".into())
}
