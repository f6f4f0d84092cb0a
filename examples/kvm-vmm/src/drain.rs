//! The drain loop's thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use event_manager::{EventManager, SubscriberOps};
use hypertrace_abi::sink::EventSink;
use hypertrace_device::adapter::event_manager::{DrainLoop, DrainPolicy};
use hypertrace_device::{Chip, DrainWaker};
use vmm_sys_util::eventfd::EventFd;

use crate::error::Error;

/// A thread that drains a chip's rings: on KICK, and on a timer. Dropped, it drains what is left
/// and ends; that is to be when no vCPU runs any more.
#[derive(Debug)]
pub struct Drain {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drain {
    /// Starts it. `kick` is [`Doorbells::kick`](crate::Doorbells::kick).
    pub fn start<S: EventSink + 'static, T: DrainWaker + 'static>(
        chip: &Arc<Chip<S, T>>,
        kick: &EventFd,
        policy: DrainPolicy,
    ) -> Result<Drain, Error> {
        let kick = kick.try_clone().map_err(Error::EventFd)?;
        let subscriber = DrainLoop::new(Arc::clone(chip), kick, policy).map_err(Error::Drain)?;
        let failed = |e| Error::Drain(io::Error::other(e));
        let mut manager = EventManager::new().map_err(failed)?;
        let id = manager.add_subscriber(subscriber);
        manager.subscriber_mut(id).and_then(DrainLoop::registered).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, chip) = (Arc::clone(&stop), Arc::clone(chip));
        let run = move || {
            // The timer ends every wait soon, so nothing needs to wake the loop to stop it.
            while !stopped.load(Ordering::Relaxed) {
                // It fails for a descriptor that is gone, and these are the loop's own.
                let _ = manager.run();
            }
            // The guest is no more: what is left in the rings is all there will be.
            chip.sink().last_pass();
            chip.drain_all();
            // Only if it could not be written is there anything left.
            chip.forsake();
        };
        let thread =
            thread::Builder::new().name("drain".into()).spawn(run).map_err(Error::Thread)?;
        Ok(Drain { stop, thread: Some(thread) })
    }

    /// Drains what is left and ends: a drop with a name.
    pub fn finish(self) {}
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only if the sink does, and that has been reported on stderr.
            let _ = thread.join();
        }
    }
}
