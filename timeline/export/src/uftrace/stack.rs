// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The open functions of a thread, known only by the entries and exits of the functions.

use hypertrace_functions::record::{MAX_DEPTH, Record, RecordType};

/// Maximum number of open functions. Functions that are nested deeper are left out. The number is limited
/// because a search looks at all open functions.
const MAX_OPEN: usize = 1 << 14;

/// Open functions of a thread.
#[derive(Debug, Default)]
pub(super) struct Stack {
    open: Vec<u64>,
    /// Number of open functions that are nested deeper than [`MAX_OPEN`].
    beyond: u64,
    /// Number of open functions whose exits may be lost. The functions whose exits may be lost are the
    /// outermost functions.
    doubtful: usize,
    /// Number of lost events.
    lost: u64,
    time: u64,
    /// Earliest time of the next event. No two records have the same time, because readers confuse calls if
    /// an entry and the next record have the same time.
    next: u64,
    /// Number of calls that are left out because they are nested too deep.
    pub too_deep: u64,
    /// Number of exits whose entry is missing.
    pub without_entry: u64,
}

impl Stack {
    /// Notes an entry, and calls `f` with the entry's record.
    pub fn enter<E>(
        &mut self,
        time: u64,
        address: u64,
        f: &mut impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        self.advance(time);
        if self.doubtful > 0 && self.doubtful == self.open.len() {
            // If the function is already open, the function's exit was probably lost, so this entry counts as
            // the next call rather than a recursion. If the entry counted as a recursion, each loss would
            // make the stack deeper.
            if let Some(depth) = self.open.iter().position(|open| *open == address) {
                self.close(depth, f)?;
                self.advance(time);
            }
        }
        if self.open.len() >= MAX_OPEN {
            self.beyond += 1;
            self.too_deep += 1;
            return Ok(());
        }
        let depth = self.open.len();
        self.open.push(address);
        self.record(RecordType::Entry, depth, address, f)
    }

    /// Notes an exit, and calls `f` with the exit's record. Before this record, `f` gets a record for each
    /// inner function whose exit is missing: a `longjmp` has left the function, or the exit was lost.
    pub fn exit<E>(
        &mut self,
        time: u64,
        address: u64,
        f: &mut impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        self.advance(time);
        if self.beyond > 0 {
            self.beyond -= 1;
            return Ok(());
        }
        // The search is short, because there are at most MAX_OPEN open functions and the innermost function
        // nearly always fits.
        match self.open.iter().rposition(|open| *open == address) {
            Some(depth) => self.close(depth, f),
            None => {
                self.without_entry += 1;
                Ok(())
            }
        }
    }

    /// Notes that events were lost here. `is_balanced` says whether the lost events have equal numbers of
    /// entries and exits.
    pub fn lose(&mut self, events: u64, is_balanced: bool) {
        self.lost = self.lost.saturating_add(events);
        if is_balanced {
            return;
        }
        self.beyond = 0;
        self.doubtful = self.open.len();
    }

    /// Ends all open functions right after the last event. The record of the losses comes last, because
    /// `uftrace graph` (0.19) crashes if this record lies between the entry and the exit of a function.
    pub fn end<E>(&mut self, f: &mut impl FnMut(Record) -> Result<(), E>) -> Result<(), E> {
        self.beyond = 0;
        self.advance(self.time);
        self.close(0, f)?;
        if self.lost == 0 {
            return Ok(());
        }
        self.advance(self.time);
        f(Record { time: self.time, kind: RecordType::Lost, depth: 0, address: self.lost })
    }

    /// Notes an event that is neither entry nor exit. Returns the event's time, which differs from the times
    /// of all records.
    pub fn pass(&mut self, time: u64) -> u64 {
        self.advance(time);
        self.time
    }

    fn advance(&mut self, time: u64) {
        self.time = time.max(self.next);
        self.next = self.time.saturating_add(1);
    }

    /// Ends the functions from a depth on, the innermost first.
    fn close<E>(
        &mut self,
        depth: usize,
        f: &mut impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.open.len() > depth {
            let Some(address) = self.open.pop() else { break };
            self.record(RecordType::Exit, self.open.len(), address, f)?;
        }
        self.doubtful = self.doubtful.min(depth);
        Ok(())
    }

    fn record<E>(
        &mut self,
        kind: RecordType,
        depth: usize,
        address: u64,
        f: &mut impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        match u16::try_from(depth) {
            Ok(depth @ ..=MAX_DEPTH) => f(Record { time: self.time, kind, depth, address }),
            _ => {
                self.too_deep += u64::from(kind == RecordType::Entry);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Sign, depth, address and time of a record.
    type Written = (char, u16, u64, u64);

    /// Returns the records for a series of entries (`+`) and exits (`-`). Each event comes one unit of time
    /// after the event before. The function also returns the number of calls that are too deep, and the
    /// number of exits without an entry.
    fn records(events: &[(char, u64)]) -> (Vec<Written>, [u64; 2]) {
        let mut records = Vec::new();
        let mut take = |record: Record| {
            let sign = match record.kind {
                RecordType::Entry => '+',
                RecordType::Exit => '-',
                _ => '!',
            };
            records.push((sign, record.depth, record.address, record.time));
            Ok::<_, Infallible>(())
        };
        let mut stack = Stack::default();
        for (time, &(sign, address)) in events.iter().enumerate() {
            let Ok(()) = match sign {
                '+' => stack.enter(time as u64, address, &mut take),
                '!' => {
                    stack.lose(address, false);
                    Ok(())
                }
                _ => stack.exit(time as u64, address, &mut take),
            };
        }
        let Ok(()) = stack.end(&mut take);
        (records, [stack.too_deep, stack.without_entry])
    }

    #[test]
    fn a_function_that_is_called_again_after_a_loss_had_ended() {
        let (records, left_out) = records(&[
            ('+', 1),
            ('+', 2),
            ('+', 3),
            ('!', 7),
            ('+', 2),
            ('+', 2),
            ('-', 2),
            ('-', 1),
        ]);

        let expected = [
            ('+', 0, 1, 0),
            ('+', 1, 2, 1),
            ('+', 2, 3, 2),
            ('-', 2, 3, 4),
            ('-', 1, 2, 4),
            ('+', 1, 2, 5),
            ('+', 2, 2, 6),
            ('-', 2, 2, 7),
            ('-', 1, 2, 8),
            ('-', 0, 1, 8),
            ('!', 0, 7, 10),
        ];
        assert_eq!((records.as_slice(), left_out), (expected.as_slice(), [0, 0]));
    }

    #[test]
    fn losses_add_no_depths() {
        let calls = [('+', 2), ('+', 3), ('!', 1)];
        let events: Vec<_> = [('+', 1)].into_iter().chain(calls.repeat(5_000)).collect();

        let (records, left_out) = records(&events);

        assert_eq!((records.iter().map(|record| record.1).max(), left_out), (Some(2), [0, 0]));
    }

    #[test]
    fn calls_that_balance_are_unchanged() {
        let (records, left_out) = records(&[('+', 1), ('+', 2), ('-', 2), ('-', 1)]);

        assert_eq!(records, [('+', 0, 1, 0), ('+', 1, 2, 1), ('-', 1, 2, 2), ('-', 0, 1, 3)]);
        assert_eq!(left_out, [0, 0]);
    }

    #[test]
    fn an_exit_ends_the_functions_that_a_longjmp_has_left() {
        let (records, _) = records(&[('+', 1), ('+', 2), ('+', 3), ('-', 1)]);

        assert_eq!(records[3..], [('-', 2, 3, 3), ('-', 1, 2, 3), ('-', 0, 1, 3)]);
    }

    #[test]
    fn functions_that_are_open_at_the_end_end_there() {
        let (records, _) = records(&[('+', 1), ('+', 2)]);

        assert_eq!(records[2..], [('-', 1, 2, 2), ('-', 0, 1, 2)]);
    }

    #[test]
    fn an_exit_without_an_entry_is_left_out_and_counted() {
        assert_eq!(
            records(&[('-', 7), ('+', 1), ('-', 1)]),
            (vec![('+', 0, 1, 1), ('-', 0, 1, 2)], [0, 1])
        );
    }

    #[test]
    fn deep_recursion_is_cut_and_balances() {
        let deep = MAX_OPEN + 10;
        let mut events = vec![('+', 1)];
        events.extend(std::iter::repeat_n(('+', 2), deep));
        events.extend(std::iter::repeat_n(('-', 2), deep));
        events.push(('-', 1));

        let (records, left_out) = records(&events);

        assert_eq!(records.len(), 2 * (1_023 + 1));
        assert_eq!(left_out, [(deep - 1_023) as u64, 0]);
        assert_eq!(records.last(), Some(&('-', 0, 1, events.len() as u64 - 1)));
    }
}
