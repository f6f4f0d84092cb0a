//! Function traces of a stock Linux kernel.

mod common;
#[path = "../../tests/src/initramfs.rs"]
#[allow(dead_code)]
mod initramfs;

use common::{Ran, capability, library};
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::symbols::is_thunk;
use hypertrace_qemu::api::library::FROM_7;
use initramfs::Initramfs;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fewest functions of the kernel that are reached in a boot, and by calls alone.
const FUNCTIONS: usize = 3_000;

/// A machine with its kernel and first program.
struct Machine {
    qemu: PathBuf,
    kernel: PathBuf,
    folder: tempfile::TempDir,
}

impl Machine {
    /// Finds and compiles all that it needs, or reports which part is missing.
    fn new() -> Option<Machine> {
        let names = ["qemu-backports-system-x86_64", "linux-guest-kernel", "cc"];
        let [qemu, kernel, compiler] = names.map(capability::program);
        let (qemu, kernel, compiler) = (qemu?, kernel?, compiler?);
        let folder = tempfile::tempdir().unwrap();
        let init = folder.path().join("init");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/init.c");
        let mut command = Command::new(compiler);
        command.args(["-O1", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&init);
        let compiled: Ran = command.arg(source).output().unwrap().into();
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        let mut files = Initramfs::default();
        files.file("init", &fs::read(&init).unwrap());
        fs::write(folder.path().join("initrd"), files.end()).unwrap();
        names[..2].iter().for_each(|name| capability::used(name));
        Some(Machine { qemu, kernel, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Boots to the end. Returns what the first program wrote, and what QEMU printed.
    #[track_caller]
    fn boot(&self, words: &str, options: &[String]) -> (String, Ran) {
        let console = self.file("console");
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "300"]).arg(&self.qemu);
        command.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-no-reboot"]);
        command.args(["-m", "512", "-append"]).arg(format!("panic=-1 quiet {words}"));
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.file("initrd"));
        command.arg("-debugcon").arg(format!("file:{}", console.display())).args(options);
        command.env("HYPERTRACE_PROBE_API", FROM_7.last.to_string());

        let ran: Ran = command.output().unwrap().into();

        assert_eq!(ran.code, Some(0), "{ran:?}");
        (String::from_utf8_lossy(&fs::read(&console).unwrap()).into_owned(), ran)
    }
}

/// Executions of a function's first instruction.
struct Start {
    address: u64,
    by_call: u64,
    otherwise: u64,
}

/// Returns the lines of the probe.
fn starts(ran: &Ran) -> Vec<Start> {
    let lines = ran.stderr.lines().filter_map(|line| line.strip_prefix("probe: start "));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            let mut count = || words.next().unwrap().parse().unwrap();
            Start { address, by_call: count(), otherwise: count() }
        })
        .collect()
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn functions_that_only_calls_reach_have_as_many_calls_as_executions() {
    let Some(machine) = Machine::new() else { return };
    let (kallsyms, _) = machine.boot("nokaslr -- kallsyms", &[]);
    let symbols = machine.file("kallsyms");
    fs::write(&symbols, kallsyms).unwrap();
    let (dir, names) = (machine.file("trace"), symbols.display());
    let trace =
        format!("{},functions={},symbols={names}", library(FROM_7.file).display(), dir.display());
    let count = format!("{},symbols={names}", library("libhypertrace_qemu_probe.so").display());

    let (said, ran) = machine.boot("nokaslr", &["-plugin".into(), trace, "-plugin".into(), count]);

    assert_eq!(said, "done\n", "{ran:?}");
    let trace = Trace::open(&dir).unwrap();
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    let (mut exact, mut other) = (0, Vec::new());
    for Start { address, by_call, otherwise } in starts(&ran) {
        let symbol = trace.function(address).unwrap();
        if otherwise > 0 || is_thunk(symbol.name) {
            continue;
        }
        let recorded = summary.function(address).map_or(0, |function| function.calls);
        match recorded == by_call {
            true => exact += 1,
            false => other.push(format!("{}: {recorded} of {by_call}", symbol.name)),
        }
    }
    assert!(exact >= FUNCTIONS, "{exact}");
    // One of 1,000: where an interrupt arrives between an indirect call and its function.
    assert!(other.len() <= exact / 1_000, "{exact} exact, {other:#?}");
    let (calls, misses) = (printed(&ran, "calls"), printed(&ran, "misses"));
    assert!(calls > 1_000_000 && misses <= calls / 10_000, "{misses} misses of {calls} calls");
    assert_eq!(printed(&ran, "records lost"), 0);
    // Tail calls are recorded, too.
    assert!(summary.calls > calls, "{}", summary.calls);
}

/// Returns the number that the plugin has printed before this word.
#[track_caller]
fn printed(ran: &Ran, word: &str) -> u64 {
    let line = ran.stderr.lines().find(|line| line.contains(" calls, ")).unwrap();
    let (before, _) = line.split_once(&format!(" {word}")).unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}
