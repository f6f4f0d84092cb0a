//! Calls and returns of AArch64.
//!
//! A call leaves its return address in a register. Where registers can be read (API 2), the stack pointer at the call
//! identifies the function's execution. A return ends the innermost function. No read is needed where that was called after
//! the last change of the stack, by `mov sp, xN` or with the privilege level.
//!
//! Before API 2 the stores and loads of return addresses give their slots ([`Linked`]).
//!
//! Unsafe, because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::callback::at;
use super::lane::Lane;
use super::reader::Reader;
use super::recorder::Recorder;
use super::site::{Event, Site};
use crate::api::{Access, Accesses, Instruction, Reads};
use hypertrace_functions::shadow::{Call, Linked, Return};
use std::cell::RefCell;
use std::ffi::{c_uint, c_void};

/// Alignment of the stack pointer.
const ALIGNMENT: u64 = 16;
/// Bytes of a return address.
const WORD: u64 = 8;

/// Has QEMU call back at an instruction.
pub fn observe(
    instruction: &Instruction<'_>,
    event: Event,
    site: *const Site,
    recorder: &Recorder,
) {
    let word = site as u64;
    let executed = |reads, callback| instruction.on_execution(reads, callback, word);
    if recorder.has_registers {
        match event {
            Event::Call => executed(Reads::Registers, called),
            Event::Return if recorder.sees_all() => executed(Reads::Registers, returned),
            Event::Return => executed(Reads::Registers, returned_at_slot),
            Event::StackPointerSet => executed(Reads::Nothing, moves),
            // Of both architectures, or not of this one.
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

thread_local! {
    static STACK_POINTER: RefCell<Option<Reader<1>>> = const { RefCell::new(None) };
}

/// Returns the place to which a push would store the return address.
fn slot() -> Option<u64> {
    STACK_POINTER.with_borrow_mut(|reader| {
        if reader.is_none() {
            *reader = Reader::open(["sp"]);
        }
        let [stack_pointer] = reader.as_mut()?.read()?;
        Some(stack_pointer.wrapping_sub(WORD))
    })
}

/// Returns the call of a place.
fn call(site: &Site, slot: u64) -> Call {
    Call { at: site.at, slot, return_address: site.next, target: site.target }
}

extern "C" fn called(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: `observe` has given the word, and QEMU calls this on the thread that runs the vCPU. So below.
    unsafe {
        at(vcpu, word, |site, lane, now| {
            if let Some(slot) = slot() {
                lane.call_and_prove(&call(site, slot), now);
            }
        });
    }
}

extern "C" fn returned(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, lane, now| {
            if lane.needs_slot() {
                returned_at(site, lane, now);
            } else {
                lane.ret(&Return { at: site.at, slot: None, value: None }, now);
            }
        });
    }
}

extern "C" fn returned_at_slot(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, returned_at) };
}

#[cold]
fn returned_at(site: &Site, lane: &mut Lane, now: u64) {
    lane.ret_at_slot(&Return { at: site.at, slot: slot(), value: None }, now);
}

extern "C" fn moves(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, lane, _| lane.moves()) };
}

extern "C" fn links(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, lane, now| lane.linked(&Linked::Call(call(site, 0)), now));
    }
}

extern "C" fn returns(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |site, lane, now| {
            let ret = Return { at: site.at, slot: None, value: None };
            lane.linked(&Linked::Return(ret), now);
        });
    }
}

extern "C" fn sets(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |_, lane, now| lane.linked(&Linked::StackPointerSet, now)) };
}

extern "C" fn stored(vcpu: c_uint, _: Access, address: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |_, lane, now| lane.linked(&Linked::Stored(pair(address)), now));
    }
}

extern "C" fn loaded(vcpu: c_uint, _: Access, address: u64, word: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        at(vcpu, word, |_, lane, now| lane.linked(&Linked::Loaded(pair(address)), now));
    }
}

/// Returns the place of the pair that an address is in: QEMU 7.2 calls back for each half of it.
fn pair(address: u64) -> u64 {
    address & !(ALIGNMENT - 1)
}
