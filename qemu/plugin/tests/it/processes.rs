//! Function traces of programs that start threads and processes, and change stacks and code.

use crate::common;
use common::Ran;
use common::traced::{Guest, X86_64};
use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_functions::symbols::{Source, Symbols};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Returns the program, in its own folder, if this machine can compile and run it.
#[track_caller]
fn guest() -> Option<(TempDir, Guest)> {
    let folder = tempfile::tempdir().unwrap();
    let guest = Guest::new(&X86_64, folder.path(), "processes.c")?;
    Some((folder, guest))
}

/// Runs a part of the program. Returns the number of calls of the program's function `work`, and the plugin's
/// output.
#[track_caller]
fn work(guest: &Guest, folder: &Path, part: &str, options: &str) -> (u64, String) {
    let dir = folder.join(part);
    let options = format!("functions={}{options}", dir.display());

    let ran: Ran = guest.command(&options).arg(part).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{part}: {ran:?}");
    let summary = Summary::of(&Trace::open(&dir).unwrap());
    assert_eq!((summary.damage.len(), summary.orphans, summary.lost), (0, 0, 0), "{part}");
    let work = summary.function(guest.address("work"));
    (work.map_or(0, |function| function.calls), ran.stderr)
}

/// Defines a test for each part of the program. A test names the part, the expected number of calls of
/// `work`, and the expected output of the plugin.
macro_rules! parts {
    ($($test:ident: $part:literal, $calls:pat, $said:expr;)*) => {$(
        #[test]
        fn $test() {
            let Some((folder, guest)) = guest() else { return };

            let (calls, said) = work(&guest, folder.path(), $part, "");

            assert!(matches!(calls, $calls), "{calls}");
            let expected: &[&str] = &$said;
            assert!(expected.iter().all(|expected| said.contains(expected)), "{said}");
        }
    )*};
}

const NONE_LOST: &str = " 0 misses, 0 records lost";

parts! {
    child_processes_are_counted_and_leave_the_parents_records_alone:
        "fork", 300, ["6 child processes are not recorded", NONE_LOST];
    what_was_recorded_before_exec_is_read: "exec", 700, [];
    code_that_changes_itself_is_recorded: "code", 500, [NONE_LOST];
    recursion_beyond_the_bound_is_counted:
        "deep", 1..1023, ["calls deeper than 1,023 functions are not recorded", NONE_LOST];
    stacks_without_end_are_forgotten_and_counted: "stacks", 1000, ["stacks were forgotten"];
    a_signal_that_all_threads_of_the_program_block_is_not_taken_by_the_plugins:
        "blocked", 1_000, [];
}

#[test]
fn threads_have_tracks_of_their_own() {
    let Some((folder, guest)) = guest() else { return };

    let (calls, said) = work(&guest, folder.path(), "threads", "");

    assert_eq!(calls, 3 * 8 * 1000);
    assert!(said.contains(" 0 misses, 0 records lost"), "{said}");
    let trace = Trace::open(&folder.path().join("threads")).unwrap();
    // A later thread may get the id of a thread that has ended. Both threads are then one task, so the trace
    // may have fewer tasks than the program had threads.
    assert!((2..=9).contains(&trace.tasks().len()), "{:?}", trace.tasks());
}

#[test]
fn an_atomic_instruction_after_a_call_is_no_call() {
    let Some((folder, guest)) = guest() else { return };

    let (_, said) = work(&guest, folder.path(), "atomics", "");

    assert!(said.contains(" 0 misses, 0 records lost"), "{said}");
    let summary = Summary::of(&Trace::open(&folder.path().join("atomics")).unwrap());
    let top = summary.top(2, By::Calls).into_iter().map(|top| (top.address, top.calls));
    // Apart from `count`, no function has as many calls as `work`.
    let expected = [(guest.address("count"), 3000), (guest.address("work"), 1000)];
    assert_eq!(Vec::from_iter(top), expected);
}

#[test]
fn files_that_a_program_opens_in_place_of_all_that_it_closed_are_its_own() {
    let Some((folder, guest)) = guest() else { return };
    let dir = folder.path().join("trace");
    let mut command = guest.command(&format!("functions={}", dir.display()));

    let ran: Ran = command.arg("close").arg(folder.path()).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = Summary::of(&Trace::open(&dir).unwrap());
    assert_eq!(summary.function(guest.address("work")).unwrap().calls, 100_000);
    assert!(ran.stderr.contains(" 0 misses, 0 records lost"), "{}", ran.stderr);
}

#[test]
fn a_relative_directory_is_the_one_at_the_start() {
    let Some((folder, guest)) = guest() else { return };
    let mut command = guest.command("functions=trace");

    let ran: Ran = command.arg("elsewhere").current_dir(folder.path()).output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let trace = Trace::open(&folder.path().join("trace")).unwrap();
    let work = Summary::of(&trace).function(guest.address("work")).unwrap().calls;
    assert_eq!((trace.tasks().len(), work), (2, 1_000));
}

#[test]
fn a_limit_of_files_ends_the_records_and_not_the_program() {
    let Some((folder, guest)) = guest() else { return };

    let dir = folder.path().join("trace");
    let mut command = guest.command(&format!("functions={}", dir.display()));
    let ran: Ran = command.arg("limited").output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("File too large"), "{}", ran.stderr);
}

#[test]
fn a_limit_of_files_at_the_start_is_no_signal() {
    let Some((folder, guest)) = guest() else { return };
    // The limits are in units of 512 bytes. With the first limit, no file has room. With the second limit,
    // the file of names has no room. With the third limit, a file of records has no room.
    for (limit, code) in [(0, 1), (16, 1), (400, 0)] {
        let dir = folder.path().join(limit.to_string());
        let traced = guest.command(&format!("functions={}", dir.display()));
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f $0; exec \"$@\"", &limit.to_string()]);
        command.arg(traced.get_program()).args(traced.get_args());

        let ran: Ran = command.arg("threads").output().unwrap().into();

        assert_eq!(ran.code, Some(code), "{limit}: {ran:?}");
        // The plugin measures the directory's own files before it writes them.
        let is_said = ["File too large", "RLIMIT_FSIZE"].iter().any(|why| ran.stderr.contains(why));
        assert!(is_said, "{limit}: {ran:?}");
    }
}

#[test]
fn a_stderr_that_takes_nothing_does_not_end_the_program() {
    let Some((folder, guest)) = guest() else { return };
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (reader, broken) = std::io::pipe().unwrap();
    drop(reader);
    for (number, stderr) in [full.into(), std::process::Stdio::from(broken)].into_iter().enumerate()
    {
        let dir = folder.path().join(number.to_string());
        let mut command = guest.command(&format!("functions={}", dir.display()));
        // The argument is not text.
        let other = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff");

        let ended = command.arg("threads").arg(other).stderr(stderr).status().unwrap();

        assert_eq!(ended.code(), Some(0), "{number}");
        let summary = Summary::of(&Trace::open(&dir).unwrap());
        assert_eq!(summary.function(guest.address("work")).unwrap().calls, 24_000);
    }
}

#[test]
fn functions_of_a_library_have_all_their_calls() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = Guest::of_library(folder.path(), "library.c") else { return };
    let library = folder.path().join("liblibrary.so");
    // An emulated program's libraries have the same addresses each time. Without LD_BIND_NOW, the loader
    // would bind a function at its first call, and this call would not count as a call of the function.
    let bind = |mut command: Command| -> Ran {
        command
            .env("LD_BIND_NOW", "1")
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .unwrap()
            .into()
    };
    let plain = bind({
        let mut command = Command::new(&guest.qemu);
        command.arg(&guest.program);
        command
    });
    let at = plain.stdout.rsplit("0x").next().unwrap().trim().to_owned();
    let symbols = Symbols::read(&Source { path: library.clone(), offset: 0 }).unwrap();
    let own = symbols.iter().find(|symbol| symbol.name == "shared_work").unwrap().address;
    let base = u64::from_str_radix(&at, 16).unwrap() - own;
    for filter in ["depth=1000", "symbol=shared_*"] {
        let dir = folder.path().join(filter.replace(['=', '*'], "_"));
        let names = format!("symbols={}:{base:#x}", library.display());

        let ran = bind(guest.command(&format!("functions={},{names},{filter}", dir.display())));

        assert_eq!(ran.code, Some(0), "{ran:?}");
        let summary = Summary::of(&Trace::open(&dir).unwrap());
        let calls = |name: &str| {
            let symbol = symbols.iter().find(|symbol| symbol.name == name).unwrap();
            summary.function(base + symbol.address).map(|function| function.calls)
        };
        assert_eq!((calls("shared_work"), calls("shared_outer")), (Some(115), Some(5)), "{filter}");
    }
}
