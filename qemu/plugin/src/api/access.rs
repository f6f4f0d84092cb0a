//! Accesses of instructions to memory.
//!
//! Unsafe code is allowed here, because the functions of the API are C functions.
#![allow(unsafe_code)]

use super::symbol::Symbol;
use std::ffi::{c_uint, c_void};

/// Function that QEMU calls after an access. The arguments are the index of the vCPU, the access, the guest
/// address of the access, and the word that the plugin passed at the registration.
pub type AccessCallback = extern "C" fn(c_uint, Access, u64, *mut c_void);

/// Kind of accesses for which QEMU calls a callback (`qemu_plugin_mem_rw`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Accesses {
    /// Loads.
    Loads = 1,
    /// Stores.
    Stores = 2,
}

/// An access (`qemu_plugin_meminfo_t`), valid while its callback runs.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Access(u32);

/// `qemu_plugin_mem_value`. The value's bytes are the first bytes of `data`, in the host's byte order.
#[repr(C)]
struct Value {
    /// The base 2 logarithm of the size in bytes.
    kind: c_uint,
    data: [u64; 2],
}

unsafe extern "C" {
    fn qemu_plugin_mem_is_store(access: Access) -> bool;
}

/// This function is in API 4 and later.
static GET_VALUE: Symbol = Symbol::new(c"qemu_plugin_mem_get_value");

impl Access {
    /// Returns true for a store, false for a load.
    pub fn is_store(self) -> bool {
        // SAFETY: qemu_plugin_mem_is_store takes a number, and accesses no memory.
        unsafe { qemu_plugin_mem_is_store(self) }
    }

    /// Returns the value that was loaded or stored. Returns `None` if the value has more than 64 bits, or if
    /// QEMU serves only API 1 to 3. This method may be called in this access's callback only.
    pub fn value(self) -> Option<u64> {
        let function = GET_VALUE.find()?;
        // SAFETY: the function has this type in all versions that have the function. The function only reads
        // state that QEMU keeps for the calling thread.
        let value = unsafe {
            let function: extern "C" fn(Access) -> Value = std::mem::transmute(function);
            function(self)
        };
        let bits = 8u32.checked_shl(value.kind).filter(|&bits| bits <= 64)?;
        // The bits beyond the access's size are undefined.
        Some(value.data[0] & (u64::MAX >> (64 - bits)))
    }
}
