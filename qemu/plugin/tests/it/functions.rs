//! Function traces of a program under QEMU's user mode.

use crate::common;
use common::traced::{AARCH64, Architecture, Guest, X86_64, calls, printed};
use common::uftrace;
use common::{Ran, capability};
use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_test_support::{kill, namespace, wait_until};
use namespace::Mount;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Defines tests of functions that take a guest and an empty folder: one test for each function and
/// architecture.
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
    uftrace_has_the_same_counts
    what_was_recorded_before_a_kill_is_read
    what_cannot_be_recorded_is_refused_by_name
    at_the_limit_the_rest_is_lost_and_counted
    only_the_functions_of_a_filter_are_recorded
    a_jump_to_a_functions_first_byte_is_a_call_of_it
    in_a_region_functions_are_recorded_with_all_that_are_open
    code_of_another_level_is_not_recorded
    filters_that_leave_out_all_functions_are_named
    a_function_that_a_filter_names_has_to_be_there
    on_a_full_disk_the_rest_is_lost_and_counted
    a_trace_is_its_users_whatever_the_umask_is
}

/// Runs a test, if its program can be compiled and run here.
fn with_guest(architecture: &'static Architecture, test: fn(&Guest, &TempDir)) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(guest) = Guest::new(architecture, folder.path(), "functions.c") {
        test(&guest, &folder);
        capability::used(architecture.qemu);
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

fn uftrace_has_the_same_counts(guest: &Guest, folder: &TempDir) {
    let dir = folder.path().join("trace");

    let (_, ran) = guest.run(&dir, "depth=1000");

    for name in ["fib", "compare", "leaf"] {
        uftrace::check(&dir, name, printed(&ran, name));
    }
}

fn a_trace_is_its_users_whatever_the_umask_is(guest: &Guest, folder: &TempDir) {
    for umask in ["0", "0777"] {
        let dir = folder.path().join(umask);
        let command = guest.command(&format!("functions={}", dir.display()));
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args());

        let ran: Ran = shell.output().unwrap().into();

        assert!(ran.stderr.contains(" 0 records lost"), "{}", ran.stderr);
        let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
        for path in files.chain([dir]) {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            let mode = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(mode, expected, "{}", path.display());
        }
    }
}

fn what_was_recorded_before_a_kill_is_read(guest: &Guest, folder: &TempDir) {
    let kills = if guest.architecture.qemu == X86_64.qemu { 20 } else { 5 };
    for kill in 0..kills {
        let dir = folder.path().join(format!("trace{kill}"));
        let mut command = guest.command(&format!("functions={}", dir.display()));
        let mut qemu = command.arg("forever").stderr(Stdio::null()).spawn().unwrap();
        // The first windows have 256 KiB, 512 KiB, 1 MiB and 2 MiB, so a file of 4 MiB has more than these
        // four windows.
        let bytes = || fs::metadata(guest.records(&dir)).map_or(0, |data| data.len());
        wait_until("a third window", || bytes() >= 4 << 20);
        assert!(kill::kill(&mut qemu));

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
    let data = fs::metadata(guest.records(&dir)).unwrap().len();
    assert!((1 << 19..=1 << 20).contains(&data), "{data}");
    // The directory has the number of lost records, too.
    let summary = Summary::of(&guest.trace(&dir));
    let lost = format!(" {} records lost", summary.lost);
    assert!(ran.stderr.contains(&lost), "{lost}: {}", ran.stderr);
    // When the limit is reached, the plugin writes an exit for each function that is open.
    assert_eq!((summary.orphans, summary.unfinished), (0, 0));
    let calls = summary.function(guest.address("fib")).unwrap().calls;
    uftrace::check(&dir, "fib", calls);
    let (all, _) = guest.run(&folder.path().join("all"), "depth=1000");
    let (found, records) = (2 * summary.calls + summary.lost, 2 * Summary::of(&all).calls);
    assert!(found.abs_diff(records) < 100, "{found} of {records}");

    // The limit leaves no room for the next window, but this short trace does not need the next window.
    let (_, ran) = guest.run(&folder.path().join("short"), "limit=512K,symbol=main");

    assert!(ran.stderr.contains(" 0 records lost"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("limit"), "{}", ran.stderr);
}

fn only_the_functions_of_a_filter_are_recorded(guest: &Guest, folder: &TempDir) {
    let fib = guest.address("fib");
    // The functions are reached in three ways: through a direct call, through a pointer from code that is not
    // recorded, and through a jump from a recorded function.
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
    // `tail` jumps to `leaf`. The trace shows `leaf` as a call from the caller of `tail`, so both have the
    // same caller.
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
    // `main` has no calls in the region, because `main` was called before the region began.
    assert_eq!((count("inner"), count("main")), (Some(7), Some(0)));
    assert_eq!((count("fib"), count("leaf")), (None, None));
    assert!(never.stderr.contains("no region began"), "{}", never.stderr);
    assert_eq!(calls(&Trace::open(&folder.path().join("never")).unwrap()), []);
}

fn code_of_another_level_is_not_recorded(guest: &Guest, folder: &TempDir) {
    let other = format!("level={}", guest.architecture.level ^ 1);

    let (trace, ran) = guest.run(&folder.path().join("trace"), &other);

    assert_eq!((trace.tasks(), Summary::of(&trace).calls), (&[][..], 0));
    assert!(ran.stderr.contains("0 calls"), "{}", ran.stderr);
    let said = format!("no function was recorded: none matched {other}\n");
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
}

fn filters_that_leave_out_all_functions_are_named(guest: &Guest, folder: &TempDir) {
    let filters = ["range=0x10-0x20", "symbol=fib,range=0x10-0x20,min=3600000ms"];
    let named = ["range=0x10-0x20", "symbol=fib, range=0x10-0x20, min=3600000000000ns"];
    for (number, (options, named)) in filters.into_iter().zip(named).enumerate() {
        let (trace, ran) = guest.run(&folder.path().join(number.to_string()), options);

        assert_eq!(Summary::of(&trace).calls, 0, "{options}");
        let said = format!("no function was recorded: none matched {named}\n");
        assert!(ran.stderr.contains(&said), "{options}: {}", ran.stderr);
    }
    let (_, ran) = guest.run(&folder.path().join("some"), "symbol=fib");
    assert!(!ran.stderr.contains("no function was recorded"), "{}", ran.stderr);
}

fn a_function_that_a_filter_names_has_to_be_there(guest: &Guest, folder: &TempDir) {
    let dir = folder.path().join("trace");
    let options = format!("functions={},symbol=fibb", dir.display());

    let ran: Ran = guest.command(&options).output().unwrap().into();

    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("symbol=fibb"), "{}", ran.stderr);
    let left = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.collect::<Vec<_>>(), [] as [PathBuf; 0], "it can be used again");
}

fn on_a_full_disk_the_rest_is_lost_and_counted(guest: &Guest, _: &TempDir) {
    // The disk has room for the first window.
    let Some(disk) = Mount::new("tmpfs", "size=2m") else { return };
    let dir = disk.path().join("trace");

    let ran: Ran = guest.command(&format!("functions={}", dir.display())).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{}", ran.stderr);
    assert!(!ran.stderr.contains(" 0 records lost"), "{}", ran.stderr);
    let summary = Summary::of(&Trace::open(&dir).unwrap());
    assert!(summary.damage.is_empty(), "{:?}", summary.damage);
    let lost = format!(" {} records lost", summary.lost);
    assert!(ran.stderr.contains(&lost), "{lost}: {}", ran.stderr);
    assert_eq!((summary.orphans, summary.unfinished), (0, 0));
    assert!(summary.calls > 20_000, "{}", summary.calls);
}

#[test]
fn functions_of_a_programs_libraries_have_names() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::of_library(folder.path(), "library.c") else { return };
    let dir = folder.path().join("trace");
    let mut command = guest.command(&format!("functions={}", dir.display()));
    // Without LD_BIND_NOW, the first call of each function would be a call of the loader.
    command.env("LD_LIBRARY_PATH", folder.path()).env("LD_BIND_NOW", "1");

    let ran: Ran = command.output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let trace = Trace::open(&dir).unwrap();
    let summary = Summary::of(&trace);
    let calls = |name: &str| {
        let is_named = |at: u64| trace.function(at).is_some_and(|symbol| symbol.name == name);
        let mut all = summary.top(usize::MAX, By::Calls).into_iter();
        all.find(|function| is_named(function.address)).map(|function| function.calls)
    };
    // The program calls functions of its own library, and of the C library.
    assert_eq!(calls("shared_outer"), Some(5));
    // The library calls `shared_work` through the library's own stub.
    assert_eq!(calls("shared_work"), Some(115));
    assert_eq!(calls("exit"), Some(1));
    assert_eq!(calls("main"), Some(1));
}
