// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of how readers divide the time of a guest's threads. The readers use the events of both kernels: the
//! host's kernel and the guest's kernel. The tests compare the time with the truth of a simulated machine,
//! with all events and with some events missing.

use hypertrace_test_support::guest_mode::{MS, TIDS};
use hypertrace_test_support::machine::Random;
use hypertrace_test_support::made::START_NS;
use hypertrace_test_support::trace_dat::Counted;
use hypertrace_test_support::two_kernels::{HOG, REGIONS, STOLEN_MS, THREADS, World};
use hypertrace_timeline::regions::{
    By, Cause, Group, Interval, Options, Part, PathStep, Regions, Sample, ThreadInterval, Times,
    Unknown,
};
use hypertrace_timeline::{Consumer, Given, Recording, vcpu_threads};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum error of a time of the guest, in nanoseconds.
const BOUND: u64 = 3;

/// The regions that a reader found in a world.
struct Found {
    regions: Regions,
    /// Expected regions: thread, begin and end.
    expected: Vec<(usize, u64, u64)>,
}

fn read(world: &World) -> Found {
    read_with(world, &Options { keeps_intervals: true, ..Options::default() })
}

fn read_with(world: &World, options: &Options) -> Found {
    let made = world.made();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    assert_eq!(recording.unread.len(), 0, "{:?}", recording.unread);
    let regions = Regions::of(&recording, options).unwrap();
    let threads = world.threads.iter().enumerate();
    let all = threads.flat_map(|(thread, of)| of.regions.iter().map(move |r| (thread, r.0, r.1)));
    Found { regions, expected: all.filter(|(.., end)| *end > 0).collect() }
}

impl Found {
    /// Returns the regions that were counted, each with its thread and its number in `expected`.
    fn samples(&self) -> impl Iterator<Item = (&Sample, (usize, u64, u64))> {
        self.regions.samples().filter_map(|sample| {
            let begin = (sample.begin_ns - START_NS) as u64;
            let found = self.expected.iter().find(|(thread, from, _)| {
                sample.client() == Some(*thread as u32) && from.abs_diff(begin) <= BOUND
            });
            Some((sample, *found?))
        })
    }

    /// Returns the intervals that were given a wrong part.
    fn wrong(&self, world: &World) -> Vec<String> {
        let mut wrong = Vec::new();
        for (sample, (thread, from, to)) in self.samples() {
            let truth = world.truth(thread, from, to);
            for interval in self.regions.steps(sample).0 {
                let [from, to] = [interval.from, interval.to].map(|at| (at - START_NS) as u64);
                let mut others = truth.iter().filter(|(begin, end, part)| {
                    let length = (*end).min(to).saturating_sub((*begin).max(from));
                    *part != interval.part && length > BOUND
                });
                if let Some(other) = others.next().filter(|_| interval.part != Part::Unknown) {
                    wrong.push(format!("{}: {interval:?} is {other:?}", THREADS[thread]));
                }
            }
        }
        wrong
    }

    /// Asserts that no time was given a wrong part. Returns the found time in each part, and the true time in
    /// each part.
    #[track_caller]
    fn assert_nothing_wrong(&self, world: &World) -> (Times, Times) {
        assert_eq!(self.wrong(world), [""; 0]);
        let (mut sum, mut truth) = (Times::default(), Times::default());
        for (sample, (thread, from, to)) in self.samples() {
            let all = world.truth(thread, from, to);
            all.iter().for_each(|(from, to, part)| truth.0[*part as usize] += to - from);
            let mut parts = Times::default();
            let (intervals, _) = self.regions.steps(sample);
            intervals.iter().for_each(|i| parts.0[i.part as usize] += i.length());
            assert_eq!((parts, parts.total()), (sample.times, sample.duration_ns()));
            let off = sample.duration_ns().abs_diff(to - from);
            assert!(off <= 2 * BOUND, "{off} ns of {} {from} {to}", THREADS[thread]);
            sample.times.iter().for_each(|(part, ns)| sum.0[part as usize] += ns);
        }
        (sum, truth)
    }
}

#[test]
fn each_part_of_a_region_of_a_guests_thread_is_the_true_one() {
    let (mut all, mut hit) = (Times::default(), 0);
    for seed in 0..8 {
        let world = World::new(seed);

        let found = read(&world);

        assert_eq!(found.samples().count(), found.expected.len());
        assert_eq!(found.regions.warnings, [""; 0]);
        let (sum, truth) = found.assert_nothing_wrong(&world);
        // Only time within the bound of the clock's error is unknown.
        let unknown = sum.get(Part::Unknown);
        assert!(unknown * 500 <= sum.total(), "{unknown} of {}: {sum:?}, {truth:?}", sum.total());
        for (part, ns) in truth.iter().filter(|(part, _)| *part != Part::Unknown) {
            assert!(
                sum.get(part).abs_diff(ns) <= unknown + 4 * BOUND * 500,
                "{part:?}: {sum:?} {truth:?}"
            );
        }
        sum.iter().for_each(|(part, ns)| all.0[part as usize] += ns);
        hit += found.expected.len();
    }
    // The worlds have some time in each part.
    use Part::*;
    for part in [Guest, HostInterrupt, Kernel, Vmm, Stolen, Behind, Runnable, Halted, Blocked] {
        assert!(all.get(part) > 0, "{part:?}: {all:?}");
    }
    assert!(hit > 100, "{hit}");
}

/// Makes a world in which one of a hundred events of both kernels is lost.
fn lossy(seed: u64, counted: Counted) -> World {
    let mut world = World::new(seed);
    let mut r = Random(seed ^ 77);
    for list in 0..4 {
        let cpu = &world.cpus[list % 2];
        let events = if list < 2 { cpu.host.len() } else { cpu.guest.len() };
        world.lost[list] = (0..events).filter(|_| r.one_in(100)).map(|at| (at, counted)).collect();
    }
    world
}

#[test]
fn events_that_either_kernel_lost_and_counted_make_no_part_wrong() {
    for seed in 0..8 {
        let world = lossy(seed, Counted(true));

        let found = read(&world);

        found.assert_nothing_wrong(&world);
    }
}

#[test]
fn a_guests_cpu_may_have_another_number_than_its_vcpu() {
    let mut world = World::new(3);
    world.numbers = [1, 0];

    let found = read(&world);

    let (sum, _) = found.assert_nothing_wrong(&world);
    assert_eq!(found.samples().count(), found.expected.len());
    assert!(sum.get(Part::Stolen) > 0 && sum.get(Part::Unknown) * 500 <= sum.total(), "{sum:?}");
}

#[test]
fn two_guests_of_a_session_have_cpus_of_the_same_number() {
    let world = World::of_two_guests(6);

    let found = read(&world);

    let (sum, truth) = found.assert_nothing_wrong(&world);
    assert_eq!(found.regions.warnings, [""; 0]);
    assert!(found.samples().any(|(_, (thread, ..))| thread < 2));
    assert!(found.samples().any(|(_, (thread, ..))| thread > 1));
    assert!(sum.get(Part::Guest) > 0 && sum.get(Part::Unknown) * 500 <= sum.total(), "{sum:?}");
    assert!(truth.get(Part::Stolen) > 0, "{truth:?}");

    let found = read_paths(&world);

    let groups = found.regions.groups.iter();
    let divided = |group| found.assert_path(&world, group)[Unknown::Vcpu as usize];
    assert_eq!(groups.map(divided).sum::<u64>(), 0);
    let stolen = |group: &Group| group.total.path.iter().any(|step| step.part == Part::Stolen);
    assert!(found.regions.groups.iter().any(stolen));
}

/// What a reader says about the host, and about one of several guests.
#[derive(Debug, Default, PartialEq)]
struct Said {
    /// Intervals of the host's threads.
    host: Vec<String>,
    /// Regions of the guest's threads, and reasons why other regions are not counted.
    regions: Vec<String>,
}

impl Consumer for Said {
    type Error = hypertrace_timeline::Error;

    fn interval(&mut self, of: &ThreadInterval<'_>) -> Result<(), Self::Error> {
        let ThreadInterval { tid, interval, reason, cause, .. } = of;
        let Interval { from, to, part, .. } = interval;
        if !of.is_of_guest {
            // The line leaves out the session: a thread has a session only if events prove that the thread
            // runs a guest's CPU.
            let cause = cause.as_ref().map(Cause::to_string);
            self.host.push(format!("{tid} {from} {to} {part:?} {reason:?} {cause:?}"));
        }
        Ok(())
    }
}

impl Said {
    /// Reads what a reader says about the first of two guests.
    fn of_first(world: &World) -> Said {
        let made = world.made();
        let recording = Recording::open(&[Given::new(made.path())]).unwrap();
        let mut said = Said::default();
        recording.regions(&Options::default(), &mut said).unwrap();
        // Intervals of several threads come in the order in which they become known, so they are sorted.
        said.host.sort_unstable();
        for has_paths in [false, true] {
            let by = if has_paths { By::Field("id".into()) } else { By::Thread };
            let options = Options { by, has_paths, keeps_intervals: true, ..Options::default() };
            said.add(&Regions::of(&recording, &options).unwrap(), has_paths);
        }
        said
    }

    fn add(&mut self, regions: &Regions, has_paths: bool) {
        let cause = |number: u16| regions.cause(number);
        let is_first = |client: Option<u32>| client.is_some_and(|client| client < 2);
        for sample in regions.samples().filter(|sample| is_first(sample.client())) {
            let (steps, is_whole) = regions.steps(sample);
            let steps = steps.iter().map(|of| {
                let reason = &regions.reasons[usize::from(of.reason)];
                format!("{} {} {:?} {reason} {}", of.from, of.to, of.part, cause(of.cause))
            });
            let steps = Vec::from_iter(steps);
            let Sample { begin_ns, times, .. } = sample;
            self.regions.push(format!("{begin_ns} {times:?} {is_whole} {steps:#?}"));
        }
        for group in &regions.groups {
            let value = group.value().and_then(|value| value.parse::<u64>().ok());
            let client = value.map(|value| if has_paths { value / REGIONS } else { value });
            if !is_first(client.map(|client| client as u32)) {
                continue;
            }
            let mut path = BTreeMap::<String, u64>::new();
            for PathStep { thread, part, cause, ns, .. } in &group.total.path {
                // While its vCPU's thread runs, the other guest may choose the name of the thread that the
                // path shows. The other guest must not change anything else.
                let is_hosts = matches!(part, Part::OnCpu | Part::Runnable | Part::Blocked);
                let thread = (!is_hosts).then_some(&**thread);
                *path.entry(format!("{thread:?} {part:?} {:?}", cause.as_deref())).or_default() +=
                    ns;
            }
            self.regions.push(format!("{:?} {:?} {path:#?}", group.value(), group.not_counted));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_lie_of_one_guest_changes_nothing_of_the_host_and_of_another_guest(
        seed in 0..1_000u64,
        lie in 1..u64::MAX,
    ) {
        let mut world = World::of_two_guests(seed);
        world.wake_across();
        let mut honest = Said::of_first(&world);
        prop_assert!(honest.host.len() > 100 && honest.regions.len() > 10);

        world.lie(&mut Random(lie));

        let said = Said::of_first(&world);
        // After some lies, nothing proves any more which thread runs the second guest's CPU. If this proof is
        // missing, the reader does not report the intervals of the vCPU's thread.
        let is_of_second = |line: &String| line.starts_with(&format!("{} ", TIDS[1]));
        if !said.host.iter().any(is_of_second) {
            honest.host.retain(|line| !is_of_second(line));
        }
        for (honest, said) in [(honest.host, said.host), (honest.regions, said.regions)] {
            let differs = honest.iter().zip(&said).find(|(honest, said)| honest != said);
            prop_assert_eq!(differs, None);
            prop_assert_eq!(honest.len(), said.len());
        }
    }
}

#[test]
fn a_guest_whose_events_contradict_the_hosts_is_divided_by_its_own_kernel_alone() {
    let world = World::swapped(5);

    let found = read(&world);

    let times = found.regions.groups[0].total.times;
    use Part::{Behind, Guest, Halted, HostInterrupt, Kernel, OnCpu, Stolen, Vmm};
    for part in [Guest, HostInterrupt, Kernel, Vmm, Stolen, Behind, Halted] {
        assert_eq!(times.get(part), 0, "{part:?}: {times:?}");
    }
    assert_ne!(times.get(OnCpu), 0);
    let said =
        found.regions.warnings.iter().filter(|line| line.contains("nothing proves which thread"));
    assert_eq!(said.count(), 1, "{:?}", found.regions.warnings);
}

#[test]
fn a_guest_is_divided_by_its_own_kernel_alone_also_beside_one_whose_cpus_are_proven() {
    let mut world = World::of_two_guests(6);
    world.contradict();

    let found = read_with(&world, &Options { by: By::Thread, ..Options::default() });

    let times = |source: &str| {
        let mut groups = found.regions.groups.iter();
        groups.find(|group| group.value().unwrap().starts_with(source)).unwrap().total.times
    };
    let (alone, proven) = (times("guest/0"), times("guest/2"));
    assert!(alone.get(Part::OnCpu) > 0 && proven.get(Part::OnCpu) == 0, "{alone:?} {proven:?}");
    assert!(alone.get(Part::Guest) == 0 && proven.get(Part::Guest) > 0, "{alone:?} {proven:?}");
    let said =
        found.regions.warnings.iter().filter(|line| line.contains("nothing proves which thread"));
    assert_eq!(said.count(), 1, "{:?}", found.regions.warnings);
    assert_eq!(found.regions.guest_steal_ms, Some(STOLEN_MS));
}

#[test]
fn a_vm_that_ended_and_began_again_has_other_threads_for_its_cpus() {
    let mut world = World::of_two_guests(6);
    world.restart();
    let made = world.made();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let (session, maps) = &recording.sessions[0];

    let threads = vcpu_threads(session, maps).unwrap();

    assert_eq!(threads, [((1, 0), TIDS[0]), ((2, 0), TIDS[1])].into());
    let found = read(&world);
    let (sum, _) = found.assert_nothing_wrong(&world);
    assert!(found.samples().any(|(_, (thread, ..))| thread < 2));
    assert!(found.samples().any(|(_, (thread, ..))| thread > 1));
    assert!(sum.get(Part::Unknown) * 500 <= sum.total(), "{sum:?}");
}

#[test]
fn what_the_host_took_is_the_guests_count_where_the_hosts_kernel_was_not_recorded() {
    let world = World::new(5);
    assert_eq!(read(&world).regions.guest_steal_ms, None);
    let made = world.made();
    std::fs::remove_file(made.path().join("kernel.dat")).unwrap();

    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let regions = Regions::of(&recording, &Options::default()).unwrap();

    assert_eq!(regions.guest_steal_ms, Some(STOLEN_MS));
    let group = &regions.groups[0];
    let on_cpu = group.total.times.get(Part::OnCpu);
    let most = (STOLEN_MS + 10) * MS;
    assert!(on_cpu > most, "{:?}", group.total.times);
    assert_eq!(group.total.steal_at_most_ns, Some(most));
    assert_eq!(group.label(Part::OnCpu), "on-CPU (guest)");
}

#[test]
fn time_of_which_the_host_recorded_nothing_is_unknown() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        for cpu in &mut world.cpus {
            cpu.host.retain(|(time, ..)| (60 * MS..140 * MS).contains(time));
        }

        let found = read(&world);

        let (sum, truth) = found.assert_nothing_wrong(&world);
        assert_eq!(found.samples().count(), found.expected.len());
        let asleep = truth.get(Part::Blocked);
        assert_eq!(sum.get(Part::Blocked), asleep, "{sum:?}");
        let divided = sum.total() - asleep;
        let unknown = sum.get(Part::Unknown);
        assert!((divided / 4..divided * 9 / 10).contains(&unknown), "{unknown} of {divided}");

        let found = read_paths(&world);

        let groups = found.regions.groups.iter();
        let of_path = |group| found.assert_path(&world, group)[Unknown::Vcpu as usize];
        let not_proven = groups.map(of_path).sum::<u64>();
        assert!(not_proven * 4 > divided, "{not_proven} of {divided}");
    }
}

/// Events may be missing without a count. Such an event causes a wrong part only if no other event
/// contradicts this part.
#[test]
fn few_of_the_events_that_are_missing_without_a_count_make_a_part_wrong() {
    let (mut wrong, mut missing) = (0, 0);
    for seed in 0..8 {
        let world = lossy(seed, Counted(false));
        missing += world.lost.iter().map(Vec::len).sum::<usize>();

        let found = read(&world);

        wrong += found.wrong(&world).len();
    }
    println!("{wrong} wrong intervals by {missing} missing events");
    assert!(missing > 300 && wrong * 40 <= missing, "{wrong} of {missing}");
}

/// Reads a world's critical paths, with a group for each region.
fn read_paths(world: &World) -> Found {
    let by = By::Field("id".into());
    read_with(world, &Options { has_paths: true, by, ..Options::default() })
}

impl Found {
    /// If a cause is a thread, returns the thread's number.
    fn tid(cause: &Cause) -> Option<u32> {
        match cause {
            Cause::Thread { tid, .. } => Some(*tid),
            _ => None,
        }
    }

    /// Asserts that the steps of a region's path add up to the region's duration, and that no step is longer
    /// than the truth. Returns the unknown time for each reason.
    #[track_caller]
    fn assert_path(&self, world: &World, group: &Group) -> [u64; Unknown::ALL.len()] {
        let path = &group.total.path;
        assert_eq!(path.iter().map(|step| step.ns).sum::<u64>(), group.total.times.total());
        let id: u64 = group.value().unwrap().parse().unwrap();
        let of_thread = (0..).zip(world.threads[(id / REGIONS) as usize].regions.iter());
        let (_, (from, to)) =
            of_thread.filter(|(_, r)| r.1 > 0).nth((id % REGIONS) as usize).unwrap();
        let mut truth = BTreeMap::<(u32, &str), u64>::new();
        let mut pieces = 0;
        for (thread, from, to) in world.path((id / REGIONS) as usize, *from, *to) {
            for (from, to, part) in world.truth(thread, from, to) {
                *truth.entry((world.tid(thread), part.key())).or_default() += to - from;
                pieces += 1;
            }
        }
        let mut found = BTreeMap::<(u32, &str), u64>::new();
        let mut unknown = [0; Unknown::ALL.len()];
        for PathStep { thread, part, cause, ns, .. } in path {
            let whom = cause.as_deref().and_then(Found::tid);
            match part {
                Part::Unknown => {
                    unknown[usize::from(cause.as_ref().unwrap().number())] += ns;
                    continue;
                }
                Part::Stolen => assert_eq!(whom, Some(HOG)),
                Part::Behind => {
                    assert!(whom.is_some_and(|tid| THREADS.contains(&tid)), "{cause:?}")
                }
                Part::Blocked => {
                    assert_eq!(cause.as_deref(), Some(&Cause::Timer))
                }
                _ => assert_eq!(*cause, None, "{part:?}"),
            }
            *found.entry((Found::tid(thread).unwrap(), part.key())).or_default() += ns;
        }
        for (step, ns) in found {
            let most = truth.get(&step).copied().unwrap_or(0) + 2 * BOUND * pieces;
            assert!(ns <= most, "{id}: {step:?}: {ns} ns of {truth:?}: {path:?}");
        }
        unknown
    }
}

#[test]
fn each_step_of_a_critical_path_has_the_true_part() {
    let (mut parts, mut all, mut longest) = (BTreeSet::new(), 0, 0);
    let mut unknown = [0; Unknown::ALL.len()];
    for seed in 0..8 {
        let world = World::new(seed);

        let found = read_paths(&world);

        assert_eq!(found.regions.groups.len(), found.expected.len());
        for group in &found.regions.groups {
            let of_group = found.assert_path(&world, group);
            unknown.iter_mut().zip(of_group).for_each(|(sum, ns)| *sum += ns);
            all += group.total.times.total();
            let path = &group.total.path;
            longest = longest.max(BTreeSet::from_iter(path.iter().map(|step| &step.thread)).len());
            parts.extend(path.iter().map(|step| step.part.key()));
        }
    }
    // Nothing is known about a thread before the thread's first switch.
    let missing = std::mem::take(&mut unknown[Unknown::Missing as usize]);
    assert!(missing * 100 < all, "{missing} of {all}");
    let bound = std::mem::take(&mut unknown[Unknown::Border as usize]);
    assert!(bound > 0 && bound * 500 < all, "{bound} of {all}");
    assert_eq!(unknown.iter().sum::<u64>(), 0, "{unknown:?}");
    assert!(longest > 2, "{longest}");
    let others = BTreeSet::from([Part::OnCpu, Part::OffCpu, Part::Idle].map(Part::key));
    assert_eq!(parts, &BTreeSet::from(Part::ALL.map(Part::key)) - &others);
}

#[test]
fn events_that_either_kernel_lost_and_counted_give_no_time_to_a_wrong_step() {
    let mut paths = 0;
    for seed in 0..8 {
        let world = lossy(seed, Counted(true));

        let found = read_paths(&world);

        let counted = found.regions.groups.iter().filter(|group| group.count > 0);
        for group in counted {
            found.assert_path(&world, group);
            paths += 1;
        }
    }
    assert!(paths > 50, "{paths}");
}

#[test]
fn a_path_goes_on_with_the_other_guests_thread_that_ended_a_halt() {
    let (mut all, mut blocked) = (BTreeMap::<u32, u64>::new(), 0);
    for seed in 0..8 {
        let mut world = World::of_two_guests(seed);
        world.wake_across();

        let found = read_paths(&world);

        assert_eq!(found.regions.warnings, [""; 0]);
        for group in found.regions.groups.iter().filter(|group| group.count > 0) {
            let path = &group.total.path;
            assert_eq!(path.iter().map(|step| step.ns).sum::<u64>(), group.total.times.total());
            let id: u64 = group.value().unwrap().parse().unwrap();
            let thread = (id / REGIONS) as usize;
            let mut regions = world.threads[thread].regions.iter().filter(|(_, end)| *end > 0);
            let (from, to) = regions.nth((id % REGIONS) as usize).unwrap();
            let mut truth = BTreeMap::<u32, u64>::new();
            for (tid, ns) in world.across(thread, *from, *to).into_iter().filter(|_| thread < 2) {
                // If no thread of the guest has the CPU, the time belongs to the vCPU's own thread.
                *truth.entry(if tid == 0 { TIDS[1] } else { tid }).or_default() += ns;
            }
            let mut said = BTreeMap::<u32, u64>::new();
            for step in path.iter().filter(|step| step.part == Part::OnCpu) {
                *said.entry(Found::tid(&step.thread).unwrap()).or_default() += step.ns;
            }
            let times = |sums: &BTreeMap<u32, u64>, tid| sums.get(tid).copied().unwrap_or(0);
            let tids = BTreeSet::from_iter(truth.keys().chain(said.keys()));
            for tid in tids {
                let (truth, said) = (times(&truth, tid), times(&said, tid));
                assert!(truth.abs_diff(said) <= 200, "{seed} {id} {tid}: {said} of {truth}");
                *all.entry(*tid).or_default() += said;
            }
            blocked += usize::from(group.total.times.get(Part::Halted) == 0 && !said.is_empty());
        }
    }
    assert!(all.len() > 2 && all.values().all(|ns| *ns > 10_000), "{all:?}");
    assert!(blocked > 0);
}
