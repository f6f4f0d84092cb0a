//! Handles shared memory that is taken away while it is mapped: a segment's file is cut off, or a kernel's
//! module takes the PCI function of a device. The next access raises SIGBUS.
//!
//! The code is unsafe because this module installs a signal handler.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// The program's action for SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// See [`watch`].
static REPLACE: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// Lets `replace` handle accesses to memory that is gone. A signal handler calls `replace` with the address.
/// If the lost memory belongs to the owner of `replace`, then `replace` puts other memory at the address and
/// returns true. Only the first call of `watch` in a process has an effect; `watch` returns whether this call
/// is the first. A program that later sets its own action for SIGBUS is not protected.
pub fn watch(replace: fn(usize) -> bool) -> bool {
    let is_first = REPLACE.set(replace).is_ok();
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeros are a `sigaction`. The handler calls no function that a signal handler must not
        // call.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr());
            before.assume_init()
        }
    });
    is_first
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `info`.
    let code = unsafe { (*info).si_code };
    // Another process can send this signal, too. The kernel also sends the signal if memory is broken that
    // nobody has accessed yet.
    let is_access = code > 0 && code != libc::BUS_MCEERR_AO;
    // SAFETY: the kernel tells the address of an access that raises SIGBUS.
    let address = || unsafe { (*info).si_addr() } as usize;
    if is_access && REPLACE.get().is_some_and(|replace| replace(address())) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    let has_info = before.sa_flags & libc::SA_SIGINFO != 0;
    // SAFETY: `before` is the program's own action for this signal. If the program has no handler, this
    // handler restores the program's action. The access is then repeated, and raises the signal again.
    unsafe {
        match before.sa_sigaction {
            libc::SIG_IGN if !is_access => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(libc::SIGBUS, before, ptr::null_mut());
                if !is_access {
                    libc::raise(libc::SIGBUS);
                }
            }
            handler if has_info => {
                type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            }
            handler => std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Environment variable with the action of a process that sends itself a signal.
    const ACTION: &str = "HYPERTRACE_TEST_ACTION";

    #[test]
    fn a_signal_that_is_sent_has_the_programs_own_action() {
        if let Some(action) = std::env::var_os(ACTION) {
            let action = action.to_str().unwrap().parse().unwrap();
            // SAFETY: the C functions take no arguments in memory.
            unsafe { libc::signal(libc::SIGBUS, action) };
            watch(|_| true);
            // SAFETY: as above.
            unsafe { libc::raise(libc::SIGBUS) };
            return;
        }
        let name = "bus_error::tests::a_signal_that_is_sent_has_the_programs_own_action";
        let end = |action: libc::sighandler_t| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([name, "--exact"]).env(ACTION, action.to_string());
            command.output().unwrap().status
        };

        assert_eq!(end(libc::SIG_DFL).signal(), Some(libc::SIGBUS));
        assert!(end(libc::SIG_IGN).success());
    }
}
