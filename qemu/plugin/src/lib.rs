//! The emulator side of hypertrace: the library of its TCG plugins for QEMU.
//!
//! A program that is emulated finds its segment as it does natively. Where it
//! makes an acknowledged reference point it stores to a register of the segment
//! in a form that no other code has ([`hypertrace_abi::layout::mark`]). The
//! plugin knows that form when it translates, has QEMU call back after that one
//! instruction, and is the device then: on the vCPU's thread, with the guest
//! stopped after its store, with no signal and no system call. Nothing else is
//! instrumented. Function traces are another mode, which calls back at calls and
//! returns.
//!
//! ```text
//! api        QEMU's plugin API, versions 1 to 7
//! install    installation of the plugin: which of its parts serves the guest
//! mappings   the kernel's list of this process's mappings
//! target     the guest's architecture
//! device     the device of programs under QEMU's user mode: marked stores
//! functions  function traces of programs and whole machines
//! ```
//!
//! QEMU 11.1 takes only plugins for API 7, and earlier QEMU only plugins for 1 to 6.
//! So there are two shared objects, `api-6/` and `api-7/`, which are this library and
//! the version that they ask for ([`library!`]).

pub mod api;
pub mod device;
pub mod functions;
mod install;
mod mappings;
mod target;

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

pub use install::install;

/// Longest wait for a reader of stderr.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns an error's message, with those of its causes.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Writes a line to stderr. It is lost if stderr is closed, full or without a reader.
fn say(line: impl Display) {
    hypertrace_segment::signals::say(&format!("{line}\n"), PATIENCE);
}
