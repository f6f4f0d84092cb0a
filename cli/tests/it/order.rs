//! Guest and VMM on one timeline: the order of reference points and exits, and of a client's events.

use std::collections::BTreeMap;

use hypertrace_abi::layout::{Geometry, PAGE, Region, register};
use hypertrace_guest::layout;
use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{capability, kvm};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const VCPUS: u32 = 2;

/// Records the demo's timeline. Returns `None` without KVM.
fn timeline() -> Option<Vec<Line>> {
    if !kvm::is_usable() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let demo: Demo = run(&mut HYPERTRACE.demo(dir.path(), VCPUS)).json();
    let lines = HYPERTRACE.report(dir.path());
    assert_eq!(lines.len() as u64, demo.records);
    capability::used("kvm");
    Some(lines)
}

#[test]
fn every_reference_point_is_between_its_vcpus_exit_and_next_entry() {
    let Some(lines) = timeline() else { return };
    let geometry = Geometry { clients: VCPUS, ..Geometry::default() };
    let control =
        layout::DEVICE + geometry.window_offset(Region::Control) + geometry.control_pages_offset();
    // The VMM's last event about each vCPU, and the number of points since that event.
    let mut last: BTreeMap<u64, (&Line, u64)> = BTreeMap::new();
    let mut points = 0;

    for line in &lines {
        if let Some(reference) = line.reference {
            let vcpu = u64::from(reference.client);
            let (exit, since) = last.get_mut(&vcpu).expect("the vCPU ran before");
            let emit = control + vcpu * PAGE + register::EMIT;
            assert_eq!((&*exit.event, exit.number("gpa")), ("vcpu_exit", Some(emit)), "{line:?}");
            assert!(exit.ts_ns < line.ts_ns, "{exit:?} {line:?}");
            assert_eq!(line.bound_ns, Some(0));
            *since += 1;
            points += 1;
        } else if line.event == "vcpu_exit" || line.event == "vcpu_run" {
            let vcpu = line.number("vcpu").expect("a number");
            if let Some((before, since)) = last.insert(vcpu, (line, 0)) {
                assert!(before.ts_ns < line.ts_ns && before.event != line.event, "{line:?}");
                let emit = Some(control + vcpu * PAGE + register::EMIT);
                assert_eq!(since == 1, before.number("gpa") == emit, "{before:?} {line:?}");
            }
        }
    }

    assert_eq!(points, VCPUS * 1_000);
    assert!(lines.is_sorted_by_key(|line| line.ts_ns), "in order of time");
}

#[test]
fn a_clients_ring_events_are_complete_in_order_and_none_twice() {
    let Some(lines) = timeline() else { return };
    let names = ["request", "cache_miss", "reply", "queue"];

    for client in 0..VCPUS {
        let own = lines.iter().filter(|line| line.client() == Some(client));
        let events = own.filter(|line| names.contains(&&*line.event)).enumerate();
        let mut count = 0;
        for (n, line) in events {
            assert_eq!(line.event, names[n % 4], "{line:?}");
            // The fourth kind of event has no number.
            assert!(n % 4 == 3 || line.number("id") == Some(n as u64), "{n}: {line:?}");
            count += 1;
        }
        // Four of a round's hundred events belong to its regions.
        assert_eq!(count, 96_000);
    }
}

#[test]
fn between_two_reference_points_every_events_bound_is_known() {
    let Some(lines) = timeline() else { return };

    for client in 0..VCPUS {
        let of_client = |line: &Line| line.reference.is_some_and(|r| r.client == client);
        let first = lines.iter().position(of_client).unwrap();
        let last = lines.iter().rposition(of_client).unwrap();
        let own = lines[first..last].iter().filter(|line| line.client() == Some(client));
        let unknown = own.clone().filter(|line| line.bound_ns.is_none()).count();
        assert!(own.count() > 99_000);
        assert_eq!(unknown, 0);
    }
}
