// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of what the threads of regions waited for: which thread had the CPU, and what woke the waiting
//! thread.

use crate::made_regions::{all, read};
use hypertrace_test_support::cpus::{ASLEEP, Cpus, ENDED, HARD, READY, SOFT, Task, WAY};
use hypertrace_test_support::made::{self, BOOT, Made, Packet};
use hypertrace_test_support::trace_dat::{
    self, Counted, PERF_SWITCH_IN_ID, PERF_SWITCH_OUT_ID, Page, TraceDat, recorded_with_all,
};
use hypertrace_test_support::vcpu::HOST_BASE;
use hypertrace_timeline::regions::{
    Breakdown, Cause, Group, NotCounted, Options, PARTS, Part, Regions, Turn, Unknown, Wait, Window,
};
use hypertrace_timeline::{ClockMaps, Given, GuestKernel, KernelTrace, Recording, Session};
use proptest::prelude::*;
use std::collections::BTreeMap;

const OWN: Task = (200, "own");
const OTHER: Task = (201, "other");
const HOG: Task = (300, "hog");
const PIG: Task = (301, "pig");
const IDLE: Task = (0, "swapper");
const MS: u64 = 1_000_000;

/// Returns for each name the waits of a group: part, cause and time.
fn waits(group: &Group) -> Vec<(Part, String, u64)> {
    let wait = |wait: &Wait| (wait.part, wait.cause.to_string(), wait.ns);
    let mut waits = Vec::from_iter(group.total.waits.iter().map(wait));
    waits.sort_by(|a, b| (a.0 as usize, &a.1).cmp(&(b.0 as usize, &b.1)));
    for part in [Part::Runnable, Part::Blocked] {
        let sum: u64 = waits.iter().filter(|(of, ..)| *of == part).map(|(.., ns)| ns).sum();
        assert_eq!(sum, group.total.times.get(part), "{part:?}: {waits:?}");
    }
    waits
}

/// Returns the waits of all regions of a session. All regions have the same name.
fn of(made: &Made) -> Vec<(Part, String, u64)> {
    let regions = all(made);
    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!(group.not_counted.iter().sum::<u64>(), 0);
    waits(group)
}

fn runnable(name: &str, ns: u64) -> (Part, String, u64) {
    (Part::Runnable, name.into(), ns)
}

fn blocked(name: &str, ns: u64) -> (Part, String, u64) {
    (Part::Blocked, name.into(), ns)
}

/// Makes a machine whose program's thread is on CPU 0, in a region.
fn begun(cpus: usize) -> Cpus {
    let mut machine = Cpus::new(cpus, &[OWN, OTHER]);
    machine.at(1_000).switch(0, READY, OWN).at(1_100).begin(OWN.0, 0);
    machine
}

/// Ends the region, and lets the trace go on for a while.
fn ended(machine: &mut Cpus) -> Made {
    end(machine);
    machine.made()
}

fn end(machine: &mut Cpus) {
    let now = machine.now;
    machine.at(now + 50).end(OWN.0, 0).at(now + 100);
    for cpu in 0..machine.running.len() {
        machine.switch(cpu, READY, (7, "last"));
    }
}

#[test]
fn a_ready_thread_waits_for_those_that_have_its_cpu() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, READY, HOG);
    machine.at(2_300).switch(0, READY, PIG).at(2_400).switch(0, READY, HOG);
    machine.at(2_600).switch(0, READY, OWN);

    let waits = of(&ended(&mut machine));

    assert_eq!(waits, [runnable("hog-300", 500), runnable("pig-301", 100)]);
}

#[test]
fn a_woken_thread_waits_for_an_idle_cpu_or_for_the_thread_there() {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, ASLEEP, IDLE);
    machine.at(3_000).timer(0, HARD, OWN).at(3_105).switch(0, READY, OWN);
    machine.at(4_000).switch(0, ASLEEP, HOG);
    // The thread is woken on CPU 1, and moves there.
    machine.at(4_500).switch(1, READY, PIG);
    machine.at(5_000).timer(0, HARD, OWN).at(5_305).switch(1, READY, OWN);

    let waits = of(&ended(&mut machine));

    let woken = blocked("timer", 1_000 + WAY + 1_000 + WAY);
    assert_eq!(waits, [runnable("idle CPU", 100), runnable("pig-301", 300), woken]);
}

#[test]
fn the_wait_for_a_cpu_begins_with_the_wake_up() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, ASLEEP, HOG).at(2_500).switch(0, READY, PIG);
    machine.at(3_000).wake(0, 0, OWN).at(3_205).switch(0, READY, HOG);
    machine.at(3_305).switch(0, READY, OWN);

    let waits = of(&ended(&mut machine));

    let by_whom = [runnable("hog-300", 100), runnable("pig-301", 200)];
    assert_eq!(waits, [&by_whom[..], &[blocked("pig-301", 1_000 + WAY)]].concat());
}

/// Lets the thread sleep while another thread runs on the thread's CPU. Then `wake` wakes the thread. Returns
/// the cause of the wait.
fn woken(wake: impl FnOnce(&mut Cpus) -> &mut Cpus) -> String {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, ASLEEP, HOG).switch(1, READY, PIG);
    wake(machine.at(3_000));
    let now = machine.now;
    machine.at(now + 100).switch(0, READY, OWN);
    let waits = of(&ended(&mut machine));
    let mut blocked = waits.into_iter().filter(|(part, ..)| *part == Part::Blocked);
    let (_, cause, _) = blocked.next().unwrap();
    assert_eq!(blocked.next(), None);
    cause
}

#[test]
fn a_waking_names_the_thread_or_the_interrupt() {
    assert_eq!(woken(|m| m.wake(0, 0, OWN)), "hog-300");
    assert_eq!(woken(|m| m.wake(1, 0, OWN)), "pig-301");
    assert_eq!(woken(|m| m.timer(0, HARD, OWN)), "timer");
    assert_eq!(woken(|m| m.timer(0, SOFT, OWN)), "timer");
    assert_eq!(woken(|m| m.handler(0, "nvme0q1", OWN)), "interrupt nvme0q1");
    assert_eq!(woken(|m| m.softirq(0, 3, OWN)), "softirq NET_RX");
}

#[test]
fn a_waking_in_an_interrupt_never_names_the_interrupted_thread() {
    let third = (302, "third");
    // Without the interrupt's own event, only its kind is known.
    assert_eq!(woken(|m| m.wake(0, HARD, OWN)), "interrupt");
    assert_eq!(woken(|m| m.wake(0, SOFT, OWN)), "softirq");
    // The wake-up is in a hard interrupt in a softirq.
    assert_eq!(woken(|m| m.wake(0, HARD | SOFT, OWN)), "interrupt");
    // The wake-up is in another interrupt, after a timer, a handler or a softirq has ended.
    assert_eq!(woken(|m| m.timer(0, HARD, third).wake(0, HARD, OWN)), "interrupt");
    assert_eq!(woken(|m| m.handler(0, "eth0", third).wake(0, HARD, OWN)), "interrupt");
    assert_eq!(woken(|m| m.softirq(0, 1, third).wake(0, SOFT, OWN)), "softirq");
    assert_eq!(woken(|m| m.timer(0, SOFT, third).handler(0, "eth0", OWN)), "interrupt eth0");
    // The timer is on another CPU.
    assert_eq!(woken(|m| m.timer(1, HARD, third).wake(0, HARD, OWN)), "interrupt");
}

#[test]
fn a_switch_in_both_buffers_is_one() {
    for late in [-3, 3] {
        let mut machine = begun(1);
        machine.late = late;
        machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, PIG);
        machine.at(2_400).switch(0, READY, OWN).at(3_000).switch(0, ASLEEP, HOG);
        machine.at(4_000).wake(0, 0, OWN).at(4_105).switch(0, READY, OWN);
        machine.at(5_000).switch(0, READY, HOG).at(5_100).switch(0, READY, OWN);

        let waits = of(&ended(&mut machine));

        let shift = late.unsigned_abs();
        let (hog, pig) =
            if late < 0 { (500 - shift, 100 + shift) } else { (500 + shift, 100 - shift) };
        let by_whom = [runnable("hog-300", hog), runnable("pig-301", pig)];
        assert_eq!(waits, [&by_whom[..], &[blocked("hog-300", 1_000 + WAY)]].concat(), "{late}");
    }
}

#[test]
fn a_missing_switch_makes_the_time_around_it_not_known() {
    for late in [-3, 3] {
        let mut machine = begun(1);
        machine.late = late;
        machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, PIG);
        machine.at(2_400).switch(0, READY, HOG).at(2_700).switch(0, READY, OWN);
        end(&mut machine);
        let made = machine.session();
        let without = |missing| {
            let lost = |all: bool, _, n| (all && n == missing).then_some(Counted(false));
            made.kernel(&machine.trace_without(lost));
            let near = |(part, name, ns): (Part, String, u64)| (part, name, (ns + 50) / 100 * 100);
            Vec::from_iter(of(&made).into_iter().map(near))
        };
        let (hog, unknown, pig) = (
            |ns| runnable("hog-300", ns),
            |ns| runnable("not known", ns),
            runnable("pig-301", 100),
        );
        // In each case, another switch is missing: the switch away from the thread, each of the two switches
        // between the hog and the pig, and the switch back to the thread. The switch back is in the first
        // buffer too.
        assert_eq!(without(1), [hog(300), unknown(300), pig.clone()], "{late}");
        assert_eq!(without(2), [hog(300), unknown(400)], "{late}");
        assert_eq!(without(3), [hog(300), unknown(400)], "{late}");
        assert_eq!(without(4), [hog(600), pig], "{late}");
    }
}

#[test]
fn a_missing_switch_back_leaves_time_unknown_until_an_interrupt_shows_the_thread() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, OWN);
    machine.at(2_500).timer(0, HARD, HOG).at(9_000);
    end(&mut machine);
    let made = machine.session();
    // The switch back to the thread is missing in both buffers.
    made.kernel(&machine.trace_without(|_, _, n| (n == 2).then_some(Counted(false))));

    let regions = all(&made);

    let [.., unknown] = regions.groups[0].total.times.0;
    assert_eq!(unknown, 500);
}

#[test]
fn a_thread_that_had_the_cpu_in_a_gap_is_not_known() {
    // The hog has the CPU before and after the gap, and the pig has the CPU in the gap.
    for late in [-3, 3] {
        let mut machine = begun(1);
        machine.late = late;
        machine.at(1_500).switch(0, READY, HOG).at(1_600).switch(0, READY, OWN);
        machine.at(2_000).switch(0, READY, HOG).at(2_100).switch(0, READY, PIG);
        machine.at(2_900).switch(0, READY, HOG).at(3_000).switch(0, READY, OWN);
        end(&mut machine);
        let made = machine.session();
        let counted = [4..=5, 4..=6, 3..=5, 4..=7].map(|lost| (lost, Counted(true)));
        for (lost, counted) in counted.into_iter().chain([(3..=5, Counted(false))]) {
            let lost = |all: bool, _, n: usize| (all && lost.contains(&n)).then_some(counted);
            made.kernel(&machine.trace_without(lost));

            let waits = of(&made);

            let hog = waits.iter().filter(|(_, name, _)| name == "hog-300").map(|(.., ns)| *ns);
            assert!(hog.sum::<u64>() <= 203, "{late}: {waits:?}");
        }
    }
}

#[test]
fn a_missing_waking_and_an_older_one_name_nobody() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, ASLEEP, HOG).at(3_000).wake(0, 0, OWN);
    machine.at(3_100).switch(0, READY, OWN).at(4_000).switch(0, ASLEEP, PIG);
    machine.at(5_000).wake(0, 0, OWN).at(5_100).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    // The second buffer has two switches, a waking, two switches, and a waking.
    let lost = |all: bool, _, n| (all && n == 5).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));

    let waits = of(&made);

    let blocked = waits.into_iter().filter(|(part, ..)| *part == Part::Blocked);
    let expected = [blocked_by("hog-300"), blocked_by("not known")];
    assert_eq!(Vec::from_iter(blocked), expected);
}

fn blocked_by(name: &str) -> (Part, String, u64) {
    blocked(name, 1_000 + WAY)
}

#[test]
fn the_end_of_a_timer_or_a_handler_may_be_missing() {
    let third = (302, "third");
    let wakes: [fn(&mut Cpus) -> &mut Cpus; 3] = [
        |m| m.timer(0, HARD, (302, "third")),
        |m| m.handler(0, "eth0", (302, "third")),
        |m| m.softirq(0, 3, (302, "third")),
    ];
    for (number, wake) in wakes.into_iter().enumerate() {
        let mut machine = begun(1);
        machine.at(2_000).switch(0, ASLEEP, HOG);
        wake(machine.at(2_500));
        let end_of_it = machine.all[0].len() - 1;
        // The thread that has the CPU goes on after the interrupt, and wakes another thread.
        machine.at(2_600).wake(0, 0, third);
        let flags = if number == 2 { SOFT } else { HARD };
        machine.at(3_000).wake(0, flags, OWN).at(3_105).switch(0, READY, OWN);
        end(&mut machine);
        let made = machine.session();
        let lost = |all: bool, _, n| (all && n == end_of_it).then_some(Counted(false));
        made.kernel(&machine.trace_without(lost));

        let waits = of(&made);

        let name = if number == 2 { "softirq" } else { "interrupt" };
        let blocked = waits.into_iter().filter(|(part, ..)| *part == Part::Blocked);
        assert_eq!(Vec::from_iter(blocked), [blocked_by(name)]);
    }
}

#[test]
fn an_interrupt_right_after_one_whose_end_is_missing_is_named() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, ASLEEP, HOG).at(2_500).timer(0, HARD, (302, "third"));
    let end_of_it = machine.all[0].len() - 1;
    machine.at(3_000).handler(0, "eth0", OWN).at(3_105).switch(0, READY, OWN);
    // A hard interrupt comes while a softirq runs the function of a timer.
    machine.at(4_000).switch(0, ASLEEP, HOG);
    machine.event(0, trace_dat::HRTIMER_EXPIRE_ENTRY_ID, SOFT, vec![0; 24]);
    machine.at(5_000).wake(0, HARD | SOFT, OWN).at(5_105).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    let lost = |all: bool, _, n| (all && n == end_of_it).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));

    let waits = of(&made);

    let blocked = waits.into_iter().filter(|(part, ..)| *part == Part::Blocked);
    let expected = [blocked_by("interrupt"), blocked_by("interrupt eth0")];
    assert_eq!(Vec::from_iter(blocked), expected);
}

#[test]
fn a_waker_has_the_last_name_of_its_thread() {
    let mut machine = begun(1);
    machine.late = -1;
    machine.at(2_000).switch(0, ASLEEP, HOG).at(2_500).switch(0, READY, PIG);
    machine.at(3_000).wake(0, 0, OWN).at(3_105).switch(0, READY, OWN);
    // The thread changes its name while it has the CPU.
    machine.at(4_000).switch(0, ASLEEP, HOG).at(5_000).timer(0, HARD, OWN);
    machine.running[0] = (HOG.0, "renamed");
    machine.at(5_105).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    // The switch from the hog to the other thread is missing.
    let lost = |all: bool, _, n| (all && n == 2).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));

    let waits = of(&made);

    let waker = |(part, name, _): &(Part, String, u64)| {
        (*part == Part::Blocked || name.contains("300")).then(|| name.clone())
    };
    assert_eq!(Vec::from_iter(waits.iter().filter_map(waker)), ["renamed-300", "pig-301", "timer"]);
}

/// Returns a thread with `count` names, one name after another.
fn renamed(tid: u32, count: usize) -> impl Iterator<Item = Task> {
    (0..count).map(move |number| (tid, &*Box::leak(format!("x{number}").into_boxed_str())))
}

#[test]
fn a_thread_that_changes_its_name_is_one_cause_with_its_last_name() {
    let mut machine = begun(1);
    machine.of_any = true;
    // In each wait for the CPU, the hog has the CPU under two names. After these waits, the hog wakes the
    // thread from a sleep.
    let names = Vec::from_iter(renamed(HOG.0, 80));
    for pair in names.chunks(2) {
        let now = machine.now;
        machine.at(now + 100).switch(0, READY, pair[0]).at(now + 200).switch(0, READY, PIG);
        machine.at(now + 300).switch(0, READY, pair[1]).at(now + 400).switch(0, READY, OWN);
    }
    let now = machine.now;
    machine.at(now + 100).switch(0, ASLEEP, names[0]);
    machine.at(now + 200).wake(0, 0, OWN).at(now + 300).switch(0, READY, names[1]);
    machine.at(now + 400).switch(0, READY, OWN);
    let made = ended(&mut machine);

    let regions = with_paths(&made);

    let expected = [runnable("pig-301", 40 * 100), runnable("x1-300", 80 * 100 + 200)];
    assert_eq!(waits(&regions.groups[0]), expected);
    let total = &regions.groups[0].total;
    let names = |cause: &Cause| match cause {
        Cause::Thread { tid, names, .. } => (*tid, *names),
        other => panic!("{other:?}"),
    };
    let mut on_path = Vec::from_iter(total.path.iter().map(|step| names(&step.thread)));
    on_path.dedup();
    assert_eq!(on_path, [(OWN.0, 1), (HOG.0, 80)]);
    let mut waited_for = Vec::from_iter(total.waits.iter().map(|wait| names(&wait.cause)));
    waited_for.sort_unstable();
    assert_eq!(waited_for, [(HOG.0, 80), (PIG.0, 1)]);
}

#[test]
fn a_thread_that_begins_with_the_number_of_another_is_another_cause() {
    let mut machine = begun(1);
    for new in ["first", "second"] {
        let now = machine.now;
        // The end of the previous thread with the same id is not recorded.
        machine.at(now + 100).switch(0, READY, PIG).start(0, true, (HOG.0, new));
        machine.at(now + 200).switch(0, READY, (HOG.0, new)).at(now + 500).switch(0, READY, OWN);
    }

    let waits = of(&ended(&mut machine));

    let pig = runnable("pig-301", 200);
    assert_eq!(waits, [runnable("first-300", 300), pig, runnable("second-300", 300)]);
}

#[test]
fn another_thread_with_the_number_of_one_that_ended_is_not_of_the_session() {
    let mut machine = begun(2);
    machine.at(1_200).switch(1, READY, OTHER);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, ENDED, PIG);
    machine.at(2_400).switch(0, READY, OWN);
    machine.at(3_000).switch(1, READY, IDLE).switch(0, READY, OTHER);
    machine.at(3_100).switch(0, ENDED, OWN);
    machine.at(4_000).switch(0, READY, (HOG.0, "new")).at(4_200).switch(0, READY, (OTHER.0, "new"));
    machine.at(4_250).switch(0, READY, OWN);

    let regions = all(&ended(&mut machine));

    let expected = [
        runnable("hog-300", 300),
        runnable("new-201", 50),
        runnable("new-300", 200),
        runnable("other-201", 100),
        runnable("pig-301", 100),
    ];
    assert_eq!(waits(&regions.groups[0]), expected);
    let session = |wanted: &str| {
        let of = regions.causes.iter().find(|cause| cause.to_string() == wanted);
        let Some(Cause::Thread { session, .. }) = of.map(|entry| &**entry) else {
            panic!("{of:?}")
        };
        *session
    };
    assert_eq!(
        (session("other-201"), session("new-201"), session("new-300")),
        (Some(0), None, None)
    );
}

#[test]
fn the_end_of_the_second_buffer_is_the_end_of_what_is_known() {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, OWN);
    machine.at(3_000).switch(0, READY, PIG).at(3_100).switch(0, READY, HOG);
    machine.at(3_200).switch(0, READY, PIG).at(3_300).switch(0, READY, OWN);
    machine.at(4_000).switch(0, ASLEEP, PIG).at(5_000).wake(0, 0, OWN);
    machine.at(5_105).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    let hog = runnable("hog-300", 300);
    // The last events of CPU 0 are lost, and the kernel counted them. The other CPU goes on.
    let known = |from: usize| {
        let lost = |all: bool, cpu, n| (all && cpu == 0 && n >= from).then_some(Counted(true));
        made.kernel(&machine.trace_without(lost));
        of(&made)
    };
    let unknown = [hog.clone(), runnable("not known", 400), blocked_by("not known")];
    assert_eq!(known(4), unknown, "only the switch away from the thread is there");
    assert_eq!(known(3), unknown);
}

#[test]
fn a_lost_page_of_the_first_buffer_is_no_loss_of_the_second_one() {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, OWN);
    machine.at(3_000).end(OWN.0, 0).at(3_100).begin(OWN.0, 0);
    machine.at(4_000).switch(0, READY, HOG).at(4_300).switch(0, READY, PIG);
    machine.at(4_400).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    // The thread's first switches, in the first region, are lost.
    let lost = |all: bool, cpu, n| (!all && cpu == 0 && n == 1).then_some(Counted(true));
    made.kernel(&machine.trace_without(lost));

    let regions = all(&made);

    let group = &regions.groups[0];
    assert_eq!((group.count, group.not_counted[NotCounted::LostEvents as usize]), (1, 1));
    assert_eq!(waits(group), [runnable("hog-300", 300), runnable("pig-301", 100)]);
}

#[test]
fn a_recording_of_own_threads_says_nothing_of_others() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    let unknown = [runnable("not known", 300)];
    for version in [
        trace_dat::recorded_with_threads(BOOT, &machine.threads()),
        // The option names a buffer that is not there.
        recorded_with_all(BOOT, Some(&machine.threads()), "cpus"),
        // The option is as in trace-cmd's files.
        (9, b"3.1.6\0".to_vec()),
    ] {
        let mut trace = machine.trace();
        (trace.all, trace.options) = (Vec::new(), vec![version]);
        made.kernel(&trace);
        assert_eq!(of(&made), unknown);
    }
    // The trace has two buffers, as trace-cmd makes them, and nothing says what the second buffer holds.
    let mut trace = machine.trace();
    trace.options = vec![trace_dat::recorded_with_threads(BOOT, &machine.threads())];
    made.kernel(&trace);
    let regions = all(&made);
    assert!(regions.groups[0].total.waits.iter().all(|wait| wait.cause.number() == 0));
}

#[test]
fn a_recording_of_all_threads_has_one_buffer() {
    let mut machine = begun(1);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, PIG);
    machine.at(2_400).switch(0, READY, OWN).at(3_000).switch(0, ASLEEP, HOG);
    machine.at(4_000).switch(0, READY, PIG).at(4_200).switch(0, READY, OWN);
    end(&mut machine);
    let mut trace = TraceDat::new("x86-tsc").option(recorded_with_all(BOOT, None, ""));
    trace = trace.cpu(&Page::all(&machine.all[0]));
    let made = machine.session();
    made.kernel(&trace);

    let waits = of(&made);

    // If wake-ups are not recorded, the reader does not know what the thread did or what it waited for.
    assert_eq!(waits, [runnable("hog-300", 300), runnable("pig-301", 100)]);
}

#[test]
fn perf_shows_the_programs_own_threads() {
    let mut machine = begun(1);
    machine.at(2_000).end(OWN.0, 0);
    let made = machine.begin(OWN.0, 0).at(3_000).end(OWN.0, 0).session();
    let out = |at: u64, tid: u32| {
        (HOST_BASE + at, PERF_SWITCH_OUT_ID, tid, [50, tid, 1].map(u32::to_le_bytes).concat())
    };
    let into = |at: u64, tid: u32| {
        (HOST_BASE + at, PERF_SWITCH_IN_ID, tid, [50, tid].map(u32::to_le_bytes).concat())
    };
    let (own, other) = (OWN.0, OTHER.0);
    let first = [into(1_000, own), out(1_200, own), into(1_300, other), out(1_500, other)];
    // Another process's thread has the CPU meanwhile.
    let second = [into(1_600, own), out(2_100, own), into(2_400, own), out(3_500, own)];
    let pages = Page::all(&[first, second].concat());
    // In the first case, the kernel's list of names does not contain the thread. In the second case, the list
    // contains a name that differs from the client's name.
    for (listed, name) in [("77 vcpu0\n", "program/1 other-201"), ("201 worker2\n", "worker2-201")]
    {
        let trace = TraceDat::new("x86-tsc").of_perf().option(trace_dat::recorded(BOOT, 0));
        let trace = TraceDat { comms: listed.into(), ..trace };
        made.kernel(&trace.cpu(&pages));

        let waits = of(&made);

        assert_eq!(waits, [runnable("not known", 100 + 100 + 300), runnable(name, 200)]);
    }
}

#[test]
fn causes_beyond_the_limits_are_others() {
    const WAITS: u32 = 70_000;
    let mut machine = Cpus::new(1, &[OWN]);
    machine.at(1_000).switch(0, READY, OWN);
    for n in 0..WAITS {
        let now = machine.now;
        machine.at(now + 10).begin(OWN.0, 0).at(now + 20).switch(0, ASLEEP, (1_000 + n, "waker"));
        machine.at(now + 50).wake(0, 0, OWN).at(now + 60).switch(0, READY, OWN);
        machine.at(now + 70).end(OWN.0, 0);
    }
    // All waits are in one region.
    let now = machine.now;
    machine.at(now + 10).begin(OWN.0, 1);
    for n in 0..1_300 {
        let now = machine.now;
        machine.at(now + 20).switch(0, ASLEEP, (1_000 + n, "waker"));
        machine.at(now + 50).wake(0, 0, OWN).at(now + 60).switch(0, READY, OWN);
    }
    let now = machine.now;
    machine.at(now + 10).end(OWN.0, 1).at(now + 20).switch(0, READY, HOG);

    let regions = all(&machine.made());

    let of = |group: usize| waits(&regions.groups[group]);
    let others = |waits: &[(Part, String, u64)]| {
        let others = waits.iter().filter(|(_, name, _)| name == "others");
        (waits.len(), others.map(|(part, _, ns)| (*part, *ns)).collect())
    };
    let parts = |ready, asleep| vec![(Part::Runnable, ready), (Part::Blocked, asleep)];
    // A group keeps 4,096 waits, two for each waker. These are the waits for 2,048 wakers, or for 2,047
    // wakers and for all other wakers together. Each waker has a wait of 5 ns and a wait of 35 ns.
    let left = u64::from(WAITS) - 2_048;
    assert_eq!(others(&of(0)), (4_096, parts(5 * left, 35 * (left + 2))));
    // A thread keeps the waits for 1,024 wakers.
    assert_eq!(others(&of(1)), (2_050, parts(5 * (1_300 - 1_024), 35 * (1_300 - 1_024))));
    assert_eq!(regions.causes.len(), 1 << 16);
}

/// Returns the regions with their critical paths.
fn with_paths(made: &Made) -> Regions {
    read(made, &Options { has_paths: true, ..Options::default() })
}

/// Makes a region that begins on one thread and ends on another thread, which the first thread woke.
fn handed_on() -> Cpus {
    let mut machine = begun(2);
    machine.of_any = true;
    machine.at(1_200).switch(1, READY, OTHER).at(1_300).switch(1, ASLEEP, HOG);
    machine.at(2_000).switch(0, READY, PIG).at(2_500).switch(0, READY, OWN);
    machine.at(3_000).wake(0, 0, OTHER).at(3_100).switch(0, ASLEEP, IDLE);
    machine.at(3_300).switch(1, READY, PIG).at(3_400).switch(1, READY, OTHER);
    machine.at(4_000).switch(1, ASLEEP, HOG).at(4_600).timer(1, HARD, OTHER);
    machine.at(4_700).switch(1, READY, OTHER).at(4_800).end(OTHER.0, 0);
    machine.at(5_000).switch(1, READY, HOG);
    machine
}

#[test]
fn a_region_that_ends_on_another_thread_waits_for_those_on_its_path() {
    let regions = with_paths(&handed_on().made());

    let expected =
        [runnable("hog-300", 300 + 100), runnable("pig-301", 500 + 100), blocked("timer", 600)];
    assert_eq!(waits(&regions.groups[0]), expected);
    // The unknown time is before the first event of the thread that ends the region.
    assert_eq!(regions.groups[0].total.times.get(Part::Unknown), 100);
    // Without paths, nothing is known about the region.
    let without = all(&handed_on().made());
    assert_eq!(waits(&without.groups[0]), []);
}

#[test]
fn a_missing_switch_on_a_path_makes_its_waits_not_known() {
    let machine = handed_on();
    let made = machine.session();
    // The missing switch is from the hog to the other thread, while the region's second thread is ready.
    let is_it = |event: &(u64, u32, u32, Vec<u8>)| event.0 == HOST_BASE + 3_300;
    let missing = machine.all[1].iter().position(is_it).unwrap();
    let lost = |all: bool, cpu, n| (all && (cpu, n) == (1, missing)).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));

    let regions = with_paths(&made);

    let expected = [
        runnable("hog-300", 100),
        runnable("not known", 400),
        runnable("pig-301", 500),
        blocked("timer", 600),
    ];
    assert_eq!(waits(&regions.groups[0]), expected);
}

#[test]
fn waits_on_a_path_longer_than_the_last_turns_are_known() {
    let mut machine = begun(1);
    machine.of_any = true;
    for _ in 0..5_000 {
        machine.now += 10;
        machine.switch(0, READY, HOG).now += 10;
        machine.switch(0, READY, OWN);
    }
    let regions = with_paths(&ended(&mut machine));
    assert_eq!(waits(&regions.groups[0]), [runnable("hog-300", 50_000)]);
}

/// Reads the regions, and keeps what the threads did.
fn with_lanes(made: &Made) -> Regions {
    read(made, &Options { keeps_intervals: true, ..Options::default() })
}

/// A turn of a CPU: beginning, end, CPU and name.
type Shown = (i64, i64, Option<u16>, String);

/// Returns the threads that ran on the CPU of the region's thread, during the region and 100 ns before and
/// after it. The region begins at the time `begin`.
fn turns(regions: &Regions, begin: i64) -> Option<Vec<Shown>> {
    let sample = regions.samples().next().unwrap();
    let window = Window { begin: sample.begin_ns, end: sample.end_ns(), around: 100 };
    let lane = regions.lanes(sample, &window).lanes.remove(0);
    let turn = |turn: Turn| {
        let [from, to] = [turn.from, turn.to].map(|time| time - window.begin + begin);
        let who = turn.other.map(|other| regions.causes[usize::from(other)].to_string());
        (from, to, turn.cpu, who.unwrap_or("own".into()))
    };
    Some(Vec::from_iter(lane.turns?.into_iter().map(turn)))
}

/// Makes a thread that is preempted, sleeps, and is moved to another CPU.
fn moved() -> Cpus {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, READY, HOG).at(2_300).switch(0, READY, PIG);
    machine.at(2_400).switch(0, READY, OWN).at(3_000).switch(0, ASLEEP, IDLE);
    machine.at(3_500).switch(1, READY, OTHER);
    machine.at(4_000).timer(0, HARD, OWN).at(4_305).switch(1, READY, IDLE);
    machine.at(4_405).switch(1, READY, OWN);
    machine
}

#[test]
fn a_lane_says_who_had_the_cpu_that_its_thread_was_on_or_waited_for() {
    let expected = [
        (1_000, 2_000, Some(0), "own"),
        (2_000, 2_300, Some(0), "hog-300"),
        (2_300, 2_400, Some(0), "pig-301"),
        (2_400, 3_000, Some(0), "own"),
        // The thread is asleep until here.
        (4_005, 4_305, Some(1), "other-201"),
        (4_305, 4_405, Some(1), "idle CPU"),
        (4_405, 4_505, Some(1), "own"),
    ];
    let expected = expected.map(|(from, to, cpu, who)| (from, to, cpu, who.to_owned()));

    let regions = with_lanes(&ended(&mut moved()));

    assert_eq!(turns(&regions, 1_100).unwrap(), expected);
}

#[test]
fn a_lane_without_the_other_threads_events_says_nothing_of_a_cpu() {
    let mut machine = moved();
    end(&mut machine);
    let made = machine.session();
    let mut trace = machine.trace();
    trace.all = Vec::new();
    trace.options = vec![trace_dat::recorded_with_threads(BOOT, &machine.threads())];
    made.kernel(&trace);
    assert_eq!(turns(&with_lanes(&made), 1_100), None);
    // If the switch away from the hog is missing, only this wait has an unknown cause.
    let lost = |all: bool, cpu, n| (all && cpu == 0 && n == 2).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));
    let turns = turns(&with_lanes(&made), 1_100).unwrap();
    assert_eq!(turns[1], (2_000, 2_400, Some(0), "not known".into()));
    assert_eq!(turns.len(), 6);
}

#[test]
fn a_timer_whose_end_is_missing_ends_before_the_next_softirq() {
    let mut machine = begun(1);
    machine.at(1_500).switch(0, ASLEEP, HOG).at(2_000).timer(0, SOFT, PIG);
    machine.at(2_100).softirq(0, 3, OWN).at(2_200).switch(0, READY, OWN);
    end(&mut machine);
    let made = machine.session();
    let end_of_timer =
        |(_, id, ..): &(u64, u32, u32, Vec<u8>)| *id as u16 == trace_dat::HRTIMER_EXPIRE_EXIT_ID;
    let missing = machine.all[0].iter().position(end_of_timer).unwrap();
    let lost = |all: bool, _, n| (all && n == missing).then_some(Counted(false));
    made.kernel(&machine.trace_without(lost));

    let waits = waits(&all(&made).groups[0]);
    assert!(waits.contains(&blocked("softirq NET_RX", 605)), "{waits:?}");
}

#[test]
fn a_thread_that_moves_between_cpus_without_its_switches_is_on_neither() {
    let mut machine = begun(2);
    machine.at(2_000).switch(0, READY, HOG).at(3_000).switch(1, READY, OWN);
    machine.at(3_500).timer(1, HARD, PIG);
    end(&mut machine);
    let made = machine.session();
    let is_missing = |(time, ..): &(u64, u32, u32, Vec<u8>)| {
        [2_000, 3_000].map(|at| HOST_BASE + at).contains(time)
    };
    let lost = |all: bool, cpu: usize, n: usize| {
        (!all && is_missing(&machine.asked[cpu][n])).then_some(Counted(false))
    };
    made.kernel(&machine.trace_without(lost));

    let regions = with_lanes(&made);

    // The timer shows that the thread runs on the second CPU, but no event shows when it began to run. The
    // first turn ends with the begin of the region, which is not an event of the kernel.
    let own = |from, to, cpu| (from, to, cpu, "own".to_owned());
    assert_eq!(
        turns(&regions, 1_100).unwrap(),
        [own(1_000, 1_100, None), own(3_500, 3_605, Some(1))]
    );
    assert_eq!(regions.groups[0].total.times.get(Part::Unknown), 2_400);
}

/// A machine that runs at random, and the truth about its program. For each region, `truth` has the time of
/// the waits by part and cause.
struct Simulated {
    machine: Cpus,
    truth: BTreeMap<String, BTreeMap<(usize, String), u64>>,
    /// Turns of each CPU: the time at which a thread gets the CPU, and the thread.
    turns: [Vec<(u64, Task)>; 2],
}

const SIMULATED: [Task; 8] = [
    OWN,
    OTHER,
    (202, "third"),
    HOG,
    PIG,
    (302, "kworker/0:1"),
    (303, "a b"),
    (304, "rust-analyzer"),
];

impl Simulated {
    fn new(seed: u64, steps: usize) -> Simulated {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            On(usize),
            Ready,
            Asleep,
        }
        let mut state = seed;
        let mut below = move |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let mut machine = Cpus::new(2, &SIMULATED[..3]);
        let mut truth = BTreeMap::<String, BTreeMap<(usize, String), u64>>::new();
        let mut states = [State::Ready; SIMULATED.len()];
        // `since` has the time at which each thread began to wait. `open` has each thread's open region.
        let mut since = [0; SIMULATED.len()];
        let mut open = [None; SIMULATED.len()];
        let mut turns: [Vec<(u64, Task)>; 2] = [vec![(0, IDLE)], vec![(0, IDLE)]];
        let mut in_thread = [true; 2];
        let mut names = 0;
        for cpu in 0..2 {
            machine.switch(cpu, READY, (9, "first")).switch(cpu, READY, IDLE);
        }
        for _ in 0..steps {
            let now = machine.now + 20 + below(200) as u64;
            machine.at(now);
            let (cpu, thread) = (below(2), below(SIMULATED.len()));
            let running = SIMULATED.iter().position(|task| task.0 == machine.running[cpu].0);
            let mut wait = |thread: usize, part: Part, cause: String, ns: u64| {
                if let Some(name) = open[thread].filter(|_| ns > 0) {
                    let of = truth.entry(format!("r{name}")).or_default();
                    *of.entry((part as usize, cause)).or_default() += ns;
                }
            };
            match (below(4), states[thread]) {
                // Another thread gets the CPU, or no thread gets the CPU.
                (0, State::Ready) | (1, State::On(_)) => {
                    let sleeps = below(2) == 0;
                    if let Some(running) = running {
                        states[running] = if sleeps { State::Asleep } else { State::Ready };
                        since[running] = now;
                    }
                    let to = match states[thread] {
                        State::Ready if Some(thread) != running => SIMULATED[thread],
                        _ if machine.running[cpu] != IDLE => IDLE,
                        _ => continue,
                    };
                    machine.switch(cpu, if sleeps { ASLEEP } else { READY }, to);
                    if to != IDLE {
                        let mut end = now;
                        for (from, task) in turns[cpu].iter().rev() {
                            let from = since[thread].max(*from);
                            let cause = match task {
                                (0, _) => "idle CPU".into(),
                                (tid, name) => format!("{name}-{tid}"),
                            };
                            wait(thread, Part::Runnable, cause, end.saturating_sub(from));
                            end = end.min(from);
                        }
                        states[thread] = State::On(cpu);
                    }
                    turns[cpu].push((now, to));
                    in_thread[cpu] = true;
                }
                (2, State::Asleep) => {
                    let task = SIMULATED[thread];
                    let cause = match below(6) {
                        0 => (machine.timer(cpu, HARD, task), "timer".into()).1,
                        1 => (machine.timer(cpu, SOFT, task), "timer".into()).1,
                        2 => (machine.handler(cpu, "nvme0q1", task), "interrupt nvme0q1".into()).1,
                        3 => (machine.softirq(cpu, 3, task), "softirq NET_RX".into()).1,
                        // This interrupt has no events of its own, so it comes only after an event outside of
                        // interrupts. Otherwise, if the previous interrupt's end were lost, the reader would
                        // mistake this interrupt for the previous one.
                        4 if in_thread[cpu] => {
                            (machine.wake(cpu, HARD, task), "interrupt".into()).1
                        }
                        _ => {
                            machine.wake(cpu, 0, task);
                            in_thread[cpu] = true;
                            match machine.running[cpu] {
                                (0, _) => "idle CPU".into(),
                                (tid, name) => format!("{name}-{tid}"),
                            }
                        }
                    };
                    in_thread[cpu] &= !(cause == "timer" || cause.contains(' '));
                    wait(thread, Part::Blocked, cause, now + WAY - since[thread]);
                    (states[thread], since[thread]) = (State::Ready, now + WAY);
                    machine.now = now + 2 * WAY;
                }
                // A region begins or ends.
                (3, State::On(_)) if thread < 3 => match open[thread].take() {
                    Some(name) => {
                        machine.end(SIMULATED[thread].0, name);
                    }
                    None => {
                        open[thread] = Some(names);
                        machine.begin(SIMULATED[thread].0, names);
                        names += 1;
                    }
                },
                _ => {}
            }
        }
        Simulated { machine, truth, turns }
    }

    /// Checks the lanes around each region. If a lane shows a thread on a CPU, then the thread really was on
    /// this CPU. In the second buffer, times may differ from the true times by at most `most`.
    #[track_caller]
    fn check_lanes(&self, regions: &Regions, most: i64) {
        let begin = |name: &str| {
            let mut begins = self.machine.regions.iter().filter(|(.., begins)| *begins);
            begins.find(|(_, _, number, _)| format!("r{number}") == name).unwrap().0 as i64
        };
        for sample in regions.samples() {
            let origin = sample.begin_ns - begin(&regions.groups[usize::from(sample.group)].name);
            let window = Window { begin: sample.begin_ns, end: sample.end_ns(), around: 300 };
            for lane in regions.lanes(sample, &window).lanes {
                for turn in lane.turns.unwrap() {
                    let tid = match turn.other.map(|other| regions.cause(other)) {
                        None => lane.tid,
                        Some(Cause::Idle) => 0,
                        Some(Cause::Thread { tid, .. }) => *tid,
                        Some(_) => continue,
                    };
                    // The turn is before the first event of the kernel.
                    let Some(cpu) = turn.cpu else { continue };
                    let had = &self.turns[usize::from(cpu)];
                    let [from, to] =
                        [turn.from + most, turn.to - most].map(|time| (time - origin) as u64);
                    let first = had.partition_point(|(time, _)| *time <= from) - 1;
                    let meanwhile = had[first..].iter().take_while(|(time, _)| *time < to);
                    let mut meanwhile =
                        meanwhile.filter(|(time, task)| task.0 != tid && *time < to);
                    assert_eq!(meanwhile.next(), None, "{turn:?} {from}..{to} {had:?}");
                }
            }
        }
    }
}

/// Returns the waits of each region with their causes, and all parts.
fn by_region(regions: &Regions) -> BTreeMap<String, BTreeMap<(usize, String), u64>> {
    let of = |group: &Group| {
        let waits = waits(group).into_iter();
        waits.map(|(part, cause, ns)| ((part as usize, cause), ns)).collect()
    };
    let groups = regions.groups.iter().filter(|group| group.count == 1);
    groups.map(|group| (group.name.clone(), of(group))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn each_wait_has_its_true_cause(seed: u64) {
        let simulated = Simulated::new(seed, 600);
        let Simulated { machine, truth, .. } = &simulated;

        let regions = with_lanes(&machine.made());

        simulated.check_lanes(&regions, 0);
        let mut found = by_region(&regions);
        found.retain(|_, waits| !waits.is_empty());
        // Regions that never end are not counted.
        let ended = |name: &String| regions.groups.iter().any(|g| g.name == *name && g.count == 1);
        let truth = truth.clone().into_iter().filter(|(name, _)| ended(name));
        prop_assert_eq!(found, BTreeMap::from_iter(truth));
    }

    #[test]
    fn missing_events_make_only_more_time_not_known(seed: u64, lost: u64, late in -3i64..4) {
        let mut simulated = Simulated::new(seed, 600);
        simulated.machine = late_by(&simulated.machine, late);
        check_missing(&simulated, lost, |made| {
            let regions = with_lanes(made);
            simulated.check_lanes(&regions, late.abs());
            regions
        })?;
    }

    #[test]
    fn missing_events_make_only_more_time_on_a_path_not_known(seed: u64, lost: u64) {
        let mut simulated = Simulated::new(seed, 600);
        simulated.machine.of_any = true;
        check_missing(&simulated, lost, with_paths)?;
    }
}

/// Removes one event, or one in a hundred events. Checks that the reader then knows less, but reports nothing
/// that is wrong.
fn check_missing(
    Simulated { machine, .. }: &Simulated,
    lost: u64,
    read: impl Fn(&Made) -> Regions,
) -> Result<(), TestCaseError> {
    let made = machine.session();
    made.kernel(&machine.trace());
    let full = read(&made);
    let (all_waits, full_parts) = (by_region(&full), parts(&full));
    let mut state = lost;
    let mut one_in = move |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).is_multiple_of(n)
    };
    // Either a single event is lost without a count, or one in a hundred events is lost with a count.
    let sizes = [&machine.asked, &machine.all].map(|b| b.iter().map(Vec::len).sum::<usize>());
    let single = lost as usize % (sizes[0] + sizes[1]);
    let is_counted = one_in(2);
    let mut number = 0;
    made.kernel(&machine.trace_without(|_, _, _| {
        number += 1;
        match is_counted {
            true => one_in(100).then_some(Counted(true)),
            false => (number - 1 == single).then_some(Counted(false)),
        }
    }));

    let regions = read(&made);

    let parts = parts(&regions);
    for (name, waits) in by_region(&regions) {
        let Some(before) = all_waits.get(&name) else { continue };
        for (part, (ns, full)) in parts[&name].iter().zip(full_parts[&name]).enumerate() {
            prop_assert!(*ns <= full || part == Part::Unknown as usize, "{name}: {parts:?}");
        }
        for part in [Part::Runnable, Part::Blocked] {
            let before = by_thread(before, part);
            for (cause, ns) in by_thread(&waits, part) {
                let full = before.get(&cause).copied().unwrap_or(0);
                // The events of the interrupt itself may be missing.
                let is_vague = ["not known", "interrupt", "softirq"].contains(&&*cause);
                prop_assert!(ns <= full || is_vague, "{name}: {ns} of {full} {part:?} by {cause}");
            }
        }
    }
    Ok(())
}

/// Returns the same machine. In the second buffer, all times are later by `late`.
fn late_by(machine: &Cpus, late: i64) -> Cpus {
    let mut machine = machine.clone();
    for event in machine.all.iter_mut().flatten() {
        event.0 = event.0.saturating_add_signed(late);
    }
    machine
}

/// Returns the parts of each region.
fn parts(regions: &Regions) -> BTreeMap<String, [u64; PARTS]> {
    let groups = regions.groups.iter();
    groups.map(|group| (group.name.clone(), group.total.times.0)).collect()
}

/// Returns for each cause the time of a part. Threads are named by their numbers, because an event with the
/// name may be missing.
fn by_thread(waits: &BTreeMap<(usize, String), u64>, part: Part) -> BTreeMap<String, u64> {
    let mut by_thread = BTreeMap::new();
    for ((_, cause), ns) in waits.iter().filter(|((of, _), _)| *of == part as usize) {
        let number = cause.rsplit(['-', ' ']).next().filter(|word| word.parse::<u32>().is_ok());
        *by_thread.entry(number.unwrap_or(cause).to_owned()).or_default() += ns;
    }
    by_thread
}

/// Makes a session of a guest that has the host's clock. The session has the regions of a machine's first
/// thread. The guest's host is the VMM, or `hypertrace serve`.
fn guest(machine: &Cpus, served: bool) -> Made {
    let events = r#"[
        {"id":16,"schema":"r0_begin(id:u64)","reference_point":false},
        {"id":17,"schema":"r0_end(id:u64)","reference_point":false},
        {"id":18,"schema":"checkpoint(n:u64)","reference_point":true}]"#;
    let [host, guest] = [(0, "host"), (1, "guest")]
        .map(|(id, domain)| made::clock(id, domain, 0, made::GHZ, HOST_BASE, made::START_NS));
    let events = made::with_pieces(events, 19);
    let json =
        made::with_boot(&made::json(&format!("[{host},{guest}]"), &events, "[]"), Some(BOOT));
    let json = json.replacen("\"clocks\"", &format!("\"served\":{served},\"clocks\""), 1);
    let lease = |packet: Packet, pid, name: &[u8]| {
        packet.with64(80, 9).event_str(100, 1, &[9, pid, OWN.0.into(), 0], name)
    };
    let mut points = lease(Packet::host(0), 40, b"segment");
    for n in 1..50 {
        points = points.point(n * MS + 500, 0, n as u32, HOST_BASE + n * MS, n);
    }
    let own = lease(Packet::guest(0), 50, b"own");
    let regions = machine.regions.iter().fold(own, |packet, (time, _, _, begins)| {
        packet.event(*time, 16 + u32::from(!begins), &[0])
    });
    let regions = regions.recording((50 * MS, 19), &machine.trace());
    Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), regions])
        .stream("host-000-0000", &[Packet::host(0), points])
}

#[test]
fn a_recording_of_the_host_does_not_hide_that_of_a_guest_which_another_process_than_the_vmm_serves()
{
    let mut machine = Cpus::new(1, &[OWN]);
    machine.at(MS).switch(0, READY, OWN).at(10 * MS).begin(OWN.0, 0);
    machine.at(12 * MS).switch(0, ASLEEP, IDLE).at(20 * MS).timer(0, HARD, OWN);
    machine.at(21 * MS).switch(0, READY, OWN).at(25 * MS).end(OWN.0, 0).at(45 * MS);
    machine.switch(0, READY, (7, "last"));
    // A thread of the host has the same number.
    let mut host = Cpus::new(1, &[OWN]);
    host.at(MS / 4).switch(0, READY, OWN).at(11 * MS).switch(0, READY, HOG);
    host.at(24 * MS).switch(0, READY, OWN).at(45 * MS).switch(0, READY, (7, "last"));
    let read = |served, with_host| {
        let made = guest(&machine, served);
        made.kernel(&host.trace());
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let own = KernelTrace::of_session(0, &session).unwrap().filter(|_| with_host);
        let mut traces = Vec::from_iter(own);
        let open = &mut |kernel: GuestKernel| traces.push(kernel.open(0).unwrap());
        assert!(GuestKernel::find(&session, open).is_empty());
        traces.last_mut().unwrap().set_guest(&session, &maps).unwrap();
        let options = Options { has_paths: true, ..Options::default() };
        let regions = Regions::of(&Recording::of([(session, maps)], traces), &options).unwrap();
        let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
        (group.count, group.total.times, group.total.path.len())
    };

    let alone = read(false, false);

    let (count, times, _) = alone;
    assert_eq!((count, times.get(Part::Unknown)), (1, 0));
    assert!(times.get(Part::Blocked).abs_diff(8 * MS) < 2_000, "{times:?}");
    assert_eq!(read(true, false), alone);
    assert_eq!(read(true, true), alone);
    // If the VMM records the session, the host's recording shows the threads of the VMM. No event shows which
    // of these threads runs the guest's CPU.
    assert_eq!(read(false, true), alone);
}

#[test]
fn a_path_of_the_vmm_is_not_that_of_the_guests_thread_with_the_same_number() {
    let mut machine = Cpus::new(1, &[OWN]);
    machine.at(MS).switch(0, READY, OWN).at(12 * MS).switch(0, ASLEEP, IDLE).at(20 * MS);
    machine.timer(0, HARD, OWN).at(21 * MS).switch(0, READY, OWN);
    machine.at(45 * MS).switch(0, READY, (7, "last"));
    let mut host = Cpus::new(1, &[OWN]);
    host.at(MS / 4).switch(0, READY, OWN).at(13 * MS).switch(0, READY, HOG);
    host.at(24 * MS).switch(0, READY, OWN).at(45 * MS).switch(0, READY, (7, "last"));
    let lease = [10, 40, OWN.0.into(), 0];
    let ring = Packet::host(1).with64(80, 10).event_str(100, 1, &lease, b"vcpu");
    let ring = ring.event(12 * MS, 16, &[5]).event(26 * MS, 17, &[5]);
    let made = guest(&machine, false).stream("host-001-0000", &[Packet::host(1), ring]);
    made.kernel(&host.trace());
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    let options = Options { has_paths: true, ..Options::default() };
    let regions = Regions::of(&recording, &options).unwrap();

    let [Group { total, .. }] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    let path = total.path.iter().map(|step| (step.part, step.ns.div_ceil(MS)));
    assert_eq!(Vec::from_iter(path), [(Part::Runnable, 11), (Part::OnCpu, 3)]);
}

/// Reads a guest's session with the recording of its host, with critical paths.
fn with_host(host: &Cpus, served: bool) -> Regions {
    let made = guest(host, served);
    made.kernel(&host.trace());
    read(&made, &Options { has_paths: true, ..Options::default() })
}

#[test]
fn the_thread_of_a_server_is_no_vcpu() {
    // The server's thread waits for a timer while the guest computes.
    let mut host = Cpus::new(1, &[OWN]);
    host.at(MS / 4).switch(0, READY, OWN).at(10 * MS).begin(OWN.0, 0);
    host.at(11 * MS).switch(0, ASLEEP, IDLE).at(24 * MS).timer(0, HARD, OWN);
    host.at(24 * MS + 100).switch(0, READY, OWN).at(25 * MS).end(OWN.0, 0);
    host.at(45 * MS).switch(0, READY, (7, "last"));

    let regions = with_host(&host, true);

    let [Group { total, .. }] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    assert_eq!((total.regions, total.times.get(Part::Unknown)), (1, total.times.total()));
    let path = total.path.iter().map(|step| (step.part, step.cause.as_deref().unwrap()));
    assert_eq!(Vec::from_iter(path), [(Part::Unknown, &Cause::Unknown(Unknown::NoThread))]);
    // The server answers points at times at which, according to its switches, the server sleeps. Another
    // warning reports this contradiction.
    let said = |regions: &Regions| {
        let lines =
            regions.warnings.iter().filter(|line| line.contains("ran the session's sources"));
        Vec::from_iter(lines.cloned())
    };
    let [line] = &said(&regions)[..] else { panic!("{:?}", regions.warnings) };
    assert!(line.contains("the time of 1 region is unknown"), "{line}");
    assert!(line.contains("hypertrace forward"), "{line}");
    // If a thread of the VMM answers the points, this thread is the vCPU's thread. Nothing shows which of the
    // guest's threads ran on the vCPU.
    let regions = with_host(&host, false);
    let Breakdown { times, guest_at_most_ns, .. } = regions.groups[0].total;
    assert_eq!(times.get(Part::Unknown), times.total(), "{times:?}");
    // Without KVM's events, nothing shows when vCPUs were in guest mode.
    assert_eq!(guest_at_most_ns, None);
    assert_eq!(said(&regions), [""; 0]);
}

#[test]
fn an_end_that_the_clock_puts_where_its_thread_has_no_cpu_is_the_clocks_fault() {
    for (exact, why) in [(false, Unknown::Clock), (true, Unknown::Missing)] {
        let mut host = Cpus::new(1, &[OWN]);
        host.at(MS / 4).switch(0, READY, OWN).at(10 * MS).begin(OWN.0, 0);
        host.at(20 * MS).switch(0, ASLEEP, IDLE).at(25 * MS).end(OWN.0, 0);
        host.at(26 * MS).timer(0, HARD, OWN).switch(0, READY, OWN);
        host.at(45 * MS).switch(0, READY, (7, "last"));

        // A guest's events have times of the guest's own clock, and a program's events have times of the
        // kernel's clock.
        let regions = match exact {
            false => with_host(&host, false),
            true => read(&host.made(), &Options { has_paths: true, ..Options::default() }),
        };

        let [Group { total, .. }] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
        let unknown = total.path.iter().filter(|step| step.part == Part::Unknown);
        let [step] = unknown.collect::<Vec<_>>()[..] else { panic!("{:?}", total.path) };
        assert_eq!(step.cause.as_deref(), Some(&Cause::Unknown(why)));
        // Only a point every millisecond limits the guest's clock.
        assert!(step.ns.abs_diff(5 * MS) < MS, "{step:?}");
    }
}
