//! Registers: the one place where this library touches a device.
//!
//! Unsafe, because a register is an address that somebody told us.
#![allow(unsafe_code)]

use hypertrace_abi::layout::register;

/// The control region, mapped. Stores trap to the host, or to an emulator's
/// plugin, or are just stores to a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    base: *mut u8,
    pages: usize,
    stride: usize,
}

// SAFETY: registers may be stored to from any thread; the device orders that.
unsafe impl Send for Control {}
// SAFETY: as above; no method gives out a reference.
unsafe impl Sync for Control {}

impl Control {
    /// # Safety
    /// `base` is the start of the control region of a device with this layout,
    /// mapped for as long as the result is used.
    pub(crate) unsafe fn new(base: *mut u8, pages: usize, stride: usize) -> Control {
        Control { base, pages, stride }
    }

    fn client(&self, client: u32, register: u64) -> *mut u64 {
        self.base
            .wrapping_add(self.pages + client as usize * self.stride + register as usize)
            .cast()
    }

    pub(crate) fn store(&self, client: u32, register: u64, value: u64) {
        // SAFETY: `new`'s promise; client and register were checked against
        // the layout, and registers are aligned.
        unsafe { store(self.client(client, register), value) }
    }

    pub(crate) fn clock(&self, client: u32) -> u64 {
        // SAFETY: as in `store`.
        unsafe { self.client(client, register::CLOCK).read_volatile() }
    }

    /// What was stored to EMIT last, where the registers are memory.
    pub(crate) fn emitted(&self, client: u32) -> u32 {
        // SAFETY: as in `store`.
        unsafe { self.client(client, register::EMIT).read_volatile() as u32 }
    }

    pub(crate) fn legacy(&self, client: u32, value: u64) {
        // SAFETY: as in `store`; the 2016 registers stand at client * 8.
        unsafe { store(self.base.wrapping_add(client as usize * 8).cast(), value) }
    }
}

/// One 8-byte store, in a form that every hypervisor's instruction emulator
/// knows, whatever the compiler would have chosen.
///
/// # Safety
/// `to` is a mapped, aligned register.
#[inline(always)]
unsafe fn store(to: *mut u64, value: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("mov [{}], {}", in(reg) to, in(reg) value, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        to.write_volatile(value);
    }
}
