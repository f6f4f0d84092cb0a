//! `hypertrace boot`: where the boot of a virtual machine takes its time.

mod html;
mod text;
mod watch;

use crate::Usage;
use crate::interrupt::Interrupts;
use crate::kernel;
use crate::output::{Faults, print, print_json, progress, say};
use crate::report::Inputs;
use crate::units;
use anyhow::{Context, Result, bail};
use hypertrace_format::folder::{Folder, Missing, Share};
use hypertrace_timeline::boot::{Boots, Mark, Options, STAGES};
use hypertrace_timeline::{Form, Given, KernelTrace, Recording, Warning, nearest};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use watch::{look, watch};

/// Default directory of boots.
const DEFAULT: &str = "hypertrace.boot";
/// Maximum number of bytes that are shown from the end of a failed VMM's output.
const MAX_OUTPUT: u64 = 2048;
/// Pause between two checks whether a boot has ended.
const PERIOD: Duration = Duration::from_millis(20);

/// Show where the boot of a virtual machine takes its time
///
/// `boot` records the host kernel's events while a VM boots, without a change to
/// the VMM or the guest, and prints the stages of the boot. A stage begins when:
///
///   VMM             the VMM's program starts
///   firmware        a vCPU first enters the guest, at the address where a PC
///                   begins
///   kernel's image  a vCPU first enters the guest at another address: the VMM has
///                   started the guest's kernel itself
///   kernel          the guest runs at the kernel's own addresses
///   second vCPU     two vCPUs have run the guest's kernel
///   restored        with --restore, a vCPU first enters the guest
///   user space      a vCPU has run at an address of a program
///   unknown         the kernel lost events, so another stage may have begun
///
/// --mark adds stages. The last stage lasts until the VMM ends, and all stages add
/// up to the boot. For the three longest stages, `boot` shows what each thread of
/// the VMM did, what the vCPUs' exits touched, and the critical path.
///
/// `boot` needs root, for the kernel's events (tracefs), and KVM's events kvm_entry
/// and kvm_exit. docs/boot.md has an example.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
#[command(override_usage = "hypertrace boot [OPTIONS] [--] VMM [ARGS]...\n       \
                            hypertrace boot [OPTIONS] --of DIR... [--with DIR...]")]
pub struct Args {
    /// Number of boots
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=99))]
    boots: u32,

    /// Directory for the recordings, new or empty: boot-01 and so on, with the VMM's output in
    /// console-01 (default: hypertrace.boot)
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// A stage of your own: '[NAME=]EVENT [where EXPR]'. The stage begins with the first event that fits.
    /// EVENT is an event of the host's kernel, of the VMM or of the guest. May be given several times
    #[arg(long, value_name = "MARK", value_parser = mark)]
    mark: Vec<Mark>,

    /// End the VMM by SIGTERM when this stage begins, and show the boot up to there. With --of, only show the
    /// boot up to the beginning of this stage
    #[arg(long, value_name = "STAGE")]
    until: Option<String>,

    /// The VMM restores a saved guest. The stage "restored" begins with the first entry of a vCPU
    #[arg(long)]
    restore: bool,

    /// End the VMM by SIGTERM after this time, such as 30s, even if the stage of --until has not begun
    #[arg(long, value_name = "T", value_parser = units::wait)]
    limit: Option<Duration>,

    /// Show existing recordings: of `boot`, or of `record` with --kernel or -a
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with = "vmm")]
    of: Vec<PathBuf>,

    /// Compare the recordings of --of with these: which stage is slower, and why
    #[arg(long = "with", value_name = "DIR", num_args = 1.., requires = "of")]
    other: Vec<PathBuf>,

    /// Write the stages as a page for a browser, which needs no other file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "other"])]
    html: Option<PathBuf>,

    /// Print one JSON object: for each recording, the boots with their stages
    #[arg(long)]
    json: bool,

    /// The VMM and its arguments; options end here
    #[arg(trailing_var_arg = true, value_name = "VMM", required_unless_present = "of")]
    vmm: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace boot -- qemu-system-x86_64 -accel kvm -M microvm -kernel K ...
  hypertrace boot -n 5 -o slow -- ./start-vm.sh
                                    five boots, for a comparison
  hypertrace boot --of fast/boot-* --with slow/boot-*
                                    which stage is slower, and why
  hypertrace boot --mark 'disk=kvm:kvm_mmio where gpa == 0xfeb00000' -- ./vm
                                    a stage from the first access to a device
  hypertrace boot --until 'user space' --limit 60s -- ./vm
                                    boot a VM that does not end by itself
  hypertrace boot --restore -- qemu-system-x86_64 ... -incoming file:state
                                    restore a saved VM

Exit code: 0 done, 1 failed, 2 wrong usage or no boot in a recording.";

pub fn mark(text: &str) -> Result<Mark, String> {
    text.parse::<Mark>().map_err(|why| why.to_string())
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.html {
        html::PAGE.check(path)?;
    }
    args.check_until()?;
    let of = match args.of.is_empty() {
        true => record_all(args)?,
        false => args.of.clone(),
    };
    let mut warnings = Vec::new();
    let sides = [&of, &args.other].map(|paths| {
        let read = paths.iter().map(|path| read(args, path, &mut warnings));
        read.collect::<Result<Vec<_>>>()
    });
    if sides.iter().any(Result::is_err) {
        Faults::default().say(std::mem::take(&mut warnings));
    }
    let [of, other] = sides;
    show([&of?, &other?], warnings, args.html.as_deref(), args.json)
}

/// Shows the stages of recordings from each mark to the next one, for `regions --mark`.
pub fn run_marked(
    inputs: &[Inputs],
    marks: &[Mark],
    html: Option<&Path>,
    json: bool,
) -> Result<()> {
    if let Some(path) = html {
        html::PAGE.check(path)?;
    }
    let mut options = Options::default();
    options.marks = marks.to_vec();
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    for inputs in inputs {
        let recording = inputs.open_timed(&[])?;
        let path = inputs.paths().first().map_or(PathBuf::new(), |path| path.to_path_buf());
        let none = |why: &str| bail!(Usage(format!("{}: {why}", path.display())));
        if recording.sessions.is_empty() {
            return none("--mark divides sessions: give the session's directory");
        }
        if recording.traces.iter().all(KernelTrace::is_of_guest) {
            return none("--mark needs the host kernel's events: see `hypertrace record --kernel`");
        }
        let Boots { boots, warnings: said, .. } = Boots::of_marks(&recording, &options)?;
        warnings.extend(recording.warnings().chain(said));
        if boots.iter().all(|boot| boot.stages.is_empty()) {
            Faults::default().say(warnings);
            return none("no event fits a mark; `hypertrace report` shows all events");
        }
        all.push((path, boots));
    }
    show([&all, &[]], warnings, html, json)
}

/// Prints the boots of two sides, or writes a page about the boots of the first side.
fn show(
    [of, other]: [&[text::Recorded]; 2],
    warnings: Vec<Warning>,
    html: Option<&Path>,
    json: bool,
) -> Result<()> {
    let mut faults = Faults::default();
    if let Some(path) = html {
        html::PAGE.save(path, &html::page(of, &warnings)?)?;
    }
    faults.say(warnings);
    if let Some(path) = html {
        say(format_args!("wrote {}: open it in a browser", path.display()));
    } else if json {
        let one =
            |(path, boots): &text::Recorded| serde_json::json!({ "path": path, "boots": boots });
        let all = |side: &[text::Recorded]| side.iter().map(one).collect::<Vec<_>>();
        print_json(serde_json::json!({ "of": all(of), "with": all(other) }))?;
    } else if other.is_empty() {
        print(text::boots(of))?;
    } else {
        print(text::compared(of, other))?;
    }
    faults.end()
}

impl Args {
    fn options(&self) -> Options {
        let mut options = Options::default();
        (options.marks, options.until) = (self.mark.clone(), self.until.clone());
        options.is_restore = self.restore;
        options
    }

    /// Checks that a mark begins the stage of `--until`.
    fn check_until(&self) -> Result<()> {
        let Some(until) = self.until.as_deref() else { return Ok(()) };
        // A restored guest runs neither firmware nor the begin of a kernel.
        let can_begin = |name: &&str| match *name {
            "VMM" | "user space" => true,
            name => self.restore == (name == "restored"),
        };
        let stages = STAGES.into_iter().filter(can_begin);
        let known = Vec::from_iter(stages.chain(self.mark.iter().map(Mark::name)));
        if known.contains(&until) {
            return Ok(());
        }
        let near = nearest(until, known.iter().copied());
        let others = known.iter().copied().filter(|name| Some(*name) != near);
        let listed = Vec::from_iter(near.into_iter().chain(others)).join(", ");
        bail!(Usage(format!("--until: no stage is named {until}: there are {listed}")))
    }
}

/// Reads the boots of a recording.
fn read(args: &Args, path: &Path, said: &mut Vec<Warning>) -> Result<text::Recorded> {
    kernel::complete_to_show(path);
    let given = Given::new(path);
    if given.form == Form::Functions {
        bail!(Usage(format!("{} is a function trace", path.display())));
    }
    let recording = Recording::open(&[given])?;
    let Boots { boots, warnings, .. } = Boots::of(&recording, &args.options())?;
    let warnings = recording.warnings().chain(warnings).collect::<Vec<_>>();
    if boots.is_empty() {
        let why = warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        bail!(Usage(format!("{} has no boot: {why}", path.display())));
    }
    said.extend(warnings);
    Ok((path.to_owned(), boots))
}

/// Records boots. Returns their directories.
fn record_all(args: &Args) -> Result<Vec<PathBuf>> {
    let out = args.output.as_deref().unwrap_or(Path::new(DEFAULT));
    let missing = Missing::look(out);
    let folder = Folder::new_or_empty(out, Share::Owner)?;
    let _interrupts = Interrupts::catch_end();
    let bar = progress(args.boots.into(), "{bar:40} {pos}/{len} boots, {eta} left")?;
    let mut recorded = Vec::new();
    for number in 1..=args.boots {
        // The name `console-*` keeps the VMM's output apart, so that the pattern `boot-*` matches only the
        // recordings.
        let [name, console] = ["boot", "console"].map(|of| format!("{of}-{number:02}"));
        let done = record_one(args, &folder, &name, &console);
        if let Err(why) = done {
            bar.abandon();
            if recorded.is_empty() {
                // Nothing was recorded, so the next try may use the same directory.
                let _ = folder.remove(&console);
                missing.remove();
            }
            return Err(why);
        }
        bar.inc(1);
        recorded.push(out.join(name));
        if Interrupts::came().is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(recorded)
}

/// Records one boot.
fn record_one(args: &Args, out: &Folder, name: &str, console: &str) -> Result<()> {
    let here = out.by_descriptor();
    let file = File::create_new(here.join(console));
    let file = file.context("cannot make a file for the VMM's output")?;
    let mut record = Command::new(std::env::current_exe().context("cannot find this program")?);
    record.args(["record", "--quiet", "-o"]).arg(here.join(name)).args(["-e", "default"]);
    // This event tells which threads belong to one process. A watch reads only the events that are asked for.
    record.args(["-e", "task:task_newtask"]);
    if cfg!(target_arch = "x86_64") {
        record.args(["-e", "kvm:kvm_msr"]);
    }
    if args.until.is_some() {
        record.arg("--live");
    }
    record.arg("--").args(&args.vmm);
    record.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    record.process_group(0);
    let mut child = record.spawn().context("cannot start the recorder")?;
    let (dir, options) = (here.join(name), args.options());
    let look = |is_over: &AtomicBool| look(out, &dir, &options, is_over);
    let (status, is_told) = wait(&mut child, args.limit, args.until.as_ref().map(|_| look))?;
    let has_kernel = here.join(name).join(hypertrace_kernel::FILE).exists();
    if !has_kernel {
        bail!("{} was not recorded: {status}\n{}", args.vmm[0].display(), end_of(file)?.trim_end());
    }
    if !status.success() && !is_told {
        say(format_args!("{name}: the VMM ended with {status}; {console} has its output"));
    }
    Ok(())
}

/// Waits for a recorder. Three events make this function end the recorder's VMM: a signal, the limit, and the
/// stage that `look` sees. The second result is whether the signal, the limit or the stage has ended the VMM.
fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    look: Option<impl Fn(&AtomicBool) -> Result<bool> + Sync>,
) -> Result<(ExitStatus, bool)> {
    let started = Instant::now();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A look reads the whole recording, and must not delay the other reasons to end the VMM.
        let watcher = look.as_ref().map(|look| scope.spawn(|| watch(|| look(&is_over), &is_over)));
        loop {
            if let Some(status) = child.try_wait().transpose() {
                let is_told = is_over.swap(true, Relaxed);
                return Ok((status.context("cannot wait for the recorder")?, is_told));
            }
            let is_late = limit.is_some_and(|limit| started.elapsed() > limit);
            // The watcher has seen the stage, or has panicked.
            let is_seen = watcher.as_ref().is_some_and(|watcher| watcher.is_finished());
            let is_to_end = is_late || is_seen || Interrupts::came().is_some();
            if is_to_end && !is_over.swap(true, Relaxed) {
                // The signal goes to the recorder and to all processes of the VMM that stay in its group.
                let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
            }
            thread::sleep(PERIOD);
        }
    })
}

/// Returns the end of a file.
fn end_of(mut file: File) -> Result<String> {
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(MAX_OUTPUT)))?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_look_that_takes_long_does_not_delay_the_limit() {
        let mut child = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let begun = Instant::now();
        let takes_long = |is_over: &AtomicBool| {
            while !is_over.load(Relaxed) && begun.elapsed() < Duration::from_secs(30) {
                thread::sleep(PERIOD);
            }
            Ok(false)
        };

        let (status, is_told) =
            wait(&mut child, Some(Duration::from_millis(100)), Some(takes_long)).unwrap();

        assert!(!status.success() && is_told, "{status}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_look_that_panics_ends_the_vmm() {
        let mut child = Command::new("sleep").arg("20").process_group(0).spawn().unwrap();
        let panics = |_: &AtomicBool| -> Result<bool> { panic!("a look") };

        let waited = catch_unwind(AssertUnwindSafe(|| wait(&mut child, None, Some(panics))));

        assert!(waited.is_err());
        assert!(!child.wait().unwrap().success());
    }
}
