//! Sleeps with futex(2) on a word that processes share. Nothing here allocates, takes a lock or changes
//! errno.
//!
//! The code is unsafe because the kernel sleeps on the low half of a 64-bit word.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU32, AtomicU64};
use rustix::io::Errno;
use rustix::thread::futex::{Flags, Timespec};
use std::time::Duration;

/// Sleeps if the word is `found`, until another thread wakes this thread or the time is over. This thread may
/// also wake for no reason. Returns `false` if the kernel lets no thread sleep on this word, as for the
/// memory of a PCI function.
pub fn wait(word: &AtomicU32, found: u32, most: Option<Duration>) -> bool {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    // All these results mean the same for the caller, because the caller looks at the word again.
    match rustix::thread::futex::wait(word, Flags::empty(), found, most.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => true,
        Err(_) => false,
    }
}

/// Waits as [`wait`] does, on the low half of a word.
pub fn wait_low(word: &AtomicU64, found: u32, most: Option<Duration>) -> bool {
    wait(low(word), found, most)
}

/// Wakes at most `most` threads that sleep on the word.
pub fn wake(word: &AtomicU32, most: u32) {
    // The call cannot fail, because the word has an address of this process.
    let _ = rustix::thread::futex::wake(word, Flags::empty(), most);
}

/// Wakes as [`wake`] does, on the low half of a word.
pub fn wake_low(word: &AtomicU64, most: u32) {
    wake(low(word), most);
}

/// Returns the low half of a word. Only the kernel accesses this half; this crate never loads or stores the
/// half, because all other code accesses the whole word.
fn low(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the pointer leads to the first half of an aligned word, which lives as long as the result. On a
    // little-endian machine, the first half is the low half.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}
