//! Regions whose time is spent in known ways, with readings of the guest's clock.
#![allow(unsafe_code)]

use core::hint::spin_loop;

use hypertrace::abi::clock::ticks;
use hypertrace::{Client, event, reference_point, region};

use crate::spend::{AFTER, AWAY, BEFORE, BEGAN, COMPETE, COMPETED, COMPUTE, RAN, SLEEP};
use crate::{Args, Board, store};

pub fn run(cpu: u32, args: &Args, board: &Board, client: &Client<'_>) -> u32 {
    let [page, busy, gap, _] = args.params;
    let mut clock = Spinner { gap, ran: 0, away: 0 };
    // SAFETY: the argument `page` is the address at which the VMM has this device.
    let register = |register: u64, value: u64| unsafe { store(page + register, value, 8) };
    let before = || {
        // This point relates the clocks, outside of all regions.
        let _ = reference_point!(client: client, "next");
        register(BEFORE, 0);
    };
    // Reports the guest's time just after the beginning of a region and just before its end.
    let note = |(began, ended): (u64, u64)| {
        register(AFTER, ended);
        register(BEGAN, began);
    };
    for round in 1..=args.events {
        before();
        note({
            let _region = region!(client: client, "computed", id = round);
            let began = ticks();
            clock.spin(busy);
            (began, ticks())
        });

        before();
        note({
            let _region = region!(client: client, "handled", id = round);
            let began = ticks();
            register(COMPUTE, round);
            (began, ticks())
        });

        before();
        note({
            let _region = region!(client: client, "slept", id = round);
            let began = ticks();
            register(SLEEP, round);
            (began, ticks())
        });

        before();
        note({
            let _region = region!(client: client, "competed", id = round);
            let began = ticks();
            register(COMPETE, round);
            while board.results(cpu)[COMPETED] < round {
                spin_loop();
            }
            (began, ticks())
        });
    }
    board.post(cpu, RAN, clock.ran);
    board.post(cpu, AWAY, clock.away);
    0
}

pub fn pause(args: &Args, client: &Client<'_>) -> u32 {
    // This point relates the clocks.
    let _ = reference_point!(client: client, "begin");
    let mut last = ticks();
    for round in 1..=args.events {
        while ticks() - last < args.params[0] {
            spin_loop();
        }
        event!(client: client, "sparse", round);
        last = ticks();
    }
    0
}

/// A loop that reads the clock. Two readings that are far apart show that the guest did not run between them.
struct Spinner {
    gap: u64,
    ran: u64,
    away: u64,
}

impl Spinner {
    /// Spins until the guest has run for this many further ticks.
    fn spin(&mut self, ticks_more: u64) {
        let until = self.ran + ticks_more;
        let mut last = ticks();
        while self.ran < until {
            spin_loop();
            let now = ticks();
            let since = now - last;
            if since < self.gap {
                self.ran += since
            } else {
                self.away += since
            }
            last = now;
        }
    }
}
