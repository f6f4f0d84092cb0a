//! Function traces: every call and return of an unmodified guest, as a directory that uftrace reads.
//!
//! QEMU calls back at call and return instructions alone. A callback for the access to the stack gives the
//! slot of the return address, which identifies the function's execution: no frame pointer is needed.
//!
//! ```text
//! options    what QEMU's command line says
//! level      privilege levels, read when code is translated
//! site       observed instructions
//! lane       a vCPU's shadow stacks at one level, and where their records go
//! recorder   all vCPUs, and the directory
//! windows    files of records, mapped
//! clock      the time of records
//! ```
//!
//! Unsafe, because QEMU's callbacks come from C.
#![allow(unsafe_code)]

mod clock;
mod lane;
mod level;
mod options;
mod recorder;
mod site;
mod windows;

pub use options::{OptionError, Options};

use crate::api::{Access, Accesses, Block, Events, Instruction, Qemu, Reads};
use crate::target::Target;
use hypertrace_functions::decode::{Architecture, Kind, decode};
use hypertrace_functions::shadow::{Call, Return};
use level::Level;
use recorder::Recorder;
use site::Site;
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

/// Set before the first callback.
static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Why a function trace cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The directory.
    #[error(transparent)]
    Directory(#[from] hypertrace_functions::Error),
    /// The thread that keeps the files.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A guest of AArch64, whose return addresses are in a register.
    #[error("function traces are of x86-64 guests only, and this one is of AArch64")]
    Aarch64,
}

/// Installs a function trace.
///
/// # Errors
/// If the directory cannot be made, or this QEMU cannot show what is needed.
pub fn install(qemu: &Qemu, target: Target, options: &Options) -> Result<(), InstallError> {
    if target == Target::Aarch64 {
        return Err(InstallError::Aarch64);
    }
    let recorder = Recorder::start(qemu, options)?;
    // A QEMU installs a plugin once.
    if RECORDER.set(recorder).is_ok() {
        qemu.on_translation::<Functions>();
        qemu.on_vcpu_end::<Functions>();
        qemu.on_end::<Functions>();
    }
    Ok(())
}

struct Functions;

impl Events for Functions {
    fn translated(block: &Block) {
        let Some(recorder) = RECORDER.get() else { return };
        let mut level = None;
        for instruction in block.instructions() {
            let address = instruction.address();
            let found =
                instruction.with_bytes(|bytes| decode(Architecture::X86_64, bytes, address));
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

    fn vcpu_ended(vcpu: c_uint) {
        if let Some(recorder) = RECORDER.get() {
            // SAFETY: QEMU calls this on the thread of the vCPU, or when it has ended.
            unsafe { recorder.end_vcpu(vcpu) };
        }
    }

    fn ended() {
        let Some(recorder) = RECORDER.get() else { return };
        // SAFETY: QEMU has stopped all vCPUs.
        let totals = unsafe { recorder.end() };
        eprintln!(
            "hypertrace: {} calls, {} misses, {} records lost",
            totals.calls, totals.misses, totals.lost
        );
        if totals.left_out + totals.not_observed > 0 {
            eprintln!(
                "hypertrace: {} calls and returns of further vCPUs, and {} places of further code, are left out",
                totals.left_out, totals.not_observed
            );
        }
        if let Some(why) = totals.failure {
            eprintln!("hypertrace: the function trace is incomplete: {why}");
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
