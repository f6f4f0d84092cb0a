// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions of sessions made event by event: pairing, and where their time went.

mod made;
#[path = "made/trace_dat.rs"]
mod trace_dat;
#[path = "made/vcpu.rs"]
mod vcpu;

use hypertrace_timeline::regions::{By, Kind, Options, Part, Regions, Select};
use hypertrace_timeline::{ClockMaps, KernelTrace, Session};
use made::Made;
use vcpu::Vcpu;

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
    assert_eq!(group.not_counted, [0; 8]);
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
