//! A guest of the 2016 interface, which uses only the first five words of the config page, argument
//! slots in BAR 1, and a register per client in BAR 2.
#![allow(unsafe_code)]

use core::ptr;

use crate::{Args, Board, store};

/// Exit codes.
const NO_DEVICE: u32 = 1;
const WRONG_CONFIG: u32 = 2;

/// Makes `args.events` events for each of `args.params[0]` clients (0, 1, ...). The first argument is `client
/// << 32 | number`, and argument n (from 2) is `first + n`. Events with even numbers are stored as one u64,
/// and events with odd numbers as two u32, the low half first. vCPU n takes the clients n, n + vCPUs, ...
pub fn run(cpu: u32, args: &Args, board: &Board) -> u32 {
    let [config, data, control, _] = board.regions();
    if config == 0 {
        return NO_DEVICE;
    }
    // SAFETY: BAR 0 is the config page of the 2016 interface, which has five words.
    let word = |index: u64| unsafe { ptr::read_volatile((config + 8 * index) as *const u64) };
    let (max_clients, client_args, client_data_size, data_size) =
        (word(0), word(1), word(2), word(4));
    let clients = args.params[0];
    if clients > max_clients
        || client_data_size != 8 * client_args
        || data_size < clients * 64 * client_args
    {
        return WRONG_CONFIG;
    }
    for number in 0..args.events {
        for client in (0..clients).skip(cpu as usize).step_by(args.vcpus as usize) {
            let first = client << 32 | number;
            // The 2016 code steps a u64 pointer by client * client_data_size.
            let slot = data + 8 * client * client_data_size;
            for arg in 2..=client_args {
                // SAFETY: the address is inside the data region, whose size was checked.
                unsafe { store(slot + 8 * (arg - 2), first + arg, 8) };
            }
            let register = control + 8 * client;
            // SAFETY: each client has this register.
            unsafe {
                if number % 2 == 0 {
                    store(register, first, 8);
                } else {
                    store(register, first & 0xffff_ffff, 4);
                    store(register + 4, first >> 32, 4);
                }
            }
        }
    }
    0
}
