//! Directories that are written, cut and read.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::{capability, functions as data, this_test};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use data::{KERNEL, PROGRAM};
use hypertrace_functions::Task;
use hypertrace_functions::read::{By, Caller, Function, Summary, Trace};
use hypertrace_functions::record::ADDRESS_MASK;
use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_functions::write::{Directory, Records, Removed, WINDOW, cut};
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[test]
fn a_directory_is_read_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::open(&data::write(folder.path())).unwrap();

    let names: Vec<_> = trace.tasks().iter().map(|task| (task.tid, task.name.as_str())).collect();
    assert_eq!(names, [(100, "cpu0 Ring0"), (103, "cpu0 Ring3"), (200, "cpu1 Ring0")]);
    assert_eq!(trace.function(KERNEL + 0x123).unwrap().name, "do_it");
    assert_eq!(trace.function(PROGRAM + 0x2ff).unwrap().name, "longjmp@guest");
    assert_eq!(trace.function(PROGRAM + 0x400), None);
    let records: Vec<_> = trace.records(100).unwrap().map(Result::unwrap).collect();
    assert_eq!(records.len(), 4);
    assert_eq!((records[1].time, records[1].depth), (2500, 1));
    assert_eq!(trace.records(200).unwrap().count(), 0);
    assert_eq!(trace.anchor(), Some(&data::anchor()));
}

#[test]
fn a_directory_of_another_recorder_has_no_anchor() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    fs::remove_file(path.join("hypertrace.json")).unwrap();

    let trace = Trace::open(&path).unwrap();

    assert_eq!(trace.anchor(), None);
}

#[test]
fn calls_and_times_are_added_up_by_function_and_caller() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::open(&data::write(folder.path())).unwrap();

    let summary = Summary::of(&trace);

    assert!(summary.damage.is_empty());
    assert_eq!((summary.calls, summary.unfinished, summary.orphans), (7, 0, 0));
    let main =
        Function { address: PROGRAM, calls: 1, total: 9000, self_time: 5500, min: 9000, max: 9000 };
    assert_eq!(summary.function(PROGRAM), Some(&main));
    // The inner call adds only its own time to the function's total, because the outer call already contains
    // the inner call.
    let fib = PROGRAM + 0x300;
    let sums =
        Function { address: fib, calls: 2, total: 2000, self_time: 2000, min: 1000, max: 2000 };
    assert_eq!(summary.function(fib), Some(&sums));
    let callers = [
        Caller { function: Some(PROGRAM), calls: 1, total: 2000 },
        Caller { function: Some(fib), calls: 1, total: 0 },
    ];
    assert_eq!(summary.callers(fib), callers);
    let addresses = |by| summary.top(2, by).iter().map(|top| top.address).collect::<Vec<_>>();
    assert_eq!(addresses(By::Total), [PROGRAM, KERNEL & ADDRESS_MASK]);
    assert_eq!(addresses(By::Calls)[0], fib);
}

#[test]
fn a_call_has_the_path_of_all_functions_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::open(&data::write(folder.path())).unwrap();
    let mut calls = trace.calls(103).unwrap();

    let ended: Vec<_> = (&mut calls).map(Result::unwrap).collect();

    let fib = PROGRAM + 0x300;
    assert_eq!(calls.path(ended[2].path), [PROGRAM, fib, fib]);
    assert_eq!(calls.path(ended[4].path), [PROGRAM]);
}

#[test]
fn each_address_within_a_function_counts_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    // The record has the address of an instruction within the function, as after an indirect call.
    data::append(
        &path.join("200.dat"),
        &[(10, '+', 0, KERNEL + 0x108), (20, '-', 0, KERNEL + 0x108)],
    );

    let summary = Summary::of(&Trace::open(&path).unwrap());

    assert_eq!(summary.function((KERNEL + 0x100) & ADDRESS_MASK).unwrap().calls, 2);
}

#[test]
fn calls_without_an_exit_end_with_their_caller_or_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let records = [
        (5, '-', 3, 7),
        (10, '+', 0, 1),
        (20, '+', 1, 2),
        (30, '+', 1, 3),
        (40, '-', 0, 1),
        (50, '+', 0, 4),
        (60, '+', 1, 5),
    ];
    data::append(&path.join("200.dat"), &records);
    let trace = Trace::open(&path).unwrap();

    let calls: Vec<_> = trace.calls(200).unwrap().map(Result::unwrap).collect();

    let ended: Vec<_> =
        calls.iter().map(|call| (call.function, call.start, call.end, call.has_exit)).collect();
    let expected = [
        (2, 20, 30, false),
        (3, 30, 40, false),
        (1, 10, 40, true),
        (5, 60, 60, false),
        (4, 50, 60, false),
    ];
    assert_eq!(ended, expected);
    assert_eq!(Summary::of(&trace).orphans, 1);
}

#[test]
fn an_exit_with_its_callers_depth_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    // QEMU's own plugin writes exits like these.
    let records = [(10, '+', 1, 1), (20, '+', 2, 2), (30, '-', 1, 2), (40, '-', 0, 1)];
    data::append(&path.join("200.dat"), &records);
    let trace = Trace::open(&path).unwrap();

    let calls: Vec<_> = trace.calls(200).unwrap().map(Result::unwrap).collect();

    let ended: Vec<_> = calls.iter().map(|call| (call.function, call.end, call.has_exit)).collect();
    assert_eq!(ended, [(2, 30, true), (1, 40, true)]);
}

#[test]
fn a_directory_that_is_not_empty_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());

    let error = Directory::create(&path, "", "").unwrap_err();

    assert!(error.is_bad_input());
    assert!(error.to_string().ends_with("not empty: give the path of a new or an empty directory"));
}

#[test]
fn a_directory_of_something_else_is_named() {
    let folder = tempfile::tempdir().unwrap();

    let error = Trace::open(folder.path()).unwrap_err();

    assert!(error.is_bad_input());
    assert!(error.to_string().contains("no file `info` in it: neither a function trace"));
}

#[test]
fn only_its_user_can_read_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    // Before the test, other users can read the directory.
    fs::create_dir(folder.path().join("trace")).unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path().join("trace"), open).unwrap();

    let path = data::write(folder.path());

    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for file in fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), open).unwrap();
    if !give_away(folder.path(), this_test!()) {
        return;
    }

    let error = Directory::create(folder.path(), "", "").unwrap_err();

    assert!(error.to_string().contains("of another user"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Gives a file to another user. Returns false if this user may not change the owner, because only root may.
fn give_away(path: &Path, test: &str) -> bool {
    const NOBODY: u32 = 65_534;
    if let Err(why) = lchown(path, Some(NOBODY), None) {
        capability::missing("second-user", format!("{why}; not run: {test}"));
        return false;
    }
    capability::used("second-user");
    true
}

#[test]
fn another_users_link_to_a_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [own, link] = ["own", "link"].map(|name| folder.path().join(name));
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&own, &link).unwrap();
    if !give_away(&link, this_test!()) {
        return;
    }

    let error = Directory::create(&link, "", "").unwrap_err();

    assert!(error.to_string().contains("of another user"), "{error}");
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

/// Makes a directory of one task.
fn taking(path: &Path) -> Directory {
    let mut directory = Directory::create(path, "", "").unwrap();
    directory.add_tasks([Task { tid: 100, name: "x".into() }]).unwrap();
    directory
}

#[test]
fn records_by_a_symbolic_link_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = data::write(folder.path());
    fs::rename(from.join("100.dat"), from.join("records")).unwrap();
    symlink("records", from.join("100.dat")).unwrap();
    let to = folder.path().join("taken");

    let error = taking(&to).take_records(100, &from.join("100.dat")).unwrap_err();

    assert!(error.to_string().ends_with("it is a link, not a regular file"), "{error}");
    assert_eq!(fs::read(to.join("100.dat")).unwrap(), b"");
}

#[test]
fn a_part_of_a_record_that_is_not_taken_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let from = data::write(folder.path()).join("100.dat");
    let bytes = fs::read(&from).unwrap();
    fs::write(&from, &bytes[..bytes.len() - 3]).unwrap();
    let to = folder.path().join("taken");

    let said = taking(&to).take_records(100, &from).unwrap();

    let [said] = &said[..] else { panic!("{said:?}") };
    let why = "100.dat: damaged at byte 48: the file ends within a record";
    assert!(said.ends_with(why) && said.is_bad_input(), "{said}");
    assert_eq!(fs::read(to.join("100.dat")).unwrap(), bytes[..48]);
}

#[test]
fn another_users_records_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let from = data::write(folder.path()).join("100.dat");
    if !give_away(&from, this_test!()) {
        return;
    }
    let to = folder.path().join("taken");

    taking(&to).take_records(100, &from).unwrap();

    assert_eq!(fs::read(to.join("100.dat")).unwrap(), fs::read(&from).unwrap());
    assert_eq!(fs::metadata(&from).unwrap().nlink(), 1);
}

#[test]
fn a_pipe_in_the_place_of_records_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("100.dat");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(Records::append(&pipe).is_err());
    // A pipe that has a reader can be opened for writing, but is not a regular file.
    let _reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();

    let error = Records::append(&pipe).unwrap_err();

    assert!(error.to_string().ends_with("it is a pipe, not a regular file"), "{error}");
}

#[test]
fn names_of_too_many_functions_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let line = |number: u64| format!("{:x} T {number}{}\n", 0x1000 + number, "x".repeat(4_000));
    fs::write(&list, Vec::from_iter((0..20_000).map(line)).concat()).unwrap();
    let symbols = Symbols::read(&Source { path: list, offset: 0 }).unwrap();
    let path = folder.path().join("trace");
    let mut directory = Directory::create(&path, "", "").unwrap();
    directory.add_tasks([Task { tid: 1, name: "x".into() }]).unwrap();

    directory.set_module("program", &symbols).unwrap();
    directory.set_module("program", &symbols).unwrap();

    let left_out = directory.names_left_out();
    assert!((1..10_000).contains(&left_out), "{left_out}");
    let trace = Trace::open(&path).unwrap();
    let (_, names) = trace.modules().next().unwrap();
    assert_eq!(names.len() + left_out, symbols.len());
}

#[test]
fn a_number_of_a_task_is_used_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = Directory::create(folder.path(), "", "").unwrap();
    let mut add = |tid| directory.add_tasks([Task { tid, name: "x".into() }]);

    add(1).unwrap();

    for tid in [1, 0, u32::MAX] {
        assert!(add(tid).unwrap_err().is_bad_input(), "{tid}");
    }
}

/// Extends a file with zeros, as in the window of a killed recorder.
fn extend(path: &Path, bytes: u64) {
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() + bytes).unwrap();
}

#[test]
fn a_killed_recorders_zeros_are_ignored_and_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let records = path.join("100.dat");
    extend(&records, WINDOW);
    extend(&path.join("200.dat"), 2 * WINDOW);
    let calls = Summary::of(&Trace::open(&path).unwrap()).calls;

    let removed = cut(&path).unwrap();

    assert_eq!(removed, Removed { files: 2, bytes: 3 * WINDOW });
    assert_eq!(fs::metadata(&records).unwrap().len(), 4 * 16);
    assert_eq!(fs::metadata(path.join("200.dat")).unwrap().len(), 0);
    assert_eq!(Summary::of(&Trace::open(&path).unwrap()).calls, calls);
    assert_eq!(cut(&path).unwrap(), Removed::default());
}

#[test]
fn a_part_of_a_record_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let records = path.join("100.dat");
    // A kill between the two stores of a record leaves only the first half of the record, which is the time.
    let mut bytes = fs::read(&records).unwrap();
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend([0; 1000]);
    fs::write(&records, bytes).unwrap();

    cut(&path).unwrap();

    assert_eq!(fs::metadata(&records).unwrap().len(), 4 * 16);
}

#[test]
fn more_zeros_than_a_recorder_leaves_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    extend(&path.join("100.dat"), 5 * WINDOW);

    let error = cut(&path).unwrap_err();

    assert!(error.to_string().contains("100.dat: damaged at byte"), "{error}");
}

#[test]
fn entries_of_a_stack_that_is_in_use_again_are_no_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let records = [
        (10, '+', 0, 1),
        (20, '+', 1, 2),
        // The guest has changed to another stack.
        (30, '-', 1, 2),
        (30, '-', 0, 1),
        // The guest uses the first stack again: at 40 it calls a third function there, and at 60 the second
        // function returns.
        (40, '+', 0, 1),
        (40, '+', 1, 2),
        (40, '+', 2, 3),
        (50, '-', 2, 3),
        (50, '-', 1, 2),
        (50, '-', 0, 1),
        (60, '+', 0, 1),
        (60, '+', 1, 2),
        (60, '-', 1, 2),
        (70, '-', 0, 1),
    ];
    data::append(&path.join("200.dat"), &records);

    let summary = Summary::of(&Trace::open(&path).unwrap());

    let sums = |address| {
        let function = summary.function(address).unwrap();
        (function.calls, function.total, function.self_time)
    };
    assert_eq!([sums(1), sums(2), sums(3)], [(1, 40, 20), (1, 20, 10), (1, 10, 10)]);
}
