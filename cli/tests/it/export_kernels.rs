//! `hypertrace export --to trace-dat`: trace-cmd and our reader read the kernels of a host and its guest in
//! one order.

use hypertrace_test_support::{guest_mode, made, trace_dat};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::trace_cmd;
use made::*;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use trace_dat::{Page, TraceDat, guest, recorded, switch, trace_id, tsc2nsec};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Id of the event with pieces of the guest's recording.
const PIECES: u32 = 21;
/// Id of the host's trace.
const HOST: u64 = 0x1000;
/// Value of the host's raw counter at tick 0 of the host's clock.
const HOST_BASE: u64 = 1_000_000;
/// Host time in nanoseconds from point to point, and number of points.
const PERIOD: u64 = 1_000_000;
const POINTS: u64 = 40;

/// Returns the guest's ticks at a time of the host. The guest's clock is fast by 50 ppm, and was stopped for
/// 40 us.
fn ticks(ns: u64) -> u64 {
    ns + ns / 20_000 - if ns > PERIOD * POINTS / 2 { 40_000 } else { 0 }
}

/// Returns pages with switches every `every` nanoseconds from `first` on, stamped by `clock`.
fn pages(first: u64, every: u64, tid: u32, clock: impl Fn(u64) -> u64) -> Vec<Page> {
    let switch = |n| {
        let time = clock(first + n * every);
        (time, trace_dat::SCHED_SWITCH_ID, tid, switch((tid, "a"), 1, (n as u32 % 7, "b")))
    };
    Page::all(&(0..POINTS * PERIOD / every).map(switch).collect::<Vec<_>>())
}

/// Makes the recording of a kernel with two CPUs.
fn kernel(start: u64, every: u64, tid: u32, clock: impl Fn(u64) -> u64 + Copy) -> TraceDat {
    let first = pages(start, every, tid, clock);
    TraceDat::new("x86-tsc").cpu(&first).cpu(&pages(start + 30_000, every, tid + 1, clock))
}

/// Makes a session with the recording of a guest's kernel. If `has_host` is true, the session also has the
/// recording of the host's kernel.
pub(crate) fn session(has_host: bool) -> Made {
    let events = with_pieces(EVENTS, PIECES);
    let json = with_boot(&json(&clocks(), &events, "[]"), Some(BOOT));
    let made = Made::with_json(&json);
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(3).lease(1_000, 9, "vcpu0"));
    for point in 0..POINTS {
        let time = PERIOD * point + 50_000;
        let raw = GUEST_BASE + ticks(time);
        thread = thread.point(time + 8_000, 0, point as u32, raw, point);
        ring = ring.event(ticks(time + 10_000), DISK_READ, &[point, 0]);
    }
    let guest_kernel = kernel(70_000, 90_000, 5, |ns| GUEST_BASE + ticks(ns));
    ring = ring.recording((ticks(PERIOD * POINTS) + 1, PIECES), &guest_kernel);
    if has_host {
        let host = kernel(20_000, 70_000, 77, |ns| HOST_BASE + ns);
        let host = host.option(trace_id(HOST)).option(tsc2nsec(1 << 20, 20));
        made.kernel(&host.option(recorded(BOOT, 0)));
    }
    made.stream("guest-000-0000", &[Packet::guest(0), ring])
        .stream("host-003-0000", &[Packet::host(3), thread])
}

fn exporting(out: &Path) -> Command {
    let mut export = HYPERTRACE.command(["export", "--to", "trace-dat", "-o"]);
    export.arg(out);
    export
}

fn export(session: &Path, out: &Path) -> String {
    let ran = run(exporting(out).arg(session));
    assert!(ran.code.is_some(), "{ran:?}");
    ran.stderr
}

/// Returns the lines of a report for switches of kernels. The flag of each line says whether the switch is
/// the guest's.
fn switches(args: &[&Path], is_of_guest: impl Fn(&str) -> bool) -> Vec<(bool, Value)> {
    let mut report = HYPERTRACE.command(["report", "--json", "--event", "sched:*"]);
    let report = run(report.args(args)).ok();
    let lines = report.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (is_of_guest(line["source"].as_str().unwrap()), line)).collect()
}

#[test]
fn host_and_guest_stand_in_the_order_of_the_report() {
    let session = session(true);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("K");

    let said = export(session.path(), &out);

    let host = out.join("host-kernel.dat");
    let names = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let guest = names.filter(|path| *path != host).collect::<Vec<_>>();
    let [guest] = &guest[..] else { panic!("{guest:?}") };
    let command = format!("trace-cmd report -i {} -i {}", host.display(), guest.display());
    assert!(said.contains(&command), "{said}");
    let expected = switches(&[session.path()], |source| source.starts_with("guest-kernel/"));
    assert_eq!(expected.len() as u64, 2 * (POINTS * PERIOD / 70_000 + POINTS * PERIOD / 90_000));
    let read = switches(&[&host, guest], |source| source.starts_with("guest-kernel-"));
    check(&expected, &read.iter().map(|(of, line)| (*of, time(line))).collect::<Vec<_>>());
    if let Some(merged) = trace_cmd::merged(&[&host, guest]) {
        check(
            &expected,
            &merged.iter().map(|(n, shown)| (*n == 1, shown.time as i64)).collect::<Vec<_>>(),
        );
    }
}

fn time(line: &Value) -> i64 {
    // Numbers above 2^53 are texts.
    line["ts_ns"].to_string().trim_matches('"').parse().unwrap()
}

/// Asserts that the events found are the expected events, in order of time. Each time may differ by a 16th of
/// the report's bound plus three nanoseconds.
#[track_caller]
fn check(expected: &[(bool, Value)], found: &[(bool, i64)]) {
    assert!(found.is_sorted_by_key(|(_, time)| *time));
    let mut largest = (0, 0);
    for of_guest in [false, true] {
        let expected = expected.iter().filter(|(of, _)| *of == of_guest).map(|(_, line)| line);
        let found = found.iter().filter(|(of, _)| *of == of_guest).map(|(_, time)| *time);
        assert_eq!(expected.clone().count(), found.clone().count());
        for (line, found) in expected.zip(found) {
            let off = (time(line) - START_NS + HOST_BASE as i64).abs_diff(found);
            let bound = line["bound_ns"].as_u64().unwrap_or_else(|| panic!("{line}"));
            assert!(off <= if of_guest { bound / 16 + 3 } else { 0 }, "{off}: {line}");
            largest = largest.max((off, bound));
        }
    }
    assert!(largest.1 > 1_000 && largest.0 < 500, "{largest:?}");
}

#[test]
fn the_host_names_the_guest_and_its_vcpus_thread() {
    let session = session(true);
    let dir = tempfile::tempdir().unwrap();

    export(session.path(), dir.path());

    let file = fs::read(dir.path().join("host-kernel.dat")).unwrap();
    let kernel = fs::read(session.path().join("kernel.dat")).unwrap();
    let added = &file[kernel.len()..];
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let name = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let name = name.into_iter().find(|name| name.starts_with("guest")).unwrap();
    // The guest's CPU 0 has the thread 43, and its CPU 1 handled no point.
    let (_, mut option) = guest(&name, HOST + 1);
    option.truncate(name.len() + 1 + 8);
    option.extend([2u32, 0, 43, 1, 0].map(u32::to_le_bytes).concat());
    assert!(added.windows(option.len()).any(|part| part == option));
}

#[test]
fn the_threads_of_vcpus_are_those_in_whose_guest_mode_the_guests_kernel_was() {
    // After the swap of the two vCPUs, the points name the wrong vCPU for each CPU of the guest's kernel.
    let mut recorded = guest_mode::recorded();
    recorded.guest.swap(0, 1);
    recorded.options = vec![trace_id(HOST), tsc2nsec(1 << 20, 20)];
    let session = recorded.made();
    let dir = tempfile::tempdir().unwrap();

    export(session.path(), dir.path());

    let file = fs::read(dir.path().join("host-kernel.dat")).unwrap();
    let [first, second] = guest_mode::TIDS;
    let cpus = [2, 0, second, 1, first].map(u32::to_le_bytes).concat();
    assert!(file.windows(cpus.len()).any(|part| part == cpus));
}

#[test]
fn without_the_hosts_kernel_a_guests_times_are_its_own() {
    let session = session(false);
    let dir = tempfile::tempdir().unwrap();

    let said = export(session.path(), dir.path());

    assert!(!said.contains("in one order"), "{said}");
    let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    if let Some(events) = trace_cmd::read(&path) {
        assert_eq!(events[0].time, GUEST_BASE + ticks(70_000));
    }
}

#[test]
fn a_session_of_a_host_alone_gives_a_copy() {
    let made = Made::of_boot(Some(BOOT));
    made.kernel(&kernel(20_000, 70_000, 77, |ns| HOST_BASE + ns).option(recorded(BOOT, 0)));
    let dir = tempfile::tempdir().unwrap();

    export(made.path(), dir.path());

    let copy = fs::read(dir.path().join("host-kernel.dat")).unwrap();
    assert_eq!(copy, fs::read(made.path().join("kernel.dat")).unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn recordings_that_cannot_be_written_are_an_error() {
    let session = session(false);
    let Some(disk) = Mount::new("tmpfs", "size=64k") else { return };
    let ran = run(exporting(&disk.path().join("K")).arg(session.path()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
    assert!(ran.stderr.contains("K does not have all of the session's recordings"), "{ran:?}");
}

#[test]
fn options_that_move_times_are_refused() {
    let (session, dir) = (session(true), tempfile::tempdir().unwrap());
    for after in ["1us", "S"] {
        let out = dir.path().join("K");
        let ran = run(exporting(&out).arg(format!("{}@{after}", session.path().display())));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("@TIME and @DIR are not for this format"), "{ran:?}");
        assert!(!out.exists());
    }
}
