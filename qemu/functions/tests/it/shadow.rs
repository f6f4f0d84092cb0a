//! Shadow stacks with sequences of calls and returns.

use crate::common;
use common::{KERNEL, OTHER, Track};
use hypertrace_functions::shadow::{Call, MAX_FRAMES, Return, Settings};

#[test]
fn calls_and_returns_are_entries_and_exits_with_their_depth() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b, ret 24, call 24 c, ret 24, ret 8");

    assert_eq!(track.close(), ["+a@10", " +b@20", " -b@30", " +c@40", " -c@50", "-a@60"]);
    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn recursion_is_one_function_at_several_depths() {
    let mut track = Track::new(Settings::default());
    for depth in 1..=3 {
        track.call(KERNEL - 16 * depth, 0xa);
    }
    for depth in (1..=3).rev() {
        track.ret(KERNEL - 16 * depth);
    }

    assert_eq!(track.close(), ["+a@10", " +a@20", "  +a@30", "  -a@40", " -a@50", "-a@60"]);
}

#[test]
fn a_jump_over_frames_ends_them_with_the_next_call() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b, call 40 c");
    // The guest jumps into a by longjmp, and then a calls d.
    track.does("call 24 d, ret 24, ret 8");

    let expected = ["+a@10", " +b@20", "  +c@30", "  -c@40", " -b@40", " +d@40", " -d@50", "-a@60"];
    assert_eq!(track.close(), expected);
    assert_eq!(track.stacks.counts().vanished, 2);
}

#[test]
fn a_jump_over_frames_ends_them_with_the_return_of_an_outer_function() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b, ret 8");

    let records = track.close();

    assert_eq!(records, ["+a@10", " +b@20", " -b@30", "-a@30"]);
}

#[test]
fn a_context_switch_ends_one_stack_and_begins_the_other_with_its_functions() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b");
    track.call(OTHER - 8, 0xc);
    track.ret(KERNEL - 24);
    track.ret(OTHER - 8);
    track.ret(KERNEL - 8);

    let records = track.close();

    // The guest leaves the stack of a and b at 30, and returns to this stack at 40. At 50 the guest returns
    // to `c` on the other stack, and at 60 to the first stack, on which only `a` is left.
    let expected = [
        "+a@10", " +b@20", " -b@30", "-a@30", "+c@30", "-c@40", "+a@40", " +b@40", " -b@40",
        "-a@50", "+c@50", "-c@50", "+a@60", "-a@60",
    ];
    assert_eq!(records, expected);
    assert_eq!(track.stacks.counts().switches, 4);
}

#[test]
fn stacks_of_programs_are_recognized_by_distance() {
    let (first, second) = (0x7fff_0000_0000, 0x7ffe_0000_0000);
    let mut track = Track::new(Settings::default());
    track.call(first, 0xa);
    // a has a frame of 100 kB.
    track.call(first - 100_000, 0xb);
    track.call(second, 0xc);
    track.ret(second);
    track.ret(first - 100_000);
    track.ret(first);

    let expected = [
        "+a@10", " +b@20", " -b@30", "-a@30", "+c@30", "-c@40", "+a@50", " +b@50", " -b@50",
        "-a@60",
    ];
    assert_eq!(track.close(), expected);
    assert_eq!(track.stacks.counts().switches, 2);
}

#[test]
fn processes_with_the_same_addresses_have_stacks_of_their_own() {
    let stack = 0x7fff_0000_0000;
    let mut track = Track::new(Settings::default());
    track.stacks.set_space(1);
    track.call(stack, 0xa);
    track.call(stack - 16, 0xb);
    // A child of fork runs, and returns from the same function.
    track.stacks.set_space(2);
    track.call(stack - 8, 0xc);
    track.ret(stack - 8);
    track.stacks.set_space(1);
    track.ret(stack - 16);
    track.ret(stack);

    let expected = [
        "+a@10", " +b@20", " -b@30", "-a@30", "+c@30", "-c@40", "+a@50", " +b@50", " -b@50",
        "-a@60",
    ];
    assert_eq!(track.close(), expected);
    assert_eq!(track.stacks.counts().switches, 2);
}

#[test]
fn the_same_space_again_is_no_other_stack() {
    let stack = 0x7fff_0000_0000;
    let mut track = Track::new(Settings::default());
    track.call(stack, 0xa);
    track.stacks.set_space(7);
    track.stacks.set_space(0);
    track.ret(stack);

    assert_eq!(track.close(), ["+a@10", "-a@20"]);
    assert_eq!(track.stacks.counts().switches, 0);
}

#[test]
fn functions_that_ended_while_another_stack_was_in_use_are_not_replayed() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b");
    track.call(OTHER - 8, 0xc);
    // The slot of d is the slot of b, so b has ended: another virtual CPU has run on the first stack
    // meanwhile.
    track.call(KERNEL - 24, 0xd);

    let expected = [
        "+a@10", " +b@20", " -b@30", "-a@30", "+c@30", "-c@40", "+a@40", " +d@40", " -d@50",
        "-a@50",
    ];
    assert_eq!(track.close(), expected);
}

#[test]
fn a_tail_call_ends_one_function_and_begins_another() {
    let mut track = Track::new(Settings::default());
    track.call(KERNEL - 8, 0xa);
    track.jump(0xb);
    // `b` jumps back to the first byte of `b`.
    track.jump(0xb);
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+a@10", "-a@20", "+b@20", "-b@40"]);
    assert_eq!(track.stacks.counts().tail_calls, 1);
}

#[test]
fn returns_of_functions_that_were_called_before_the_beginning_are_counted() {
    let mut track = Track::new(Settings::default());
    track.does("ret 40, ret 24, call 24 a, ret 24");

    assert_eq!(track.close(), ["+a@30", "-a@40"]);
    assert_eq!(track.stacks.counts().before, 2);
    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn the_function_of_an_indirect_call_is_named_by_what_it_executes() {
    let mut track = Track::new(Settings::default());
    let indirect = |at, slot| Call { at, slot, ..Call::default() };
    track.call_by(indirect(0x1000, KERNEL - 8));
    track.call_by(indirect(0x2000, KERNEL - 24));
    track.ret_by(Return { at: 0x3000, slot: Some(KERNEL - 24), value: None });
    track.ret_by(Return { at: 0x2010, slot: Some(KERNEL - 8), value: None });

    assert_eq!(track.close(), ["+2000@10", " +3000@20", " -3000@30", "-2000@40"]);
}

#[test]
fn a_function_that_ends_without_a_name_is_counted() {
    let mut track = Track::new(Settings::default());
    track.call(KERNEL - 8, 0xa);
    track.call_by(Call { at: 0x1000, slot: KERNEL - 24, ..Call::default() });
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+a@10", "-a@30"]);
    assert_eq!(track.stacks.counts().unnamed, 1);
}

#[test]
fn a_retpoline_that_was_jumped_to_is_a_tail_call() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 a, call 24 b, ret 24");
    track.stacks.call_ahead(KERNEL - 16);
    track.ret_by(Return { at: 0x5011, slot: Some(KERNEL - 16), value: Some(0x2000) });
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+a@10", " +b@20", " -b@30", "-a@40", "+2000@40", "-2000@50"]);
    assert_eq!((track.stacks.counts().thunks, track.stacks.counts().unmatched), (1, 0));
}

#[test]
fn the_function_of_a_retpoline_is_the_one_that_it_jumps_to() {
    let mut track = Track::new(Settings::default());
    // The guest calls __x86_indirect_thunk_rax. The thunk calls a place just ahead, and then jumps to the
    // function with a return instruction.
    track.call(KERNEL - 8, 0x5000);
    let thunk = Return { at: 0x5011, slot: Some(KERNEL - 16), value: Some(0x2000) };
    track.stacks.call_ahead(KERNEL - 16);
    track.ret_by(thunk);
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+2000@10", "-2000@30"]);
    assert_eq!(track.stacks.counts().thunks, 1);
}

#[test]
fn a_function_whose_first_event_is_a_jump_to_a_thunk_keeps_its_name() {
    let mut track = Track::new(Settings::default());
    track.call(KERNEL - 8, 0x1000);
    // jmp __x86_indirect_thunk_rax
    track.stacks.executed(0x1004);
    track.stacks.call_ahead(KERNEL - 16);
    track.ret_by(Return { at: 0x5011, slot: Some(KERNEL - 16), value: Some(0x2000) });
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+1000@10", "-1000@20", "+2000@20", "-2000@30"]);
}

#[test]
fn a_function_that_is_written_is_not_renamed_by_a_jump() {
    let mut track = Track::new(Settings::default());
    track.does("call 8 98, call 64 b");
    // The guest has left b by longjmp, and then the outer function jumps with a return instruction near its
    // beginning.
    track.ret_by(Return { at: 0x99, slot: Some(KERNEL - 16), value: Some(0x2000) });
    track.ret(KERNEL - 8);

    assert_eq!(track.close(), ["+98@10", " +b@20", " -b@30", "-98@40"]);
    assert_eq!(track.stacks.counts().thunks, 0);
}

#[test]
fn a_return_address_that_was_replaced_ends_its_function() {
    let mut track = Track::new(Settings::default());
    let call = Call { at: 1, slot: KERNEL - 8, return_address: 0x1005, target: Some(0xa) };
    track.call_by(call);
    track.ret_by(Return { at: 0xa, slot: Some(KERNEL - 8), value: Some(0x7777) });

    assert_eq!(track.close(), ["+a@10", "-a@20"]);
    assert_eq!(track.stacks.counts().changed, 1);
}

#[test]
fn a_function_that_moves_to_another_stack_ends_by_its_return_address() {
    let mut track = Track::new(Settings::default());
    let call = Call { at: 1, slot: KERNEL - 8, return_address: 0x1005, target: Some(0xa) };
    track.call_by(call);
    // error_entry pops its return address, changes the stack, and pushes the address there.
    track.ret_by(Return { at: 0xa, slot: Some(OTHER - 200), value: Some(0x1005) });
    track.call(OTHER - 200, 0xb);
    track.ret(OTHER - 200);

    assert_eq!(track.close(), ["+a@10", "-a@20", "+b@30", "-b@40"]);
    assert_eq!(track.stacks.counts().moved, 1);
}

#[test]
fn a_function_that_moves_its_return_address_ends_with_it() {
    let mut track = Track::new(Settings::default());
    let call = Call { at: 1, slot: KERNEL - 8, return_address: 0x1005, target: Some(0xa) };
    track.call_by(call);
    track.does("call 208 b, ret 208");
    // error_entry moves its return address down the stack, because its registers are saved at the old place.
    track.ret_by(Return { at: 0xa, slot: Some(KERNEL - 128), value: Some(0x1005) });

    assert_eq!(track.close(), ["+a@10", " +b@20", " -b@30", "-a@40"]);
    assert_eq!((track.stacks.counts().moved, track.stacks.counts().unmatched), (1, 0));
}

#[test]
fn a_function_that_returns_by_a_thunk_is_named_before() {
    let mut track = Track::new(Settings::default());
    track.call_by(Call { at: 1, slot: KERNEL - 8, ..Call::default() });
    track.stacks.executed(0x2004);
    track.ret_by(Return { at: 0x7000, slot: Some(KERNEL - 8), value: None });

    assert_eq!(track.close(), ["+2004@10", "-2004@20"]);
}

#[test]
fn tasks_that_are_switched_by_one_call_keep_their_functions() {
    let switch = |slot| Call { at: 1, slot, return_address: 0x1005, target: Some(0xa) };
    let back = |slot| Return { at: 0xa, slot: Some(slot), value: Some(0x1005) };
    let mut track = Track::new(Settings::default());
    track.call_by(switch(OTHER - 8));
    track.call_by(switch(KERNEL - 8));
    track.ret_by(back(OTHER - 8));
    track.ret_by(back(KERNEL - 8));

    let expected = ["+a@10", "-a@20", "+a@20", "-a@30", "+a@30", "-a@30", "+a@40", "-a@40"];
    assert_eq!(track.close(), expected);
    assert_eq!(track.stacks.counts().moved, 0);
}

#[test]
fn without_slots_of_returns_the_next_call_corrects() {
    let mut track = Track::new(Settings::default());
    let back = Return { at: 0x98, slot: None, value: None };
    track.does("call 8 a, call 24 b, call 40 c");
    // longjmp goes from `c` back into `a` with a return instruction. The track takes this return for the
    // return of `c`, because the return has no slot.
    track.ret_by(back);
    track.call(KERNEL - 24, 0xd);
    track.ret_by(back);
    track.ret_by(back);
    track.ret_by(back);

    let expected = ["+a@10", " +b@20", "  +c@30", "  -c@40", " -b@50", " +d@50", " -d@60", "-a@70"];
    assert_eq!(track.close(), expected);
    assert_eq!(track.stacks.counts().before, 1);
}

#[test]
fn functions_shorter_than_the_minimum_are_left_out() {
    let mut track = Track::new(Settings { min: 25, ..Settings::default() });
    track.does("call 8 a, call 24 b, ret 24, call 24 c, call 40 d, ret 40, ret 24, ret 8");

    let records = track.close();

    assert_eq!(records, ["+a@10", " +c@40", " -c@70", "-a@80"]);
}

#[test]
fn depths_beyond_the_filter_are_left_out() {
    let mut track = Track::new(Settings { depth: 2, ..Settings::default() });
    for depth in 1..=3 {
        track.call(KERNEL - 16 * depth, depth);
    }
    for depth in (1..=3).rev() {
        track.ret(KERNEL - 16 * depth);
    }

    let records = track.close();

    assert_eq!(records, ["+1@10", " +2@20", " -2@50", "-1@60"]);
}

#[test]
fn a_region_begins_with_the_whole_stack() {
    let mut track = Track::new(Settings { paused: true, ..Settings::default() });
    track.does("call 8 a, call 24 b");
    track.replay();
    track.does("call 40 c, ret 40");
    track.pause();
    track.does("ret 24, ret 8");

    let records = track.close();

    assert_eq!(records, ["+a@30", " +b@30", "  +c@40", "  -c@50", " -b@60", "-a@60"]);
}

#[test]
fn recursion_beyond_the_bound_is_counted_and_does_not_disturb_the_rest() {
    let deep = 3 * MAX_FRAMES as u64;
    let top = 0x7fff_0000_0000;
    let mut track = Track::new(Settings::default());
    (1..=deep).for_each(|depth| track.call(top - 16 * depth, 0xa));
    (1..=deep).rev().for_each(|depth| track.ret(top - 16 * depth));
    track.call(top - 16, 0xb);
    track.ret(top - 16);

    let records = track.close();

    assert_eq!(records.len(), 2 * MAX_FRAMES + 2);
    let counts = track.stacks.counts();
    assert_eq!(counts.too_deep, deep - MAX_FRAMES as u64);
    assert_eq!((counts.unmatched, counts.before, counts.vanished), (0, 0, 0));
}

#[test]
fn stacks_that_are_swapped_without_end_take_bounded_memory() {
    let mut track = Track::new(Settings { stacks: 4, ..Settings::default() });
    for stack in 0..1000 {
        track.call(KERNEL + 0x4000 * stack - 8, 0xa);
    }

    let records = track.close();

    assert_eq!(records.len(), 2000);
    assert_eq!(track.stacks.counts().evicted, 996);
}

#[test]
fn the_least_recently_used_stack_is_forgotten() {
    let stack = |number: u64| KERNEL + 0x4000 * number - 8;
    let mut track = Track::new(Settings { stacks: 2, ..Settings::default() });
    track.call(stack(0), 0xa);
    track.call(stack(1), 0xb);
    track.call(stack(0) - 8, 0xc);
    track.call(stack(2), 0xd);
    track.ret(stack(0) - 8);
    track.ret(stack(0));

    track.close();

    assert_eq!(track.stacks.counts().before, 0);
    assert_eq!(track.stacks.counts().evicted, 1);
}

#[test]
fn a_wild_stack_pointer_is_another_stack() {
    let mut track = Track::new(Settings::default());
    track.call(KERNEL - 8, 0xa);
    for slot in [0, 7, u64::MAX, 1 << 63, u64::MAX - 8, 0x1234_5678_9abc] {
        track.call(slot, 0xb);
        track.ret(slot);
        track.ret(slot);
    }
    track.ret(KERNEL - 8);

    track.close();

    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn times_that_run_backwards_are_replaced_by_later_ones() {
    let mut track = Track::new(Settings::default());
    track.time = 100;
    track.call(KERNEL - 8, 0xa);
    track.time = 40;
    track.call(KERNEL - 24, 0xb);

    assert_eq!(track.close(), ["+a@110", " +b@111", " -b@112", "-a@112"]);
    assert_eq!(track.stacks.counts().backwards, 2);
}

#[test]
fn in_a_track_of_all_levels_a_program_stays_open_around_the_kernel() {
    let program = 0x7fff_0000_0000;
    let mut track = Track::new(Settings { nested: true, ..Settings::default() });
    track.call(program, 0xa);
    track.does("call 8 b, call 24 c, ret 24, ret 8");
    track.ret(program);

    assert_eq!(track.close(), ["+a@10", " +b@20", "  +c@30", "  -c@40", " -b@50", "-a@60"]);
}

#[test]
fn in_a_track_of_all_levels_another_task_ends_the_program() {
    let (program, another) = (0x7fff_0000_0000, 0x7ffe_0000_0000);
    let mut track = Track::new(Settings { nested: true, ..Settings::default() });
    track.call(program, 0xa);
    track.call(KERNEL - 8, 0xb);
    track.ret(OTHER - 8);
    track.call(another, 0xc);
    track.ret(OTHER - 100);
    track.ret(KERNEL - 8);
    track.ret(program);

    let expected = [
        "+a@10", " +b@20", " -b@30", "-a@30", "+c@40", "-c@60", "+b@60", "-b@60", "+a@70", "-a@70",
    ];
    assert_eq!(track.close(), expected);
}
