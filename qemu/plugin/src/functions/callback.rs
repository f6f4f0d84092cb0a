//! Callbacks of observed instructions.
//!
//! The code is unsafe because QEMU keeps the observed instruction as a word.
#![allow(unsafe_code)]

use super::recorder;
use super::site::Site;
use super::tracer::Tracer;
use std::ffi::{c_uint, c_void};

/// Calls `event` with an observed instruction, the vCPU's tracer for the instruction's privilege level, and
/// the time.
///
/// # Safety
/// The word is the result of [`Site::word`], and the calling thread runs this vCPU.
#[inline]
pub unsafe fn at(vcpu: c_uint, word: *mut c_void, event: impl FnOnce(&Site, &mut Tracer, u64)) {
    let Some(recorder) = recorder() else { return };
    // SAFETY: by the caller's promise, the word is the address of a `Site`. A `Site` lives until QEMU drops
    // all translated code, and no callback runs while QEMU drops the code.
    let site = unsafe { &*word.cast::<Site>() };
    // SAFETY: by the caller's promise, the calling thread runs this vCPU.
    unsafe { recorder.tracer(vcpu, site.level, |tracer, now| event(site, tracer, now)) };
}
