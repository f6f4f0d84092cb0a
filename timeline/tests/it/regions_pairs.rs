// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of regions in sessions made event by event: which begin and end belong together, and which regions
//! are not counted.

use crate::made_regions;
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_timeline::regions::{self, *};
use hypertrace_timeline::{Given, Recording};
use made::{Made, Packet};
use made_regions::*;
use vcpu::{Vcpu, What};

#[test]
fn what_is_no_pair_is_counted_by_its_kind() {
    /// Events, the number of counted regions, and how many regions are not counted for each reason.
    type Case = (&'static [(u32, u64, u32, u64)], u64, &'static [(&'static str, u64)]);
    const ONE_OF_EACH: [(&str, u64); 2] = [("begin_without_end", 1), ("end_without_begin", 1)];
    let cases: [Case; 12] = [
        (&[(0, 10, B, 1), (0, 20, E, 1), (0, 30, B, 1), (0, 40, E, 1)], 2, &[]),
        (&[(0, 10, B, 1), (1, 15, B, 1), (0, 20, E, 1), (1, 30, E, 1)], 2, &[]),
        (&[(0, 10, B, 1)], 0, &[("begin_without_end", 1)]),
        (&[(0, 10, E, 1)], 0, &[("end_without_begin", 1)]),
        (&[(0, 10, B, 1), (0, 20, B, 1), (0, 30, E, 1)], 0, &[("id_twice", 1)]),
        (&[(0, 1, B, 1), (0, 2, B, 1), (0, 3, B, 1), (0, 4, E, 1)], 0, &[("id_twice", 2)]),
        (&[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 2), (0, 4, E, 1)], 2, &[]),
        (&[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 1), (0, 4, E, 2)], 2, &[]),
        // The end is on another client.
        (&[(0, 10, B, 1), (1, 20, E, 1)], 0, &ONE_OF_EACH),
        // Another open region does not change this result, whether the other region ends or not.
        (&[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 2), (1, 4, E, 1)], 1, &ONE_OF_EACH),
        (
            &[(0, 1, B, 1), (0, 2, B, 2), (1, 3, E, 1), (1, 4, E, 2)],
            0,
            &[("begin_without_end", 2), ("end_without_begin", 2)],
        ),
        (&[(0, 10, E, 1), (1, 20, B, 1)], 0, &ONE_OF_EACH),
    ];
    for (made, count, kinds) in cases {
        let regions = all(&vcpu::session(&events(made)));
        assert_eq!(counts(&regions), (count, kinds.to_vec()), "{made:?}");
    }
}

#[test]
fn ids_of_two_sessions_are_not_the_same() {
    let made = [(); 2].map(|()| vcpu::session(&events(&[(0, 10, B, 1), (0, 20, E, 1)])));
    let recording = Recording::open(&made.each_ref().map(|made| Given::new(made.path()))).unwrap();

    let regions = Regions::of(&recording, &Options::default()).unwrap();

    assert_eq!(counts(&regions), (2, vec![]));
    assert_eq!(regions.samples().map(|s| s.session).collect::<Vec<_>>(), [0, 1]);
    // Regions of two sessions are in different groups.
    let groups = regions.groups.iter().map(|group| (group.session, group.count));
    assert_eq!(Vec::from_iter(groups), [(0, 1), (1, 1)]);
    assert_eq!(regions.samples().map(|s| s.group).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn an_empty_region_costs_what_the_client_has_measured_itself() {
    let json = made::json(&made::clocks(), EMPTY_EVENTS, "[]");
    let client = |number, empty: &[u64]| {
        let first = region(Packet::guest(number), 16, 1, 1_000, 2_000);
        empty.iter().enumerate().fold(first, |packet, (n, time)| {
            let from = 10_000 * (n as u64 + 1);
            region(packet, 18, n as u64, from, from + time)
        })
    };
    // The first client's median is 20. The second client has no median, a larger median, or a smaller median.
    for (second, by_client, of_all) in [
        (&[][..], [Some(20), None], None),
        (&[5_000][..], [Some(20), Some(5_000)], Some(20)),
        (&[7, 9][..], [Some(20), Some(7)], Some(7)),
    ] {
        let made = Made::with_json(&json)
            .stream("guest-000-0000", &[Packet::guest(0), client(0, &[10, 20, 900])])
            .stream("guest-001-0000", &[Packet::guest(1), client(1, second)]);
        let select = || Select::Names(vec!["a".into(), "empty".into()]);
        let options = |by| Options { select: select(), by, ..Options::default() };
        let empty = |by| {
            let regions = read(&made, &options(by));
            let groups = regions.groups.iter().filter(|group| group.name == "a");
            groups.map(|group| group.empty_ns).collect::<Vec<_>>()
        };
        assert_eq!(empty(By::Thread), by_client);
        assert_eq!(empty(By::Nothing), [of_all]);
    }
}

#[test]
fn a_client_that_uses_up_the_groups_leaves_one_for_other_values() {
    let json = made::json(&made::clocks(), EMPTY_EVENTS, "[]");
    let many = (0..regions::MAX_GROUPS as u64)
        .fold(Packet::guest(0), |packet, n| region(packet, 16, n, 1_000 + 10 * n, 1_005 + 10 * n));
    let few = region(Packet::guest(1), 16, 1 << 40, 900_000, 901_000);
    let made = Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), many])
        .stream("guest-001-0000", &[Packet::guest(1), few]);

    let regions = read(&made, &Options { by: By::Field("v".into()), ..Options::default() });

    assert!(regions.has_others && !regions.is_cut);
    assert!(regions.groups.len() <= regions::MAX_GROUPS);
    assert_eq!(counts(&regions), (regions::MAX_GROUPS as u64 + 1, vec![]));
    let other = regions.groups.last().unwrap();
    assert_eq!(other.value(), Some("other values"));
    assert_eq!(other.durations_ns().last(), Some(&1_000));
}

#[test]
fn a_value_of_the_end_groups_regions_whose_begin_has_none() {
    let events = r#"[{"id":16,"schema":"a_begin(id:u64)","reference_point":false},
        {"id":17,"schema":"a_end(id:u64,status:u32)","reference_point":false}]"#;
    let packet = Packet::guest(0)
        .event(10, 16, &[1])
        .event(20, 17, &[1, 200])
        .event(30, 16, &[2])
        .event(50, 17, &[2, 500])
        .event(60, 16, &[3]);
    let made = Made::with_json(&made::json(&made::clocks(), events, "[]"));
    let made = made.stream("guest-000-0000", &[Packet::guest(0), packet]);
    let of = |by: &str| {
        let regions = read(&made, &Options { by: By::Field(by.into()), ..Options::default() });
        let groups = regions.groups.iter();
        groups
            .map(|group| (group.value().map(str::to_owned).unwrap(), group.durations_ns().to_vec()))
            .collect::<Vec<_>>()
    };

    // The third region never ended.
    let expected = [("none", vec![]), ("200", vec![10]), ("500", vec![20])];
    assert_eq!(of("status"), expected.map(|(value, ns)| (value.to_owned(), ns)));
    // Both events have this field, and the value of the begin counts.
    assert_eq!(of("id").len(), 3);
}

#[test]
fn a_long_value_is_cut() {
    let events = r#"[{"id":16,"schema":"a_begin(id:u64,v:str)","reference_point":false},
        {"id":17,"schema":"a_end(id:u64)","reference_point":false}]"#;
    let text = "é".repeat(1_000);
    let packet = Packet::guest(0).event_str(10, 16, &[1], text.as_bytes()).event(20, 17, &[1]);
    let made = Made::with_json(&made::json(&made::clocks(), events, "[]"));
    let made = made.stream("guest-000-0000", &[Packet::guest(0), packet]);

    let regions = read(&made, &Options { by: By::Field("v".into()), ..Options::default() });

    assert_eq!(regions.groups[0].value(), Some(&*("é".repeat(50) + "…")));
}

#[test]
fn a_begin_that_never_ends_is_not_kept_forever() {
    let mut made: Vec<_> = (0..3_000).map(|n| (0, 10 + n, B, n)).collect();
    made.push((0, 4_000, E, 2_999));
    made.push((0, 4_001, E, 0));

    let regions = all(&vcpu::session(&events(&made)));

    // One region ended inside other regions. The end of the first region came too late.
    let kinds = vec![("begin_without_end", 2_999), ("end_without_begin", 1)];
    assert_eq!(counts(&regions), (1, kinds));
}

#[test]
fn a_region_that_never_ends_takes_no_other_out() {
    let pair = |n| [(0, 100 + 10 * n, B, n), (0, 105 + 10 * n, E, n)];
    let mut made: Vec<_> = (0..1_000).flat_map(pair).collect();
    made.retain(|(_, _, event, id)| (*event, *id) != (E, 100));

    let regions = all(&vcpu::session(&events(&made)));
    assert_eq!(counts(&regions), (999, vec![("begin_without_end", 1)]));
    assert_eq!(regions.groups[0].children, []);

    // Then the open region ends, too.
    made.push((0, 20_000, E, 100));
    let regions = all(&vcpu::session(&events(&made)));
    assert_eq!(counts(&regions), (1_000, vec![]));
    assert_eq!(regions.groups[0].children[0].count, 899);
}

#[test]
fn a_new_holder_has_no_regions_of_the_one_before() {
    let lease = |time: u64, pid: u64| lease(0, time, pid, pid, pid);
    let first = lease(1, 50).event(10, B, &[1, 0]).event(20, B, &[2, 0]);
    // The new holder uses the id 1, which the first holder also used, and the id 3. The last event of the new
    // holder ends a region that the new holder did not begin.
    let second = lease(30, 51).after(&first).event(40, B, &[3, 0]).event(50, E, &[3]);
    let second = second.event(60, B, &[1, 0]).event(70, E, &[1]).event(80, E, &[2]);
    let made = stream(Made::of_programs(vcpu::EVENTS), 0, &[first, second]);

    let regions = all(&made);

    let kinds = vec![("begin_without_end", 2), ("end_without_begin", 1)];
    assert_eq!(counts(&regions), (2, kinds));
}

#[test]
fn a_region_over_lost_events_of_its_client_is_not_counted() {
    let first = Packet::guest(0).event(10, B, &[1, 0]).event(20, E, &[1]);
    // 5 events were dropped after this packet's events.
    let second = Packet::guest(0).after(&first).with64(56, 5).event(30, B, &[2, 0]);
    let third = Packet::guest(0).after(&second).event(40, E, &[2]);
    let third = third.event(50, B, &[3, 0]).event(60, E, &[3]);
    let made = vcpu::session(&[]);
    let made = made.stream("guest-000-0000", &[Packet::guest(0), first, second, third]);

    let regions = all(&made);

    assert_eq!(counts(&regions), (2, vec![("lost_events", 1)]));
    assert_eq!(regions.samples().map(|sample| sample.id).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn an_id_may_be_used_again_after_its_end_was_lost() {
    let first = Packet::guest(0).event(10, B, &[1, 0]);
    // The end of the first region is among 5 events that were dropped after this packet's events.
    let second = Packet::guest(0).after(&first).with64(56, 5).event(20, vcpu::WORK, &[0]);
    let third = Packet::guest(0).after(&second).event(30, B, &[1, 0]).event(40, E, &[1]);
    let made = vcpu::session(&[]);
    let made = made.stream("guest-000-0000", &[Packet::guest(0), first, second, third]);

    let regions = all(&made);

    assert_eq!(counts(&regions), (1, vec![("lost_events", 1)]));
    assert_eq!(regions.samples().next().unwrap().begin_ns % 1_000, 30);
}

#[test]
fn lost_events_are_said_with_their_number() {
    let made = vcpu::session(&[]);
    let lossy = |client: u32, lost: u64| {
        let first = Packet::guest(client).event(10, B, &[1, 0]).event(20, E, &[1]);
        let second = Packet::guest(client).after(&first).with64(56, lost);
        [Packet::guest(client), first, second.event(30, B, &[2, 0])]
    };
    let made = made.stream("guest-000-0000", &lossy(0, 5)).stream("guest-001-0000", &lossy(1, 70));
    let host = Packet::host(1).with64(56, 3).event(40, vcpu::RUN, &[1]);
    let made = made.stream("host-001-0000", &[Packet::host(1), host]);
    let made = made.stream("guest-002-0000", &lossy(2, 0));

    let warnings = all(&made).warnings;

    let said = |part: &str| warnings.iter().filter(|said| said.contains(part)).count();
    assert_eq!(said("75 events of 2 sources were lost"), 1, "{warnings:?}");
    assert_eq!(
        said("3 events of threads of the VMM or without a ring were lost"),
        1,
        "{warnings:?}"
    );
    assert_eq!(said("lost"), 2, "{warnings:?}");
}

#[test]
fn a_full_ring_of_a_thread_spoils_the_regions_of_its_own_clients() {
    let regions = [(0, 100, B, 1), (0, 900, E, 1), (1, 100, B, 1), (1, 900, E, 1)];
    let mut vcpus = events(&regions.map(|(c, time, event, id)| (c, 10_000 + time, event, id)));
    for vcpu in &mut vcpus {
        vcpu.events.insert(0, (10_050, What::Point(10_045)));
    }
    let made = vcpu::session(&vcpus);
    // The second vCPU's thread loses 5 events of its own.
    let lease = [10, 42, 101, 0];
    let first = Packet::host(1).with64(80, 10).event_str(1_000, 1, &lease, b"vcpu1");
    let payload = [1, 0, 1, made::GUEST_BASE + 10_045, 10_050];
    let first = first.flagged(10_050, vcpu::POINT, 1, &payload, 0);
    let second = Packet::host(1).with64(80, 10).after(&first).with64(56, 5);
    let second = second.event(10_500, vcpu::RUN, &[1]);
    let third = Packet::host(1).with64(80, 10).after(&second).event(11_500, vcpu::RUN, &[1]);
    let made = made.stream("host-001-0000", &[Packet::host(1), first, second, third]);

    let regions = all(&made);

    assert_eq!(counts(&regions), (1, vec![("lost_events", 1)]));
    assert_eq!(regions.samples().next().unwrap().client(), Some(0));
}

#[test]
fn regions_over_lost_events_of_the_kernel_are_not_counted() {
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let made = vcpu::session(&vcpus);
    let mut kernel = Vec::new();
    for (time, what) in &vcpus[0].events {
        if let What::Kernel(id, payload) = what {
            kernel.push((vcpu::HOST_BASE + time, *id, 100, payload.clone()));
        }
    }
    let half = kernel.len() / 2;
    let (before, after) = (kernel[half - 20].0, kernel[half + 20].0);
    let mut pages = trace_dat::Page::all(&kernel[..half - 19]);
    let mut rest = trace_dat::Page::all(&kernel[half + 20..]);
    rest[0] = std::mem::take(&mut rest[0]).missed(true);
    pages.extend(rest);
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&pages);
    made.kernel(&trace);

    let regions = all(&made);

    // Counts the regions that overlap the gap.
    let mut within = 0;
    let mut begun = None;
    for (time, what) in &vcpus[0].events {
        match what {
            What::Guest(B, _) => begun = Some(vcpu::HOST_BASE + time),
            What::Guest(E, _) => {
                within += u64::from(begun.unwrap() <= after && vcpu::HOST_BASE + time >= before);
            }
            _ => {}
        }
    }
    assert!(within >= 2, "{within}");
    assert_eq!(counts(&regions), (40 - within, vec![("lost_events", within)]));
    assert_eq!(regions.groups[0].total.times.get(Part::Unknown), 0);
}

#[test]
fn a_region_in_a_gap_is_found_although_one_that_ended_before_is_known_later() {
    let us = 1_000;
    let exit = [[48u32, 0, 0, 0, 1, 0].map(u32::to_le_bytes).concat()].concat();
    let at = |tid: u32, times: &[u64]| {
        let event =
            |time: &u64| (vcpu::HOST_BASE + time * us, trace_dat::KVM_EXIT_ID, tid, exit.clone());
        trace_dat::Page::all(&times.iter().map(event).collect::<Vec<_>>())
    };
    for has_other in [false, true] {
        // The kernel has no event of the first thread between 20 and 900 us, so the reader finishes this
        // thread's account only after 900 us.
        let regions =
            [(0, 90 * us, B, 1), (0, 100 * us, E, 1), (1, 150 * us, B, 1), (1, 170 * us, E, 1)];
        let mut vcpus = events(if has_other { &regions } else { &regions[2..] });
        for (vcpu, points) in vcpus.iter_mut().zip([&[5, 88, 1000][..], &[5, 148, 171, 250, 1000]])
        {
            let point = |time: &u64| (time * us, What::Point(time * us - 100));
            vcpu.events.extend(points.iter().map(point));
            vcpu.events.sort_by_key(|(time, _)| *time);
        }
        let made = vcpu::session(&vcpus);
        let mut second = at(101, &[20, 140, 160]);
        second.extend(at(101, &[300, 900]).into_iter().map(|page| page.missed(true)));
        let trace = trace_dat::TraceDat::new("x86-tsc").option(trace_dat::recorded(made::BOOT, 0));
        let trace = trace.cpu(&at(100, &[20, 900])).cpu(&second);
        made.kernel(&trace);

        let (_, kinds) = counts(&all(&made));

        let lost = kinds.iter().find(|(kind, _)| *kind == "lost_events").map(|(_, count)| *count);
        assert_eq!(lost, Some(1), "{has_other}: {kinds:?}");
    }
}

#[test]
fn a_region_over_a_jump_of_the_clock_is_not_counted() {
    let vcpus = [Vcpu::rounds(0, 60, 5)];
    let mut made = vcpu::session(&vcpus);
    // The guest's clock jumps ahead by a millisecond in the region 30.
    let at = vcpus[0].events.iter().position(|(_, what)| *what == What::Guest(B, vec![30, 0]));
    let from = vcpus[0].events[at.unwrap()].0 + 1;
    let ahead = |time: u64| if time >= from { time + 1_000_000 } else { time };
    let (mut guest, mut host) = (Packet::guest(0), Packet::host(0));
    for (time, what) in &vcpus[0].events {
        match what {
            What::Guest(id, fields) => guest = guest.event(ahead(*time), *id, fields),
            What::Vmm(id, fields) => host = host.event(*time, *id, fields),
            What::Point(at) => {
                let payload = [0, 0, 1, made::GUEST_BASE + ahead(*at), *time];
                host = host.flagged(*time, vcpu::POINT, 1, &payload, 0);
            }
            What::VmmText(..) | What::Kernel(..) => {}
        }
    }
    made = made.stream("guest-000-0000", &[Packet::guest(0), guest]);
    made = made.stream("host-000-0000", &[Packet::host(0), host]);

    let (count, kinds) = counts(&all(&made));

    assert_eq!(kinds, [("clock_jump", 60 - count)]);
    // The region with the jump is not counted. If the constraints do not show on which side of a border the
    // jump is, the reader also leaves out the region on the other side.
    assert!((57..60).contains(&count), "{count}");
}

#[test]
fn a_client_that_moves_to_another_thread_in_a_region_is_not_counted() {
    let at = |time: u64| 10_000 + time;
    let regions = [(100, B, 1), (200, E, 1), (300, B, 2), (600, E, 2), (700, B, 3), (800, E, 3)];
    let mut vcpus = events(&regions.map(|(time, event, id)| (0, at(time), event, id)));
    let points = [50, 250, 350].map(|time| (at(time), What::Point(at(time) - 5)));
    vcpus[0].events.extend(points);
    vcpus[0].events.sort_by_key(|(time, _)| *time);
    let made = vcpu::session(&vcpus);
    // After a part of the region 2, another thread serves the client.
    let host = Packet::host(1).with64(80, 10).event_str(1, 1, &[10, 42, 101, 0], b"vcpu1");
    let payload = |time: u64| [0, 0, 1, made::GUEST_BASE + at(time) - 5, at(time)];
    let host = host.flagged(at(500), vcpu::POINT, 1, &payload(500), 0);
    let host = host.flagged(at(900), vcpu::POINT, 1, &payload(900), 0);
    let made = made.stream("host-001-0000", &[Packet::host(1), host]);

    let (count, kinds) = counts(&all(&made));

    assert_eq!((count, kinds), (2, vec![("migration", 1)]));
}

/// Schemas of the events of regions with the field `any_client`.
const ANY_EVENTS: &str = r#"[
    {"id":16,"schema":"boot_begin(id:u64,any_client:bool)","reference_point":false},
    {"id":17,"schema":"boot_end(id:u64,any_client:bool)","reference_point":false}
]"#;

/// Reads a session of regions with the field `any_client`. Each entry has a client, a time, the id of the
/// event, and the id of the region. After its events, the first client loses `lost` events.
fn of_any_client(made: &[(u32, u64, u32, u64)], lost: u64) -> Regions {
    let mut session = Made::with_json(&made::json(&made::clocks(), ANY_EVENTS, "[]"));
    for client in 0..2 {
        let own = made.iter().filter(|(of, ..)| *of == client);
        let packet = own.fold(Packet::guest(client), |packet, (_, time, event, id)| {
            packet.event(made::GUEST_BASE + time, *event, &[*id, 1])
        });
        let name = format!("guest-{client:03}-0000");
        let next =
            Packet::guest(client).after(&packet).with64(56, if client == 0 { lost } else { 0 });
        session = session.stream(&name, &[Packet::guest(client), packet, next]);
    }
    all(&session)
}

#[test]
fn a_region_of_any_client_ends_on_another() {
    let made = [(0, 10, 16, 1), (1, 500, 17, 1), (1, 600, 16, 1), (0, 900, 17, 1)];

    let regions = of_any_client(&made, 0);

    assert_eq!(counts(&regions), (2, vec![]));
    let durations = regions.samples().map(|sample| sample.end_ns() - sample.begin_ns);
    assert_eq!(durations.collect::<Vec<_>>(), [490, 300]);
    assert!(regions.samples().all(|sample| sample.client().is_none()));
}

#[test]
fn regions_of_any_client_have_no_children() {
    let twenty = (0..20).flat_map(|n| [(0, 20 + 2 * n, 16, n + 2), (0, 21 + 2 * n, 17, n + 2)]);
    let made = Vec::from_iter([(0, 10, 16, 1)].into_iter().chain(twenty).chain([(1, 90, 17, 1)]));

    let regions = of_any_client(&made, 0);

    assert_eq!(counts(&regions), (21, vec![]));
    assert_eq!(regions.groups[0].children, []);
}

#[test]
fn a_region_of_any_client_needs_its_own_end() {
    let made = [(0, 10, 16, 1), (0, 20, 16, 1), (1, 30, 17, 1), (1, 40, 17, 2), (1, 50, 16, 3)];
    let kinds = vec![("begin_without_end", 1), ("end_without_begin", 1), ("id_twice", 1)];
    assert_eq!(counts(&of_any_client(&made, 0)), (0, kinds));
}

#[test]
fn a_region_of_any_client_over_lost_events_is_not_counted() {
    let made = [(0, 10, 16, 1), (1, 500, 17, 1)];
    assert_eq!(counts(&of_any_client(&made, 3)), (0, vec![("lost_events", 1)]));
}

#[test]
fn a_region_that_a_child_process_ends_too_is_its_parents() {
    let lease = |client: u32, pid: u64, time: u64| lease(client, time, pid, pid, pid);
    let parent = lease(0, 50, 1).event(10, B, &[1, 0]).event(30, E, &[1]);
    let parent = parent.event(40, B, &[2, 0]).event(50, E, &[2]);
    let child = lease(1, 51, 15).event(20, E, &[1]);
    let made = stream(Made::of_programs(vcpu::EVENTS), 0, &[parent]);
    let made = stream(made, 1, &[child]);

    let regions = all(&made);

    // The child's event ends no region, because the child began no region.
    assert_eq!(counts(&regions), (2, vec![("end_without_begin", 1)]));
    assert!(regions.groups[0].is_program);
}
