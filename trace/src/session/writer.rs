//! A thread that drains the VMM's own rings, for a VMM without a device.

use hypertrace_abi::drain::{IdleDetector, REST};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// A thread that drains the VMM's own rings. When the value is dropped, the thread finishes its pass, or
/// makes one more if it is waiting, and ends.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts a thread that calls `pass` every `period`, and when the thread is unparked. A pass returns for
    /// how long no further pass is needed unless the thread is unparked. If a pass returns zero, the thread
    /// keeps to the period, also for a while afterwards. Returns a handle of the thread, too.
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
                // The event for which the thread was woken may reach its ring only after the pass.
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
            // The thread panics only where a caller's own code does.
            let _ = thread.join();
        }
    }
}
