// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Computes the critical path of a stage from the intervals of the VMM's threads.

use super::Step;
use crate::regions::Part;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Maximum number of steps from a thread to the thread that woke or created this thread.
const MAX_DEPTH: usize = 64;

/// An interval of a thread.
#[derive(Debug)]
pub(super) struct Span {
    pub from: i64,
    pub to: i64,
    pub part: Part,
    /// Thread that woke this thread, or thread that had the CPU for which this thread waited.
    pub waker: Option<u32>,
    /// Text that says what the thread waited for.
    pub cause: Option<String>,
}

/// Times in nanoseconds. The key is the name of the thread or cause, and the index of the part.
type Sums = HashMap<(String, usize), u64>;

/// Values of threads that the critical path needs.
pub(super) struct Threads<'a> {
    pub spans: &'a HashMap<u32, Vec<Span>>,
    /// Time at which each thread was created, and the thread that created it.
    pub makers: &'a HashMap<u32, (i64, u32)>,
    pub name: &'a dyn Fn(u32) -> String,
}

/// Returns the critical path for the time from `from` to `to`. The path ends on the thread `ender`, or on an
/// unknown thread if `ender` is `None`.
pub(super) fn steps(of: &Threads<'_>, ender: Option<u32>, (from, to): (i64, i64)) -> Vec<Step> {
    let mut sums = Sums::new();
    match ender {
        Some(tid) => follow(of, tid, (from, to), 0, &mut sums),
        None => add(&mut sums, "not known", Part::Unknown, (from, to)),
    }
    let step = |((name, part), ns)| Step { name, part: Part::ALL[part], ns };
    let mut steps = Vec::from_iter(sums.into_iter().map(step));
    steps.sort_by(|a, b| (Reverse(a.ns), &a.name).cmp(&(Reverse(b.ns), &b.name)));
    steps
}

fn add(sums: &mut Sums, name: &str, part: Part, (from, to): (i64, i64)) {
    if from < to {
        *sums.entry((name.to_owned(), part as usize)).or_default() += (to - from).unsigned_abs();
    }
}

/// Follows a thread from `from` to `to`. For the time before the thread was created, the path follows the
/// thread that created it. For times at which the thread was blocked, the path follows the thread that woke
/// it.
fn follow(of: &Threads<'_>, tid: u32, (mut from, to): (i64, i64), depth: usize, sums: &mut Sums) {
    let own = (of.name)(tid);
    if let Some((made, maker)) = of.makers.get(&tid).copied()
        && made > from
        && depth < MAX_DEPTH
    {
        follow(of, maker, (from, made.min(to)), depth + 1, sums);
        from = made.min(to);
    }
    let Some(all) = of.spans.get(&tid) else {
        return add(sums, &own, Part::Unknown, (from, to));
    };
    let mut at = from;
    for span in &all[all.partition_point(|span| span.to <= from)..] {
        if span.from >= to {
            break;
        }
        let times = (span.from.max(from), span.to.min(to));
        add(sums, &own, Part::Unknown, (at, times.0));
        at = times.1;
        match (span.part, span.waker) {
            (Part::Blocked, Some(waker)) if waker != tid && depth < MAX_DEPTH && span.to <= to => {
                follow(of, waker, times, depth + 1, sums);
            }
            (Part::Blocked, _) => {
                add(sums, span.cause.as_deref().unwrap_or(&own), Part::Blocked, times);
            }
            (part, _) => add(sums, &own, part, times),
        }
    }
    add(sums, &own, Part::Unknown, (at, to));
}
