// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The choice of the events that are wanted.

use hypertrace_format::pattern::matches;
use hypertrace_timeline::{
    Consumer, EntryRef, EventKind, EventRef, FUNCTION_FIELDS, Filter, FilterError, KernelTrace,
    Needs, PIECE_EVENT, Recording, Warning,
};
use std::collections::HashSet;

/// Name of the reference points with which `hypertrace forward` relates the guest kernel's clock to the
/// host's clock. The events that follow these points have the same name.
pub const CLOCK_EVENT: &str = "guest_kernel_clock";

/// Returns whether an event only carries a part of a guest's recording. The output shows the recording's
/// events instead of the event that carries them.
pub fn is_carrier(event: &EventRef<'_>) -> bool {
    event.source.client.is_some() && [PIECE_EVENT, CLOCK_EVENT].contains(&&**event.name)
}

/// The events and losses that are wanted: by default all, except events that only say which thread holds a
/// client.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Patterns with `*` and `?`. At least one pattern has to fit the event's name. If there are no patterns,
    /// all names fit.
    pub events: Vec<String>,
    /// Clients of the guest that are wanted. If the list is empty, everything is wanted.
    pub clients: Vec<u32>,
    /// Condition that is true for an event.
    pub filter: Option<Filter>,
    /// First Unix time that is wanted, in nanoseconds.
    pub from_ns: Option<i64>,
    /// Last Unix time that is wanted, in nanoseconds.
    pub to_ns: Option<i64>,
    /// Whether events that say which thread holds a client are wanted too.
    pub has_leases: bool,
    /// Whether the consumer shows no bounds on the errors of times.
    pub without_bounds: bool,
}

impl Choice {
    /// Checks that each field of the filter is a field of some event.
    ///
    /// # Errors
    /// If no event has a field of the filter.
    pub fn check(&self, recording: &Recording) -> Result<(), FilterError> {
        let Recording { sessions, traces, .. } = recording;
        let Some(filter) = &self.filter else { return Ok(()) };
        let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
        let mut known: HashSet<&str> = classes.flat_map(|c| &c.fields).map(|f| &**f).collect();
        known.extend(traces.iter().flat_map(KernelTrace::fields));
        known.extend(FUNCTION_FIELDS);
        filter.check(&known)
    }

    /// Returns whether some events are not wanted.
    pub fn is_filtered(&self) -> bool {
        let has_names = !self.events.is_empty() || !self.clients.is_empty();
        has_names || self.filter.is_some() || self.from_ns.is_some() || self.to_ns.is_some()
    }

    /// Reads a recording, and gives the consumer the events and losses that this choice admits, until the
    /// consumer wants no more. Returns the faults of inputs that could be read in spite of these faults.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read<E: From<hypertrace_timeline::Error>>(
        &self,
        recording: &Recording,
        consumer: &mut dyn Consumer<Error = E>,
    ) -> Result<Vec<Warning>, E> {
        recording.read(&self.needs(recording), &mut |entry: &EntryRef<'_>| match () {
            () if self.ends_before(entry) => Ok(false),
            () if self.admits(entry) => consumer.entry(entry),
            () => Ok(true),
        })
    }

    fn needs(&self, recording: &Recording) -> Needs {
        if !recording.modules.is_empty() {
            // All events are read, because an event of another name or before the first wanted time may say
            // where the files with the functions are mapped.
            return Needs::default();
        }
        let needs = Needs::default().since(self.from_ns);
        let needs = if self.without_bounds { needs.without_bounds() } else { needs };
        match &*self.events {
            [] => needs,
            // The reader needs events of all names, because an event of any name can show that the last
            // wanted time has passed.
            _ if self.to_ns.is_some() => needs,
            patterns => needs.named(&recording.sessions, |name| {
                patterns.iter().any(|pattern| matches(pattern, name))
            }),
        }
    }

    /// Returns whether a Unix time is after the last wanted time.
    pub fn is_past(&self, ts_ns: i64) -> bool {
        self.to_ns.is_some_and(|to| ts_ns > to)
    }

    /// Returns whether this event and all later events are after the last wanted time. A loss does not count,
    /// because it may have an earlier time than the entry before it.
    pub fn ends_before(&self, entry: &EntryRef<'_>) -> bool {
        matches!(entry, EntryRef::Event(event) if self.is_past(event.ts_ns))
    }

    /// Returns whether an event or a loss is wanted. A loss is wanted regardless of the wanted names and
    /// fields, because any event may be among the lost events.
    pub fn admits(&self, entry: &EntryRef<'_>) -> bool {
        match entry {
            EntryRef::Event(event) => self.admits_event(event),
            EntryRef::Lost(lost) => {
                lost.ts_ns.is_none_or(|ts_ns| self.is_within(ts_ns))
                    && self.is_of_client(lost.source.client)
            }
        }
    }

    fn admits_event(&self, event: &EventRef<'_>) -> bool {
        self.is_within(event.ts_ns)
            && match &*self.events {
                [] if is_carrier(event) => false,
                [] => event.kind != EventKind::Lease || self.has_leases || self.filter.is_some(),
                globs => globs.iter().any(|glob| matches(glob, event.name)),
            }
            && self.is_of_client(event.source.client)
            && self.filter.as_ref().is_none_or(|filter| filter.fits(event))
    }

    fn is_within(&self, ts_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| ts_ns >= from) && !self.is_past(ts_ns)
    }

    fn is_of_client(&self, client: Option<u32>) -> bool {
        let clients = &self.clients;
        clients.is_empty() || client.is_some_and(|client| clients.contains(&client))
    }
}
