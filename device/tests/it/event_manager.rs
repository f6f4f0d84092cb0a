// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop on an event loop.
#![cfg(feature = "event-manager")]

use crate::common;
use common::{Call, chip, passes};
use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use hypertrace_device::adapter::event_manager::{DrainLoop, DrainPolicy};
use hypertrace_device::{Counter, DrainWaker, Kick};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// A subscriber that registers the descriptor of another subscriber.
struct Squatter(RawFd);

impl MutEventSubscriber for Squatter {
    fn process(&mut self, _: Events, _: &mut EventOps<'_>) {}

    fn init(&mut self, ops: &mut EventOps<'_>) {
        ops.add(Events::new_raw(self.0, EventSet::IN)).unwrap();
    }
}

#[test]
fn a_kick_drains() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let policy = DrainPolicy { period: Duration::from_secs(3600), ..DrainPolicy::default() };
    kick.wake();
    let mut manager = EventManager::new().unwrap();
    let id = manager.add_subscriber(DrainLoop::new(chip.clone(), kick, policy).unwrap());
    manager.subscriber_mut(id).unwrap().registered().unwrap();
    manager.run().unwrap();
    assert_eq!(sink.calls.lock().unwrap()[0], Call::Begin);
}

#[test]
fn a_flood_of_kicks_causes_a_pass_each_200_us_at_most_and_the_last_one_is_served() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let guest = kick.clone();
    let policy = DrainPolicy { period: Duration::from_secs(3600), ..DrainPolicy::default() };
    let mut manager = EventManager::new().unwrap();
    manager.add_subscriber(DrainLoop::new(chip.clone(), kick, policy).unwrap());

    let begin = Instant::now();
    while passes(&sink) < 20 {
        guest.wake();
        manager.run_with_timeout(0).unwrap();
    }

    let before = passes(&sink);
    assert!(before as u128 <= begin.elapsed().as_micros() / 200 + 1, "{before}");
    assert!(chip.count(Counter::KickLimited) > 0);
    guest.wake();
    while passes(&sink) == before {
        manager.run().unwrap();
    }
}

#[test]
fn a_descriptor_that_the_loop_refuses_is_an_error_and_no_panic() {
    let kick = Kick::new().unwrap();
    let mut manager = EventManager::<Box<dyn MutEventSubscriber>>::new().unwrap();
    manager.add_subscriber(Box::new(Squatter(kick.as_fd().as_raw_fd())));
    let drain = DrainLoop::new(chip().0, kick, DrainPolicy::default()).unwrap();
    let drain = std::sync::Arc::new(std::sync::Mutex::new(drain));
    manager.add_subscriber(Box::new(drain.clone()));
    drain.lock().unwrap().registered().unwrap_err();
}
