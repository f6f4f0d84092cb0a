//! Function traces of a program under QEMU's user mode.

mod common;

use common::{Ran, capability, plugin};
use hypertrace_functions::Task;
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::symbols::{Source, Symbols};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Emulator and program.
struct Guest {
    qemu: PathBuf,
    program: PathBuf,
}

impl Guest {
    /// Compiles the program in this folder; `None` if that cannot be done or run here.
    fn new(folder: &Path) -> Option<Guest> {
        let (qemu, compiler) = (capability::program("qemu-x86_64")?, capability::program("cc")?);
        let program = folder.join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/functions.c");
        let mut command = Command::new(compiler);
        command.args(["-O1", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        let compiled: Ran = command.arg(source).output().unwrap().into();
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        capability::used("qemu-x86_64");
        Some(Guest { qemu, program })
    }

    /// Returns a command that traces the program with these options of the plugin.
    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(&self.qemu);
        command.arg("-plugin").arg(format!("{},{options}", plugin().display())).arg(&self.program);
        command
    }

    /// Opens a trace, with the program's names.
    fn trace(&self, dir: &Path) -> Trace {
        let mut trace = Trace::open(dir).unwrap();
        trace.add_symbols(&Source { path: self.program.clone(), offset: 0 }).unwrap();
        trace
    }

    fn address(&self, name: &str) -> u64 {
        let symbols = Symbols::read(&Source { path: self.program.clone(), offset: 0 }).unwrap();
        symbols.iter().find(|symbol| symbol.name == name).unwrap().address
    }
}

#[test]
fn counts_are_those_of_the_program_itself() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::new(folder.path()) else { return };
    let dir = folder.path().join("trace");

    let ran: Ran = guest.command(&format!("functions={}", dir.display())).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains(" 0 misses, 0 records lost"), "{}", ran.stderr);
    let trace = guest.trace(&dir);
    assert_eq!(trace.tasks(), [Task::of_vcpu(0, 3, "Ring3")]);
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    for line in ran.stdout.lines() {
        let (name, calls) = line.split_once(' ').unwrap();
        let function = summary.function(guest.address(name)).unwrap();
        assert_eq!(function.calls, calls.parse::<u64>().unwrap(), "{name}");
    }
    assert_eq!(summary.function(guest.address("main")).unwrap().calls, 1);
}

#[test]
fn what_was_recorded_before_a_kill_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::new(folder.path()) else { return };
    for kill in 0..5 {
        let dir = folder.path().join(format!("trace{kill}"));
        let mut command = guest.command(&format!("functions={}", dir.display()));
        let mut qemu = command.arg("forever").stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        // Two windows of 3 MiB are mapped at the beginning, and a third one when the first is full.
        while std::fs::metadata(dir.join("103.dat")).map_or(0, |data| data.len()) < 4 << 20 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(1));
        }
        qemu.kill().unwrap();
        qemu.wait().unwrap();

        let summary = Summary::of(&guest.trace(&dir));

        assert!(summary.damage.is_empty(), "{:?}", summary.damage);
        assert!(summary.function(guest.address("fib")).unwrap().calls > 1_000);
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::new(folder.path()) else { return };
    let full = folder.path().display().to_string();
    let new = format!("{full}/new");
    for (options, named) in [
        (format!("functions={full}"), "not empty"),
        (format!("functions={new},colour=red"), "colour"),
        (format!("functions={new},min=soon"), "500ns"),
        (format!("functions={new}/missing/dir"), "missing/dir"),
    ] {
        let ran: Ran = guest.command(&options).output().unwrap().into();

        assert_ne!(ran.code, Some(0), "{options}");
        assert!(ran.stderr.contains(named), "{options}: {}", ran.stderr);
    }
}

#[test]
fn at_the_limit_the_rest_is_lost_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::new(folder.path()) else { return };
    let dir = folder.path().join("trace");
    let options = format!("functions={},limit=1M", dir.display());

    let ran: Ran = guest.command(&options).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("limit") && !ran.stderr.contains(" 0 records lost"), "{ran:?}");
    let data = std::fs::metadata(dir.join("103.dat")).unwrap().len();
    assert!((1 << 19..=1 << 20).contains(&data), "{data}");
}
