//! Registers: the one place where this library touches a device.
//!
//! The code is unsafe because a register is an address that the caller passes.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use hypertrace_abi::layout::mark;
use hypertrace_abi::layout::{Geometry, PAGE, register};
use hypertrace_abi::ring::Wake;

/// The mapped control region. Stores to the region trap to the host or to an emulator's plugin, or, in a
/// segment, only change memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    base: *mut u8,
    /// Offset of the first client's page.
    pages: usize,
    /// Offset of KICK.
    kick: usize,
}

// SAFETY: registers may be stored to from any thread; the device orders the stores.
unsafe impl Send for Control {}
// SAFETY: as above; no method gives out a reference.
unsafe impl Sync for Control {}

impl Control {
    /// # Safety
    /// `base` is the start of the control region of a device with this checked geometry, mapped for as long
    /// as the result is used.
    pub(crate) unsafe fn new(base: *mut u8, geometry: &Geometry) -> Control {
        Control {
            base,
            pages: geometry.control_pages_offset() as usize,
            kick: geometry.kick_offset() as usize,
        }
    }

    fn client(&self, client: u32, register: u64) -> *mut u64 {
        let page = client as usize * PAGE as usize;
        self.base.wrapping_add(self.pages + page + register as usize).cast()
    }

    pub(crate) fn store(&self, client: u32, register: u64, value: u64) {
        // SAFETY: the caller of `new` promised that the registers are mapped; client and register were
        // checked against the layout, and registers are aligned.
        unsafe { store(self.client(client, register), value) }
    }

    /// Returns the register KICK.
    pub(crate) fn kick(&self) -> &'static Kick {
        // SAFETY: the caller of `new` promised that the registers are mapped; the register is aligned.
        unsafe { &*self.base.wrapping_add(self.kick).cast::<Kick>() }
    }

    /// Returns the number that was last stored to EMIT. This function is only for registers that are memory.
    pub(crate) fn emitted(&self, client: u32) -> u32 {
        // SAFETY: as in `store`.
        unsafe { self.client(client, register::EMIT).read_volatile() as u32 }
    }

    pub(crate) fn legacy(&self, client: u32, value: u64) {
        // SAFETY: as in `store`; the 2016 registers are at client * 8.
        unsafe { store(self.base.wrapping_add(client as usize * 8).cast(), value) }
    }
}

/// The register KICK: wakes the host's drain loop.
#[repr(transparent)]
pub(crate) struct Kick(UnsafeCell<u64>);

// SAFETY: as `Control`.
unsafe impl Sync for Kick {}

impl fmt::Debug for Kick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A load would trap.
        f.debug_tuple("Kick").field(&self.0.get()).finish()
    }
}

impl Wake for Kick {
    fn wake(&self) {
        // SAFETY: `Control::kick` made the reference to a mapped register.
        unsafe { store(self.0.get(), 0) }
    }
}

/// Makes one marked 8-byte store. The form of the store is independent of the compiler: every hypervisor's
/// instruction emulator knows this form, and an emulator's plugin can distinguish the store from all other
/// code ([`mark`]).
///
/// # Safety
/// `to` is a mapped, aligned register.
#[inline(always)]
unsafe fn store(to: *mut u64, value: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; displacement and subtraction cancel out.
    unsafe {
        core::arch::asm!(
            "mov [{} + {mark}], {}",
            in(reg) to.wrapping_byte_sub(mark::DISPLACEMENT as usize),
            in(reg) value,
            mark = const mark::DISPLACEMENT,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller promises that the word may be stored to; the first instruction does nothing.
    unsafe {
        core::arch::asm!(
            "movz xzr, #{mark}",
            "str {}, [{}]",
            in(reg) value,
            in(reg) to,
            mark = const mark::IMMEDIATE,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller's promise.
    unsafe {
        to.write_volatile(value);
    }
}
