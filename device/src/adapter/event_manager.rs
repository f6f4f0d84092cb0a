//! The drain loop as an `event-manager` subscriber.

use crate::chip::{Chip, Trigger};
use event_manager::{EventOps, Events, MutEventSubscriber};
use hypertrace_abi::sink::EventSink;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

pub use hypertrace_abi::turns::DrainPolicy;

impl Trigger for EventFd {
    fn trigger(&self) {
        // Fails only when the counter is full, and then it is readable.
        let _ = self.write(1);
    }
}

/// Drains the chip on KICK and on a timer, on the thread that runs the
/// event loop; never on a vCPU's.
pub struct DrainLoop<S, T> {
    chip: Arc<Chip<S, T>>,
    kick: EventFd,
    timer: TimerFd,
    policy: DrainPolicy,
}

impl<S: EventSink, T: Trigger> DrainLoop<S, T> {
    /// `kick` is the eventfd of every client's KICK register.
    ///
    /// # Errors
    /// If the host gives no timer.
    pub fn new(chip: Arc<Chip<S, T>>, kick: EventFd, policy: DrainPolicy) -> io::Result<Self> {
        let mut timer = TimerFd::new().map_err(io::Error::from)?;
        timer.reset(policy.period, Some(policy.period)).map_err(io::Error::from)?;
        Ok(DrainLoop { chip, kick, timer, policy })
    }

    /// An eventfd that fits [`DrainLoop::new`].
    ///
    /// # Errors
    /// If the host gives none.
    pub fn kick_eventfd() -> io::Result<EventFd> {
        EventFd::new(EFD_NONBLOCK)
    }
}

impl<S: EventSink, T: Trigger> MutEventSubscriber for DrainLoop<S, T> {
    fn process(&mut self, events: Events, _ops: &mut EventOps<'_>) {
        if events.fd() == self.kick.as_raw_fd() {
            let _ = self.kick.read();
        } else {
            let _ = self.timer.wait();
        }
        if self.chip.drain_pass(self.policy.budget) {
            // More to do: come back after the loop's other subscribers.
            self.kick.trigger();
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        for events in
            [Events::new(&self.kick, EventSet::IN), Events::new(&self.timer, EventSet::IN)]
        {
            ops.add(events).expect("a fresh descriptor can be added to the loop's epoll");
        }
    }
}
