//! A thread that drains the VMM's own rings, for a VMM without a device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// A thread that drains the VMM's own rings. Dropped, it drains once more and
/// ends.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts a thread that calls `pass` every `period`, and when it is unparked.
    /// Returns the thread, too.
    pub(super) fn start(
        period: Duration,
        pass: impl Fn() + Send + 'static,
    ) -> io::Result<(Writer, Thread)> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            while !stopped.load(Relaxed) {
                thread::park_timeout(period);
                pass();
            }
        };
        let thread = thread::Builder::new().name("trace-writer".into()).spawn(run)?;
        let writer = thread.thread().clone();
        Ok((Writer { stop, thread: Some(thread) }, writer))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics only where a caller's own code does.
            let _ = thread.join();
        }
    }
}
