//! `hypertrace export --to ctf`: babeltrace2 reads the lines of the report.

use crate::export_kernels;
use hypertrace_test_support::{made, trace_dat};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{babeltrace2, capability, kvm};
use made::*;
use serde_json::{Map, Value};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use trace_dat::{Page, TraceDat};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// An event as babeltrace2 shows it: time, name, contexts and fields.
struct Shown<'a> {
    ts_ns: i64,
    name: &'a str,
    parts: Vec<Map<String, Value>>,
}

impl Shown<'_> {
    fn of(line: &str) -> Shown<'_> {
        let (time, rest) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        let at = rest.find(": { source = ").unwrap_or_else(|| panic!("{line}"));
        let (mut text, mut parts) = (Text(&rest[at + 2..]), Vec::new());
        while !text.0.is_empty() {
            let Value::Object(part) = text.value() else { panic!("{line}") };
            parts.push(part);
            text.skip(", ");
        }
        // The host's name stands before the event's name.
        let name = rest[..at].rsplit(' ').next().unwrap();
        Shown { ts_ns: time.replace('.', "").parse().unwrap(), name, parts }
    }
}

/// The rest of a line.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn until(&mut self, end: &[char]) -> &'a str {
        let (text, rest) = self.0.split_at(self.0.find(end).unwrap_or(self.0.len()));
        self.0 = rest;
        text
    }

    fn value(&mut self) -> Value {
        if self.skip("{") {
            let mut members = Map::new();
            while !self.skip(" }") {
                self.skip(",");
                assert!(self.skip(" "), "{}", self.0);
                let name = self.until(&[' ']).to_owned();
                assert!(self.skip(" = "), "{}", self.0);
                members.insert(name, self.value());
            }
            return members.into();
        }
        if self.skip("[") {
            let mut values = Vec::new();
            while !self.skip(" ]") {
                self.skip(",");
                assert!(self.skip(&format!(" [{}] = ", values.len())), "{}", self.0);
                values.push(self.value());
            }
            return values.into();
        }
        if self.skip("\"") {
            return self.string().into();
        }
        let number = self.until(&[' ', ',']);
        match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap().into(),
            None => serde_json::from_str(number).unwrap_or_else(|_| panic!("{number}")),
        }
    }

    fn string(&mut self) -> String {
        let mut text = String::new();
        loop {
            text.push_str(self.until(&['"', '\\']));
            if self.skip("\"") {
                return text;
            }
            let code = self.0.as_bytes()[1];
            self.0 = &self.0[2..];
            text.push(match code {
                b'a' => '\x07',
                b'b' => '\x08',
                b't' => '\t',
                b'n' => '\n',
                b'v' => '\x0b',
                b'f' => '\x0c',
                b'e' => '\x1b',
                b'r' => '\r',
                b'x' => {
                    let (digits, rest) = self.0.split_at(2);
                    self.0 = rest;
                    u8::from_str_radix(digits, 16).unwrap().into()
                }
                itself => itself.into(),
            });
        }
    }
}

/// Returns whether both values are equal. Large numbers of JSON are texts; babeltrace2 shows six digits of
/// floats.
fn is_same(json: &Value, shown: &Value) -> bool {
    match (json, shown) {
        (Value::Bool(json), Value::Number(_)) => *shown == u64::from(*json),
        (Value::String(json), Value::Number(shown)) => *json == shown.to_string(),
        (Value::Number(json), Value::String(shown)) => json.to_string() == *shown,
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= a.abs() / 1e5
        }
        (Value::Array(json), Value::Array(shown)) => {
            json.len() == shown.len() && json.iter().zip(shown).all(|(a, b)| is_same(a, b))
        }
        _ => json == shown,
    }
}

/// Checks that babeltrace2 shows a line of the report.
fn compare(line: &Value, shown: &Shown<'_>) {
    let context = |name: &str| shown.parts.iter().rev().skip(1).find_map(|part| part.get(name));
    let is = |name: &str, json: &Value| match context(name) {
        Some(shown) => assert!(is_same(json, shown), "{name} of {line}: {shown}"),
        None => assert!(json.is_null(), "{name} of {line}"),
    };
    for name in ["source", "client", "pid", "tid", "cpu", "bound_ns"] {
        // For lost events, a report names no thread, so only the source and the client are compared.
        if line["type"] != "lost" || name == "source" || name == "client" {
            is(name, &line[name]);
        }
    }
    for name in ["client", "cpu", "seq", "guest_time"] {
        is(&format!("reference_{name}"), &line["reference"][name]);
    }
    let fields = shown.parts.last().unwrap();
    if line["type"] == "lost" {
        assert_eq!(shown.name, "hypertrace:lost", "{line}");
        assert_eq!(fields["lost"], line["events"].as_u64().unwrap_or(0), "{line}");
        let why: Vec<&str> =
            line["why"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        assert_eq!(fields["why"], why.join("; "), "{line}");
        return;
    }
    assert_eq!(shown.name, line["event"], "{line}");
    for (name, json) in line["fields"].as_object().unwrap() {
        let field = &fields[&name.replace(['.', '-'], "_")];
        assert!(is_same(json, field), "{name} of {line}: {field}");
    }
    let lengths = fields.keys().filter(|name| name.starts_with('_')).count();
    assert_eq!(fields.len() - lengths, line["fields"].as_object().unwrap().len(), "{line}");
}

/// Makes a program's session with the entries and the exits of two functions.
fn functions() -> Made {
    let events = r#"[
        {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
        {"id":17,"schema":"function_exit(address:x64)","reference_point":false}]"#;
    let mut guest = Packet::guest(0).lease(10_000, 7, "program");
    for (at, event, address) in
        [(21_000, 16, 0x1000), (22_000, 16, 0x9000), (23_000, 17, 0x9000), (24_000, 17, 0x1000)]
    {
        guest = guest.event(at, event, &[address]);
    }
    Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest])
}

/// Exports a session, and compares what babeltrace2 reads with the report. Returns the number of lines, and
/// what the command said.
fn compared(session: &Path, options: &[&str]) -> Option<(usize, String)> {
    let reader = capability::program("babeltrace2")?;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("C");
    let mut export = HYPERTRACE.command(["export", "--to", "ctf", "-o"]);
    let said = run(export.arg(&trace).arg(session).args(options));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let mut read = Command::new(reader);
    let read = read.args(["--no-delta", "--clock-seconds"]).arg(&trace).output().unwrap();
    let (text, complaints) =
        (String::from_utf8_lossy(&read.stdout), String::from_utf8_lossy(&read.stderr));
    assert!(read.status.success(), "{complaints}");
    capability::used("babeltrace2");
    let report =
        run(HYPERTRACE.command(["export", "--to", "json", "-o", "-"]).arg(session).args(options));
    let report: Vec<Value> =
        report.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    assert_eq!(text.lines().count(), report.len());
    let mut last = None;
    for (line, shown) in report.iter().zip(text.lines()) {
        let shown = Shown::of(shown);
        let number = |value: &Value| value.to_string().trim_matches('"').parse().ok();
        // A loss at an unknown time has the time of the line before.
        last = number(&line["ts_ns"]).or(last);
        assert_eq!(Some(shown.ts_ns), last, "{line}");
        compare(line, &shown);
    }
    let lost: u64 = report.iter().filter_map(|line| line["events"].as_u64()).sum();
    let warned = complaints.lines().filter(|line| !line.is_empty()).map(|line| {
        let rest =
            line.strip_prefix("WARNING: Tracer discarded ").unwrap_or_else(|| panic!("{line}"));
        rest.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(warned.sum::<u64>(), lost);
    Some((report.len(), said.stderr))
}

/// Makes a session with all types, hostile texts, losses, and a kernel's trace.
fn session() -> Made {
    let all = [200, (-3i64) as u64, 0.5f64.to_bits(), 1, 0xdead];
    let mut words = all.to_vec();
    // The first field is a text of three bytes, then come two words.
    words.extend([
        3 | 0xffu64 << 32 | u64::from(b'a') << 40 | u64::from(b'"') << 48,
        2,
        7,
        u64::MAX,
    ]);
    let first = Packet::guest(0).lease(10_000, 7, "wor\x1bker\"\\ */").with64(56, 3);
    let next = Packet::guest(0).after(&first).with64(56, 5);
    let next = next
        .event(20_000, DISK_READ, &[5, u64::MAX])
        .flagged(21_000, ALL_TYPES, 0, &words, 0)
        .event_str(22_000, OPENED, &[], &[b'x'; 30_000])
        .event_str(23_000, OPENED, &[], "\n\"}, { \\ \u{202e}".as_bytes());
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]).point(
        41_000,
        0,
        1,
        GUEST_BASE + 32_000,
        77,
    );
    let made = Made::of_boot(Some(BOOT))
        .stream("guest-000-0000", &[Packet::guest(0), first, next])
        .stream("host-003-0000", &[Packet::host(3), host]);
    let page = Page::at(1_000_000)
        .mmio(1_000, 43, 0x17)
        .switch(1_000, (43, "vcpu0"), 1, (99, "other"))
        .switch(1_000, (99, "other"), 0, (43, "vcpu0"))
        .missed(true)
        .switch(1_000, (43, "vcpu0"), 0, (0, "swapper"));
    made.kernel(&TraceDat::new("x86-tsc").option(trace_dat::recorded(BOOT, 0)).cpu(&[page]));
    made
}

#[test]
fn each_line_is_an_event_with_its_time_and_its_values() {
    let session = session();
    let Some((lines, said)) = compared(session.path(), &[]) else { return };
    assert!(lines > 12, "{lines}");
    assert!(said.contains(" x hypertrace:lost"), "{said}");
    let (some, _) = compared(session.path(), &["--event", "opened", "--from", "22us"]).unwrap();
    assert!(0 < some && some < lines, "{some}");
    let (none, _) = compared(session.path(), &["--event", "nothing", "--until", "1ns"]).unwrap();
    assert_eq!(none, 0);
}

#[test]
fn functions_have_their_names() {
    let session = functions();
    let map = session.path().join("System.map");
    let symbol = "_ZN4core3fmt5writeE";
    fs::write(&map, format!("0000000000001000 T {symbol}\n0000000000002000 T last\n")).unwrap();
    let symbols = format!("{}:0x0", map.display());
    let options = ["--symbols", &symbols];
    let mut json = HYPERTRACE.command(["export", "--to", "json", "-o", "-"]);
    let json = run(json.args(options).arg(session.path())).stdout;
    assert_eq!(json.matches(symbol).count(), 2, "{json}");

    let Some((lines, _)) = compared(session.path(), &options) else { return };
    assert_eq!(lines, 5);
}

#[test]
fn events_before_the_sessions_start_are_at_their_times() {
    let session = session();
    let path = session.path().join("session.json");
    let json = fs::read_to_string(&path).unwrap();
    let later = json.replacen(
        &format!("\"started_unix_ns\":{START_NS}"),
        &format!("\"started_unix_ns\":{}", START_NS + 30_000),
        1,
    );
    assert_ne!(later, json);
    fs::write(path, later).unwrap();

    let Some((_, said)) = compared(session.path(), &[]) else { return };
    assert!(!said.contains("moved"), "{said}");
}

#[test]
fn a_text_that_is_cut_is_counted() {
    let guest = Packet::guest(0).lease(10_000, 7, "worker");
    let guest = guest.event_str(20_000, OPENED, &[], b"a\0b");
    let session = Made::new().stream("guest-000-0000", &[Packet::guest(0), guest]);
    let folder = tempfile::tempdir().unwrap();
    let mut export = HYPERTRACE.command(["export", "--to", "ctf", "-o"]);
    let ran = run(export.arg(folder.path().join("C")).arg(session.path()));
    let expected = "also 1 x text cut at a NUL or after 65,536 bytes\n";
    assert!(ran.stderr.ends_with(expected), "{}", ran.stderr);
}

#[test]
fn a_time_that_readers_do_not_take_is_moved_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let [file, trace] = ["trace.dat", "C"].map(|name| folder.path().join(name));
    let pages = [Page::at(i64::MAX as u64).mmio(0, 43, 0x17)];
    fs::write(&file, TraceDat::new("mono").cpu(&pages).version_7()).unwrap();
    let ran = run(HYPERTRACE.command(["export", "--to", "ctf", "-o"]).arg(&trace).arg(&file));
    let expected = "also 1 x time moved to where readers take it\n";
    assert!(ran.stderr.ends_with(expected), "{ran:?}");
    let Some(events) = babeltrace2::read_clean(&trace) else { return };
    assert!(events.len() == 1 && events[0].starts_with("[23:47:16.854775806]"), "{events:?}");
}

#[test]
fn names_that_readers_take_for_one_another_are_read() {
    let events = r#"[
        {"id":16,"schema":"a(_x:u8,x:u8)","reference_point":false},
        {"id":17,"schema":"b(x:[u64],x_len:u8)","reference_point":false}]"#;
    let guest = Packet::guest(0).lease(10_000, 7, "program").event(20_000, 16, &[1, 2]).event(
        21_000,
        17,
        &[1, 9, 3],
    );
    let session = Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest]);
    let trace = session.path().join("C");
    let mut export =
        HYPERTRACE.command(["export", "--to", "ctf", "--event", "a", "--event", "b", "-o"]);
    let ran = run(export.arg(&trace).arg(session.path()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let Some(events) = babeltrace2::read_clean(&trace) else { return };
    assert!(events[0].ends_with("{ _x = 1, x_ = 2 }"), "{events:?}");
    assert!(events[1].ends_with("{ _x_len_ = 1, x = [ [0] = 9 ], x_len = 3 }"), "{events:?}");
}

#[test]
fn kernels_of_host_and_guest_are_on_one_clock() {
    let session = export_kernels::session(true);
    let Some((lines, _)) = compared(session.path(), &[]) else { return };
    let (guests, _) = compared(session.path(), &["--where", "prev_comm == 'a'"]).unwrap();
    assert!(0 < guests && guests < lines, "{guests} of {lines}");
}

#[test]
fn a_demo_with_its_kernel_is_what_the_report_shows() {
    if !kvm::is_usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("S");
    // The demo records the kernel's events, too, where this machine lets it.
    let demo = run(&mut HYPERTRACE.demo(&session, 2));
    assert_eq!(demo.code, Some(0), "{}", demo.stderr);
    let Some((lines, _)) = compared(&session, &[]) else { return };
    assert!(lines >= 200_000, "{lines}");
}

#[test]
fn a_directory_appears_whole_or_not_at_all() {
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let export = |to: &str| {
        let mut export = HYPERTRACE.command(["export", "--to", "ctf", "-o", to]);
        run(export.arg(session.path()).current_dir(folder.path()))
    };
    assert_eq!(export("-").code, Some(2));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert_eq!(export("empty").code, Some(0));
    let mode = fs::metadata(folder.path().join("empty")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for (path, why) in [("empty", "is not empty; give a new or"), ("empty/metadata", "metadata")] {
        let ran = export(path);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{ran:?}");
    }
    let ran = export("no/folder");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);

    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", HYPERTRACE.0]);
    limited.args(["export", "--to", "ctf", "-o", "limited"]);
    let ran = run(limited.arg(session.path()).current_dir(folder.path()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("limited is not written"), "{ran:?}");
    let left = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["empty"]);
}

#[test]
fn a_signal_leaves_no_part_of_a_directory() {
    let Some(strace) = capability::program("strace") else { return };
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let log = session.path().join("log");
    let mut export = Command::new(strace);
    // The last step, which gives the directory its name, fails after a signal came.
    export.args(["-f", "-e", "trace=/^rename", "-e", "inject=/^rename:error=EIO:signal=SIGTERM"]);
    export.arg("-o").arg(&log).args([HYPERTRACE.0, "export", "--to", "ctf", "-o", "C"]);
    let ran = export.arg(session.path()).current_dir(folder.path()).output().unwrap();
    capability::used("strace");

    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("(INJECTED)") && log.contains("killed by SIGTERM"), "{log} {ran:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
