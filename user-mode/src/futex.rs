//! Sleeping on a word that processes share: futex(2).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Sleeps while the word is as `found`, at most this long.
pub(crate) fn sleep(word: &AtomicU32, found: u32, most: Duration) {
    let time = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos() as libc::c_long,
    };
    // SAFETY: `word` and `time` live through the call, which only reads them.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, found, &raw const time);
    }
}

/// Wakes who sleeps on the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: takes the address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Wakes who sleeps on the low half of the word.
pub(crate) fn wake_low(word: &AtomicU64) {
    // SAFETY: takes the address only; the low half comes first.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr().cast::<u32>(), libc::FUTEX_WAKE, i32::MAX)
    };
}
