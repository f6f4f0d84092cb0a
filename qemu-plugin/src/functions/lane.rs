//! Records of a vCPU at one privilege level: its shadow stacks, and the file that they go to.

use super::windows::Track;
use hypertrace_functions::shadow::{Call, Return, Settings, Stacks};

/// Records of a vCPU at one privilege level.
pub struct Lane {
    stacks: Stacks,
    track: Track,
}

impl Lane {
    /// Makes one whose records go to this track.
    pub fn new(settings: Settings, track: Track) -> Lane {
        Lane { stacks: Stacks::new(settings), track }
    }

    /// Reports a call that was executed.
    #[inline]
    pub fn call(&mut self, call: &Call, time: u64) {
        let Lane { stacks, track } = self;
        stacks.call(call, time, &mut |record| {
            track.push(record.to_bytes());
        });
    }

    /// Reports a return that was executed.
    #[inline]
    pub fn ret(&mut self, ret: &Return, time: u64) {
        let Lane { stacks, track } = self;
        stacks.ret(ret, time, &mut |record| {
            track.push(record.to_bytes());
        });
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

    /// Says whose stacks those of the next events are.
    #[inline]
    pub fn set_space(&mut self, space: u64) {
        self.stacks.set_space(space);
    }

    /// Ends all functions.
    pub fn close(&mut self, time: u64) {
        let Lane { stacks, track } = self;
        stacks.close(time, &mut |record| {
            track.push(record.to_bytes());
        });
    }

    /// Returns the counts of its stacks, and the records that found no room.
    pub fn counts(&self) -> (hypertrace_functions::shadow::Counts, u64) {
        (*self.stacks.counts(), self.track.lost())
    }
}
