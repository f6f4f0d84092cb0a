//! The emulator side of hypertrace: the library of its TCG plugins for QEMU.
//!
//! An emulated program finds its segment as a native program does. Where the program makes an acknowledged
//! reference point, it stores to a register of the segment by an instruction of a form that no other code has
//! ([`hypertrace_abi::layout::mark`]). When QEMU translates a block, the plugin recognizes that form and has
//! QEMU call back after that one instruction. In the callback, the plugin acts as the device: on the vCPU's
//! thread, with the guest stopped after its store, with no signal and no system call. The plugin instruments
//! no other instruction. Function traces are another mode, in which QEMU calls back at calls and returns.
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
//! QEMU 11.1 takes only plugins for API 7, and earlier releases only plugins for API 1 to 6. Therefore there
//! are two shared objects, `api-6/` and `api-7/`: each is this library with the version that it asks for
//! ([`library!`]).

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

/// Maximum time to wait for a reader of stderr.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns an error's message, followed by the messages of its causes.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Writes a line to stderr. The line is lost if stderr is closed, full or without a reader.
fn say(line: impl Display) {
    hypertrace_segment::signals::say(&format!("{line}\n"), PATIENCE);
}
