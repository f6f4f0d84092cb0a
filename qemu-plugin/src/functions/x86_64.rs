//! Calls and returns of x86-64.
//!
//! A call pushes its return address, and a return pops it: the access gives the slot.
//!
//! Unsafe, because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::code::{Code, Place};
use super::lane::Lane;
use super::level::{self, Level};
use super::recorder;
use super::recorder::Recorder;
use super::site::Site;
use crate::api::{Access, Accesses, Block, Instruction, Reads};
use crate::device::marker;
use hypertrace_functions::decode::{Architecture, Instruction as Decoded, Kind, decode};
use hypertrace_functions::shadow::{Call, Return};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Difference between QEMU's addresses and the program's, in a user mode that does not show the values of stores.
static GUEST_BASE: AtomicU64 = AtomicU64::new(NO_BASE);
const NO_BASE: u64 = u64::MAX;

/// Events of an instruction that are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Call,
    CallAhead,
    Return,
    /// A jump to another function.
    Jump,
    /// A jump to a thunk.
    ThunkJump,
}

/// Has QEMU call back at the calls and returns of a translated block.
pub fn translated(recorder: &Recorder, block: &Block) {
    let code = recorder.code();
    if !recorder.is_machine && !recorder.has_values && GUEST_BASE.load(Relaxed) == NO_BASE {
        let base = block.instructions().next().and_then(|first| first.guest_base());
        GUEST_BASE.store(base.unwrap_or(NO_BASE), Relaxed);
    }
    let mut level = None;
    for (index, instruction) in block.instructions().enumerate() {
        let address = instruction.address();
        if recorder.region().is_some() && is_mark(&instruction) {
            observe_mark(&instruction, recorder);
        }
        let begins =
            index == 0 && code.is_partial() && code.is_recorded(address) && code.can_begin(address);
        let found = instruction.with_bytes(|bytes| decode(Architecture::X86_64, bytes, address));
        let observed = found.and_then(|found| Some((found, event(code, address, &found)?)));
        if observed.is_none() && !begins {
            continue;
        }
        // The same for the whole block.
        let known = level.get_or_insert_with(|| match recorder.is_machine {
            true => level::of_translated(),
            false => Some(Level::PROGRAMS),
        });
        let Some(level) = known.filter(|level| recorder.records(*level)) else { continue };
        let length = found.map_or(0, |found| found.length);
        let next = address.wrapping_add(length.into());
        let target = observed.and_then(|(found, _)| known_target(code, &found));
        let site = Site { at: address, next, target, function: code.function(address), level };
        let Some(site) = recorder.place(site) else { continue };
        if begins {
            let word = site as u64;
            instruction.on_execution(Reads::Nothing, begins_to_run, word);
        }
        if let Some((_, event)) = observed {
            observe(&instruction, event, site, recorder.has_loads);
        }
    }
}

/// Returns the function that a call or jump reaches, if that is known and recorded.
fn known_target(code: &Code, found: &Decoded) -> Option<u64> {
    let target = found.target?;
    match code.is_partial() {
        // A thunk's function is another one.
        true => (code.is_recorded(target) && code.place(target) != Place::Thunk).then_some(target),
        false => Some(target),
    }
}

/// Returns the event of an instruction, if it is observed.
fn event(code: &Code, address: u64, found: &Decoded) -> Option<Event> {
    let is_inside = || code.is_recorded(address);
    let reaches = |target: u64| {
        code.is_recorded(target) || code.is_partial() && code.place(target) == Place::Thunk
    };
    match found.kind {
        Kind::CallAhead if code.place(found.target?) == Place::Function => {
            reaches(found.target?).then_some(Event::Call)
        }
        Kind::CallAhead => (!code.is_partial()).then_some(Event::CallAhead),
        Kind::CallIndirect | Kind::CallFar => Some(Event::Call),
        Kind::Call => reaches(found.target?).then_some(Event::Call),
        Kind::Return | Kind::ReturnFar => is_inside().then_some(Event::Return),
        Kind::Jump if is_inside() => match code.place(found.target?) {
            Place::Function if !code.is_same(address, found.target?) => Some(Event::Jump),
            // The function ends there: its return, or a call, is by an instruction that is not observed.
            Place::Thunk if code.is_partial() => Some(Event::Jump),
            Place::Thunk => Some(Event::ThunkJump),
            _ => None,
        },
        _ => None,
    }
}

/// Has QEMU call back at an instruction.
fn observe(instruction: &Instruction<'_>, event: Event, site: *const Site, has_loads: bool) {
    let word = site as u64;
    match event {
        Event::CallAhead => {
            instruction.on_access(Accesses::Stores, Reads::Nothing, called_ahead, word)
        }
        Event::Call => instruction.on_access(Accesses::Stores, Reads::Nothing, called, word),
        Event::Return if has_loads => {
            instruction.on_access(Accesses::Loads, Reads::Nothing, returned, word)
        }
        Event::Return => instruction.on_execution(Reads::Nothing, returns, word),
        Event::Jump => instruction.on_execution(Reads::Nothing, jumps, word),
        Event::ThunkJump => instruction.on_execution(Reads::Nothing, jumps_to_thunk, word),
    }
}

/// Returns true for a store to a register of hypertrace's device.
fn is_mark(instruction: &Instruction<'_>) -> bool {
    // Most are not of this length.
    matches!(instruction.size(), 7 | 8) && instruction.with_bytes(marker::is_x86_64_store)
}

fn observe_mark(instruction: &Instruction<'_>, recorder: &Recorder) {
    if recorder.has_values {
        instruction.on_access(Accesses::Stores, Reads::Nothing, stored, 0);
    } else if let Some(base) = instruction.guest_base() {
        // Of QEMU's user mode: the value is in memory.
        instruction.on_access(Accesses::Stores, Reads::Nothing, stored_in_memory, base);
    }
}

extern "C" fn stored(_: c_uint, access: Access, _: u64, _: *mut c_void) {
    if let (Some(recorder), Some(value)) = (recorder(), access.value()) {
        recorder.emitted(value);
    }
}

extern "C" fn stored_in_memory(_: c_uint, _: Access, address: u64, base: *mut c_void) {
    let at = address.wrapping_add(base as u64) as *const u64;
    if let Some(recorder) = recorder() {
        // SAFETY: the program has just stored there, on this thread.
        recorder.emitted(unsafe { at.read_unaligned() });
    }
}

/// Returns the place that QEMU has kept.
fn site<'c>(word: *mut c_void) -> &'c Site {
    // SAFETY: `translated` has given it, and it lives until QEMU drops all translated code: no callback runs then.
    unsafe { &*word.cast::<Site>() }
}

extern "C" fn called(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    // QEMU runs translated code at each virtual address of its page: the return address shows where it is.
    let next = match access.value() {
        Some(next) => next,
        // QEMU 7.2 also calls back for the load of an indirect call's target, and for a store of an atomic
        // instruction after the call.
        None if !access.is_store() || !is_pushed(site.next, slot) => return,
        None => site.next,
    };
    let moved = |address: u64| address.wrapping_add(next.wrapping_sub(site.next));
    let (at, target) = (moved(site.at), site.target.map(moved));
    let call = Call { at, slot, return_address: next, target };
    // SAFETY: QEMU calls this on the thread that runs the vCPU.
    unsafe { recorder.lane(vcpu, site.level, |lane, now| lane.call(&call, now)) };
}

/// Returns whether a return address is in a slot that the program has just stored to. Without the values of stores, a
/// whole machine's is not known.
fn is_pushed(next: u64, slot: u64) -> bool {
    let at = match GUEST_BASE.load(Relaxed) {
        NO_BASE => return true,
        // No stack's; it might be the last bytes of a page.
        _ if !slot.is_multiple_of(8) => return false,
        base => slot.wrapping_add(base) as *const u64,
    };
    // SAFETY: the program has just stored at this address, on this thread: its page is there. QEMU's own address is as
    // aligned, as the base is a multiple of a page's size.
    next == unsafe { at.read() }
}

extern "C" fn called_ahead(vcpu: c_uint, _: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, _| lane.call_ahead(slot)) };
}

extern "C" fn returned(vcpu: c_uint, access: Access, slot: u64, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    let ret = |lane: &mut Lane, now| {
        // To ask QEMU takes longer than all the rest.
        let value = if lane.expects(slot) { None } else { access.value() };
        lane.ret(&Return { at: site.at, slot: Some(slot), value }, now);
    };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, ret) };
}

extern "C" fn returns(vcpu: c_uint, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    let ret = Return { at: site.at, slot: None, value: None };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, now| lane.ret(&ret, now)) };
}

extern "C" fn jumps(vcpu: c_uint, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    let jump = |lane: &mut Lane, now| lane.jump(site, recorder.code(), site.target, now);
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, jump) };
}

extern "C" fn jumps_to_thunk(vcpu: c_uint, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, _| lane.executed(site.at)) };
}

extern "C" fn begins_to_run(vcpu: c_uint, word: *mut c_void) {
    let (Some(recorder), site) = (recorder(), site(word)) else { return };
    // SAFETY: as above.
    unsafe { recorder.lane(vcpu, site.level, |lane, _| lane.begins(site.at)) };
}
