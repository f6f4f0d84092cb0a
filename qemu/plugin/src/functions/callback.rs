//! Callbacks of observed instructions.
//!
//! The code is unsafe because QEMU keeps the observed instruction as a word.
#![allow(unsafe_code)]

use super::recorder;
use super::site::Site;
use super::tracer::Tracer;
use std::ffi::{c_uint, c_void};

/// Calls `event` with an observed instruction, the vCPU's tracer of the instruction's privilege level, and
/// the time.
///
/// # Safety
/// The word is the word of a [`Site`], and the calling thread runs this vCPU.
#[inline]
pub unsafe fn at(vcpu: c_uint, word: *mut c_void, event: impl FnOnce(&Site, &mut Tracer, u64)) {
    let Some(recorder) = recorder() else { return };
    // SAFETY: the caller's promise. A `Site` lives until QEMU drops all translated code, and no callback runs
    // while QEMU drops the code.
    let site = unsafe { &*word.cast::<Site>() };
    // SAFETY: the caller's promise.
    unsafe { recorder.tracer(vcpu, site.level, |tracer, now| event(site, tracer, now)) };
}
