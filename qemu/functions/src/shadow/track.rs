// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The shadow stacks of one track. The track's calls and returns change the shadow stacks.

use std::fmt;

use super::open::Open;
use super::stack::{Frame, MAX_FRAMES, Next, Region, Stack, UNNAMED, named};
use super::{Call, Counts, Jump, Return, Settings};
use crate::record::Record;

/// Shadow stacks of a track.
///
/// Each function passes the records of an event to `out`, in the order of time. If an event's time is not
/// later than the last event's time, then the event's time becomes the last time plus 1 ns.
pub struct Stacks {
    settings: Settings,
    pub(super) counts: Counts,
    pub(super) open: Open,
    /// Time of the last event
    time: u64,
    /// Number of changes of stack
    turn: u64,
    /// Slot of the last call of a place just ahead, until a return uses the slot; otherwise 0
    ahead: u64,
    /// Whether the last event was the call of the innermost function, or a thunk's jump to the innermost
    /// function. In this case, the function's entry is not written yet
    pub(super) fresh: bool,
    /// For calls without slots: the function that the next return instruction ends
    pub(super) next: Next,
}

impl Stacks {
    /// Makes the shadow stacks of a track, with all memory that the stacks will ever use.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Settings {
            stacks: settings.stacks.max(1),
            kernel_stack_bits: settings.kernel_stack_bits.min(62),
            depth: settings.depth.min(MAX_FRAMES),
            ..settings
        };
        let open = Open::new(&settings);
        Stacks {
            settings,
            counts: Counts::default(),
            open,
            time: 0,
            turn: 0,
            ahead: 0,
            fresh: false,
            next: Next::default(),
        }
    }

    /// Returns the counts of this track.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of known functions on the current stack.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.open.stack.len
    }

    /// Returns the index of the current stack, if this stack is a kernel's.
    #[must_use]
    pub fn kernel_stack(&self) -> Option<u64> {
        match self.open.stack.region {
            Region::Kernel(number) => Some(number),
            _ => None,
        }
    }

    /// Reports the thread that now runs. From now on, each stack that is not a kernel's belongs to this
    /// thread. Different processes may use the same addresses. In a whole machine, the [kernel's
    /// stack](Self::kernel_stack) from which a virtual CPU returned to the program identifies the program's
    /// thread.
    #[inline]
    pub fn set_space(&mut self, space: u64) {
        if space != self.open.space() {
            self.open.set_space(space);
        }
    }

    /// Reports a call.
    #[inline]
    pub fn call(&mut self, call: &Call, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.counts.calls += 1;
        match self.open.top() {
            Some(top) if call.slot < top.slot && self.open.holds(call.slot) => {
                self.open.stack.last = call.slot;
            }
            // If a frame already has the call's slot, then `arrive` ends this frame's function, too, because
            // the call overwrites the function's return address.
            _ => self.arrive(call.slot, call.slot.saturating_add(1), time, out),
        }
        self.name(call.at);
        self.open.flush(out);
        let function = call.target.map_or(UNNAMED, named);
        let frame = Frame { slot: call.slot, back: call.return_address, function, time };
        self.fresh = self.open.push(frame);
        self.counts.too_deep += u64::from(!self.fresh);
    }

    /// Reports a call of a place just ahead ([`CallAhead`](crate::decode::InstructionKind::CallAhead)). A
    /// retpoline calls a place just ahead, overwrites the return address with a function's address, and
    /// returns to that function.
    #[inline]
    pub fn call_ahead(&mut self, slot: u64) {
        self.ahead = slot;
    }

    /// Reports an instruction that is neither a call nor a return, such as a jump to a thunk that returns.
    /// After an indirect call, this instruction's address names the function. Without this report, the
    /// thunk's address would name the function.
    #[inline]
    pub fn executed(&mut self, at: u64) {
        self.name(at);
        // If a thunk's return follows, then this function has jumped to the thunk, and has not called the
        // thunk.
        self.fresh = false;
    }

    /// Reports that the guest executes a function's first instruction, or the instruction to which a call has
    /// returned. With [`Settings::named_at_start`], a function's first instruction names the function of an
    /// indirect call.
    #[inline]
    pub fn begins(&mut self, at: u64) {
        // Only the first event after a call can name the called function. If the first event is another
        // event, then the called function is not recorded.
        let called = self.open.unnamed().filter(|called| self.fresh && called.back != at);
        match called {
            Some(_) => self.open.rename(at),
            None => self.forget_unnamed(),
        }
    }

    /// Reports a return.
    #[inline]
    pub fn ret(&mut self, ret: &Return, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.counts.returns += 1;
        let Some(slot) = ret.slot else {
            return self.ret_without_slot(ret.at, time, out);
        };
        match self.open.top() {
            Some(top) if top.slot == slot && self.open.holds(slot) => {
                self.open.stack.last = slot;
                self.ret_innermost(top, ret, time, out);
            }
            _ => self.ret_at(ret, slot, time, out),
        }
    }

    /// Ends the innermost function, because the function returns.
    #[inline]
    fn ret_innermost(&mut self, top: Frame, ret: &Return, time: u64, out: &mut impl FnMut(Record)) {
        let changed = ret.value.is_some_and(|value| top.back != 0 && top.back != value);
        self.counts.changed += u64::from(changed);
        self.name_returning(ret.at);
        self.pop(time, out);
    }

    /// Handles a return whose slot is not the slot of the innermost function.
    #[cold]
    fn ret_at(&mut self, ret: &Return, slot: u64, time: u64, out: &mut impl FnMut(Record)) {
        let is_here = self.open.holds(slot) || self.open.reaches(slot, &self.settings);
        if !is_here && self.ret_after_move(ret, slot, time, out) {
            return;
        }
        self.arrive(slot, slot, time, out);
        let was_fresh = std::mem::take(&mut self.fresh);
        match self.open.top() {
            Some(top) if top.slot == slot => self.ret_innermost(top, ret, time, out),
            Some(top) => self.ret_below(top, ret, slot, was_fresh, time, out),
            None => self.counts.before += 1,
        }
    }

    /// Reports a tail call: the innermost function ends, and another function begins in its place.
    pub fn jump(&mut self, jump: &Jump, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.name(jump.at);
        let Some(top) = self.open.top() else { return };
        // Nothing changes if the function is too deep to be recorded, or loops to its own beginning.
        if self.open.stack.beyond != 0 || Some(top.function) == jump.target {
            return;
        }
        self.counts.tail_calls += 1;
        match jump.target {
            Some(target) => self.replace(top, target, out),
            None => self.pop(time, out),
        }
    }

    /// Returns whether the innermost function's return address is in this slot. If the address is in this
    /// slot, [`Return::value`] is not needed.
    #[must_use]
    #[inline]
    pub fn expects(&self, slot: u64) -> bool {
        self.open.holds(slot) && self.open.top().is_some_and(|top| top.slot == slot)
    }

    /// Returns the address that serves as the name of the innermost function.
    #[must_use]
    pub fn innermost(&self) -> Option<u64> {
        self.open.top().map(|top| top.function).filter(|function| *function != UNNAMED)
    }

    /// If the innermost function has no name, makes `at`, an address in the function, the name.
    #[inline]
    pub(super) fn name(&mut self, at: u64) {
        match self.settings.named_at_start {
            true => self.forget_unnamed(),
            false => self.open.name(at),
        }
    }

    /// If the innermost function has no name, makes `at`, the address of the function's return instruction,
    /// the name.
    #[inline]
    fn name_returning(&mut self, at: u64) {
        if !self.settings.named_at_start {
            self.open.name(at);
        }
    }

    /// Forgets the innermost function if it has no name, because such a function is not recorded, or has
    /// returned.
    #[inline]
    fn forget_unnamed(&mut self) {
        if self.open.unnamed().is_some() {
            self.counts.unnamed += 1;
            self.open.drop_top();
            self.fresh = false;
        }
    }

    /// Ends the innermost function, and begins another function in its place.
    fn replace(&mut self, top: Frame, target: u64, out: &mut impl FnMut(Record)) {
        let time = self.time;
        self.pop(time, out);
        self.fresh = self.open.push(Frame { function: named(target), time, ..top });
    }

    /// Stops recording: functions whose entries are written get exits. The shadow stacks still follow calls
    /// and returns.
    pub fn pause(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.open.pause(time, out);
    }

    /// Begins to record again, with entries of all functions on the current stack.
    pub fn replay(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        if self.open.is_paused() {
            // An entry that is written cannot get another name.
            self.fresh = false;
            self.open.replay(time, out);
        }
    }

    /// Ends the track: functions whose entries are written get exits, and all stacks are forgotten.
    pub fn close(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.open.suspend(time, out);
        self.open.clear();
        self.fresh = false;
    }

    #[inline]
    pub(super) fn advance(&mut self, time: u64) -> u64 {
        self.counts.backwards += u64::from(time < self.time);
        // No two events have the same time. Therefore a reader can distinguish the entry of a call from an
        // entry that was written because a stack is in use again.
        self.time = time.max(self.time.saturating_add(1));
        self.time
    }

    /// If a slot is on another stack, makes the other stack the current stack. Ends the frames below `end`.
    #[inline]
    pub(super) fn arrive(&mut self, slot: u64, end: u64, time: u64, out: &mut impl FnMut(Record)) {
        if !self.open.holds(slot) && !self.open.reaches(slot, &self.settings) {
            self.switch(slot, end, time, out);
        }
        self.open.stack.last = slot;
        // Each round ends a frame that a call has made, so there are no more rounds than calls.
        while self.open.top().is_some_and(|top| top.slot < end) {
            self.counts.vanished += 1;
            self.pop(time, out);
        }
    }

    /// Ends the innermost function.
    #[inline]
    pub(super) fn pop(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        self.fresh = false;
        let was_named = self.open.pop(time, out);
        self.counts.unnamed += u64::from(!was_named);
    }

    /// Makes the stack of a slot the current stack. If the stack is known, its frames below `end` are
    /// dropped; otherwise the stack is empty.
    #[cold]
    fn switch(&mut self, slot: u64, end: u64, time: u64, out: &mut impl FnMut(Record)) {
        // All entries are written now, and an entry that is written cannot get another name.
        self.fresh = false;
        let region = self.open.region(slot, &self.settings);
        if self.open.stack.region == Region::Unknown {
            // The region of the current stack is unknown, so the functions on this stack have no slots, and
            // count as ended.
            self.counts.vanished += self.open.stack.len as u64;
            self.open.suspend(time, out);
            self.open.stack = Stack::empty(region, slot, 0);
            self.open.set_range(&self.settings);
            return;
        }
        self.counts.switches += 1;
        self.turn += 1;
        if let Some(outer) = self.outer_of(slot, region) {
            self.open.leave(outer, time, out);
        } else {
            if self.stays_open(region) {
                self.open.flush(out);
                self.open.keep_open();
            } else {
                self.open.suspend(time, out);
            }
            if let Some(stack) = self.open.find(slot, &self.settings) {
                self.open.change_to(stack);
            } else {
                let stack = Stack::empty(region, slot, self.turn);
                let has_forgotten = self.open.change_to_empty(stack, &self.settings);
                self.counts.evicted += u64::from(has_forgotten);
            }
            // Functions that ended while another stack was in use get no entries.
            while self.open.top().is_some_and(|top| top.slot < end) {
                self.counts.vanished += 1;
                self.open.drop_top();
            }
            self.open.resume(time);
        }
        self.open.stack.used = self.turn;
        self.open.stack.last = slot;
        self.open.set_range(&self.settings);
    }

    /// Returns whether the functions of the current stack stay open when the guest changes to a stack in
    /// `region`. The functions stay open when a program enters the kernel, unless the program's innermost
    /// function has no name: the entry of such a function cannot be written later.
    fn stays_open(&self, region: Region) -> bool {
        self.settings.nested
            && self.settings.stacks > 1
            && self.open.stack.region.is_near()
            && !region.is_near()
            && self.open.top().is_none_or(|top| top.function != UNNAMED)
    }

    /// Returns the program's stack if the slot is on this stack, and the program's functions have stayed open
    /// while the kernel ran.
    fn outer_of(&self, slot: u64, region: Region) -> Option<usize> {
        let outer = self.open.outer()?;
        let is_on_it = region == self.open.region_of(outer)
            && self.open.distance(outer, slot) <= self.settings.reach;
        is_on_it.then_some(outer)
    }

    /// Handles a return without a slot. The return ends the innermost function, although nothing proves that
    /// this function has returned.
    pub(super) fn ret_without_slot(&mut self, at: u64, time: u64, out: &mut impl FnMut(Record)) {
        if self.open.stack.beyond != 0 {
            self.open.stack.beyond -= 1;
        } else if self.open.top().is_some() {
            self.name(at);
            self.pop(time, out);
        } else {
            self.counts.before += 1;
        }
    }

    /// Handles a return at a slot below all frames. The returning function may have been too deep to be
    /// recorded, or may have moved its return address. Otherwise the return is a thunk's jump or a miss.
    #[cold]
    fn ret_below(
        &mut self,
        top: Frame,
        ret: &Return,
        slot: u64,
        was_fresh: bool,
        time: u64,
        out: &mut impl FnMut(Record),
    ) {
        if self.open.stack.beyond != 0 {
            self.open.stack.beyond -= 1;
        } else if top.back != 0 && ret.value == Some(top.back) {
            // The function has moved its return address down, as the entry code of Linux does.
            self.counts.moved += 1;
            self.name_returning(ret.at);
            self.pop(time, out);
        } else if let Some(value) = ret.value.filter(|_| slot == self.ahead) {
            self.ahead = 0;
            self.counts.thunks += 1;
            if was_fresh {
                // The last event was a call of the thunk, so the called function is the target of the thunk's
                // jump.
                self.open.rename(value);
                self.fresh = true;
            } else {
                // A function has jumped to the thunk, so the thunk's jump is a tail call.
                self.replace(top, value, out);
            }
        } else {
            self.counts.unmatched += 1;
            self.name(ret.at);
            self.open.flush(out);
        }
    }

    /// Ends the innermost function if this function was called on one stack and returns on another stack. The
    /// entry code of Linux has such functions.
    #[cold]
    fn ret_after_move(
        &mut self,
        ret: &Return,
        slot: u64,
        time: u64,
        out: &mut impl FnMut(Record),
    ) -> bool {
        let top = self.open.top().filter(|top| top.back != 0 && Some(top.back) == ret.value);
        if top.is_none() || self.open.stack.beyond != 0 {
            return false;
        }
        // The return address alone proves nothing, because all switches of tasks happen in the same call of
        // the kernel. If the other stack has a frame at the slot, then this return belongs to a switch of
        // tasks.
        let other = self.open.find(slot, &self.settings);
        if other.is_some_and(|stack| self.open.has_frame(stack, slot)) {
            return false;
        }
        self.counts.moved += 1;
        self.name_returning(ret.at);
        self.pop(time, out);
        true
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks")
            .field("settings", &self.settings)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
