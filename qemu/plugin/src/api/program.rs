//! The program that QEMU's user mode emulates. QEMU has these functions from 7.1 on. Earlier releases also
//! serve API 1, but lack these functions.
//!
//! The code is unsafe because the API's functions are C functions.
#![allow(unsafe_code)]

use super::symbol::Symbol;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

static PATH: Symbol = Symbol::new(c"qemu_plugin_path_to_binary");
static START_CODE: Symbol = Symbol::new(c"qemu_plugin_start_code");

/// Returns the program's path, and the address of its first code; `None` in a whole machine. This function
/// may be called only in a callback of a vCPU.
pub fn program() -> Option<(PathBuf, u64)> {
    let (path, start) = (PATH.find()?, START_CODE.find()?);
    // SAFETY: both functions have these types in all versions. The text that `path` returns is a copy that
    // lives as long as the process.
    unsafe {
        let path: extern "C" fn() -> *const c_char = std::mem::transmute(path);
        let start: extern "C" fn() -> u64 = std::mem::transmute(start);
        let path = path();
        if path.is_null() {
            return None;
        }
        Some((OsStr::from_bytes(CStr::from_ptr(path).to_bytes()).into(), start()))
    }
}
