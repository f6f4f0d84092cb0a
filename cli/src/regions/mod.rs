//! `hypertrace regions`: how long regions of interest took, and where the time went.

pub mod html;
mod intervals;
mod rows;
mod summary;
mod text;

use crate::Usage;
use crate::boot;
use crate::output::{Busy, Faults, print, say};
use crate::report::{self, Inputs, wrong};
use crate::units::{At, at};
use crate::writer::unfinished;
use anyhow::{Context, Result};
use clap::{Args as _, Command, FromArgMatches as _};
use hypertrace_export::{csv, json};
use hypertrace_timeline::boot::Mark;
use hypertrace_timeline::regions::{
    By, Choice, EMPTY, Group, MAX_GROUPS, Options, Regions, Select, Summary, fields, names,
};
use hypertrace_timeline::{
    Class, ClockMaps, Domain, Filter, KernelTrace, Recording, Session, Warning, nearest,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use summary::Sort;
pub use text::time;

/// Show how long regions of interest took, and where their time went
///
/// A region is the time from an event NAME_begin to the event NAME_end of the same
/// thread or vCPU with the same id. region! and reference_region! of the guest
/// library make these events. If regions have several names, the first table has a
/// line for each name. Then, each name has quantiles, a table of parts, and a
/// histogram of durations. The table divides the time of the median region, of the
/// 99th percentile, of the slowest region and of all regions into these parts:
///
///   on-CPU             a thread of a program without a VM had a CPU
///   guest              the vCPU ran in the guest
///   host interrupt     the host handled an interrupt that took the CPU from the
///                      guest
///   kernel             the host's kernel handled an exit of the guest, by reason
///   VMM                the VMM handled an exit
///   stolen by the host another thread of the host had the vCPU's CPU
///   behind guest threads  another thread of the guest had the guest's CPU
///   waiting for a CPU  the thread was ready, but another thread had the CPU
///                      (runnable in --json)
///   vCPU halted        the guest's CPU was idle, and had not gone on yet
///   blocked            the thread slept until something woke it
///   off-CPU            the thread slept or was ready: the recording does not say
///   unknown            no events prove any of these parts
///
/// A time belongs to a part only if the events on both sides of the time prove it.
/// The parts need the kernel's events beside the session (demo, record --kernel,
/// record -p); without the kernel's events, all time is unknown.
/// docs/regions-reference.md has the details.
///
/// Regions that cannot be measured are counted apart, by kind, and are left out of
/// all other numbers. Such a region has no end or no begin, or has the id of
/// another region, or has lost events, a jump of the clock or a migration between
/// its begin and its end. A region outside of the recording of the kernel's events
/// cannot be measured, either (kernel not recorded: start this recording before the
/// regions begin).
///
/// If regions lie inside a region of the same thread or vCPU, `regions` shows the
/// outer region's own time, and then the three inner names that took most time,
/// each with its number of regions and its time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
#[command(mut_arg("inputs", |paths| paths.help(PATHS)))]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Show only regions from NAME_begin to NAME_end, the regions inside of them, and the cost of an
    /// empty region. May be given several times. Default: all regions that have an id
    #[arg(long, value_name = "NAME", conflicts_with = "between")]
    name: Vec<String>,

    /// Measure from an event A to the next event B of the same thread or vCPU. If there are several A
    /// before a B, measure from the last A. Events of the kernel cannot be A or B
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    between: Option<Vec<String>>,

    /// Show one group for each thread, for each vcpu (the host's thread), or for each value of a field. The
    /// field belongs to the event that ends the region or, if this event lacks the field, to the event that
    /// begins the region
    #[arg(long, value_name = "thread|vcpu|FIELD")]
    by: Option<String>,

    /// Only regions for which this condition is true; `report` has the syntax. A name is a field of the event
    /// that ends the region or, if this event lacks the field, of the event that begins the region. Other
    /// names are source, thread, pid, tid, client, name (the region's) and duration (5ms). Regions inside a
    /// chosen region are shown even if the condition is false for them
    #[arg(long = "where", value_name = "EXPR")]
    filter: Option<String>,

    /// Only regions that begin at this time or later, counted from the start: 1.5ms, 200us, 2s; or
    /// as a report shows it: 0.001500000, 2026-11-27T15:48:15.5Z
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    from: Option<At>,

    /// Only regions that begin before this time
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    until: Option<At>,

    /// Sort the groups by this; the largest number comes first. Default: total, or name with --json and
    /// --csv. The lines of --samples are in order of time
    #[arg(long, value_name = "KEY", value_enum)]
    sort: Option<Sort>,

    /// Show the critical path, too. The path leads from the region's end back to its begin: while a
    /// thread was blocked, the path follows the thread that woke it. The time of a program's regions
    /// with any_client is divided along this path. Needs the events of all threads (record --kernel or
    /// -a, as root)
    #[arg(long, conflicts_with_all = ["csv", "samples", "html"])]
    path: bool,

    /// Show stages in place of regions: from each mark to the next one, or to the recording's end. MARK is
    /// '[NAME=]EVENT [where EXPR]'. The stage begins with the first event that fits: an event of the host's
    /// kernel, of the VMM or of a program. May be given several times. Several sessions are compared, and not
    /// put together. Stages are shown as those of `boot`: threads, exits of vCPUs, and the critical path
    #[arg(long, value_name = "MARK", value_parser = boot::mark, conflicts_with_all = ["name", "between",
        "by", "filter", "from", "until", "sort", "path", "csv", "samples", "intervals"])]
    mark: Vec<Mark>,

    /// Print one JSON object: regions (name, session, by, count, min_ns .. max_ns,
    /// histogram, not_counted, breakdown, total, self, children, empty_ns), left_out,
    /// steal_ms (null: unknown), warnings
    #[arg(long, group = "form")]
    json: bool,

    /// Print a line of comma-separated values for each group
    #[arg(long, group = "form")]
    csv: bool,

    /// Print a line of comma-separated values for each region: the raw samples
    #[arg(long, group = "form")]
    samples: bool,

    /// Print a JSON line for each interval of each thread: what the thread did, and from when to when,
    /// also outside of regions. The intervals of each thread are in order of time
    #[arg(long, group = "form", conflicts_with_all = ["name", "between", "by", "filter", "from",
        "until", "sort", "path"])]
    intervals: bool,

    /// Write one page for a browser. The page has tables, bars of the slowest regions, and charts of
    /// durations and of what each thread did around a region. The charts can be zoomed. The page needs no
    /// other file and no network. An older page with this name is replaced; any other file is an error
    #[arg(long, value_name = "FILE", group = "form")]
    html: Option<PathBuf>,
}

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 20;

/// Help of the inputs. This command takes fewer kinds of inputs than other commands: no function traces.
const PATHS: &str = "Directories of sessions (those with session.json in them), with their kernel.dat; or trace.dat \
                     files of trace-cmd, beside sessions";

const EXAMPLES: &str = "\
Examples:
  hypertrace demo -o S                         record a guest, VMM and kernel
  hypertrace regions S                         all regions
  hypertrace regions S --sort p99              names with slowest regions first
  hypertrace regions S --name batch --by vcpu  one region, by vCPU
  hypertrace regions S --between vcpu_exit vcpu_run
                                               from each exit to the next entry
  hypertrace regions S --where 'status == 500 and duration > 1ms'
                                               choose regions by their fields
  hypertrace regions S --from 2s               leave out a start and a warm-up
  hypertrace regions S --json | jq '.regions[] | {name, p99_ns}'
  hypertrace regions S --samples > samples.csv
                                               for statistics of your own
  hypertrace regions S --html regions.html     a page for a browser
  hypertrace regions S --mark load_begin --mark 'ready=sched:sched_process_exit'
                                               from one event to another
  hypertrace record --kernel -o T ./program && hypertrace regions T
                                               a program without a VM

Exit code: 0 done, 1 failed, 2 wrong usage, no such region, or damaged or
foreign input.";

/// Shows all regions of a session, as the command does without options.
///
/// # Errors
/// As the command.
pub fn show(dir: &Path) -> Result<()> {
    let command = Args::augment_args(Command::new("regions"));
    let given = [OsStr::new("regions"), OsStr::new("--"), dir.as_os_str()];
    run(&Args::from_arg_matches(&command.try_get_matches_from(given)?)?)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if !args.mark.is_empty() {
        let (inputs, html) = (args.inputs.by_session()?, args.html.as_deref());
        return boot::run_marked(&inputs, &args.mark, html, args.json);
    }
    let recording = args.inputs.open_timed(&[])?;
    let Recording { sessions, traces, functions, .. } = &recording;
    let of_inputs = Vec::from_iter(recording.warnings());
    let mut faults = Faults::default();
    if let Some(functions) = functions.first() {
        let path = functions.trace().path().display();
        let why = "see `hypertrace functions --region`";
        return Err(
            Usage(format!("{path} is a function trace, which has no regions: {why}")).into()
        );
    }
    if sessions.is_empty() {
        let why = "a trace of a kernel alone has no regions: give the session's directory, too";
        return Err(Usage(format!("{}: {why}", report::names(&recording))).into());
    }
    if args.intervals {
        faults.say(of_inputs);
        faults.say(intervals::print(&recording)?);
        return faults.end();
    }
    let options = args.options(sessions)?;
    if let Some(path) = &args.html {
        html::PAGE.check(path)?;
    }
    let busy = Busy::with("reading the recording");
    let regions = Regions::of(&recording, &options)?;
    drop(busy);
    let is_wanted = |group: &&Group| !args.hides_empty() || group.name != EMPTY;
    let mut groups = Vec::from_iter(regions.groups.iter().filter(is_wanted));
    args.sort().apply(&mut groups);
    let mut warnings = of_inputs;
    warnings.extend(args.warnings(sessions, traces, &regions));
    let shown = rows::Shown {
        regions: &regions,
        started_unix_ns: recording.start_unix_ns(),
        groups,
        of_any: args.of_any(sessions),
    };
    let printed = match &args.html {
        Some(path) => html::page(&shown, &recording, &warnings)
            .and_then(|page| html::PAGE.save(path, &page))
            .map(|()| say(format_args!("wrote {}: open it in a browser", path.display()))),
        None if args.json => {
            print(json::RegionsJson(&shown.groups, &Summary::of(&regions, &warnings)))
        }
        None if args.csv => print(csv::groups(shown.groups())),
        None if args.samples => samples(&recording, &shown),
        None => print(text::text(&shown, &mut warnings)),
    };
    faults.say(warnings);
    printed.and_then(|()| faults.end())
}

/// Prints a line of comma-separated values for each region.
fn samples(recording: &Recording, shown: &rows::Shown<'_>) -> Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    csv::regions(recording, shown.regions, &shown.groups, &mut out)?;
    out.flush().context("cannot write")
}

/// Returns the names of regions that may begin on one thread and end on another thread.
pub fn of_any(sessions: &[(Session, ClockMaps)]) -> BTreeSet<String> {
    let is_of_any = |class: &&Class| class.fields.iter().any(|field| &**field == "any_client");
    let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
    let names = classes.filter(is_of_any).filter_map(|class| class.name.strip_suffix("_begin"));
    names.map(str::to_owned).collect()
}

/// Checks that sessions have regions of these names.
pub fn check_names(sessions: &[(Session, ClockMaps)], wanted: &[String]) -> Result<()> {
    let known = names(sessions);
    let has = |name: &String| {
        let begin = format!("{name}_begin");
        known.contains(name) || has_class(sessions, |class| *class.name == *begin)
    };
    match wanted.iter().find(|name| !has(name)) {
        Some(name) => {
            Err(Usage(format!("no region is named {name}: {}", known_list(&known, name))).into())
        }
        None => Ok(()),
    }
}

/// Returns a text that lists the known regions, beginning with the name that is nearest to a wrong name.
fn known_list(known: &BTreeSet<String>, wrong: &str) -> String {
    match known.is_empty() {
        true => "no event named NAME_begin or NAME_end has an id; region! of Rust, and HYPERTRACE_SCOPE of C \
                 and C++, make such events, and --between takes any two events"
            .into(),
        false => format!("there are {}", listed(known, wrong)),
    }
}

/// Returns a line of names, beginning with the name that is nearest to a wrong name. If the line has no room
/// for all names, the line ends with the count of the remaining names.
pub fn listed(known: &BTreeSet<String>, wrong: &str) -> String {
    let near = nearest(wrong, known.iter().map(String::as_str));
    let others = known.iter().map(String::as_str).filter(|name| Some(*name) != near);
    let shown = Vec::from_iter(near.into_iter().chain(others).take(MAX_LISTED)).join(", ");
    match known.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

impl Args {
    /// Checks the names in the options against the sessions' names, and returns the options for reading
    /// regions.
    fn options(&self, sessions: &[(Session, ClockMaps)]) -> Result<Options> {
        let by = match self.by.as_deref() {
            None => By::Nothing,
            Some("thread") => By::Thread,
            Some("vcpu") => By::Vcpu,
            Some(field) => By::Field(field.into()),
        };
        let select = match self.between.as_deref() {
            Some([a, b]) => {
                for name in [a, b] {
                    if !has_class(sessions, |class| *class.name == **name) {
                        let why = match name.contains(':') {
                            true => format!(
                                "--between: {name} is an event of the kernel; only events of a \
                                 guest, a program or the VMM begin and end regions"
                            ),
                            false => format!("--between: no event is named {name}"),
                        };
                        return Err(Usage(format!("{why}; `hypertrace report` shows all")).into());
                    }
                }
                Select::Between(a.clone(), b.clone())
            }
            _ => {
                let known = names(sessions);
                check_names(sessions, &self.name)?;
                if known.is_empty() && self.name.is_empty() {
                    return Err(Usage(format!("no regions: {}", known_list(&known, ""))).into());
                }
                // Regions of other names are read as children.
                Select::Names(known.into_iter().chain(self.name.iter().cloned()).collect())
            }
        };
        let filter = self.filter.as_deref().map(Filter::of_regions).transpose().map_err(wrong)?;
        let start = started(sessions);
        let unix = |at: At| start.saturating_add(at.since(start));
        let choice = Choice {
            names: self.name.clone(),
            filter,
            from_ns: self.from.map(unix),
            to_ns: self.until.map(unix),
            keeps_empty: self.hides_empty(),
        };
        let options = Options {
            select,
            choice,
            by,
            keeps_intervals: self.html.is_some(),
            has_paths: self.path,
            ..Options::default()
        };
        let own = match self.name.is_empty() {
            true => options.clone(),
            false => Options { select: Select::Names(self.name.clone()), ..options.clone() },
        };
        let known = fields(sessions, &own);
        if let By::Field(field) = &options.by
            && !known.contains(field)
        {
            let why = format!(
                "--by {field}: no event that begins or ends these regions has a field of this name"
            );
            let there = match known.is_empty() {
                true => String::new(),
                false => format!("; these events have {}", listed(&known, field)),
            };
            return Err(
                Usage(format!("{why}{there}; --by thread and --by vcpu need no field")).into()
            );
        }
        if let Some(filter) = &options.choice.filter {
            filter.check(&known.iter().map(String::as_str).collect()).map_err(wrong)?;
        }
        Ok(options)
    }

    /// Returns the sorting of groups. By default, the output for people is sorted by time, the most time
    /// first, and the output for scripts is sorted by name.
    fn sort(&self) -> Sort {
        let is_for_scripts = self.json || self.csv || self.samples;
        self.sort.unwrap_or(if is_for_scripts { Sort::Name } else { Sort::Total })
    }

    /// Returns the names of regions that belong to no thread, and are therefore not divided.
    fn of_any(&self, sessions: &[(Session, ClockMaps)]) -> BTreeSet<String> {
        if self.path { BTreeSet::new() } else { of_any(sessions) }
    }

    /// Returns whether the empty regions are read only for their cost, and not shown as a group.
    fn hides_empty(&self) -> bool {
        let has_times = self.from.is_some() || self.until.is_some();
        let chooses = has_times || self.filter.is_some();
        (chooses || !self.name.is_empty()) && !self.name.iter().any(|name| name == EMPTY)
    }

    /// Returns what the user should know about the numbers.
    fn warnings(
        &self,
        sessions: &[(Session, ClockMaps)],
        traces: &[KernelTrace],
        regions: &Regions,
    ) -> Vec<Warning> {
        let mut warnings = regions.warnings.clone();
        let is_hidden = |group: &Group| self.hides_empty() && group.name == EMPTY;
        if regions.groups.iter().all(is_hidden) && self.between.is_none() {
            let all = listed(&names(sessions), "");
            warnings.push(Warning::from(match regions.left_out.iter().sum() {
                0u64 => format!("no region began or ended; there are events of {all}"),
                _ => format!("no region is left; there are {all}"),
            }));
        }
        let is_recording =
            |(session, _): &(Session, ClockMaps)| hypertrace_kernel::is_incomplete(session.dir());
        let of_any = self.of_any(sessions);
        let mut groups = regions.groups.iter().map(|group| of_any.contains(&group.name)).peekable();
        if groups.peek().is_some() && groups.all(|of_any| of_any) {
            // Even with the kernel's events, the time of regions that belong to no thread is not divided
            // without --path.
            warnings.push(text::OF_ANY.into());
        } else if !regions.has_kernel && sessions.iter().any(is_recording) {
            warnings.push("without the kernel's events, all time is unknown".into());
        } else if !regions.has_kernel && traces.iter().all(KernelTrace::has_switches) {
            // A guest that traces over a shared file cannot make reference points.
            let has_threads = |(session, maps): &(Session, ClockMaps)| {
                session.json().programs
                    || session.streams().iter().all(|stream| stream.domain == Domain::Host)
                    || maps.iter().any(|(.., map)| map.constraints() > 0)
            };
            // A server that runs beside the VMM does not see the VMM's threads.
            let is_served = sessions.iter().any(|(session, _)| session.json().served);
            let next = match !is_served && sessions.iter().any(has_threads) {
                true => {
                    "the kernel's events beside the session with `hypertrace record --kernel` or \
                     `record -p`"
                }
                false => {
                    "the guest's kernel's events with `hypertrace forward` in the guest, and the host's \
                     with `hypertrace record -a` as root"
                }
            };
            warnings.push(format!("no kernel.dat: all time is unknown; record {next}").into());
        }
        if regions.has_other_names {
            warnings.push(format!(
                "there are more names than {MAX_GROUPS} groups can take: regions of the remaining names are \
                 in the group \"other names\"; choose with --name"
            ).into());
        }
        if regions.has_others {
            warnings.push(format!(
                "there are more values than {MAX_GROUPS} groups can take: regions with the remaining values \
                 are in the groups of other values"
            ).into());
        }
        for (session, _) in sessions {
            if let Some(said) = unfinished(session) {
                warnings.push(Warning::from(said).of(session.dir().display()));
            }
        }
        warnings
    }
}

/// Returns the Unix time of the first session's start, in nanoseconds.
fn started(sessions: &[(Session, ClockMaps)]) -> i64 {
    sessions.iter().map(|(session, _)| session.json().started_unix_ns).min().unwrap_or(0)
}

fn has_class(sessions: &[(Session, ClockMaps)], is: impl Fn(&Class) -> bool) -> bool {
    sessions.iter().flat_map(|(session, _)| session.classes().iter()).any(is)
}
