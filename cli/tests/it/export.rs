//! `hypertrace export --to json` and `--to csv`: files of events for other programs.

use hypertrace_test_support::trace_dat::{self, Page, TraceDat};
use hypertrace_test_support::{made, wait_until};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::interrupt::{self, with_default_signals};
use hypertrace_tests::namespace::Mount;
use made::*;
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Texts that end a value, a row or a quote, and formulas.
const HOSTILE: [&str; 8] =
    ["a,b", "a\"b", "a\nb\r", "=1+1", "\u{ff1d}1", "@SUM(A1)", "a\x1b[31m\u{202e}", "\\\"',"];

fn session() -> Made {
    let mut guest = Packet::guest(0).lease(10_000, 7, "wor\x1bker");
    guest = guest.event(20_000, DISK_READ, &[5, u64::MAX]);
    for (at, text) in (50_000..).zip(HOSTILE) {
        guest = guest.event_str(at, OPENED, &[], text.as_bytes());
    }
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]).point(
        41_000,
        0,
        1,
        GUEST_BASE + 30_000,
        77,
    );
    Made::new()
        .stream("guest-000-0000", &[Packet::guest(0), guest])
        .stream("host-003-0000", &[Packet::host(3), host])
}

/// Runs an export to stdout.
fn exported(session: &Path, format: &str, options: &[&str]) -> String {
    let mut export = HYPERTRACE.command(["export", "-o", "-", "--to", format]);
    run(export.arg(session).args(options)).ok()
}

#[test]
fn a_session_is_rows_and_lines() {
    let commands = [
        "export S --to csv -o -",
        "export S --to csv -o - --event disk_*",
        "export S --to json -o - --where lba>1 --from 10us --until 1ms",
        "export S --to csv -o - --event nothing",
        "export S --to uftrace -o U --where sector>1",
        "export S --to trace-cmd -o U",
        "export S --to csv -o S",
        "export S --to csv -o none/s.csv",
    ];
    golden("rows", HYPERTRACE.transcript(&[session()], &commands));
}

#[test]
fn lines_are_those_of_the_report() {
    let session = session();
    let report = run(HYPERTRACE.command(["report", "--json"]).arg(session.path())).ok();
    assert_eq!(exported(session.path(), "json", &[]), report);
    assert_eq!(
        exported(session.path(), "json", &["--client", "0", "--until", "30us"]),
        run(HYPERTRACE.command(["report", "--json", "-c0", "--until", "30us"]).arg(session.path()))
            .ok()
    );
}

#[test]
fn each_format_says_what_a_kernels_trace_has_that_nobody_can_read() {
    let made = Made::of_boot(Some(BOOT)).stream("host-003-0000", &[Packet::host(3)]);
    let page = Page::at(1_000_000).mmio(1_000, 43, 0x17).event(1_000, 9_999, 43, &[0; 16]);
    made.kernel(&TraceDat::new("x86-tsc").option(trace_dat::recorded(BOOT, 0)).cpu(&[page]));
    let folder = tempfile::tempdir().unwrap();
    for format in ["json", "csv", "perfetto", "ctf"] {
        let mut export = HYPERTRACE.command(["export", "--to", format, "-o"]);
        let ran = run(export.arg(folder.path().join(format)).arg(made.path()));

        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("1 events without a readable format"), "{ran:?}");
    }
}

#[test]
fn a_reader_of_csv_gets_the_values_of_the_json() {
    let Some(python) = capability::program("python3") else { return };
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.csv");
    let ran =
        run(HYPERTRACE.command(["export", "--to", "csv", "-o"]).arg(&file).arg(session.path()));
    assert!(ran.stderr.ends_with("s.csv: 13 rows\n"), "{ran:?}");
    let script = "import csv, json, sys; print(json.dumps(list(csv.DictReader(open(sys.argv[1], newline='')))))";
    let read = run(Command::new(python).args(["-c", script]).arg(&file)).ok();
    let rows: Vec<Value> = serde_json::from_str(&read).unwrap();
    let lines = exported(session.path(), "json", &[]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    assert_eq!(rows.len(), lines.len());
    let shown = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut texts = Vec::new();
    for (row, line) in rows.iter().zip(&lines) {
        for name in ["t_ns", "ts_ns", "bound_ns", "client", "pid", "tid", "cpu", "source", "event"]
        {
            let escaped = shown(&line[name]).replace('\x1b', "\\x1b");
            assert_eq!(row[name], escaped, "{name} of {line}");
        }
        for (name, value) in line["fields"].as_object().unwrap() {
            match row[format!("field_{name}")].as_str() {
                Some(text) if line["event"] == "opened" => texts.push(text.to_owned()),
                text => {
                    let escaped = shown(value).replace('\x1b', "\\x1b");
                    assert_eq!(text, Some(&*escaped), "{name} of {line}");
                }
            }
        }
    }
    // Each text is escaped for terminals, and `'` stands before texts that a spreadsheet would take for
    // formulas.
    let expected = [
        "a,b",
        "a\"b",
        "a\\nb\\r",
        "'=1+1",
        "'\u{ff1d}1",
        "'@SUM(A1)",
        "a\\x1b[31m\\u{202e}",
        "\\\\\"',",
    ];
    assert_eq!(texts, expected);
    capability::used("python3");
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let export = |to: &Path| {
        let mut export = HYPERTRACE.command(["export", "--to", "json", "-o"]);
        run(export.arg(to).arg(session.path()))
    };
    let file = folder.path().join("s.json");
    fs::write(&file, "mine").unwrap();
    let ran = export(&file);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("s.json exists: give another name"), "{ran:?}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");

    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", HYPERTRACE.0]);
    limited.args(["export", "--to", "json", "-o", "limited", "--client", "0"]);
    let ran = run(limited.arg(session.path()).current_dir(folder.path()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("limited is not written"), "{ran:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    fs::remove_file(session.path().join("ctf/guest-000-0000")).unwrap();
    let Some(disk) = Mount::new("tmpfs", "size=4k,nr_inodes=3") else { return };
    fs::write(disk.path().join("full"), [0; 4096]).unwrap();
    let ran = export(&disk.path().join("s.json"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1);
}

/// Returns whether a process has a file of a directory open, or has ended.
fn has_file(process: &mut Child, folder: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fd", process.id())).into_iter().flatten();
    let mut files = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    files.any(|file| file.starts_with(folder)) || process.try_wait().unwrap().is_some()
}

#[test]
fn nothing_is_left_of_an_export_that_a_signal_ended() {
    let mut packet = Packet::guest(0).lease(10_000, 7, "worker");
    for n in 0..200_000 {
        packet = packet.event(20_000 + n, DISK_READ, &[n, 1]);
    }
    let session = Made::new().stream("guest-000-0000", &[Packet::guest(0), packet]);
    for (signal, number) in [("INT", 2), ("KILL", 9)] {
        // If the export is complete before the signal comes, the next try sends the signal again.
        let is_killed = (0..20).any(|_| {
            let folder = tempfile::tempdir().unwrap();
            let mut export = HYPERTRACE.command(["export", "--to", "json", "-o"]);
            export.arg(folder.path().join("s.json")).arg(session.path());
            let mut export = with_default_signals(&mut export).spawn().unwrap();
            wait_until("an unfinished file", || has_file(&mut export, folder.path()));
            interrupt::send(signal, export.id().into());
            let is_killed = export.wait().unwrap().signal() == Some(number);
            assert!(!is_killed || fs::read_dir(folder.path()).unwrap().next().is_none());
            is_killed
        });
        assert!(is_killed, "{signal}");
    }
}
