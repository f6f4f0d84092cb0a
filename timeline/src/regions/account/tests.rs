// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of a thread's account. The tests know the times of all marks. Some tests leave out each event of the
//! kernel in turn.

use super::super::parts::{Exits, Sums, Times};
use super::super::tally::Tally;
use super::*;
use Mark::{
    Access, AccessExit, Entry, Exit, Guest, In, Interrupt, Load, Out, Run, Unload, UserspaceExit,
    Vmm, Wakeup,
};
use Why::{Blocked, Preempted};
use proptest::prelude::*;

/// A kernel without `kvm_entry` and `kvm_exit`, as under a nested hypervisor.
const NESTED: Exactness = Exactness { exits: true, entries: false, registers: true, runs: true };
/// A kernel on hardware.
const HARDWARE: Exactness = Exactness { exits: true, entries: true, registers: true, runs: true };
/// Only the scheduler is traced.
const SCHEDULER: Exactness =
    Exactness { exits: false, entries: false, registers: false, runs: true };

fn account(exactness: Exactness, marks: &[(u64, Mark)]) -> Times {
    let mut sums = Sums::default();
    intervals(exactness, marks).iter().for_each(|interval| sums.add(interval));
    sums.times
}

/// Returns the intervals that marks prove.
fn intervals(exactness: Exactness, marks: &[(u64, Mark)]) -> Vec<Interval> {
    let mut account = Account::new(Part::Guest, exactness);
    marks.iter().for_each(|(time, mark)| account.mark(*time as i64, *mark));
    let mut proven = Vec::new();
    account.take_proven(|interval, _| proven.push(*interval));
    proven
}

/// Returns a reason for each mark: the reason of the mark's exit, or of the last exit before the mark.
/// Successive exits have different reasons.
fn reasons(marks: &[(u64, Mark)]) -> Vec<Reason> {
    let exits = marks.iter().scan(0, |exits, (_, mark)| {
        *exits += u32::from(*mark == Exit);
        Some(*exits)
    });
    exits.map(|exit| 1 + (exit % 4) as Reason).collect()
}

/// Returns the intervals that marks prove if the exits have these reasons. On hardware, the event that begins
/// an exit tells the reason. In a nested hypervisor, only later events of the exit tell the reason.
fn intervals_of_exits(
    exactness: Exactness,
    marks: &[(u64, Mark)],
    reasons: &[Reason],
) -> Vec<Interval> {
    let mut account = Account::new(Part::Guest, exactness);
    for ((time, mark), reason) in marks.iter().zip(reasons) {
        let time = *time as i64;
        match mark {
            Exit if exactness.entries => account.exit(time, *mark, *reason),
            Exit => account.exit(time, *mark, 0),
            Access => account.exit(time, *mark, *reason),
            AccessExit if account.reason() == 0 => account.exit(time, *mark, *reason),
            _ => account.mark(time, *mark),
        }
    }
    let mut proven = Vec::new();
    account.take_proven(|interval, _| proven.push(*interval));
    proven
}

/// Returns the times of a region that begins and ends between the marks of a thread.
fn region(exactness: Exactness, marks: &[(u64, Mark)], (begin, end): (i64, i64)) -> Times {
    let (mut account, mut tally) = (Account::new(Part::Guest, exactness), Tally::default());
    let (mut number, mut has_ended, mut times) = (None, false, None);
    for (time, mark) in marks {
        let time = *time as i64;
        if number.is_none() && begin < time {
            number = Some(tally.begin(account.border(begin), begin));
        }
        if !has_ended && end < time {
            has_ended = true;
            times = tally.end(account.border(end), number.unwrap(), 0);
        }
        account.mark(time, *mark);
        if tally.pass(&mut account, |_, _| {}) {
            times = tally.next_passed(|_| (begin, end)).map(|(_, sums)| sums);
        }
    }
    times.unwrap().times
}

/// Returns the sums of the time that is proven.
fn proven(account: &mut Account) -> Times {
    let mut sums = Sums::default();
    account.take_proven(|interval, _| sums.add(interval));
    sums.times
}

fn times(parts: &[(Part, u64)]) -> Times {
    let mut times = Times::default();
    parts.iter().for_each(|(part, time)| times.0[*part as usize] += time);
    times
}

/// The marks of a reference point. The marks prove the part of each interval.
const POINT: [(u64, Mark); 10] = [
    (0, Guest),
    (100, Exit),
    (101, Access),
    (110, Unload),
    (115, AccessExit),
    (120, Vmm),
    (122, Vmm),
    (124, Run),
    (130, Load),
    (140, Guest),
];

#[test]
fn the_time_of_a_reference_point_is_divided_completely() {
    let expected = times(&[(Part::Guest, 110), (Part::Kernel, 26), (Part::Vmm, 4)]);
    assert_eq!(account(NESTED, &POINT), expected);
}

#[test]
fn a_thread_that_is_switched_out_keeps_its_mode() {
    let marks = [
        (0, Guest),
        (10, Out(Preempted)),
        (30, In),
        (35, Out(Blocked)),
        (40, Wakeup),
        (47, In),
        (50, Guest),
    ];
    let expected = [(Part::Guest, 18), (Part::Runnable, 27), (Part::Blocked, 5)];
    assert_eq!(account(NESTED, &marks), times(&expected));
}

#[test]
fn a_guests_event_that_is_placed_too_early_or_too_late_proves_nothing() {
    let without_exits = Exactness { exits: false, ..NESTED };
    // The VMM's work takes 1,000. The guest's event at 118 is placed too late, and the guest's events at
    // 1,118 and 1,127 are placed too early.
    let cases = [NESTED, without_exits].map(|known| [118, 1_118, 1_127].map(|at| (known, at)));
    for (exactness, guest) in cases.into_iter().flatten() {
        // Without events of exits, the time from the exit at 100 to the access at 101 counts as the guest's.
        let (in_guest, kernel) = if exactness.exits { (110, 26) } else { (111, 25) };
        let expected =
            times(&[(Part::Guest, in_guest), (Part::Kernel, kernel), (Part::Vmm, 1_004)]);
        let mut account = Account::new(Part::Guest, exactness);
        let later = POINT[6..].iter().map(|(time, mark)| (time + 1_000, *mark));
        let marks = POINT[..6].iter().copied().chain(later);
        let marks = marks.filter(|(_, mark)| exactness.exits || *mark != Exit);
        let (mut tally, mut region) = (Tally::default(), None);
        for (time, mark) in marks {
            let time = time as i64;
            if region.is_none() && time > guest {
                account.guest(guest, false, || Some(20));
                tally.pass(&mut account, |_, _| {});
                region = Some(tally.begin(account.border(guest), guest));
            }
            account.mark(time, mark);
            tally.pass(&mut account, |_, _| {});
        }
        let begun = tally.forget(region.unwrap()).unwrap();
        assert_eq!(begun.times.total(), guest as u64, "{guest}");
        assert_eq!(begun.times.get(Part::Unknown), 0, "{guest}");
        let region = tally.begin(account.border(1_140), 1_140);
        let all = tally.forget(region).unwrap();
        assert_eq!(all.times, expected, "{guest}");
    }
}

#[test]
fn an_exit_after_an_access_that_the_kernel_completed_is_not_the_accesses() {
    // The guest makes an access such as KICK at 101. The VMM's thread gets a signal at 500.
    let marks = |exit| {
        let end = [(500, Unload), (505, exit), (520, Vmm), (524, Run), (530, Load), (540, Guest)];
        [(0, Guest), (101, Access)].into_iter().chain(end).collect::<Vec<_>>()
    };
    let by_default = Exactness { exits: false, ..NESTED };
    let rest = [(Part::Guest, 111), (Part::Kernel, 21), (Part::Vmm, 4)];
    let signal = [rest[0], rest[1], rest[2], (Part::Unknown, 404)];
    assert_eq!(account(by_default, &marks(UserspaceExit)), times(&signal));
    let access = [rest[0], (Part::Kernel, 425), rest[2]];
    assert_eq!(account(by_default, &marks(AccessExit)), times(&access));
}

#[test]
fn an_own_event_of_a_thread_that_is_switched_out_proves_no_time_on_a_cpu() {
    for (out, back) in
        [(Out(Preempted), &[(30, In)][..]), (Out(Blocked), &[(25, Wakeup), (30, In)])]
    {
        let mut account = Account::new(Part::Guest, SCHEDULER);
        account.guest(0, true, || None);
        account.mark(10, out);
        account.guest(20, true, || None);
        back.iter().for_each(|(time, mark)| account.mark(*time, *mark));
        account.guest(40, true, || None);

        let runnable = 30 - back[0].0 as u64;
        let expected =
            [(Part::Guest, 20), (Part::Unknown, 20 - runnable), (Part::Runnable, runnable)];
        assert_eq!(proven(&mut account), times(&expected));
    }
}

#[test]
fn an_interrupt_in_a_threads_time_proves_that_it_has_a_cpu_again() {
    let mut account = Account::new(Part::Guest, SCHEDULER);
    account.guest(0, true, || None);
    account.mark(10, Out(Preempted));
    account.guest(20, true, || None);
    account.mark(23, Interrupt);
    account.guest(30, true, || None);
    account.mark(40, Interrupt);
    account.guest(50, true, || None);

    let expected = [(Part::Guest, 37), (Part::Unknown, 13)];
    assert_eq!(proven(&mut account), times(&expected));
    assert_eq!(account.switches.unreturned, 1);
}

#[test]
fn what_is_not_proven_is_unknown() {
    for (marks, expected) in [
        // In the first three cases, the wake-up, the switch back and the switch away are missing. In the last
        // case, the second mark cannot end the guest's mode.
        (
            &[(0, Guest), (1, Out(Blocked)), (9, In), (10, Guest)][..],
            [(Part::Guest, 2), (Part::Unknown, 8)],
        ),
        (&[(0, Guest), (1, Out(Preempted)), (10, Guest)], [(Part::Guest, 1), (Part::Unknown, 9)]),
        (&[(0, Guest), (9, In), (10, Guest)], [(Part::Guest, 1), (Part::Unknown, 9)]),
        (&[(0, Guest), (10, Vmm)], [(Part::Guest, 0), (Part::Unknown, 10)]),
    ] {
        assert_eq!(account(NESTED, marks), times(&expected), "{marks:?}");
    }
}

#[test]
fn the_kernel_of_hardware_separates_the_guest_from_kvm() {
    let marks = [(0, Guest), (50, Exit), (58, Entry), (60, Guest)];
    assert_eq!(account(HARDWARE, &marks), times(&[(Part::Guest, 52), (Part::Kernel, 8)]));
    // Without the entry, nothing says when the guest ran again.
    let marks = [(0, Guest), (50, Exit), (60, Guest)];
    assert_eq!(account(HARDWARE, &marks), times(&[(Part::Guest, 50), (Part::Unknown, 10)]));
}

/// The marks of a thread: what the guest, KVM and the VMM do, and switches in between.
fn life(exactness: Exactness) -> impl Strategy<Value = Vec<(u64, Mark)>> {
    let turn = (0..3usize, any::<bool>(), prop::collection::vec((1..200u64, 0..8u8), 24));
    prop::collection::vec(turn, 1..12).prop_map(move |turns| {
        let (mut marks, mut now) = (vec![(0, Guest)], 0);
        for (events, to_vmm, times) in turns {
            let mut turn = vec![Guest; events];
            turn.extend(exactness.exits.then_some(Exit));
            turn.extend(exactness.registers.then_some(Access));
            if to_vmm {
                turn.extend(exactness.registers.then_some(Unload));
                turn.extend(exactness.exits.then_some(AccessExit));
                turn.extend([Vmm, Vmm, Run]);
                turn.extend(exactness.registers.then_some(Load));
            }
            turn.extend(exactness.entries.then_some(Entry));
            turn.push(Guest);
            for (mark, (time, switch)) in turn.into_iter().zip(times) {
                let switches: &[Mark] = match switch {
                    0 => &[Out(Preempted), In],
                    1 => &[Out(Blocked), Wakeup, In],
                    // On hardware, the guest does not go on without an exit.
                    2 | 3 if exactness == HARDWARE && mark == Guest => &[],
                    2 => &[Interrupt],
                    3 => &[Mark::Other],
                    _ => &[],
                };
                for switch in switches {
                    now += time;
                    marks.push((now, *switch));
                }
                now += time;
                marks.push((now, mark));
            }
        }
        marks
    })
}

fn of_kernel(mark: Mark) -> bool {
    !matches!(mark, Guest | Vmm | Run)
}

proptest! {
    #[test]
    fn a_missing_event_of_the_kernel_makes_unknown_time_only(
        (exactness, marks) in prop::sample::select(vec![NESTED, HARDWARE, SCHEDULER])
            .prop_flat_map(|exactness| (Just(exactness), life(exactness)))
    ) {
        let complete = account(exactness, &marks);
        let whole = intervals(exactness, &marks);
        let (from, to) = (marks[0].0, marks[marks.len() - 1].0);
        prop_assert_eq!(complete.total(), to - from);
        if exactness != SCHEDULER {
            prop_assert_eq!(complete.get(Part::Unknown), 0);
        }
        // If the events of an interrupt of the host are missing, the guest's time looks longer, and no other
        // event contradicts the guest's time. So the test does not remove these events.
        let is_other = |mark| exactness == HARDWARE && matches!(mark, Interrupt | Mark::Other);
        let is_missed = |mark| of_kernel(mark) && !is_other(mark);
        for missing in (0..marks.len()).filter(|n| is_missed(marks[*n].1)) {
            let mut rest = marks.clone();
            let (_, mark) = rest.remove(missing);
            let times = account(exactness, &rest);
            prop_assert_eq!(times.total(), to - from);
            // Although the event is missing, no time gets a wrong part. So a missing event never gives a
            // region more time in a known part.
            for interval in intervals(exactness, &rest) {
                let within = whole.iter().map(|known| known.within(interval.from, interval.to));
                let other = within.filter(|known| known.length() > 0 && known.part != interval.part);
                let is_unknown = interval.part == Part::Unknown;
                prop_assert!(other.count() == 0 || is_unknown, "{interval:?}, {mark:?} at {missing}");
            }
        }
    }

    #[test]
    fn no_exit_has_the_time_of_another_one(
        (exactness, marks) in prop::sample::select(vec![NESTED, HARDWARE])
            .prop_flat_map(|exactness| (Just(exactness), life(exactness)))
    ) {
        let reasons = reasons(&marks);
        let whole = intervals_of_exits(exactness, &marks, &reasons);
        for interval in &whole {
            let is_of_exit = matches!(interval.part, Part::Kernel | Part::Vmm);
            prop_assert!(!is_of_exit || interval.reason != 0, "{interval:?}");
            prop_assert!(interval.part != Part::Guest || interval.reason == 0, "{interval:?}");
        }
        let mut sums = Sums::default();
        whole.iter().for_each(|interval| sums.add(interval));
        let all = |time: fn(&Exits) -> u64| sums.exits.iter().map(time).sum::<u64>();
        prop_assert_eq!(all(|exits| exits.kernel), sums.times.get(Part::Kernel));
        prop_assert_eq!(all(|exits| exits.vmm), sums.times.get(Part::Vmm));
        for missing in (0..marks.len()).filter(|n| of_kernel(marks[*n].1)) {
            let (mut rest, mut of_rest) = (marks.clone(), reasons.clone());
            let (_, mark) = rest.remove(missing);
            of_rest.remove(missing);
            for interval in intervals_of_exits(exactness, &rest, &of_rest) {
                let within = whole.iter().map(|known| known.within(interval.from, interval.to));
                let other =
                    within.filter(|known| known.length() > 0 && known.reason != interval.reason);
                let is_known = interval.reason != 0;
                prop_assert!(!is_known || other.count() == 0, "{interval:?}, {mark:?} at {missing}");
            }
        }
    }

    #[test]
    fn the_parts_of_a_region_are_its_intervals(
        (exactness, marks) in prop::sample::select(vec![NESTED, HARDWARE, SCHEDULER])
            .prop_flat_map(|exactness| (Just(exactness), life(exactness))),
        borders in (0..1000i64, 0..1000i64),
    ) {
        let (first, last) = (marks[0].0 as i64, marks[marks.len() - 1].0 as i64);
        let at = |border: i64| first + (last - 1 - first) * border / 1000;
        let (begin, end) = (at(borders.0.min(borders.1)), at(borders.0.max(borders.1)));
        let mut sums = Sums::default();
        for interval in intervals(exactness, &marks) {
            sums.add(&interval.within(begin, end));
        }
        prop_assert_eq!(region(exactness, &marks, (begin, end)), sums.times);
    }
}

#[test]
fn a_wait_is_in_the_exit_around_it() {
    let mut account = Account::new(Part::Guest, NESTED);
    for (time, mark) in [(0, Guest), (5, Out(Preempted)), (8, In), (10, Exit)] {
        account.mark(time, mark);
    }
    account.exit(11, Access, 3);
    // The thread waits right after the access, in the VMM, and on the way back into the guest.
    let rest = [
        (11, Out(Blocked)),
        (20, Wakeup),
        (22, In),
        (23, Unload),
        (24, AccessExit),
        (25, Vmm),
        (26, Out(Blocked)),
        (36, Wakeup),
        (37, In),
        (38, Run),
        (39, Out(Preempted)),
        (40, In),
        (41, Load),
        (42, Guest),
    ];
    rest.iter().for_each(|(time, mark)| account.mark(*time, *mark));

    let mut sums = Sums::default();
    account.take_proven(|interval, _| sums.add(interval));
    assert_eq!(sums.exits[3], Exits { count: 0, kernel: 6, vmm: 2, waits: 23 });
    assert_eq!(sums.times.get(Part::Runnable), 3 + 2 + 1 + 1);
    // The wait while the thread was in the guest belongs to no exit.
    assert_eq!(sums.exits[0], Exits::default());
}

#[test]
fn the_vmm_tells_a_reason_that_the_kernel_does_not() {
    let mut account = Account::new(Part::Guest, SCHEDULER);
    account.mark(0, Guest);
    account.vmm_exit(10, || 5);
    account.mark(17, Run);
    account.vmm_exit(30, || 6);
    account.mark(33, Vmm);
    account.mark(34, Run);
    // No event tells the reason of the exit.
    account.mark(50, Vmm);
    account.mark(58, Run);

    let mut sums = Sums::default();
    account.take_proven(|interval, _| sums.add(interval));
    assert_eq!([0, 5, 6].map(|reason| sums.exits[reason].vmm), [8, 7, 4]);
}

#[test]
fn a_region_that_ends_before_a_missing_switch_shows_is_not_proven() {
    // A switch away is missing between 0 and 100. Nobody knows whether this switch came before or after 50.
    let marks = [(0, Guest), (100, In), (200, Guest)];
    assert_eq!(region(NESTED, &marks, (10, 50)), times(&[(Part::Unknown, 40)]));
}

/// Divides a region of a thread that is switched out again and again. Only the last mark proves what the
/// thread did while it had a CPU. Each wait for a CPU has `causes` causes. Returns the region's times, and
/// the number of times that too many intervals waited.
fn waits(switches: i64, causes: i64, border: impl Fn(i64) -> bool) -> (Times, u64) {
    let (mut account, mut tally) = (Account::new(Part::Guest, NESTED), Tally::default());
    account.mark(0, Guest);
    let whole = tally.begin(account.border(0), 0);
    for n in 0..switches {
        if border(n) {
            let region = tally.begin(account.border(n * 100 + 1), n * 100 + 1);
            tally.forget(region);
        }
        account.mark(n * 100 + 10, Out(Preempted));
        let (from, last) = (n * 100 + 10, n * 100 + 30);
        let until = |cause: i64| if cause == causes { last } else { from + cause };
        account.causes.extend((1..=causes).map(|cause| (until(cause), cause as u16)));
        account.mark(n * 100 + 30, In);
        tally.pass(&mut account, |_, _| {});
    }
    assert!(tally.end(account.border(switches * 100 - 50), whole, 0).is_none());
    account.mark(switches * 100, Guest);
    assert!(tally.pass(&mut account, |_, _| {}));
    let (_, sums) = tally.next_passed(|_| (0, switches * 100 - 50)).unwrap();
    (sums.times, account.switches.given_up)
}

#[test]
fn intervals_that_wait_are_merged_between_the_borders_of_regions() {
    let expected = [(Part::Runnable, 20 * 100_000), (Part::Guest, 80 * 100_000 - 50)];
    for causes in 0..5 {
        assert_eq!(waits(100_000, causes, |_| false), (times(&expected), 0));
        // A border in every 1,000th turn does not prevent the merge. A border in each turn prevents the
        // merge.
        assert_eq!(waits(100_000, causes, |n| n % 1_000 == 0), (times(&expected), 0));
    }
    let (times, given_up) = waits(100_000, 0, |_| true);
    assert!(times.get(Part::Unknown) > 0 && given_up > 0, "{times:?} {given_up}");
    assert_eq!((times.total(), times.get(Part::Runnable)), (100_000 * 100 - 50, 20 * 100_000));
}
