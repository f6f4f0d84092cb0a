// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that compare the events of a guest's kernel with the times at which the host's threads were in guest
//! mode. The events refute KVM's statement about the guest's TSC if the statement is false. The events show
//! which thread runs which vCPU. The events make no bound smaller.

use guest_mode::{END, KVM_ENTRY_ID, MS, OFFSET, Recorded, TIDS, Vcpu, raw, recorded, word};
use hypertrace_test_support::kept::{self, Entry, Event, Value};
use hypertrace_test_support::{guest_mode, machine, made, trace_dat};
use hypertrace_timeline::{
    ClockMaps, GuestCpu, GuestKernel, KernelTrace, KvmWord, Needs, Recording, Session, vcpu_threads,
};
use machine::Random;
use made::{DISK_READ, GUEST_BASE, Made, OPENED, Packet, START_NS};
use std::collections::BTreeMap;
use std::slice::from_ref;
use trace_dat::{Counted, KVM_EXIT_ID, KVM_WRITE_TSC_OFFSET_ID, lost};

/// What the clock maps say about a guest.
struct Found {
    word: KvmWord,
    cpus: Vec<GuestCpu>,
    /// For each CPU of a guest, the host's thread. The key is the guest's clock and the CPU's id.
    vcpu_threads: BTreeMap<(u32, u32), u32>,
    /// Error and bound of each of the guest's events, in nanoseconds.
    events: Vec<(u64, u64)>,
}

impl Found {
    /// Asserts that the reader uses KVM's TSC, and that `threads` run the guest's CPUs.
    #[track_caller]
    fn assert_used(&self, threads: &[&[u32]]) {
        assert!(self.word.used().count() == 1 && !self.word.is_outside, "{:?}", self.word);
        let found = self.cpus.iter().map(|cpu| &cpu.threads[..]);
        assert_eq!(Vec::from_iter(found), threads, "{:?}", self.cpus);
        assert!(self.events.iter().all(|(error, bound)| *error <= 1 && *bound <= 3));
    }

    /// Asserts that the events refute KVM's TSC. The events then have the bounds that the points give, and no
    /// event is outside of its bound.
    #[track_caller]
    fn assert_refuted(&self) {
        assert!(self.word.used().count() == 0 && self.word.is_outside, "{:?}", self.word);
        assert_ne!(self.word.contradicted, 0);
        self.assert_by_points();
    }

    #[track_caller]
    fn assert_by_points(&self) {
        let by_points = find(&Recorded { words: String::new(), ..recorded() }).events;
        assert_eq!(self.events, by_points);
        assert!(by_points.iter().all(|(error, bound)| error <= bound && *bound > MS));
    }
}

/// Makes the clock maps of session 0. The guest's recording belongs to the session with this index.
fn maps(recorded: &Recorded, guest_of: usize) -> (Made, Session, ClockMaps) {
    let made = recorded.made();
    let session = Session::open(made.path()).unwrap();
    let host = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let mut guests = Vec::new();
    let open = &mut |kernel: GuestKernel| guests.push(kernel.open(guest_of).unwrap());
    assert!(GuestKernel::find(&session, open).is_empty());
    let (sessions, hosts) = (from_ref(&session), from_ref(&host));
    let maps = KernelTrace::clock_maps_of(0, sessions, hosts, &guests).unwrap();
    (made, session, maps)
}

fn find(recorded: &Recorded) -> Found {
    find_of(recorded, 0)
}

/// Finds what the maps say about the guest, if the guest's recording belongs to the session with this index.
fn find_of(recorded: &Recorded, guest_of: usize) -> Found {
    let (_made, session, maps) = maps(recorded, guest_of);
    let word = maps.kvm_words().next().map(|(.., word)| word.clone()).unwrap_or_default();
    let cpus = maps.guest_cpus().cloned().collect();
    let vcpu_threads = vcpu_threads(&session, &maps).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let events = kept::events(&recording).unwrap().into_iter();
    let of_guest = events.filter(|event| &*event.name == "disk_read");
    let event = |event: Event| {
        let Value::Unsigned(truth) = event.fields[0].1 else { panic!() };
        ((event.ts_ns - START_NS).abs_diff(truth as i64), event.bound_ns.unwrap())
    };
    Found { word, cpus, vcpu_threads, events: of_guest.map(event).collect() }
}

#[test]
fn by_a_true_offset_no_event_is_outside_of_guest_mode_of_its_vcpu() {
    let found = find(&recorded());

    found.assert_used(&[&TIDS[..1], &TIDS[1..]]);
    let recorded = recorded();
    let all = recorded.vcpus.iter().map(|vcpu| vcpu.guest.len());
    // The host's recording may end before the guest's last three events.
    for (cpu, all) in found.cpus.iter().zip(all) {
        assert!((all - 3..=all).contains(&cpu.events), "{cpu:?} {all}");
    }
}

#[test]
fn an_offset_that_is_wrong_by_a_millisecond_is_refused_although_the_points_allow_it() {
    for wrong in [-1_000_000, -20_000, 20_000, 1_000_000] {
        let recorded = Recorded { words: word(OFFSET + wrong), ..recorded() };

        find(&recorded).assert_refuted();

        // A guest whose kernel was not recorded refutes nothing.
        let found = find(&Recorded { guest: Vec::new(), ..recorded });
        assert!(found.word.used().count() == 1 && found.cpus.is_empty(), "{wrong}");
    }
}

#[test]
fn threads_that_points_claim_for_other_vcpus_are_those_that_run_them() {
    let mut recorded = recorded();
    recorded.guest.swap(0, 1);

    let found = find(&recorded);

    found.assert_used(&[&TIDS[1..], &TIDS[..1]]);
    assert_eq!(found.vcpu_threads, [((1, 0), TIDS[1]), ((1, 1), TIDS[0])].into());
    // Without a recording of the guest's kernel, the reader has only the claims of the points.
    let found = find(&Recorded { guest: Vec::new(), ..recorded });
    assert_eq!(found.vcpu_threads, [((1, 0), TIDS[0]), ((1, 1), TIDS[1])].into());
}

#[test]
fn two_vcpus_that_only_one_thread_could_run_refute_an_offset() {
    let mut recorded = recorded();
    recorded.guest[1] = recorded.guest[0].clone();

    let found = find(&recorded);

    found.assert_refuted();
    assert_eq!(found.vcpu_threads, BTreeMap::new());
}

#[test]
fn what_the_host_did_not_record_refutes_nothing() {
    let whole = recorded();
    let both = [&TIDS[..1], &TIDS[1..]];
    // A thread runs on the other CPU for a while, and the recording loses the events of this time.
    let mut lossy = whole.clone();
    let stay = |recorded: &Recorded, at: usize| {
        let of = &recorded.vcpus[0].host;
        let first = of.iter().position(|(time, id, ..)| *time > END / 2 && *id == KVM_ENTRY_ID);
        [0, 1].map(|more| first.unwrap() + at + more)
    };
    let moved = stay(&lossy, 0);
    let times = moved.map(|at| lossy.vcpus[0].host[at].clone());
    lossy.vcpus[0].host.drain(moved[0]..=moved[1]);
    let at = lossy.vcpus[1].host.partition_point(|seen| seen.0 < times[0].0);
    for (more, seen) in times.into_iter().enumerate() {
        let host = &mut lossy.vcpus[1].host;
        let place = host.partition_point(|other| other.0 < seen.0);
        host.insert(place, seen);
        lossy.lost[1].push((place, Counted(true)));
        assert!(place >= at + more);
    }
    find(&lossy).assert_used(&both);

    // The loss is at the end of the recording, where only the kernel's counters show the loss.
    let mut at_end = lossy.clone();
    let last = at_end.lost[1].iter().map(|(at, _)| *at).min().unwrap();
    let cut = at_end.vcpus[1].host.len() - last;
    at_end.vcpus[1].host.truncate(last);
    (at_end.lost[1], at_end.options) = (Vec::new(), vec![lost("", 1, cut)]);
    at_end.guest[1]
        .retain(|raw| *raw < at_end.vcpus[1].host[last - 1].0.wrapping_add_signed(OFFSET));
    find(&at_end).assert_used(&both);

    // Some kernels record no event when they enter the guest again after certain exits.
    let mut again = whole.clone();
    let entries = again.vcpus[0].host.iter().enumerate().filter(|(_, seen)| seen.1 == KVM_ENTRY_ID);
    let some = Vec::from_iter(entries.map(|(at, _)| at).skip(1).step_by(3));
    some.iter().rev().for_each(|at| drop(again.vcpus[0].host.remove(*at)));
    find(&again).assert_used(&both);

    // The host recorded other processes only, or the guest's recording is very short.
    let others = Recorded { words: format!("{}; threads=8,9", word(OFFSET)), ..whole.clone() };
    let found = find(&others);
    assert!(found.word.used().count() == 1 && found.cpus.is_empty());
    let mut short = Recorded { words: word(OFFSET + 1_000_000), ..whole.clone() };
    short.guest.iter_mut().for_each(|cpu| cpu.truncate(15));
    assert!(find(&short).cpus.is_empty());

    // The host has no event of a vCPU that was in guest mode all the time.
    let mut still = whole.clone();
    still.vcpus[1].host.clear();
    let found = find(&still);
    assert!(found.word.used().count() == 1 && found.cpus.is_empty(), "{:?}", found.cpus);
}

/// Makes a recording in which KVM makes the TSC offset of both vCPUs larger by a millisecond. The function
/// also returns the time of the first change.
fn changing() -> (Recorded, u64) {
    let (mut recorded, other) = (recorded(), OFFSET + MS as i64);
    let changed = recorded.vcpus.each_mut().map(|vcpu| {
        let exit = vcpu.host.iter().position(|seen| seen.0 > END / 2 && seen.1 == KVM_EXIT_ID);
        let exit = exit.unwrap();
        let (at, _, tid, _) = vcpu.host[exit];
        let payload = [[0; 8], OFFSET.to_le_bytes(), other.to_le_bytes()].concat();
        vcpu.host.insert(exit + 1, (at + 100, KVM_WRITE_TSC_OFFSET_ID, tid, payload));
        at + 100
    });
    let changed = changed.into_iter().min().unwrap();
    for (cpu, vcpu) in recorded.guest.iter_mut().zip(&recorded.vcpus) {
        let own = |at: &u64| if *at < changed { OFFSET } else { other };
        *cpu = vcpu.guest.iter().map(|at| at.wrapping_add_signed(own(at))).collect();
    }
    let second = word(other).replace(&format!(":{MS}:"), &format!(":{changed}:"));
    recorded.words = format!("{},{second}", word(OFFSET));
    (recorded, changed)
}

#[test]
fn an_offset_is_tested_while_it_held() {
    let (recorded, _) = changing();

    let found = find(&recorded);

    let threads = found.cpus.iter().map(|cpu| &cpu.threads[..]);
    assert_eq!(Vec::from_iter(threads), [&TIDS[..1], &TIDS[1..]].repeat(2), "{:?}", found.cpus);
    assert!(found.word.used().count() == 2 && !found.word.is_outside, "{:?}", found.word);
}

#[test]
fn a_part_of_a_timeline_is_the_same_where_the_offset_changes() {
    let (recorded, changed) = changing();
    let before = |at: u64| at.wrapping_add_signed(OFFSET) - GUEST_BASE;
    let after = |at: u64| before(at) + MS;
    // The second reading is mapped to a later time than the readings after it. So the events after the second
    // reading are shown at the time of the second reading.
    let packet = Packet::guest(0)
        .event(before(50 * MS), DISK_READ, &[1, 0])
        .event(before(changed + 900_000), DISK_READ, &[2, 0])
        .event(after(changed + 1_000), DISK_READ, &[3, 0])
        .event_str(after(changed + 2_000), OPENED, &[], b"x")
        .event(after(changed + 3_000), DISK_READ, &[4, 0]);
    let made = recorded.made().stream("guest-0", &[Packet::guest(0), packet]);
    let session = Session::open(made.path()).unwrap();
    let host = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let maps = KernelTrace::clock_maps_of(0, from_ref(&session), from_ref(&host), &[]).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let opened = |needs: &Needs| {
        let (entries, _) = kept::entries(&recording, needs).unwrap();
        let events = entries.into_iter().filter_map(|entry| match entry {
            Entry::Event(event) => Some(event),
            Entry::Lost(_) => None,
        });
        Vec::from_iter(events.filter(|event| &*event.name == "opened"))
    };

    let found = opened(&Needs::default().named(&recording.sessions, |name| name == "opened"));

    let all = opened(Needs::ALL);
    assert!(all.len() == 1 && all[0].bound_ns > Some(500_000), "{all:?}");
    assert_eq!(found, all);
}

#[test]
fn a_thread_that_does_not_come_back_to_guest_mode_runs_no_vcpu_with_later_events() {
    let mut recorded = recorded();
    // Only the first entry and exit of the second vCPU are kept, so that this vCPU waits after its first
    // exit.
    recorded.vcpus[1].host.truncate(2);
    recorded.vcpus[1] = recorded.vcpus[1].clone().halted();
    recorded.guest.truncate(1);
    recorded.guest[0].retain(|raw| *raw > raw_after(&recorded.vcpus[1]));

    find(&recorded).assert_used(&[&TIDS[..1]]);
}

fn raw_after(vcpu: &Vcpu) -> u64 {
    raw(&[vcpu.host.last().unwrap().0])[0]
}

#[test]
fn a_forged_recording_makes_no_bound_smaller_and_concerns_its_own_guest_alone() {
    let mut random = Random(5);
    let mut any = || Vec::from_iter((0..200).map(|_| random.in_range(0, END as i64) as u64));
    let mut forged = Recorded { guest: vec![any(), any()], ..recorded() };
    forged.guest.iter_mut().for_each(|cpu| cpu.sort_unstable());
    find(&forged).assert_refuted();
    let found = find_of(&forged, 1);
    assert!(found.word.used().count() == 1 && found.cpus.is_empty());

    // The points allow both TSCs, and the guest makes its events fit one of the two TSCs.
    let false_word = OFFSET + 300_000;
    let words = [word(OFFSET), word(false_word).replace("31-9", "77-9")].join(",");
    let fitting = |offset: i64| {
        let raw = |vcpu: &Vcpu| vcpu.guest.iter().map(|t| t.wrapping_add_signed(offset)).collect();
        Recorded { guest: recorded().vcpus.iter().map(raw).collect(), ..recorded() }
    };
    for offset in [OFFSET, false_word] {
        let found = find(&Recorded { words: words.clone(), ..fitting(offset) });
        assert!(found.word.is_ambiguous && found.word.used().count() == 0);
        found.assert_by_points();
    }

    // The guest has many CPUs, each with few events at impossible times.
    let cpus = Vec::from_iter((0..80).map(|n| vec![n, n + 1]));
    let found = find(&Recorded { guest: cpus, ..recorded() });
    assert!(found.word.used().count() == 1 && found.cpus.is_empty());
}
