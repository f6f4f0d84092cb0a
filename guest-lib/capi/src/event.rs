//! Events of C call sites: the functions that the macros call.
//!
//! The code is unsafe because sites and values are addresses that a C program passes.
#![allow(unsafe_code)]

use crate::site::{self, CallSite, Known, Mixed};
use hypertrace::abi::event::Words;
use hypertrace::{Emit, Status, this_thread};
use std::slice;

/// Outcome of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Outcome {
    /// The event is recorded.
    Recorded = 0,
    /// The host does not want the event.
    Filtered = 1,
    /// The host had no room, or did not answer. The event is counted.
    Failed = 2,
    /// The host rejects the event as malformed, and counts it.
    Invalid = 3,
    /// The event exceeds the client's rate limit, and is counted.
    Limited = 4,
    /// The ring has no room for the event, which is counted.
    Full = 5,
    /// The thread is in the middle of another event, because a signal handler has interrupted that event. The
    /// handler's event is counted.
    Busy = 6,
    /// The thread has no client, or there is no device: see `hypertrace_open`.
    NoClient = 7,
    /// The event's names and types make no valid schema. The event is counted.
    Refused = 8,
}

impl From<Emit> for Outcome {
    #[inline(always)]
    fn from(emit: Emit) -> Outcome {
        match emit {
            Emit::Recorded => Outcome::Recorded,
            Emit::Full => Outcome::Full,
            Emit::Busy => Outcome::Busy,
            Emit::Unleased => Outcome::NoClient,
        }
    }
}

/// The host's answer to a reference point.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Reply {
    /// The point's outcome. The other fields are 0 unless the host has answered.
    outcome: Outcome,
    /// This thread's clock before the point.
    before: u64,
    /// The host's raw counter, in its own ticks, at a time between `before` and `after`.
    host_time: u64,
    /// This thread's clock after the point.
    after: u64,
    /// The host's clock epoch, which changes when time jumps (restore,
    /// migration).
    epoch: u64,
}

/// Records an event. HYPERTRACE_EVENT calls this function when the event is on.
///
/// # Safety
/// `site` is a call site that the macros have made. `values` has one word for each field of the
/// call site.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_event(site: *mut CallSite, values: *const u64) -> Outcome {
    // SAFETY: the caller's promise.
    let Some(known) = (unsafe { Known::plain(site) }) else {
        // SAFETY: as above.
        return unsafe { other_event(site, values) };
    };
    // SAFETY: the caller's promise.
    let values = unsafe { slice::from_raw_parts(values, known.count()) };
    this_thread::emit(known, Words(values)).into()
}

/// Records an event with strings, or the first event of a site. This function is separate so that
/// other events need not save registers across a call.
///
/// # Safety
/// As for `hypertrace_event`.
#[inline(never)]
unsafe fn other_event(site: *mut CallSite, values: *const u64) -> Outcome {
    // SAFETY: the caller's promise.
    let Some(known) = (unsafe { Known::of(site) }) else {
        return refused();
    };
    // The macro has checked the mask, but perhaps before the library had copied the host's mask.
    if !known.is_on() {
        return Outcome::Filtered;
    }
    // SAFETY: the caller's promise.
    let values = unsafe { slice::from_raw_parts(values, known.count()) };
    // SAFETY: the caller's promise.
    let mixed = unsafe { Mixed::new(values, known.strings()) };
    this_thread::emit(known, &mixed).into()
}

/// Records an event that must not be dropped, for HYPERTRACE_COMMIT. Stores the event's outcome to `outcome`,
/// unless `outcome` is NULL.
///
/// # Safety
/// As for `hypertrace_event`. If `outcome` is not NULL, the function may write to `outcome`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_commit(
    site: *mut CallSite,
    values: *const u64,
    outcome: *mut Outcome,
) {
    // SAFETY: the caller's promise.
    let became = match unsafe { Known::of(site) } {
        None => refused(),
        Some(known) => {
            // SAFETY: the caller's promise.
            let values = unsafe { slice::from_raw_parts(values, known.count()) };
            if known.strings() == 0 {
                this_thread::commit(known, Words(values)).into()
            } else {
                // SAFETY: the caller's promise.
                let mixed = unsafe { Mixed::new(values, known.strings()) };
                this_thread::commit(known, &mixed).into()
            }
        }
    };
    // SAFETY: the caller promises that `outcome` is null or can be stored to.
    if let Some(outcome) = unsafe { outcome.as_mut() } {
        *outcome = became;
    }
}

/// Makes a reference point, for HYPERTRACE_REFERENCE_POINT. Stores the host's answer to `reply`, unless
/// `reply` is NULL.
///
/// # Safety
/// As for `hypertrace_event`. If `reply` is not NULL, the function may write to `reply`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_reference_point(
    site: *mut CallSite,
    values: *const u64,
    reply: *mut Reply,
) {
    // SAFETY: the caller's promise.
    let answer = match unsafe { Known::of(site) } {
        None => Err(refused()),
        Some(known) => {
            // SAFETY: the caller's promise.
            let values = unsafe { slice::from_raw_parts(values, known.count()) };
            if known.strings() == 0 {
                this_thread::reference_point(known, Words(values))
            } else {
                // SAFETY: the caller's promise.
                let mixed = unsafe { Mixed::new(values, known.strings()) };
                this_thread::reference_point(known, &mixed)
            }
            .map_err(Outcome::from)
        }
    };
    // SAFETY: the caller promises that `reply` is null or can be stored to.
    let Some(reply) = (unsafe { reply.as_mut() }) else {
        return;
    };
    *reply = match answer {
        Err(outcome) => Reply { outcome, before: 0, host_time: 0, after: 0, epoch: 0 },
        Ok(answer) => Reply {
            outcome: match answer.status {
                Status::Recorded => Outcome::Recorded,
                Status::Filtered => Outcome::Filtered,
                Status::Failed => Outcome::Failed,
                Status::Invalid => Outcome::Invalid,
                Status::Limited => Outcome::Limited,
            },
            before: answer.before,
            host_time: answer.host_time,
            after: answer.after,
            epoch: answer.epoch,
        },
    };
}

#[cold]
fn refused() -> Outcome {
    site::refused();
    Outcome::Refused
}
