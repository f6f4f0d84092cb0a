// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Calls and times by function and caller.

use std::collections::HashMap;

use super::calls::Call;
use super::spans::Spans;
use super::trace::Trace;
use crate::Error;

/// Maximum number of functions of a summary, and also of pairs of a function and a caller. The sums of all
/// further functions and pairs go to a single function without a name, at address 0.
pub const MAX_FUNCTIONS: usize = 1 << 20;

/// Order of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Time in the function and in the functions that it called.
    Total,
    /// Time in the function alone.
    SelfTime,
    /// Number of calls.
    Calls,
}

/// Calls of a function from one calling function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Address of the caller, if known.
    pub function: Option<u64>,
    /// Number of calls from this calling function.
    pub calls: u64,
    /// Time of these calls in nanoseconds. Nested recursive calls count once.
    pub total: u64,
}

/// Sums of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Address of the function, of 48 bits.
    pub address: u64,
    /// Number of calls of the function. The entries that a recorder writes when the guest resumes a stack do
    /// not count as calls.
    pub calls: u64,
    /// Time of the function's calls in nanoseconds. Nested recursive calls count once.
    pub total: u64,
    /// Time in the function itself in nanoseconds. The time of the functions that the function called is not
    /// included.
    pub self_time: u64,
    /// Minimum time from an entry to its exit in nanoseconds. If the guest uses another stack during a call,
    /// then the call has several entries.
    pub min: u64,
    /// Maximum time from an entry to its exit in nanoseconds.
    pub max: u64,
}

/// Sums of many calls.
#[derive(Debug, Default)]
pub struct Summary {
    functions: HashMap<u64, Function>,
    callers: HashMap<(u64, Option<u64>), Caller>,
    /// Number of calls in the sums.
    pub calls: u64,
    /// Number of calls without an exit.
    pub unfinished: u64,
    /// Number of exits without an entry. The functions of these exits were called before the recording began.
    pub orphans: u64,
    /// Number of records that were lost, as the recorder says.
    pub lost: u64,
    /// Damage by task. The sums contain everything that could be read in spite of the damage.
    pub damage: Vec<Error>,
}

impl Summary {
    /// Adds up all calls of a trace, including the calls behind damaged records.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        Summary::within(trace, None)
    }

    /// Adds up the calls in some parts of a trace's time. Time outside of these parts does not count. `None`
    /// stands for the whole time of the trace.
    #[must_use]
    pub fn within(trace: &Trace, spans: Option<&Spans>) -> Self {
        let mut summary = Summary::default();
        for task in trace.tasks() {
            let mut calls = match trace.calls(task.tid) {
                Ok(calls) => calls,
                Err(error) => {
                    summary.damage.push(error);
                    continue;
                }
            };
            if let Some(spans) = spans {
                calls = calls.within(spans);
            }
            for call in &mut calls {
                match call {
                    Ok(call) => summary.add(&call),
                    Err(error) => summary.damage.push(error),
                }
            }
            summary.orphans = summary.orphans.saturating_add(calls.orphans());
            summary.lost = summary.lost.saturating_add(calls.lost());
        }
        summary
    }

    /// Adds a call.
    pub fn add(&mut self, call: &Call) {
        let time = call.time;
        let calls = u64::from(!call.is_continued);
        self.calls += calls;
        self.unfinished += u64::from(!call.has_exit);
        let known = |address: &u64| self.functions.contains_key(address);
        let has_room = self.functions.len() < MAX_FUNCTIONS || known(&call.function);
        let address = if has_room { call.function } else { 0 };
        let first = Function { min: u64::MAX, ..Function::default() };
        let function = self.functions.entry(address).or_insert(first);
        function.min = function.min.min(time);
        function.max = function.max.max(time);
        function.address = address;
        function.calls += calls;
        function.self_time = function.self_time.saturating_add(call.self_time);
        // The time of a recursive call is part of the time of the call around it.
        let counted = if call.is_recursive { 0 } else { time };
        function.total = function.total.saturating_add(counted);

        let mut pair = (address, call.caller);
        if self.callers.len() >= MAX_FUNCTIONS && !self.callers.contains_key(&pair) {
            pair = (0, None);
        }
        let caller = self.callers.entry(pair).or_default();
        caller.function = pair.1;
        caller.calls += calls;
        caller.total = caller.total.saturating_add(counted);
    }

    /// Returns the `number` functions with the largest values, the largest value first. `by` selects the
    /// value.
    #[must_use]
    pub fn top(&self, number: usize, by: By) -> Vec<&Function> {
        let key = |function: &Function| match by {
            By::Total => function.total,
            By::SelfTime => function.self_time,
            By::Calls => function.calls,
        };
        let mut functions: Vec<_> = self.functions.values().collect();
        // Functions with equal values are in the order of their addresses, so that each run gives the same
        // order.
        functions.sort_by_key(|function| (std::cmp::Reverse(key(function)), function.address));
        functions.truncate(number);
        functions
    }

    /// Returns the counts of calls and the times of a function.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// Returns the number of functions that were called.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns a function's callers, the caller with the most time first.
    #[must_use]
    pub fn callers(&self, address: u64) -> Vec<Caller> {
        let its = self.callers.iter().filter(|((function, _), _)| *function == address);
        let mut callers: Vec<_> = its.map(|(_, caller)| *caller).collect();
        callers.sort_by_key(|caller| (std::cmp::Reverse(caller.total), caller.function));
        callers
    }
}
