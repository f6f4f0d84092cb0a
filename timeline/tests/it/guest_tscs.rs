// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of what KVM and the VMM say about guests' TSCs. The statements are true, false or stale, and the
//! clocks are of all kinds.

use hypertrace_test_support::kept::{self, Value};
use hypertrace_test_support::{machine, made, trace_dat};
use hypertrace_timeline::clock::FRACTION;
use hypertrace_timeline::{ClockMaps, GuestTsc, KernelTrace, Recording, Session};
use machine::{Claim, KINDS, Kernel, Kind, Machine, Random, machine};
use made::*;
use std::slice::from_ref;
use trace_dat::{KVM_WRITE_TSC_OFFSET, KVM_WRITE_TSC_OFFSET_ID, Page, TraceDat};

/// Kinds of statements of the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Nothing,
    /// Each vCPU's own TSC at the start. If the vCPU's clock changes later, the statement is stale.
    Own,
    /// Each vCPU's own TSC at the end.
    OwnAtEnd,
    /// The VMM claims that all vCPUs have the TSC of the first vCPU.
    First,
    /// The VMM claims that each vCPU has the TSC of the next vCPU.
    Next,
    /// Each vCPU's TSC, wrong by up to 20 us.
    Near,
    /// A false TSC for each vCPU. The rate of the false TSC is wrong by up to 900 ppm, so the false TSC is
    /// right at one time only.
    Turned,
    /// Any numbers.
    Random,
}

const WORDS: [Word; 8] = [
    Word::Nothing,
    Word::Own,
    Word::OwnAtEnd,
    Word::First,
    Word::Next,
    Word::Near,
    Word::Turned,
    Word::Random,
];

fn tell(machine: &Machine, word: Word, random: &mut Random) {
    let tsc = |vcpu: usize| machine.vcpus[vcpu % machine.vcpus.len()].counter.tsc(false);
    let own = |of: &mut dyn FnMut(usize) -> GuestTsc| {
        let vcpus = 0..machine.vcpus.len();
        vcpus.map(|vcpu| (Some(vcpu as u32), of(vcpu))).collect::<Vec<_>>()
    };
    let ticks = |ns: i64| (i128::from(ns) * i128::from(machine.hz) / 1_000_000_000) as i64;
    let said = match word {
        Word::Nothing => return,
        Word::Own => own(&mut |vcpu| tsc(vcpu)),
        Word::OwnAtEnd => own(&mut |vcpu| machine.vcpus[vcpu].counter.tsc(true)),
        Word::First => vec![(None, tsc(0))],
        Word::Next => own(&mut |vcpu| tsc(vcpu + 1)),
        Word::Near => own(&mut |vcpu| {
            let wrong = ticks(random.in_range(-20_000, 20_000));
            GuestTsc { offset: tsc(vcpu).offset + wrong, ..tsc(vcpu) }
        }),
        Word::Turned => own(&mut |vcpu| {
            let events = &machine.vcpus[vcpu].events;
            let at = events[random.in_range(0, events.len() as i64) as usize].0;
            let GuestTsc { offset, multiplier, shift } = tsc(vcpu);
            let turned = multiplier as i64 / 1_000_000 * random.in_range(-900, 901);
            let moved = (i128::from(turned) * i128::from(at)) >> shift;
            let multiplier = multiplier.checked_add_signed(turned).unwrap();
            GuestTsc { offset: offset - moved as i64, multiplier, shift }
        }),
        Word::Random => own(&mut |_| GuestTsc {
            offset: random.next() as i64,
            multiplier: (random.next() >> random.in_range(0, 64)).max(1),
            shift: random.in_range(0, 49) as u32,
        }),
    };
    machine.tell(&said);
}

#[derive(Debug, Default)]
struct Outcome {
    events: usize,
    outside: usize,
    unknown: usize,
    out_of_order: usize,
    /// Number of clients whose times are computed from the VMM's TSC. `unused` is the number of other clients
    /// about which the VMM said something.
    used: usize,
    unused: usize,
    /// Error of each event's time in ns.
    errors: Vec<i64>,
    bounds: Vec<i64>,
}

fn median(values: &mut [i64]) -> i64 {
    let at = values.len() / 2;
    *values.select_nth_unstable(at).1
}

fn check(machine: &Machine, outcome: &mut Outcome) {
    let session = Session::open(machine.made.path()).unwrap();
    let maps = match KernelTrace::of_session(0, &session).unwrap() {
        Some(trace) => {
            let (sessions, traces) = (from_ref(&session), from_ref(&trace));
            KernelTrace::clock_maps_of(0, sessions, traces, &[]).unwrap()
        }
        None => ClockMaps::of(&session).unwrap(),
    };
    for compared in maps.compared_tscs() {
        let is_used = compared.agreement.is_agreed();
        outcome.used += usize::from(is_used);
        outcome.unused += usize::from(!is_used);
    }
    let recording = Recording::of([(session, maps)], []);
    let mut next = vec![0; machine.vcpus.len()];
    for event in kept::events(&recording).unwrap() {
        let Some(number) = event.client.map(|client| client as usize) else { continue };
        let vcpu = &machine.vcpus[number];
        let Value::Unsigned(n) = event.fields[0].1 else { panic!() };
        outcome.out_of_order += usize::from(next[number] != n);
        next[number] = n + 1;
        if event.reference.is_some() || !matches!(vcpu.claim, Claim::True) {
            continue;
        }
        outcome.events += 1;
        let error = (event.ts_ns - START_NS - vcpu.events[n as usize].0).abs();
        let Some(bound) = event.bound_ns else {
            outcome.unknown += 1;
            continue;
        };
        outcome.outside += usize::from(error > bound as i64);
        outcome.errors.push(error);
        outcome.bounds.push(bound as i64);
    }
}

#[test]
fn no_event_is_outside_of_its_bound_whatever_the_vmm_says() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        for (offset, word) in WORDS.into_iter().enumerate() {
            let mut outcome = Outcome::default();
            for number in 0..10 {
                let seed = 1_000 * index as u64 + number;
                let kernel = if number % 5 == 4 { Kernel::Missing } else { Kernel::None };
                let machine = machine(kind, seed, kernel);
                tell(&machine, word, &mut Random(seed + 100_000 * offset as u64));
                check(&machine, &mut outcome);
            }
            let Outcome { events, outside, unknown, out_of_order, used, unused, .. } = outcome;
            let [error, bound] = [&mut outcome.errors, &mut outcome.bounds].map(|all| median(all));
            println!(
                "{kind:?}, {word:?}: {events} events, {outside} outside, {unknown} unknown, {out_of_order} out of \
                 order; {used} clients by the VMM's word, {unused} not; half of the errors at most {error} ns, of \
                 the bounds {bound} ns"
            );
            assert_eq!((outside, unknown, out_of_order), (0, 0, 0), "{kind:?}, {word:?}");
            match (kind, word) {
                (_, Word::Nothing) => assert_eq!((used, unused), (0, 0)),
                (_, Word::Random) => assert_eq!(used, 0, "{kind:?}"),
                // The clocks of such a machine are straight lines.
                (
                    Kind::Steady | Kind::Scaled | Kind::PerVcpu | Kind::Pauses | Kind::Late,
                    Word::Own,
                ) => {
                    assert_eq!(unused, 0, "{kind:?}");
                    assert!(error <= 1, "{kind:?}: {error}");
                }
                (Kind::LargeJump, Word::Own | Word::OwnAtEnd) => {
                    assert_eq!(used, 0, "{kind:?}, {word:?}");
                }
                _ => {}
            }
        }
    }
}

/// Kinds of statements of KVM, in the recording of the host's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KvmSays {
    /// All TSCs that KVM computes, with their times.
    All,
    /// All TSCs that KVM computes for this VM and for other VMs. Some other VMs began a moment before or
    /// after this VM.
    AmongOthers,
    /// The TSC that KVM computed at the start, and the time until which this TSC held.
    First,
    /// The TSC that KVM computes for another VM.
    Other,
}

/// Writes a recording of the host's kernel. The recording contains KVM's statement, but no events.
fn let_kvm_say(machine: &Machine, says: KvmSays, random: &mut Random) {
    // The host's counter has one tick per nanosecond.
    let ticks = |ns: i64| ns.min(1 << 50);
    let word = |vm: usize, (from, until, tsc): (i64, i64, GuestTsc)| {
        let GuestTsc { offset, multiplier, shift } = tsc;
        format!("{vm}-9:{offset}:{multiplier}:{shift}:{}:{}", ticks(from), ticks(until))
    };
    let own = || machine.vcpus.iter().map(|vcpu| vcpu.counter.tscs().into_iter());
    let mut words = Vec::new();
    for tscs in own() {
        let most = if says == KvmSays::First { 1 } else { usize::MAX };
        words.extend(tscs.take(most).map(|of| word(1, of)));
    }
    let mut others = Vec::new();
    for (number, mut tscs) in own().enumerate() {
        let (from, until, tsc) = tscs.next().unwrap();
        for distance in [20_000, 1_000_000, 1 << 40] {
            let offset = tsc.offset.wrapping_add(random.in_range(-distance, distance));
            others.push(word(number + 2, (from, until, GuestTsc { offset, ..tsc })));
        }
    }
    let words = match says {
        KvmSays::All | KvmSays::First => words,
        KvmSays::AmongOthers => [words, others].concat(),
        // The TSC is of a VM that began at another time.
        KvmSays::Other => others.into_iter().skip(2).step_by(3).collect(),
    };
    let (id, version) = trace_dat::recorded_with_tscs(BOOT, &words.join(","));
    let trace = TraceDat::new("x86-tsc").option((id, version)).cpu(&[]);
    std::fs::write(machine.made.path().join("kernel.dat"), trace.version_7()).unwrap();
}

#[test]
fn no_event_is_outside_of_its_bound_whatever_vm_kvm_speaks_of() {
    let (mut machines, mut all) = (0, 0);
    for (index, kind) in KINDS.into_iter().enumerate() {
        for says in [KvmSays::All, KvmSays::AmongOthers, KvmSays::First, KvmSays::Other] {
            let mut outcome = Outcome::default();
            for number in 0..21 {
                let seed = 1_000 * index as u64 + number;
                let machine = machine(kind, seed, Kernel::None);
                let_kvm_say(&machine, says, &mut Random(seed + 7_000));
                check(&machine, &mut outcome);
                machines += 1;
            }
            let Outcome { events, outside, unknown, out_of_order, .. } = outcome;
            let [error, bound] = [&mut outcome.errors, &mut outcome.bounds].map(|all| median(all));
            println!(
                "{kind:?}, {says:?}: {events} events, {outside} outside, {unknown} unknown, {out_of_order} out of \
                 order; half of the errors at most {error} ns, of the bounds {bound} ns"
            );
            assert_eq!((outside, unknown, out_of_order), (0, 0, 0), "{kind:?}, {says:?}");
            let is_straight =
                matches!(kind, Kind::Steady | Kind::Scaled | Kind::Pauses | Kind::Late);
            if is_straight && says == KvmSays::All {
                assert!(bound <= 3, "{kind:?}: {bound}");
            }
            all += events;
        }
    }
    println!("{machines} machines, {all} events");
}

/// Offset of the guest's TSC in [`each_millisecond`].
const OWN: i64 = -4_000_000;

/// Makes a session with a point in each millisecond up to 100 ms. The counters of the host and of the guest
/// have one tick per nanosecond.
fn each_millisecond() -> Made {
    let clocks = [
        clock(0, "host", 0, GHZ, 0, START_NS),
        clock(1, "guest", 0, GHZ, GUEST_BASE, START_NS + 4_000_000),
    ];
    let json = json(&format!("[{}]", clocks.join(",")), EVENTS, "[]");
    let (mut ring, mut host) = (Packet::guest(0), Packet::host(0));
    for point in 5..100u64 {
        let at = point * 1_000_000;
        let guest = at.wrapping_add_signed(OWN);
        host = host.point(at + 10_000, 0, point as u32, guest, 0);
        ring = ring.event(guest + 20_000 - GUEST_BASE, DISK_READ, &[0, 0]);
    }
    Made::with_json(&with_boot(&json, Some(BOOT)))
        .stream("guest-0", &[Packet::guest(0), ring])
        .stream("host-0", &[Packet::host(0), host])
}

/// Returns the intervals, in nanoseconds, during which the TSC of [`each_millisecond`] held according to a
/// recording of the host's kernel.
fn held_by(trace: &TraceDat) -> Vec<(i64, i64)> {
    let made = each_millisecond();
    made.kernel(trace);
    let session = Session::open(made.path()).unwrap();
    let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let (sessions, traces) = (from_ref(&session), from_ref(&trace));
    let maps = KernelTrace::clock_maps_of(0, sessions, traces, &[]).unwrap();
    let used = maps.kvm_words().flat_map(|(.., word)| word.used());
    let used = used.inspect(|(tsc, ..)| assert_eq!(*tsc, GuestTsc::unscaled(OWN)));
    used.map(|(_, from, until)| (from / FRACTION, until / FRACTION)).collect()
}

#[test]
fn an_offset_of_kvm_holds_as_long_as_the_recording_shows() {
    let (own, other) = (OWN, 77);
    // Each case has the threads that the recorder followed, and the changes of the offset (time in ns, offset
    // before, offset after). The case also says whether the recorder lost events, and when the offset held.
    let ms = |from: i64, until: i64| vec![(from * 1_000_000, until * 1_000_000)];
    for (threads, changes, is_lossy, held) in [
        // The recorder saw the offset from 10 to 50 ms, and recorded its last event at 90 ms.
        ("", vec![], false, ms(10, 90)),
        ("", vec![(3_000_000, 0, own)], false, ms(3, 90)),
        // The offset changes to `own`, then to another offset, and then back to `own`.
        (
            "",
            vec![(3_000_000, 0, own), (4_000_000, own, other), (6_000_000, other, own)],
            false,
            ms(6, 90),
        ),
        ("", vec![(3_000_000, 0, own), (70_000_000, own, other)], false, ms(3, 70)),
        (
            "",
            vec![(20_000_000, own, other), (30_000_000, other, own)],
            false,
            [ms(10, 20), ms(30, 90)].concat(),
        ),
        // The change concerns another VM.
        ("", vec![(20_000_000, other, 78)], false, ms(10, 90)),
        // Changes of the offset may be missing.
        ("", vec![(3_000_000, 0, own)], true, ms(3, 50)),
        ("; threads=9", vec![], false, ms(10, 50)),
        ("; threads=8,31", vec![], false, ms(10, 90)),
    ] {
        let word = format!("31-9:{own}:1:0:10000000:50000000{threads}");
        let all =
            Vec::from_iter([(1_000, 5, 6)].iter().chain(&changes).chain(&[(90_000_000, 5, 6)]));
        // Each page gets as many changes as it has room for.
        let mut pages = Vec::from_iter(all.chunks(64).map(|changes| {
            let begin = changes[0].0 as u64;
            let events = changes.iter().fold((Page::at(begin), begin), |(page, last), change| {
                let (at, previous, next): &(i64, i64, i64) = change;
                let payload = [&[0; 8][..], &previous.to_le_bytes(), &next.to_le_bytes()].concat();
                (
                    page.event((*at as u64 - last) as u32, KVM_WRITE_TSC_OFFSET_ID, 31, &payload),
                    *at as u64,
                )
            });
            events.0
        }));
        let trace = TraceDat::new("x86-tsc").option(trace_dat::recorded_with_tscs(BOOT, &word));
        if is_lossy {
            pages = pages.into_iter().map(|page| page.missed(true)).collect();
        }
        let trace = trace.format("kvm", KVM_WRITE_TSC_OFFSET).cpu(&pages);

        assert_eq!(held_by(&trace), held, "{changes:?} {threads} {is_lossy}");
    }
}

#[test]
fn a_vm_with_many_tscs_makes_no_other_ones_times_less_exact() {
    let word = |vm: u32, offset: i64| format!("{vm}-9:{offset}:1:0:10000000:50000000");
    let many = Vec::from_iter((0..300).map(|n| word(7, n))).join(",");
    let held = |words: &[&str]| {
        let option = trace_dat::recorded_with_tscs(BOOT, &words.join(","));
        held_by(&TraceDat::new("x86-tsc").option(option).cpu(&[]))
    };

    assert_eq!(held(&[&many, &word(31, OWN)]), [(10_000_000, 50_000_000)]);
    assert_eq!(held(&[&many, &word(7, OWN)]), [], "its own");
}
