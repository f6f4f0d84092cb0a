// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The shadow stacks of one track.

use std::cmp::Ordering;
use std::fmt;

use super::stack::{Frame, Frames, MAX_FRAMES, Region, Stack, UNNAMED, named};
use super::{Call, Counts, Jump, Return, Settings};
use crate::record::{Kind, Record};

/// Farthest a thunk's return instruction is from its beginning. Those of Linux and of compilers have up to 32 bytes.
const MAX_THUNK: u64 = 64;

/// Shadow stacks of a track.
///
/// Each function gives the records of an event to `out`, in the order of time. Times that run backwards are replaced by
/// the last one.
pub struct Stacks {
    settings: Settings,
    counts: Counts,
    frames: Frames,
    stacks: Vec<Stack>,
    /// Index of the stack of the last event
    current: usize,
    /// Index of the program's stack whose functions stay open around those of a kernel's, with [`Settings::nested`]
    outer: Option<usize>,
    /// Time of the last event
    time: u64,
    /// Number of changes of stack
    turn: u64,
    paused: bool,
    /// Whether the last event was the innermost function's call, or a thunk's jump to it: its entry is not written
    fresh: bool,
}

impl Stacks {
    /// Returns the shadow stacks of a track. Allocates all memory that they will ever use.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Settings {
            stacks: settings.stacks.max(1),
            kernel_stack_bits: settings.kernel_stack_bits.min(63),
            depth: settings.depth.min(MAX_FRAMES),
            ..settings
        };
        let mut stacks = Vec::with_capacity(settings.stacks);
        stacks.push(Stack::empty(Region::Unknown, 0, 0));
        Stacks {
            settings,
            counts: Counts::default(),
            frames: Frames::new(settings.stacks),
            stacks,
            current: 0,
            outer: None,
            time: 0,
            turn: 0,
            paused: settings.paused,
            fresh: false,
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
        self.stack().len
    }

    /// Reports a call.
    #[inline]
    pub fn call(&mut self, call: &Call, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.counts.calls += 1;
        // The frame that had this slot has ended, too.
        self.arrive(call.slot, call.slot.saturating_add(1), time, out);
        self.name(call.at);
        self.flush_unless_filtered(out);
        let function = call.target.map_or(UNNAMED, named);
        let frame = Frame { slot: call.slot, back: call.return_address, function, time };
        self.fresh = self.push(frame);
    }

    /// Reports a return.
    #[inline]
    pub fn ret(&mut self, ret: &Return, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.counts.returns += 1;
        let Some(slot) = ret.slot else { return self.ret_without_slot(ret.at, time, out) };
        if !self.holds(slot) && self.ret_after_move(ret, slot, time, out) {
            return;
        }
        self.arrive(slot, slot, time, out);
        let was_fresh = std::mem::take(&mut self.fresh);
        let Some(top) = self.top() else {
            self.counts.before += 1;
            return;
        };
        if top.slot == slot {
            let changed = ret.value.is_some_and(|value| top.back != 0 && top.back != value);
            self.counts.changed += u64::from(changed);
            self.name(ret.at);
            self.pop(time, out);
        } else if self.stack().beyond != 0 {
            self.stack_mut().beyond -= 1;
        } else if was_fresh && self.jump_by_thunk(top, ret) {
            self.counts.thunks += 1;
            self.fresh = true;
        } else {
            self.counts.unmatched += 1;
            self.name(ret.at);
            self.flush_unless_filtered(out);
        }
    }

    /// Reports a tail call: the innermost function ends, and another one begins in its place.
    pub fn jump(&mut self, jump: &Jump, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        let was_fresh = std::mem::take(&mut self.fresh);
        self.name(jump.at);
        let Some(top) = self.top() else { return };
        // Deeper than what is recorded, or a loop to the function's own beginning.
        if self.stack().beyond != 0 || top.function == jump.target {
            self.fresh = was_fresh;
            return;
        }
        self.counts.tail_calls += 1;
        self.pop(time, out);
        self.fresh = self.push(Frame { function: named(jump.target), time, ..top });
    }

    /// Stops recording: functions whose entries are written get exits. Calls and returns are followed still.
    pub fn pause(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.suspend(time, out);
        self.paused = true;
    }

    /// Begins to record again, with entries of all functions on the current stack.
    pub fn replay(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        if self.paused {
            self.paused = false;
            // An entry that is written keeps its name.
            self.fresh = false;
            if let Some(outer) = self.outer {
                self.resume(outer, time);
            }
            self.resume(self.current, time);
            self.flush_unless_filtered(out);
        }
    }

    /// Ends the track: functions whose entries are written get exits, and all stacks are forgotten.
    pub fn close(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let time = self.advance(time);
        self.suspend(time, out);
        self.stacks.truncate(1);
        self.stacks[0] = Stack::empty(Region::Unknown, 0, 0);
        self.current = 0;
        self.outer = None;
        self.fresh = false;
    }

    fn advance(&mut self, time: u64) -> u64 {
        self.counts.backwards += u64::from(time < self.time);
        self.time = self.time.max(time);
        self.time
    }

    fn stack(&self) -> &Stack {
        &self.stacks[self.current]
    }

    fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stacks[self.current]
    }

    fn top(&self) -> Option<Frame> {
        let index = self.stack().len.checked_sub(1)?;
        Some(self.frames.get(self.current, index))
    }

    /// Changes to the stack of a slot, if it is another one, and ends the frames below `end`.
    fn arrive(&mut self, slot: u64, end: u64, time: u64, out: &mut impl FnMut(Record)) {
        if !self.holds(slot) {
            self.switch(slot, end, time, out);
        }
        self.stack_mut().last = slot;
        // Each round ends a frame that a call has made: no more rounds than calls.
        while self.top().is_some_and(|top| top.slot < end) {
            self.counts.vanished += 1;
            self.pop(time, out);
        }
    }

    /// Returns whether a stack has a frame at a slot. Inner frames have lower slots.
    fn has_frame(&self, stack: usize, slot: u64) -> bool {
        let (mut low, mut high) = (0, self.stacks[stack].len);
        while low < high {
            let middle = low.midpoint(high);
            match self.frames.get(stack, middle).slot.cmp(&slot) {
                Ordering::Equal => return true,
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle,
            }
        }
        false
    }

    fn region(&self, slot: u64) -> Region {
        if slot >> 63 == 1 {
            Region::Kernel(slot >> self.settings.kernel_stack_bits)
        } else {
            Region::Near
        }
    }

    /// Returns whether a slot is on the current stack.
    #[inline]
    fn holds(&self, slot: u64) -> bool {
        let region = self.region(slot);
        region == self.stack().region
            && (region != Region::Near || self.distance(self.current, slot) <= self.settings.reach)
    }

    /// Finds the known stack of a slot: of those that are not a kernel's, the nearest.
    fn find(&self, slot: u64) -> Option<usize> {
        let region = self.region(slot);
        // At most as many rounds as there are stacks.
        let mut same = (0..self.stacks.len()).filter(|index| self.stacks[*index].region == region);
        if region != Region::Near {
            return same.next();
        }
        let nearest = same.map(|index| (self.distance(index, slot), index)).min()?;
        (nearest.0 <= self.settings.reach).then_some(nearest.1)
    }

    /// Returns how far a slot is from a stack's frames and its last event.
    fn distance(&self, index: usize, slot: u64) -> u64 {
        let stack = &self.stacks[index];
        let (mut low, mut high) = (stack.last, stack.last);
        if stack.len > 0 {
            low = low.min(self.frames.get(index, stack.len - 1).slot);
            high = high.max(self.frames.get(index, 0).slot);
        }
        low.saturating_sub(slot).max(slot.saturating_sub(high))
    }

    /// Changes to the stack of a slot: a known one without its frames below `end`, or an empty one.
    #[cold]
    fn switch(&mut self, slot: u64, end: u64, time: u64, out: &mut impl FnMut(Record)) {
        let region = self.region(slot);
        if self.stack().region == Region::Unknown {
            self.stack_mut().region = region;
            return;
        }
        self.counts.switches += 1;
        self.turn += 1;
        // Also because an entry that is written keeps its name.
        self.fresh = false;
        if self.leave_kernel(slot, time, out) {
            return;
        }
        if self.stays_open(region) {
            self.flush_unless_filtered(out);
            self.outer = Some(self.current);
        } else {
            self.suspend(time, out);
            self.outer = None;
        }
        self.current = self.find(slot).unwrap_or_else(|| self.add(region, slot));
        self.stacks[self.current].used = self.turn;
        // They ended while another stack was in use: they get no entries.
        while self.top().is_some_and(|top| top.slot < end) {
            self.counts.vanished += 1;
            let stack = self.stack_mut();
            stack.len -= 1;
            stack.beyond = 0;
        }
        self.resume(self.current, time);
    }

    /// Returns whether the functions of the current stack stay open when the guest changes to one in `region`: from a
    /// program into the kernel. Its innermost function needs a name: its entry cannot be written later.
    fn stays_open(&self, region: Region) -> bool {
        self.settings.nested
            && self.settings.stacks > 1
            && self.stack().region == Region::Near
            && region != Region::Near
            && self.top().is_none_or(|top| top.function != UNNAMED)
    }

    /// Returns from a kernel's stack to the one of the program that is open around it, if it has the slot.
    fn leave_kernel(&mut self, slot: u64, time: u64, out: &mut impl FnMut(Record)) -> bool {
        let Some(outer) = self.outer else { return false };
        if self.region(slot) != Region::Near || self.distance(outer, slot) > self.settings.reach {
            return false;
        }
        self.suspend_stack(self.current, time, out);
        self.current = outer;
        self.outer = None;
        self.stacks[outer].used = self.turn;
        true
    }

    /// Returns the index of an empty stack: a new one, or the least recently used one.
    fn add(&mut self, region: Region, slot: u64) -> usize {
        let stack = Stack::empty(region, slot, self.turn);
        if self.stacks.len() < self.settings.stacks {
            self.stacks.push(stack);
            return self.stacks.len() - 1;
        }
        self.counts.evicted += 1;
        let oldest = self.stacks.iter().enumerate().min_by_key(|(_, stack)| stack.used);
        let index = oldest.map_or(0, |(index, _)| index);
        self.stacks[index] = stack;
        index
    }

    /// Writes exits of all functions whose entries are written, after the entries that are due.
    fn suspend(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        self.suspend_stack(self.current, time, out);
        if let Some(outer) = self.outer {
            self.suspend_stack(outer, time, out);
        }
    }

    fn suspend_stack(&mut self, stack: usize, time: u64, out: &mut impl FnMut(Record)) {
        if self.paused {
            return;
        }
        let Stack { len, written, .. } = self.stacks[stack];
        let is_long = |index: &usize| {
            time - self.frames.get(stack, *index).time.min(time) >= self.settings.min
        };
        // An outer function is not shorter than an inner one.
        let long = (written..len).take_while(is_long).count();
        self.flush(stack, written + long, out);
        for index in (0..self.stacks[stack].written).rev() {
            out(self.record(Kind::Exit, stack, index, time));
        }
        self.stacks[stack].written = 0;
    }

    /// Makes this the time of entry of all functions on a stack.
    fn resume(&mut self, stack: usize, time: u64) {
        for index in 0..self.stacks[stack].len {
            let frame = self.frames.get(stack, index);
            self.frames.set(stack, index, Frame { time, ..frame });
        }
    }

    /// Returns the number of functions around those of a stack.
    fn base(&self, stack: usize) -> usize {
        match self.outer {
            Some(outer) if outer != stack => self.stacks[outer].len,
            _ => 0,
        }
    }

    fn record(&self, kind: Kind, stack: usize, index: usize, time: u64) -> Record {
        let address = self.frames.get(stack, index).function;
        // An entry that is written is less deep than MAX_FRAMES.
        let depth = (self.base(stack) + index) as u16;
        Record { time, kind, depth, address }
    }

    /// Names the innermost function, if it has no name, by an address in it.
    fn name(&mut self, at: u64) {
        if let Some(top) = self.top()
            && top.function == UNNAMED
            && self.stack().beyond == 0
        {
            let index = self.stack().len - 1;
            self.frames.set(self.current, index, Frame { function: named(at), ..top });
        }
    }

    /// Writes the entries of a stack's outermost `len` functions that are not written, after those around them.
    fn flush(&mut self, stack: usize, len: usize, out: &mut impl FnMut(Record)) {
        let depth = self.settings.depth.saturating_sub(self.base(stack));
        let due = self.stacks[stack].written..len.min(depth);
        if let Some(outer) = self.outer
            && outer != stack
            && !due.is_empty()
        {
            self.flush(outer, self.stacks[outer].len, out);
        }
        for index in due {
            let frame = self.frames.get(stack, index);
            if frame.function == UNNAMED {
                break;
            }
            out(self.record(Kind::Entry, stack, index, frame.time));
            self.stacks[stack].written = index + 1;
        }
    }

    #[inline]
    fn flush_unless_filtered(&mut self, out: &mut impl FnMut(Record)) {
        if self.settings.min == 0 && !self.paused {
            if let Some(outer) = self.outer {
                self.flush(outer, self.stacks[outer].len, out);
            }
            self.flush(self.current, self.stack().len, out);
        }
    }

    /// Adds a frame. Returns false if the stack is full.
    #[inline]
    fn push(&mut self, frame: Frame) -> bool {
        let (current, len) = (self.current, self.stack().len);
        if len == MAX_FRAMES {
            self.counts.too_deep += 1;
            self.stack_mut().beyond += 1;
            return false;
        }
        self.frames.set(current, len, frame);
        self.stack_mut().len += 1;
        true
    }

    /// Ends the innermost function: writes its exit, after all entries that are due.
    #[inline]
    fn pop(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        let Some(index) = self.stack().len.checked_sub(1) else { return };
        let frame = self.frames.get(self.current, index);
        if frame.function == UNNAMED {
            self.counts.unnamed += 1;
        }
        if !self.paused {
            if time - frame.time.min(time) >= self.settings.min {
                self.flush(self.current, index + 1, out);
            }
            if index < self.stack().written {
                out(self.record(Kind::Exit, self.current, index, time));
            }
        }
        self.fresh = false;
        let stack = self.stack_mut();
        stack.len = index;
        stack.written = stack.written.min(index);
        stack.beyond = 0;
    }

    /// Ends the innermost function, without proof that it is the one that returns.
    fn ret_without_slot(&mut self, at: u64, time: u64, out: &mut impl FnMut(Record)) {
        if self.stack().beyond != 0 {
            self.stack_mut().beyond -= 1;
        } else if self.top().is_some() {
            self.name(at);
            self.pop(time, out);
        } else {
            self.counts.before += 1;
        }
    }

    /// Ends the innermost function if it returns from another stack than the one on which it was called, as the entry
    /// code of Linux does.
    #[cold]
    fn ret_after_move(
        &mut self,
        ret: &Return,
        slot: u64,
        time: u64,
        out: &mut impl FnMut(Record),
    ) -> bool {
        let top = self.top().filter(|top| top.back != 0 && Some(top.back) == ret.value);
        if top.is_none() || self.stack().beyond != 0 {
            return false;
        }
        // All tasks are switched by the same call of the kernel: then the other stack has a frame for it.
        if self.find(slot).is_some_and(|stack| self.has_frame(stack, slot)) {
            return false;
        }
        self.counts.moved += 1;
        self.name(ret.at);
        self.pop(time, out);
        true
    }

    /// Gives the innermost function the address to which a thunk's return instruction jumps, if it is one: the first
    /// instruction after the call, in the first bytes of the called function.
    fn jump_by_thunk(&mut self, top: Frame, ret: &Return) -> bool {
        let Some(value) = ret.value else { return false };
        let is_thunk = top.function == UNNAMED || ret.at.wrapping_sub(top.function) < MAX_THUNK;
        if is_thunk {
            let index = self.stack().len - 1;
            self.frames.set(self.current, index, Frame { function: named(value), ..top });
        }
        is_thunk
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
