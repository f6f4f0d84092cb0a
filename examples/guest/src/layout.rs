//! The guest's memory map. Guest-virtual addresses equal guest-physical addresses in the first 4
//! GiB.
//!
//! ```text
//! 0x0000_1000  Args, written by the VMM
//! 0x0000_2000  Board, written by the guest
//! 0x0000_3000  page tables: PML4, PDPT, 4 page directories of 2 MiB pages; on AArch64 one of level 1
//! 0x0020_0000  the image, .bss included
//! 0x0080_0000  one stack per vCPU
//! 0x0100_0000  end of RAM
//! 0xd000_0000  the device's MMIO window, or the window that PCI BARs are put into
//! 0xe000_0000  PCI configuration space (ECAM), bus 0
//! 0xf000_0000  the VMM's control page
//! ```

/// Address of [`Args`](crate::Args), which the VMM writes.
pub const ARGS: u64 = 0x1000;
/// Address of [`Board`](crate::Board).
pub const BOARD: u64 = 0x2000;
/// Address of the six pages of page tables.
pub const PAGE_TABLES: u64 = 0x3000;
/// Load address of the image. `examples/kvm-vmm/image.ld` has the same number.
pub const IMAGE: u64 = 0x20_0000;
/// End of the space for the image, including .bss. `image.ld` asserts that the image ends below this address.
pub const IMAGE_END: u64 = 0x80_0000;
/// Lowest address of vCPU 0's stack. Stacks grow down. vCPU n's stack begins at `STACKS + (n + 1) *
/// STACK_SIZE`.
pub const STACKS: u64 = 0x80_0000;
/// Size of a stack in bytes. There is no guard page, so an overflow overwrites the next stack.
pub const STACK_SIZE: u64 = 0x4_0000;
/// Size in bytes of RAM, which begins at 0.
pub const RAM_SIZE: u64 = 0x100_0000;

/// Address of the device's MMIO window, or of the window for PCI BARs.
pub const DEVICE: u64 = 0xd000_0000;
/// Size of the space at [`DEVICE`].
pub const DEVICE_SIZE: u64 = 0x1000_0000;
/// Address of the PCI configuration space (ECAM).
pub const ECAM: u64 = 0xe000_0000;
/// Size of the ECAM window in bytes, for one bus.
pub const ECAM_SIZE: u64 = 0x10_0000;

/// Address of the VMM's control page.
pub const CONTROL: u64 = 0xf000_0000;
/// Size of the control page.
pub const CONTROL_SIZE: u64 = 0x1000;
/// Control register: a store ends this vCPU. The value is the program's exit code, 0 for success.
pub const CONTROL_EXIT: u64 = 0x0;
/// Control register: the bytes of a store (1 to 8) go to the VMM's console.
pub const CONTROL_CONSOLE: u64 = 0x8;
/// Control register: on AArch64, the guest handles exceptions with a store to this register. The store tells
/// the VMM that there was an exception.
pub const CONTROL_EXCEPTION: u64 = 0x10;
