//! Events of the [interface of 2016](hypertrace_abi::legacy).

use crate::client::Client;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::Words;
use hypertrace_abi::legacy;
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::NewRecord;

/// Records an event of the 2016 interface on this client: `arg1`, and as many of `args` as the device was
/// built for; missing arguments are zero. The event costs one exit. If stores do not trap, or a kernel module
/// lends the client, the event is a commit.
pub fn hypertrace(client: &Client<'_>, arg1: u64, args: &[u64]) {
    hypertrace_of(client, client.index(), arg1, args);
}

/// Records an event as [`hypertrace()`] does, under a client number that the program chooses, as the 2016
/// interface allows.
pub(crate) fn hypertrace_of(client: &Client<'_>, number: u32, arg1: u64, args: &[u64]) {
    let channel = client.channel();
    let args = &args[..args.len().min(channel.geometry.legacy_args as usize - 1)];
    let slot = legacy::slot(channel.data, number, &channel.geometry);
    let trapping = channel.control.filter(|_| channel.traps() && !channel.is_lent);
    let Some((control, slot)) = trapping.zip(slot) else {
        let count = 1 + args.len() as u64;
        let prefix = [number.into(), count, arg1];
        let record = NewRecord::of_id(id::HYPERTRACE, [Words(&prefix), Words(args)])
            .with_flags(Flags::REFERENCE_POINT);
        client.emit_waiting(|| client.producer().try_emit(record, ticks));
        return;
    };
    for (i, word) in slot.iter().enumerate() {
        word.store(args.get(i).copied().unwrap_or(0), Relaxed);
    }
    // ORDERING: the store to the register traps, and must come after the stores to the slot. x86 keeps stores
    // in order; other architectures need the fence.
    fence(Ordering::SeqCst);
    control.legacy(number, arg1);
}
