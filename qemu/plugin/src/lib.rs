//! The emulator side of hypertrace: the library from which hypertrace's TCG plugins for QEMU are built.
//!
//! An emulated program finds its segment as a native program does. When the program makes an acknowledged
//! reference point, the program stores to a register of the segment. The store instruction has a form that no
//! other code has ([`hypertrace_abi::layout::mark`]). When QEMU translates a block, the plugin recognizes
//! this form, and asks QEMU for a callback after the instruction. The callback runs on the vCPU's thread,
//! while the guest is stopped after its store. In the callback, the plugin acts as the device, without a
//! signal and without a system call. The plugin instruments no other instruction. In another mode, the plugin
//! records function traces: QEMU calls the plugin back at calls and returns.
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
//! QEMU 11.1 takes only plugins for API 7, and earlier releases take only plugins for API 1 to 6. Therefore
//! there are two shared objects, `api-6/` and `api-7/`: both are this library, but each shared object asks
//! QEMU for another version of the API ([`library!`]).

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
