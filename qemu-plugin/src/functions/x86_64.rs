//! Calls and returns of x86-64.
//!
//! A call pushes its return address, and a return pops it: the access gives the slot.
//!
//! Unsafe, because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::RECORDER;
use super::level::{self, Level};
use super::recorder::Recorder;
use super::site::Site;
use crate::api::{Access, Accesses, Block, Instruction, Reads};
use hypertrace_functions::decode::{Architecture, Kind, decode};
use hypertrace_functions::shadow::{Call, Return};
use std::ffi::{c_uint, c_void};

/// Has QEMU call back at the calls and returns of a translated block.
pub fn translated(recorder: &Recorder, block: &Block) {
    let mut level = None;
    for instruction in block.instructions() {
        let address = instruction.address();
        let found = instruction.with_bytes(|bytes| decode(Architecture::X86_64, bytes, address));
        let Some(found) = found.filter(|found| is_observed(found.kind)) else {
            continue;
        };
        // The same for the whole block.
        let known = level.get_or_insert_with(|| match recorder.is_machine {
            true => level::of_translated(),
            false => Some(Level::PROGRAMS),
        });
        let Some(level) = *known else { return };
        let next = address.wrapping_add(found.length.into());
        let site = Site { at: address, next, target: found.target, level };
        if let Some(site) = recorder.place(site) {
            observe(&instruction, found.kind, site, recorder.has_loads);
        }
    }
}

fn is_observed(kind: Kind) -> bool {
    kind.is_call() || kind.is_return() || kind == Kind::CallAhead
}

/// Has QEMU call back at an instruction.
fn observe(instruction: &Instruction<'_>, kind: Kind, site: &'static Site, has_loads: bool) {
    let word = std::ptr::from_ref(site) as u64;
    match kind {
        Kind::CallAhead => {
            instruction.on_access(Accesses::Stores, Reads::Nothing, called_ahead, word)
        }
        _ if kind.is_call() => {
            instruction.on_access(Accesses::Stores, Reads::Nothing, called, word)
        }
        _ if has_loads => instruction.on_access(Accesses::Loads, Reads::Nothing, returned, word),
        _ => instruction.on_execution(Reads::Nothing, returns, word),
    }
}

/// Returns the place that QEMU has kept.
fn site(word: *mut c_void) -> &'static Site {
    // SAFETY: `observe` has given it, and places live as long as the process.
    unsafe { &*word.cast::<Site>() }
}

extern "C" fn called(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (RECORDER.get(), site(word)) else { return };
    // QEMU 7.2 also calls back for the load of an indirect call's target.
    if !access.is_store() {
        return;
    }
    // QEMU runs translated code at each virtual address of its page: the return address shows where it is.
    let next = access.value().unwrap_or(site.next);
    let moved = |address: u64| address.wrapping_add(next.wrapping_sub(site.next));
    let (at, target) = (moved(site.at), site.target.map(moved));
    let call = Call { at, slot, return_address: next, target };
    // SAFETY: QEMU calls this on the thread that runs the vCPU.
    unsafe { recorder.lane(vcpu, site.level, |lane, now| lane.call(&call, now)) };
}

extern "C" fn called_ahead(vcpu: c_uint, _: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (RECORDER.get(), site(word)) else { return };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, _| lane.call_ahead(slot)) };
}

extern "C" fn returned(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (RECORDER.get(), site(word)) else { return };
    let ret = Return { at: site.at, slot: Some(slot), value: access.value() };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, now| lane.ret(&ret, now)) };
}

extern "C" fn returns(vcpu: c_uint, word: *mut c_void) {
    let (Some(recorder), site) = (RECORDER.get(), site(word)) else { return };
    let ret = Return { at: site.at, slot: None, value: None };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, now| lane.ret(&ret, now)) };
}
