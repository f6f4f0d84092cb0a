//! Function traces of whole machines: boots of stock kernels, whose first process is the program that counts its own calls.

mod common;
#[path = "../../tests/src/initramfs.rs"]
#[allow(dead_code)]
mod initramfs;

use common::{Ran, capability, library};
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::record::{Kind, SIZE};
use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_qemu::api::library::{FROM_7, TO_6};
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A machine that QEMU emulates.
struct Machine {
    qemu: &'static str,
    /// The plugin that it loads.
    plugin: &'static str,
    /// Options of QEMU.
    options: &'static [&'static str],
    kernel: &'static str,
    console: &'static str,
    compiler: &'static str,
    /// Names of the tracks of a virtual CPU: of the kernel and of programs.
    tracks: [&'static str; 2],
}

const AARCH64: Machine = Machine {
    qemu: "qemu-system-aarch64",
    plugin: TO_6.file,
    // Its device tree has a seed for KASLR.
    options: &["-M", "virt", "-cpu", "cortex-a57"],
    kernel: "linux-guest-arm64-kernel",
    console: "ttyAMA0",
    compiler: "aarch64-linux-gnu-gcc",
    tracks: ["EL1", "EL0"],
};

const AARCH64_7: Machine =
    Machine { qemu: "qemu-backports-system-aarch64", plugin: FROM_7.file, ..AARCH64 };

const X86_64: Machine = Machine {
    qemu: "qemu-system-x86_64",
    plugin: TO_6.file,
    options: &["-M", "pc", "-cpu", "qemu64"],
    kernel: "linux-guest-kernel",
    console: "ttyS0",
    compiler: "cc",
    tracks: ["Ring0", "Ring3"],
};

const X86_64_7: Machine =
    Machine { qemu: "qemu-backports-system-x86_64", plugin: FROM_7.file, ..X86_64 };

#[test]
fn a_boot_of_aarch64_is_exact() {
    check(&AARCH64, 1);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn a_boot_of_aarch64_with_two_cpus_is_exact() {
    check(&AARCH64, 2);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn a_boot_of_aarch64_under_api_7_is_exact() {
    check(&AARCH64_7, 1);
}

#[test]
fn a_boot_of_aarch64_with_two_cpus_under_api_7_is_exact() {
    check(&AARCH64_7, 2);
}

#[test]
fn a_boot_of_x86_64_is_exact() {
    check(&X86_64, 1);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn a_boot_of_x86_64_with_two_cpus_is_exact() {
    check(&X86_64, 2);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn a_boot_of_x86_64_under_api_7_is_exact() {
    check(&X86_64_7, 1);
}

#[test]
fn a_boot_of_x86_64_with_two_cpus_under_api_7_is_exact() {
    check(&X86_64_7, 2);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn programs_of_aarch64_with_the_same_code_have_their_own_addresses() {
    check_addresses(&AARCH64);
}

#[test]
fn programs_of_aarch64_under_api_7_with_the_same_code_have_their_own_addresses() {
    check_addresses(&AARCH64_7);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn programs_of_x86_64_under_api_7_with_the_same_code_have_their_own_addresses() {
    check_addresses(&X86_64_7);
}

/// Boots a machine that runs one program several times, and checks the addresses of its functions.
#[track_caller]
fn check_addresses(machine: &Machine) {
    /// Calls that fib(12) makes, with its own.
    const CALLS: u64 = 465;
    let folder = tempfile::tempdir().unwrap();
    let Some(boot) = machine.boot(folder.path(), 1, "addresses.c", "-static-pie") else { return };

    let summary = Summary::of(&Trace::open(&boot.dir).unwrap());

    let lines = boot.console.lines().filter_map(|line| line.trim().strip_prefix("fib at "));
    let addresses: HashSet<_> =
        lines.map(|address| u64::from_str_radix(address, 16).unwrap()).collect();
    assert_eq!(addresses.len(), 3, "{}", boot.console);
    for address in addresses {
        let calls = summary.function(address).map(|function| function.calls);
        assert_eq!(calls, Some(CALLS), "{address:x}");
    }
    capability::used(machine.qemu);
}

/// Boots a machine, checks its trace, and has uftrace read it.
#[track_caller]
fn check(machine: &Machine, cpus: u32) {
    let folder = tempfile::tempdir().unwrap();
    let Some(boot) = machine.boot(folder.path(), cpus, "functions.c", "-static") else { return };

    assert!(boot.console.contains("Kernel Offset: 0x"), "no KASLR: {}", boot.console);
    let [calls, misses, lost] = boot.totals();
    assert!(calls > 1_000_000 && misses * 10_000 <= calls, "{misses} misses of {calls}");
    assert_eq!(lost, 0);
    assert!(!boot.stderr.contains("wrong"), "{}", boot.stderr);
    let mut trace = Trace::open(&boot.dir).unwrap();
    let names: HashSet<_> = trace.tasks().iter().map(|task| task.name.as_str()).collect();
    for cpu in 0..cpus {
        assert!(names.contains(format!("cpu{cpu} {}", machine.tracks[0]).as_str()), "{names:?}");
    }
    assert!(names.iter().any(|name| name.ends_with(machine.tracks[1])), "{names:?}");
    let entries: u64 = trace.tasks().iter().map(|task| entries(&trace, task.tid)).sum();
    // Stacks are repeated at switches, and tail calls are no calls.
    assert!(entries > calls - calls / 100, "{entries} entries of {calls} calls");
    let program = Source { path: boot.program.clone(), offset: 0 };
    let symbols = Symbols::read(&program).unwrap();
    trace.add_symbols(&program).unwrap();
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    for name in ["fib", "compare", "deep", "tail", "leaf", "inner"] {
        let address = symbols.iter().find(|symbol| symbol.name == name).unwrap().address;
        let found = summary.function(address).unwrap().calls;
        assert_eq!(found, boot.printed(name), "{name}");
    }
    let short = shortened(&boot.dir, &folder.path().join("short"));
    uftrace_reads("uftrace-bookworm", &short, &short);
    // Some seconds for all records: one release is enough.
    uftrace_reads("uftrace-trixie", &boot.dir, &short);
    for name in [machine.qemu, machine.kernel] {
        capability::used(name);
    }
}

/// Checks a track: depths balance, exits are of the functions that were entered, and no time goes backwards. Returns the
/// number of entries.
#[track_caller]
fn entries(trace: &Trace, tid: u32) -> u64 {
    let (mut open, mut last, mut entries) = (Vec::new(), 0, 0);
    for record in trace.records(tid).unwrap() {
        let record = record.unwrap();
        assert!(record.time >= last, "{tid}: {record:?} after {last}");
        last = record.time;
        match record.kind {
            Kind::Entry => {
                assert_eq!(usize::from(record.depth), open.len(), "{tid}: {record:?}");
                open.push(record.address);
                entries += 1;
            }
            Kind::Exit => {
                assert_eq!(open.pop(), Some(record.address), "{tid}: {record:?}");
                assert_eq!(usize::from(record.depth), open.len(), "{tid}: {record:?}");
            }
            _ => panic!("{tid}: {record:?}"),
        }
    }
    assert!(open.is_empty(), "{tid}: {open:x?} have no exits");
    entries
}

/// Records of each track that uftrace prints one by one.
const PRINTED: u64 = 20_000;

/// Reads traces with a release of uftrace, if it is here: one for a report, and a short one that it prints.
#[track_caller]
fn uftrace_reads(reader: &str, dir: &Path, short: &Path) {
    let Some(program) = capability::program(reader) else { return };
    for (command, dir, word) in [
        ("report", dir, "Total time"),
        ("replay", short, "() {"),
        ("graph", short, "(1)"),
        ("dump", short, "[entry]"),
    ] {
        let mut uftrace = Command::new(&program);
        let read = uftrace.args([command, "--no-pager", "-d"]).arg(dir).output().unwrap();
        let text = String::from_utf8_lossy(&read.stdout);
        let said = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success(), "{reader} {command}: {said}");
        let is_known = |line: &str| line.contains("invalid rstack read");
        assert!(said.lines().all(is_known), "{reader} {command}: {said}");
        assert!(
            text.contains(word),
            "{reader} {command}: {}",
            text.chars().take(2000).collect::<String>()
        );
    }
    capability::used(reader);
}

/// Copies a directory with the first records of each track.
fn shortened(dir: &Path, copy: &Path) -> PathBuf {
    fs::create_dir(copy).unwrap();
    for file in fs::read_dir(dir).unwrap() {
        let file = file.unwrap().path();
        let new = copy.join(file.file_name().unwrap());
        fs::copy(&file, &new).unwrap();
        let length = fs::metadata(&file).unwrap().len();
        if file.extension().is_some_and(|extension| extension == "dat") {
            File::options()
                .write(true)
                .open(new)
                .unwrap()
                .set_len(length.min(PRINTED * SIZE as u64))
                .unwrap();
        }
    }
    copy.to_owned()
}

/// A machine that was booted.
struct Boot {
    /// Directory of the trace.
    dir: PathBuf,
    /// The first process.
    program: PathBuf,
    console: String,
    stderr: String,
}

impl Machine {
    /// Boots with a function trace, and this source, compiled with an option, as the first process; `None` if that cannot be
    /// done here.
    #[track_caller]
    fn boot(&self, folder: &Path, cpus: u32, source: &str, option: &str) -> Option<Boot> {
        let [qemu, kernel, compiler] =
            [self.qemu, self.kernel, self.compiler].map(capability::program);
        let (qemu, kernel, program) = (qemu?, kernel?, compile(&compiler?, folder, source, option));
        let mut files = initramfs::Initramfs::default();
        files.file("init", &fs::read(&program).unwrap());
        let [initrd, dir] = ["initrd", "trace"].map(|name| folder.join(name));
        fs::write(&initrd, files.end()).unwrap();
        let mut command = Command::new(&qemu);
        command.args(self.options).args(firmware(&qemu));
        command.args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"]);
        command.args(["-m", "512", "-accel", "tcg", "-smp", &cpus.to_string()]);
        command.args([
            "-kernel".as_ref(),
            kernel.as_os_str(),
            "-initrd".as_ref(),
            initrd.as_os_str(),
        ]);
        // The end of the first process is a panic, and that ends QEMU.
        command.args(["-append", &format!("console={} panic=-1", self.console)]);
        command.arg("-plugin");
        let plugin = library(self.plugin);
        let [plugin, dir_name, symbols] = [&plugin, &dir, &program].map(|path| path.display());
        command.arg(format!("{plugin},functions={dir_name},symbols={symbols}"));
        let ran: Ran = command.stdin(Stdio::null()).output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        Some(Boot { dir, program, console: ran.stdout, stderr: ran.stderr })
    }
}

/// Compiles the first process.
fn compile(compiler: &Path, folder: &Path, source: &str, option: &str) -> PathBuf {
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O1", option, "-o"]).arg(&program);
    let compiled: Ran = command.arg(source).output().unwrap().into();
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    program
}

/// Returns the options for the firmware of a QEMU that `cargo xtask fetch` has unpacked.
fn firmware(qemu: &Path) -> Vec<String> {
    let root = qemu.ancestors().nth(2).map(|folder| folder.join("root/usr/share"));
    let folders = ["qemu", "seabios"].map(|name| root.as_ref().map(|root| root.join(name)));
    let folders = folders.into_iter().flatten().filter(|folder| folder.is_dir());
    folders.flat_map(|folder| ["-L".into(), folder.display().to_string()]).collect()
}

impl Boot {
    /// Returns the plugin's counts: calls, misses, lost records.
    #[track_caller]
    fn totals(&self) -> [u64; 3] {
        let lines = self.stderr.lines();
        let line = lines.filter_map(|line| line.strip_prefix("hypertrace: ")).next();
        let words = line.unwrap_or_else(|| panic!("{}", self.stderr)).split_whitespace();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap()
    }

    /// Returns the count that the program has printed for a function.
    #[track_caller]
    fn printed(&self, name: &str) -> u64 {
        let mut lines = self.console.lines().map(|line| line.trim());
        let count = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no count of {name}: {}", self.console))
    }
}
