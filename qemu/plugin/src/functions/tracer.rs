//! Records of a vCPU at one privilege level: its shadow stacks, and the file of its records.

use super::code::Code;
use super::site::Site;
use super::stack_pointer::Copy;
use super::windows::Track;
use hypertrace_functions::record::{Record, RecordType};
use hypertrace_functions::shadow::{Call, Jump, Linked, Return, Settings, Stacks};

/// Records of a vCPU at one privilege level.
pub struct Tracer {
    stacks: Stacks,
    track: Track,
    /// Whether nothing is recorded now, because no region is open.
    is_paused: bool,
    /// Time of the last recorded event.
    last: u64,
    /// Number of outer functions that may have ended although this vCPU had no event of their ends. These
    /// functions were called before the last change of the stack, and another vCPU may have used this stack
    /// since then.
    unproved: usize,
    /// The copy of the stack pointer.
    copy: Copy,
    /// Number of records that were lost before the last window.
    lost: u64,
}

impl Tracer {
    /// Makes a tracer whose records go to this track.
    pub fn new(settings: Settings, track: Track) -> Tracer {
        let stacks = Stacks::new(settings);
        Tracer {
            stacks,
            track,
            is_paused: settings.paused,
            last: 0,
            unproved: usize::MAX,
            copy: Copy::default(),
            lost: 0,
        }
    }

    /// Returns whether recording is paused, because no region is open.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Begins or ends recording, because a region began or ended at this time.
    #[cold]
    pub fn turn(&mut self, is_paused: bool, time: u64) {
        // If another vCPU has begun or ended the region, then this vCPU may have later events already.
        let time = time.max(self.last);
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        let out = &mut |record| track.push_unless_dropping(record);
        match is_paused {
            true => stacks.pause(time, out),
            false => stacks.replay(time, out),
        }
        (self.is_paused, self.last) = (is_paused, time);
    }

    /// Prepares for an event. If the next window of the file is late, then records are dropped; if the late
    /// window is there now, then recording resumes.
    #[inline]
    fn settle(&mut self, time: u64) {
        if self.track.is_late() {
            self.wait(time);
        }
    }

    /// Drops records while the next window is late. All open functions get exits before this gap, and entries
    /// after this gap, so that depths are right before and after the gap. Wrong depths would crash uftrace.
    #[cold]
    fn wait(&mut self, time: u64) {
        let Tracer { stacks, track, is_paused, .. } = self;
        let dropped = track.dropped();
        if let Some(last) = track.resume() {
            let Some(dropped) = dropped else { return };
            self.lost += dropped;
            if let Some(gap) = Tracer::gap(dropped, time.max(last)) {
                track.push(gap);
            }
            if !*is_paused {
                stacks.pause(time, &mut |_| {});
                stacks.replay(time, &mut |record| track.push(record));
            }
        } else if dropped.is_none() {
            stacks.pause(time, &mut |record| track.push(record));
            track.drop_further();
            if !*is_paused {
                // `replay` makes the stacks return records again. The track drops and counts these records.
                stacks.replay(time, &mut |_| {});
            }
        }
    }

    /// Returns a record with the number of missing records; `None` if no records are missing.
    fn gap(missing: u64, time: u64) -> Option<Record> {
        let lost = Record { time, kind: RecordType::Lost, depth: 0, address: missing };
        (missing > 0).then_some(lost)
    }

    /// Returns a time for an event that is not recorded. The time is only for the shadow stacks.
    pub fn time_while_paused(&self) -> u64 {
        self.last
    }

    /// Reports a call that was executed.
    #[inline]
    pub fn call(&mut self, call: &Call, time: u64) {
        self.last = time;
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        stacks.call(call, time, &mut |record| track.push(record));
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
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        stacks.ret(ret, time, &mut |record| track.push(record));
    }

    /// Reports an event of a guest whose calls leave the return address in a register. The plugin uses these
    /// events if QEMU does not show the stack pointer.
    pub fn linked(&mut self, event: &Linked, time: u64) {
        self.last = time;
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        stacks.linked(event, time, &mut |record| track.push(record));
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

    /// Returns whether a return needs its slot, because the return may end another function than the
    /// innermost function.
    #[inline]
    pub fn needs_slot(&self) -> bool {
        self.stacks.depth() <= self.unproved
    }

    /// Reports a call. After this event, the called function is certainly the innermost function.
    #[inline]
    pub fn call_and_prove(&mut self, call: &Call, time: u64) {
        let switches = self.stacks.counts().switches;
        self.call(call, time);
        if self.stacks.counts().switches != switches {
            self.moves();
        }
        self.unproved = self.unproved.min(self.stacks.depth().saturating_sub(1));
    }

    /// Reports a return with a slot. After this event, each function that is still open may have ended
    /// already.
    pub fn ret_at_slot(&mut self, ret: &Return, time: u64) {
        self.ret(ret, time);
        self.unproved = self.stacks.depth();
    }

    /// Reports a jump from a function to another function, or to a function that is not recorded.
    pub fn jump(&mut self, site: &Site, code: &Code, target: Option<u64>, time: u64) {
        // The jump counts only if the jump leaves the innermost function. The entry code of a kernel jumps,
        // too. Such a jump ends no function, because no call has reached this code.
        let is_from =
            |innermost| Some(innermost) == site.function || code.is_same(innermost, site.at);
        self.last = time;
        if !self.is_named() {
            // An indirect call has called the innermost function, and this jump is the first event in the
            // function.
            self.stacks.executed(site.at);
        }
        if !self.stacks.innermost().is_some_and(is_from) {
            return;
        }
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        stacks.jump(&Jump { at: site.at, target }, time, &mut |record| track.push(record));
    }

    /// Reports an instruction that is neither a call, nor a return, nor a jump to a function.
    pub fn executed(&mut self, at: u64) {
        self.stacks.executed(at);
    }

    /// Reports that a block of code begins to run. A function may begin at the block's address.
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

    /// Sets the address space of the next events' stacks.
    #[inline]
    pub fn set_space(&mut self, space: u64) {
        self.stacks.set_space(space);
    }

    /// Ends all functions.
    pub fn close(&mut self, time: u64) {
        self.settle(time);
        let Tracer { stacks, track, .. } = self;
        stacks.close(time, &mut |record| track.push_unless_dropping(record));
    }

    /// Returns the records that still have to be appended to the file at the end.
    pub fn rest(&self) -> Vec<Record> {
        let held = self.track.held();
        let last = held.last().map_or(0, |last| last.time);
        let gap = Tracer::gap(self.track.dropped().unwrap_or(0), self.last.max(last));
        held.iter().copied().chain(gap).collect()
    }

    /// Returns the counts of the shadow stacks, and the number of records that were lost.
    pub fn counts(&self) -> (hypertrace_functions::shadow::Counts, u64) {
        (*self.stacks.counts(), self.lost + self.track.dropped().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::windows::{Keeper, RECORD};
    use super::*;
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    /// Depth to which functions call each other.
    const DEPTH: u64 = 5;

    /// Calls functions, and returns from these functions. Each event is 10 ns later than the event before it.
    /// Returns the time after the last event.
    fn run(tracer: &mut Tracer, from: u64, rounds: u64) -> u64 {
        let slot = |depth: u64| 0x7fff_0000 - 16 * depth;
        let mut time = from;
        for _ in 0..rounds {
            for depth in 1..=DEPTH {
                let target = Some(0x1000 * depth);
                tracer.call(&Call { slot: slot(depth), target, ..Call::default() }, time);
                time += 10;
            }
            // The outer two functions stay open.
            for depth in (3..=DEPTH).rev() {
                tracer.ret(&Return { slot: Some(slot(depth)), ..Return::default() }, time);
                time += 10;
            }
        }
        time
    }

    /// Asserts that each exit belongs to the last open entry, and that no function is open at a record that
    /// counts missing records. Returns the numbers of entries and of missing records.
    fn check(records: impl IntoIterator<Item = Record>) -> (u64, u64) {
        let (mut open, mut time) = (Vec::new(), 0);
        let (mut entries, mut missing) = (0, 0);
        for record in records {
            assert!(record.time >= time, "{record:?} is not after {time}");
            time = record.time;
            match record.kind {
                RecordType::Entry => {
                    assert_eq!(usize::from(record.depth), open.len(), "{record:?}");
                    open.push(record.address);
                    entries += 1;
                }
                RecordType::Exit => {
                    assert_eq!(open.pop(), Some(record.address), "{record:?}");
                    assert_eq!(usize::from(record.depth), open.len(), "{record:?}");
                }
                RecordType::Lost => {
                    assert!(open.is_empty(), "{record:?}");
                    missing += record.address;
                }
                RecordType::Event => panic!("{record:?}"),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        (entries, missing)
    }

    /// Makes a tracer whose file gets the third window only at the keeper's next pass. The first two windows
    /// have room for 49,152 records.
    fn tracer(folder: &TempDir, settings: Settings) -> (PathBuf, Keeper, Tracer) {
        let path = folder.path().join("1.dat");
        let (keeper, track) = Keeper::at_rest(&path);
        (path, keeper, Tracer::new(settings, track))
    }

    fn written(path: &Path) -> Vec<Record> {
        let bytes = std::fs::read(path).unwrap();
        bytes.as_chunks::<RECORD>().0.iter().map_while(|b| Record::from_bytes(*b).ok()).collect()
    }

    #[test]
    fn depths_are_right_on_both_sides_of_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let (path, keeper, mut tracer) = tracer(&dir, Settings::default());
        let mut time = run(&mut tracer, 1, 8_000);
        let lost = tracer.counts().1;
        assert!(lost > 10_000, "{lost}");
        // An outer function ended while nothing was recorded.
        let ret = Return { slot: Some(0x7fff_0000 - 32), ..Return::default() };
        tracer.ret(&ret, time);
        keeper.pass();

        time = run(&mut tracer, time + 10, 1_000);
        tracer.close(time);

        let records = written(&path);
        assert!(records.len() > 49_152 + 6_000, "{}", records.len());
        let (entries, missing) = check(records);
        assert_eq!((tracer.rest(), missing), (vec![], tracer.counts().1));
        // Each call has two records. The gap adds an exit and an entry for each open function, except for one
        // record that was not written yet.
        let records = 2 * tracer.counts().0.calls;
        let found = 2 * entries + missing;
        assert!((records - 2..=records + 2 * DEPTH).contains(&found), "{found} of {records}");
    }

    #[test]
    fn what_filters_leave_out_is_not_missing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _keeper, mut tracer) =
            tracer(&dir, Settings { depth: 1, ..Settings::default() });

        let time = run(&mut tracer, 1, 25_000);
        tracer.close(time);
        tracer.close(time);

        let records = written(&path).into_iter().chain(tracer.rest());
        let (entries, missing) = check(records);
        let found = 2 * entries + missing;
        assert!((49_998..=50_002).contains(&found) && missing > 0, "{found}, {missing}");
    }

    #[test]
    fn without_a_further_window_the_open_functions_have_exits() {
        let dir = tempfile::tempdir().unwrap();
        let (path, keeper, mut tracer) = tracer(&dir, Settings::default());

        let time = run(&mut tracer, 1, 10_000);
        tracer.close(time);
        keeper.end();

        let rest = tracer.rest();
        assert!(rest.len() < 10, "{rest:?}");
        let (_, missing) = check(written(&path).into_iter().chain(rest));
        assert_eq!(missing, tracer.counts().1);
    }

    #[test]
    fn a_region_that_ends_and_begins_in_a_gap_is_recorded_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, keeper, mut tracer) =
            tracer(&dir, Settings { paused: true, ..Settings::default() });
        tracer.turn(false, 1);
        let mut time = run(&mut tracer, 2, 8_000);
        tracer.turn(true, time);
        let lost = tracer.counts().1;
        time = run(&mut tracer, time, 100);
        assert_eq!(tracer.counts().1, lost, "nothing is missing outside the region");
        tracer.turn(false, time);
        keeper.pass();

        time = run(&mut tracer, time, 1_000);
        tracer.close(time);

        let records = written(&path);
        assert!(records.len() > 49_152 + 6_000, "{}", records.len());
        assert_eq!(check(records).1, tracer.counts().1);
    }
}
