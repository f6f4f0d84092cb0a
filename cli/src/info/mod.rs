//! `hypertrace info`: what sessions hold, or what this machine can do.

mod clocks;
mod counts;
mod guest_tscs;
pub mod machine;
pub mod names;

use crate::Usage;
use crate::kernel;
use crate::output::{Faults, print, print_json, say};
use crate::place;
use crate::report::{open_all, session};
use hypertrace_export::escape::Escaped;
use hypertrace_format::error::error_chain;
use hypertrace_timeline::{Form, Given, KernelTrace, UnreadPart, info};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Show what a session holds, or what this machine can do
///
/// For a session, `info` first shows counts. "records" is the number of records
/// that other readers of the trace count; "points" are the reference points of a
/// thread or vCPU. "lost" events were dropped by a producer or overwritten,
/// "filtered" events were switched off, "faults" are a guest's violations of the
/// interface; a session without points, filtered events or faults has no such
/// column. Events of the host's kernel (kernel.dat) are counted by CPU, and so are
/// events of guests' kernels (guest-kernel-*.dat), with the guest's clock.
///
/// Then `info` shows how well guests' clocks are known. Each reference point is a
/// pair of times: the guest read its clock before the host handled the point, and
/// read it again afterwards. These pairs limit the guest's clock against the
/// host's. For each clock, `info` shows how many readings the pairs limit, which
/// rate is assumed, the bounds on the error of times, how far the pairs are from
/// these times, and the jumps that two pairs prove. If the VMM gave the TSC of a
/// guest, `info` shows whether the pairs agree with it. docs/clocks.md names all
/// assumptions.
///
/// For several sessions, `info` also shows which of them share the host's clock:
/// sessions of one machine and boot do.
///
/// Without DIR, and if there is no session hypertrace.data, `info` shows what this
/// user can and cannot record on this machine, why, and what helps.
///
/// --names lists names for other commands: a session's events with their fields
/// (report --event), its regions (regions --name), and its sources. --events lists
/// the events of this machine's kernel, as `record -e` takes them; for a session,
/// the events in the session; for a program, the events that its file declares,
/// with the library's macros (shown with fields) or in trace-events files (shown as
/// probes). --events does not list events that get their names while the program
/// runs, and events of shared libraries, which are files of their own. Neither
/// option lists names of a trace.dat file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Directories of sessions (those with session.json in them) [default: hypertrace.data], or trace.dat
    /// files of trace-cmd; with --events, a program or a session
    #[arg(value_name = "DIR|FILE|PROGRAM")]
    dirs: Vec<PathBuf>,

    /// Show what this machine can do, also where there is a session
    #[arg(long, short, conflicts_with = "dirs")]
    machine: bool,

    /// List the names in a session: events with their fields, regions, streams
    #[arg(long, group = "what", conflicts_with = "machine")]
    names: bool,

    /// List the events that a program declares, that a session has, or that this machine's kernel offers
    #[arg(long, group = "what", conflicts_with = "machine")]
    events: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace info                        hypertrace.data here, or this machine
  hypertrace info S1 S2                  also: can their events be ordered?
  hypertrace info S --json | jq '.sessions[0].total.lost'
                                         the number of lost events
  hypertrace info S --json | jq '.sessions[].clocks[].bound_ns.p99'
  hypertrace info --names                the names in hypertrace.data
  hypertrace info --events               this kernel's events
  hypertrace info --events ./program     the events that a program declares

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let default = Path::new(place::DEFAULT);
    if args.names || args.events {
        return match &args.dirs[..] {
            [_, _, ..] => {
                Err(Usage("--names and --events take one session or program".into()).into())
            }
            dirs if args.events => names::show_events(dirs.first().map(|dir| &**dir), args.json),
            dirs => names::show_names(dirs.first().map_or(default, |dir| &**dir), args.json),
        };
    }
    let dirs = match &args.dirs[..] {
        [] if args.machine || default.symlink_metadata().is_err() => {
            return machine::show(args.json);
        }
        [] => &[default.to_owned()],
        dirs => dirs,
    };
    let is_file = |path: &&PathBuf| Given::new(*path).form == Form::Kernel;
    let (files, dirs): (Vec<&PathBuf>, Vec<&PathBuf>) = dirs.iter().partition(is_file);
    let dirs = Vec::from_iter(dirs.into_iter().map(|dir| session(dir)));
    let recording = open_all(&dirs)?;
    kernel::say_guests(&recording, "counted");
    let (mut shown, mut kernels) = (Vec::new(), Vec::new());
    let (mut text, mut faults) = (String::new(), Faults::default());
    let first = recording.sessions.first().map(|(first, _)| first);
    for (number, (session, maps)) in recording.sessions.iter().enumerate() {
        let info = info::Session::of(&recording, number)?;
        for why in &info.not_counted {
            say(format_args!("not counted: {}", error_chain(why)));
        }
        faults.say(info.warnings.iter().cloned());
        if !args.json {
            let gap = if number > 0 { "\n" } else { "" };
            text += &format!("{gap}{}\n", Escaped(session.dir().as_os_str().as_encoded_bytes()));
            text += &counts::text(session, &info);
            text.push('\n');
            // Writing to a String does not fail.
            let first = first.filter(|_| number > 0);
            let _ = clocks::text(&mut text, first, (session, maps), &info);
        }
        shown.push(info);
    }
    for path in files {
        let trace = KernelTrace::open(path)?;
        let mut stat = trace.stat()?;
        faults.say(stat.warnings.iter().cloned());
        if args.json {
            stat.file = Some(path.to_string_lossy().into_owned());
            kernels.push(stat);
        } else {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}\n", Escaped(path.as_os_str().as_encoded_bytes()));
            text += &counts::file_text(&stat);
        }
    }
    match args.json {
        true if kernels.is_empty() => print_json(json!({ "sessions": shown }))?,
        true => print_json(json!({ "sessions": shown, "kernels": kernels }))?,
        false => print(text)?,
    }
    // Damaged parts become errors only here, after all other parts were shown.
    let unread = recording.unread.into_iter().filter(|unread| unread.what != UnreadPart::Guest);
    unread.for_each(|unread| faults.add(unread.why));
    faults.end()
}
