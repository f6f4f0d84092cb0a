//! Calls and returns of x86-64.
//!
//! A call pushes its return address, and a return pops that address. Both instructions access the slot of the
//! return address, so the plugin gets the slot from the access.
//!
//! The code is unsafe because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::callback::at;
use super::recorder;
use super::recorder::Recorder;
use super::site::{Event, Site};
use crate::api::{Access, Accesses, Instruction, Reads};
use hypertrace_functions::shadow::{Call, Return};
use std::ffi::{c_uint, c_void};

/// Adds the callbacks of an instruction.
pub fn observe(instruction: &Instruction<'_>, event: Event, site: &Site, recorder: &Recorder) {
    let word = site.word();
    match event {
        Event::Call if recorder.has_values && !recorder.may_run_elsewhere(site) => {
            instruction.on_access(Accesses::Stores, Reads::Nothing, called_here, word)
        }
        Event::CallAhead => {
            instruction.on_access(Accesses::Stores, Reads::Nothing, called_ahead, word)
        }
        Event::Call => instruction.on_access(Accesses::Stores, Reads::Nothing, called, word),
        Event::Return if recorder.is_full => {
            instruction.on_access(Accesses::Loads, Reads::Nothing, returned, word)
        }
        Event::Return => instruction.on_execution(Reads::Nothing, returns, word),
        // `observe_jump` observes jumps. All other events do not exist on x86-64.
        _ => {}
    }
}

extern "C" fn called(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    let value = access.value();
    // QEMU 7.2 also calls back for the load of an indirect call's target.
    if value.is_none() && !access.is_store() {
        return;
    }
    // SAFETY: `observe` has registered this word, and QEMU calls this function on the thread that runs the
    // vCPU.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            // QEMU 7.2 also calls back for a store of an atomic instruction after the call.
            if value.is_none() && !is_pushed(site.next, slot) {
                return;
            }
            // The return address shows where the code is.
            let next = value.unwrap_or(site.next);
            let moved = |address: u64| address.wrapping_add(next.wrapping_sub(site.next));
            let (at, target) = (moved(site.at), site.target.map(moved));
            tracer.call(&Call { at, slot, return_address: next, target }, now);
        });
    }
}

/// Handles a call in code that runs at the address for which QEMU has translated the code. The return address
/// is known from the translation, so the plugin does not ask QEMU.
extern "C" fn called_here(vcpu: c_uint, _: Access, slot: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |&Site { at, next, target, .. }, tracer, now| {
            tracer.call(&Call { at, slot, return_address: next, target }, now);
        });
    }
}

/// Returns whether the program has just stored this return address to this slot. In a whole machine, returns
/// true, because QEMU does not show the values of stores.
fn is_pushed(next: u64, slot: u64) -> bool {
    let at = match recorder().and_then(Recorder::guest_base) {
        None => return true,
        // The slot of a stack is aligned, so this address is no slot. A read of 8 bytes might also reach into
        // the next page.
        Some(_) if !slot.is_multiple_of(8) => return false,
        Some(base) => slot.wrapping_add(base) as *const u64,
    };
    // SAFETY: the program has just stored at this address, on this thread, so the page is mapped. QEMU's own
    // address has the same alignment, because the base is a multiple of a page's size.
    next == unsafe { at.read() }
}

extern "C" fn called_ahead(vcpu: c_uint, _: Access, slot: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, tracer, _| tracer.call_ahead(slot)) };
}

extern "C" fn returned(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            // The value is read only if necessary, because the call of QEMU takes longer than all other work
            // of this callback.
            let value = if tracer.expects(slot) { None } else { access.value() };
            tracer.ret(&Return { at: site.at, slot: Some(slot), value }, now);
        });
    }
}

extern "C" fn returns(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            tracer.ret(&Return { at: site.at, slot: None, value: None }, now);
        });
    }
}
