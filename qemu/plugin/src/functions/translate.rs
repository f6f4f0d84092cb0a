//! Decides which instructions of a translated block the plugin observes.
//!
//! The code is unsafe because QEMU's callbacks come from C.
#![allow(unsafe_code)]

use super::callback::at;
use super::code::JumpTarget;
use super::level;
use super::recorder;
use super::recorder::Recorder;
use super::site::{Event, Site};
use super::{aarch64, x86_64};
use crate::api::{Access, Accesses, Block, Instruction, Reads};
use crate::device;
use crate::target::Target;
use hypertrace_functions::decode::{
    Architecture, Instruction as Decoded, InstructionKind, StackPointerChange, decode, is_stub,
    stack_pointer_change,
};
use std::ffi::{c_uint, c_void};

/// Adds callbacks to the calls and returns of a translated block.
pub fn translated(recorder: &Recorder, block: &Block) {
    let code = recorder.code();
    let target = recorder.target;
    let architecture = match target {
        Target::X86_64 => Architecture::X86_64,
        Target::Aarch64 => Architecture::Aarch64,
    };
    if recorder.region().is_some() {
        device::marked_stores(target, block, |store| observe_mark(store, recorder));
    }
    let mut level = None;
    for (index, instruction) in block.instructions().enumerate() {
        if index == 0 {
            recorder.find_guest_base(&instruction);
        }
        let address = instruction.address();
        let begins =
            index == 0 && code.is_partial() && code.is_recorded(address) && code.can_begin(address);
        let (found, change) = instruction.with_bytes(|bytes| {
            let follows = recorder.stack_pointer().is_some();
            let change = follows.then(|| stack_pointer_change(bytes)).flatten();
            (decode(architecture, bytes, address), change)
        });
        let is_lost = change == Some(StackPointerChange::Set);
        let event = found.and_then(|found| event(recorder, address, &found));
        let event = event.or(is_lost.then_some(Event::StackPointerLost));
        if event.is_none() && !begins && change.is_none() {
            continue;
        }
        // The level is the same for the whole block.
        let known = level.get_or_insert_with(|| match recorder.is_machine {
            true => level::of_translated(target),
            false => Some(recorder.levels.programs),
        });
        let Some(level) = known.filter(|level| recorder.records(*level)) else { continue };
        if let (Some(StackPointerChange::Add(number)), Some(pointer)) =
            (change, recorder.stack_pointer())
        {
            pointer.follow(&instruction, level, number);
            continue;
        }
        let length = found.map_or(0, |found| found.length);
        let next = address.wrapping_add(length.into());
        let called =
            event.and(found).and_then(|found| known_target(recorder, architecture, &found));
        let function = code.function(address);
        let Some(site) =
            recorder.place(Site { at: address, next, target: called, function, level })
        else {
            continue;
        };
        // SAFETY: places live until QEMU drops all translated code, and QEMU drops no code while QEMU
        // translates a block.
        let site = unsafe { &*site };
        if begins {
            let word = site.word();
            instruction.on_execution(Reads::Nothing, begins_to_run, word);
        }
        match event {
            Some(event @ (Event::Jump | Event::ThunkJump)) => {
                observe_jump(&instruction, event, site);
            }
            Some(event) => match target {
                Target::X86_64 => x86_64::observe(&instruction, event, site, recorder),
                Target::Aarch64 => aarch64::observe(&instruction, event, site, recorder),
            },
            None => {}
        }
    }
}

/// Returns the function that a call or jump reaches, if this function is known and recorded.
fn known_target(recorder: &Recorder, architecture: Architecture, found: &Decoded) -> Option<u64> {
    let code = recorder.code();
    let target = found.target?;
    let is_known = match code.place(target) {
        // A stub leads to a function at another address.
        JumpTarget::Stub => false,
        // A thunk leads to a function at another address, too. If the plugin observes the thunk's return,
        // then the return shows which function the thunk leads to.
        JumpTarget::Thunk => !code.is_partial(),
        // A library's stubs are recognized by their code, because the library's symbols are not read yet.
        JumpTarget::Other if found.kind == InstructionKind::Call && !code.is_partial() => {
            !recorder.code_at(target).is_some_and(|bytes| is_stub(architecture, &bytes))
        }
        JumpTarget::Function | JumpTarget::Other => code.is_recorded(target),
    };
    is_known.then_some(target)
}

/// Returns the event of an instruction, if it is observed.
fn event(recorder: &Recorder, address: u64, found: &Decoded) -> Option<Event> {
    let code = recorder.code();
    let is_inside = || {
        code.is_recorded(address) || code.function(address).is_some_and(|at| code.is_recorded(at))
    };
    let reaches = |target: u64| {
        let place = code.place(target);
        code.is_recorded(target) || matches!(place, JumpTarget::Thunk | JumpTarget::Stub)
    };
    match found.kind {
        // On AArch64, a call whose target is just ahead is always a call of a function.
        InstructionKind::CallAhead
            if recorder.target == Target::Aarch64
                || code.place(found.target?) == JumpTarget::Function =>
        {
            reaches(found.target?).then_some(Event::Call)
        }
        InstructionKind::CallAhead => (!code.is_partial()).then_some(Event::CallAhead),
        InstructionKind::CallIndirect | InstructionKind::CallFar => Some(Event::Call),
        InstructionKind::Call => reaches(found.target?).then_some(Event::Call),
        InstructionKind::Return | InstructionKind::ReturnFar => {
            is_inside().then_some(Event::Return)
        }
        InstructionKind::Jump if is_inside() => match code.place(found.target?) {
            JumpTarget::Function if !code.is_same(address, found.target?) => Some(Event::Jump),
            // The plugin does not observe the instructions of the thunk or stub, so the jump ends the
            // function.
            JumpTarget::Thunk | JumpTarget::Stub if code.is_partial() => Some(Event::Jump),
            JumpTarget::Thunk | JumpTarget::Stub => Some(Event::ThunkJump),
            _ => None,
        },
        // If QEMU shows the stack pointer, then the plugin observes changes of the stack pointer in all
        // functions, because the changes show which stack is in use.
        InstructionKind::StackPointerSet => {
            (recorder.is_full || is_inside()).then_some(Event::StackPointerSet)
        }
        InstructionKind::LinkStore => {
            (!recorder.is_full && is_inside()).then_some(Event::LinkStore)
        }
        InstructionKind::LinkLoad => (!recorder.is_full && is_inside()).then_some(Event::LinkLoad),
        _ => None,
    }
}

fn observe_jump(instruction: &Instruction<'_>, event: Event, site: &Site) {
    let callback = if event == Event::Jump { jumps } else { jumps_to_thunk };
    instruction.on_execution(Reads::Nothing, callback, site.word());
}

fn observe_mark(instruction: &Instruction<'_>, recorder: &Recorder) {
    if recorder.has_values {
        instruction.on_access(Accesses::Stores, Reads::Nothing, stored, 0);
    } else if let Some(base) = instruction.guest_base() {
        // In QEMU's user mode, the callback reads the stored value from memory.
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
        // SAFETY: the program has just stored to this address, on this thread.
        recorder.emitted(unsafe { at.read_unaligned() });
    }
}

extern "C" fn jumps(vcpu: c_uint, word: *mut c_void) {
    let Some(recorder) = recorder() else { return };
    // SAFETY: `observe_jump` has registered this word, and QEMU calls this function on the thread that runs
    // the vCPU.
    unsafe {
        at(vcpu, word, |site, tracer, now| tracer.jump(site, recorder.code(), site.target, now));
    }
}

extern "C" fn jumps_to_thunk(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |site, tracer, _| tracer.executed(site.at)) };
}

extern "C" fn begins_to_run(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: as above.
    unsafe { at(vcpu, word, |site, tracer, _| tracer.begins(site.at)) };
}
