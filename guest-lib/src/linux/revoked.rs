//! A device's memory that the kernel takes away while it is mapped, as when its module takes the function: the next access
//! is a SIGBUS. The handler puts private memory in its place, so that the program lives on; its events are counted as lost.
//!
//! Unsafe, because of signal handlers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// The program's action for such signals.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// See [`watch`].
static REPLACE: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// Watches the memory of this process's channel, once and for all channels: `replace` puts private memory where an address
/// is in it, in a signal handler, and returns whether it is. A program that sets an action of its own later
/// is not protected.
pub(super) fn watch(replace: fn(usize) -> bool) {
    REPLACE.get_or_init(|| replace);
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeros are a `sigaction`. The handler calls nothing that a handler must not.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr());
            before.assume_init()
        }
    });
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own, for a SIGBUS: it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if REPLACE.get().is_some_and(|replace| replace(address)) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    let has_info = before.sa_flags & libc::SA_SIGINFO != 0;
    // SAFETY: the program's own action for this signal; without a handler the access is made again.
    unsafe {
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(libc::SIGBUS, before, ptr::null_mut());
            }
            handler if has_info => {
                type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            }
            handler => std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
        }
    }
}
