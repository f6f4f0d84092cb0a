//! Shadow stacks of a recorder that observes only some functions. The tests observe the functions at 0xa0 to
//! 0xbf.

use crate::common;
use common::{KERNEL, Track};
use hypertrace_functions::shadow::{Call, Jump, Return, Settings};

fn track() -> Track {
    Track::new(Settings { named_at_start: true, ..Settings::default() })
}

/// Calls a function through a pointer.
fn call_by_pointer(track: &mut Track, slot: u64, back: u64) {
    track.call_by(Call { at: back - 1, slot, return_address: back, target: None });
}

fn jump(track: &mut Track, target: Option<u64>) {
    track.time += 10;
    let jump = Jump { at: 0xa7, target };
    track.stacks.jump(&jump, track.time, &mut |record| track.records.push(record));
}

#[test]
fn an_observed_function_is_named_where_it_begins() {
    let mut track = track();
    call_by_pointer(&mut track, KERNEL - 8, 0x30);
    track.stacks.begins(0xa0);
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+a0@10", "-a0@20"]);
    assert_eq!(track.stacks.counts().unnamed, 0);
}

#[test]
fn other_functions_by_a_pointer_are_not_recorded() {
    let mut track = track();
    // The guest calls a function through a pointer. The plugin does not observe this function or its return,
    // but the function calls an observed function.
    call_by_pointer(&mut track, KERNEL - 8, 0x30);
    track.does("call 24 b0, ret 24");
    call_by_pointer(&mut track, KERNEL - 8, 0x35);
    track.does("call 24 b0, ret 24");

    assert_eq!(track.close(), ["+b0@20", "-b0@30", "+b0@50", "-b0@60"]);
    let counts = track.stacks.counts();
    assert_eq!((counts.unnamed, counts.unmatched, counts.before), (2, 0, 0));
}

#[test]
fn an_observed_function_does_not_name_the_other_one_that_it_has_called() {
    let mut track = track();
    track.call(KERNEL - 8, 0xa0);
    call_by_pointer(&mut track, KERNEL - 24, 0xa5);
    // A function that is not observed has run, and has returned to the observed function. The return address
    // 0xa5 is the beginning of a block of code.
    track.stacks.begins(0xa5);
    // The next call's slot is deeper, as if the function had pushed a register.
    track.does("call 40 b0, ret 40, ret 8");

    assert_eq!(track.close(), ["+a0@10", " +b0@30", " -b0@40", "-a0@50"]);
}

#[test]
fn a_block_later_in_an_observed_function_names_nothing() {
    let mut track = track();
    track.call(KERNEL - 8, 0xa0);
    call_by_pointer(&mut track, KERNEL - 24, 0xa5);
    track.stacks.begins(0xb0);
    track.stacks.begins(0xb5);
    track.ret_by(Return { at: 0xb8, slot: Some(KERNEL - 24), value: Some(0xa5) });
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+a0@10", " +b0@20", " -b0@30", "-a0@40"]);
}

#[test]
fn a_jump_to_another_function_ends_an_observed_one() {
    let mut track = track();
    track.call(KERNEL - 8, 0xa0);
    jump(&mut track, Some(0xb0));
    jump(&mut track, None);
    assert_eq!(track.stacks.innermost(), None);
    track.does("call 8 a0, ret 8");

    assert_eq!(track.close(), ["+a0@10", "-a0@20", "+b0@20", "-b0@30", "+a0@40", "-a0@50"]);
    assert_eq!(track.stacks.counts().vanished, 0);
}
