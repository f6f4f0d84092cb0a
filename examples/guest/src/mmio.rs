//! Stores and loads for MMIO: volatile, of exactly the given width.
#![allow(unsafe_code)]

/// Stores the low `width` bytes (1, 2, 4 or 8; any other width stores nothing) of `value` at
/// `address`.
///
/// # Safety
/// `address` must be a multiple of `width` and be in the guest's MMIO space, or in memory that only
/// volatile or atomic accesses use.
pub unsafe fn store(address: u64, value: u64, width: u64) {
    // SAFETY: the caller's promise. `as` drops the high bytes, as a narrow store does.
    unsafe {
        match width {
            1 => (address as *mut u8).write_volatile(value as u8),
            2 => (address as *mut u16).write_volatile(value as u16),
            4 => (address as *mut u32).write_volatile(value as u32),
            8 => (address as *mut u64).write_volatile(value),
            _ => {}
        }
    }
}

/// Loads 8 bytes from `address`.
///
/// # Safety
/// As for [`store`] with a width of 8.
pub unsafe fn load(address: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (address as *const u64).read_volatile() }
}
