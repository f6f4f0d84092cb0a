//! Records of a vCPU at one privilege level: its shadow stacks, and the file that they go to.

use super::code::Code;
use super::site::Site;
use super::stack_pointer::Copy;
use super::windows::Track;
use hypertrace_functions::record::Record;
use hypertrace_functions::shadow::{Call, Jump, Linked, Return, Settings, Stacks};

/// Records of a vCPU at one privilege level.
pub struct Lane {
    stacks: Stacks,
    track: Track,
    /// Nothing is recorded now: no region is open.
    is_paused: bool,
    /// Time of the last event that is recorded.
    last: u64,
    /// Number of the outer functions that may have ended unseen: those that are older than the last change of the stack,
    /// which may have been in use by another vCPU since.
    unproved: usize,
    /// The copy of the stack pointer.
    copy: Copy,
}

impl Lane {
    /// Makes one whose records go to this track.
    pub fn new(settings: Settings, track: Track) -> Lane {
        let stacks = Stacks::new(settings);
        Lane {
            stacks,
            track,
            is_paused: settings.paused,
            last: 0,
            unproved: usize::MAX,
            copy: Copy::default(),
        }
    }

    /// Returns whether nothing is recorded now.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Begins to record, or ends it: a region began or ended at this time.
    #[cold]
    pub fn turn(&mut self, is_paused: bool, time: u64) {
        // Another vCPU's region: events of this one may have come later.
        let time = time.max(self.last);
        let Lane { stacks, track, .. } = self;
        let out = &mut |record: Record| {
            track.push(record);
        };
        match is_paused {
            true => stacks.pause(time, out),
            false => stacks.replay(time, out),
        }
        (self.is_paused, self.last) = (is_paused, time);
    }

    /// Returns the time of an event that is not recorded: only the stacks need one.
    pub fn time_while_paused(&self) -> u64 {
        self.last
    }

    /// Reports a call that was executed.
    #[inline]
    pub fn call(&mut self, call: &Call, time: u64) {
        self.last = time;
        let Lane { stacks, track, .. } = self;
        stacks.call(call, time, &mut |record| {
            track.push(record);
        });
    }

    /// Returns whether the innermost function's return address is in this slot.
    #[inline]
    pub fn expects(&self, slot: u64) -> bool {
        self.stacks.expects(slot)
    }

    /// Reports a return that was executed.
    #[inline]
    pub fn ret(&mut self, ret: &Return, time: u64) {
        self.last = time;
        let Lane { stacks, track, .. } = self;
        stacks.ret(ret, time, &mut |record| {
            track.push(record);
        });
    }

    /// Reports an event of a guest whose return addresses are in a register, without the stack pointer.
    pub fn linked(&mut self, event: &Linked, time: u64) {
        self.last = time;
        let Lane { stacks, track, .. } = self;
        stacks.linked(event, time, &mut |record| {
            track.push(record);
        });
    }

    /// Reports that the stack may change by other means than calls and returns.
    #[inline]
    pub fn moves(&mut self) {
        self.unproved = usize::MAX;
        self.copy.lose();
    }

    /// Returns the state of the copy of the stack pointer.
    #[inline]
    pub fn copy(&mut self) -> &mut Copy {
        &mut self.copy
    }

    /// Returns whether a return needs its slot: it may be of another function than the innermost one.
    #[inline]
    pub fn needs_slot(&self) -> bool {
        self.stacks.depth() <= self.unproved
    }

    /// Reports a call, after which the called function is known to be the innermost one.
    #[inline]
    pub fn call_and_prove(&mut self, call: &Call, time: u64) {
        let switches = self.stacks.counts().switches;
        self.call(call, time);
        if self.stacks.counts().switches != switches {
            self.moves();
        }
        self.unproved = self.unproved.min(self.stacks.depth().saturating_sub(1));
    }

    /// Reports a return with a slot: nothing is known about the functions around it.
    pub fn ret_at_slot(&mut self, ret: &Return, time: u64) {
        self.ret(ret, time);
        self.unproved = self.stacks.depth();
    }

    /// Reports a jump from a function to another one, or to one that is not recorded.
    pub fn jump(&mut self, site: &Site, code: &Code, target: Option<u64>, time: u64) {
        // Entry code that no call has reached jumps, too: it ends no other function.
        let is_from =
            |innermost| Some(innermost) == site.function || code.is_same(innermost, site.at);
        self.last = time;
        if !self.is_named() {
            // The function of an indirect call: nothing else in it was observed before.
            self.stacks.executed(site.at);
        }
        if !self.stacks.innermost().is_some_and(is_from) {
            return;
        }
        let Lane { stacks, track, .. } = self;
        stacks.jump(&Jump { at: site.at, target }, time, &mut |record| {
            track.push(record);
        });
    }

    /// Reports that an instruction runs that is no call, return or jump to a function.
    pub fn executed(&mut self, at: u64) {
        self.stacks.executed(at);
    }

    /// Reports that a block of code begins to run at whose address a function may begin.
    #[inline]
    pub fn begins(&mut self, at: u64) {
        self.stacks.begins(at);
    }

    /// Returns whether the innermost function has a name.
    #[inline]
    pub fn is_named(&self) -> bool {
        self.stacks.innermost().is_some()
    }

    /// Reports a call of a place just ahead.
    #[inline]
    pub fn call_ahead(&mut self, slot: u64) {
        self.stacks.call_ahead(slot);
    }

    /// Returns the kernel's stack that is in use.
    pub fn kernel_stack(&self) -> Option<u64> {
        self.stacks.kernel_stack()
    }

    /// Sets the address space whose stacks those of the next events are.
    #[inline]
    pub fn set_space(&mut self, space: u64) {
        self.stacks.set_space(space);
    }

    /// Ends all functions.
    pub fn close(&mut self, time: u64) {
        let Lane { stacks, track, .. } = self;
        stacks.close(time, &mut |record| {
            track.push(record);
        });
    }

    /// Returns the lost records that no record says.
    pub fn unsaid(&self) -> u64 {
        self.track.unsaid()
    }

    /// Returns the counts of its stacks, and the records that found no room.
    pub fn counts(&self) -> (hypertrace_functions::shadow::Counts, u64) {
        (*self.stacks.counts(), self.track.lost())
    }
}
