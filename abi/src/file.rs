// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks a file's size against the limit of the process, and makes the sealed memory file that a host shares
//! with its clients. Linux only.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::format;
use std::fs::File;
use std::io;

/// Checks that a file may have this many bytes. Beyond RLIMIT_FSIZE, the kernel sends a SIGXFSZ, which by
/// default ends the process.
///
/// # Errors
/// If the file may not have this many bytes. The error names the limit.
pub fn check_size(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current.filter(|limit| bytes > *limit) {
        None => Ok(()),
        Some(limit) => {
            let why = format!("{bytes} bytes are beyond RLIMIT_FSIZE, {limit} (see ulimit -f)");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
        }
    }
}

/// Makes a file in memory, sealed against changes of its size and against further seals. A process that has
/// the descriptor can then neither remove the file's pages nor prevent a later process from mapping the file.
///
/// # Errors
/// If the file may not have this many bytes, or the process has no descriptors left.
pub fn memfd(bytes: u64) -> io::Result<File> {
    check_size(bytes)?;
    let file = memfd_create("hypertrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
