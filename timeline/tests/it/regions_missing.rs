// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the warnings about events and threads that a kernel's trace lacks. The warnings also name the
//! consequences for regions.

use crate::made_regions;
use hypertrace_test_support::{made, trace_dat, vcpu};
use made_regions::*;
use trace_dat::{Page, SCHED_SWITCH_ID, TraceDat, switch};
use vcpu::{Vcpu, What};

/// Returns a kernel.dat with switches of the thread 500 only.
fn of_another_thread() -> Vec<u8> {
    let payload = switch((9, "other"), 0, (500, "another"));
    let at = |time| (vcpu::HOST_BASE + time, SCHED_SWITCH_ID, 9, payload.clone());
    let pages = Page::all(&[at(1), at(50_000_000)]);
    TraceDat::new("x86-tsc").option(trace_dat::recorded(made::BOOT, 0)).cpu(&pages).version_7()
}

#[test]
fn missing_switches_back_are_counted_in_a_line() {
    let mut vcpus = [Vcpu::rounds(0, 30, 5)];
    assert_eq!(all(&with_kernel(&vcpus, |_| true)).warnings, [""; 0]);
    let back = switch((9, "other"), 0, (vcpus[0].tid(), "vcpu"));
    let is_back = |what: &What| matches!(what, What::Kernel(_, payload) if *payload == back);
    let count = vcpus[0].events.iter().filter(|(_, what)| is_back(what)).count();
    vcpus[0].events.retain(|(_, what)| !is_back(what));

    let regions = all(&with_kernel(&vcpus, |_| true));

    let [line] = &regions.warnings[..] else { panic!("{:?}", regions.warnings) };
    let dropped = format!("dropped {count} of the {count} events that give a thread its CPU back");
    assert!(line.contains(&dropped), "{line}");
    assert!(line.contains("unknown"), "{line}");
}

#[test]
fn a_trace_without_the_sessions_threads_says_how_to_record_them() {
    let made = vcpu::session(&[Vcpu::rounds(0, 30, 5)]);
    std::fs::write(made.path().join("kernel.dat"), of_another_thread()).unwrap();

    let warnings = all(&made).warnings;

    let [line] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(line.contains("no event of the session's threads: all time is unknown"), "{line}");
    assert!(line.contains("hypertrace record --kernel"), "{line}");
}

#[test]
fn clients_of_which_no_thread_is_known_are_reported() {
    let made = vcpu::session(&events(&[(0, 10_000, B, 1), (0, 20_000, E, 1)]));
    std::fs::write(made.path().join("kernel.dat"), of_another_thread()).unwrap();

    let warnings = all(&made).warnings;

    let [line] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(line.contains("nothing shows which threads of the host ran"), "{line}");
    assert!(line.contains("the time of 1 region is unknown"), "{line}");
    assert!(line.contains("a reference point of each source shows its thread"), "{line}");
}
