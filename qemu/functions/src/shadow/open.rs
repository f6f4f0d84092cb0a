// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The open functions on a track's stacks, and the records of the functions' entries and exits.

use std::cmp::Ordering;

use super::Settings;
use super::stack::{Frame, MAX_FRAMES, Region, Stack, UNNAMED, named};
use crate::record::{Record, RecordType};

/// Stacks of a track, and the frames of these stacks. There are a current stack and other stacks. With
/// [`Settings::nested`], the functions of another stack, a program's stack, may be open around the functions
/// of the current stack.
pub(super) struct Open {
    /// Frames of all stacks. A high bound costs nothing, because the system provides the zeroed memory only
    /// when the memory is used
    frames: Vec<[u64; 4]>,
    /// All stacks. The element of the current stack is out of date, because only `stack` is kept up to date
    stacks: Vec<Stack>,
    /// Address space of the stacks that are not a kernel's
    space: u64,
    /// Index of the current stack
    current: usize,
    /// The current stack
    pub stack: Stack,
    /// Index of the program's stack, if the program's functions stay open while the kernel uses the current
    /// stack
    outer: Option<usize>,
    min: u64,
    /// Number of depths that are recorded
    depth: usize,
    paused: bool,
}

impl Open {
    pub fn new(settings: &Settings) -> Self {
        let first = Stack::empty(Region::Unknown, 0, 0);
        let mut stacks = Vec::with_capacity(settings.stacks);
        stacks.push(first);
        Open {
            frames: vec![[0; 4]; settings.stacks.saturating_mul(MAX_FRAMES)],
            stacks,
            space: 0,
            current: 0,
            stack: first,
            outer: None,
            min: settings.min,
            depth: settings.depth,
            paused: settings.paused,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    pub fn outer(&self) -> Option<usize> {
        self.outer
    }

    #[inline]
    fn frame(&self, stack: usize, index: usize) -> Frame {
        let [slot, back, function, time] = self.frames[stack * MAX_FRAMES + index];
        Frame { slot, back, function, time }
    }

    #[inline]
    fn set_frame(&mut self, stack: usize, index: usize, frame: Frame) {
        let Frame { slot, back, function, time } = frame;
        self.frames[stack * MAX_FRAMES + index] = [slot, back, function, time];
    }

    /// Returns the innermost function.
    #[inline]
    pub fn top(&self) -> Option<Frame> {
        Some(self.frame(self.current, self.stack.len.checked_sub(1)?))
    }

    /// Names the innermost function.
    pub fn rename(&mut self, function: u64) {
        if let Some(top) = self.top() {
            let frame = Frame { function: named(function), ..top };
            self.set_frame(self.current, self.stack.len - 1, frame);
        }
    }

    /// Returns the innermost function if it has no name.
    #[inline]
    pub fn unnamed(&self) -> Option<Frame> {
        self.top().filter(|top| top.function == UNNAMED && self.stack.beyond == 0)
    }

    /// If the innermost function has no name, makes `at`, an address in the function, the name.
    #[inline]
    pub fn name(&mut self, at: u64) {
        if self.unnamed().is_some() {
            self.rename(at);
        }
    }

    /// Adds a frame. Returns false if the stack is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> bool {
        if self.stack.len == MAX_FRAMES {
            self.stack.beyond += 1;
            return false;
        }
        self.set_frame(self.current, self.stack.len, frame);
        self.stack.len += 1;
        true
    }

    /// Ends the innermost function: writes all entries that are due, and then the function's exit. Returns
    /// whether the function had a name.
    #[inline]
    pub fn pop(&mut self, time: u64, out: &mut impl FnMut(Record)) -> bool {
        let Some(index) = self.stack.len.checked_sub(1) else { return true };
        let frame = self.frame(self.current, index);
        if !self.paused {
            if self.stack.written <= index && time - frame.time.min(time) >= self.min {
                self.flush_current(index + 1, out);
            }
            if index < self.stack.written {
                let depth = (self.base() + index) as u16;
                out(Record { time, kind: RecordType::Exit, depth, address: frame.function });
            }
        }
        self.stack.len = index;
        self.stack.written = self.stack.written.min(index);
        self.stack.beyond = 0;
        frame.function != UNNAMED
    }

    /// Moves the frame of the innermost function to another slot of the current stack, if this slot is below
    /// the slot of the calling function.
    pub fn move_top(&mut self, slot: u64) {
        let Some(index) = self.stack.len.checked_sub(1) else { return };
        let around = index.checked_sub(1).map(|around| self.frame(self.current, around).slot);
        if self.holds(slot) && around.is_none_or(|around| slot < around) {
            let top = self.frame(self.current, index);
            self.set_frame(self.current, index, Frame { slot, ..top });
        }
    }

    /// Removes the frame of the innermost function, and writes no exit.
    pub fn drop_top(&mut self) {
        self.stack.len = self.stack.len.saturating_sub(1);
        self.stack.written = self.stack.written.min(self.stack.len);
        self.stack.beyond = 0;
    }

    /// Returns the number of the program's functions that are open around the functions of the current stack.
    #[inline]
    fn base(&self) -> usize {
        self.outer.map_or(0, |outer| self.stacks[outer].len)
    }

    /// Writes all entries that are due, unless a function's entry has to wait until the function has lasted
    /// long enough.
    #[inline]
    pub fn flush(&mut self, out: &mut impl FnMut(Record)) {
        if self.min == 0 && !self.paused {
            self.flush_outer(out);
            if self.stack.written < self.stack.len {
                self.flush_current(self.stack.len, out);
            }
        }
    }

    #[inline]
    fn flush_outer(&mut self, out: &mut impl FnMut(Record)) {
        if let Some(outer) = self.outer {
            let Stack { len, written, .. } = self.stacks[outer];
            self.stacks[outer].written = self.write_entries(outer, 0, written..len, out);
        }
    }

    /// Writes the missing entries of the outermost `len` functions of the current stack. The entries of the
    /// functions around these functions come first.
    #[inline]
    fn flush_current(&mut self, len: usize, out: &mut impl FnMut(Record)) {
        self.flush_outer(out);
        let due = self.stack.written..len;
        self.stack.written = self.write_entries(self.current, self.base(), due, out);
    }

    /// Writes entries of a stack, up to the first function that has no name or whose depth is not recorded.
    /// Returns the number of functions whose entries are written.
    #[inline]
    fn write_entries(
        &self,
        stack: usize,
        base: usize,
        due: std::ops::Range<usize>,
        out: &mut impl FnMut(Record),
    ) -> usize {
        let end = due.end.min(self.depth.saturating_sub(base));
        for index in due.start..end {
            let Frame { time, function: address, .. } = self.frame(stack, index);
            if address == UNNAMED {
                return index;
            }
            // The depth of a written entry is less than MAX_FRAMES.
            let depth = (base + index) as u16;
            out(Record { time, kind: RecordType::Entry, depth, address });
        }
        end.max(due.start)
    }

    /// Writes the entries that are due, and then the exits of all functions whose entries are written.
    pub fn suspend(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        self.suspend_current(time, out);
        if let Some(outer) = self.outer.take() {
            self.change_to(outer);
            self.suspend_current(time, out);
        }
    }

    /// Suspends the current stack, and returns to the stack around the current stack.
    pub fn leave(&mut self, outer: usize, time: u64, out: &mut impl FnMut(Record)) {
        self.suspend_current(time, out);
        self.outer = None;
        self.change_to(outer);
    }

    fn suspend_current(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        if self.paused {
            return;
        }
        let Stack { len, written, .. } = self.stack;
        let is_long =
            |index: &usize| time - self.frame(self.current, *index).time.min(time) >= self.min;
        // The outer functions come first, because an outer function lasts at least as long as an inner
        // function.
        let long = (written..len).take_while(is_long).count();
        if long > 0 {
            self.flush_current(written + long, out);
        }
        let base = self.base();
        for index in (0..self.stack.written).rev() {
            let address = self.frame(self.current, index).function;
            out(Record { time, kind: RecordType::Exit, depth: (base + index) as u16, address });
        }
        self.stack.written = 0;
    }
}

/// Changes of the stack.
impl Open {
    /// Changes the address space of the stacks that are not a kernel's.
    #[cold]
    pub fn set_space(&mut self, space: u64) {
        self.space = space;
        if self.stack.region.is_near() {
            // The next slot is on another stack, unless the next slot is in the old space again.
            self.stack.size = 0;
        }
    }

    #[inline]
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Returns the region of a slot.
    pub fn region(&self, slot: u64, settings: &Settings) -> Region {
        Region::of(slot, self.space, settings)
    }

    /// Returns whether a slot is on the current stack.
    #[inline]
    pub fn holds(&self, slot: u64) -> bool {
        slot.wrapping_sub(self.stack.low) < self.stack.size
    }

    /// Extends the current stack to a slot beyond the stack's range, if the slot is near enough. Returns
    /// whether the slot is near enough.
    pub fn reaches(&mut self, slot: u64, settings: &Settings) -> bool {
        let region = self.region(slot, settings);
        let is_near = region.is_near()
            && self.stack.region == region
            && self.distance(self.current, slot) <= settings.reach;
        if is_near {
            self.stack.last = slot;
            self.set_range(settings);
        }
        is_near
    }

    /// Sets the range of slots that are on the current stack. The range contains `last`.
    pub fn set_range(&mut self, settings: &Settings) {
        (self.stack.low, self.stack.size) = match self.stack.region {
            Region::Unknown => (0, 0),
            Region::Kernel(bits) => {
                (bits << settings.kernel_stack_bits, 1 << settings.kernel_stack_bits)
            }
            Region::Near(_) => {
                let (low, high) = self.extent(self.current);
                let low = low.saturating_sub(settings.reach);
                // The range must not reach into the kernel's half of the addresses.
                let high = high.saturating_add(settings.reach).min(u64::MAX >> 1);
                (low, high - low + 1)
            }
        };
    }

    /// Finds the known stack of a slot. If the slot is not on a kernel's stack, finds the nearest stack.
    pub fn find(&self, slot: u64, settings: &Settings) -> Option<usize> {
        let region = self.region(slot, settings);
        // The loop has at most as many rounds as there are stacks.
        let mut same = (0..self.stacks.len()).filter(|index| self.get(*index).region == region);
        if !region.is_near() {
            return same.next();
        }
        let nearest = same.map(|index| (self.distance(index, slot), index)).min()?;
        (nearest.0 <= settings.reach).then_some(nearest.1)
    }

    /// Returns the distance in bytes from a stack's range to a slot. The range contains the slots of the
    /// stack's frames, and the slot of the stack's last event.
    pub fn distance(&self, stack: usize, slot: u64) -> u64 {
        let (low, high) = self.extent(stack);
        low.saturating_sub(slot).max(slot.saturating_sub(high))
    }

    /// Returns the lowest and the highest slot among the slots of a stack's frames and the slot of the
    /// stack's last event.
    fn extent(&self, stack: usize) -> (u64, u64) {
        let Stack { len, last, .. } = *self.get(stack);
        if len == 0 {
            return (last, last);
        }
        let (top, bottom) = (self.frame(stack, len - 1).slot, self.frame(stack, 0).slot);
        (last.min(top), last.max(bottom))
    }

    /// Returns the region of a stack.
    pub fn region_of(&self, stack: usize) -> Region {
        self.get(stack).region
    }

    fn get(&self, stack: usize) -> &Stack {
        if stack == self.current { &self.stack } else { &self.stacks[stack] }
    }

    /// Returns whether a stack has a frame at a slot. Inner frames have lower slots.
    pub fn has_frame(&self, stack: usize, slot: u64) -> bool {
        let (mut low, mut high) = (0, self.get(stack).len);
        while low < high {
            let middle = low.midpoint(high);
            match self.frame(stack, middle).slot.cmp(&slot) {
                Ordering::Equal => return true,
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle,
            }
        }
        false
    }

    /// Makes another stack the current stack.
    pub fn change_to(&mut self, stack: usize) {
        self.stacks[self.current] = self.stack;
        self.current = stack;
        self.stack = self.stacks[stack];
    }

    /// Makes an empty stack the current stack, in a new place or in the place of the least recently used
    /// stack. Returns whether another stack was forgotten to make room. The program's stack whose functions
    /// stay open is never forgotten, because the guest has used this stack until now.
    pub fn change_to_empty(&mut self, stack: Stack, settings: &Settings) -> bool {
        let has_room = self.stacks.len() < settings.stacks;
        let index = if has_room {
            self.stacks.push(stack);
            self.stacks.len() - 1
        } else {
            let used = |index: &usize| self.get(*index).used;
            (0..self.stacks.len()).min_by_key(used).unwrap_or(0)
        };
        self.change_to(index);
        self.stack = stack;
        !has_room
    }

    /// Keeps the functions of the current stack open around the functions of the next stack.
    pub fn keep_open(&mut self) {
        self.outer = Some(self.current);
    }

    /// Sets the entry time of all functions on the current stack to `time`.
    pub fn resume(&mut self, time: u64) {
        self.restart(self.current, self.stack.len, time);
    }

    /// Stops recording.
    pub fn pause(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        self.suspend_current(time, out);
        if let Some(outer) = self.outer.take() {
            let current = self.current;
            self.change_to(outer);
            self.suspend_current(time, out);
            self.change_to(current);
            self.outer = Some(outer);
        }
        self.paused = true;
    }

    /// Begins to record again, with entries at this time.
    pub fn replay(&mut self, time: u64, out: &mut impl FnMut(Record)) {
        self.paused = false;
        if let Some(outer) = self.outer {
            self.restart(outer, self.stacks[outer].len, time);
        }
        self.resume(time);
        self.flush(out);
    }

    /// Forgets all stacks.
    pub fn clear(&mut self) {
        self.outer = None;
        self.current = 0;
        self.stack = Stack::empty(Region::Unknown, 0, 0);
        self.stacks.clear();
        self.stacks.push(self.stack);
    }

    fn restart(&mut self, stack: usize, len: usize, time: u64) {
        for index in 0..len {
            let frame = self.frame(stack, index);
            self.set_frame(stack, index, Frame { time, ..frame });
        }
    }
}
