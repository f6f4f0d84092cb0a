//! Descriptors that a started program inherits.
//!
//! The code is unsafe because this module adds a call between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the started program inherit a descriptor under the same descriptor number.
pub(crate) fn inherit(command: &mut Command, descriptor: i32) {
    // SAFETY: between fork and exec, only fcntl is called, and fcntl is safe there.
    unsafe {
        command.pre_exec(move || match libc::fcntl(descriptor, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}
