//! `hypertrace export`: sessions and function traces for other readers.

use crate::Usage;
use crate::kernel::{assemble, is_carrier};
use crate::losses::grouped;
use crate::output::say;
use crate::report::{Inputs, Lines, Recordings};
use anyhow::{Context, Result};
use hypertrace_export::uftrace::{self, Counts, Module};
use hypertrace_functions::symbols::Source;
use hypertrace_timeline::{EntryRef, EventKind, Session};
use std::cell::RefCell;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// Write sessions and function traces in the format of another reader
///
/// trace-cmd: the recordings of guests' kernels in a session, a file each, which
/// trace-cmd and KernelShark read.
///
/// uftrace: a directory whose `uftrace replay` shows events among the calls. Of
/// a function trace, it has the calls, and the events of the sessions that are
/// given with it, which must be of the same boot. Of a session alone, it has the
/// functions that are compiled in (events function_entry and function_exit) and
/// its other events.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Format
    #[arg(long, value_name = "FORMAT", value_enum)]
    to: Format,

    /// Directory for the result: new or empty
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Names of functions: an ELF file, a System.map, or what /proc/kallsyms has, moved by an offset.
    /// Where functions are compiled in, a program and its libraries need no offset
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,
}

/// Format of the result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Directory of uftrace
    Uftrace,
    /// Files trace.dat of trace-cmd
    TraceCmd,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace record --qemu qemu-x86_64 --functions F -o S ./program
  hypertrace export S F --to uftrace -o U --symbols ./program
  uftrace replay -d U                    calls and events, in order
  hypertrace export S --to trace-cmd -o K
  trace-cmd report K/guest-kernel-*.dat  a guest's kernel alone

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if matches!(args.to, Format::TraceCmd) {
        return guests(args);
    }
    let Recordings { sessions, traces, functions } = args.inputs.open(&[])?;
    let modules = args.symbols.iter().map(Module::read).collect::<Result<Vec<_>, _>>()?;
    let lines = RefCell::new(Lines::compact());
    let text = |entry: &EntryRef<'_>| {
        let mut lines = lines.borrow_mut();
        let line = match entry {
            EntryRef::Event(event) if event.client.is_some() && is_carrier(event.name) => None,
            EntryRef::Event(event) if event.kind == EventKind::Lease => None,
            EntryRef::Event(event) => Some(lines.untimed(event, None)),
            EntryRef::Lost(lost) => Some(lines.untimed_lost(lost)),
        };
        line.map(|line| line.trim().to_owned())
    };
    let source =
        uftrace::Source { sessions: &sessions, traces: &traces, modules: &modules, text: &text };
    let counts = match &functions[..] {
        [] => uftrace::compiled(&source, &args.output)?,
        [functions] => uftrace::beside(&source, functions, &args.output)?,
        _ => {
            let why = "one directory of uftrace has one function trace: give one";
            return Err(Usage(why.into()).into());
        }
    };
    say(closing(args, &counts));
    Ok(())
}

/// Writes the recordings of guests' kernels.
fn guests(args: &Args) -> Result<()> {
    let out = args.output.display();
    let paths = args.inputs.paths();
    let [dir] = paths[..] else {
        return Err(
            Usage("--to trace-cmd is for one session: give its directory alone".into()).into()
        );
    };
    let session = Session::open(dir)?;
    let failed = || format!("cannot make {out}");
    DirBuilder::new().recursive(true).mode(0o700).create(&args.output).with_context(failed)?;
    if fs::read_dir(&args.output).with_context(failed)?.next().is_some() {
        return Err(Usage(format!("{out} is not empty; give a new or empty directory")).into());
    }
    let made = assemble(&session, &args.output, "exported");
    if made.is_empty() {
        let why = "it has no recording of a guest's kernel that has ended";
        return Err(Usage(format!("{}: {why}", dir.display())).into());
    }
    made.iter().for_each(|made| say(format_args!("a guest's kernel: {}", made.line)));
    Ok(())
}

/// Formats the line at the end.
fn closing(args: &Args, counts: &Counts) -> String {
    let Counts { tasks, events, left_out, without_name, .. } = *counts;
    let out = args.output.display();
    let of = |number: u64, one: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", grouped(number)),
    };
    let mut line = format!("{out}: {}, {}", of(tasks, "track"), of(events, "event"));
    if left_out > 0 {
        line.push_str(&format!("; {} entries and exits left out", grouped(left_out)));
    }
    if without_name > 0 {
        let functions = of(without_name, "function");
        line.push_str(&format!("; {functions} without a name: those of all files are too long"));
    }
    line.push_str(&format!("; read it with: uftrace replay -d {out}"));
    line
}
