//! Functions that not all versions of the API have. A library that links to a missing function
//! cannot be loaded.
//!
//! Unsafe code is allowed here, because looking a symbol up is unsafe.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;

/// A function of QEMU, or of a library that QEMU is linked to.
pub(super) struct Symbol {
    name: &'static CStr,
    address: OnceLock<usize>,
}

impl Symbol {
    pub(super) const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, address: OnceLock::new() }
    }

    /// Returns the function's address, if there is such a function.
    #[inline]
    pub(super) fn find(&self) -> Option<*const ()> {
        // SAFETY: dlsym only reads the name, which is a C string.
        let look_up = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) } as usize;
        let address = *self.address.get_or_init(look_up) as *const ();
        (!address.is_null()).then_some(address)
    }
}
