// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions of sessions made event by event: pairing, and where their time went.

mod made;
#[path = "made/trace_dat.rs"]
mod trace_dat;
#[path = "made/vcpu.rs"]
mod vcpu;

use hypertrace_timeline::regions::{
    self, By, Kind, MOST_WINDOWS, Options, Part, Regions, Select, Window, lanes,
};
use hypertrace_timeline::{ClockMaps, KernelTrace, Session};
use made::{Made, Packet};
use vcpu::{Vcpu, What};

/// Reads a session with its kernel.dat.
fn read(made: &Made, options: &Options) -> Regions {
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
    Regions::of(&[(session, maps)], &traces, options).unwrap()
}

fn all(made: &Made) -> Regions {
    read(made, &Options::default())
}

fn with_kernel(vcpus: &[Vcpu], keep: impl Fn(usize) -> bool) -> Made {
    let made = vcpu::session(vcpus);
    std::fs::write(made.path().join("kernel.dat"), vcpu::trace(vcpus, keep).version_7()).unwrap();
    made
}

const PARTS: [Part; 5] = [Part::Guest, Part::Kernel, Part::Vmm, Part::Runnable, Part::Blocked];

#[test]
fn the_parts_are_those_of_the_machine() {
    let vcpus = [Vcpu::rounds(0, 300, 50), Vcpu::rounds(1, 200, 20)];

    let regions = all(&with_kernel(&vcpus, |_| true));

    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!((group.name.as_str(), group.count()), ("batch", 500));
    assert_eq!(group.not_counted, [0; Kind::ALL.len()]);
    let times = group.total.times;
    assert_eq!(times.get(Part::Unattributed), 0);
    for (number, part) in PARTS.into_iter().enumerate().skip(1) {
        let truth: u64 = vcpus.iter().map(|vcpu| vcpu.truth[number]).sum();
        assert_eq!(times.get(part), truth, "{part:?}");
    }
    // A region begins and ends in the guest, whose times have a bound.
    let guest: u64 = vcpus.iter().map(|vcpu| vcpu.truth[0]).sum();
    let off = times.get(Part::Guest).abs_diff(guest);
    assert!(off <= guest / 500 + 500, "{off} of {guest}");
    let kernel: u64 = group.total.exits.iter().map(|(_, _, ns)| ns).sum();
    assert_eq!(kernel, times.get(Part::Kernel));
    let reason = &regions.reasons[usize::from(group.total.exits[0].0)];
    assert_eq!((reason.as_str(), group.total.exits[0].1), ("mmio write", 550.0));
    for sample in regions.samples() {
        assert_eq!(sample.times.total(), sample.duration_ns());
    }
    let slowest = group.slowest.as_ref().unwrap();
    let example = slowest.example.as_ref().unwrap();
    assert!(example.is_whole);
    let within: u64 = example.intervals.iter().map(|i| (i.to - i.from) as u64).sum();
    assert_eq!(within, slowest.times.total());
    assert_eq!(slowest.times.total(), *group.durations_ns().last().unwrap());
}

#[test]
fn the_guest_runs_on_after_an_exit_that_the_kernel_completes() {
    // As recorded by default: no event begins an exit, and a stamp has one event only.
    let mut vcpus = [Vcpu::rounds(0, 300, 50)];
    let is_recorded =
        |what: &What| !matches!(what, What::Kernel(id, _) if *id == trace_dat::KVM_EMULATE_INSN_ID);
    vcpus[0].events.retain(|(_, what)| is_recorded(what));

    let regions = all(&with_kernel(&vcpus, |_| true));

    let times = regions.groups[0].total.times;
    let [guest, kernel, vmm, runnable, blocked] = vcpus[0].truth;
    for (part, truth) in [(Part::Vmm, vmm), (Part::Runnable, runnable), (Part::Blocked, blocked)] {
        assert_eq!(times.get(part), truth, "{part:?}");
    }
    assert_eq!(times.get(Part::Unattributed), 0);
    // The first 20 to 49 ns of an exit are the guest's.
    let early = kernel - times.get(Part::Kernel);
    assert!((330 * 20..330 * 50).contains(&early), "{early}");
    let off = times.get(Part::Guest).abs_diff(guest + early);
    assert!(off <= guest / 500 + 500, "{off} of {guest}");
    assert_eq!(regions.groups[0].total.exits[0].1, 300.0);
}

#[test]
fn a_trace_beside_another_session_of_the_boot_shows_the_threads_too() {
    let vcpus = [Vcpu::rounds(0, 30, 5), Vcpu::rounds(1, 20, 2)];
    let (guest, own) = (vcpu::session(&vcpus), with_kernel(&vcpus, |_| true));
    let recorder = Made::of_boot(Some(made::BOOT));
    let trace = own.path().join("kernel.dat");
    std::fs::copy(trace, recorder.path().join("kernel.dat")).unwrap();
    let sessions = Session::open_all(&[guest.path(), recorder.path()]).unwrap().into_iter();
    let sessions = Vec::from_iter(sessions.map(|session| {
        let maps = ClockMaps::of(&session).unwrap();
        (session, maps)
    }));
    let traces = Vec::from_iter(KernelTrace::of_session(1, &sessions[1].0).unwrap());

    let beside = Regions::of(&sessions, &traces, &Options::default()).unwrap();

    let times = |regions: &Regions| regions.groups[0].total.times;
    assert_eq!(times(&beside), times(&all(&own)));
    assert_eq!(times(&beside).get(Part::Unattributed), 0);
}

#[test]
fn a_trace_of_other_threads_or_of_the_same_again_changes_nothing() {
    let vcpus = [Vcpu::rounds(0, 30, 5)];
    let made = with_kernel(&vcpus, |_| true);
    // Of another thread, with kinds of events that the session's own trace does not have.
    let exit = [48u32, 0, 0, 0, 1, 0].map(u32::to_le_bytes).concat();
    let at = |time: u64| (vcpu::HOST_BASE + time, trace_dat::KVM_EXIT_ID, 500, exit.clone());
    let other =
        trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&[at(10), at(9_000)]));
    let (id, version) = trace_dat::recorded(made::BOOT, 0);
    let other = other.option(id, version);
    let path = made.path().join("other.dat");
    for bytes in [other.version_7(), vcpu::trace(&vcpus, |_| true).version_7()] {
        std::fs::write(&path, bytes).unwrap();
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let mut traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
        let mut trace = KernelTrace::open(&path).unwrap();
        trace.join(0, &session);
        traces.push(trace);

        let both = Regions::of(&[(session, maps)], &traces, &Options::default()).unwrap();

        let own = all(&made);
        let times = |regions: &Regions| Vec::from_iter(regions.samples().map(|s| s.times));
        assert_eq!(times(&both), times(&own));
        assert_eq!(both.groups[0].total.times.get(Part::Unattributed), 0);
    }
}

#[test]
fn events_that_no_file_holds_are_said() {
    let counted = |events: u64| {
        let streams = format!(r#"[{{"domain":"guest","client":0,"clock":1,"events":{events}}}]"#);
        let json = made::json(&made::clocks(), EMPTY_EVENTS, &streams);
        let packet = region(Packet::guest(0), 16, 1, 1_000, 2_000);
        let made = Made::with_json(&json);
        all(&made.stream("guest-000-0000", &[Packet::guest(0), packet])).warnings
    };
    assert_eq!(counted(2), [""; 0]);
    let said = counted(7);
    assert!(said.len() == 1 && said[0].contains("5 events that session.json counts"), "{said:?}");
}

#[test]
fn regions_before_the_recording_are_counted_apart() {
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let half = vcpu::kernel_events(&vcpus) / 2;

    let regions = all(&with_kernel(&vcpus, |number| number >= half));

    let (count, kinds) = counts(&regions);
    assert_eq!(kinds, [("not_recorded", 40 - count)]);
    assert!((15..25).contains(&count), "{count}");
    let group = &regions.groups[0];
    assert_eq!(group.total.times.get(Part::Unattributed), 0);
    let kernel: u64 = group.total.exits.iter().map(|(_, _, ns)| ns).sum();
    assert_eq!(kernel, group.total.times.get(Part::Kernel));
    assert_eq!(regions.samples().count() as u64, count);
}

#[test]
fn regions_after_a_cpus_last_losses_are_counted_apart() {
    let vcpus = [Vcpu::rounds(0, 40, 5), Vcpu::rounds(1, 40, 5)];
    let own = vcpu::kernel_events(&vcpus[..1]);
    // The rest of CPU 0's events are missing; those of CPU 1 continue.
    let keep = |number: usize| number < own / 2 || number >= own;
    let made = vcpu::session(&vcpus);
    let of = |dat: trace_dat::TraceDat| {
        std::fs::write(made.path().join("kernel.dat"), dat.version_7()).unwrap();
        let regions = all(&made);
        let unattributed = regions.groups[0].total.times.get(Part::Unattributed);
        let not_recorded = regions.groups[0].not_counted[Kind::NotRecorded as usize];
        (regions.groups[0].count(), unattributed > 0, not_recorded)
    };
    // Nothing says so: the time is unattributed.
    assert_eq!(of(vcpu::trace(&vcpus, keep)), (80, true, 0));
    // The kernel counted them (option 2).
    let counters = b"CPU: 0\noverrun: 0\ndropped events: 7\n\0".to_vec();
    let (count, unattributed, rest) = of(vcpu::trace(&vcpus, keep).option(2, counters));
    assert!(!unattributed && count + rest == 80 && (30..50).contains(&rest), "{count} {rest}");
}

#[test]
fn a_hundredth_of_the_kernels_events_missing_makes_unattributed_time_only() {
    let vcpus = [Vcpu::rounds(0, 120, 20)];
    let whole = all(&with_kernel(&vcpus, |_| true));
    let mut unattributed = 0;
    for phase in 0..100 {
        let regions = all(&with_kernel(&vcpus, |number| number % 100 != phase));

        let pairs = regions.samples().zip(whole.samples());
        for (sample, complete) in pairs {
            assert_eq!(sample.duration_ns(), complete.duration_ns());
            for part in PARTS.into_iter().chain([Part::Off]) {
                let (with, without) = (complete.times.get(part), sample.times.get(part));
                assert!(
                    without <= with,
                    "{phase} {part:?}: {with} {without}, {complete:?} {sample:?}"
                );
            }
        }
        assert_eq!(regions.samples().count(), whole.samples().count());
        unattributed += regions.groups[0].total.times.get(Part::Unattributed);
    }
    assert!(unattributed > 100_000, "{unattributed}");
}

#[test]
fn without_a_kernels_trace_all_time_is_unattributed() {
    let vcpus = [Vcpu::rounds(0, 20, 5)];

    let regions = all(&vcpu::session(&vcpus));

    assert!(!regions.has_kernel);
    let total = regions.groups[0].total.times;
    assert_eq!((regions.groups[0].count(), total.get(Part::Unattributed)), (20, total.total()));
}

#[test]
fn regions_are_grouped_by_client_thread_and_field() {
    let vcpus = [Vcpu::rounds(0, 30, 5), Vcpu::rounds(1, 20, 5)];
    let made = with_kernel(&vcpus, |_| true);
    let by = |by| {
        let regions = read(&made, &Options { by, ..Options::default() });
        let groups = regions.groups.iter();
        groups.map(|g| (g.value.clone().unwrap(), g.count())).collect::<Vec<_>>()
    };
    let expected = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
        all.iter().map(|(value, count)| ((*value).into(), *count)).collect()
    };
    assert_eq!(by(By::Client), expected(&[("0", 30), ("1", 20)]));
    assert_eq!(by(By::Vcpu), expected(&[("vmm/vcpu0", 30), ("vmm/vcpu1", 20)]));
    // The id modulo 3.
    assert_eq!(by(By::Field("kind".into())), expected(&[("0", 17), ("1", 17), ("2", 16)]));
}

#[test]
fn between_two_events_regions_need_no_id() {
    let vcpus = [Vcpu::rounds(0, 30, 5)];
    let made = with_kernel(&vcpus, |_| true);
    let between = |a: &str, b: &str| {
        let select = Select::Between(a.into(), b.into());
        read(&made, &Options { select, ..Options::default() })
    };
    let vmm = between("vcpu_exit", "vcpu_run");
    assert_eq!((vmm.groups[0].name.as_str(), vmm.groups[0].count()), ("vcpu_exit to vcpu_run", 32));
    let times = vmm.groups[0].total.times;
    let off = [Part::Runnable, Part::Blocked].map(|part| times.get(part)).iter().sum::<u64>();
    assert_eq!(times.get(Part::Vmm) + off, times.total());
    assert_eq!(vmm.samples().next().unwrap().client(), None);
    let points = between("done", "done");
    assert_eq!(points.groups[0].count(), 31);
    assert_eq!(points.groups[0].bound_ns, Some(0), "both are on the host's clock");
    assert_eq!(points.groups[0].not_counted[Kind::BeginWithoutEnd as usize], 1);
}

#[test]
fn between_two_events_the_last_of_several_begins_counts() {
    // Of the first three begins, two are replaced; of the ends, two are not waited for.
    let made = [(B, 1), (B, 2), (B, 3), (E, 1), (E, 2), (E, 3)];
    let made = made.iter().zip(10..).map(|((event, id), time)| (0, time, *event, *id));
    let one_client = vcpu::session(&events(&Vec::from_iter(made)));
    let between = |made: &Made, a: &str, b: &str| {
        let select = Select::Between(a.into(), b.into());
        read(made, &Options { select, ..Options::default() })
    };
    let has_hint = |regions: &Regions| {
        regions.warnings.iter().any(|said| said.contains("both must be of the same client"))
    };

    let regions = between(&one_client, "batch_begin", "batch_end");
    assert_eq!(counts(&regions), (1, vec![("begin_without_end", 2)]));
    assert!(!has_hint(&regions));

    let other_order = vcpu::session(&events(&[(0, 10, E, 1), (0, 20, B, 1)]));
    let regions = between(&other_order, "batch_begin", "batch_end");
    assert_eq!(counts(&regions), (0, vec![("begin_without_end", 1)]));
    assert!(!has_hint(&regions), "one client has both events");

    let two_clients = vcpu::session(&events(&[(0, 10, B, 1), (1, 20, E, 1)]));
    assert!(has_hint(&between(&two_clients, "batch_begin", "batch_end")));
}

/// Returns the number of counted regions, and those of the kinds that are not.
fn counts(regions: &Regions) -> (u64, Vec<(&'static str, u64)>) {
    let mut kinds = Vec::new();
    for (kind, name) in Kind::ALL {
        let count: u64 = regions.groups.iter().map(|g| g.not_counted[kind as usize]).sum();
        if count > 0 {
            kinds.push((name, count));
        }
    }
    (regions.groups.iter().map(|group| group.count()).sum(), kinds)
}

const B: u32 = vcpu::BEGIN;
const E: u32 = vcpu::END;

/// Makes vCPUs' events of regions: client, time, id of the event, id of the region.
fn events(events: &[(u32, u64, u32, u64)]) -> Vec<Vcpu> {
    let clients = events.iter().map(|(client, ..)| client + 1).max().unwrap_or(0);
    let mut vcpus: Vec<Vcpu> = (0..clients).map(|number| Vcpu::new(number, 1)).collect();
    for (client, time, event, id) in events {
        let fields: &[u64] = if *event == B { &[*id, 0] } else { &[*id] };
        vcpus[*client as usize].events.push((*time, What::Guest(*event, fields.to_vec())));
    }
    vcpus
}

#[test]
fn what_is_no_pair_is_counted_by_its_kind() {
    /// Events, the number of counted regions, and those of the kinds that are not.
    type Case = (&'static [(u32, u64, u32, u64)], u64, &'static [(&'static str, u64)]);
    let cases: [Case; 12] = [
        (&[(0, 10, B, 1), (0, 20, E, 1), (0, 30, B, 1), (0, 40, E, 1)], 2, &[]),
        (&[(0, 10, B, 1), (1, 15, B, 1), (0, 20, E, 1), (1, 30, E, 1)], 2, &[]),
        (&[(0, 10, B, 1)], 0, &[("begin_without_end", 1)]),
        (&[(0, 10, E, 1)], 0, &[("end_without_begin", 1)]),
        (&[(0, 10, B, 1), (0, 20, B, 1), (0, 30, E, 1)], 0, &[("id_twice", 1)]),
        (&[(0, 1, B, 1), (0, 2, B, 1), (0, 3, B, 1), (0, 4, E, 1)], 0, &[("id_twice", 2)]),
        (&[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 2), (0, 4, E, 1)], 0, &[("nested", 2)]),
        (&[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 1), (0, 4, E, 2)], 0, &[("nested", 2)]),
        // On another client.
        (&[(0, 10, B, 1), (1, 20, E, 1)], 0, &[("migration", 1)]),
        // Also if others were open at the same time, which ended or did not.
        (
            &[(0, 1, B, 1), (0, 2, B, 2), (0, 3, E, 2), (1, 4, E, 1)],
            0,
            &[("nested", 1), ("migration", 1)],
        ),
        (&[(0, 1, B, 1), (0, 2, B, 2), (1, 3, E, 1), (1, 4, E, 2)], 0, &[("migration", 2)]),
        (&[(0, 10, E, 1), (1, 20, B, 1)], 0, &[("begin_without_end", 1), ("end_without_begin", 1)]),
    ];
    for (made, count, kinds) in cases {
        let regions = all(&vcpu::session(&events(made)));
        assert_eq!(counts(&regions), (count, kinds.to_vec()), "{made:?}");
    }
}

#[test]
fn ids_of_two_sessions_are_not_the_same() {
    let made = [(); 2].map(|()| vcpu::session(&events(&[(0, 10, B, 1), (0, 20, E, 1)])));
    let dirs = made.each_ref().map(|made| made.path());
    let sessions = Session::open_all(&dirs).unwrap().into_iter();
    let sessions = sessions.map(|session| {
        let maps = ClockMaps::of(&session).unwrap();
        (session, maps)
    });

    let regions = Regions::of(&Vec::from_iter(sessions), &[], &Options::default()).unwrap();

    assert_eq!(counts(&regions), (2, vec![]));
    assert_eq!(regions.samples().map(|s| s.session).collect::<Vec<_>>(), [0, 1]);
    // Nor are their regions.
    let groups = regions.groups.iter().map(|group| (group.session, group.count()));
    assert_eq!(Vec::from_iter(groups), [(0, 1), (1, 1)]);
    assert_eq!(regions.samples().map(|s| s.group).collect::<Vec<_>>(), [0, 1]);
}

/// Events of regions of any length, and of empty ones.
const EMPTY_EVENTS: &str = r#"[
    {"id":16,"schema":"a_begin(id:u64,v:u64)","reference_point":false},
    {"id":17,"schema":"a_end(id:u64)","reference_point":false},
    {"id":18,"schema":"empty_begin(id:u64)","reference_point":false},
    {"id":19,"schema":"empty_end(id:u64)","reference_point":false}
]"#;

/// Makes a region of a client, from a time to another.
fn region(packet: Packet, event: u32, id: u64, from: u64, to: u64) -> Packet {
    let fields: &[u64] = if event == 16 { &[id, id] } else { &[id] };
    packet.event(from, event, fields).event(to, event + 1, &[id])
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
    // The first client's median is 20; the second one has none, or less.
    for (second, by_client, of_all) in [
        (&[][..], [Some(20), None], None),
        (&[5_000][..], [Some(20), Some(5_000)], Some(20)),
        (&[7, 9][..], [Some(20), Some(7)], Some(7)),
    ] {
        let made = Made::with_json(&json)
            .stream("guest-000-0000", &[Packet::guest(0), client(0, &[10, 20, 900])])
            .stream("guest-001-0000", &[Packet::guest(1), client(1, second)]);
        let options = |by| Options { select: Select::Names(vec!["a".into(), "empty".into()]), by };
        let empty = |by| {
            let regions = read(&made, &options(by));
            let groups = regions.groups.iter().filter(|group| group.name == "a");
            groups.map(|group| group.empty_ns).collect::<Vec<_>>()
        };
        assert_eq!(empty(By::Client), by_client);
        assert_eq!(empty(By::Nothing), [of_all]);
    }
}

#[test]
fn a_client_that_uses_up_the_groups_leaves_one_for_other_values() {
    let json = made::json(&made::clocks(), EMPTY_EVENTS, "[]");
    let many = (0..regions::MOST_GROUPS as u64)
        .fold(Packet::guest(0), |packet, n| region(packet, 16, n, 1_000 + 10 * n, 1_005 + 10 * n));
    let few = region(Packet::guest(1), 16, 1 << 40, 900_000, 901_000);
    let made = Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), many])
        .stream("guest-001-0000", &[Packet::guest(1), few]);

    let regions = read(&made, &Options { by: By::Field("v".into()), ..Options::default() });

    assert!(regions.has_others && !regions.is_cut);
    assert!(regions.groups.len() <= regions::MOST_GROUPS);
    assert_eq!(counts(&regions), (regions::MOST_GROUPS as u64 + 1, vec![]));
    let other = regions.groups.last().unwrap();
    assert_eq!(other.value.as_deref(), Some("other values"));
    assert_eq!(other.durations_ns().last(), Some(&1_000));
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

    assert_eq!(regions.groups[0].value, Some("é".repeat(50) + "…"));
}

#[test]
fn a_begin_that_never_ends_is_not_kept_forever() {
    let mut made: Vec<_> = (0..3_000).map(|n| (0, 10 + n, B, n)).collect();
    made.push((0, 4_000, E, 2_999));
    made.push((0, 4_001, E, 0));

    let regions = all(&vcpu::session(&events(&made)));

    // One ended, in others; the first one's end came too late.
    let kinds = vec![("begin_without_end", 2_999), ("end_without_begin", 1), ("nested", 1)];
    assert_eq!(counts(&regions), (0, kinds));
}

#[test]
fn a_region_that_never_ends_makes_few_others_nested() {
    let pair = |n| [(0, 100 + 10 * n, B, n), (0, 105 + 10 * n, E, n)];
    let mut made: Vec<_> = (0..1_000).flat_map(pair).collect();
    made.retain(|(_, _, event, id)| (*event, *id) != (E, 100));

    let regions = all(&vcpu::session(&events(&made)));
    assert_eq!(counts(&regions), (983, vec![("begin_without_end", 1), ("nested", 16)]));

    // Its end, after all.
    made.push((0, 20_000, E, 100));
    let regions = all(&vcpu::session(&events(&made)));
    let kinds = vec![("begin_without_end", 1), ("end_without_begin", 1), ("nested", 16)];
    assert_eq!(counts(&regions), (983, kinds));

    // An end before that is its own.
    made.retain(|(_, _, event, id)| (*event, *id) != (E, 100));
    made.push((0, 105 + 10 * 115 + 1, E, 100));
    made.sort_by_key(|(_, time, ..)| *time);
    let regions = all(&vcpu::session(&events(&made)));
    assert_eq!(counts(&regions), (984, vec![("nested", 16)]));
}

#[test]
fn a_new_lessee_has_no_regions_of_the_one_before() {
    let json = made::json(&made::clocks(), vcpu::EVENTS, "[]");
    let json = json.replacen("\"version\":1,", "\"version\":1,\"programs\":true,", 1);
    let lease = |time: u64, pid: u64| {
        let fields = [pid, pid, pid, 0];
        Packet::new(1, 0, 0).with64(80, pid).event_str(time, 1, &fields, b"program")
    };
    let first = lease(1, 50).event(10, B, &[1, 0]).event(20, B, &[2, 0]);
    // The same id, another one, and an end that is not its own.
    let second = lease(30, 51).after(&first).event(40, B, &[3, 0]).event(50, E, &[3]);
    let second = second.event(60, B, &[1, 0]).event(70, E, &[1]).event(80, E, &[2]);
    let made = Made::with_json(&json);
    let made = made.stream("guest-000-0000", &[Packet::new(1, 0, 0), first, second]);

    let regions = all(&made);

    let kinds = vec![("begin_without_end", 2), ("end_without_begin", 1)];
    assert_eq!(counts(&regions), (2, kinds));
}

#[test]
fn a_region_over_lost_events_of_its_client_is_not_counted() {
    let first = Packet::guest(0).event(10, B, &[1, 0]).event(20, E, &[1]);
    // 5 events were dropped, after this packet's.
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
    // The end of the first is among 5 events that were dropped after this packet's.
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
    assert_eq!(said("75 events of 2 clients were lost"), 1, "{warnings:?}");
    assert_eq!(
        said("3 events of threads of the VMM or without a client were lost"),
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
    std::fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();

    let regions = all(&made);

    // Those that have a part of the gap.
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
    assert_eq!(regions.groups[0].total.times.get(Part::Unattributed), 0);
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
        // Between its kernel's events at 20 and 900 us, the first thread's account waits.
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
        let (id, version) = trace_dat::recorded(made::BOOT, 0);
        let trace = trace_dat::TraceDat::new("x86-tsc").option(id, version);
        let trace = trace.cpu(&at(100, &[20, 900])).cpu(&second);
        std::fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();

        let (_, kinds) = counts(&all(&made));

        let lost = kinds.iter().find(|(kind, _)| *kind == "lost_events").map(|(_, count)| *count);
        assert_eq!(lost, Some(1), "{has_other}: {kinds:?}");
    }
}

#[test]
fn a_region_over_a_jump_of_the_clock_is_not_counted() {
    let vcpus = [Vcpu::rounds(0, 60, 5)];
    let mut made = vcpu::session(&vcpus);
    // From the middle of the region 30 on, the guest's clock is a millisecond ahead.
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
            What::Kernel(..) => {}
        }
    }
    made = made.stream("guest-000-0000", &[Packet::guest(0), guest]);
    made = made.stream("host-000-0000", &[Packet::host(0), host]);

    let (count, kinds) = counts(&all(&made));

    assert_eq!(kinds, [("clock_jump", 60 - count)]);
    // The one with the jump, and those next to it where two constraints do not say on which side it is.
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
    // Another thread serves the client from the middle of the region 2 on.
    let host = Packet::host(1).with64(80, 10).event_str(1, 1, &[10, 42, 101, 0], b"vcpu1");
    let payload = |time: u64| [0, 0, 1, made::GUEST_BASE + at(time) - 5, at(time)];
    let host = host.flagged(at(500), vcpu::POINT, 1, &payload(500), 0);
    let host = host.flagged(at(900), vcpu::POINT, 1, &payload(900), 0);
    let made = made.stream("host-001-0000", &[Packet::host(1), host]);

    let (count, kinds) = counts(&all(&made));

    assert_eq!((count, kinds), (2, vec![("migration", 1)]));
}

#[test]
fn a_region_that_a_child_process_ends_too_is_not_counted() {
    let json = made::json(&made::clocks(), vcpu::EVENTS, "[]");
    let json = json.replacen("\"version\":1,", "\"version\":1,\"programs\":true,", 1);
    let lease = |client: u32, pid: u64| {
        let fields = [pid, pid, pid, 0];
        Packet::new(1, client, 0).with64(80, pid).event_str(1, 1, &fields, b"program")
    };
    let parent = lease(0, 50).event(10, B, &[1, 0]).event(30, E, &[1]);
    let parent = parent.event(40, B, &[2, 0]).event(50, E, &[2]);
    let child = lease(1, 51).event(20, E, &[1]);
    let made = Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::new(1, 0, 0), parent])
        .stream("guest-001-0000", &[Packet::new(1, 1, 0), child]);

    let regions = all(&made);

    // The child's end, and the region of the parent.
    assert_eq!(counts(&regions), (1, vec![("fork", 2)]));
    assert!(regions.groups[0].is_program);
}

#[test]
fn a_programs_time_is_its_own_while_it_has_a_cpu() {
    let json = made::json(&made::clocks(), vcpu::EVENTS, "[]");
    let json = json.replacen("\"version\":1,", "\"version\":1,\"programs\":true,", 1);
    let fields = [9, 50, 100, 0];
    let program = Packet::new(1, 0, 0).with64(80, 9).event_str(1, 1, &fields, b"program");
    let program = program.event(1_000, B, &[1, 0]).event(9_000, E, &[1]).event(9_500, B, &[2, 0]);
    let program = program.event(9_600, E, &[2]);
    let made = Made::with_json(&json).stream("guest-000-0000", &[Packet::new(1, 0, 0), program]);
    let (program, other) = ((100, "program"), (9, "other"));
    let at = |time: u64, id, payload| (vcpu::HOST_BASE + time, id, 100, payload);
    let switch = |from, state, to| trace_dat::switch(from, state, to);
    let kernel = [
        at(500, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(2_000, trace_dat::SCHED_SWITCH_ID, switch(program, 0x100, other)),
        at(2_500, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(4_000, trace_dat::SCHED_SWITCH_ID, switch(program, 1, other)),
        at(7_000, trace_dat::SCHED_WAKEUP_ID, trace_dat::wakeup(100, "program")),
        at(7_100, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(9_200, trace_dat::SCHED_SWITCH_ID, switch(program, 0x100, other)),
        at(9_300, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
    ];
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&kernel));
    std::fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();

    let regions = all(&made);
    let samples: Vec<_> = regions.samples().map(|sample| sample.times.0).collect();

    // program, kernel, vmm, runnable, blocked, off, unattributed.
    assert_eq!(samples, [[4_400, 0, 0, 600, 3_000, 0, 0]]);
    // After the kernel's last event, nothing is known.
    assert_eq!(counts(&regions), (1, vec![("not_recorded", 1)]));
}

#[test]
fn a_thread_beside_a_recorded_one_proves_nothing() {
    let json = made::json(&made::clocks(), vcpu::EVENTS, "[]");
    let json = json.replacen("\"version\":1,", "\"version\":1,\"programs\":true,", 1);
    let fields = [9, 50, 200, 0];
    let program = Packet::new(1, 0, 0).with64(80, 9).event_str(1, 1, &fields, b"program");
    let program = program.event(1_000, B, &[1, 0]).event(9_000, E, &[1]);
    let made = Made::with_json(&json).stream("guest-000-0000", &[Packet::new(1, 0, 0), program]);
    let (idle, host, program) = ((0, "idle"), (100, "host"), (200, "program"));
    let switch = |time: u64, from: (u32, &str), state, to| {
        let payload = trace_dat::switch(from, state, to);
        (vcpu::HOST_BASE + time, trace_dat::SCHED_SWITCH_ID, from.0, payload)
    };
    let start = |tid| {
        let payload = trace_dat::wakeup(program.0, program.1);
        (vcpu::HOST_BASE + 400, trace_dat::SCHED_WAKEUP_NEW_ID, tid, payload)
    };
    // In between, it may have slept.
    let (to, from) = (switch(500, host, 1, program), switch(9_900, program, 1, host));
    let exit = [48u32, 0, 0, 0, 1, 0].map(u32::to_le_bytes).concat();
    let exit = (vcpu::HOST_BASE + 450, trace_dat::KVM_EXIT_ID, program.0, exit);
    for (what, threads, first, is_recorded) in [
        ("without a filter", None, vec![to.clone()], true),
        ("in the filter", Some("100,200"), vec![to.clone()], true),
        ("not in the filter", Some("100"), vec![to.clone()], false),
        ("an empty filter", Some(""), vec![to.clone()], false),
        ("no number", Some("100,x200,-200,4294967496"), vec![to.clone()], false),
        ("started by one in it", Some("100"), vec![start(100), to.clone()], true),
        ("started by another one", Some("100"), vec![start(300), to.clone()], false),
        ("after the idle thread", Some("100"), vec![switch(500, idle, 0, program)], true),
        ("with an event of its own", Some("100"), vec![exit, to.clone()], true),
        ("one that ended", Some("100,200"), vec![switch(300, program, 0x20, host), to], false),
    ] {
        let kernel = [first, vec![from.clone()]].concat();
        let (id, version) = match threads {
            Some(threads) => trace_dat::recorded_with_threads(made::BOOT, threads),
            None => trace_dat::recorded(made::BOOT, 0),
        };
        let trace = trace_dat::TraceDat::new("x86-tsc").option(id, version).with_wakeup_new();
        let trace = trace.cpu(&trace_dat::Page::all(&kernel)).version_7();
        std::fs::write(made.path().join("kernel.dat"), trace).unwrap();

        let regions = all(&made);

        let parts = [Part::Guest, Part::Unattributed];
        let times = parts.map(|part| regions.groups[0].total.times.get(part));
        assert_eq!(times, if is_recorded { [8_000, 0] } else { [0, 8_000] }, "{what}");
        let said = regions.warnings.iter().filter(|said| said.contains("recorded the thread 200:"));
        // One that ended was recorded; its number is another thread's now.
        let is_said = !is_recorded && what != "one that ended";
        assert_eq!(said.count(), usize::from(is_said), "{what}: {:?}", regions.warnings);
    }
}

#[test]
fn without_switches_nothing_proves_that_a_thread_had_a_cpu() {
    let mut vcpus = [Vcpu::rounds(0, 60, 20)];
    let is_switch =
        |what: &What| matches!(what, What::Kernel(id, _) if *id == trace_dat::SCHED_SWITCH_ID);
    vcpus[0].events.retain(|(_, what)| !is_switch(what));
    let made = vcpu::session(&vcpus);
    let trace = vcpu::trace(&vcpus, |_| true).without("sched_switch");
    std::fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();

    let regions = all(&made);

    let total = regions.groups[0].total.times;
    assert_eq!((regions.groups[0].count(), total.get(Part::Unattributed)), (60, total.total()));
    let said = regions.warnings.iter().filter(|said| said.contains("-e sched:sched_switch"));
    assert_eq!(said.count(), 1, "{:?}", regions.warnings);
}

#[test]
fn false_readings_of_a_client_change_no_region_of_another() {
    // Client 0 has a point each 10 ms and a region of 5 ms after it. Client 1 claims, between these points,
    // that its clock stops and catches up.
    const MS: u64 = 1_000_000;
    let (mut guests, mut hosts) =
        ([Packet::guest(0), Packet::guest(1)], [Packet::host(0), Packet::host(1)]);
    let mut points = [0, 0];
    let mut point = |client: usize, time: u64, claim: u64| {
        points[client] += 1;
        let payload = [client as u64, 0, points[client], made::GUEST_BASE + claim, 0];
        hosts[client] = hosts[client].clone().flagged(time, vcpu::POINT, 1, &payload, 0);
    };
    for round in 1..200 {
        let start = round * 10 * MS;
        point(0, start, start - 1_000);
        let guest = guests[0].clone().event(start + 2_000, vcpu::WORK, &[0]);
        let guest = guest.event(start + 3 * MS, vcpu::BEGIN, &[round, 0]);
        guests[0] = guest.event(start + 8 * MS, vcpu::END, &[round]);
        point(1, start + 10_000, start + 9_000);
        guests[1] = guests[1].clone().event(start + 11_000, vcpu::WORK, &[0]);
        let claim = start + 100_000;
        point(1, start + 9 * MS, claim);
        guests[1] = guests[1].clone().event(claim + 2_000, vcpu::WORK, &[0]);
    }
    let mut made = Made::with_json(&made::json(&made::clocks(), vcpu::EVENTS, "[]"));
    for (number, (guest, host)) in guests.into_iter().zip(hosts).enumerate() {
        made = made.stream(&format!("guest-{number}"), &[Packet::guest(number as u32), guest]);
        made = made.stream(&format!("host-{number}"), &[Packet::host(number as u32), host]);
    }

    let regions = all(&made);

    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!((group.count(), group.not_counted), (199, [0; Kind::ALL.len()]));
    let bound = group.bound_ns.unwrap();
    assert!(bound <= 10_005, "{bound}: 0.2 % of 5 ms");
    for duration in group.durations_ns() {
        assert!(duration.abs_diff(5 * MS) <= bound, "{duration}");
    }
}

#[test]
fn a_thread_that_programs_of_two_processes_claim_is_nobodys() {
    let json = made::json(&made::clocks(), vcpu::EVENTS, "[]");
    let json = json.replacen("\"version\":1,", "\"version\":1,\"programs\":true,", 1);
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
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&kernel)).version_7();
    // 8 of 10 us are runnable. Another client names the same thread; if it is of another process, that is false.
    // Otherwise, the first one's program has begun another one.
    for (pid, of_first, claims) in
        [(None, [2_000, 8_000, 0], 0), (Some(51), [0, 0, 10_000], 1), (Some(50), [0, 0, 10_000], 0)]
    {
        let lease = |client: u32, pid: u64, time: u64| {
            let token = 9 + u64::from(client);
            let fields = [token, pid, 100, 0];
            Packet::new(1, client, 0).with64(80, token).event_str(time, 1, &fields, b"program")
        };
        let first = lease(0, 50, 1).event(10_000, B, &[1, 0]).event(20_000, E, &[1]);
        let made = Made::with_json(&json);
        let mut made = made.stream("guest-000-0000", &[Packet::new(1, 0, 0), first]);
        if let Some(pid) = pid {
            let work = lease(1, pid, 2).event(12_000, vcpu::WORK, &[0]);
            let second = work.event(15_000, vcpu::WORK, &[0]);
            made = made.stream("guest-001-0000", &[Packet::new(1, 1, 0), second]);
        }
        std::fs::write(made.path().join("kernel.dat"), &trace).unwrap();

        let regions = all(&made);

        let times = regions.groups[0].total.times;
        let parts = [Part::Guest, Part::Runnable, Part::Unattributed].map(|part| times.get(part));
        assert_eq!(parts, of_first, "{pid:?}");
        let said = regions.warnings.iter().filter(|said| said.contains("the thread 100 "));
        assert_eq!(said.count(), claims, "{:?}", regions.warnings);
    }
}

#[test]
fn the_lanes_of_a_window_are_what_its_threads_did() {
    let vcpus = [Vcpu::rounds(0, 60, 20), Vcpu::rounds(1, 60, 20)];
    let made = with_kernel(&vcpus, |_| true);
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
    let sessions = [(session, maps)];
    let regions = Regions::of(&sessions, &traces, &Options::default()).unwrap();
    let samples: Vec<_> = regions.samples().copied().collect();
    let window = |sample: &regions::Sample| Window {
        session: 0,
        client: sample.client(),
        begin: sample.begin_ns,
        end: sample.end_ns(),
        around: 0,
    };
    let windows: Vec<Window> = samples.iter().map(window).take(MOST_WINDOWS).collect();

    let (all, reasons) = lanes(&sessions, &traces, &windows).unwrap();

    assert_eq!(all.len(), MOST_WINDOWS);
    assert!(reasons.iter().any(|reason| reason == "mmio write"), "{reasons:?}");
    for ((lanes, window), sample) in all.iter().zip(&windows).zip(&samples) {
        let client = sample.client().unwrap();
        let own = &lanes.lanes[0];
        assert!(lanes.has_own && own.is_whole, "{lanes:?}");
        assert_eq!((own.tid, own.name.as_str()), (100 + client, &*format!("vmm/vcpu{client}")));
        assert_eq!((lanes.lanes.len(), lanes.left_out), (2, 0));
        let mut times = [0; 7];
        for interval in &own.intervals {
            assert!(window.begin <= interval.from && interval.to <= window.end, "{interval:?}");
            times[interval.part.unwrap() as usize] += (interval.to - interval.from) as u64;
        }
        assert_eq!(times, sample.times.0, "the region's parts");
        for lane in &lanes.lanes {
            assert!(lane.intervals.windows(2).all(|pair| pair[0].to == pair[1].from), "{lane:?}");
        }
    }
}
