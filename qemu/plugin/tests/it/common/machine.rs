//! Whole machines that QEMU emulates. A machine boots a stock Linux kernel, and a program from the sources in
//! `tests` is the first process.

use hypertrace_test_support::initramfs;

use super::{Ran, capability, library};
use hypertrace_qemu::api::library::{FROM_7, TO_6};
use initramfs::Initramfs;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Maximum number of seconds of a boot. If a machine has not ended after this time, then the machine is
/// killed.
const PATIENCE: &str = "300";

/// Parts of a machine. The names of programs and files are searched on PATH.
pub struct Machine {
    pub qemu: &'static str,
    /// File name of the plugin that this QEMU loads.
    plugin: &'static str,
    /// Options of QEMU for the hardware, and for a device through which the first process writes to `out`.
    options: &'static [&'static str],
    pub kernel: &'static str,
    console: &'static str,
    compiler: &'static str,
    /// Names of a virtual CPU's tracks, for the kernel and for programs.
    pub tracks: [&'static str; 2],
}

pub const AARCH64: Machine = Machine {
    qemu: "qemu-system-aarch64",
    plugin: TO_6.file,
    // The device tree of the machine `virt` has a seed for KASLR.
    options: &[
        "-M",
        "virt",
        "-cpu",
        "cortex-a57",
        "-semihosting-config",
        "enable=on,userspace=on,target=native,chardev=out",
    ],
    kernel: "linux-guest-arm64-kernel",
    console: "ttyAMA0",
    compiler: "aarch64-linux-gnu-gcc",
    tracks: ["EL1", "EL0"],
};

pub const AARCH64_7: Machine =
    Machine { qemu: "qemu-backports-system-aarch64", plugin: FROM_7.file, ..AARCH64 };

pub const X86_64: Machine = Machine {
    qemu: "qemu-system-x86_64",
    plugin: TO_6.file,
    options: &["-M", "pc", "-cpu", "qemu64", "-device", "isa-debugcon,chardev=out"],
    kernel: "linux-guest-kernel",
    console: "ttyS0",
    compiler: "cc",
    tracks: ["Ring0", "Ring3"],
};

pub const X86_64_7: Machine =
    Machine { qemu: "qemu-backports-system-x86_64", plugin: FROM_7.file, ..X86_64 };

/// A machine with everything that it needs to boot.
pub struct Ready {
    machine: &'static Machine,
    qemu: PathBuf,
    kernel: PathBuf,
    folder: TempDir,
    /// Program of the first process.
    pub program: PathBuf,
}

/// A machine of AArch64 that runs a program in place of a kernel.
pub struct Bare {
    machine: &'static Machine,
    qemu: PathBuf,
    pub folder: TempDir,
    program: PathBuf,
}

/// Output of a machine that has booted and ended.
#[derive(Debug)]
pub struct Booted {
    /// Output of the kernel, and of the first process to its stdout.
    pub console: String,
    /// Output of the first process to the machine's own device.
    pub out: String,
    /// Output of QEMU and of its plugins.
    pub stderr: String,
}

impl Machine {
    /// Finds the parts, and compiles the first process with these options. Returns `None` if this machine
    /// lacks a part.
    #[track_caller]
    pub fn with(&'static self, source: &str, options: &[&str]) -> Option<Ready> {
        let [qemu, kernel, compiler] =
            [self.qemu, self.kernel, self.compiler].map(capability::program);
        let (qemu, kernel, compiler) = (qemu?, kernel?, compiler?);
        let folder = tempfile::tempdir().unwrap();
        let program = compile(&compiler, folder.path(), source, options);
        let mut files = Initramfs::default();
        files.file("init", &fs::read(&program).unwrap());
        fs::write(folder.path().join("initrd"), files.end()).unwrap();
        Some(Ready { machine: self, qemu, kernel, folder, program })
    }

    /// Finds the emulator of AArch64, and compiles a program without an operating system. Returns `None` if
    /// this machine lacks the emulator or the compiler.
    #[track_caller]
    pub fn bare(&'static self, source: &str, options: &[&str]) -> Option<Bare> {
        let [qemu, compiler] = [self.qemu, self.compiler].map(capability::program);
        let (qemu, compiler) = (qemu?, compiler?);
        let folder = tempfile::tempdir().unwrap();
        let options = [&["-nostdlib", "-static", "-Wl,-Ttext=0x40080000"], options].concat();
        let program = compile(&compiler, folder.path(), source, &options);
        Some(Bare { machine: self, qemu, folder, program })
    }
}

impl Bare {
    /// Runs the program to its end on two virtual CPUs, with these options of the plugin. The two virtual
    /// CPUs run in one thread (`single`) or in two threads (`multi`).
    #[track_caller]
    pub fn run(&self, threads: &str, options: &str) -> Ran {
        self.run_within("unlimited", threads, options)
    }

    /// Runs the program with a limit of the size of files, in units of 512 bytes.
    #[track_caller]
    pub fn run_within(&self, limit: &str, threads: &str, options: &str) -> Ran {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", PATIENCE, "sh", "-c", "ulimit -f $0; exec \"$@\"", limit]);
        command.arg(&self.qemu);
        command.args(["-M", "virt", "-cpu", "cortex-a57", "-m", "64", "-nodefaults"]);
        command.args(["-display", "none", "-semihosting", "-smp", "2"]);
        command.args(["-accel", &format!("tcg,thread={threads}"), "-kernel"]);
        command.arg(&self.program).arg("-plugin");
        command.arg(format!("{},{options}", library(self.machine.plugin).display()));

        let ran: Ran = command.output().unwrap().into();

        assert_eq!(ran.code, Some(0), "{ran:?}");
        capability::used(self.machine.qemu);
        ran
    }
}

impl Ready {
    /// Returns the path of a file, or of a folder, that the test may make.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the plugin with these options, for [`Ready::boot`].
    pub fn plugin(&self, options: &str) -> String {
        format!("{},{options}", library(self.machine.plugin).display())
    }

    /// Returns the command that boots the machine. The arguments are the number of virtual CPUs, the words on
    /// the kernel's command line, and the plugins.
    pub fn command(&self, cpus: u32, words: &str, plugins: &[&str]) -> Command {
        let mut command = Command::new(&self.qemu);
        self.complete(&mut command, cpus, words, plugins);
        command
    }

    /// Boots to the end.
    #[track_caller]
    pub fn boot(&self, cpus: u32, words: &str, plugins: &[&str]) -> Booted {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", PATIENCE]).arg(&self.qemu);
        self.complete(&mut command, cpus, words, plugins);

        let ran: Ran = command.output().unwrap().into();

        assert_eq!(ran.code, Some(0), "{ran:?}");
        let out = String::from_utf8_lossy(&fs::read(self.file("out")).unwrap()).into_owned();
        for name in [self.machine.qemu, self.machine.kernel] {
            capability::used(name);
        }
        Booted { console: ran.stdout, out, stderr: ran.stderr }
    }

    fn complete(&self, command: &mut Command, cpus: u32, words: &str, plugins: &[&str]) {
        let Machine { options, console, .. } = self.machine;
        let out = format!("file,id=out,path={}", self.file("out").display());
        command.args(["-chardev", &out]).args(*options).args(firmware(&self.qemu));
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        command.args(["-m", "512", "-accel", "tcg", "-smp", &cpus.to_string()]);
        let initrd = self.file("initrd");
        let files = ["-kernel".as_ref(), self.kernel.as_os_str(), "-initrd".as_ref()];
        command.args(files).arg(initrd);
        // The end of the first process makes the kernel panic, and this panic ends QEMU.
        command.args(["-append", &format!("console={console} panic=-1 {words}")]);
        command.args(plugins.iter().flat_map(|plugin| ["-plugin", plugin]).map(OsStr::new));
        command.env("HYPERTRACE_PROBE_API", FROM_7.last.to_string()).stdin(Stdio::null());
    }
}

impl Booted {
    /// Returns the plugin's counts: calls, misses, lost records.
    #[track_caller]
    pub fn totals(&self) -> [u64; 3] {
        let lines = self.stderr.lines();
        let mut lines = lines.filter_map(|line| line.strip_prefix("hypertrace: "));
        let line = lines.find(|line| line.contains(" calls, "));
        let words = line.unwrap_or_else(|| panic!("{}", self.stderr)).split_whitespace();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap()
    }

    /// Returns the count that the program has printed for a function.
    #[track_caller]
    pub fn printed(&self, name: &str) -> u64 {
        let mut lines = self.console.lines().map(|line| line.trim());
        let count = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no count of {name}: {}", self.console))
    }
}

/// Compiles the first process.
#[track_caller]
fn compile(compiler: &Path, folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-o").arg(&program);
    let compiled: Ran = command.arg(source).output().unwrap().into();
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    program
}

/// Returns the options that tell a QEMU from `cargo xtask fetch` where its firmware is.
fn firmware(qemu: &Path) -> Vec<String> {
    let root = qemu.ancestors().nth(2).map(|folder| folder.join("root/usr/share"));
    let folders = ["qemu", "seabios"].map(|name| root.as_ref().map(|root| root.join(name)));
    let folders = folders.into_iter().flatten().filter(|folder| folder.is_dir());
    folders.flat_map(|folder| ["-L".into(), folder.display().to_string()]).collect()
}
