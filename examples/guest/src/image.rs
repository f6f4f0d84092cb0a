//! The freestanding image: entry point, panic handler, and the memory functions that compiled code
//! calls.
//!
//! No code runs before [`_start`]. The VMM has set up long mode at CPL 3, or EL1 with the MMU, a stack and
//! zeroed memory (.bss).
#![allow(unsafe_code)]

use core::arch::asm;
use core::fmt::Write;
use core::panic::PanicInfo;

use crate::{Args, Board, Console, device, layout, mmio};

/// Exit code of a program that panicked: the code with which a process would end.
const PANICKED: u32 = 101;

// Every exception ends the vCPU. x86-64 needs no handler for this.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".section .text.exceptions, \"ax\"",
    ".balign 2048",
    "exceptions:",
    ".rept 16",
    "movz x0, #{exception} >> 16, lsl #16",
    "movk x0, #{exception} & 0xffff",
    "str xzr, [x0]",
    "b .",
    ".balign 128",
    ".endr",
    exception = const layout::CONTROL + layout::CONTROL_EXCEPTION,
);

/// Runs the program. This is the entry point of every vCPU.
#[unsafe(no_mangle)]
extern "C" fn _start(cpu: u64, args: *const Args) -> ! {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the handlers have the form of a vector table, and return nowhere.
    unsafe {
        asm!("adr {0}, exceptions", "msr vbar_el1, {0}", "isb", out(reg) _, options(nostack));
    }
    // SAFETY: the VMM wrote an `Args` to this address before it started any vCPU, and nobody writes to it
    // afterwards.
    let args = unsafe { &*args };
    // SAFETY: the page belongs to the guest, is zero at the start, which is a valid Board, and is accessed by
    // atomics only.
    let board = unsafe { &*(layout::BOARD as *const Board) };
    let channel = device::find(cpu as u32, args, board);
    // SAFETY: the VMM wrote the addresses of this guest's memory map.
    exit(unsafe { crate::run(cpu as u32, args, board, channel) })
}

/// Ends this vCPU.
fn exit(code: u32) -> ! {
    // SAFETY: the control page is MMIO at a fixed address.
    unsafe { mmio::store(layout::CONTROL + layout::CONTROL_EXIT, u64::from(code), 4) };
    // The VMM does not resume the vCPU after that store.
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    // SAFETY: the control page is MMIO at a fixed address.
    let mut console = unsafe { Console::new(layout::CONTROL) };
    // The console cannot fail. An error of `info`'s own formatting cannot be reported.
    let _ = writeln!(console, "{info}");
    exit(PANICKED)
}

// On a hosted target, `compiler_builtins` leaves these functions to libc. The functions are in assembly,
// because the compiler could turn a loop into a call of the function that contains the loop. String
// instructions are fast where this matters (ERMS, FSRM).

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: memcpy's contract; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: memcpy's contract.
    unsafe {
        asm!("cbz {n}, 3f",
             "2:", "ldrb {byte:w}, [{from}], #1", "strb {byte:w}, [{to}], #1",
             "sub {n}, {n}, #1", "cbnz {n}, 2b", "3:",
             n = inout(reg) bytes => _, to = inout(reg) to => _, from = inout(reg) from => _,
             byte = out(reg) _, options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: `to` is before `from` or after its end, so copying upwards reads every byte before the byte
        // is overwritten.
        return unsafe { memcpy(to, from, bytes) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: memmove's contract, and bytes > 0 here; copies downwards from the last byte.
    unsafe {
        asm!("2:", "sub {n}, {n}, #1", "ldrb {byte:w}, [{from}, {n}]", "strb {byte:w}, [{to}, {n}]",
             "cbnz {n}, 2b",
             n = inout(reg) bytes => _, to = in(reg) to, from = in(reg) from, byte = out(reg) _,
             options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: memmove's contract, and bytes > 0 here; copies downwards from the last byte, and
    // clears the flag at the end.
    unsafe {
        asm!("std", "rep movsb", "cld",
             inout("rcx") bytes => _,
             inout("rdi") to.add(bytes - 1) => _,
             inout("rsi") from.add(bytes - 1) => _,
             options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: memset's contract.
    unsafe {
        asm!("cbz {n}, 3f", "2:", "strb {byte:w}, [{to}], #1", "sub {n}, {n}, #1", "cbnz {n}, 2b", "3:",
             n = inout(reg) bytes => _, to = inout(reg) to => _, byte = in(reg) value,
             options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller keeps memset's contract; the ABI says that the direction flag is clear.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") value as u8,
             options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    for i in 0..bytes {
        // SAFETY: memcmp's contract: both areas are readable for `bytes` bytes.
        let (x, y) = unsafe { (a.add(i).read(), b.add(i).read()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    // SAFETY: bcmp's contract is memcmp's.
    unsafe { memcmp(a, b, bytes) }
}
