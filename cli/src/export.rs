//! `hypertrace export`: writes sessions and function traces for other readers.

mod ctf;
mod otlp;

use crate::Usage;
use crate::interrupt::Interrupts;
use crate::kernel::{line, say_unread};
use crate::output::{Busy, Faults, counted, grouped, say};
use crate::page::{WholeFile, check_folder};
use crate::report::{Inputs, Lines, Wanted, names, open_all, session, wrong};
use crate::units::{At, at};
use anyhow::{Context, Result, anyhow};
use hypertrace_export::choice::is_carrier;
use hypertrace_export::otlp::http::Endpoint;
use hypertrace_export::uftrace::{self, Counts};
use hypertrace_export::{Choice, csv, json, perfetto};
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::{Folder, Share, open_regular};
use hypertrace_functions::symbols::Source;
use hypertrace_kernel::{GuestRecording, HostRecording, Summary, relate};
use hypertrace_timeline::{
    ClockMaps, EntryRef, EventKind, EventRef, GuestKernel, KernelTrace, Module, Recording, Session,
    Warning, vcpu_threads,
};
use rustix::fs::{CWD, OFlags};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

/// Write sessions and function traces in the format of another reader
///
/// json, csv: the events that --event, --client, --where, --from and --until
/// choose. The lines of json are those of report --json (docs/json.md). The rows of
/// csv have a column field_NAME for each field; a text that begins with ', or that
/// a spreadsheet would run as a formula, gets a ' in front. Where events were lost,
/// a row has their number in the column lost, or 0 if the number is unknown. For
/// durations of regions, use `regions --samples --by FIELD`.
///
/// ctf: a directory that babeltrace2 and Trace Compass read, with the same events
/// on one clock, with the bound on each time's error. (A session's own folder ctf/
/// has the guests' clocks, and no events of kernels.)
///
/// perfetto: hosts and guests as machines, with their events, regions, scheduling,
/// and the parts of threads' time (docs/exports.md). --event, --client and --where
/// choose among the events; --from and --until cut everything.
///
/// otlp: the regions as spans of OpenTelemetry, to a file with one JSON request on
/// each line, or to a collector. --where takes the conditions of `regions`.
/// docs/exports.md has the attributes.
///
/// trace-dat: files for trace-cmd and KernelShark. Each recorded kernel has a file:
/// the kernel of the session's host (host-kernel.dat), and the kernels of its
/// guests. If the host's kernel was recorded, the guests' times are corrected to
/// the host's clock. The files have neither the bounds on errors of times nor the
/// losses of the session.
///
/// uftrace: a directory for `uftrace replay`, which shows events among the calls.
/// If a function trace is given, the directory has the trace's calls. If sessions
/// of the same boot are given with the trace, the directory has their events, too.
/// If a session is given alone, the directory has the functions that are compiled
/// in (events function_entry and function_exit) and the session's other events.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Format
    #[arg(long, value_name = "FORMAT", value_enum)]
    to: Format,

    /// Write the result to this file, or to stdout for -. For ctf, trace-dat and uftrace, a directory, new
    /// or empty. The file gets this name only when it is whole
    #[arg(long, short, value_name = "PATH|-")]
    pub output: Option<PathBuf>,

    /// Send the spans to this collector by HTTP, instead of writing a file (default: port 4318, path
    /// /v1/traces)
    #[arg(long, value_name = "http://HOST:PORT", conflicts_with = "output")]
    otlp_endpoint: Option<Endpoint>,

    #[command(flatten)]
    wanted: Wanted,

    /// Only events up to this time
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    until: Option<At>,

    /// How a trace of Perfetto shows the parts of threads' time (default: tracks)
    #[arg(long, value_name = "KIND", value_enum)]
    states: Option<States>,

    /// Take the names of functions from this file: an ELF file, a System.map, or a copy of /proc/kallsyms,
    /// moved by an offset. The offset is not needed for a program that was compiled to trace its own
    /// functions, nor for this program's libraries
    #[arg(long, value_name = "FILE[:0xOFFSET]")]
    symbols: Vec<Source>,
}

/// How a trace of Perfetto represents the parts of threads' time.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum States {
    /// One state track for each thread
    Tracks,
    /// Slices, for viewers before version 57
    Slices,
}

/// Format of the result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// One JSON object on each line
    Json,
    /// Comma-separated values, one row for each event
    Csv,
    /// Directory of a trace in Common Trace Format, for babeltrace2
    Ctf,
    /// Trace of Perfetto, for ui.perfetto.dev and trace_processor
    Perfetto,
    /// Files trace.dat of trace-cmd
    TraceDat,
    /// Spans of OpenTelemetry
    Otlp,
    /// Directory of uftrace
    Uftrace,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace export S --to perfetto -o s.pftrace     for ui.perfetto.dev
  hypertrace export S --to ctf -o C && babeltrace2 C
  hypertrace export S --to csv -o s.csv    for pandas, DuckDB, a spreadsheet
  hypertrace export S --to json -o - | jq .event     a name a line
  hypertrace export S --to otlp --otlp-endpoint http://127.0.0.1:4318
  hypertrace export S --to trace-dat -o K
  trace-cmd report -i K/host-kernel.dat -i K/guest-kernel-...dat
  hypertrace record --qemu qemu-x86_64 --functions F -o S ./program
  hypertrace export S F --to uftrace -o U --symbols ./program
  uftrace replay -d U                      calls and events, in order

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Prefix of a file while it is written.
const PREFIX: &str = ".hypertrace-export-";

/// Name of the file of the host's kernel among the files for trace-cmd.
const HOST: &str = "host-kernel.dat";

/// Maximum number of corrections of the times of a guest's CPUs. Readers keep all corrections in memory;
/// hypertrace's reader accepts 16 MiB of them.
const MAX_CORRECTIONS: usize = 1 << 18;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if matches!(args.to, Format::Otlp) {
        return otlp::run(args);
    }
    let is_file = args.output.as_deref() != Some(Path::new("-"));
    let _busy = (is_file || !io::stdout().is_terminal()).then(|| Busy::with("writing"));
    let choice = args.wanted.choice(0, args.until)?;
    let Some(out) = &args.output else {
        let why = match args.otlp_endpoint {
            Some(_) => "--otlp-endpoint is for --to otlp: give -o PATH",
            None => "give a name for the result: -o PATH",
        };
        return Err(Usage(why.into()).into());
    };
    if args.states.is_some() && !matches!(args.to, Format::Perfetto) {
        return Err(Usage("--states is for --to perfetto".into()).into());
    }
    match args.to {
        Format::Json => events(args, out, "line", |recording, choice| {
            whole(out, |out| Ok(json::write(recording, choice, out)?))
        })?
        .end(),
        Format::Csv => events(args, out, "row", |recording, choice| {
            whole(out, |out| Ok(csv::write(recording, choice, out)?))
        })?
        .end(),
        Format::Ctf => ctf::run(args, out),
        Format::Perfetto => perfetto(args, out),
        _ if choice.is_filtered() => {
            let why = "--event, --client, --where, --from and --until are not for this format";
            Err(Usage(why.into()).into())
        }
        Format::TraceDat => kernels(args, out),
        Format::Uftrace => functions(args, out),
        // `run` has handled this format above.
        Format::Otlp => Ok(()),
    }
}

/// Writes the wanted events with `write`, which returns the number of events and the faults of the inputs.
/// Returns all faults of the inputs.
fn events(
    args: &Args,
    out: &Path,
    unit: &str,
    write: impl FnOnce(&Recording, &Choice) -> Result<(u64, Vec<Warning>)>,
) -> Result<Faults> {
    let opened = match args.to {
        Format::Json | Format::Csv => args.inputs.open(&args.symbols),
        _ => args.inputs.open_timed(&args.symbols),
    };
    let recording = opened?;
    let mut faults = Faults::default();
    faults.say(recording.warnings());
    if matches!(args.to, Format::Perfetto) && recording.sessions.is_empty() {
        let why = "no session: give the directory of one, of the same boot, too";
        return Err(Usage(format!("{}: {why}", names(&recording))).into());
    }
    let wanted = args.wanted.choice(recording.start_unix_ns(), args.until)?;
    let choice = Choice { has_leases: true, ..wanted };
    choice.check(&recording).map_err(wrong)?;
    let (count, warnings) = write(&recording, &choice)?;
    faults.say(warnings);
    if count == 0 && choice.is_filtered() {
        say(args.wanted.unmatched(&recording));
    }
    if out != Path::new("-") {
        say(format_args!("{}: {}", out.display(), counted(count, unit)));
    }
    Ok(faults)
}

/// Writes a trace of Perfetto.
fn perfetto(args: &Args, out: &Path) -> Result<()> {
    let mut counts = perfetto::Counts::default();
    let states = match args.states {
        Some(States::Slices) => perfetto::States::Slices,
        Some(States::Tracks) | None => perfetto::States::Tracks,
    };
    let faults = events(args, out, "event", |recording, choice| {
        let warnings;
        (counts, warnings) =
            whole(out, |out| Ok(perfetto::write(recording, choice, states, out)?))?;
        Ok((counts.events, warnings))
    })?;
    let parts = [
        (counts.regions, "region"),
        (counts.states, "interval of threads"),
        (counts.exits, "exit"),
        (counts.switches, "switch of CPUs"),
        (counts.task_states, "state of threads"),
        (counts.too_deep, "call that is nested too deep for a slice"),
        (counts.losses, "loss"),
        (counts.changed, "text that was cut or is not UTF-8"),
        (counts.moved, "time before the trace's own 0"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> =
        parts.map(|(count, what)| format!("{} x {what}", grouped(*count))).collect();
    if !parts.is_empty() && out != Path::new("-") {
        say(format_args!("also {}", parts.join(", ")));
    }
    if args.states.is_none() && counts.states > 0 && out != Path::new("-") {
        say(
            "viewers before Perfetto 57 do not show intervals of threads: for these, give --states slices",
        );
    }
    if counts.not_counted > 0 {
        let (count, why) = (grouped(counts.not_counted), "`hypertrace regions` says why");
        say(format_args!("{count} regions could not be measured and are left out: {why}"));
    }
    faults.end()
}

/// Writes to stdout, or to a file that appears under its name when the file is whole.
fn whole<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    if path == Path::new("-") {
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let written = write(&mut out);
        out.flush().context("cannot write")?;
        return written;
    }
    let shown = path.display();
    if path.symlink_metadata().is_ok() {
        return Err(Usage(format!("{shown} exists: give another name")).into());
    }
    check_folder(path).map_err(|why| Usage(format!("{shown}: {why}")))?;
    let failed = || format!("{shown} is not written");
    let (folder, name) = Folder::above(path, Share::Owner).with_context(failed)?;
    whole_in(&folder, &name, write).with_context(failed)
}

/// Writes a file in a directory. The file appears when it is whole.
fn whole_in<T>(
    folder: &Folder,
    name: &OsStr,
    write: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    file(folder, write, |file, _| Ok(file.keep(folder, name, false)?))
}

/// Creates a file without a name in a directory, and calls `keep` when the file is whole.
fn file<T>(
    folder: &Folder,
    write: impl FnOnce(&mut dyn Write) -> Result<T>,
    keep: impl FnOnce(WholeFile, &T) -> Result<()>,
) -> Result<T> {
    // If a signal comes, the command first removes an unfinished file that has a name, and then ends.
    let mut interrupts = Some(Interrupts::catch());
    let written = || -> Result<T> {
        let file = WholeFile::create(folder, PREFIX)?;
        if !file.has_name() {
            interrupts.take().into_iter().for_each(Interrupts::end);
        }
        let mut out = BufWriter::with_capacity(1 << 16, Interruptible(file));
        let written = write(&mut out)?;
        let Interruptible(file) = out.into_inner().map_err(|why| why.into_error())?;
        // The command catches signals again, because `keep` may give names to files before the whole result
        // is complete.
        interrupts.get_or_insert_with(Interrupts::catch);
        keep(file, &written)?;
        Ok(written)
    };
    let written = written();
    interrupts.into_iter().for_each(Interrupts::end);
    written
}

/// Output to a file. Every write fails after a signal was received.
struct Interruptible(WholeFile);

impl Write for Interruptible {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Interrupts::came() {
            Some(_) => Err(io::Error::other("interrupted")),
            None => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a directory of uftrace.
fn functions(args: &Args, out: &Path) -> Result<()> {
    let recording = args.inputs.open_timed(&[])?;
    let mut faults = Faults::default();
    faults.say(recording.warnings());
    let modules = args.symbols.iter().map(Module::read).collect::<Result<Vec<_>, _>>()?;
    let lines = RefCell::new(Lines::compact());
    let text = |entry: &EntryRef<'_>| {
        let is_hidden = |event: &EventRef<'_>| is_carrier(event) || event.kind == EventKind::Lease;
        if matches!(entry, EntryRef::Event(event) if is_hidden(event)) {
            return None;
        }
        Some(lines.borrow_mut().untimed(entry).trim().to_owned())
    };
    let source = uftrace::Source { recording: &recording, modules: &modules, text: &text };
    let (counts, warnings) = match &recording.functions[..] {
        [] => uftrace::compiled(&source, out).map_err(|why| match why {
            hypertrace_export::Error::NoFunctions => {
                Usage(format!("{}: {why}", names(&recording))).into()
            }
            why => anyhow::Error::from(why),
        })?,
        [functions] => uftrace::beside(&source, functions, out)?,
        _ => {
            let why = "one directory of uftrace has one function trace: give one";
            return Err(Usage(why.into()).into());
        }
    };
    faults.say(warnings);
    say(closing(out, &counts));
    faults.end()
}

/// Writes the recordings of the kernels of a session's host and guests.
fn kernels(args: &Args, output: &Path) -> Result<()> {
    let out = output.display();
    let paths = args.inputs.paths();
    let [dir] = paths[..] else {
        return Err(
            Usage("--to trace-dat is for one session: give its directory alone".into()).into()
        );
    };
    if args.inputs.have_options() {
        let why = "@TIME and @DIR are not for this format, because each file keeps the times of its own \
                   clock";
        return Err(Usage(why.into()).into());
    }
    let recording = open_all(&[session(dir)])?;
    let (session, maps) = recording.sessions.first().context("no session")?;
    let folder = Folder::new_or_empty(output, Share::Owner)?;
    let (mut made, mut is_whole) = (Vec::new(), true);
    let not_read = GuestKernel::find(session, &mut |kernel| {
        let mut summary = kernel.summary().clone();
        let name = std::mem::take(&mut summary.path);
        summary.path = output.join(&name);
        let copy = |out: &mut dyn Write| Ok(io::copy(&mut kernel.reader(), out)?);
        match whole_in(&folder, name.as_os_str(), copy) {
            Ok(_) => made.push((summary, kernel.open(0))),
            Err(why) => {
                is_whole = false;
                let (dir, path) = (dir.display(), summary.path.display());
                say(format_args!(
                    "{dir}: events of a guest's kernel are not exported: cannot write {path}: {why:#}"
                ));
            }
        }
    });
    not_read.iter().for_each(|why| say_unread(session, why, "exported"));
    let (kernel, unread) = (recording.kernel_of(0), recording.unread_of(0));
    if let Some(why) = unread {
        say(format_args!("the host's kernel: not exported: {}", error_chain(why)));
    }
    let is_whole = is_whole && (kernel.is_some() || unread.is_none());
    if made.is_empty() && kernel.is_none() && is_whole {
        let why = "the session has no finished recording of a kernel";
        return Err(Usage(format!("{}: {why}", dir.display())).into());
    }
    made.iter().for_each(|(made, _)| say(format_args!("a guest's kernel: {}", line(made, None))));
    if let Some(kernel) = kernel {
        host_kernel((session, maps), kernel, &mut made, &folder)?;
    }
    match is_whole {
        true => Ok(()),
        false => Err(anyhow!("{out} does not have all of the session's recordings")),
    }
}

/// Writes the recording of the host's kernel, and puts the recordings of guests on the host's clock.
fn host_kernel(
    (session, maps): (&Session, &ClockMaps),
    kernel: &KernelTrace,
    made: &mut [(Summary, hypertrace_timeline::Result<KernelTrace>)],
    output: &Folder,
) -> Result<()> {
    let path = output.path().join(HOST);
    let bytes = whole_in(output, HOST.as_ref(), |out| {
        let (file, _) = open_regular(CWD, kernel.path(), OFlags::RDONLY)?;
        Ok(io::copy(&mut File::from(file), out)?)
    })
    .with_context(|| format!("{} is not written", path.display()))?;
    say(format_args!("the host's kernel: {} bytes in {}", grouped(bytes), path.display()));
    let Some((id, scale)) = kernel.on_counter().filter(|_| !made.is_empty()) else {
        return Ok(());
    };
    let vcpus = vcpu_threads(session, maps)?;
    let (mut guests, mut command) = (Vec::new(), format!("trace-cmd report -i {}", path.display()));
    for (Summary { path, .. }, trace) in made {
        let corrections = |trace: &mut KernelTrace| {
            trace.set_guest(session, maps)?;
            let cpus = trace.cpus();
            let most = MAX_CORRECTIONS / cpus.max(1) as usize;
            let clock = trace.guest_clock().unwrap_or_default();
            let thread = |cpu| vcpus.get(&(clock, cpu)).copied().unwrap_or(0);
            let threads = (0..cpus).map(thread).collect();
            Ok(trace.corrections(session, most)?.map(|corrections| (threads, corrections)))
        };
        let corrections = match trace {
            Ok(trace) => {
                corrections(trace).map_err(|why: hypertrace_timeline::Error| error_chain(&why))
            }
            Err(why) => Err(error_chain(why)),
        };
        let why = match corrections {
            Ok(Some((threads, corrections))) => {
                let file = path.file_name().unwrap_or_default();
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                guests.push(GuestRecording { file, name, threads, corrections });
                command.push_str(&format!(" -i {}", path.display()));
                continue;
            }
            Ok(None) => {
                "the recording has no events, or its clock is not the TSC or changes its rate too often".into()
            }
            Err(why) => why,
        };
        say(format_args!("{}: times stay on the guest's own clock: {why}", path.display()));
    }
    if !guests.is_empty() {
        let host = HostRecording { file: HOST.as_ref(), id, scale };
        relate(output, host, &guests)?;
        say(format_args!("to see all of them in one order: {command}"));
    }
    Ok(())
}

/// Formats the closing line of an export.
fn closing(out: &Path, counts: &Counts) -> String {
    let Counts { tasks, events, without_name, .. } = *counts;
    let out = out.display();
    let mut line = format!("{out}: {}, {}", counted(tasks, "track"), counted(events, "event"));
    let left_out = counts.left_out();
    if !left_out.is_empty() {
        line.push_str(&format!("; left out: {left_out}"));
    }
    if without_name > 0 {
        let functions = counted(without_name, "function");
        line.push_str(&format!("; {functions} without a name: those of all files are too long"));
    }
    line.push_str(&format!("; read it with: uftrace replay -d {out}"));
    line
}
