// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that a reader needs from a timeline.

use super::ctf::{ClockMaps, Session};
use crate::event::EventKind;

/// The events that a reader needs from a timeline: by default all events. An event that nobody needs costs
/// less, because its time is not mapped to the host's clock. The timeline may still return events that nobody
/// needs, so a reader must drop such events. The timeline returns all losses of sessions, even if the reader
/// needs no events.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// First Unix time that is needed, in nanoseconds.
    from_ns: Option<i64>,
    /// For each session, a list with an element for each class id: the element is true if nobody needs the
    /// events of the class.
    unneeded: Vec<Box<[bool]>>,
    /// Whether events of the classes in `unneeded` are needed nevertheless if their times are exact.
    pub(crate) has_exact: bool,
    pub(crate) without_kernels: bool,
    pub(crate) without_functions: bool,
    pub(crate) without_bounds: bool,
    /// Whether the reader also needs the second buffer of a kernel's trace, with the scheduling of all
    /// threads.
    pub(crate) has_all_threads: bool,
}

impl Needs {
    /// Needs all.
    pub const ALL: &Needs = &Needs {
        from_ns: None,
        unneeded: Vec::new(),
        has_exact: false,
        without_kernels: false,
        without_functions: false,
        without_bounds: false,
        has_all_threads: false,
    };

    /// Leaves out the events before this Unix time in nanoseconds, except events that say which thread holds
    /// a client.
    pub fn since(self, from_ns: Option<i64>) -> Needs {
        Needs { from_ns, ..self }
    }

    /// Leaves out the events in these sessions whose names `is_needed` does not accept.
    pub fn named(
        self,
        sessions: &[(Session, ClockMaps)],
        mut is_needed: impl FnMut(&str) -> bool,
    ) -> Needs {
        let mut of_session = |(session, _): &(Session, ClockMaps)| {
            let mut unneeded = Vec::new();
            for class in session.classes().iter() {
                // Leases are always needed, because they name the source of other events.
                if class.kind(0) != EventKind::Lease && !is_needed(&class.name) {
                    unneeded.resize(unneeded.len().max(class.id as usize + 1), false);
                    unneeded[class.id as usize] = true;
                }
            }
            unneeded.into()
        };
        let unneeded = sessions.iter().map(&mut of_session).collect();
        Needs { unneeded, ..self }
    }

    /// Leaves out the events of function traces.
    pub fn without_functions(self) -> Needs {
        Needs { without_functions: true, ..self }
    }

    /// Says that the reader needs no bounds on the errors of times, so the timeline may leave out bounds.
    pub fn without_bounds(self) -> Needs {
        Needs { without_bounds: true, ..self }
    }

    /// Leaves out the events and losses of kernels' traces and of function traces, so that only the events
    /// and losses of sessions remain.
    pub fn of_sessions(self) -> Needs {
        Needs { without_kernels: true, ..self.without_functions() }
    }

    /// Returns the needs of a reader that computes regions: the events of kernels and of sessions. Events of
    /// the classes in `unneeded` are needed only if their times are exact.
    pub(crate) fn of_regions(unneeded: Vec<Box<[bool]>>) -> Needs {
        let needs = Needs { unneeded, has_exact: true, has_all_threads: true, ..Needs::default() };
        needs.without_functions()
    }

    /// Returns the first time that is needed, in Unix nanoseconds.
    pub(crate) fn first_ns(&self) -> Option<i64> {
        self.from_ns
    }

    /// Returns for each id of a class in this session whether nobody needs the events of the class.
    pub(crate) fn unneeded(&self, session: usize) -> &[bool] {
        self.unneeded.get(session).map_or(&[], |unneeded| unneeded)
    }
}
