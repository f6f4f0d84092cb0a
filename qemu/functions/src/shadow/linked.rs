// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events of AArch64 guests, whose calls leave the return address in a register. A recorder that cannot read
//! the stack pointer reports these events.
//!
//! A call that keeps the return address in a register has no slot. A function that calls other functions
//! first stores its return address on the stack, and loads the return address again before the function
//! returns. The place of the stored return address is the function's slot. A function that calls no other
//! function has no slot: the shadow stack gives the function's frame a provisional place, just below the slot
//! of the calling function.

use super::stack::{Frame, Next, UNNAMED, named};
use super::track::Stacks;
use super::{Call, Return};
use crate::record::Record;

/// Event of a guest whose calls leave the return address in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// A call. The slot of a call is not used.
    Call(Call),
    /// A store of the return address at this place on the stack, a multiple of 8.
    Stored(u64),
    /// A load of the return address from this place.
    Loaded(u64),
    /// A return instruction, which jumps to the address in the register. The slot and the value of the
    /// [`Return`] are not used.
    Return(Return),
    /// The stack pointer got the value of another register.
    StackPointerSet,
}

/// Returns whether a slot is the place of a frame that has stored no return address.
fn is_provisional(slot: u64) -> bool {
    !slot.is_multiple_of(8)
}

/// Returns the provisional place of a frame within the function with this slot. The place is one byte below
/// the slot, so the place is above all lower slots.
fn within(slot: u64) -> u64 {
    if is_provisional(slot) { slot } else { slot.wrapping_sub(1) }
}

impl Stacks {
    /// Reports an event of a guest whose calls leave the return address in a register. A track has either
    /// [`Linked`] events, or calls and returns with slots.
    pub fn linked(&mut self, event: &Linked, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        match event {
            Linked::Call(call) => self.link(call, time, out),
            Linked::Stored(slot) => self.stored(*slot, out),
            Linked::Loaded(slot) => self.loaded(*slot, time, out),
            Linked::Return(ret) => self.ret_by_link(ret.at, time, out),
            Linked::StackPointerSet => self.stack_pointer_set(time, out),
        }
    }

    fn link(&mut self, call: &Call, time: u64, out: &mut impl FnMut(Record)) {
        self.counts.calls += 1;
        self.next = Next::Innermost;
        self.name(call.at);
        self.open.flush(out);
        let around = self.open.top().map_or(self.open.stack.last, |top| top.slot);
        let function = call.target.map_or(UNNAMED, named);
        let frame = Frame { slot: within(around), back: call.return_address, function, time };
        self.fresh = self.open.push(frame);
        self.counts.too_deep += u64::from(!self.fresh);
    }

    /// Handles a function's store of its return address. Only the function's first store after a call or a
    /// tail call counts.
    fn stored(&mut self, slot: u64, out: &mut impl FnMut(Record)) {
        let was_fresh = std::mem::take(&mut self.fresh);
        let was_loaded = std::mem::take(&mut self.next) == Next::Loaded;
        let Some(top) = self.open.top().filter(|_| self.open.stack.beyond == 0) else { return };
        if was_fresh {
            // The slot may show that other functions had ended before this function was called. The exits of
            // these functions come first, because this function's entry is not written yet.
            self.open.drop_top();
            self.arrive(slot, slot.saturating_add(1), top.time, out);
            // The calling function gets its name now, because a frame without a name must be the innermost
            // frame. The call's return address is in the calling function.
            self.name(top.back);
            self.open.push(Frame { slot, ..top });
        } else if was_loaded {
            // A tail call has reached the function that stores the address, because a call instruction would
            // have made a new frame.
            self.open.move_top(slot);
        }
    }

    fn loaded(&mut self, slot: u64, time: u64, out: &mut impl FnMut(Record)) {
        self.fresh = false;
        let is_deeper = |top: Frame| slot < top.slot;
        if self.open.stack.beyond != 0 && self.open.top().is_some_and(is_deeper) {
            return;
        }
        self.arrive(slot, slot, time, out);
        let is_its = |top: Frame| top.slot == slot || is_provisional(top.slot);
        if self.open.top().is_some_and(is_its) {
            self.open.stack.beyond = 0;
            self.next = Next::Loaded;
        } else {
            self.next = Next::Unknown;
        }
    }

    fn ret_by_link(&mut self, at: u64, time: u64, out: &mut impl FnMut(Record)) {
        self.counts.returns += 1;
        self.fresh = false;
        match std::mem::take(&mut self.next) {
            Next::Innermost | Next::Loaded => self.ret_without_slot(at, time, out),
            Next::Unknown if self.open.top().is_none() => self.counts.before += 1,
            Next::Unknown => {
                self.counts.unmatched += 1;
                self.name(at);
                self.open.flush(out);
            }
            Next::Ended => {}
        }
    }

    /// Ends a function that has stored no return address and changes the stack, such as `longjmp` or a
    /// function that switches to another stack. If the calling function has stored no return address either,
    /// then the calling function ends, too. For example, both functions end when `swapcontext` calls
    /// `setcontext`.
    fn stack_pointer_set(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        if self.open.stack.beyond != 0 {
            return;
        }
        // The loop has no more rounds than there were calls, because each round ends a frame that a call has
        // made.
        while self.open.top().is_some_and(|top| is_provisional(top.slot)) {
            self.counts.vanished += 1;
            self.pop(time, out);
            self.next = Next::Ended;
        }
    }
}
