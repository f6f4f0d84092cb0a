//! A program without a device: an event costs nothing, and a device that the program opens later still gets
//! events.
#![cfg(feature = "std")]

use crate::common;
use common::device::System;
use common::{Host, alone, fork};
use hypertrace::abi::layout::Geometry;
use hypertrace::abi::schema::mask_slot;
use hypertrace::{Channel, Client, Emit, LeaseInfo, Options, ProcessCounts, ProducerState};
use hypertrace::{counts, event, is_on, open, reference_point};
use std::time::Instant;

/// Returns true if this machine has a device, so that a test without a device cannot run.
fn has_device() -> bool {
    let has = open(&Options::default()).is_ok();
    if has {
        eprintln!("not run: this machine has a hypertrace device");
    }
    has
}

#[test]
fn the_first_event_looks_for_a_device_and_the_rest_are_off() {
    alone(|| {
        let slot = mask_slot("tick");
        assert!(is_on(slot));
        event!("tick");
        if !is_on(slot) {
            let start = Instant::now();
            for _ in 0..1000 {
                event!("tick", never = unreachable(start));
            }
            assert!(matches!(reference_point!("irq"), Err(Emit::Unleased)));
            assert!(hypertrace::with_client(|_| ()).is_none());
            hypertrace::poll();
            // A forked child does not look for a device either.
            let child = fork(|| {
                event!("tick");
                i32::from(is_on(slot))
            });
            assert_eq!(child.wait(), 0);
            assert_eq!(counts(), ProcessCounts::default(), "nobody was there to miss them");
        } else {
            assert!(has_device());
        }
    });
}

/// A field's value is not computed when its event is off.
fn unreachable(_: Instant) -> u64 {
    panic!("computed")
}

#[test]
fn a_device_that_is_opened_later_is_heard() {
    alone(|| {
        event!("tick");
        if is_on(mask_slot("tick")) && has_device() {
            return;
        }
        let system = System::with_function(0x10f0, 0);
        let mut fake = system.host();
        open(&system.options).unwrap();
        event!("tick");
        fake.host.drain();
        assert_eq!(fake.host.seen.count("tick()"), 1);
    });
}

#[test]
fn an_explicit_client_is_heard_though_there_is_no_device() {
    alone(|| {
        let geometry = Geometry::default();
        let memory = common::memfd(geometry.rings_size());
        let rings = common::map(&memory, geometry.rings_size());
        let mut host = Host::new(geometry, 16, rings);
        let state = ProducerState::new();
        let info = LeaseInfo { pid: 0, tid: 0, name: "vcpu" };
        let lease = || {
            let channel = Channel::local(&host.page, rings).unwrap();
            Client::lease(channel, 0, &state, 7, &info).unwrap()
        };
        // Leases a client before the library looks for a device, and again after.
        let client = lease();
        event!("tick");
        event!(client: client, "tick");
        client.release();
        event!("tick");
        let client = lease();
        event!(client: client, "tick");
        host.drain();
        assert_eq!(host.seen.count("tick()"), 2);
    });
}
