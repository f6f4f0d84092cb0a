//! Registers: the one place where this library touches a device.
//!
//! Unsafe, because a register is an address that the caller passes.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use hypertrace_abi::config::{ConfigPage, Features};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use hypertrace_abi::layout::mark;
use hypertrace_abi::layout::register;
use hypertrace_abi::ring::Wake;

/// How a program stores to the registers of a segment. Those of a device are
/// stored to in one way only.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// By an instruction that an emulator's plugin knows from all others.
    #[default]
    Marked,
    /// By any instruction, and then a system call of a
    /// [number](hypertrace_abi::layout::mark::SYSCALL) that no kernel has, for
    /// an emulator that does not let its plugin see the instruction. Natively
    /// it costs its time and does nothing.
    Syscall,
}

/// The control region, mapped. Stores trap to the host, or to an emulator's
/// plugin, or are just stores to a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    base: *mut u8,
    pages: usize,
    stride: usize,
    /// Offset of the registers of the whole device, if it has them.
    shared: Option<usize>,
    /// As [`Store`] says.
    #[cfg(feature = "std")]
    by_syscall: bool,
}

// SAFETY: registers may be stored to from any thread; the device orders that.
unsafe impl Send for Control {}
// SAFETY: as above; no method gives out a reference.
unsafe impl Sync for Control {}

impl Control {
    /// # Safety
    /// `base` is the start of the control region of a device with this layout, which was checked,
    /// mapped for as long as the result is used.
    pub(crate) unsafe fn new(base: *mut u8, page: &ConfigPage) -> Control {
        let shared = page.features().contains(Features::SHARED);
        Control {
            base,
            pages: page.control_pages_offset as usize,
            stride: page.control_page_stride as usize,
            shared: shared.then_some(page.shared_registers as usize),
            #[cfg(feature = "std")]
            by_syscall: false,
        }
    }

    /// Does all stores in this way. Only where registers are memory.
    #[cfg(feature = "std")]
    pub(crate) fn with_store(self, store: Store) -> Control {
        Control { by_syscall: store == Store::Syscall, ..self }
    }

    fn client(&self, client: u32, register: u64) -> *mut u64 {
        self.base
            .wrapping_add(self.pages + client as usize * self.stride + register as usize)
            .cast()
    }

    pub(crate) fn store(&self, client: u32, register: u64, value: u64) {
        let to = self.client(client, register);
        #[cfg(feature = "std")]
        if self.by_syscall {
            // For a host, which looks here when it is asked. Earlier stores are in
            // memory too when the call is made: it is a C function, which may read
            // all memory.
            // SAFETY: as below.
            unsafe { to.write_volatile(value) };
            return crate::os::tell_plugin(to, value);
        }
        // SAFETY: `new`'s promise; client and register were checked against
        // the layout, and registers are aligned.
        unsafe { store(to, value) }
    }

    /// Stores to the register of the whole device, if there is one, or else to the client's: what a
    /// VMM has a doorbell for.
    pub(crate) fn ring(&self, client: u32, register: u64, value: u64) {
        match self.shared {
            // SAFETY: as in `store`.
            Some(shared) => unsafe {
                store(self.base.wrapping_add(shared + register as usize).cast(), value);
            },
            None => self.store(client, register, value),
        }
    }

    /// Returns the KICK register that [`Control::ring`] stores to.
    pub(crate) fn kick(&self, client: u32) -> &'static Kick {
        let at = match self.shared {
            Some(shared) => self.base.wrapping_add(shared + register::KICK as usize).cast(),
            None => self.client(client, register::KICK),
        };
        // SAFETY: `new`'s promise; the register is aligned.
        unsafe { &*at.cast::<Kick>() }
    }

    pub(crate) fn clock(&self, client: u32) -> u64 {
        // SAFETY: as in `store`.
        unsafe { self.client(client, register::CLOCK).read_volatile() }
    }

    /// Returns the number that was stored to EMIT last, where the registers are memory.
    pub(crate) fn emitted(&self, client: u32) -> u32 {
        // SAFETY: as in `store`.
        unsafe { self.client(client, register::EMIT).read_volatile() as u32 }
    }

    pub(crate) fn legacy(&self, client: u32, value: u64) {
        // SAFETY: as in `store`; the 2016 registers are at client * 8.
        unsafe { store(self.base.wrapping_add(client as usize * 8).cast(), value) }
    }
}

/// A KICK register: wakes the host's drain loop.
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

/// Makes one marked 8-byte store. Its form is independent of the compiler:
/// every hypervisor's instruction emulator knows it, and an emulator's plugin
/// can distinguish it from all other code ([`mark`]).
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
    // SAFETY: the caller's promise; the first instruction does nothing.
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
