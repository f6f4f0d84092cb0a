//! Shadow stacks of calls whose return address is in a register, for a recorder that cannot read the stack
//! pointer.

use crate::common;
use common::Track;
use hypertrace_functions::shadow::{Call, Linked, MAX_FRAMES, Return, Settings};

/// Tops of a program's stack, and of another stack.
const STACK: u64 = 0x7fff_0000_0000;
const OTHER: u64 = 0x7ffe_0000_0000;

fn track() -> Track {
    Track::new(Settings::default())
}

/// Actions of a guest.
trait Guest {
    /// Calls a function that does not store its return address yet.
    fn link(&mut self, target: u64);
    fn store(&mut self, slot: u64);
    fn load(&mut self, slot: u64);
    fn back(&mut self);
    /// Calls a function that stores its return address.
    fn enter(&mut self, slot: u64, target: u64);
    /// Returns from a function that has stored its return address.
    fn leave(&mut self, slot: u64);
    fn set_stack_pointer(&mut self);
}

impl Guest for Track {
    fn link(&mut self, target: u64) {
        self.linked(Linked::Call(Call { at: 0x99, target: Some(target), ..Call::default() }));
    }

    fn store(&mut self, slot: u64) {
        self.linked(Linked::Stored(slot));
    }

    fn load(&mut self, slot: u64) {
        self.linked(Linked::Loaded(slot));
    }

    fn back(&mut self) {
        self.linked(Linked::Return(Return { at: 0x98, ..Return::default() }));
    }

    fn enter(&mut self, slot: u64, target: u64) {
        self.link(target);
        self.store(slot);
    }

    fn leave(&mut self, slot: u64) {
        self.load(slot);
        self.back();
    }

    fn set_stack_pointer(&mut self) {
        self.linked(Linked::StackPointerSet);
    }
}

#[test]
fn functions_with_and_without_slots_are_entries_and_exits() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.link(0xb);
    track.back();
    track.enter(STACK - 32, 0xc);
    track.leave(STACK - 32);
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@30", " -b@40", " +c@50", " -c@80", "-a@100"]);
    let counts = track.stacks.counts();
    assert_eq!((counts.unmatched, counts.vanished, counts.before), (0, 0, 0));
}

#[test]
fn a_jump_over_frames_ends_them_before_the_next_call_that_has_a_slot() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.enter(STACK - 32, 0xb);
    track.enter(STACK - 64, 0xc);
    // c calls longjmp, which jumps into a.
    track.link(0xd);
    track.set_stack_pointer();
    track.link(0xe);
    track.back();
    track.enter(STACK - 32, 0xf);
    track.leave(STACK - 32);
    track.leave(STACK);

    let expected = [
        "+a@10",
        " +b@30",
        "  +c@50",
        "   +d@70",
        "   -d@80",
        "   +e@90",
        "   -e@100",
        "  -c@110",
        " -b@110",
        " +f@110",
        " -f@140",
        "-a@160",
    ];
    assert_eq!(track.close(), expected);
    assert_eq!((track.stacks.counts().unmatched, track.stacks.counts().vanished), (0, 3));
}

#[test]
fn a_jump_over_frames_ends_them_with_the_return_of_an_outer_function() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.enter(STACK - 32, 0xb);
    // longjmp ends with a `ret`, but this `ret` is not the return of b.
    track.link(0xc);
    track.set_stack_pointer();
    track.back();
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@30", "  +c@50", "  -c@60", " -b@80", "-a@90"]);
    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn a_function_that_restores_the_stack_pointer_of_its_own_frame_goes_on() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.set_stack_pointer();
    track.link(0xb);
    track.back();
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@40", " -b@50", "-a@70"]);
}

#[test]
fn recursion_that_jumps_back_without_end_takes_no_depth() {
    let mut track = track();
    track.enter(STACK, 0xa);
    for _ in 0..3 * MAX_FRAMES {
        track.link(0xb);
        track.set_stack_pointer();
    }

    assert_eq!(track.stacks.depth(), 1);
}

#[test]
fn another_stack_is_found_by_the_first_store() {
    let mut track = track();
    track.enter(STACK, 0xa);
    // swapcontext
    track.link(0xb);
    track.set_stack_pointer();
    track.enter(OTHER, 0xc);
    track.link(0xb);
    track.set_stack_pointer();
    track.leave(STACK);
    track.leave(OTHER);

    let expected = [
        "+a@10", " +b@30", " -b@40", "-a@50", "+c@50", " +b@70", " -b@80", "-c@90", "+a@90",
        "-a@100", "+c@110", "-c@120",
    ];
    assert_eq!(track.close(), expected);
    assert_eq!((track.stacks.counts().switches, track.stacks.counts().unmatched), (3, 0));
}

#[test]
fn a_switch_of_the_stack_by_a_function_of_another_ends_both() {
    let mut track = track();
    track.enter(STACK, 0xa);
    for _ in 0..3 * MAX_FRAMES {
        // The guest calls swapcontext, which keeps its return address outside of the stack, and then
        // setcontext.
        track.link(0xb);
        track.link(0xc);
        track.set_stack_pointer();
        track.back();
    }

    assert_eq!(track.stacks.depth(), 1);
    assert_eq!(track.stacks.counts().too_deep, 0);
}

#[test]
fn a_tail_call_of_a_function_with_a_larger_frame_moves_the_slot() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.enter(STACK - 32, 0xb);
    track.load(STACK - 32);
    // b c
    track.store(STACK - 64);
    track.link(0xd);
    track.back();
    track.leave(STACK - 64);
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@30", "  +d@70", "  -d@80", " -b@100", "-a@120"]);
    assert_eq!((track.stacks.counts().unmatched, track.stacks.counts().vanished), (0, 0));
}

#[test]
fn a_tail_call_that_is_reported_has_its_own_slot() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.enter(STACK - 32, 0xb);
    track.load(STACK - 32);
    track.jump(0xc);
    track.store(STACK - 64);
    track.leave(STACK - 64);
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@30", " -b@60", " +c@60", " -c@90", "-a@110"]);
    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn a_second_store_does_not_move_the_slot() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.store(STACK + 16);
    track.store(STACK - 16);
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", "-a@60"]);
    assert_eq!(track.stacks.counts().unmatched, 0);
}

#[test]
fn a_signal_handler_that_nobody_called_ends_no_function() {
    let mut track = track();
    track.enter(STACK, 0xa);
    track.enter(STACK - 32, 0xb);
    // A signal comes between two instructions of b.
    track.store(STACK - 0x2000);
    track.link(0xc);
    track.back();
    track.leave(STACK - 0x2000);
    track.leave(STACK - 32);
    track.leave(STACK);

    assert_eq!(track.close(), ["+a@10", " +b@30", "  +c@60", "  -c@70", " -b@110", "-a@130"]);
    assert_eq!(track.stacks.counts().unmatched, 1);
}

#[test]
fn a_function_without_a_slot_calls_others() {
    let mut track = track();
    track.enter(STACK, 0xa);
    // `b` keeps the return address of `b` in another register.
    track.link(0xb);
    track.enter(STACK - 32, 0xc);
    track.leave(STACK - 32);
    track.link(0xd);
    track.back();
    track.back();
    track.leave(STACK);

    let records = track.close();

    let expected =
        ["+a@10", " +b@30", "  +c@40", "  -c@70", "  +d@80", "  -d@90", " -b@100", "-a@120"];
    assert_eq!(records, expected);
    assert_eq!((track.stacks.counts().unmatched, track.stacks.counts().vanished), (0, 0));
}

#[test]
fn functions_before_the_first_slot_are_ended_by_it() {
    let mut track = track();
    track.link(0xa);
    track.link(0xb);
    track.store(STACK);
    track.leave(STACK);
    track.back();

    assert_eq!(track.close(), ["+a@10", "-a@20", "+b@20", "-b@50"]);
    assert_eq!((track.stacks.counts().vanished, track.stacks.counts().before), (1, 1));
}

#[test]
fn recursion_beyond_the_bound_does_not_disturb_the_rest() {
    let deep = 3 * MAX_FRAMES as u64;
    let mut track = track();
    (1..=deep).for_each(|depth| track.enter(STACK - 16 * depth, 0xa));
    (1..=deep).rev().for_each(|depth| track.leave(STACK - 16 * depth));
    track.enter(STACK - 16, 0xb);
    track.leave(STACK - 16);

    let records = track.close();

    assert_eq!(records.len(), 2 * MAX_FRAMES + 2);
    let counts = track.stacks.counts();
    assert_eq!(counts.too_deep, deep - MAX_FRAMES as u64);
    assert_eq!((counts.unmatched, counts.before, counts.vanished), (0, 0, 0));
}

#[test]
fn a_jump_out_of_recursion_beyond_the_bound_is_corrected() {
    let deep = 2 * MAX_FRAMES as u64;
    let mut track = track();
    track.enter(STACK, 0xa);
    (1..=deep).for_each(|depth| track.enter(STACK - 16 * depth, 0xb));
    track.leave(STACK);

    track.close();

    assert_eq!(track.stacks.depth(), 0);
    assert_eq!(track.stacks.counts().unmatched, 0);
}
