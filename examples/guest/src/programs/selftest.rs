//! Programs that test the VMM itself.
#![allow(unsafe_code)]

use core::hint::{black_box, spin_loop};

use crate::{Args, Board, store};

/// Sums 1/1 .. 1/n in doubles on all vCPUs at once, and posts the bits of the sum.
pub fn sse(cpu: u32, args: &Args, board: &Board) -> u32 {
    board.meet(args.vcpus);
    let sum: f64 = (1..=1_000_000u32).map(|n| 1.0 / f64::from(black_box(n))).sum();
    board.post(cpu, 0, sum.to_bits());
    0
}

pub fn store_many(args: &Args) -> u32 {
    let [count, address, width, _] = args.params;
    for value in 0..count {
        // SAFETY: the VMM chose an address that is MMIO in this guest, aligned to the width.
        unsafe { store(address, value, width) };
    }
    0
}

pub fn hang() -> u32 {
    loop {
        spin_loop();
    }
}

pub fn fault() -> u32 {
    // SAFETY: this program has no memory at this address, and the access is meant to fault.
    unsafe { store(1 << 40, 1, 8) };
    1
}
