//! `hypertrace regions` needs at most 64 MB of memory, and 190 bytes for each region, for any sessions.

use hypertrace_test_support::{made, trace_dat};
use std::fs::File;
use std::io::Write;

use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::{child, peak};
use made::{GUEST_BASE, Made, Packet};
use trace_dat::{KVM_EXIT_ID, Page, SCHED_SWITCH_ID, TraceDat, switch};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Limits in bytes that docs/regions.md states: in all, and for each region.
const MAX_MEMORY: u64 = 64_000_000;
const MAX_OF_REGION: u64 = 190;

/// Value of the host's raw counter at tick 0 of the host's clock.
const HOST_BASE: u64 = 1_000_000;
const US: u64 = 1_000;

/// Makes a session whose events have these schemas, with ids from 16 on. Schemas that end in `!` are schemas
/// of reference points.
fn session(schemas: &[String], programs: bool) -> Made {
    let events = schemas.iter().zip(16..).map(|(schema, id)| {
        let (schema, point) = (schema.trim_end_matches('!'), schema.ends_with('!'));
        format!(r#"{{"id":{id},"schema":"{schema}","reference_point":{point}}}"#)
    });
    let events = format!("[{}]", Vec::from_iter(events).join(","));
    let json = made::with_boot(&made::json(&made::clocks(), &events, "[]"), Some(made::BOOT));
    let programs = format!("\"version\":2,\"programs\":{programs},");
    Made::with_json(&json.replacen("\"version\":2,", &programs, 1))
}

fn kernel(made: &Made, events: &[(u64, u16, u32, Vec<u8>)]) {
    kernel_of_pages(made, Page::all(events));
}

fn kernel_of_pages(made: &Made, pages: Vec<Page>) {
    let trace = TraceDat::new("x86-tsc").option(trace_dat::recorded(made::BOOT, 0)).cpu(&pages);
    drop(pages);
    made.kernel(&trace);
}

/// Runs `regions`, and checks its memory.
#[track_caller]
fn check(made: &Made, args: &[&str], regions: u64) -> String {
    let mut command = HYPERTRACE.command(["regions"]);
    let (ran, memory) = peak::run(command.arg(made.path()).args(args));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let most = MAX_MEMORY + MAX_OF_REGION * regions;
    assert!(memory <= most, "{args:?}: {memory} bytes of {most}");
    ran.stdout
}

/// A client's regions end long after its thread's last event of the kernel, so their parts are known only at
/// the end.
#[test]
fn regions_whose_parts_are_known_late_take_bounded_memory() {
    child::in_own_process(|| {
        const REGIONS: u64 = 300_000;
        let schemas = ["a_begin(id:u64)", "a_end(id:u64)", "p(n:u64)!"].map(Into::into);
        let made = session(&schemas, false);
        let end = 10 * US + REGIONS * 100;
        let lease = Packet::host(0).with64(80, 9).event_str(1_000, 1, &[9, 42, 100, 0], b"vcpu0");
        let point = |packet: Packet, time: u64, n: u64| {
            packet.flagged(time, 18, 1, &[0, 0, n, GUEST_BASE + time - 100, n], 0)
        };
        let host = point(point(lease, 5 * US, 1), end, 2);
        let made = made.stream("host-000-0000", &[Packet::host(0), host]);
        // The file is written packet by packet, because a child's peak memory begins with this process's
        // memory.
        let mut file = File::create(made.file("guest-000-0000")).unwrap();
        file.write_all(&Packet::guest(0).bytes()).unwrap();
        let mut last = Packet::guest(0);
        for first in (0..REGIONS).step_by(1_000) {
            let mut packet = Packet::guest(0).after(&last);
            for id in first..first + 1_000 {
                let time = 8 * US + id * 100;
                packet = packet.event(time, 16, &[id]).event(time + 50, 17, &[id]);
            }
            file.write_all(&packet.bytes()).unwrap();
            last = packet;
        }
        let exit = [48u32, 0, 0, 0, 1, 0].map(u32::to_le_bytes).concat();
        let away = switch((100, "vcpu"), 1, (9, "other"));
        let back = switch((9, "other"), 0, (100, "vcpu"));
        kernel(
            &made,
            &[
                (HOST_BASE + 6 * US, KVM_EXIT_ID, 100, exit),
                (HOST_BASE + 7 * US, SCHED_SWITCH_ID, 100, away),
                (HOST_BASE + end + US, SCHED_SWITCH_ID, 9, back),
            ],
        );

        let text = check(&made, &[], REGIONS);

        assert!(text.contains("a: 300,000 regions"), "{text}");
        // `regions` keeps exits for only a part of so many regions. These regions have no exits, so the text
        // need not mention the limit.
        assert!(!text.contains("the exits in the column"), "{text}");
    });
}

/// Makes a session of a client with `points` reference points. The threads of the host in `tids` serve the
/// points in turns. `client` returns the client of the n-th point.
fn of_points(points: u64, tids: &[u64], client: impl Fn(u64) -> u64) -> Made {
    let schemas = ["a_begin(id:u64)", "a_end(id:u64)", "p(n:u64)!"].map(Into::into);
    let made = session(&schemas, false);
    let end = 20 * US + points * 10 * US;
    let guest = Packet::guest(0).event(8 * US, 16, &[1]).event(end, 17, &[1]);
    let made = made.stream("guest-000-0000", &[Packet::guest(0), guest]);
    for (ring, tid) in (0..).zip(tids) {
        let mut file = File::create(made.file(&format!("host-{ring:03}-0000"))).unwrap();
        file.write_all(&Packet::host(ring).bytes()).unwrap();
        let lease = [9, 42, *tid, 0];
        let mut last = Packet::host(ring).with64(80, 9).event_str(1_000, 1, &lease, b"vcpu");
        file.write_all(&last.bytes()).unwrap();
        for first in (0..points).step_by(1_000) {
            let mut packet = Packet::host(ring).with64(80, 9).after(&last);
            let own = |n: &u64| n % tids.len() as u64 == u64::from(ring);
            for n in (first..first + 1_000).filter(own) {
                let time = 10 * US + n * 10 * US;
                let payload = [client(n), 0, n, GUEST_BASE + time - 100, n];
                packet = packet.flagged(time, 18, 1, &payload, 0);
            }
            file.write_all(&packet.bytes()).unwrap();
            last = packet;
        }
    }
    made
}

/// The clock of a client is known by the client's reference points.
#[test]
fn reference_points_take_bounded_memory() {
    child::in_own_process(|| {
        for tids in [[100].as_slice(), &[100, 101]] {
            let made = of_points(1_000_000, tids, |_| 0);

            let text = check(&made, &[], 1);

            // If two threads serve a client's points in turns, the client has no known thread, and its region
            // counts as migrated.
            let expected = ["a: 1 region", "a: 0 regions\n  not counted: migration 1"];
            assert!(text.contains(expected[tids.len() - 1]), "{tids:?}: {text}");
        }
    });
}

/// Each reference point names another client, and a session cannot have so many clients.
#[test]
fn reference_points_of_clients_that_cannot_be_take_bounded_memory() {
    child::in_own_process(|| {
        let made = of_points(1_000_000, &[100], |n| n);

        let text = check(&made, &[], 1);

        assert!(text.contains("a: 1 region"), "{text}");
    });
}

/// Many groups have regions of many names inside.
#[test]
fn regions_inside_many_groups_take_bounded_memory() {
    child::in_own_process(|| {
        const GROUPS: u64 = 9_000;
        const INSIDE: u64 = 32;
        let schemas = (0..=INSIDE).flat_map(|name| {
            let value = if name == 0 { ",v:u64" } else { "" };
            [format!("r{name}_begin(id:u64{value})"), format!("r{name}_end(id:u64)")]
        });
        let made = session(&Vec::from_iter(schemas), true);
        let lease = Packet::new(1, 0, 0).with64(80, 9);
        let first = lease.event_str(1_000, 1, &[9, 42, 100, 0], b"x");
        let packet = (0..GROUPS).fold(first, |packet, group| {
            let time = 10 * US + group * US;
            let outer = packet.event(time, 16, &[1, group]);
            let inner = (1..=INSIDE).fold(outer, |packet, name| {
                let (time, id) = (time + 10 * name, 16 + 2 * name as u32);
                packet.event(time, id, &[1]).event(time + 5, id + 1, &[1])
            });
            inner.event(time + 900, 17, &[1])
        });
        let made = made.stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

        let json = check(&made, &["--by", "v", "--json"], GROUPS * (INSIDE + 1));

        let others = "\"name\":null";
        assert_eq!(json.matches(others).count() as u64, GROUPS - (1 << 16) / INSIDE);
    });
}

/// There are 10,000 groups, and the slowest region of each has more than a thousand intervals.
#[test]
fn many_groups_take_bounded_memory() {
    child::in_own_process(|| {
        const NAMES: u64 = 1_000;
        const GROUPS: u64 = 9_000;
        let schemas = (0..NAMES).flat_map(|name| {
            [format!("r{name}_begin(id:u64,v:u64)"), format!("r{name}_end(id:u64)")]
        });
        let made = session(&Vec::from_iter(schemas), true);
        let lease = Packet::new(1, 0, 0).with64(80, 9);
        let mut packet = lease.event_str(1_000, 1, &[9, 42, 100, 0], b"x");
        let mut switches = Vec::new();
        let (away, back) = (switch((100, "x"), 1, (9, "y")), switch((9, "y"), 0, (100, "x")));
        switches.push((HOST_BASE + 2_000, SCHED_SWITCH_ID, 9, back.clone()));
        let mut time = 10 * US;
        for first in (0..GROUPS).step_by(NAMES as usize) {
            for name in 0..NAMES {
                packet = packet.event(time, 16 + 2 * name as u32, &[1, first + name]);
            }
            for _ in 0..600 {
                switches.push((HOST_BASE + time + 10, SCHED_SWITCH_ID, 100, away.clone()));
                switches.push((HOST_BASE + time + 20, SCHED_SWITCH_ID, 9, back.clone()));
                time += 30;
            }
            time += US;
            for name in 0..NAMES {
                packet = packet.event(time, 17 + 2 * name as u32, &[1]);
            }
            time += US;
        }
        switches.push((HOST_BASE + time + US, SCHED_SWITCH_ID, 100, away));
        let made = made.stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);
        kernel(&made, &switches);

        for (form, group) in [(None, "]: 1 region"), (Some("--json"), "\"breakdown\":")] {
            let args: Vec<&str> = ["--by", "v"].into_iter().chain(form).collect();
            let printed = check(&made, &args, GROUPS);
            assert_eq!(printed.matches(group).count() as u64, GROUPS, "{form:?}");
        }
    });
}
