// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of causal order on the merged timeline of a simulated machine. The tests know the true order of the
//! machine's events, but the reader does not.

use hypertrace_test_support::kept::{self, Value};
use hypertrace_test_support::made;
use hypertrace_timeline::{ClockMaps, Domain, Recording, Session};
use made::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// The next act of a vCPU.
#[derive(Clone, Debug)]
enum Act {
    /// An event in its ring, after this many ns.
    Emit(u64),
    /// A reference point: pause, way to the host, way back, in ns.
    Point(u64, u64, u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(
        prop_oneof![
            3 => (1u64..20_000_000).prop_map(Act::Emit),
            1 => (1u64..20_000_000, 0u64..20_000, 0u64..20_000)
                .prop_map(|(a, b, c)| Act::Point(a, b, c)),
        ],
        1..60,
    )
}

/// Counter of the guest. The host does not know the rate and the start of this counter.
#[derive(Clone, Copy, Debug)]
struct GuestClock {
    frequency: u64,
    ppm: i64,
    ahead: u64,
}

impl GuestClock {
    fn raw(self, ns: u64) -> u64 {
        let rate = i128::from(self.frequency) * i128::from(1_000_000 + self.ppm);
        GUEST_BASE + self.ahead + (i128::from(ns) * rate / 1_000_000_000_000_000) as u64
    }
}

/// Simulates a machine. Returns the session and, for each vCPU, the numbers of the vCPU's events in their
/// true order.
fn simulate(clock: GuestClock, vcpus: &[Vec<Act>], offset_guess_ns: i64) -> (Made, Vec<Vec<u64>>) {
    let host = made::clock(0, "host", 0, GHZ, 0, START_NS);
    let guest = made::clock(
        1,
        "guest",
        0,
        clock.frequency,
        GUEST_BASE,
        START_NS.saturating_add(offset_guess_ns),
    );
    let mut made = Made::with_json(&json(&format!("[{host},{guest}]"), EVENTS, "[]"));
    let mut orders = Vec::new();
    for (vcpu, acts) in vcpus.iter().enumerate() {
        let client = vcpu as u32;
        let mut ring = Packet::guest(client);
        let mut thread = Packet::host(client);
        let mut order = Vec::new();
        let mut now = 1_000 + vcpu as u64 * 333;
        let mut number = 0;
        let mut next = || {
            number += 1;
            order.push(number);
            number
        };
        for act in acts {
            match *act {
                Act::Emit(pause) => {
                    now += pause;
                    ring = ring.event(clock.raw(now) - GUEST_BASE, DISK_READ, &[next(), 0]);
                }
                Act::Point(pause, out, back) => {
                    now += pause;
                    let read = clock.raw(now);
                    now += out + 1;
                    thread = thread.event(now, VCPU_EXIT, &[next()]);
                    now += 1;
                    let n = next();
                    thread = thread.point(now, client, n as u32, read, n);
                    now += 1;
                    thread = thread.event(now, VCPU_EXIT, &[next()]);
                    // The host takes at least two ticks of the guest's counter, so the counter shows that
                    // time has passed.
                    now += back + 2 + 2_000_000_000 / clock.frequency;
                }
            }
        }
        made = made
            .stream(&format!("guest-{vcpu}"), &[Packet::guest(client), ring])
            .stream(&format!("host-{vcpu}"), &[Packet::host(client), thread]);
        orders.push(order);
    }
    (made, orders)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_vcpus_events_come_in_the_order_in_which_it_emitted_them(
        frequency in prop_oneof![Just(1_000_000u64), Just(100_000_000), Just(2_600_000_000)],
        ppm in -800i64..800,
        ahead in 0u64..1_000_000_000,
        guess in -10_000_000_000i64..10_000_000_000,
        vcpus in prop::collection::vec(acts(), 1..4),
    ) {
        let clock = GuestClock { frequency, ppm, ahead };
        let (made, orders) = simulate(clock, &vcpus, guess);
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        prop_assert_eq!(maps.unusable(), 0);
        for (_, _, map) in maps.iter() {
            prop_assert!(map.segments() == 1);
        }
        let recording = Recording::of([(session, maps)], []);

        let mut found: HashMap<u32, Vec<u64>> = HashMap::new();
        let mut last = i64::MIN;
        for event in kept::events(&recording).unwrap() {
            prop_assert!(event.ts_ns >= last);
            last = event.ts_ns;
            let vcpu = event.client.unwrap_or_else(|| {
                event.source.trim_start_matches("vmm/").parse().unwrap()
            });
            let Value::Unsigned(number) = event.fields[0].1 else { panic!() };
            found.entry(vcpu).or_default().push(number);
        }

        for (vcpu, order) in orders.iter().enumerate() {
            let has_points = vcpus.iter().flatten().any(|a| matches!(a, Act::Point(..)));
            if has_points {
                prop_assert_eq!(&found[&(vcpu as u32)], order);
            }
        }
        let guests = recording.sessions[0].0.streams().iter().filter(|s| s.domain == Domain::Guest);
        prop_assert!(guests.count() <= vcpus.len());
    }
}
