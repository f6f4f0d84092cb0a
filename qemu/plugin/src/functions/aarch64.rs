//! Calls and returns of AArch64.
//!
//! A call leaves its return address in a register. If QEMU shows registers (API 2 and later), then the stack
//! pointer at the call identifies the function's execution. A return ends the innermost function. The plugin
//! does not read the stack pointer at a return if the innermost function was called after the last change of
//! the stack. The stack changes when the guest executes `mov sp, xN`, or changes the privilege level.
//!
//! Before API 2, the plugin gets the slots of return addresses from the instructions that store and load
//! return addresses ([`Linked`]).
//!
//! The code is unsafe because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::callback::at;
use super::level::Level;
use super::reader::{self, Kept};
use super::recorder;
use super::recorder::Recorder;
use super::site::{Event, Site};
use super::stack_pointer;
use super::tracer::Tracer;
use crate::api::{Access, Accesses, Instruction, Reads};
use hypertrace_functions::shadow::{Call, Linked, Return};
use std::cell::RefCell;
use std::ffi::{c_uint, c_void};

/// Alignment of the stack pointer.
const ALIGNMENT: u64 = 16;
/// Size of a page in bytes. A translated block is within a page.
const PAGE: u64 = 4096;
/// Size of a return address in bytes.
const WORD: u64 = 8;

/// Adds the callbacks of an instruction.
pub fn observe(instruction: &Instruction<'_>, event: Event, site: &Site, recorder: &Recorder) {
    let word = site.word();
    let executed = |reads, callback| instruction.on_execution(reads, callback, word);
    if recorder.is_full {
        match event {
            Event::Call => executed(Reads::Registers, called),
            Event::Return if recorder.sees_all() => executed(Reads::Registers, returned),
            Event::Return => executed(Reads::Registers, returned_at_slot),
            Event::StackPointerSet => executed(Reads::Nothing, moves),
            Event::StackPointerLost => executed(Reads::Nothing, loses),
            // `observe_jump` observes jumps. All other events are not observed on AArch64.
            _ => {}
        }
        return;
    }
    match event {
        Event::Call => executed(Reads::Nothing, links),
        Event::Return => executed(Reads::Nothing, returns),
        Event::StackPointerSet => executed(Reads::Nothing, sets),
        Event::LinkStore => instruction.on_access(Accesses::Stores, Reads::Nothing, stored, word),
        Event::LinkLoad => instruction.on_access(Accesses::Loads, Reads::Nothing, loaded, word),
        _ => {}
    }
}

/// Returns the address on the stack to which a push would store the return address.
///
/// # Safety
/// The calling thread runs this vCPU.
#[inline]
unsafe fn slot(vcpu: c_uint, level: Level, tracer: &mut Tracer) -> Option<u64> {
    let follows = recorder().and_then(|recorder| recorder.stack_pointer());
    let pointer = match follows {
        // SAFETY: by the caller's promise, the calling thread runs this vCPU.
        Some(follows) => unsafe { follows.value(vcpu, level, tracer.copy()) },
        None => stack_pointer::read(),
    };
    Some(pointer?.wrapping_sub(WORD))
}

thread_local! {
    static PROGRAM_COUNTER: Kept<1> = const { RefCell::new(None) };
}

/// Returns the difference between the address at which the code runs and the address for which QEMU has
/// translated the code. QEMU's program counter is the address of an earlier instruction in the same page.
#[inline]
fn distance(site: &Site) -> u64 {
    if !recorder().is_some_and(|recorder| recorder.is_full && recorder.may_run_elsewhere(site)) {
        return 0;
    }
    let counter = reader::read(&PROGRAM_COUNTER, ["pc"]);
    counter.map_or(0, |[counter]| (counter & !(PAGE - 1)).wrapping_sub(site.at & !(PAGE - 1)))
}

/// Returns the [`Call`] of the instruction at a place.
fn call(site: &Site, slot: u64) -> Call {
    let distance = distance(site);
    Call {
        at: site.at.wrapping_add(distance),
        slot,
        return_address: site.next.wrapping_add(distance),
        target: site.target.map(|target| target.wrapping_add(distance)),
    }
}

/// Returns the [`Return`] of the instruction at a place. The instruction's exact address is needed only if
/// the address names the function.
fn ret(site: &Site, slot: Option<u64>, tracer: &Tracer) -> Return {
    let distance = if tracer.is_named() { 0 } else { distance(site) };
    Return { at: site.at.wrapping_add(distance), slot, value: None }
}

extern "C" fn called(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: `observe` has registered this word, and QEMU calls this function on the thread that runs the
    // vCPU. The same two facts hold for the functions below.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            if let Some(slot) = slot(vcpu, site.level, tracer) {
                tracer.call_and_prove(&call(site, slot), now);
            }
        });
    }
}

extern "C" fn returned(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            if tracer.needs_slot() {
                let slot = slot(vcpu, site.level, tracer);
                tracer.ret_at_slot(&ret(site, slot, tracer), now);
            } else {
                tracer.ret(&ret(site, None, tracer), now);
            }
        });
    }
}

extern "C" fn returned_at_slot(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            let slot = slot(vcpu, site.level, tracer);
            tracer.ret_at_slot(&ret(site, slot, tracer), now);
        });
    }
}

extern "C" fn moves(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, tracer, _| tracer.moves()) };
}

extern "C" fn loses(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, tracer, _| tracer.copy().lose()) };
}

extern "C" fn links(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| tracer.linked(&Linked::Call(call(site, 0)), now));
    }
}

extern "C" fn returns(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, tracer, now| {
            tracer.linked(&Linked::Return(ret(site, None, tracer)), now);
        });
    }
}

extern "C" fn sets(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, tracer, now| tracer.linked(&Linked::StackPointerSet, now)) };
}

extern "C" fn stored(vcpu: c_uint, _: Access, address: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |_, tracer, now| tracer.linked(&Linked::Stored(pair(address)), now));
    }
}

extern "C" fn loaded(vcpu: c_uint, _: Access, address: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |_, tracer, now| tracer.linked(&Linked::Loaded(pair(address)), now));
    }
}

/// Returns the address of the pair of registers that contains an address: QEMU 7.2 calls back for each half
/// of a pair.
fn pair(address: u64) -> u64 {
    address & !(ALIGNMENT - 1)
}
