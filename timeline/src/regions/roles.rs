// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What events mean for regions. The meaning of each kind of event is found out once, from the event's name
//! and fields.

use super::cpus::CpuEvent;
use super::marks::{Kernel, is_exit, is_run};
use super::{By, Options, Select};
use crate::event::EventRef;
use crate::inputs::ctf::{ClockMaps, Session};
use crate::value::{Array, ValueRef, ValueWriter};
use hypertrace_abi::record::id;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Name of the polls of spans, and the field with the span's id.
const POLL: &str = "poll";
pub(super) const SPAN: &str = "span";
/// Fields of the event that begins a span. `PARENT` has the id of the span around the new span, and `TARGET`
/// has the new span's target.
const PARENT: &str = "parent";
const TARGET: &str = "target";
/// Field of events whose regions may begin on one client and end on another.
pub(super) const ANY_CLIENT: &str = "any_client";

/// Returns the names of the regions for which sessions have events. The events must have an id, or be polls
/// of spans.
pub fn names(sessions: &[(Session, ClockMaps)]) -> BTreeSet<String> {
    let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
    let with_id = classes.filter(|class| {
        class.fields.iter().any(|field| &**field == "id") || is_poll(&class.name, &class.fields)
    });
    let of = |name: &str| {
        let name = name.strip_suffix("_begin").or_else(|| name.strip_suffix("_end"))?;
        Some(name.to_owned())
    };
    with_id.filter_map(|class| of(&class.name)).collect()
}

/// Returns whether an event begins or ends a poll of a span.
pub(super) fn is_poll(name: &str, fields: &[Arc<str>]) -> bool {
    let name = name.strip_suffix("_begin").or_else(|| name.strip_suffix("_end"));
    name == Some(POLL) && matches!(fields, [only] if **only == *SPAN)
}

/// Returns the fields of the events that begin and end the selected regions.
pub fn fields(sessions: &[(Session, ClockMaps)], options: &Options) -> BTreeSet<String> {
    let names = selected(sessions, options);
    let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
    let borders = classes.filter(|class| {
        let role = Role::of(&class.name, &class.fields, 0, &names, options);
        role.begins.or(role.ends).is_some()
    });
    borders.flat_map(|class| &class.fields).map(|field| field.to_string()).collect()
}

/// Returns whether an event with these fields begins a span of the crate `tracing`. The layer for `tracing`
/// writes the same fields in the same order.
fn begins_span(fields: &[Arc<str>]) -> bool {
    let [id, parent, .., target] = fields else { return false };
    let is_of_any = fields.iter().any(|field| **field == *ANY_CLIENT);
    (&**id, &**parent, &**target) == ("id", PARENT, TARGET) && !is_of_any
}

/// Returns whether a session can have parted spans. Several threads can poll a parted span, and a special
/// event ends the span.
pub(super) fn has_parted(session: &Session) -> bool {
    session.classes().iter().any(|class| {
        let is_end = class.name.ends_with("_end");
        is_end && matches!(&*class.fields, [id, any] if &**id == "id" && &**any == ANY_CLIENT)
    })
}

/// If an event begins a span of the crate `tracing`, returns the new span's target and the id of the span
/// around the new span. The number is 0 if there is no span around the new span.
pub(super) fn span<'e>(event: &EventRef<'e>) -> Option<(u64, &'e [u8])> {
    if !begins_span(event.fields.names()) {
        return None;
    }
    let field = |wanted: &str| event.fields.iter().find(|(name, _)| ***name == *wanted);
    match (field(PARENT)?.1, field(TARGET)?.1) {
        (ValueRef::Unsigned(parent), ValueRef::Str(target)) => Some((parent, target)),
        _ => None,
    }
}

/// Returns the names of the selected regions, sorted.
fn selected(sessions: &[(Session, ClockMaps)], options: &Options) -> Vec<String> {
    let names: BTreeSet<String> = match &options.select {
        Select::Names(wanted) if wanted.is_empty() => names(sessions),
        Select::Names(wanted) => wanted.iter().cloned().collect(),
        Select::Between(a, b) => BTreeSet::from([format!("{a} to {b}")]),
    };
    Vec::from_iter(names)
}

/// What an event means for a span of the crate `tracing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfSpan {
    /// The begin of the span. The value is the index of the field with the target.
    Begin(u16),
    /// The begin of a later poll.
    PollBegin,
    /// The end of a poll.
    PollEnd,
}

/// Meaning of an event for regions. The event's name determines the meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Role {
    /// Region that the event begins.
    pub begins: Option<u32>,
    /// Region that the event ends.
    pub ends: Option<u32>,
    /// Field with the region's id.
    id: Option<u16>,
    /// Field whose value determines the group of a region.
    pub by: Option<u16>,
    /// What the event means for a span.
    pub span: Option<OfSpan>,
    /// Whether the event says that a span was not recorded.
    pub is_lost_span: bool,
    /// Whether the begin and the end of the region may be events of different clients.
    pub is_of_any: bool,
    /// Whether the event is the VMM's event right before the VMM enters the guest.
    pub is_run: bool,
    /// Field with the reason of an exit, if the event is the VMM's event after an exit.
    reason: Option<u16>,
    /// Id of the event's name.
    pub event: u32,
}

impl Role {
    fn of(
        name: &str,
        fields: &[Arc<str>],
        event: u32,
        names: &[String],
        options: &Options,
    ) -> Role {
        let number = |suffix| {
            let name = name.strip_suffix(suffix)?;
            // The names are sorted.
            Some(names.binary_search_by(|known| known.as_str().cmp(name)).ok()? as u32)
        };
        let field = |name: &str| {
            let at = fields.iter().position(|field| &**field == name)?;
            u16::try_from(at).ok()
        };
        // Polls have a number of their own after the numbers of all names, because a span can have the same
        // name as the polls.
        let of_poll = |suffix| name.ends_with(suffix).then_some(names.len() as u32);
        let (begins, ends, id) = match &options.select {
            Select::Names(_) if is_poll(name, fields) => {
                (of_poll("_begin"), of_poll("_end"), field(SPAN))
            }
            Select::Names(_) => (number("_begin"), number("_end"), field("id")),
            Select::Between(a, b) => ((name == a).then_some(0), (name == b).then_some(0), None),
        };
        let by = match &options.by {
            By::Field(name) => field(name),
            _ => None,
        };
        let span = match &options.select {
            Select::Between(..) => None,
            Select::Names(_) if is_poll(name, fields) => {
                Some(if begins.is_some() { OfSpan::PollBegin } else { OfSpan::PollEnd })
            }
            Select::Names(_) if begins.is_some() && begins_span(fields) => {
                field(TARGET).map(OfSpan::Begin)
            }
            Select::Names(_) => None,
        };
        let is_lost_span = name == "span_lost";
        let is_of_any = field(ANY_CLIENT).is_some();
        let reason = is_exit(name).then(|| field("reason")).flatten();
        let is_run = is_run(name);
        Role { begins, ends, id, by, span, is_lost_span, is_of_any, is_run, reason, event }
    }

    /// Returns the id in an event with this role; 0 if the event has no id.
    pub fn id(self, event: &EventRef<'_>) -> u64 {
        let field = self.id.and_then(|field| event.fields.iter().nth(field.into()));
        match field.map(|(_, value)| value) {
            Some(ValueRef::Unsigned(id) | ValueRef::Hex(id)) => id,
            Some(ValueRef::Signed(id)) => id as u64,
            _ => 0,
        }
    }

    /// Returns the name of the reason in the VMM's event after an exit, if the event has a reason.
    pub fn reason<'e>(self, event: &EventRef<'e>) -> Option<&'e [u8]> {
        match event.fields.iter().nth(self.reason?.into())?.1 {
            ValueRef::Str(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the target of the span that an event begins.
    pub fn target<'e>(self, event: &EventRef<'e>) -> Option<&'e [u8]> {
        let Some(OfSpan::Begin(field)) = self.span else { return None };
        match event.fields.iter().nth(field.into())?.1 {
            ValueRef::Str(target) => Some(target),
            _ => None,
        }
    }

    /// Returns the id of the span around the span that an event begins; 0 if there is no such outer span.
    pub fn parent(self, event: &EventRef<'_>) -> u64 {
        // `begins_span` accepts only events that have the field at this place.
        match (self.span, event.fields.iter().nth(1)) {
            (Some(OfSpan::Begin(_)), Some((_, ValueRef::Unsigned(parent)))) => parent,
            _ => 0,
        }
    }

    /// Returns the value by which an event's region is grouped.
    pub fn value(self, event: &EventRef<'_>) -> Option<String> {
        let field = self.by.and_then(|field| event.fields.iter().nth(field.into()));
        field.map(|(_, value)| shown(&value))
    }
}

/// The roles of all events.
#[derive(Debug)]
pub(super) struct Roles {
    /// Names of the regions: first the selected names, then the name of the polls if there are polls of
    /// spans.
    names: Vec<String>,
    /// Id of the polls' name, if the user did not select polls. In this case, polls only divide the time of
    /// their spans.
    hidden: Option<u32>,
    /// Roles of events. The key is the session and the id of the event's class.
    all: Vec<Vec<Role>>,
    /// Kinds and names of kernels' events.
    of_kernels: ByFormat<(Kernel, u32)>,
    /// Kinds of the kernels' events that tell something about a CPU.
    of_cpus: ByFormat<CpuEvent>,
    events: Events,
}

/// Names of events, by id.
#[derive(Debug, Default)]
struct Events {
    all: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Events {
    fn number(&mut self, name: &Arc<str>) -> u32 {
        let next = self.all.len() as u32;
        *self.numbers.entry(name.clone()).or_insert_with(|| {
            self.all.push(name.clone());
            next
        })
    }
}

impl Roles {
    /// Returns the roles of the events of sessions.
    pub fn of(sessions: &[(Session, ClockMaps)], options: &Options) -> Roles {
        let mut names = selected(sessions, options);
        let mut events = Events::default();
        let of_session = |(session, _): &(Session, ClockMaps)| {
            let mut roles = Vec::new();
            for class in session.classes().iter() {
                // The list needs no limit, because the list is no longer than the session's table of classes.
                roles.resize(class.id as usize, Role::default());
                let event = events.number(&class.name);
                roles.push(Role::of(&class.name, &class.fields, event, &names, options));
            }
            roles
        };
        let all = sessions.iter().map(of_session).collect();
        let mut classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
        let has_polls = matches!(options.select, Select::Names(_))
            && classes.any(|class| is_poll(&class.name, &class.fields));
        let is_hidden = has_polls && !names.iter().any(|name| name == POLL);
        let hidden = is_hidden.then_some(names.len() as u32);
        names.extend(has_polls.then(|| POLL.to_owned()));
        Roles {
            all,
            names,
            hidden,
            of_kernels: ByFormat::default(),
            of_cpus: ByFormat::default(),
            events,
        }
    }

    /// Returns, for each class of a session, whether the class is declared and no region begins or ends with
    /// an event of the class.
    pub fn no_borders(&self, session: usize) -> Box<[bool]> {
        let is_none = |(class, role): (u32, &Role)| {
            class >= id::FIRST && role.begins.is_none() && role.ends.is_none()
        };
        (0..).zip(&self.all[session]).map(is_none).collect()
    }

    /// Returns whether the regions with a name are not shown.
    pub fn is_hidden(&self, name: u32) -> bool {
        self.hidden == Some(name)
    }

    /// Returns the names of the regions.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the role of a session's event.
    pub fn get(&self, event: &EventRef<'_>) -> Role {
        let class = event.fields.class().map(|class| class as usize);
        let of_session = self.all.get(event.source.session);
        of_session
            .zip(class)
            .and_then(|(roles, class)| roles.get(class))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the kind of a kernel's event, and the id of the event's name.
    pub fn kernel(&mut self, event: &EventRef<'_>) -> (Kernel, u32) {
        let find = || (Kernel::of(event), self.events.number(event.name));
        self.of_kernels.get(event, find)
    }

    /// Returns what a kernel's event tells about the event's CPU.
    pub fn cpu_event(&mut self, event: &EventRef<'_>) -> CpuEvent {
        self.of_cpus.get(event, || CpuEvent::of(event))
    }

    /// Returns the names of events.
    pub fn into_events(self) -> Vec<Arc<str>> {
        self.events.all
    }
}

/// What is known about the kernels' events, by trace and by the format's index. The first event of each
/// format gives all of these facts.
#[derive(Debug)]
pub(super) struct ByFormat<T>(Vec<Vec<Option<T>>>);

impl<T> Default for ByFormat<T> {
    fn default() -> Self {
        ByFormat(Vec::new())
    }
}

impl<T: Copy> ByFormat<T> {
    pub fn get(&mut self, event: &EventRef<'_>, find: impl FnOnce() -> T) -> T {
        let Some(fields) = event.fields.kernel() else { return find() };
        let (trace, number) = (event.trace, fields.format.number as usize);
        if self.0.len() <= trace {
            self.0.resize_with(trace + 1, Vec::new);
        }
        let of_trace = &mut self.0[trace];
        if of_trace.len() <= number {
            of_trace.resize(number + 1, None);
        }
        *of_trace[number].get_or_insert_with(find)
    }
}

/// A value by which regions are grouped.
#[derive(Default)]
struct Shown(String);

impl ValueWriter for Shown {
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.0.push_str(&String::from_utf8_lossy(bytes));
    }

    fn hex(&mut self, number: u64) {
        self.put(&format!("{number:#x}"));
    }

    fn float(&mut self, number: f64) {
        self.put(&number.to_string());
    }

    fn array(&mut self, _: &Array<'_>) {
        self.put("a list");
    }
}

fn shown(value: &ValueRef<'_>) -> String {
    let mut shown = Shown::default();
    value.write(&mut shown);
    shown.0
}
