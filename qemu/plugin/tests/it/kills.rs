//! Machines that end in the middle of a function trace, because SIGKILL or a virtual CPU ends QEMU. A reader
//! can read everything that was written before.

use crate::common;
use common::machine::{AARCH64, AARCH64_7, Ready, X86_64_7};
use common::uftrace::{Reader, is_unfinished};
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::record::SIZE;
use hypertrace_test_support::{kill, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn what_a_killed_machine_has_written_is_read() {
    let Some(machine) = X86_64_7.with("functions.c", &["-static"]) else { return };
    let mut last: Option<PathBuf> = None;
    // A kill may leave a file without records, because the recorder prepares a file before the first record.
    kill::sweep(
        3,
        Duration::from_millis(40),
        |n| started(&machine, n),
        |(_, qemu)| kill::kill(qemu),
        |(dir, _)| {
            check(&dir);
            if let Some(dir) = last.replace(dir) {
                fs::remove_dir_all(dir).unwrap();
            }
        },
    );
    let Some(reader) = Reader::new("uftrace-forky") else { return };
    let report = reader.read("report", &last.unwrap(), is_unfinished);
    assert!(report.contains("Total time"), "{report}");
}

/// Boots a machine with one or two virtual CPUs, and waits for a moment in the boot. The index of the kill
/// determines the moment and the number of virtual CPUs.
#[track_caller]
fn started(machine: &Ready, kill: u64) -> (PathBuf, Child) {
    let (bytes, cpus) = ((1 + kill * 7 % 60) * MIB, 1 + kill as u32 % 2);
    let dir = machine.file(&format!("trace{kill}"));
    let plugin = machine.plugin(&format!("functions={}", dir.display()));
    let mut command = machine.command(cpus, "", &[&plugin]);
    let qemu = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let size = |file: &PathBuf| fs::metadata(file).unwrap().len();
    wait_until("records", || records(&dir).iter().map(size).sum::<u64>() >= bytes);
    (dir, qemu)
}

/// Checks that the trace of a killed machine has everything that was written.
#[track_caller]
fn check(dir: &Path) {
    let trace = Trace::open(dir).unwrap();
    let summary = Summary::of(&trace);

    assert!(summary.damage.is_empty(), "{:?}", summary.damage);
    assert_eq!((summary.orphans, summary.lost), (0, 0));
    let written: u64 = records(dir).iter().map(|file| written(file)).sum();
    let tasks = trace.tasks().iter();
    let read: usize = tasks.map(|task| trace.records(task.tid).unwrap().count()).sum();
    assert_eq!(read as u64, written);
    assert!(written > 1_000, "{written}");
}

#[test]
fn a_machine_that_one_of_its_cpus_ends_has_a_trace() {
    each_ended_by_its_first_cpu(&["-DOWN_RECORDS"]);
}

#[test]
fn a_machine_that_a_cpu_without_records_ends_has_a_trace() {
    each_ended_by_its_first_cpu(&[]);
}

#[test]
fn a_machine_that_one_of_its_cpus_ends_is_complete_if_they_share_a_thread() {
    for machine in [&AARCH64, &AARCH64_7] {
        let Some(bare) = machine.bare("semihosting.S", &["-DOWN_RECORDS"]) else { continue };
        let dir = bare.folder.path().join("trace");

        let ran = bare.run("single", &format!("functions={}", dir.display()));

        assert!(ran.stderr.contains("virtual CPUs share a thread"), "{ran:?}");
        assert!(ran.stderr.contains(" calls, 0 misses, 0 records lost"), "{ran:?}");
        let summary = Summary::of(&Trace::open(&dir).unwrap());
        assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    }
}

#[test]
fn a_limit_of_files_is_no_signal_at_the_end_of_a_machine() {
    // In this test, QEMU's main thread ends the trace. The main thread is the only thread of QEMU that does
    // not block all signals.
    let Some(bare) = AARCH64_7.bare("semihosting.S", &["-DSYSTEM_OFF"]) else { return };
    let dir = bare.folder.path().join("trace");

    // The limit leaves room for two windows of records, and no room for the last record, which says how many
    // records were lost.
    let ran = bare.run_within("1536", "multi", &format!("functions={}", dir.display()));

    assert!(ran.stderr.contains("File too large"), "{ran:?}");
    assert!(!ran.stderr.contains(" 0 records lost"), "{ran:?}");
    assert!(Summary::of(&Trace::open(&dir).unwrap()).damage.is_empty());
}

/// For each QEMU, lets one virtual CPU end QEMU while another virtual CPU calls functions.
#[track_caller]
fn each_ended_by_its_first_cpu(options: &[&str]) {
    for machine in [&AARCH64, &AARCH64_7] {
        let Some(bare) = machine.bare("semihosting.S", options) else { continue };
        let dir = bare.folder.path().join("trace");

        let ran = bare.run("multi", &format!("functions={}", dir.display()));

        assert!(ran.stderr.contains("a virtual CPU has ended QEMU while others ran"), "{ran:?}");
        let summary = Summary::of(&Trace::open(&dir).unwrap());
        assert!(summary.damage.is_empty(), "{:?}", summary.damage);
        assert_eq!((summary.orphans, summary.lost), (0, 0));
        assert!(summary.calls > 1_000, "{}", summary.calls);
    }
}

/// Returns the files of records in a directory.
fn records(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "dat")).collect()
}

/// Returns the number of records in a file whose last bytes are zeros.
fn written(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last / SIZE + 1) as u64
}
