// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of critical paths through the end of a process. The last thread of the process wakes the parent, but
//! the parent really waited for the thread that began the end.

use crate::made_regions::read;
use hypertrace_test_support::cpus::{ASLEEP, Cpus, ENDED, HARD, READY, Task};
use hypertrace_test_support::trace_dat::{
    SCHED_PROCESS_EXEC_ID, SCHED_PROCESS_EXIT_ID, SCHED_WAKEUP_NEW_ID, SIGNAL_DELIVER_ID,
    TASK_NEWTASK_ID,
};
use hypertrace_test_support::vcpu::HOST_BASE;
use hypertrace_timeline::regions::{Options, Part, PathStep, Regions};

const SHELL: Task = (200, "sh");
const MAIN: Task = (400, "main");
const POLL: Task = (401, "poll");
const WORKER: Task = (402, "worker");
const KILLER: Task = (500, "kill");
const IDLE: Task = (0, "swapper");

/// Begins a region of a shell. The shell starts a process and waits for the process. CPU 1 runs the main
/// thread of the process.
fn begun(main: Task) -> Cpus {
    let mut machine = Cpus::new(3, &[SHELL]);
    machine.at(1_000).switch(0, READY, SHELL).at(1_100).begin(SHELL.0, 0);
    machine.at(2_000).start(0, false, main).switch(0, ASLEEP, IDLE);
    machine.at(2_100).switch(1, READY, main).execute(1);
    machine
}

/// Lets the main thread start a thread. The new thread polls on CPU 0.
fn with_poll(machine: &mut Cpus) -> &mut Cpus {
    machine.at(2_200).start(1, true, POLL).at(2_300).switch(0, READY, POLL);
    for time in [3_000, 4_000, 5_000] {
        machine.at(time).switch(0, ASLEEP, IDLE).at(time + 900).timer(0, HARD, POLL);
        machine.at(time + 950).switch(0, READY, POLL);
    }
    machine.at(6_000).switch(0, ASLEEP, IDLE)
}

/// Ends a killed thread, which is on a CPU, as the last thread of its process.
fn last(machine: &mut Cpus, cpu: usize, time: u64) {
    machine.at(time).exit(cpu, true).at(time + 100).wake(cpu, 0, SHELL);
    end(machine.switch(cpu, ENDED, IDLE));
}

/// Lets the shell end its region.
fn end(machine: &mut Cpus) {
    let now = machine.now;
    machine.at(now + 100).switch(0, READY, SHELL).at(now + 200).end(SHELL.0, 0);
    machine.at(now + 300);
    (0..3).for_each(|cpu| _ = machine.switch(cpu, READY, (7, "last")));
}

/// Makes a machine whose main thread runs, and ends the process while the other thread sleeps.
fn exited() -> Cpus {
    let mut machine = begun(MAIN);
    with_poll(&mut machine).at(6_500).wake(1, 0, POLL).exit(1, false);
    machine.at(6_600).switch(1, ENDED, POLL);
    last(&mut machine, 1, 6_700);
    machine
}

/// Returns the steps of the region's path, sorted by the threads' names: a thread, what the thread did, and
/// for how many nanoseconds.
fn path(machine: &Cpus) -> Vec<(String, &'static str, u64)> {
    path_of(&with_paths(machine.made()))
}

fn with_paths(made: impl std::borrow::Borrow<hypertrace_test_support::made::Made>) -> Regions {
    read(made.borrow(), &Options { has_paths: true, ..Options::default() })
}

fn path_of(regions: &Regions) -> Vec<(String, &'static str, u64)> {
    let [group] = &regions.groups[..] else { panic!("{:?}", regions.groups) };
    let doing = |part| match part {
        Part::OnCpu => "running",
        Part::Runnable => "runnable",
        Part::Blocked => "blocked",
        _ => "not known",
    };
    let steps = group.total.path.iter();
    let step = |step: &PathStep| (step.thread.to_string(), doing(step.part), step.ns);
    let mut path = Vec::from_iter(steps.map(step));
    path.sort();
    path
}

fn step(thread: &str, doing: &'static str, ns: u64) -> (String, &'static str, u64) {
    (thread.into(), doing, ns)
}

/// Returns the steps of the shell itself, before and after the process.
fn of_shell() -> [(String, &'static str, u64); 2] {
    [step("sh-200", "runnable", 100), step("sh-200", "running", 900 + 100)]
}

/// Returns the path that has the shell's own time and these steps.
fn with_shell(steps: &[(String, &'static str, u64)]) -> Vec<(String, &'static str, u64)> {
    [steps, &of_shell()].concat()
}

#[test]
fn a_path_goes_on_with_the_thread_that_ended_the_process() {
    let of_main = [step("main-400", "runnable", 100), step("main-400", "running", 4_400)];
    let of_poll = [step("poll-401", "runnable", 100), step("poll-401", "running", 200)];

    assert_eq!(path(&exited()), with_shell(&[of_main, of_poll].concat()));
}

#[test]
fn a_thread_that_was_killed_while_it_had_or_awaited_a_cpu_is_left_when_it_was_told_to_end() {
    // Nothing wakes the polling thread when the thread is told to end. The polling thread is told to end at
    // 6,500 at the latest. In the first case, the thread waits for a CPU at this time. In the second case,
    // the thread runs.
    for (takes, expected) in [
        (6_800, [step("poll-401", "runnable", 200), step("poll-401", "running", 200)]),
        (6_500, [step("poll-401", "running", 0), step("poll-401", "running", 400)]),
    ] {
        let mut machine = begun(MAIN);
        with_poll(&mut machine).at(6_100).timer(0, HARD, POLL).at(6_150).switch(0, READY, POLL);
        if takes > 6_500 {
            machine.at(6_300).switch(0, READY, KILLER);
        }
        machine.at(6_500).exit(1, false).at(6_600).switch(1, ENDED, IDLE);
        if takes > 6_500 {
            machine.at(6_700).switch(0, ENDED, POLL);
        }
        last(&mut machine, 0, 6_800);
        let of_poll = expected.into_iter().filter(|(.., ns)| *ns > 0);
        let of_main = [step("main-400", "runnable", 100), step("main-400", "running", 4_400)];
        let steps = Vec::from_iter(of_main.into_iter().chain(of_poll));

        assert_eq!(path(&machine), with_shell(&steps), "{takes}");
    }
}

#[test]
fn a_thread_that_returned_before_the_others_slept_did_not_end_the_process() {
    let with_worker = |returns: u64| {
        let mut machine = begun(MAIN);
        machine.at(2_150).start(1, true, WORKER).switch(2, READY, WORKER);
        machine.at(2_200).start(1, true, POLL).at(2_300).switch(0, READY, POLL);
        if returns < 3_000 {
            machine.at(returns).exit(2, false).switch(2, ENDED, IDLE);
        }
        machine.at(3_000).switch(0, ASLEEP, IDLE);
        if returns > 3_000 {
            machine.at(returns).exit(2, false).switch(2, ENDED, IDLE);
        }
        machine.at(6_500).wake(1, 0, POLL).exit(1, false).at(6_600).switch(1, ENDED, POLL);
        last(&mut machine, 1, 6_700);
        path(&machine)
    };
    let of_poll = [step("poll-401", "runnable", 100), step("poll-401", "running", 200)];
    let of_main = [step("main-400", "runnable", 100), step("main-400", "running", 4_400)];

    assert_eq!(with_worker(2_500), with_shell(&[of_main, of_poll].concat()));
    // Both threads may have ended the process.
    let of_poll = [step("poll-401", "not known", 4_700), step("poll-401", "running", 100)];
    assert_eq!(with_worker(3_500), with_shell(&of_poll));
}

#[test]
fn a_path_goes_on_with_the_thread_that_killed_the_process() {
    let killed = |flags: u32, number: u32| {
        let mut machine = begun(MAIN);
        machine.at(2_500).start(0, false, KILLER).switch(2, READY, KILLER);
        machine.at(3_000).switch(1, ASLEEP, IDLE);
        machine.at(6_500).signal(2, flags, number, MAIN).wake(2, flags, MAIN);
        machine.at(6_600).switch(1, READY, MAIN);
        last(&mut machine, 1, 6_700);
        path(&machine)
    };
    let of_main = [step("main-400", "runnable", 100), step("main-400", "running", 100)];
    // The idle thread started the killer, and the path does not follow the idle thread.
    let of_killer = [step("idle CPU", "not known", 500), step("kill-500", "running", 4_000)];
    let main = [step("main-400", "runnable", 100), step("main-400", "running", 200)];
    assert_eq!(killed(0, 9), with_shell(&[of_killer, main].concat()));
    // In the first case, an interrupt sent the signal. In the second case, the signal is a signal that does
    // not kill.
    let unknown = [&[step("main-400", "not known", 4_700)], &of_main[1..]].concat();
    assert_eq!(killed(HARD, 9), with_shell(&unknown));
    assert_eq!(killed(0, 10), with_shell(&unknown));
}

#[test]
fn a_thread_that_ends_by_itself_is_followed() {
    let mut machine = begun(MAIN);
    machine.at(3_000).switch(1, ASLEEP, IDLE).at(4_000).timer(1, HARD, MAIN);
    machine.at(4_100).switch(1, READY, MAIN).at(6_000).exit(1, false).at(6_100).wake(1, 0, SHELL);
    end(machine.switch(1, ENDED, IDLE));
    let of_main = [
        step("main-400", "blocked", 1_000),
        step("main-400", "runnable", 100 + 100),
        step("main-400", "running", 900 + 2_000),
    ];

    assert_eq!(path(&machine), with_shell(&of_main));
}

#[test]
fn the_end_of_a_process_after_a_new_program_says_nothing_of_the_threads_before() {
    let mut machine = begun(MAIN);
    with_poll(&mut machine).at(6_500).wake(1, 0, POLL).at(6_600).switch(1, ASLEEP, POLL);
    // The polling thread ends because the main thread executes a new program, and then wakes the main thread.
    machine.at(6_700).exit(1, true).at(6_800).wake(1, 0, MAIN).switch(1, ENDED, MAIN).execute(1);
    machine.at(7_000).exit(1, false).at(7_100).wake(1, 0, SHELL);
    end(machine.switch(1, ENDED, IDLE));

    let path = path(&machine);

    let of_poll = path.iter().filter(|(thread, ..)| thread == "poll-401");
    let expected = [step("poll-401", "not known", 100), step("poll-401", "running", 100)];
    assert_eq!(Vec::from_iter(of_poll.cloned()), expected, "{path:?}");
}

#[test]
fn which_thread_ended_a_process_from_before_the_recording_is_not_known() {
    let mut machine = exited();
    // The events that begin the main thread and its program are missing, so the process may have other
    // threads.
    let begins = [TASK_NEWTASK_ID, SCHED_WAKEUP_NEW_ID, SCHED_PROCESS_EXEC_ID];
    for events in &mut machine.all {
        events.retain(|(time, id, ..)| {
            *time > HOST_BASE + 2_150 || begins.iter().all(|b| u32::from(*b) != *id)
        });
    }

    let path = path(&machine);

    let unknown: u64 = path.iter().filter(|(_, doing, _)| *doing == "not known").map(|s| s.2).sum();
    assert_eq!(unknown, 4_700, "{path:?}");
}

#[test]
fn without_the_events_of_ends_no_thread_that_ended_is_followed() {
    for (event, number) in [
        ("sched_process_exit", SCHED_PROCESS_EXIT_ID),
        ("signal_deliver", SIGNAL_DELIVER_ID),
        ("task_newtask", TASK_NEWTASK_ID),
    ] {
        let mut machine = exited();
        for events in &mut machine.all {
            events.retain(|(_, id, ..)| *id != u32::from(number));
        }
        let made = machine.session();
        made.kernel(&machine.trace().without(event));

        let regions = with_paths(made);

        let path = path_of(&regions);
        assert_eq!(path, with_shell(&[step("poll-401", "not known", 4_800)]), "{event}");
        let [warning] = &regions.warnings[..] else { panic!("{:?}", regions.warnings) };
        assert!(warning.contains("which say which thread ended a process"), "{warning}");
    }
    assert!(with_paths(exited().made()).warnings.is_empty());
}
