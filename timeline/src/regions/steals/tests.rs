// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the bounds on stolen time. The tests make the thefts, so the tests know the stolen time.

use super::super::parts::{Part, Times};
use super::super::store::{Holder, NO_BOUND, NO_THREAD, State};
use super::*;
use proptest::prelude::*;

/// Makes a region whose thread had a CPU for the time `on_cpu`.
fn sample(cpu: Option<u16>, (begin_ns, end): (i64, i64), on_cpu: u64) -> Sample {
    let mut times = Times::default();
    times.0[Part::Guest as usize] = on_cpu;
    times.0[Part::Blocked as usize] = begin_ns.abs_diff(end) - on_cpu;
    Sample {
        id: 0,
        begin_ns,
        times,
        bound: 0,
        group: 0,
        thread: NO_THREAD,
        cpu,
        span: 0,
        holder: Holder::NONE,
        guest_at_most: NO_BOUND,
        session: 0,
        state: State::Counted,
        depth: 0,
    }
}

fn steal(from: i64, to: i64, ms: u64) -> Steal<i64> {
    Steal { cpu: None, from, to, ms }
}

/// Returns the maximum time that was taken from regions, if CPU 0 has these rises and CPU 2 has no rise.
fn most(rises: Vec<Steal<i64>>, samples: &[Sample]) -> u64 {
    let cpus = HashMap::from([(0, spans(rises))]);
    let machine = Machine { rises: Vec::new(), most: Some(u64::MAX), cpus: Some(cpus) };
    machine.most_of(samples.iter()).unwrap()
}

#[test]
fn the_most_is_that_of_the_spans_that_regions_touch() {
    const MS: i64 = 1_000_000;
    let rises = || vec![steal(100 * MS, 110 * MS, 30), steal(500 * MS, 510 * MS, 20)];
    let on = |cpu, from, to| sample(cpu, (from * MS, to * MS), (to - from) as u64 * 1_000_000);
    let of = |samples: &[Sample]| most(rises(), samples) / 1_000_000;
    for (expected, samples) in [
        // The hypervisor took less time than the sum of the rise and a step.
        (5, vec![on(Some(0), 20, 25)]),
        (40, vec![on(Some(0), 0, 60)]),
        (40, vec![on(Some(0), 0, 40), on(Some(0), 50, 90)]),
        // After the second rise, less than a step was taken.
        (10, vec![on(Some(0), 600, 700)]),
        // The region touches both rises.
        (8, vec![on(Some(0), 96, 104)]),
        (60, vec![on(Some(0), 0, 700)]),
        // The CPU's counter did not rise.
        (10, vec![on(Some(2), 0, 700)]),
        (50, vec![on(Some(0), 0, 60), on(Some(2), 0, 60)]),
        // The region was on several CPUs, or its CPU is not known.
        (700, vec![on(None, 0, 700)]),
        (0, vec![]),
    ] {
        assert_eq!(of(&samples), expected, "{samples:?}");
    }
    let waits = sample(Some(0), (0, 700 * MS), 3_000_000);
    assert_eq!(of(&[waits]), 3);
}

#[test]
fn a_hostile_list_is_divided_into_spans_of_all_time() {
    for rises in [
        vec![steal(i64::MIN, i64::MAX, u64::MAX), steal(i64::MAX, i64::MAX, u64::MAX)],
        vec![steal(50, 60, 10), steal(0, 100, 10), steal(20, 30, 10), steal(5, 5, 0)],
        (0..100_000).map(|at| steal(at % 7, 1000 - at % 100, u64::MAX)).collect(),
    ] {
        let spans = spans(rises.clone());
        assert!(spans.windows(2).all(|two| two[0].from <= two[1].from && two[0].to <= two[1].to));
        assert!(spans.windows(2).all(|two| two[1].from <= two[0].to));
        let ends = (spans[0].from, spans[spans.len() - 1].to);
        assert_eq!(ends, (i64::MIN, i64::MAX));
        let all = sample(Some(0), (0, i64::MAX), 1 << 60);
        assert!(most(rises, &[all, all]) >= STEP_NS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// A hypervisor takes time from a CPU at random moments. The CPU adds that time to its counter later, and
    /// the recorder reads the counter in between. For any regions, the maximum is never less than the time
    /// taken from them.
    #[test]
    fn the_most_is_never_less_than_what_was_taken(
        // In each turn, the hypervisor takes the CPU once. A turn has the time until the theft, the length of
        // the theft, whether the CPU then adds the taken time to its counter, and whether the recorder then
        // reads the counter.
        turns in prop::collection::vec((1..9u64, 1..30u64, any::<bool>(), any::<bool>()), 1..30),
        // A region lasts from the begin of one theft to the end of the same or a later theft. The first
        // number counts the thefts between the previous region and this region. The second number counts the
        // thefts in this region.
        regions in prop::collection::vec((0..4usize, 1..4usize), 1..6),
        joins in any::<bool>(),
    ) {
        const UNIT: u64 = 1_000_000;
        let (mut now, mut taken, mut counted) = (10, 0, 0);
        let (mut thefts, mut readings) = (Vec::new(), vec![(8, 9, 0)]);
        for (until, length, is_counted, is_read) in turns {
            thefts.push((now + until, now + until + length));
            now += until + length + 1;
            taken += length;
            if is_counted {
                counted = taken;
            }
            if is_read {
                // The counter has steps of 10.
                readings.push((now, now + 1, counted / 10 * 10));
                now += 1;
            }
        }
        readings.push((now + 1, now + 2, taken / 10 * 10));
        let risen = readings.windows(2).filter(|two| two[0].2 < two[1].2).map(|two| {
            let [(from, ..), (_, to, _)] = [two[0], two[1]].map(|(a, b, c)| (a * UNIT, b * UNIT, c));
            steal(from as i64, to as i64, two[1].2 - two[0].2)
        });
        let mut rises = Vec::from_iter(risen);
        if joins {
            let join = |two: &[Steal<i64>]| {
                let ms = two.iter().map(|rise| rise.ms).sum();
                steal(two[0].from, two[two.len() - 1].to, ms)
            };
            rises = rises.chunks(2).map(join).collect();
        }
        let (mut next, mut truly, mut samples) = (0, 0, Vec::new());
        for (before, in_it) in regions {
            let Some(all) = thefts.get(next + before..next + before + in_it) else { break };
            next += before + in_it;
            truly += all.iter().map(|(from, to)| to - from).sum::<u64>();
            let (from, to) = (all[0].0 * UNIT, all[in_it - 1].1 * UNIT);
            samples.push(sample(Some(0), (from as i64, to as i64), to - from));
        }
        prop_assert!(most(rises, &samples) >= truly * UNIT);
    }
}
