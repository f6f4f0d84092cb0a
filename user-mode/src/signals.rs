//! Signals that do not end the process while a value lives.
//!
//! Unsafe, because of sigaction(2).
#![allow(unsafe_code)]

use std::ffi::c_int;

/// While it lives, a handler gets these signals.
#[derive(Debug)]
pub struct Signals {
    before: Vec<(c_int, libc::sigaction)>,
}

impl Signals {
    /// Begins to catch these signals, but for those that are ignored: under nohup,
    /// or in the background of a shell script, they stay so. A system call that a
    /// signal interrupts is made again.
    ///
    /// # Safety
    /// `handler` does only what a signal handler may.
    pub unsafe fn catch(signals: &[c_int], handler: extern "C" fn(c_int)) -> Signals {
        let mut before = Vec::new();
        for &signal in signals {
            // SAFETY: both structures are plain data that live through the calls; the
            // handler is the caller's promise. A handler, unlike being ignored, ends at
            // a program's exec.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut old);
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = handler as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &new, std::ptr::null_mut());
                before.push((signal, old));
            }
        }
        Signals { before }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: the action that was there before.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}
