//! Function traces. A function trace has every call and return of an unmodified guest, and is a directory
//! that uftrace can read.
//!
//! QEMU calls the plugin back only at call and return instructions. The guest needs no frame pointers,
//! because the slot of the return address, or the stack pointer, identifies each execution of a function.
//!
//! ```text
//! options        what QEMU's command line says
//! code           names of functions, and which are recorded
//! region         whether a region of the guest's events is open
//! reader         registers of a vCPU
//! level          privilege levels, read when code is translated
//! stack_pointer  copies of the stack pointers of AArch64
//! site           observed instructions
//! callback       callbacks of observed instructions
//! translate      which instructions are observed
//! x86_64         calls and returns of x86-64, and what happens when they run
//! aarch64        calls and returns of AArch64, and what happens when they run
//! tracer         a vCPU's shadow stacks at one level, and where their records go
//! recorder       all vCPUs, and the directory
//! windows        files of records, mapped
//! clock          the time of records
//! ```
//!
//! The code is unsafe because QEMU's callbacks come from C.
#![allow(unsafe_code)]

mod aarch64;
mod callback;
mod clock;
mod code;
mod level;
mod libraries;
mod options;
mod reader;
mod recorder;
mod region;
mod site;
mod stack_pointer;
mod tracer;
mod translate;
mod windows;
mod x86_64;

pub use options::{OptionError, Options};

use crate::api::{Block, Events, Qemu};
use crate::say;
use crate::target::Target;
use recorder::Recorder;
use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

/// Recorder of this process, set before the first callback, and null in a child process.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(null_mut());
/// Recorder of this process or, in a child process, the parent's recorder.
static OF_PARENTS: AtomicPtr<Recorder> = AtomicPtr::new(null_mut());

thread_local! {
    /// Whether this thread runs a vCPU.
    static IS_VCPU: Cell<bool> = const { Cell::new(false) };
    /// Number of vCPUs that have started on this thread.
    static STARTED: Cell<u32> = const { Cell::new(0) };
}

/// Returns the recorder of this process.
#[inline]
fn recorder() -> Option<&'static Recorder> {
    // SAFETY: `install` has stored a recorder that lives as long as the process.
    unsafe { RECORDER.load(Acquire).as_ref() }
}

/// Reason why the plugin cannot begin a function trace.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] hypertrace_functions::Error),
    /// The path of the trace's directory is relative, and the current directory is not known.
    #[error("cannot find the current directory")]
    Path(#[source] std::io::Error),
    /// There is no memory for the count of child processes, or for the handler of forks.
    #[error("out of memory for what child processes need")]
    Fork,
    /// The same QEMU has a function trace already.
    #[error("there is a function trace of this QEMU already")]
    Twice,
    /// The thread that keeps the files cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A function that is to be recorded does not exist.
    #[error(transparent)]
    Function(#[from] code::NoSuchFunction),
    /// A region was given for a whole machine, and this QEMU does not show the values of stores.
    #[error("region=NAME needs QEMU 9.2 or later in a whole machine: this one has plugin API {0}")]
    Region(i32),
    /// The guest is a whole machine, and this QEMU does not show registers. The plugin needs registers,
    /// because only registers show the privilege level.
    #[error(
        "function traces of a whole machine need QEMU 9.0 or later: this one has plugin API {0}"
    )]
    Registers(i32),
}

/// Prepares a function trace, whose callbacks are those of `Functions`.
///
/// # Errors
/// If the directory cannot be made, or this QEMU cannot show what the trace needs.
pub fn install(qemu: &Qemu, target: Target, options: &Options) -> Result<(), InstallError> {
    if !RECORDER.load(Acquire).is_null() {
        return Err(InstallError::Twice);
    }
    let recorder = Recorder::start(qemu, target, options)?;
    let recorder = Box::leak(Box::new(recorder));
    OF_PARENTS.store(recorder, Release);
    RECORDER.store(recorder, Release);
    // SAFETY: QEMU does not unload an installed plugin that does not ask to be unloaded.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
        return Err(InstallError::Fork);
    }
    Ok(())
}

/// Ends the recording in a child process, because the files are the parent's.
extern "C" fn in_child() {
    // SAFETY: as for `RECORDER`.
    if let Some(recorder) = unsafe { OF_PARENTS.load(Acquire).as_ref() } {
        recorder.count_child();
    }
    RECORDER.store(null_mut(), Release);
}

/// The callbacks of a function trace.
pub(crate) struct Functions;

impl Events for Functions {
    fn translated(block: &Block) {
        let Some(recorder) = recorder() else { return };
        IS_VCPU.set(true);
        translate::translated(recorder, block);
    }

    fn vcpu_started(_: c_uint) {
        let started = STARTED.get() + 1;
        STARTED.set(started);
        let Some(recorder) = recorder().filter(|_| started == 2) else { return };
        if let Some(pointer) = recorder.stack_pointer() {
            pointer.give_up();
        }
        say(
            "hypertrace: virtual CPUs share a thread (thread=single, -icount): QEMU does not tell which one runs, and tracks have functions of several",
        );
    }

    fn vcpu_ended(vcpu: c_uint) {
        if let Some(recorder) = recorder() {
            // SAFETY: QEMU calls this function on the thread of the vCPU, or when no thread runs the vCPU any
            // more.
            unsafe { recorder.end_vcpu(vcpu) };
        }
    }

    fn flushed() {
        if let Some(recorder) = recorder() {
            recorder.forget_places();
        }
    }

    fn ended() {
        let Some(recorder) = recorder() else { return };
        if recorder.is_machine && IS_VCPU.get() && recorder.has_others() {
            say(
                "hypertrace: a virtual CPU has ended QEMU while others ran: the function trace ends as after a kill",
            );
            return;
        }
        // SAFETY: no callback runs now. QEMU has stopped all vCPUs or, in its user mode, has dropped all code
        // with callbacks.
        let totals = unsafe { recorder.end() };
        say(format_args!(
            "hypertrace: {} calls, {} misses, {} records lost",
            totals.calls, totals.misses, totals.lost
        ));
        if totals.regions == Some(0) {
            say(
                "hypertrace: no region began (region=NAME): it needs reference points NAME_begin and NAME_end of this hypertrace's guest library",
            );
        } else if totals.is_empty && totals.lost == 0 && !recorder.filters().is_empty() {
            let filters = recorder.filters().join(", ");
            say(format_args!("hypertrace: no function was recorded: none matched {filters}"));
        }
        for (count, what) in [
            (totals.too_deep, "calls deeper than 1,023 functions are not recorded"),
            (totals.evicted, "stacks were forgotten, as there were too many"),
            (totals.children, "child processes are not recorded"),
            (totals.without_name, "functions have no name in the directory, as there are too many"),
        ] {
            if count > 0 {
                say(format_args!("hypertrace: {count} {what}"));
            }
        }
        if totals.left_out + totals.not_observed > 0 {
            say(format_args!(
                "hypertrace: {} calls and returns of further vCPUs, and {} places of further code, are left out",
                totals.left_out, totals.not_observed
            ));
        }
        if recorder.stack_pointer().is_some_and(|pointer| pointer.is_wrong()) {
            say(
                "hypertrace: copies of the stack pointer were wrong: some functions may have wrong ends",
            );
        }
        if let Some(why) = totals.failure {
            say(format_args!("hypertrace: the function trace is incomplete: {why}"));
        }
    }
}
