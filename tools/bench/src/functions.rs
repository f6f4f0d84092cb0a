//! Rows of function traces: boots of a Linux kernel, and a program under QEMU's user mode, in CPU time.

use super::init;
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use anyhow::{Context as _, Result, bail, ensure};
use hypertrace_qemu_emulator::Emulator;
use hypertrace_test_support::initramfs::Initramfs;
use rustix::param::clock_ticks_per_second;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PLAIN_X86: Floor = ("plain boot", plain_x86);

pub const ROWS: &[Row] = &[
    row("functions_boot_x86", traced_x86, "CPU time of a boot with a function trace to tmpfs")
        .over(PLAIN_X86, "<= 1.4 x without the plugin")
        .note("The kernel of `--linux-guest` by the QEMU of `--qemu`, with `functions=DIR`.")
        .slow(3),
    row("functions_boot_aarch64", traced_aarch64, "CPU time of such a boot of AArch64")
        .over(("plain boot", plain_aarch64), "<= 1.7 x without the plugin")
        .note("By `--aarch64-guest KERNEL` and `--qemu-aarch64 PROGRAM`.")
        .slow(3),
    row("functions_off", closed_x86, "`functions_boot_x86` with a region that never begins")
        .over(PLAIN_X86, "<= 1.15 x without the plugin")
        .note(
            "By `perf`, it is 1.09 for the plugin, which takes some 9 ns for each call and \
         each return to follow the stacks; the rest is QEMU's: code that calls the \
         plugin, and its translation.",
        )
        .slow(3),
    row(
        "functions_user",
        traced_user,
        "CPU time of a sort under qemu-user, functions of 1 µs and more traced",
    )
    .over(("plain run", plain_user), "<= 2 x without the plugin")
    .note(
        "A program that sorts 200,000 numbers under `qemu-x86_64`, by `qsort` and by a \
         tree with recursive functions, with `min=1us`. A read of the counter takes 9.6 \
         ns, and each call and return needs one: 0.7 of the ratio. The plugin's other \
         work is 0.8, and QEMU's calls of it 0.5.",
    )
    .slow(3),
];

/// Maximum time of a boot, and of a program.
const PATIENCE: Duration = Duration::from_secs(900);
/// Pause between two checks whether a boot or program has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// A region that no guest here opens.
const CLOSED: &str = "region=hypertrace_bench";
/// The program under QEMU's user mode sorts this many numbers. A debug build sorts fewer numbers, because the
/// plugin of a debug build is slow, and a debug build times nothing.
const NUMBERS: &str = if cfg!(debug_assertions) { "1000" } else { "200000" };
/// Emulator of user mode.
const USER: &str = "qemu-x86_64";

/// Kernel and emulator for machines of AArch64. The rows of x86-64 use the kernel and the emulator that the
/// rows in a Linux guest use.
#[derive(Debug, Clone, clap::Args)]
pub struct Aarch64 {
    /// Measure functions_boot_aarch64 with this kernel
    #[arg(long, value_name = "KERNEL")]
    aarch64_guest: Option<PathBuf>,
    /// QEMU that boots this kernel
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-aarch64")]
    qemu_aarch64: OsString,
}

/// A machine that boots a kernel. The machine's only program reports the boot, and ends the machine.
struct Boots {
    emulator: Emulator,
    options: Vec<OsString>,
    /// Text with QEMU's version and the kernel.
    what: String,
    _scratch: Scratch,
}

impl Boots {
    /// Prepares boots of this kernel. `machine` has options of QEMU and the name of the kernel's console.
    fn new(qemu: &OsStr, kernel: &Path, machine: (&[&str], &str), program: &[u8]) -> Result<Boots> {
        let emulator = Emulator::of_any(hypertrace_user::Program::find(qemu)?)?;
        let (options, console) = machine;
        let scratch = Scratch::new()?;
        let initrd = scratch.path().join("initrd");
        let mut files = Initramfs::default();
        files.file("init", program);
        fs::write(&initrd, files.end())?;
        ensure!(kernel.is_file(), "no kernel {}", kernel.display());
        // The machine has one CPU, and without KASLR the kernel is at the addresses in its file.
        let command = format!("console={console} panic=-1 nokaslr");
        let mut all: Vec<OsString> = options.iter().map(OsString::from).collect();
        all.extend(
            ["-accel", "tcg", "-m", "512", "-nodefaults", "-display", "none", "-no-reboot"]
                .map(OsString::from),
        );
        all.extend(["-serial".into(), "stdio".into(), "-append".into(), command.into()]);
        all.extend(["-kernel".into(), kernel.into(), "-initrd".into(), initrd.into()]);
        let name = fs::canonicalize(kernel)?;
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = format!("QEMU {}, {name}", emulator.version()?);
        Ok(Boots { emulator, options: all, what, _scratch: scratch })
    }

    /// Boots once. Returns the CPU time of QEMU in nanoseconds.
    fn boot(&self, trace: Option<&[&str]>) -> Result<f64> {
        let ran = Ran::of(&self.emulator, trace, &self.options)?;
        ensure!(ran.stdout.contains("booted"), "the guest has not booted: {}", ran.said());
        Ok(ran.ns)
    }
}

/// The boots of x86-64.
struct X86(Boots);

/// The boots of AArch64.
struct Arm(Boots);

fn x86(context: &mut Context) -> Result<&Boots> {
    let linux = super::linux::options(context)?;
    let X86(boots) = context.resource(|| {
        let (qemu, kernel) = linux.qemu_and_kernel()?;
        Boots::new(qemu.as_os_str(), kernel, (&[], "ttyS0"), &init::x86_64()).map(X86)
    })?;
    Ok(boots)
}

fn arm(context: &mut Context) -> Result<&Boots> {
    // `bench` has put the options into the context.
    let options = context.resource::<Aarch64>(|| bail!("no options"))?.clone();
    let Arm(boots) = context.resource(|| {
        let kernel = options.aarch64_guest.as_deref();
        let kernel = kernel.context("needs --aarch64-guest KERNEL")?;
        let machine = (&["-M", "virt", "-cpu", "cortex-a57"][..], "ttyAMA0");
        Boots::new(&options.qemu_aarch64, kernel, machine, &init::aarch64()).map(Arm)
    })?;
    Ok(boots)
}

/// Measures a boot. `trace` has the plugin's options; without `trace`, the machine boots without the plugin.
fn boot(
    context: &mut Context,
    machine: fn(&mut Context) -> Result<&Boots>,
    trace: Option<&[&str]>,
) -> Result<f64> {
    let boots = machine(context)?;
    let (ns, what) = (boots.boot(trace)?, boots.what.clone());
    context.remark(what);
    Ok(ns)
}

/// Boots with a function trace.
pub fn traced_x86(context: &mut Context) -> Result<f64> {
    boot(context, x86, Some(&[]))
}

/// Boots with a function trace of a region that never begins.
pub fn closed_x86(context: &mut Context) -> Result<f64> {
    boot(context, x86, Some(&[CLOSED]))
}

/// Boots without the plugin.
pub fn plain_x86(context: &mut Context) -> Result<f64> {
    boot(context, x86, None)
}

/// Boots with a function trace.
pub fn traced_aarch64(context: &mut Context) -> Result<f64> {
    boot(context, arm, Some(&[]))
}

/// Boots without the plugin.
pub fn plain_aarch64(context: &mut Context) -> Result<f64> {
    boot(context, arm, None)
}

/// A program that calls many short functions.
struct Program {
    emulator: Emulator,
    path: PathBuf,
    what: String,
    _scratch: Scratch,
}

impl Program {
    fn new() -> Result<Program> {
        ensure!(cfg!(target_arch = "x86_64"), "the program is this machine's, for {USER}");
        let qemu = hypertrace_user::Program::find(OsStr::new(USER))?;
        let emulator = Emulator::of_programs(qemu)?;
        let scratch = Scratch::new()?;
        scratch.write(&[("calls.c", include_str!("functions/calls.c"))])?;
        scratch.run(Command::new("cc").args(["-O2", "-o", "calls", "calls.c"]))?;
        let what = format!("QEMU {}", emulator.version()?);
        Ok(Program { emulator, path: scratch.path().join("calls"), what, _scratch: scratch })
    }
}

fn user(context: &mut Context, trace: Option<&[&str]>) -> Result<f64> {
    let program = context.resource(Program::new)?;
    let arguments = [program.path.clone().into_os_string(), NUMBERS.into()];
    let ns = Ran::of(&program.emulator, trace, &arguments)?.ns;
    let what = program.what.clone();
    context.remark(what);
    Ok(ns)
}

/// Runs a program with a function trace of functions that take a microsecond.
pub fn traced_user(context: &mut Context) -> Result<f64> {
    user(context, Some(&["min=1us"]))
}

/// Runs the program without the plugin.
pub fn plain_user(context: &mut Context) -> Result<f64> {
    user(context, None)
}

/// Results of an emulator that has ended.
struct Ran {
    /// Sum of the user and system CPU time in nanoseconds.
    ns: f64,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Runs an emulator to its end, and writes a function trace to tmpfs if `trace` has options for the
    /// plugin.
    ///
    /// # Errors
    /// If the emulator fails, or records were lost.
    fn of(emulator: &Emulator, trace: Option<&[&str]>, arguments: &[OsString]) -> Result<Ran> {
        let scratch = Scratch::new()?;
        let mut command = emulator.qemu().command();
        if let Some(options) = trace {
            let mut plugin = emulator.plugin_option();
            plugin.push(",functions=");
            plugin.push(scratch.path().join("functions"));
            options.iter().for_each(|option| plugin.extend([OsStr::new(","), option.as_ref()]));
            command.arg("-plugin").arg(plugin);
        }
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| scratch.path().join(name));
        command.args(arguments).stdin(Stdio::null());
        command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        let mut child = command.spawn().context("cannot start QEMU")?;
        let ns = cpu_time(&mut child);
        let read = |path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
        let ran = Ran { ns: ns?, stdout: read(stdout)?, stderr: read(stderr)? };
        ensure!(child.wait()?.success(), "QEMU failed: {}", ran.said());
        let is_whole = ran.stderr.contains(" 0 records lost");
        ensure!(trace.is_none() || is_whole, "the trace is not whole: {}", ran.said());
        Ok(ran)
    }

    /// Returns the last line that the emulator has printed.
    fn said(&self) -> &str {
        let mut lines = self.stdout.lines().chain(self.stderr.lines());
        lines.rfind(|line| !line.trim().is_empty()).unwrap_or("nothing")
    }
}

/// Waits for a child's end, and returns the child's CPU time in nanoseconds. Does not collect the child's
/// exit status: the caller still has to call `wait`.
fn cpu_time(child: &mut Child) -> Result<f64> {
    let id = rustix::process::Pid::from_child(child);
    let begin = Instant::now();
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(id), look)?.is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("QEMU has not ended in {} s", PATIENCE.as_secs());
        }
        sleep(PAUSE);
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    // The name before `)` may have spaces. Fields 14 and 15 are the ticks of the user and of the system.
    let (_, rest) = stat.rsplit_once(") ").context("a line of another form in /proc")?;
    let ticks: Vec<f64> =
        rest.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() * 1e9 / clock_ticks_per_second() as f64)
}
