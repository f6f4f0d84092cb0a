// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What a reader needs of a timeline.

use super::ctf::{ClockMaps, Session};
use crate::event::EventKind;

/// What a reader needs of the events of sessions: by default all. An event that nobody needs costs less to
/// read, because it is not mapped to the host's clock. The timeline may return such events all the same, so a
/// reader must drop them. Losses of a session are returned whatever is needed.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// First Unix time that is needed, in nanoseconds.
    from_ns: Option<i64>,
    /// Whether nobody needs the events of a class, by session and id of the class.
    unneeded: Vec<Box<[bool]>>,
    /// Whether events of the classes in `unneeded` are needed if their times are exact.
    pub(crate) has_exact: bool,
    pub(crate) without_kernels: bool,
    pub(crate) without_functions: bool,
    pub(crate) without_bounds: bool,
    /// Whether the events of all threads, beside the events of a kernel's trace, are needed too.
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

    /// Needs no event before this Unix time in nanoseconds, except events that say who holds a client.
    pub fn since(self, from_ns: Option<i64>) -> Needs {
        Needs { from_ns, ..self }
    }

    /// Needs only the events with such names in these sessions.
    pub fn named(
        self,
        sessions: &[(Session, ClockMaps)],
        mut is_needed: impl FnMut(&str) -> bool,
    ) -> Needs {
        let mut of_session = |(session, _): &(Session, ClockMaps)| {
            let mut unneeded = Vec::new();
            for class in session.classes().iter() {
                // Leases name the source of other events.
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

    /// Needs no events of function traces.
    pub fn without_functions(self) -> Needs {
        Needs { without_functions: true, ..self }
    }

    /// Needs no bounds on the errors of times, so that bounds may be missing.
    pub fn without_bounds(self) -> Needs {
        Needs { without_bounds: true, ..self }
    }

    /// Needs only the events and losses of sessions, none of kernels' traces or function traces.
    pub fn of_sessions(self) -> Needs {
        Needs { without_kernels: true, ..self.without_functions() }
    }

    /// Needs what regions are made of: the events of kernels, and the events of sessions except those of the
    /// classes in `unneeded`, which are needed only if their times are exact.
    pub(crate) fn of_regions(unneeded: Vec<Box<[bool]>>) -> Needs {
        let needs = Needs { unneeded, has_exact: true, has_all_threads: true, ..Needs::default() };
        needs.without_functions()
    }

    /// Returns the first time that is needed, in Unix nanoseconds.
    pub(crate) fn first_ns(&self) -> Option<i64> {
        self.from_ns
    }

    /// Returns the classes of a session that nobody needs, by id.
    pub(crate) fn unneeded(&self, session: usize) -> &[bool] {
        self.unneeded.get(session).map_or(&[], |unneeded| unneeded)
    }
}
