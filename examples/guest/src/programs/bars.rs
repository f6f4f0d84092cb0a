//! A guest that reprograms the device's BARs while its other vCPUs use them.
#![allow(unsafe_code)]

use core::hint::black_box;

use hypertrace::abi::layout::{PCI_DEVICE, PCI_VENDOR};

use super::NO_DEVICE;
use crate::pci::Function;
use crate::{Args, Board, store};

/// Where vCPU 0 posts that it is done.
const DONE: usize = 0;

pub fn run(cpu: u32, args: &Args, board: &Board) -> u32 {
    // SAFETY: `Args` says that there is an ECAM window.
    let Some(function) = (unsafe { Function::find(args.ecam, PCI_VENDOR, PCI_DEVICE) }) else {
        return NO_DEVICE;
    };
    let regions = board.regions();
    board.meet(args.vcpus);
    if cpu == 0 {
        for _ in 0..args.events {
            // While it is decoded, in two halves: for a moment it is at a third place.
            function.move_bar(4, args.params[0], true);
            function.set_decoding(false);
            function.move_bar(4, regions[3], true);
            function.set_decoding(true);
        }
        board.post(0, DONE, 1);
    } else {
        while board.results(0)[DONE] == 0 {
            for base in regions {
                for offset in [0, 8, 0x1000, 0x1008, 0x1400] {
                    // SAFETY: the BARs were there, and nothing else is; what such a load gives is
                    // nobody's concern.
                    unsafe {
                        store(base + offset, offset, 8);
                        black_box(((base + offset) as *const u64).read_volatile());
                    }
                }
            }
        }
    }
    0
}
