//! Directories with any contents. The reader returns an error or a part of the trace, never panics, and needs
//! only bounded memory.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::functions as data;
use std::fs;
use std::path::{Path, PathBuf};

use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_functions::write::cut;
use proptest::prelude::*;

const FILES: [&str; 7] = [
    "info",
    "task.txt",
    "sid-0000000000000001.map",
    "kernel.sym",
    "100.dat",
    "103.dat",
    "hypertrace.json",
];

/// Reads everything. Asserts that each error says that the files are bad input.
fn read(path: &Path) {
    match Trace::open(path) {
        Ok(trace) => {
            let summary = Summary::of(&trace);
            for error in &summary.damage {
                assert!(error.is_bad_input(), "{error}");
            }
            assert!(summary.calls <= 14, "{} calls", summary.calls);
        }
        Err(error) => assert!(error.is_bad_input(), "{error}"),
    }
    let _ = cut(path);
}

fn trace() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    (folder, path)
}

#[test]
fn a_file_may_be_cut_anywhere() {
    let (_folder, path) = trace();
    for file in FILES {
        let file = path.join(file);
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            read(&path);
        }
        fs::write(&file, whole).unwrap();
    }
}

#[test]
fn a_long_name_of_many_tasks_is_cut() {
    let (_folder, path) = trace();
    let session = format!("SESS timestamp=0 pid=1 sid=1 exename=\"{}\"\n", "a".repeat(1 << 20));
    let tasks = (1..60_000).map(|tid| format!("TASK timestamp=0 tid={tid} pid=1\n"));
    fs::write(path.join("task.txt"), session + &tasks.collect::<String>()).unwrap();
    fs::rename(path.join("sid-0000000000000001.map"), path.join("sid-1.map")).unwrap();

    let trace = Trace::open(&path).unwrap();

    assert!(trace.tasks().iter().all(|task| task.name.len() == 255));
}

#[test]
fn links_to_one_large_map_are_refused() {
    let (_folder, path) = trace();
    let sessions = (1..5).map(|n| format!("SESS timestamp=0 pid={n} sid={n} exename=\"x\"\n"));
    fs::write(path.join("task.txt"), sessions.collect::<String>()).unwrap();
    fs::write(path.join("sid-1.map"), "0-1\n".repeat(2 << 20)).unwrap();
    for n in 2..5 {
        fs::hard_link(path.join("sid-1.map"), path.join(format!("sid-{n}.map"))).unwrap();
    }

    let error = Trace::open(&path).unwrap_err();

    assert!(error.is_bad_input() && error.to_string().contains("16 MiB"), "{error}");
}

#[test]
fn each_byte_may_be_another_one() {
    let (_folder, path) = trace();
    for file in FILES {
        let file = path.join(file);
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                fs::write(&file, bytes).unwrap();
                read(&path);
            }
        }
        fs::write(&file, whole).unwrap();
    }
}

#[test]
fn a_file_may_be_missing_or_a_directory() {
    for file in FILES {
        let (_folder, path) = trace();
        fs::remove_file(path.join(file)).unwrap();
        read(&path);
        fs::create_dir(path.join(file)).unwrap();
        read(&path);
    }
}

#[test]
fn damage_is_named_with_file_byte_and_reason() {
    let (_folder, path) = trace();
    let records = path.join("100.dat");
    let mut bytes = fs::read(&records).unwrap();
    bytes[2 * 16 + 8] = 0;
    fs::write(&records, bytes).unwrap();

    let summary = Summary::of(&Trace::open(&path).unwrap());

    let expected = format!(
        "{}: damaged at byte 32: no record: the mark is 0, not 5 (16 bytes at 1 place are left out)",
        records.display()
    );
    assert_eq!(summary.damage[0].to_string(), expected);
    // In the damaged task, one call has lost its exit. The other task has all its records.
    assert_eq!((summary.calls, summary.unfinished), (7, 1));
}

#[test]
fn numbers_in_files_do_not_decide_about_memory() {
    let (_folder, path) = trace();
    let info = fs::read(path.join("info")).unwrap();
    let tids: Vec<_> = (1..100_000).map(|tid: u32| tid.to_string()).collect();
    let many = [&info[..40], b"taskinfo:tids=", tids.join(",").as_bytes(), b"\n"].concat();
    fs::write(path.join("info"), many).unwrap();

    let error = Trace::open(&path).unwrap_err().to_string();

    assert!(error.contains("info: damaged at byte 40"), "{error}");
    fs::write(path.join("info"), info).unwrap();
    let file = fs::File::create(path.join("kernel.sym")).unwrap();
    file.set_len(1 << 40).unwrap();
    let trace = Trace::open(&path).unwrap();
    let [said] = trace.warnings() else { panic!("{:?}", trace.warnings()) };
    assert!(said.contains("kernel.sym: more than") && said.is_bad_input(), "{said}");
}

#[test]
fn a_wrong_anchor_is_named() {
    for (right, wrong, named) in [
        ("hypertrace-functions", "hypertrace-session", "found \"hypertrace-session\""),
        ("\"version\":1", "\"version\":2", "version 2"),
        ("2500000000", "999", "found 999"),
        ("01234567-", "0123456-", "8-4-4-4-12"),
        ("5000000000", "-1", "invalid value"),
        ("}", "", "EOF"),
    ] {
        let (_folder, path) = trace();
        let file = path.join("hypertrace.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(right, wrong)).unwrap();

        let error = Trace::open(&path).unwrap_err();

        assert!(error.is_bad_input());
        let said = error.to_string();
        assert!(said.contains("hypertrace.json: ") && said.contains(named), "{said}");
    }
}

#[test]
fn a_session_cannot_name_a_file_elsewhere() {
    let (_folder, path) = trace();
    let text = fs::read_to_string(path.join("task.txt")).unwrap();
    fs::write(path.join("task.txt"), text.replace("sid=0", "sid=../0")).unwrap();

    let error = Trace::open(&path).unwrap_err().to_string();

    assert!(error.contains("task.txt: damaged at byte 0"), "{error}");
}

proptest! {
    #[test]
    fn any_lines_are_symbols_or_an_error(text in "([0-9a-f]{0,17} ?[TtWwD?0-9]{0,9} ?[a-z]{0,9}\t?\n?){0,20}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("symbols");
        fs::write(&path, text).unwrap();
        match Symbols::read(&Source { path, offset: u64::MAX }) {
            Ok(symbols) => prop_assert!(!symbols.is_empty()),
            Err(error) => prop_assert!(error.is_bad_input()),
        }
    }

    #[test]
    fn any_bytes_are_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (_folder, path) = trace();
        fs::write(path.join("200.dat"), bytes).unwrap();
        let summary = Summary::of(&Trace::open(&path).unwrap());
        prop_assert!(summary.damage.len() <= 1);
    }
}
