//! `hypertrace export --to perfetto`: Perfetto's own package decodes the trace, which has the same numbers as
//! the output of the other commands.
//!
//! The package has no program for Perfetto's queries, so none runs here.

use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{capability, child, kvm, peak};
use made::*;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trace_dat::{Page, TraceDat};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/read_perfetto.py");
pub(crate) const READER: &str = "python3-perfetto";

/// Maximum memory in bytes of an export without regions.
const MAX_MEMORY: u64 = 64_000_000;

/// Runs a command with stdout in a file. Returns the file's path.
fn written(folder: &Path, name: &str, command: &mut Command) -> PathBuf {
    let path = folder.join(name);
    let out = File::create(&path).unwrap();
    let ran = command.stdout(Stdio::from(out)).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() || said.contains("no regions: "), "{said}");
    path
}

/// Exports sessions together, as one trace. Returns the folder, and how the command ended.
fn exported(sessions: &[&Path]) -> (tempfile::TempDir, hypertrace_tests::command::Ran) {
    let folder = tempfile::tempdir().unwrap();
    let mut export = HYPERTRACE.command(["export", "--to", "perfetto", "-o"]);
    let ran = run(export.arg(folder.path().join("trace")).args(sessions));
    (folder, ran)
}

/// Exports a session, and compares the trace with the output of the other commands. Returns the counts of
/// what was compared.
pub(crate) fn compared(session: &Path, options: &[&str], reader_options: &[&str]) -> Option<Value> {
    let python = capability::program(READER)?;
    let folder = tempfile::tempdir().unwrap();
    let outputs = outputs(session, folder.path(), options);
    let mut reader = Command::new(python);
    let counts = run(reader.arg(SCRIPT).args(outputs).args(reader_options)).json();
    capability::used(READER);
    Some(counts)
}

fn outputs(session: &Path, folder: &Path, options: &[&str]) -> [PathBuf; 4] {
    let command = |args: &[&str]| {
        let mut command = HYPERTRACE.command(args);
        command.arg(session);
        command
    };
    let mut export = command(&["export", "--to", "perfetto", "-o", "-"]);
    [
        written(folder, "trace", export.args(options)),
        written(folder, "report", &mut command(&["report", "--json"])),
        written(folder, "samples", &mut command(&["regions", "--samples"])),
        written(folder, "intervals", &mut command(&["regions", "--intervals"])),
    ]
}

/// Makes a session with everything that the trace represents in its own way, and with a name that is not
/// UTF-8.
pub(crate) fn session() -> Made {
    let all = [200, (-3i64) as u64, 0.5f64.to_bits(), 1, 0xdead];
    let mut words = all.to_vec();
    // The first field is a text of three bytes, then come two words.
    words.extend([3 | 0xffu64 << 32 | u64::from(b'a') << 40, 2, 7, u64::MAX]);
    let guest = Packet::guest(0)
        .lease(10_000, 7, "wor\x1bker")
        .event(20_000, DISK_READ, &[5, u64::MAX])
        .flagged(21_000, ALL_TYPES, 0, &words, 0)
        .event_str(22_000, OPENED, &[], &[b'x'; 30_000])
        .event_str(23_000, OPENED, &[], b"\xff\xfe")
        .with64(56, 3);
    let next = Packet::guest(0).after(&guest).with64(56, 5);
    let next = next.with64(80, 8).event_str(30_000, 1, &[8, 44, 45, 0], b"next");
    let next = next.event(31_000, DISK_READ, &[6, 1]);
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]).point(
        41_000,
        0,
        1,
        GUEST_BASE + 32_000,
        77,
    );
    Made::new()
        .stream("guest-000-0000", &[Packet::guest(0), guest, next])
        .stream("host-003-0000", &[Packet::host(3), host])
}

/// Makes regions within each other, a region that ends after the region around it, some that begin and end
/// together, and some of several clients.
pub(crate) fn with_regions() -> Made {
    let schemas = ["a_begin(id:u64,wait_ns:u64)", "a_end(id:u64)"].into_iter();
    let schemas =
        schemas.chain(["j_begin(id:u64,any_client:bool)", "j_end(id:u64,any_client:bool)"]);
    let events = schemas.zip(16..).map(|(schema, id)| {
        format!(r#"{{"id":{id},"schema":"{schema}","reference_point":false}}"#)
    });
    let events = format!("[{}]", Vec::from_iter(events).join(","));
    let mut first = Packet::guest(0).lease(10_000, 7, "first");
    for (at, event, id) in [
        (20_000, 16, 1),
        (21_000, 16, 2),
        (21_000, 16, 3),
        (21_000, 17, 3),
        (22_000, 17, 2),
        (22_000, 16, 4),
        // This region ends after the region around it.
        (23_000, 17, 1),
        (24_000, 17, 4),
        (25_000, 16, 5),
        (25_000, 16, 6),
        (25_000, 16, 7),
        (26_000, 17, 7),
        (26_000, 17, 6),
        (26_000, 17, 5),
        // Both regions take no time, and the second region is inside the first.
        (26_000, 16, 8),
        (26_000, 16, 9),
        (26_000, 17, 9),
        (26_000, 17, 8),
    ] {
        let fields = [id, 7_000 + id];
        first = first.event(at, event, if event == 16 { &fields } else { &fields[..1] });
    }
    let mut other = Packet::guest(1).lease(10_000, 9, "other");
    for (at, event, id) in [(30_000, 18, 1), (31_000, 18, 2), (32_000, 19, 1), (33_000, 18, 3)] {
        other = other.event(at, event, &[id, 1]);
    }
    let last = Packet::guest(0).after(&first).event(40_000, 19, &[2, 1]).event(41_000, 19, &[3, 1]);
    Made::with_json(&json(&clocks(), &events, "[]"))
        .stream("guest-000-0000", &[Packet::guest(0), first, last])
        .stream("guest-001-0000", &[Packet::guest(1), other])
}

/// Makes a region of a program whose thread waits for a CPU in it.
pub(crate) fn of_program() -> Made {
    let lease = Packet::new(1, 0, 0).with64(80, 9).event_str(1, 1, &[9, 50, 60, 0], b"program");
    let packet = lease.event(20_000, vcpu::BEGIN, &[1, 0]).event(30_000, vcpu::END, &[1]);
    let made =
        Made::of_programs(vcpu::EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);
    let page = Page::at(vcpu::HOST_BASE)
        .switch(10_000, (0, "swapper"), 0, (60, "program"))
        .switch(12_000, (60, "program"), 0, (0, "swapper"))
        .switch(1_000, (0, "swapper"), 0, (60, "program"))
        .switch(20_000, (60, "program"), 1, (0, "swapper"));
    made.kernel(&TraceDat::new("x86-tsc").cpu(&[page]));
    made
}

/// Makes a session with a kernel's trace, whose filter had these threads.
fn with_kernel(threads: Option<&str>) -> Made {
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]);
    let made = Made::of_boot(Some(BOOT)).stream("host-003-0000", &[Packet::host(3), host]);
    let page = Page::at(1_000_000)
        .mmio(1_000, 43, 0x17)
        .switch(1_000, (43, "vcpu0"), 1, (99, "other"))
        .switch(1_000, (99, "other"), 0, (43, "vcpu0"))
        .missed(true)
        .switch(1_000, (43, "vcpu0"), 0, (0, "swapper"));
    let recorded = match threads {
        Some(threads) => trace_dat::recorded_with_threads(BOOT, threads),
        None => trace_dat::recorded(BOOT, 0),
    };
    made.kernel(&TraceDat::new("x86-tsc").option(recorded).cpu(&[page]));
    made
}

/// Sets the time of the boot in a session.
pub(crate) fn with_boot_time(made: &Made, boot_ns: i64) {
    let path = made.path().join("session.json");
    let json = fs::read_to_string(&path).unwrap();
    let more = format!("\"started_boot_ns\":{boot_ns},\"clocks\"");
    fs::write(path, json.replacen("\"clocks\"", &more, 1)).unwrap();
}

#[test]
fn each_kind_of_event_has_its_thread_its_time_and_its_values() {
    let session = session();
    let Some(counts) = compared(session.path(), &[], &[]) else { return };
    assert_eq!((&counts["machines"], &counts["points"]), (&2.into(), &1.into()), "{counts}");
    assert_eq!(counts["lost"], 5, "{counts}");
    with_boot_time(&session, 5_000_000_000);
    assert_eq!(compared(session.path(), &[], &[]).unwrap(), counts);
}

#[test]
fn regions_are_within_each_other_or_on_tracks_of_their_own() {
    let session = with_regions();
    let Some(counts) = compared(session.path(), &[], &[]) else { return };
    assert_eq!((&counts["regions"], &counts["nested"]), (&12.into(), &5.into()), "{counts}");
}

#[test]
fn a_programs_region_has_its_parts_by_their_names() {
    let session = of_program();
    let samples = run(HYPERTRACE.command(["regions", "--samples"]).arg(session.path())).stdout;
    assert!(
        samples.contains(",on_cpu_ns,") && samples.contains(",9000,0,0,0,0,0,0,1000,"),
        "{samples}"
    );
    let Some(counts) = compared(session.path(), &[], &[]) else { return };
    assert_eq!(counts["regions"], 1, "{counts}");
}

#[test]
fn switches_of_all_threads_are_the_kernels_and_others_are_states() {
    let all = with_kernel(None);
    let Some(counts) = compared(all.path(), &[], &[]) else { return };
    // Without the boot's clock, the kernel's own form of switches has no times.
    assert_eq!((&counts["switches"], &counts["task_states"]), (&0.into(), &5.into()), "{counts}");
    with_boot_time(&all, 5_000_000_000);
    let counts = compared(all.path(), &[], &["--all-threads"]).unwrap();
    assert_eq!((&counts["switches"], &counts["task_states"]), (&3.into(), &0.into()), "{counts}");
    let some = with_kernel(Some("43"));
    with_boot_time(&some, 5_000_000_000);
    let counts = compared(some.path(), &[], &[]).unwrap();
    assert_eq!((&counts["switches"], &counts["task_states"]), (&0.into(), &3.into()), "{counts}");
    assert_eq!(compared(some.path(), &["--states", "slices"], &[]).unwrap(), counts);
}

#[test]
fn functions_are_slices() {
    let events = r#"[
        {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
        {"id":17,"schema":"function_exit(address:x64)","reference_point":false}]"#;
    let mut guest = Packet::guest(0).lease(10_000, 7, "program");
    for (at, event, address) in
        [(20_000, 17, 9), (21_000, 16, 1), (22_000, 16, 2), (23_000, 17, 2), (24_000, 17, 1)]
    {
        guest = guest.event(at, event, &[address]);
    }
    let session = Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest]);
    let Some(counts) = compared(session.path(), &[], &[]) else { return };
    // An exit without an entry is an event.
    assert_eq!((&counts["functions"], &counts["machines"]), (&4.into(), &1.into()), "{counts}");
}

#[test]
fn times_before_the_trace_are_at_its_beginning_and_counted() {
    let session = session();
    with_boot_time(&session, -30_000);
    let (_folder, ran) = exported(&[session.path()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains(" x time before the trace's own 0"), "{}", ran.stderr);
}

#[test]
fn sessions_of_two_boots_have_two_hosts_and_a_damaged_one_has_no_trace() {
    let of_boot = |boot| {
        let guest = Packet::guest(0).lease(10_000, 7, "worker").event(20_000, DISK_READ, &[5, 6]);
        Made::of_boot(Some(boot)).stream("guest-000-0000", &[Packet::guest(0), guest])
    };
    let (first, second) = (of_boot(BOOT), of_boot(OTHER_BOOT));
    let (folder, ran) = exported(&[first.path(), second.path()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let script = "import sys; from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as p
t = p.Trace.FromString(open(sys.argv[1], 'rb').read())
print(*sorted({x.machine_id for x in t.packet}))";
    if let Some(python) = capability::program(READER) {
        let trace = folder.path().join("trace");
        assert_eq!(run(Command::new(python).args(["-c", script]).arg(trace)).ok(), "0 1 2 3\n");
    }

    let file = second.file("guest-000-0000");
    let mut bytes = fs::read(&file).unwrap();
    // The damage is in the second packet's magic number.
    bytes[128] ^= 0xff;
    fs::write(file, bytes).unwrap();
    let (folder, ran) = exported(&[first.path(), second.path()]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_comparison_finds_one_wrong_number() {
    let Some(python) = capability::program(READER) else { return };
    let (session, folder) = (session(), tempfile::tempdir().unwrap());
    let outputs = outputs(session.path(), folder.path(), &[]);
    let report = fs::read_to_string(&outputs[1]).unwrap();
    for (right, wrong) in
        [("\"lba\":5", "\"lba\":4"), ("28999\"", "28998\""), ("\"disk_read\"", "\"disk_reed\"")]
    {
        assert!(report.contains(right), "{right}: {report}");
        fs::write(&outputs[1], report.replacen(right, wrong, 1)).unwrap();
        let ran = run(Command::new(&python).arg(SCRIPT).args(&outputs));
        assert!(ran.code != Some(0) && ran.stderr.contains("AssertionError"), "{right}: {ran:?}");
    }
}

/// Runs the demo with the kernel's events. Returns the session and the folder around it; `None`, with a
/// report, if this machine does not let the test record such a session.
pub fn demo_with_kernel() -> Option<(tempfile::TempDir, PathBuf)> {
    if !kvm::is_usable() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(HYPERTRACE.demo(&out, 2).arg("--kernel"));
    if ran.code != Some(0) || ran.stderr.contains("(by perf)") {
        capability::missing("tracefs", ran.stderr);
        return None;
    }
    Some((dir, out))
}

#[test]
fn a_demo_with_its_kernel_is_what_the_other_commands_show() {
    let Some((_dir, out)) = demo_with_kernel() else { return };
    let Some(counts) = compared(&out, &[], &[]) else { return };
    capability::used("tracefs");
    capability::used("kvm");
    let at_least = |name: &str, least: u64| {
        assert!(counts[name].as_u64() >= Some(least), "{name}: {counts}");
    };
    at_least("events", 200_000);
    at_least("regions", 2_000);
    at_least("states", 2_000);
    at_least("points", 2_000);
    at_least("switches", 10);
    at_least("flows", 1_900);
    assert_eq!(counts["machines"], 2, "{counts}");
    let slices = compared(&out, &["--states", "slices"], &[]).unwrap();
    assert_eq!(slices["states"], counts["states"]);
}

/// A guest chooses its threads, and each lease names another thread.
#[test]
fn tracks_without_number_take_bounded_memory() {
    child::in_own_process(|| {
        const LEASES: u64 = 300_000;
        let made = Made::new();
        let mut file = File::create(made.file("guest-000-0000")).unwrap();
        file.write_all(&Packet::guest(0).bytes()).unwrap();
        let mut last = Packet::guest(0);
        for first in (0..LEASES).step_by(1_000) {
            let mut packet = Packet::guest(0).after(&last);
            for n in first..first + 1_000 {
                let (time, thread) = (10_000 + n * 100, n + 10);
                let name = format!("thread {n}");
                packet = packet.event_str(time, 1, &[n + 1, thread, thread, 0], name.as_bytes());
                packet = packet.event_str(time + 50, OPENED, &[], name.as_bytes());
            }
            file.write_all(&packet.bytes()).unwrap();
            last = packet;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut export = HYPERTRACE.command(["export", "--to", "perfetto", "-o"]);
        let (ran, memory) = peak::run(export.arg(folder.path().join("trace")).arg(made.path()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(memory <= MAX_MEMORY, "{memory} bytes of {MAX_MEMORY}");
    });
}

/// A guest has many clients, each with a record of the maximum length.
#[test]
fn clients_with_long_records_take_bounded_memory() {
    child::in_own_process(|| {
        const CLIENTS: u32 = 1_024;
        let made = Made::new();
        for client in 0..CLIENTS {
            let first = Packet::guest(client);
            let lease = first.clone().lease(10_000, 7, &"x".repeat(32_000));
            let packet = (0..1_000)
                .fold(lease, |packet, n| packet.event(20_000 + n * 100, DISK_READ, &[n, n]));
            let bytes = [first.bytes(), packet.bytes()].concat();
            fs::write(made.file(&format!("guest-{client:03}-0000")), bytes).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        for format in ["json", "perfetto"] {
            let mut export = HYPERTRACE.command(["export", "--to", format, "-o"]);
            let (ran, memory) = peak::run(export.arg(folder.path().join(format)).arg(made.path()));
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            assert!(memory <= MAX_MEMORY, "{format}: {memory} bytes of {MAX_MEMORY}");
        }
    });
}
