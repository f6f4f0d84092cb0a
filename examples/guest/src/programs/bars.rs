//! Guests that reprogram the device's BARs while other vCPUs use them.
#![allow(unsafe_code)]

use core::hint::black_box;

use hypertrace::abi::layout::{PCI_DEVICE, PCI_VENDOR};
use hypertrace::{Client, event, reference_point};

use super::NO_DEVICE;
use crate::pci::Function;
use crate::{Args, Board, store};

/// Index of the result that the vCPU posts after moving the BARs.
const DONE: usize = 0;

pub fn run(cpu: u32, args: &Args, board: &Board) -> u32 {
    if cpu == 0 {
        return move_until_done(cpu, args, board);
    }
    let regions = board.regions();
    board.meet(args.vcpus);
    while board.results(0)[DONE] == 0 {
        for base in regions {
            for offset in [0, 8, 0x1000, 0x1008, 0x1400] {
                // SAFETY: these addresses belong to the BARs only, and the loaded value is not used.
                unsafe {
                    store(base + offset, offset, 8);
                    black_box(((base + offset) as *const u64).read_volatile());
                }
            }
        }
    }
    0
}

/// Moves BAR 4 to `args.params[0]` and back, and switches decoding off and on, `args.events` times.
pub fn move_until_done(cpu: u32, args: &Args, board: &Board) -> u32 {
    // SAFETY: `Args` says that there is an ECAM window.
    let function = unsafe { Function::find(args.ecam, PCI_VENDOR, PCI_DEVICE) };
    board.meet(args.vcpus);
    if let Some(function) = function {
        for _ in 0..args.events {
            // The guest stores the address in two halves while the BAR is decoded, so the BAR is at a third
            // place between the two stores.
            function.move_bar(4, args.params[0], true);
            function.set_decoding(false);
            function.move_bar(4, board.regions()[3], true);
            function.set_decoding(true);
        }
    }
    board.post(cpu, DONE, 1);
    if function.is_some() { 0 } else { NO_DEVICE }
}

/// Traces until the last vCPU is done. The BARs' places decide whether events are recorded.
pub fn trace_until_done(args: &Args, board: &Board, client: &Client<'_>) -> u32 {
    let trace = |number: u64| {
        event!(client: client, "traced", number);
        if number.is_multiple_of(16) {
            // A point fails while BAR 2 is elsewhere.
            let _ = reference_point!(client: client, "traced_point", number);
        }
    };
    // The first event and the first point send their schemas; later events and points do not send the schemas
    // again.
    trace(0);
    board.meet(args.vcpus);
    let mut number = 1;
    while board.results(args.vcpus - 1)[DONE] == 0 {
        trace(number);
        number += 1;
    }
    0
}
