//! Function traces of a program under QEMU's user mode.

mod common;

use common::{Ran, capability, plugin};
use hypertrace_functions::Task;
use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_functions::symbols::{Source, Symbols};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An architecture of programs.
struct Architecture {
    qemu: &'static str,
    compiler: &'static str,
    /// Privilege level of programs, and its name.
    level: u32,
    level_name: &'static str,
}

const X86_64: Architecture =
    Architecture { qemu: "qemu-x86_64", compiler: "cc", level: 3, level_name: "Ring3" };

const AARCH64: Architecture = Architecture {
    qemu: "qemu-aarch64",
    compiler: "aarch64-linux-gnu-gcc",
    level: 0,
    level_name: "EL0",
};

/// Emulator and program.
struct Guest {
    architecture: &'static Architecture,
    qemu: PathBuf,
    program: PathBuf,
}

/// Defines a test for each architecture of functions that take a guest and an empty folder.
macro_rules! tests {
    ($($name:ident)*) => {
        mod x86_64 {
            $(#[test] fn $name() { super::with_guest(&super::X86_64, super::$name); })*
        }
        mod aarch64 {
            $(#[test] fn $name() { super::with_guest(&super::AARCH64, super::$name); })*
        }
    };
}

tests! {
    counts_are_those_of_the_program_itself
    what_was_recorded_before_a_kill_is_read
    what_cannot_be_recorded_is_refused_by_name
    at_the_limit_the_rest_is_lost_and_counted
    only_the_functions_of_a_filter_are_recorded
    a_jump_to_a_functions_first_byte_is_a_call_of_it
    in_a_region_functions_are_recorded_with_all_that_are_open
    code_of_another_level_is_not_recorded
    a_function_that_a_filter_names_has_to_be_there
}

/// Runs a test, if its program can be compiled and run here.
fn with_guest(architecture: &'static Architecture, test: fn(&Guest, &TempDir)) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(guest) = Guest::new(architecture, folder.path()) {
        test(&guest, &folder);
        capability::used(architecture.qemu);
    }
}

impl Guest {
    /// Compiles the program in this folder; `None` if that cannot be done or run here.
    fn new(architecture: &'static Architecture, folder: &Path) -> Option<Guest> {
        let Architecture { qemu, compiler, .. } = architecture;
        let (qemu, compiler) = (capability::program(qemu)?, capability::program(compiler)?);
        let program = folder.join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/functions.c");
        let mut command = Command::new(compiler);
        command.args(["-O1", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        let compiled: Ran = command.arg(source).output().unwrap().into();
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        Some(Guest { architecture, qemu, program })
    }

    /// Returns the only track of a trace.
    fn task(&self) -> Task {
        Task::of_vcpu(0, self.architecture.level, self.architecture.level_name)
    }

    /// Returns the file of its records.
    fn records(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.dat", self.task().tid))
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

    /// Runs the program with these options, and returns the trace and what the program and the plugin printed.
    #[track_caller]
    fn run(&self, dir: &Path, options: &str) -> (Trace, Ran) {
        let options = format!("functions={},{options}", dir.display());
        let ran: Ran = self.command(&options).output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains(" 0 misses, 0 records lost"), "{}", ran.stderr);
        (Trace::open(dir).unwrap(), ran)
    }

    fn address(&self, name: &str) -> u64 {
        let symbols = Symbols::read(&Source { path: self.program.clone(), offset: 0 }).unwrap();
        symbols.iter().find(|symbol| symbol.name == name).unwrap().address
    }
}

fn counts_are_those_of_the_program_itself(guest: &Guest, folder: &TempDir) {
    let dir = folder.path().join("trace");

    let ran: Ran = guest.command(&format!("functions={}", dir.display())).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains(" 0 misses, 0 records lost"), "{}", ran.stderr);
    let trace = guest.trace(&dir);
    assert_eq!(trace.tasks(), [guest.task()]);
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    for line in ran.stdout.lines() {
        let (name, calls) = line.split_once(' ').unwrap();
        let function = summary.function(guest.address(name)).unwrap();
        assert_eq!(function.calls, calls.parse::<u64>().unwrap(), "{name}");
    }
    assert_eq!(summary.function(guest.address("main")).unwrap().calls, 1);
}

fn what_was_recorded_before_a_kill_is_read(guest: &Guest, folder: &TempDir) {
    for kill in 0..5 {
        let dir = folder.path().join(format!("trace{kill}"));
        let mut command = guest.command(&format!("functions={}", dir.display()));
        let mut qemu = command.arg("forever").stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        // Two windows of 3 MiB are mapped at the beginning, and a third one when the first is full.
        while std::fs::metadata(guest.records(&dir)).map_or(0, |data| data.len()) < 4 << 20 {
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

fn what_cannot_be_recorded_is_refused_by_name(guest: &Guest, folder: &TempDir) {
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

fn at_the_limit_the_rest_is_lost_and_counted(guest: &Guest, folder: &TempDir) {
    let dir = folder.path().join("trace");
    let options = format!("functions={},limit=1M", dir.display());

    let ran: Ran = guest.command(&options).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("limit") && !ran.stderr.contains(" 0 records lost"), "{ran:?}");
    let data = std::fs::metadata(guest.records(&dir)).unwrap().len();
    assert!((1 << 19..=1 << 20).contains(&data), "{data}");
}

/// Returns the names of all recorded functions, and their calls.
fn calls(trace: &Trace) -> Vec<(String, u64)> {
    let summary = Summary::of(trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    let name = |address| trace.function(address).unwrap().name.to_owned();
    let functions = summary.top(usize::MAX, By::Calls).into_iter();
    functions.map(|function| (name(function.address), function.calls)).collect()
}

/// Returns the count that the program has printed for a function.
fn printed(ran: &Ran, name: &str) -> u64 {
    let count = ran.stdout.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().trim().parse().unwrap()
}

fn only_the_functions_of_a_filter_are_recorded(guest: &Guest, folder: &TempDir) {
    let fib = guest.address("fib");
    // By direct calls, by a pointer from code that is not recorded, by a jump from one that is.
    for (options, names) in [
        ("symbol=fib".to_owned(), &["fib"][..]),
        ("symbol=compare".to_owned(), &["compare"]),
        ("symbol=tai*,symbol=leaf".to_owned(), &["tail", "leaf"]),
        ("symbol=tail".to_owned(), &["tail"]),
        (format!("range={fib:#x}-{:#x}", fib + 4), &["fib"]),
    ] {
        let dir = folder.path().join(options.replace(['*', '=', ','], "_"));
        let (trace, ran) = guest.run(&dir, &options);

        let found = calls(&trace);

        assert_eq!(found.len(), names.len(), "{options}: {found:?}");
        for (name, calls) in found {
            assert!(names.contains(&name.as_str()), "{options}: {name}");
            assert_eq!(calls, printed(&ran, &name), "{options}: {name}");
        }
    }
}

fn a_jump_to_a_functions_first_byte_is_a_call_of_it(guest: &Guest, folder: &TempDir) {
    let (trace, ran) = guest.run(&folder.path().join("trace"), "depth=100");

    let summary = Summary::of(&trace);
    let count = |name| summary.function(guest.address(name)).unwrap().calls;
    assert_eq!((count("tail"), count("leaf")), (printed(&ran, "tail"), printed(&ran, "leaf")));
    let callers = summary.callers(guest.address("leaf"));
    let main = summary.callers(guest.address("tail"));
    // It is in the place of the one that jumped.
    assert_eq!((callers.len(), callers[0].function), (1, main[0].function));
}

fn in_a_region_functions_are_recorded_with_all_that_are_open(guest: &Guest, folder: &TempDir) {
    let (trace, _) = guest.run(&folder.path().join("batch"), "region=batch");
    let found = calls(&trace);
    let never: Ran = guest
        .command(&format!("functions={},region=never", folder.path().join("never").display()))
        .output()
        .unwrap()
        .into();

    let count = |name| found.iter().find(|(found, _)| found == name).map(|(_, calls)| *calls);
    assert_eq!((count("inner"), count("outer"), count("main")), (Some(7), Some(1), Some(1)));
    assert_eq!((count("fib"), count("leaf")), (None, None));
    assert!(never.stderr.contains("no region began"), "{}", never.stderr);
    assert_eq!(calls(&Trace::open(&folder.path().join("never")).unwrap()), []);
}

fn code_of_another_level_is_not_recorded(guest: &Guest, folder: &TempDir) {
    let other = format!("level={}", guest.architecture.level ^ 1);

    let (trace, ran) = guest.run(&folder.path().join("trace"), &other);

    assert_eq!((trace.tasks(), Summary::of(&trace).calls), (&[][..], 0));
    assert!(ran.stderr.contains("0 calls"), "{}", ran.stderr);
}

fn a_function_that_a_filter_names_has_to_be_there(guest: &Guest, folder: &TempDir) {
    let options = format!("functions={},symbol=fibb", folder.path().join("trace").display());

    let ran: Ran = guest.command(&options).output().unwrap().into();

    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("symbol=fibb"), "{}", ran.stderr);
}
