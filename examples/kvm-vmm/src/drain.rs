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

/// Thread that drains a chip's rings on KICK and on a timer. When dropped, it drains the rest and
/// ends; drop it when no vCPU runs any more.
#[derive(Debug)]
pub struct Drain {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drain {
    /// Starts the thread. `kick` is [`Doorbells::kick`](crate::Doorbells::kick).
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
                // This fails only for closed descriptors, and the loop owns these.
                let _ = manager.run();
            }
            // The guest has ended: nothing is added to the rings any more.
            chip.sink().last_pass();
            chip.drain_all();
            // Records are left only if they could not be written.
            chip.forsake();
        };
        let thread =
            thread::Builder::new().name("drain".into()).spawn(run).map_err(Error::Thread)?;
        Ok(Drain { stop, thread: Some(thread) })
    }

    /// Drains the rest and ends the thread, as a drop does.
    pub fn finish(self) {}
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread panics only if the sink does, which was reported on stderr.
            let _ = thread.join();
        }
    }
}
