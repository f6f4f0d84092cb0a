//! Function traces that are compiled in: the session has the calls and returns of C and C++ programs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_tests::c::{self, Compiler, Linked};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, plugin, run};
use hypertrace_tests::linux::Linux;
use hypertrace_tests::report::Line;
use hypertrace_tests::serve::Server;
use hypertrace_user::{Config, Session};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Compiler options for a program that is traced.
const TRACED: &[&str] = &["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"];
/// Compiler options for a program that does not ask to be traced.
const NOT_ASKED: &[&str] = &["-finstrument-functions"];

/// Functions of the program, and whether their calls can be in a session.
const FUNCTIONS: [(&str, bool); 7] = [
    ("fib", true),
    ("compare", true),
    ("thread", true),
    ("dive", true),
    ("handler", true),
    ("constructed", true),
    // This function is called before the library is open.
    ("first", false),
];

/// A program that has run, and its session.
struct Traced {
    folder: TempDir,
    program: PathBuf,
    /// Output of the program.
    printed: String,
}

/// Calls and returns.
type Counts = [u64; 2];

impl Traced {
    /// Compiles a program, and runs it under `record` with these options of `record` and this argument.
    #[track_caller]
    fn run(compiler: &Compiler, linked: Linked, options: &[&OsStr], how: &str) -> Traced {
        Traced::run_source(compiler, "tests/c/functions.c", linked, options, &[how])
    }

    #[track_caller]
    fn run_source(
        compiler: &Compiler,
        source: &str,
        linked: Linked,
        options: &[&OsStr],
        arguments: &[&str],
    ) -> Traced {
        let folder = tempfile::tempdir().unwrap();
        let program = compiler.program(&c::source(source), linked, folder.path());
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(folder.path().join("session")).args(options);
        command.env("HYPERTRACE_QEMU_PLUGIN", plugin());
        let printed = run(command.arg("--").arg(&program).args(arguments)).ok();
        Traced { folder, program, printed }
    }

    fn session(&self) -> PathBuf {
        self.folder.path().join("session")
    }

    /// Asserts that the session has as many calls and returns of each function as the program has counted,
    /// and none of other functions. Returns the session's events.
    #[track_caller]
    fn check(&self) -> Vec<Line> {
        let lines = HYPERTRACE.report(&self.session());
        assert_eq!(HYPERTRACE.info(&self.session())["total"]["lost"], 0);
        check(&self.printed, &lines);
        lines
    }
}

/// Returns the functions that a program has printed: addresses and counts, summed over all of its processes.
#[track_caller]
fn printed(text: &str) -> BTreeMap<&str, (u64, Counts)> {
    let mut functions = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, name, numbers @ ..] = words.as_slice() else { panic!("{line}") };
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
        let (address, counts) = functions.entry(*name).or_insert((numbers[0], [0; 2]));
        assert_eq!(*address, numbers[0], "{line}");
        *counts = [counts[0] + numbers[1], counts[1] + numbers[2]];
    }
    functions
}

/// Returns for each address the calls and returns in a session.
fn recorded(lines: &[Line]) -> BTreeMap<u64, Counts> {
    let mut found: BTreeMap<u64, Counts> = BTreeMap::new();
    for line in lines {
        let which = ["function_entry", "function_exit"].iter().position(|name| *name == line.event);
        if let Some(which) = which {
            found.entry(line.number("address").unwrap()).or_default()[which] += 1;
        }
    }
    found
}

#[track_caller]
fn check(text: &str, lines: &[Line]) {
    let functions = printed(text);
    let names: BTreeSet<&str> = FUNCTIONS.map(|(name, _)| name).into();
    assert!(functions.keys().eq(&names), "{text}");
    let traced = FUNCTIONS.iter().filter(|(_, is_traced)| *is_traced);
    let called = traced.map(|(name, _)| functions[name]).filter(|(_, counts)| counts[0] > 0);
    assert_eq!(recorded(lines), called.collect(), "{text}");
}

/// Asserts that each thread returns from the functions that it has called, in the order of a stack.
#[track_caller]
fn check_nesting(lines: &[Line]) {
    let mut stacks: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in lines {
        let stack = stacks.entry(&line.source).or_default();
        match line.event.as_str() {
            "function_entry" => stack.push(line.number("address").unwrap()),
            "function_exit" => assert_eq!(stack.pop(), line.number("address"), "{line:?}"),
            _ => {}
        }
    }
    assert!(stacks.values().all(Vec::is_empty), "{stacks:?}");
}

/// Returns the files of code with this path in the session's processes, in order.
fn modules<'l>(lines: &'l [Line], path: &'l Path) -> impl Iterator<Item = &'l Line> {
    lines.iter().filter(move |line| {
        line.event == "function_module"
            && line.fields["path"].as_str().is_some_and(|text| Path::new(text) == path)
    })
}

/// Asserts that the address of each recorded function has its name in the program's file.
#[track_caller]
fn check_names(text: &str, lines: &[Line], path: &Path, program: &Path) {
    let module = modules(lines, path).next().unwrap();
    let [offset, begin, end] = ["offset", "begin", "end"].map(|name| module.number(name).unwrap());
    let symbols = Symbols::read(&Source { path: program.to_owned(), offset }).unwrap();
    for (name, (address, _)) in printed(text) {
        assert!((begin..end).contains(&address), "{name}: {module:?}");
        let symbol = symbols.lookup(address).unwrap();
        // C++ mangles names.
        assert!(symbol.address == address && symbol.name.contains(name), "{name}: {symbol:?}");
    }
    let first = lines.iter().position(|line| line.event == "function_entry").unwrap();
    assert!(lines[..first].contains(module), "its place is known before its functions");
}

#[test]
fn calls_and_returns_of_a_recursion_and_of_qsort_equal_the_programs_own_counts() {
    for compiler in c::compilers() {
        for compiler in [compiler.plain(), compiler] {
            let traced = Traced::run(&compiler.with(TRACED), Linked::Archive, &[], "threads");

            let lines = traced.check();

            check_nesting(&lines);
            check_names(&traced.printed, &lines, &traced.program, &traced.program);
        }
    }
}

#[test]
fn a_static_program_and_one_with_the_shared_library_are_traced() {
    let Some(compiler) = c::compiler() else { return };
    for linked in [Linked::Static, Linked::Shared] {
        let traced = Traced::run(&compiler.with(TRACED), linked, &[], "threads");

        let lines = traced.check();

        check_names(&traced.printed, &lines, &traced.program, &traced.program);
    }
}

#[test]
fn a_program_that_does_not_ask_for_it_has_no_function_trace() {
    for compiler in c::compilers() {
        for linked in [Linked::Archive, Linked::Static, Linked::Shared] {
            let traced = Traced::run(&compiler.with(NOT_ASKED), linked, &[], "threads");

            let lines = HYPERTRACE.report(&traced.session());

            assert!(printed(&traced.printed)["fib"].1[0] > 0);
            let events: BTreeSet<&str> = lines.iter().map(|line| line.event.as_str()).collect();
            assert_eq!(events, ["lease", "done"].into());
        }
    }
}

#[test]
fn events_that_the_host_has_switched_off_are_not_recorded() {
    let Some(compiler) = c::compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = c::source("tests/c/functions.c");
    let program = compiler.with(TRACED).program(&source, Linked::Archive, folder.path());
    let dir = folder.path().join("session");
    let session = Session::create(Config::new(&dir)).unwrap();
    for name in ["function_entry", "function_exit"] {
        session.trace().execute(&format!("trace-event {name} off")).unwrap();
    }

    let mut command = Command::new(program);
    session.pass_to(&mut command);
    run(command.arg("threads")).ok();

    let summary = session.finish().unwrap();
    assert_eq!(summary.lost, 0);
    let lines = HYPERTRACE.report(&dir);
    assert_eq!(recorded(&lines), BTreeMap::new());
    assert_eq!(lines.iter().filter(|line| line.event == "done").count(), 1);
}

#[test]
fn without_a_session_the_program_runs_as_it_is() {
    let Some(compiler) = c::compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = c::source("tests/c/functions.c");
    let program = compiler.with(TRACED).program(&source, Linked::Archive, folder.path());

    let text = run(Command::new(program).arg("threads")).ok();

    assert!(printed(&text)["fib"].1[0] > 0);
}

#[test]
fn functions_that_a_jump_leaves_have_calls_without_returns() {
    let Some(compiler) = c::compiler() else { return };
    let traced = Traced::run(&compiler.with(TRACED), Linked::Archive, &[], "jumps");

    traced.check();

    let [calls, returns] = printed(&traced.printed)["dive"].1;
    assert!(calls > 0 && returns == 0, "{}", traced.printed);
}

#[test]
fn a_forked_child_has_a_trace_of_its_own() {
    let Some(compiler) = c::compiler() else { return };
    let traced = Traced::run(&compiler.with(TRACED), Linked::Archive, &[], "forks");

    let lines = traced.check();

    check_nesting(&lines);
    let sources = modules(&lines, &traced.program).map(|line| line.source.as_str());
    let sources: BTreeSet<&str> = sources.collect();
    let traced = lines.iter().filter(|line| line.event == "function_entry");
    assert_eq!(sources, traced.map(|line| line.source.as_str()).collect());
    assert_eq!(sources.len(), 2);
}

#[test]
fn calls_in_a_signal_handler_are_recorded_or_counted() {
    let Some(compiler) = c::compiler() else { return };
    let traced = Traced::run(&compiler.with(TRACED), Linked::Archive, &[], "interrupted");

    let counted: u64 = printed(&traced.printed)
        .iter()
        .filter(|(name, _)| **name != "first")
        .map(|(_, f)| f.1.iter().sum::<u64>())
        .sum();
    let recorded: u64 = recorded(&HYPERTRACE.report(&traced.session())).values().flatten().sum();
    let stat = HYPERTRACE.info(&traced.session());
    assert_eq!(counted, recorded + stat["total"]["lost"].as_u64().unwrap(), "{stat}");
    assert!(printed(&traced.printed)["handler"].1[0] > 0);
}

#[test]
fn an_instrumented_memory_allocator_does_not_stop_the_program() {
    for compiler in c::compilers() {
        let source = "tests/c/functions_malloc.c";
        let compiler = compiler.with(TRACED);
        let traced = Traced::run_source(&compiler, source, Linked::Archive, &[], &[]);

        let lines = HYPERTRACE.report(&traced.session());

        let work: u64 = traced.printed.parse().unwrap();
        assert_eq!(recorded(&lines)[&work], [200, 200], "{compiler:?}");
        assert_eq!(lines.iter().filter(|line| line.event == "worked").count(), 2);
    }
}

/// Runs the program under an emulator, with the plugin.
fn emulated(emulator: &str, compiler: Option<Compiler>) {
    let (Some(compiler), Some(path)) = (compiler, capability::program(emulator)) else { return };
    let options: [&OsStr; 2] = ["--qemu".as_ref(), path.as_ref()];

    let traced = Traced::run(&compiler.with(TRACED), Linked::Static, &options, "threads");

    let lines = traced.check();
    check_nesting(&lines);
    check_names(&traced.printed, &lines, &traced.program, &traced.program);
    capability::used(emulator);
}

#[test]
fn calls_and_returns_under_qemu_x86_64_equal_the_programs_own_counts() {
    if cfg!(target_arch = "x86_64") {
        emulated("qemu-x86_64", c::compiler());
    }
}

#[test]
fn calls_and_returns_under_qemu_aarch64_equal_the_programs_own_counts() {
    emulated("qemu-aarch64", c::aarch64());
}

#[test]
fn calls_and_returns_in_a_linux_guest_equal_the_programs_own_counts() {
    let (Some(linux), Some(compiler)) = (Linux::find(), c::compiler()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
    let source = c::source("tests/c/functions.c");
    let program = compiler.with(TRACED).program(&source, Linked::Static, folder.path());
    let script = "functions threads > /tmp/out; echo \"ended: $?\"; sed 's/^/out /' /tmp/out";

    let guest = linux.start(folder.path(), &server.device, &[("functions", &program)], script);
    let console = guest.console();

    let session = server.session.clone();
    assert_eq!(server.end()["total"]["lost"], 0);
    assert!(console.contains("ended: 0"), "{console}");
    let text: String = console
        .lines()
        .filter_map(|line| Some(format!("{}\n", line.trim_end().strip_prefix("out ")?)))
        .collect();
    let lines = HYPERTRACE.report(&session);
    check(&text, &lines);
    check_nesting(&lines);
    check_names(&text, &lines, Path::new("/bin/functions"), &program);
    Linux::used();
}
