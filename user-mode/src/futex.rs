//! Sleeping on a word that processes share: futex(2).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Sleeps while the word is as `found`, until somebody wakes it.
pub(crate) fn sleep(word: &AtomicU32, found: u32) {
    let for_ever = std::ptr::null::<libc::timespec>();
    // SAFETY: `word` lives through the call, which only reads it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, found, for_ever);
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
