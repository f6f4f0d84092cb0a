// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop on a thread of its own, for a VMM whose event loop does not run the drain loop.

use crate::chip::{Chip, DrainWaker};
use crate::counter::Counter;
use crate::kick::Kick;
use hypertrace_abi::drain::{DrainPolicy, KICK_SPACING};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A thread that drains a chip's rings on KICK, and on a timer while there are records.
/// [`Chip::drain_thread`] starts the thread. Drop the value when no vCPU runs any more. The drop drains the
/// remaining records and ends the thread.
///
/// If the sink panics, the device [counts](crate::Counter::DrainPanicked) the panic, and the thread ends. The
/// VM runs on, and events that find no room are lost and counted.
#[derive(Debug)]
pub struct DrainThread {
    stop: Arc<AtomicBool>,
    kick: Kick,
    thread: Option<JoinHandle<()>>,
}

impl Chip {
    /// Starts a thread that drains this chip. `kick` is the eventfd of the [doorbell](crate::Chip::doorbell)
    /// KICK. The chip's waker writes to the same eventfd. The thread first calls `before`, where the VMM
    /// installs the thread's seccomp filter. The thread makes the system calls `ppoll` and `read`, the calls
    /// of the sink, and the calls at the thread's own end; `hypertrace_vmm::syscalls` lists all these calls.
    ///
    /// # Errors
    /// If the host cannot make a thread, or `before` fails.
    pub fn drain_thread(
        self: &Arc<Self>,
        kick: &Kick,
        policy: DrainPolicy,
        before: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<DrainThread> {
        let (kick, ours) = (kick.clone(), kick.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let (began, begins) = mpsc::channel();
        let (chip, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let run = move || {
            let before = before();
            let failed = before.is_err();
            // The send cannot fail, because the receiver waits for the result.
            let _ = began.send(before);
            if !failed {
                let drain = Loop { chip: Arc::clone(&chip), kick, policy, stop: stopped };
                let _ = chip.guarded(|| drain.run());
            }
        };
        let thread = thread::Builder::new().name("ht-drain".into()).spawn(run)?;
        // If no result arrives, `before` has panicked.
        let before = begins.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)));
        let thread = DrainThread { stop, kick: ours, thread: Some(thread) };
        before.map(|()| thread)
    }
}

struct Loop {
    chip: Arc<Chip>,
    kick: Kick,
    policy: DrainPolicy,
    stop: Arc<AtomicBool>,
}

impl Loop {
    fn run(&self) {
        let mut wait = Some(self.policy.period);
        let mut next = Instant::now();
        while !self.stop.load(Relaxed) {
            // A signal may end the wait early, which does no harm.
            let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
            let woken = poll(&mut [PollFd::new(&self.kick, PollFlags::IN)], timeout.as_ref());
            let is_kicked = matches!(woken, Ok(1));
            if is_kicked {
                let early = next.saturating_duration_since(Instant::now());
                if !early.is_zero() && !self.stop.load(Relaxed) {
                    self.chip.counts().add(Counter::KickLimited);
                    // The thread waits on a futex, which a filter has to allow anyway.
                    thread::park_timeout(early);
                }
                self.kick.clear();
            }
            next = Instant::now() + KICK_SPACING;
            wait = self.chip.drain(&self.policy, is_kicked);
        }
        self.chip.end_drain();
    }
}

impl DrainThread {
    /// Drains the remaining records and ends the thread, as a drop does.
    pub fn finish(self) {}
}

impl Drop for DrainThread {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.kick.wake();
        if let Some(thread) = self.thread.take() {
            // The thread's result is ignored, because a panic of the sink has been counted and reported on
            // stderr.
            let _ = thread.join();
        }
    }
}
