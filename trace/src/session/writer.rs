//! A thread that drains the VMM's own rings, for a VMM without a device.

use hypertrace_abi::drain::{IdleDetector, REST};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// A thread that drains the VMM's own rings. When the value is dropped, the thread finishes its pass and
/// ends. A waiting thread makes one more pass before it ends.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts a thread that calls `pass` once in each `period`, and when another thread unparks the thread. A
    /// pass returns zero if the rings are in use. Otherwise a pass returns the time after which a further
    /// pass is needed, if no other thread unparks the thread before. After a pass that returned zero, the
    /// thread calls `pass` once in each `period` for a while. The function also returns a handle of the
    /// thread.
    pub(super) fn start(
        period: Duration,
        pass: impl Fn() -> Duration + Send + 'static,
    ) -> io::Result<(Writer, Thread)> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let begun = Instant::now();
            let mut idle = IdleDetector::new(0, Duration::ZERO);
            let mut wait = period;
            while !stopped.load(Relaxed) {
                let until = Instant::now().checked_add(wait);
                thread::park_timeout(wait);
                // A woken thread must make a further pass, because the event that woke the thread may reach
                // its ring only after this pass.
                let is_woken = until.is_none_or(|until| Instant::now() < until);
                let quiet_for = pass();
                let is_quiet = !quiet_for.is_zero() && !is_woken;
                let is_idle = idle.idle_for(is_quiet, begun.elapsed()) >= REST;
                wait = if is_idle { quiet_for.max(period) } else { period };
            }
        };
        let thread = thread::Builder::new().name("ht-writer".into()).spawn(run)?;
        let writer = thread.thread().clone();
        Ok((Writer { stop, thread: Some(thread) }, writer))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The result is ignored: the thread panics only if the code of a caller panics.
            let _ = thread.join();
        }
    }
}
