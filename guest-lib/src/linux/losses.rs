//! Counts the events of a process if no host takes these events, and reports this loss once on stderr.

use super::sys;
use crate::counts;
use crate::error::OpenError;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// True after the host has ended. A forked child has the same host.
static HOST_ENDED: AtomicBool = AtomicBool::new(false);

/// True if the host has ended because the device was taken away.
static DEVICE_GONE: AtomicBool = AtomicBool::new(false);

/// Returns true if the process's host was seen to have ended.
pub(super) fn is_host_ended() -> bool {
    HOST_ENDED.load(Relaxed)
}

pub(super) fn set_host_ended(has_ended: bool) {
    DEVICE_GONE.store(false, Relaxed);
    HOST_ENDED.store(has_ended, Relaxed);
}

pub(super) fn set_device_gone() {
    DEVICE_GONE.store(true, Relaxed);
    HOST_ENDED.store(true, Relaxed);
}

/// Counts events of a thread without a client.
pub(super) fn count_lost(events: u64) {
    match HOST_ENDED.load(Relaxed) {
        true => count_left(events),
        false => counts::unattached(events),
    }
}

/// Counts events that no host took because the host had ended or the device was gone. Says so once.
pub(super) fn count_left(events: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    counts::host_ended(events);
    if events > 0 && !SAID.swap(true, Relaxed) {
        sys::say(match DEVICE_GONE.load(Relaxed) {
            true => {
                "hypertrace: the device is gone (the guest's kernel module was loaded, or has lost the \
                 device): this process's events are lost from now on\n"
            }
            false => {
                "hypertrace: the host has ended (`hypertrace serve` or `hypertrace record` was stopped): this \
                 process's events are lost from now on\n"
            }
        });
    }
}

/// Says at the end of the process how many events were lost with the device, because nobody else knows the
/// number.
pub(super) fn say_at_end() {
    let lost = counts::counts().host_ended;
    if lost > 0 && DEVICE_GONE.load(Relaxed) {
        sys::say(&format!("hypertrace: {lost} events of this process were lost with the device\n"));
    }
}

/// Says at the end of a forked child without a channel how many events were lost, because nobody else knows
/// the number.
pub(super) fn say_of_child() {
    let lost = counts::counts().unattached;
    if lost > 0 {
        let process = std::process::id();
        sys::say(&format!("hypertrace: {lost} events of process {process} were lost\n"));
    }
}

/// Says once that this process can no longer use its own channel or the channel of its parent.
pub(super) fn say_unusable(why: &OpenError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        let source = why.source().map(|source| format!(": {source}")).unwrap_or_default();
        sys::say(&format!(
            "hypertrace: the events of process {} are lost, because it could not open the channel, as each \
             process does after a fork or after it has closed the library's descriptor: {why}{source}\n",
            std::process::id()
        ));
    }
}
