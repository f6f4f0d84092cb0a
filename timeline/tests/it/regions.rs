// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of regions in sessions made event by event: their pairing, and the division of their time.

use crate::made_regions;
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_timeline::regions::{
    self, By, Interval, NotCounted, Options, Part, Regions, Select, ThreadInterval, Times, Window,
};
use hypertrace_timeline::{ClockMaps, Consumer, Error, KernelTrace, Recording, Session};
use made::{Made, Packet};
use made_regions::*;
use std::collections::BTreeMap;
use vcpu::{Vcpu, What};

const PARTS: [Part; 5] = [Part::Guest, Part::Kernel, Part::Vmm, Part::Runnable, Part::Blocked];

/// Reads a session of vCPUs with its kernel.dat, and keeps what their threads did.
fn with_intervals(vcpus: &[Vcpu]) -> Regions {
    let options = Options { keeps_intervals: true, ..Options::default() };
    read(&with_kernel(vcpus, |_| true), &options)
}

#[test]
fn the_parts_are_those_of_the_machine() {
    let vcpus = [Vcpu::rounds(0, 300, 50), Vcpu::rounds(1, 200, 20)];

    let regions = with_intervals(&vcpus);

    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!((group.name.as_str(), group.count), ("batch", 500));
    assert_eq!(group.not_counted, [0; NotCounted::ALL.len()]);
    let times = group.total.times;
    assert_eq!(times.get(Part::Unknown), 0);
    for (number, part) in PARTS.into_iter().enumerate().skip(1) {
        let truth: u64 = vcpus.iter().map(|vcpu| vcpu.truth[number]).sum();
        assert_eq!(times.get(part), truth, "{part:?}");
    }
    // A region begins and ends at times of the guest, and these times have an error.
    let guest: u64 = vcpus.iter().map(|vcpu| vcpu.truth[0]).sum();
    let off = times.get(Part::Guest).abs_diff(guest);
    assert!(off <= guest / 500 + 500, "{off} of {guest}");
    let kernel: u64 = group.total.exits.iter().map(|exit| exit.kernel_ns).sum();
    assert_eq!(kernel, times.get(Part::Kernel));
    assert_eq!((&*group.total.exits[0].reason, group.total.exits[0].count), ("mmio write", 550.0));
    for sample in regions.samples() {
        assert_eq!(sample.times.total(), sample.duration_ns());
    }
    let slowest = group.breakdown.slowest.as_ref().unwrap();
    let (intervals, is_whole) = regions.steps(&slowest.example.unwrap());
    assert!(is_whole);
    let within: u64 = intervals.iter().map(|i| (i.to - i.from) as u64).sum();
    assert_eq!(within, slowest.times.total());
    assert_eq!(slowest.times.total(), *group.durations_ns().last().unwrap());
}

#[test]
fn of_a_guests_thread_the_host_knows_only_how_long_it_can_have_run() {
    let total = |process| {
        let mut vcpu = Vcpu::rounds(0, 60, 5);
        vcpu.process = process;
        let regions = read(&with_kernel(&[vcpu], |_| true), &Options::default());
        let total = &regions.groups[0].total;
        (total.times, total.guest_at_most_ns)
    };

    let (vcpu, most) = total(None);

    assert_eq!(most, None);
    // If the lease names no process, the client is the vCPU itself.
    assert_eq!(total(Some(0)), (vcpu, None));
    let (times, most) = total(Some(42));
    assert_eq!(most, Some(vcpu.get(Part::Guest)));
    assert_eq!((times.get(Part::Unknown), times.total()), (vcpu.total(), vcpu.total()));
}

/// Makes two vCPUs, and a region of a guest's thread that begins and ends on the first vCPU. During the
/// region, the first vCPU sleeps for a millisecond. During this millisecond, the second vCPU sleeps for 100
/// us.
fn two_vcpus() -> [Vcpu; 2] {
    let mut vcpus = [Vcpu::new(0, 7), Vcpu::new(1, 8)];
    vcpus[0].process = Some(42);
    for vcpu in &mut vcpus {
        vcpu.point(1 << 32);
        vcpu.preempted(1_000);
        vcpu.work(30_000);
    }
    let [first, second] = &mut vcpus;
    first.begin(0);
    first.work(1_000);
    first.blocked(1_000_000, 100);
    first.work(1_000);
    first.end(0);
    second.work(300_000);
    second.blocked(100_000, 100);
    second.work(300_000);
    second.point(2);
    for vcpu in &mut vcpus {
        vcpu.work(1_000_000);
        vcpu.preempted(1_000);
        vcpu.work(500);
        vcpu.point(2 << 32);
    }
    vcpus
}

#[test]
fn a_guests_thread_can_have_run_while_any_vcpu_was_in_guest_mode() {
    let vcpus = two_vcpus();
    // In the second case, the session has nothing of the second vCPU: its thread has no ring, and has
    // answered no point.
    for known in [2, 1] {
        let made = vcpu::session(&vcpus[..known]);
        made.kernel(&vcpu::trace(&vcpus, |_| true));

        let regions = all(&made);

        let total = &regions.groups[0].total;
        let (most, duration) = (total.guest_at_most_ns.unwrap(), total.times.total());
        // When the first vCPU fell asleep, the guest's thread may have moved to the second vCPU.
        assert!((850_000..=duration - 100_000).contains(&most), "{most} of {duration}");
    }
}

#[test]
fn a_guests_thread_whose_points_several_vcpus_answer_has_regions() {
    let mut vcpus = two_vcpus();
    vcpus[1].answers = Some(0);

    let regions = read(&with_kernel(&vcpus, |_| true), &Options::default());

    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!((group.count, group.not_counted), (1, [0; NotCounted::ALL.len()]));
    assert!(group.total.guest_at_most_ns.is_some_and(|most| most > 850_000), "{group:?}");
}

#[test]
fn an_interval_names_the_event_that_ended_it() {
    let vcpus = [Vcpu::rounds(0, 60, 5)];

    let regions = with_intervals(&vcpus);

    let slowest = regions.groups[0].breakdown.slowest.as_ref().unwrap();
    let (intervals, _) = regions.steps(&slowest.example.unwrap());
    let kernel = regions::Stream::Kernel { trace: 0, cpu: 0 };
    let vmm = regions::Stream::Thread(vcpus[0].tid());
    // The region's end cuts off the last interval, so no event ends this interval.
    let (_, intervals) = intervals.split_last().unwrap();
    for interval in intervals {
        let by = interval.ended_by.unwrap();
        let expected = match interval.part {
            // The VMM's event `vcpu_exit` ends the kernel's way to the VMM. The VMM's event `vcpu_run` ends
            // the VMM's own part.
            Part::Kernel => [(vmm, "vcpu_exit"), (kernel, "kvm:kvm_fpu")],
            Part::Vmm => [(vmm, "vcpu_run"), (kernel, "sched:sched_switch")],
            Part::Guest => [(kernel, "kvm:kvm_emulate_insn"), (kernel, "sched:sched_switch")],
            Part::Blocked => [(kernel, "sched:sched_wakeup"); 2],
            _ => [(kernel, "sched:sched_switch"); 2],
        };
        let name = &*regions.events[by.event as usize];
        assert!(expected.contains(&(by.stream, name)), "{interval:?} {name}");
        let made = (interval.to - made::START_NS) as u64;
        assert!(vcpus[0].events.iter().any(|(time, _)| *time == made), "{interval:?}");
    }
    assert!(intervals.len() > 5);
}

#[test]
fn the_guest_runs_on_after_an_exit_that_the_kernel_completes() {
    // A recording with the default events has no event that begins an exit, and a store to KICK causes only
    // one event.
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
    assert_eq!(times.get(Part::Unknown), 0);
    // The reader gives the first 20 to 49 ns of an exit to the guest.
    let early = kernel - times.get(Part::Kernel);
    assert!((330 * 20..330 * 50).contains(&early), "{early}");
    let off = times.get(Part::Guest).abs_diff(guest + early);
    assert!(off <= guest / 500 + 500, "{off} of {guest}");
    assert_eq!(regions.groups[0].total.exits[0].count, 300.0);
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

    let beside = Regions::of(&Recording::of(sessions, traces), &Options::default()).unwrap();

    let times = |regions: &Regions| regions.groups[0].total.times;
    assert_eq!(times(&beside), times(&all(&own)));
    assert_eq!(times(&beside).get(Part::Unknown), 0);
}

#[test]
fn a_trace_of_other_threads_or_of_the_same_again_changes_nothing() {
    let vcpus = [Vcpu::rounds(0, 30, 5)];
    let made = with_kernel(&vcpus, |_| true);
    // The other trace shows another thread, and has kinds of events that the session's own trace lacks.
    let exit = [48u32, 0, 0, 0, 1, 0].map(u32::to_le_bytes).concat();
    let at = |time: u64| (vcpu::HOST_BASE + time, trace_dat::KVM_EXIT_ID, 500, exit.clone());
    let other =
        trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&[at(10), at(9_000)]));
    let other = other.option(trace_dat::recorded(made::BOOT, 0));
    let path = made.path().join("other.dat");
    for bytes in [other.version_7(), vcpu::trace(&vcpus, |_| true).version_7()] {
        std::fs::write(&path, bytes).unwrap();
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let mut traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
        let mut trace = KernelTrace::open(&path).unwrap();
        trace.join(0, &session);
        traces.push(trace);

        let both =
            Regions::of(&Recording::of([(session, maps)], traces), &Options::default()).unwrap();

        let own = all(&made);
        let times = |regions: &Regions| Vec::from_iter(regions.samples().map(|s| s.times));
        assert_eq!(times(&both), times(&own));
        assert_eq!(both.groups[0].total.times.get(Part::Unknown), 0);
    }
}

#[test]
fn events_that_no_file_holds_are_said() {
    let counted = |events: u64| {
        let streams = format!(r#"[{{"domain":"guest","client":0,"clock":1,"events":{events}}}]"#);
        let json = made::json(&made::clocks(), vcpu::EVENTS, &streams);
        let packet = region(Packet::guest(0).event(900, vcpu::WORK, &[7]), 16, 1, 1_000, 2_000);
        let made = Made::with_json(&json);
        all(&made.stream("guest-000-0000", &[Packet::guest(0), packet])).warnings
    };
    assert_eq!(counted(3), [""; 0]);
    let said = counted(8);
    assert!(said.len() == 1 && said[0].contains("5 events that session.json counts"), "{said:?}");
}

#[test]
fn events_that_are_left_out_change_no_region() {
    // Without a log, the guest's events that neither begin nor end a region are left out.
    for vcpus in [[Vcpu::rounds(0, 60, 9)], [Vcpu::rounds(0, 9, 60)]] {
        for phase in 0..20 {
            let made = with_kernel(&vcpus, |number| number % 20 != phase);

            let with = read(&made, &Options { keeps_intervals: true, ..Options::default() });
            let without = all(&made);

            assert!(without.samples().eq(with.samples()), "{phase}");
            assert_eq!(without.warnings, with.warnings, "{phase}");
        }
    }
}

#[test]
fn regions_before_the_recording_are_counted_apart() {
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let half = vcpu::kernel_events(&vcpus) / 2;

    let regions = all(&with_kernel(&vcpus, |number| number >= half));

    let (count, kinds) = counts(&regions);
    assert_eq!(kinds, [("kernel_not_recorded", 40 - count)]);
    assert!((15..25).contains(&count), "{count}");
    let group = &regions.groups[0];
    assert_eq!(group.total.times.get(Part::Unknown), 0);
    let kernel: u64 = group.total.exits.iter().map(|exit| exit.kernel_ns).sum();
    assert_eq!(kernel, group.total.times.get(Part::Kernel));
    assert_eq!(regions.samples().count() as u64, count);
}

#[test]
fn regions_after_a_cpus_last_losses_are_counted_apart() {
    let vcpus = [Vcpu::rounds(0, 40, 5), Vcpu::rounds(1, 40, 5)];
    let own = vcpu::kernel_events(&vcpus[..1]);
    // The second half of CPU 0's events is missing, and the events of CPU 1 go on.
    let keep = |number: usize| number < own / 2 || number >= own;
    let made = vcpu::session(&vcpus);
    let of = |dat: trace_dat::TraceDat| {
        made.kernel(&dat);
        let regions = all(&made);
        let unknown = regions.groups[0].total.times.get(Part::Unknown);
        let not_recorded = regions.groups[0].not_counted[NotCounted::KernelNotRecorded as usize];
        (regions.groups[0].count, unknown > 0, not_recorded)
    };
    // Nothing says that events are missing, so the time is unknown.
    assert_eq!(of(vcpu::trace(&vcpus, keep)), (80, true, 0));
    // The kernel counted the missing events (option 2).
    let counters = b"CPU: 0\noverrun: 0\ndropped events: 7\n\0".to_vec();
    let (count, unknown, rest) = of(vcpu::trace(&vcpus, keep).option((2, counters)));
    assert!(!unknown && count + rest == 80 && (30..50).contains(&rest), "{count} {rest}");
}

#[test]
fn the_times_of_a_damaged_last_page_make_nothing_known() {
    use trace_dat::{KVM_MMIO_ID, Page, SCHED_SWITCH_ID};
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let kept = vcpu::kernel_events(&vcpus) / 2;
    let made = vcpu::session(&vcpus);
    let counted = |last: Option<Page>| {
        let first = Page::at(vcpu::HOST_BASE + 5_000).mmio(1, 500, 1);
        let pages: Vec<Page> = [first].into_iter().chain(last).collect();
        let trace = vcpu::trace(&vcpus, |number| number < kept).cpu(&pages);
        made.kernel(&trace);
        counts(&all(&made))
    };
    let late = || Page::at(vcpu::HOST_BASE + 100_000_000).mmio(1, 500, 1);
    let until_half = counted(None);
    assert!((10..30).contains(&until_half.0), "{until_half:?}");

    // Without a fault, nothing shows that the page's time is wrong.
    assert_eq!(counted(Some(late())).0, 40);
    let damages = [
        ("a record beyond the page", late().word(28)),
        ("no format of this id", late().event(1, 4_000, 500, &[1; 8])),
        ("shorter than its format", late().event(1, SCHED_SWITCH_ID, 500, &[1; 8])),
        ("backward", Page::at(u64::MAX - 5).mmio(1, 500, 1).event(9, KVM_MMIO_ID, 500, &[0; 32])),
    ];
    for (damage, page) in damages {
        // No region had begun before the first page's event.
        let (count, kinds) = counted(Some(page));
        assert_eq!((count, kinds), (0, vec![("kernel_not_recorded", 40)]), "{damage}");
    }
}

#[test]
fn a_hundredth_of_the_kernels_events_missing_makes_unknown_time_only() {
    let vcpus = [Vcpu::rounds(0, 120, 20)];
    let whole = all(&with_kernel(&vcpus, |_| true));
    let mut unknown = 0;
    for phase in 0..100 {
        let regions = all(&with_kernel(&vcpus, |number| number % 100 != phase));

        let pairs = regions.samples().zip(whole.samples());
        for (sample, complete) in pairs {
            assert_eq!(sample.duration_ns(), complete.duration_ns());
            for part in PARTS.into_iter().chain([Part::OffCpu]) {
                let (with, without) = (complete.times.get(part), sample.times.get(part));
                assert!(
                    without <= with,
                    "{phase} {part:?}: {with} {without}, {complete:?} {sample:?}"
                );
            }
        }
        assert_eq!(regions.samples().count(), whole.samples().count());
        unknown += regions.groups[0].total.times.get(Part::Unknown);
    }
    assert!(unknown > 100_000, "{unknown}");
}

#[test]
fn without_a_kernels_trace_all_time_is_unknown() {
    let vcpus = [Vcpu::rounds(0, 20, 5)];

    let regions = all(&vcpu::session(&vcpus));

    assert!(!regions.has_kernel);
    let total = regions.groups[0].total.times;
    assert_eq!((regions.groups[0].count, total.get(Part::Unknown)), (20, total.total()));
}

#[test]
fn regions_are_grouped_by_client_thread_and_field() {
    let vcpus = [Vcpu::rounds(0, 30, 5), Vcpu::rounds(1, 20, 5)];
    let made = with_kernel(&vcpus, |_| true);
    let by = |by| {
        let regions = read(&made, &Options { by, ..Options::default() });
        let groups = regions.groups.iter();
        groups.map(|g| (g.value().unwrap().to_owned(), g.count)).collect::<Vec<_>>()
    };
    let expected = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
        all.iter().map(|(value, count)| ((*value).into(), *count)).collect()
    };
    assert_eq!(by(By::Thread), expected(&[("guest/0", 30), ("guest/1", 20)]));
    assert_eq!(by(By::Vcpu), expected(&[("vmm/vcpu0", 30), ("vmm/vcpu1", 20)]));
    // The field is the id modulo 3.
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
    assert_eq!((vmm.groups[0].name.as_str(), vmm.groups[0].count), ("vcpu_exit to vcpu_run", 32));
    let times = vmm.groups[0].total.times;
    let off = [Part::Runnable, Part::Blocked].map(|part| times.get(part)).iter().sum::<u64>();
    assert_eq!(times.get(Part::Vmm) + off, times.total());
    assert_eq!(vmm.samples().next().unwrap().client(), None);
    let points = between("done", "done");
    assert_eq!(points.groups[0].count, 31);
    assert_eq!(points.groups[0].bound_ns, Some(0), "both are on the host's clock");
    assert_eq!(points.groups[0].not_counted[NotCounted::BeginWithoutEnd as usize], 1);
}

#[test]
fn a_vcpu_that_served_no_point_is_divided_as_one_that_did() {
    let served = Vcpu::rounds(0, 30, 5);
    let mut other = served.clone();
    other.events.retain(|(_, what)| !matches!(what, What::Point(_) | What::Guest(..)));
    let between = |vcpu: &Vcpu, a: &str, b: &str| {
        let select = Select::Between(a.into(), b.into());
        let made = with_kernel(std::slice::from_ref(vcpu), |_| true);
        let regions = read(&made, &Options { select, by: By::Vcpu, ..Options::default() });
        assert_eq!(regions.warnings, [""; 0]);
        let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
        (group.count, group.value().map(str::to_owned), group.total.times)
    };
    for (a, b, part) in
        [("vcpu_exit", "vcpu_run", Part::Vmm), ("vcpu_run", "vcpu_exit", Part::Guest)]
    {
        let (count, value, times) = between(&other, a, b);

        assert_eq!(value.as_deref(), Some("vmm/vcpu0"));
        assert!(count > 30 && times.get(part) > 0, "{count} {times:?}");
        assert_eq!(times.get(Part::Unknown), 0, "{times:?}");
        assert_eq!((count, value, times), between(&served, a, b));
    }
}

#[test]
fn a_region_of_a_vmms_thread_that_is_no_vcpu_is_divided() {
    let mut io = Vcpu::new(1, 1);
    io.name = "io".into();
    // The kernel's trace shows the thread before the thread has a lease.
    io.preempted(100);
    io.events.iter_mut().for_each(|(time, _)| *time -= 9_900);
    io.work(1_000_000);
    let begun = io.events.len();
    io.blocked(5_000, 100);
    io.work(200);
    io.preempted(700);
    io.work(20_000);
    let ended = io.events.len();
    io.preempted(700);
    let from = io.events[begun].0 - 300;
    let to = io.events[ended].0 - 300;
    io.events.insert(ended, (to, What::Vmm(E, vec![7])));
    io.events.insert(begun, (from, What::Vmm(B, vec![7, 0])));

    // The client has a thread of its own.
    let regions = all(&with_kernel(&[Vcpu::new(0, 1), io], |_| true));

    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    let times = group.total.times;
    assert_eq!((group.count, times.get(Part::Unknown)), (1, 0), "{times:?}");
    assert_eq!((times.get(Part::Blocked), times.get(Part::Runnable)), (5_000, 800), "{times:?}");
    assert_eq!((times.get(Part::Vmm), times.total()), (20_200, to - from));
    assert_eq!(regions.warnings, [""; 0]);
}

#[test]
fn between_two_events_the_last_of_several_begins_counts() {
    // The second begin replaces the first begin, and the third begin replaces the second begin. No begin is
    // open any more for the second end and the third end.
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

#[test]
fn a_programs_time_is_its_own_while_it_has_a_cpu() {
    let made = program(100, |lease| {
        let first = lease.event(1_000, B, &[1, 0]).event(9_000, E, &[1]);
        first.event(9_500, B, &[2, 0]).event(9_600, E, &[2])
    });
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
    made.kernel(&trace);

    let regions = all(&made);
    let samples: Vec<_> = regions.samples().map(|sample| sample.times.0).collect();

    // The times are in the order of `Part::ALL`.
    assert_eq!(samples, [[4_400, 0, 0, 0, 0, 0, 0, 600, 0, 3_000, 0, 0, 0]]);
    // After the kernel's last event, nothing is known.
    assert_eq!(counts(&regions), (1, vec![("kernel_not_recorded", 1)]));
}

#[test]
fn a_programs_wait_for_its_host_in_a_reference_point_is_blocked_time() {
    let made = program(100, |lease| lease.event(1_000, B, &[1, 0]).event(9_000, E, &[1]));
    // The host handles the point while the program's thread waits for it.
    let point = [0, 0, 1, made::GUEST_BASE + 3_900, 1];
    let host = Packet::host(0).flagged(5_000, vcpu::POINT, 1, &point, 0);
    let made = made.stream("host-000-0000", &[Packet::host(0), host]);
    let (program, other) = ((100, "program"), (9, "other"));
    let at = |time: u64, id, payload| (vcpu::HOST_BASE + time, id, 100, payload);
    let switch = |from, state, to| trace_dat::switch(from, state, to);
    let kernel = [
        at(500, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(4_000, trace_dat::SCHED_SWITCH_ID, switch(program, 1, other)),
        at(7_000, trace_dat::SCHED_WAKEUP_ID, trace_dat::wakeup(100, "program")),
        at(7_100, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(9_900, trace_dat::SCHED_SWITCH_ID, switch(program, 1, other)),
    ];
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&kernel));
    made.kernel(&trace);

    let regions = all(&made);
    let samples: Vec<_> = regions.samples().map(|sample| sample.times.0).collect();

    // The times are in the order of `Part::ALL`.
    assert_eq!(samples, [[4_900, 0, 0, 0, 0, 0, 0, 100, 0, 3_000, 0, 0, 0]]);
}

#[test]
fn a_thread_beside_a_recorded_one_proves_nothing() {
    let made = program(200, |lease| lease.event(1_000, B, &[1, 0]).event(9_000, E, &[1]));
    let (idle, host, program) = ((0, "idle"), (100, "host"), (200, "program"));
    let switch = |time: u64, from: (u32, &str), state, to| {
        let payload = trace_dat::switch(from, state, to);
        (vcpu::HOST_BASE + time, trace_dat::SCHED_SWITCH_ID, from.0, payload)
    };
    let start = |tid| {
        let payload = trace_dat::wakeup(program.0, program.1);
        (vcpu::HOST_BASE + 400, trace_dat::SCHED_WAKEUP_NEW_ID, tid, payload)
    };
    // Between both switches, the program may have slept.
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
        let trace = trace_dat::TraceDat::new("x86-tsc").option((id, version)).with_wakeup_new();
        made.kernel(&trace.cpu(&trace_dat::Page::all(&kernel)));

        let regions = all(&made);

        let parts = [Part::OnCpu, Part::Unknown];
        let times = parts.map(|part| regions.groups[0].total.times.get(part));
        assert_eq!(times, if is_recorded { [8_000, 0] } else { [0, 8_000] }, "{what}");
        let said = regions.warnings.iter().filter(|said| said.contains("recorded thread 200:"));
        // A thread that ended was recorded, and another thread has its number now.
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
    made.kernel(&trace);

    let regions = all(&made);

    let total = regions.groups[0].total.times;
    assert_eq!((regions.groups[0].count, total.get(Part::Unknown)), (60, total.total()));
    let said = regions.warnings.iter().filter(|said| said.contains("-e sched:sched_switch"));
    assert_eq!(said.count(), 1, "{:?}", regions.warnings);
}

#[test]
fn false_readings_of_a_client_change_no_region_of_another() {
    // Client 0 has a point each 10 ms, and a region of 5 ms after each point. Between the points of client 0,
    // client 1 claims that its clock stops and then makes up for the lost time.
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
    assert_eq!((group.count, group.not_counted), (199, [0; NotCounted::ALL.len()]));
    let bound = group.bound_ns.unwrap();
    assert!(bound <= 10_005, "{bound}: 0.2 % of 5 ms");
    for duration in group.durations_ns() {
        assert!(duration.abs_diff(5 * MS) <= bound, "{duration}");
    }
}

#[test]
fn the_lanes_of_a_window_are_what_its_threads_did() {
    let vcpus = [Vcpu::rounds(0, 60, 20), Vcpu::rounds(1, 60, 20)];
    let regions = with_intervals(&vcpus);

    let reasons = &regions.reasons;
    assert!(reasons.iter().any(|reason| **reason == *"mmio write"), "{reasons:?}");
    for sample in regions.samples() {
        let window = Window { begin: sample.begin_ns, end: sample.end_ns(), around: 0 };
        let lanes = regions.lanes(sample, &window);
        let client = sample.client().unwrap();
        let own = &lanes.lanes[0];
        assert!(lanes.has_own && own.is_whole, "{lanes:?}");
        assert_eq!((own.tid, own.name.as_str()), (100 + client, &*format!("vmm/vcpu{client}")));
        assert_eq!((lanes.lanes.len(), lanes.left_out), (2, 0));
        let mut times = [0; hypertrace_timeline::regions::PARTS];
        for interval in &own.intervals {
            assert!(window.begin <= interval.from && interval.to <= window.end, "{interval:?}");
            times[interval.part as usize] += (interval.to - interval.from) as u64;
        }
        assert_eq!(times, sample.times.0, "the region's parts");
        for lane in &lanes.lanes {
            assert!(lane.intervals.windows(2).all(|pair| pair[0].to == pair[1].from), "{lane:?}");
        }
    }
}

/// Intervals of threads.
#[derive(Default)]
struct Threads(BTreeMap<u32, Vec<Interval>>);

impl Consumer for Threads {
    type Error = Error;

    fn interval(&mut self, thread: &ThreadInterval<'_>) -> Result<(), Error> {
        self.0.entry(thread.tid).or_default().push(*thread.interval);
        Ok(())
    }
}

#[test]
fn intervals_that_are_handed_over_add_up_to_the_parts_of_regions() {
    let made = with_kernel(&[Vcpu::rounds(0, 400, 20), Vcpu::rounds(1, 40, 20)], |_| true);
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
    let mut threads = Threads::default();

    let recording = Recording::of([(session, maps)], traces);
    let regions = recording.regions(&Options::default(), &mut threads).unwrap();

    let Threads(threads) = threads;
    assert_eq!(threads.len(), 2);
    for intervals in threads.values() {
        assert!(intervals.windows(2).all(|pair| pair[0].to == pair[1].from), "no time is missing");
    }
    assert_eq!(regions.samples().count(), 440);
    for sample in regions.samples() {
        let (begin, end) = (sample.begin_ns, sample.end_ns());
        let has_same_parts = threads.values().any(|intervals| {
            let mut times = Times::default();
            for interval in intervals.iter().filter(|i| i.to > begin && i.from < end) {
                let ns = interval.to.min(end) - interval.from.max(begin);
                times.0[interval.part as usize] += ns as u64;
            }
            times == sample.times
        });
        assert!(has_same_parts, "{sample:?}");
    }
}

#[test]
fn paths_of_which_nothing_is_known_are_as_long_as_their_regions() {
    let made = vcpu::session(&[Vcpu::rounds(0, 300, 5)]);

    let regions = read(&made, &Options { has_paths: true, ..Options::default() });

    for group in &regions.groups {
        let of =
            [group.breakdown.median.as_ref(), group.breakdown.slowest.as_ref(), Some(&group.total)];
        for breakdown in of.map(Option::unwrap) {
            let sum: u64 = breakdown.path.iter().map(|step| step.ns).sum();
            assert_eq!(sum, breakdown.times.total());
        }
    }
}
