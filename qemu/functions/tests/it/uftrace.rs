//! uftrace reads directories of this crate: counts, times, depths and names.

use hypertrace_test_support::{capability, functions as data, uftrace as reader};
use std::fs;

use hypertrace_functions::Task;
use hypertrace_functions::write::{Directory, WINDOW};
use reader::{READERS, output, outputs};

#[test]
fn report_has_the_calls_and_times_of_each_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());

    for lines in outputs(&["report"], &path, "") {
        assert_eq!(
            lines[2..],
            [
                "9.000 us 5.500 us 1 main",
                "8.000 us 5.000 us 1 start_kernel",
                "3.000 us 3.000 us 1 do_it",
                "2.000 us 2.000 us 2 fib",
                "1.000 us 1.000 us 1 work",
                "0.500 us 0.500 us 1 longjmp@guest",
            ]
        );
    }
    for lines in outputs(&["report", "--task"], &path, "") {
        assert_eq!(
            lines[2..],
            ["9.000 us 9.000 us 103 5 cpu0 Ring3", "8.000 us 8.000 us 100 2 cpu0 Ring0"]
        );
    }
}

#[test]
fn replay_has_functions_in_order_with_events_among_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());

    for lines in outputs(&["replay"], &path, "") {
        assert_eq!(
            lines[1..],
            [
                "[ 103] | main() {",
                "[ 103] | /* external-data: first event */",
                "[ 100] | start_kernel() {",
                "[ 103] | work() {",
                "[ 100] | do_it() {",
                "1.000 us [ 103] | } /* work */",
                "[ 103] | /* external-data: second event */",
                "0.500 us [ 103] | longjmp@guest();",
                "[ 103] | fib() {",
                "[ 103] | fib() {",
                "3.000 us [ 100] | } /* do_it */",
                "1.000 us [ 103] | } /* fib */",
                "2.000 us [ 103] | } /* fib */",
                "8.000 us [ 100] | } /* start_kernel */",
                "9.000 us [ 103] | } /* main */",
            ]
        );
    }
}

#[test]
fn dump_has_each_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());

    for lines in outputs(&["dump"], &path, "") {
        let records: Vec<_> = lines.iter().filter(|line| line.contains("depth:")).collect();
        assert_eq!(records.len(), 14);
        assert_eq!(records[1], "0.000002500 100: [entry] do_it(ffff81000100) depth: 1");
        assert_eq!(records[13], "0.000010000 103: [exit ] main(401000) depth: 0");
    }
}

#[test]
fn graph_has_callers_and_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());

    for lines in outputs(&["graph"], &path, "") {
        let has = |end: &str| lines.iter().any(|line| line.ends_with(end));
        assert!(has("(1) main") && has("(1) fib") && has("(1) start_kernel"), "{lines:#?}");
    }
}

#[test]
fn a_killed_recorders_directory_is_read_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let records = fs::File::options().append(true).open(path.join("100.dat")).unwrap();
    records.set_len(WINDOW).unwrap();

    for lines in outputs(&["report"], &path, "WARN: invalid rstack read") {
        assert_eq!(lines[3], "8.000 us 5.000 us 1 start_kernel");
    }
}

#[test]
fn a_directory_without_records_has_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut directory = Directory::create(&path, "a guest", "qemu").unwrap();
    directory.add_tasks([Task { tid: 100, name: "cpu0 Ring0".into() }]).unwrap();

    for name in READERS {
        let Some(output) = output(name, &["report"], &path) else { continue };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.trim().ends_with(": No data available"), "{name}: {said}");
        capability::used(name);
    }
}
