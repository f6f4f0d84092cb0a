// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of programs and clients that say false things. Such programs and clients do not change the regions
//! of other programs. If a change cannot be prevented, the change is as small as possible.

use crate::made_regions;
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_timeline::regions::{self, *};
use made::{Made, Packet};
use made_regions::*;

/// Returns the times of a region: on a CPU, runnable, unknown.
fn parts(regions: &Regions, id: u64) -> [u64; 3] {
    let sample = regions.samples().find(|sample| sample.id == id).unwrap();
    [Part::OnCpu, Part::Runnable, Part::Unknown].map(|part| sample.times.get(part))
}

fn said(regions: &Regions, text: &str) -> usize {
    regions.warnings.iter().filter(|said| said.contains(text)).count()
}

/// Adds a kernel's trace in which thread 100 has a CPU from 500 to 11,000 and from 19,000 to 30,000.
fn with_switches(made: Made) -> Made {
    let (program, other) = ((100, "program"), (9, "other"));
    let switch = |time: u64, from, state, to| {
        let payload = trace_dat::switch(from, state, to);
        (vcpu::HOST_BASE + time, trace_dat::SCHED_SWITCH_ID, 9, payload)
    };
    let kernel = [
        switch(500, other, 0, program),
        switch(11_000, program, 0x100, other),
        switch(19_000, other, 0, program),
        switch(30_000, program, 1, other),
    ];
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&kernel));
    made.kernel(&trace);
    made
}

#[test]
fn a_thread_stays_with_the_program_that_has_it() {
    // For 8 of the region's 10 us, the thread is runnable. In the last two cases, another client names the
    // same thread.
    for (pid, claims) in [(None, 0), (Some(51), 1), (Some(50), 1)] {
        let first = lease(0, 1, 9, 50, 100).event(10_000, B, &[1, 0]).event(20_000, E, &[1]);
        let mut made = with_switches(stream(Made::of_programs(vcpu::EVENTS), 0, &[first]));
        if let Some(pid) = pid {
            let second = lease(1, 2, 10, pid, 100).event(10_500, B, &[2, 0]);
            made = stream(made, 1, &[second.event(10_600, E, &[2])]);
        }

        let regions = all(&made);

        assert_eq!(parts(&regions, 1), [2_000, 8_000, 0], "{pid:?}");
        if pid.is_some() {
            assert_eq!(parts(&regions, 2), [0, 0, 100]);
        }
        assert_eq!(said(&regions, "1 lease names thread 100 "), claims, "{:?}", regions.warnings);
    }
}

#[test]
fn a_program_that_another_one_replaces_leaves_it_the_thread() {
    let first = lease(0, 1, 9, 50, 100).event(1_000, B, &[1, 0]).event(2_000, E, &[1]);
    let second = lease(1, 3_000, 10, 50, 100).event(10_000, B, &[2, 0]).event(20_000, E, &[2]);
    let made = stream(Made::of_programs(vcpu::EVENTS), 0, &[first]);

    let regions = all(&with_switches(stream(made, 1, &[second])));

    assert_eq!(parts(&regions, 1), [1_000, 0, 0]);
    assert_eq!(parts(&regions, 2), [2_000, 8_000, 0]);
    assert_eq!(regions.warnings, [""; 0]);
}

#[test]
fn a_thread_with_events_of_two_programs_is_nobodys() {
    // The first program has an event while the thread has no CPU.
    let first = lease(0, 1, 9, 51, 100).event(15_000, vcpu::WORK, &[0]);
    let first = first.event(22_000, B, &[1, 0]).event(23_000, E, &[1]);
    let second = lease(1, 2, 10, 50, 100).event(20_000, B, &[2, 0]).event(21_000, E, &[2]);
    let made = stream(Made::of_programs(vcpu::EVENTS), 0, &[first]);

    let regions = all(&with_switches(stream(made, 1, &[second])));

    assert_eq!(parts(&regions, 1), [0, 0, 1_000]);
    assert_eq!(parts(&regions, 2), [0, 0, 1_000]);
    let line = "on 1 of these threads, the kernel's events contradict those of the first program";
    assert_eq!(said(&regions, line), 1, "{:?}", regions.warnings);
}

#[test]
fn many_leases_that_name_other_threads_leave_space_for_the_next_one() {
    let mut liars = vec![Packet::new(1, 1, 0)];
    for n in 0..20_000 {
        let packet = Packet::new(1, 1, 0).after(&liars[liars.len() - 1]);
        liars.push(lease_in(packet, 2 + n / 10, 100 + n, 51, 1_000 + n));
    }
    let victim = lease(0, 5_000, 9, 50, 100).event(10_000, B, &[1, 0]).event(20_000, E, &[1]);
    let made = stream(Made::of_programs(vcpu::EVENTS), 0, &[victim]);
    let made = stream(made, 1, &liars[1..]);

    let regions = all(&with_switches(made));

    assert_eq!(parts(&regions, 1), [2_000, 8_000, 0]);
}

#[test]
fn an_end_of_another_process_takes_no_region_of_the_name() {
    let pairs = (1..=9).map(|n| 1_000 * n);
    let first = lease(0, 1, 9, 50, 100);
    let first =
        pairs.fold(first, |packet, at| packet.event(at, B, &[1, 0]).event(at + 500, E, &[1]));
    // The second lease comes before all regions, within a region, or after all regions.
    for leased in [2, 5_100, 20_000] {
        let second = (0..20)
            .fold(lease(1, leased, 10, 51, 101), |packet, n| packet.event(30_000 + n, E, &[1]));
        let made = stream(Made::of_programs(vcpu::EVENTS), 0, std::slice::from_ref(&first));

        let regions = all(&stream(made, 1, &[second]));

        assert_eq!(counts(&regions), (9, vec![("end_without_begin", 20)]), "{leased}");
    }
}

#[test]
fn an_earlier_holder_of_a_client_measures_no_other_ones_empty_region() {
    let empties = |packet: Packet, from: u64, ns: u64| {
        (0..5).fold(packet, |packet, n| {
            region(packet, 18, n, from + 1_000 * n, from + 1_000 * n + ns)
        })
    };
    let first = empties(lease(0, 1, 9, 50, 100), 1_000, 900);
    for (own, expected) in [(None, None), (Some(20), Some(20))] {
        let packet = Packet::new(1, 0, 0).after(&first);
        let mut second = lease_in(packet, 50_000, 10, 51, 101);
        if let Some(ns) = own {
            second = empties(second, 60_000, ns);
        }
        let second = region(second, 16, 1, 90_000, 95_000);

        let regions = all(&stream(Made::of_programs(EMPTY_EVENTS), 0, &[first.clone(), second]));

        let group = regions.groups.iter().find(|group| group.name == "a").unwrap();
        assert_eq!(group.empty_ns, expected);
    }
}

#[test]
fn names_that_use_up_the_groups_leave_one_for_other_names() {
    let name = |n: u64| format!("x{n:05}");
    let most = regions::MAX_GROUPS as u64;
    let events = (0..=most).map(|n| {
        let (id, name) = (16 + 2 * n, name(n));
        format!(
            r#"{{"id":{id},"schema":"{name}_begin(id:u64)","reference_point":false}},
               {{"id":{},"schema":"{name}_end(id:u64)","reference_point":false}}"#,
            id + 1
        )
    });
    let json =
        made::json(&made::clocks(), &format!("[{}]", Vec::from_iter(events).join(",")), "[]");
    let packet = (0..=most).fold(Packet::guest(0), |packet, n| {
        let (event, from) = (16 + 2 * n as u32, 1_000 + 10 * n);
        packet.event(from, event, &[n]).event(from + 5, event + 1, &[n])
    });
    let made = Made::with_json(&json).stream("guest-000-0000", &[Packet::guest(0), packet]);

    let regions = all(&made);

    assert_eq!(counts(&regions), (most + 1, vec![]));
    assert!(regions.has_other_names && !regions.is_cut);
    assert_eq!(regions.groups.len(), regions::MAX_GROUPS);
    let other = regions.groups.last().unwrap();
    assert_eq!((other.name.as_str(), other.value(), other.count), ("other names", None, 2));
}
