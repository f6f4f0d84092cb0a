// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop as an `event-manager` subscriber.

use crate::chip::{Chip, DrainWaker};
use crate::counter::Counter;
use crate::kick::Kick;
use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use hypertrace_abi::drain::KICK_SPACING;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmm_sys_util::timerfd::TimerFd;

pub use hypertrace_abi::drain::DrainPolicy;

/// An event-loop subscriber that drains the chip on each KICK. While there are records, the subscriber also
/// drains on a timer. The subscriber drains on the event loop's thread, which must not be a vCPU's thread.
/// After the loop's end, the VMM calls [`Chip::end_drain`].
#[derive(Debug)]
pub struct DrainLoop {
    chip: Arc<Chip>,
    kick: Kick,
    timer: TimerFd,
    policy: DrainPolicy,
    /// Period of the timer, or `None` if the timer is disarmed.
    armed: Option<Duration>,
    /// Earliest time at which a KICK may cause the next pass.
    next: Instant,
    /// Whether the loop ignores KICKs until the timer fires at `next`, because a KICK came too early.
    is_deaf: bool,
    /// Error that occurred in [`MutEventSubscriber::init`], which cannot return an error.
    error: Option<event_manager::Error>,
}

impl DrainLoop {
    /// Makes a subscriber. `kick` is the eventfd of the register KICK.
    ///
    /// # Errors
    /// If the host cannot make a timer.
    pub fn new(chip: Arc<Chip>, kick: Kick, policy: DrainPolicy) -> io::Result<Self> {
        let mut timer = TimerFd::new().map_err(io::Error::from)?;
        timer.reset(policy.period, Some(policy.period)).map_err(io::Error::from)?;
        let (armed, next) = (Some(policy.period), Instant::now());
        Ok(DrainLoop { chip, kick, timer, policy, armed, next, is_deaf: false, error: None })
    }

    fn of_kick(&self, events: EventSet) -> Events {
        Events::new(&self.kick.as_fd(), events)
    }

    /// Checks that the event loop has accepted both descriptors. A VMM calls this once after
    /// `add_subscriber`, because `add_subscriber` does not report an error of `init`:
    /// `manager.subscriber_mut(id)?.registered()?`.
    ///
    /// # Errors
    /// If the event loop refused a descriptor, so that KICKs or the timer do not cause passes.
    pub fn registered(&mut self) -> Result<(), event_manager::Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}

impl MutEventSubscriber for DrainLoop {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        let mut is_kicked = events.fd() == self.kick.as_fd().as_raw_fd();
        let early = self.next.saturating_duration_since(Instant::now());
        if is_kicked && !early.is_zero() {
            self.chip.counts().add(Counter::KickLimited);
            let none = self.of_kick(EventSet::empty());
            self.is_deaf = self.timer.reset(early, Some(self.policy.period)).is_ok()
                && ops.modify(none).is_ok();
            self.armed = Some(self.policy.period);
            return;
        }
        if !is_kicked {
            let _ = self.timer.wait();
        }
        if self.is_deaf && ops.modify(self.of_kick(EventSet::IN)).is_ok() {
            (self.is_deaf, is_kicked) = (false, true);
        }
        if is_kicked {
            self.kick.clear();
        }
        self.next = Instant::now() + KICK_SPACING;
        let wait = self.chip.drain(&self.policy, is_kicked);
        if wait == Some(Duration::ZERO) {
            // There is more to take. The kick makes the loop call this subscriber again, but only after the
            // loop's other subscribers.
            self.next = Instant::now();
            self.kick.wake();
        }
        let wait = wait.map(|wait| wait.max(self.policy.period));
        if wait != self.armed {
            let set = match wait {
                None => self.timer.clear(),
                Some(period) => self.timer.reset(period, Some(period)),
            };
            // If the timer cannot be set, the next event tries again.
            self.armed = if set.is_ok() { wait } else { self.armed };
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        for events in [self.of_kick(EventSet::IN), Events::new(&self.timer, EventSet::IN)] {
            if let Err(error) = ops.add(events) {
                self.error = Some(error);
            }
        }
    }
}
