// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes regions as spans. One pass finds the regions, and a second pass reads the events that begin the
//! regions.

use super::request::Request;
use super::value::{Attributes, quoted, string};
use super::waits::{Wait, Waits};
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_timeline::regions::{Choice, Options, Region, Regions, Sample};
use hypertrace_timeline::{
    ClockMaps, Consumer, EntryRef, Error, EventRef, Recording, Session, ValueRef, Warning,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::ops::Deref;
use std::rc::Rc;

/// Name of a field in the event that begins a region. The field holds the trace context of the request to
/// which the region belongs.
const CONTEXT: &str = "traceparent";
/// Maximum number of events of a span: the default of OpenTelemetry's libraries.
const MAX_EVENTS: usize = 128;
/// Size in bytes that is enough for most spans.
const LIKELY: usize = 1 << 10;
/// Maximum number of open spans of a holder that can become parents of other spans.
const MAX_OPEN: usize = 1024;
/// Maximum number of spans of the crate `tracing` whose contexts are kept, so that other spans can name them
/// as parents. The spans that end last are kept, so that a long span remains the parent of all spans inside.
const MAX_PARENTS: usize = 1 << 16;
/// Maximum number of polls that are kept to become events of spans of the crate `tracing`.
const MAX_POLLS: usize = 1 << 20;

/// Counts of an export: what was written, and what could not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans.
    pub spans: u64,
    /// Regions that are not written as spans because they could not be measured.
    pub not_counted: u64,
    /// Regions that the choice leaves out.
    pub left_out: u64,
    /// Regions whose field `traceparent` is not a valid trace context.
    pub bad_contexts: u64,
    /// Minimum length in nanoseconds of a wait that becomes an event. Shorter waits are left out if there are
    /// too many waits.
    pub least_wait_ns: u64,
    /// Faults of the inputs.
    pub warnings: Vec<Warning>,
}

/// Writes the chosen regions as requests. `send` is called with the text of each request and the count of the
/// request's spans.
///
/// # Errors
/// If an input is damaged, or `send` returns an error. The first error ends the export.
pub fn write<E: From<Error>>(
    recording: &Recording,
    choice: Choice,
    send: Send<'_, E>,
) -> Result<Counts, E> {
    let mut waits = Waits::default();
    let regions = read(recording, choice, &mut waits)?;
    let mut writer = Writer::new(&recording.sessions, &regions, &waits, send);
    recording.read_regions(&regions, &mut writer)?;
    writer.flush()?;
    Ok(writer.counts)
}

/// Finds the regions, and the waits of their threads.
fn read(recording: &Recording, choice: Choice, waits: &mut Waits) -> Result<Regions, Error> {
    let options = Options { choice, ..Options::default() };
    Ok(match &recording.traces[..] {
        [] => Regions::of(recording, &options)?,
        _ => recording.regions(&options, waits)?,
    })
}

/// A place in a trace.
#[derive(Clone, Copy, Debug)]
struct Context {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl From<TraceParent> for Context {
    fn from(parent: TraceParent) -> Context {
        Context {
            trace_id: u128::from_be_bytes(parent.trace_id()),
            span_id: u64::from_be_bytes(parent.span_id()),
            flags: parent.flags(),
        }
    }
}

/// A span that may be the parent of other spans.
#[derive(Clone, Copy, Debug)]
struct Open {
    end: i64,
    depth: u8,
    context: Context,
}

/// A thread or program whose spans can be nested: the holder of a client, or a thread of the VMM.
#[derive(Debug, Default)]
struct Holder {
    token: u64,
    pid: Option<i128>,
    name: String,
    /// Attributes of the holder's thread.
    thread: Attributes,
    /// Attributes of the resources to which the holder's spans belong: the guest's resource, and the host's
    /// resource.
    resources: [Option<Rc<str>>; 2],
    open: Vec<Open>,
}

impl Holder {
    /// Makes a holder from the event that describes the holder.
    fn of(event: &EventRef<'_>) -> Holder {
        // The name is taken from the source, where its length is bounded. The event's field can be as long as
        // a record.
        let name = event.source.name.as_deref().unwrap_or_default().to_owned();
        let mut holder = Holder { name, ..Holder::default() };
        for (name, value) in event.fields.iter() {
            match (&**name, value) {
                ("token", ValueRef::Unsigned(token) | ValueRef::Hex(token)) => holder.token = token,
                ("pid", ValueRef::Unsigned(pid)) => holder.pid = Some(pid.into()),
                ("tid", ValueRef::Unsigned(tid)) => holder.thread.number("thread.id", tid),
                _ => {}
            }
        }
        if !holder.name.is_empty() {
            holder.thread.text("thread.name", holder.name.as_bytes());
        }
        holder
    }

    /// Returns the context of the innermost open region around this region.
    fn around(&self, sample: &Sample) -> Option<Context> {
        let is_around = |open: &&Open| open.end >= sample.end_ns() && open.depth < sample.depth();
        self.open.iter().rfind(is_around).map(|open| open.context)
    }

    /// Notes a region, because later regions may be inside the region. Regions that have ended are forgotten.
    fn begin(&mut self, sample: &Sample, context: Context) {
        self.open.retain(|open| open.end > sample.begin_ns);
        if self.open.len() == MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push(Open { end: sample.end_ns(), depth: sample.depth(), context });
    }

    /// Returns the program's name. A lease's name is either the program's name alone, or the program's name,
    /// a `/` and the thread's name.
    fn program(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Source of a region's events: the session, the guest's client if there is one, and the id of a thread of
/// the host.
type Source = (usize, Option<u32>, u32);

/// Key of a span of the crate `tracing`: the session, the process that made the span, and the span's id.
type SpanKey = (usize, Option<i128>, u64);

/// The contexts of spans of the crate `tracing`.
#[derive(Default)]
struct Parents {
    /// The contexts, with the ends and the serial numbers of the spans.
    all: HashMap<SpanKey, (Context, (i64, u64))>,
    /// The spans by their ends and numbers.
    by_end: BTreeMap<(i64, u64), SpanKey>,
    /// Serial number of the last span.
    last: u64,
}

impl Parents {
    fn get(&self, key: SpanKey) -> Option<Context> {
        self.all.get(&key).map(|(context, _)| *context)
    }

    /// Keeps a span that ends at this time. If there are too many spans, the span that ends first is
    /// forgotten.
    fn insert(&mut self, key: SpanKey, end: i64, context: Context) {
        self.last += 1;
        let order = (end, self.last);
        if let Some((_, old)) = self.all.insert(key, (context, order)) {
            self.by_end.remove(&old);
        }
        self.by_end.insert(order, key);
        if self.by_end.len() > MAX_PARENTS
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.all.remove(&first);
        }
    }
}

/// Values of a session that its spans need.
struct Described {
    /// Attributes of all resources of the session.
    provenance: Attributes,
    /// Name of the program that recorded the session.
    host_name: String,
    parent: Option<Context>,
    /// Hash of the session's UUID.
    hash: u128,
    is_program: bool,
}

/// Function that sends a request. The function is called with the text of the request and the count of the
/// request's spans.
type Send<'a, E> = &'a mut dyn FnMut(&str, u64) -> Result<(), E>;

struct Writer<'a, E> {
    sessions: Vec<Described>,
    regions: &'a Regions,
    waits: &'a Waits,
    holders: HashMap<Source, Holder>,
    /// The spans of the crate `tracing` that other spans can name as parents.
    parents: Parents,
    /// Beginnings and durations of the polls of each span of the crate `tracing`. The key is
    /// [`Sample::span`].
    polls: HashMap<u32, Vec<(i64, u64)>>,
    request: Request,
    counts: Counts,
    send: Send<'a, E>,
}

impl<E: From<Error>> Consumer for Writer<'_, E> {
    type Error = E;

    fn entry(&mut self, entry: &EntryRef<'_>) -> Result<bool, E> {
        if let EntryRef::Event(event) = entry {
            self.holders.insert(source(event), Holder::of(event));
        }
        Ok(true)
    }

    fn region(&mut self, region: &Region<'_>) -> Result<bool, E> {
        self.span(region)?;
        Ok(true)
    }
}

impl<'a, E> Writer<'a, E> {
    fn new(
        sessions: &[(Session, ClockMaps)],
        regions: &'a Regions,
        waits: &'a Waits,
        send: Send<'a, E>,
    ) -> Self {
        let not_counted = regions.groups.iter().flat_map(|group| group.not_counted);
        let counts = Counts {
            not_counted: not_counted.fold(0, u64::saturating_add),
            left_out: regions.left_out.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)),
            least_wait_ns: waits.least_ns,
            warnings: regions.warnings.clone(),
            ..Counts::default()
        };
        Writer {
            sessions: sessions.iter().map(|(session, _)| Described::of(session)).collect(),
            regions,
            waits,
            holders: HashMap::new(),
            parents: Parents::default(),
            polls: polls(regions),
            request: Request::default(),
            counts,
            send,
        }
    }

    /// Writes a region.
    fn span(&mut self, region: &Region<'_>) -> Result<(), E> {
        let Region { sample, begin: event, number, .. } = *region;
        let session = usize::from(sample.session);
        let (Some(described), Some(group)) =
            (self.sessions.get(session), self.regions.groups.get(usize::from(sample.group)))
        else {
            return Ok(());
        };
        if group.is_of_polls() {
            self.poll(session, sample);
            return Ok(());
        }
        let nobody = &mut Holder::default();
        let of_event = event.map(source);
        let holder = of_event.and_then(|source| self.holders.get_mut(&source)).unwrap_or(nobody);
        let (_, client, thread_of_vmm) = of_event.unwrap_or((session, sample.client(), 0));
        let numbers = [
            client.map_or(u64::MAX, u64::from),
            thread_of_vmm.into(),
            holder.token,
            sample.id,
            sample.begin_ns as u64,
            sample.duration_ns(),
            number,
        ];
        let hash = hash(described.hash, &group.name, &numbers);
        let span_id = (hash as u64 ^ (hash >> 64) as u64).max(1);

        // The context comes from the region's own event. If the event has no context, then the context comes
        // from the region around this region, or else from the session.
        let own = event.and_then(own_context);
        self.counts.bad_contexts += u64::from(own.is_some_and(|own| own.is_none()));
        let own = own.flatten();
        // A region that may begin and end on different clients has no parent and no children.
        let is_of_one = client == sample.client();
        let around = holder.around(sample).filter(|_| is_of_one);
        // A span of the crate `tracing` names its parent. Nesting on this thread does not show the parent,
        // because the parent may be polled on another thread.
        let said = region.span_parent();
        let is_of_tracing = said.is_some();
        let said = said.and_then(|parent| self.parents.get((session, holder.pid, parent)));
        let around = said.or(around);
        let parent = own.or(around).or(described.parent);
        let trace_id = parent.map_or(mixed(hash).max(1), |parent| parent.trace_id);
        let flags = parent.map_or(1, |parent| parent.flags);
        let context = Context { trace_id, span_id, flags };
        if is_of_one {
            holder.begin(sample, context);
        }
        if is_of_tracing {
            self.parents.insert((session, holder.pid, sample.id), sample.end_ns(), context);
        }

        let (begin, end) = (sample.begin_ns, sample.end_ns());
        let mut out = String::with_capacity(LIKELY);
        let _ = write!(out, "{{\"traceId\":\"{trace_id:032x}\",\"spanId\":\"{span_id:016x}\"");
        if let Some(parent) = parent {
            let _ = write!(out, ",\"parentSpanId\":\"{:016x}\"", parent.span_id);
        }
        let _ = write!(out, ",\"flags\":{flags},\"kind\":1,\"name\":");
        string(&mut out, group.name.as_bytes());
        quoted(&mut out, "startTimeUnixNano", begin.max(0));
        quoted(&mut out, "endTimeUnixNano", end.max(0));
        let thread = self.regions.thread(sample);
        let mut attributes = Attributes(String::with_capacity(LIKELY));
        attributes.number("hypertrace.region.id", sample.id);
        if let Some(client) = client {
            attributes.number("hypertrace.client", client);
        }
        attributes.append(&holder.thread);
        if let Some((tid, name)) = thread.filter(|_| !described.is_program) {
            // `tid` is the thread of the VMM that ran the guest during the region.
            attributes.number("hypertrace.vmm.thread.id", tid);
            if let Some(name) = name {
                let name = name.strip_prefix("vmm/").unwrap_or(name);
                attributes.text("hypertrace.vmm.thread.name", name.as_bytes());
            }
        }
        describe_times(&mut attributes, sample);
        if let Some(event) = event {
            describe_begin(&mut attributes, event, (own.is_some(), is_of_tracing));
        }
        out.push_str(",\"attributes\":[");
        out.push_str(&attributes.0);
        out.push(']');
        if let (Some(_), Some(Context { trace_id, span_id, .. })) = (own, around) {
            let _ = write!(
                out,
                ",\"links\":[{{\"traceId\":\"{trace_id:032x}\",\"spanId\":\"{span_id:016x}\"}}]"
            );
        }
        let resource = described.resource(client.is_none(), holder);
        let polls = sample.span().and_then(|span| self.polls.get(&span));
        if let Some(polls) = polls.filter(|_| is_of_tracing) {
            poll_events(&mut out, polls);
        } else if let Some((tid, _)) = thread {
            self.events(&mut out, self.waits.within(session, tid, (begin, end)));
        }
        out.push('}');
        if !self.request.has_room(&resource, &out) {
            self.flush()?;
        }
        self.request.add(&resource, out);
        Ok(())
    }

    /// Notes a poll of a span. Regions that begin and end during the poll become children of the span.
    fn poll(&mut self, session: usize, poll: &Sample) {
        let Some(client) = poll.client() else { return };
        let holder = self.holders.entry((session, Some(client), 0)).or_default();
        if let Some(context) = self.parents.get((session, holder.pid, poll.id)) {
            holder.begin(poll, context);
        }
    }

    /// Appends waits as events of a span. If there are too many waits, only the longest waits are appended.
    fn events(&self, out: &mut String, waits: &[Wait]) {
        if waits.is_empty() {
            return;
        }
        let ns = |wait: &Wait| wait.to.abs_diff(wait.from);
        let mut least = 0;
        if waits.len() > MAX_EVENTS {
            let mut all = Vec::from_iter(waits.iter().map(ns));
            let at = all.len() - MAX_EVENTS;
            least = *all.select_nth_unstable(at).1;
        }
        let mut count = 0;
        out.push_str(",\"events\":[");
        for wait in waits.iter().filter(|wait| ns(wait) >= least).take(MAX_EVENTS) {
            out.push_str(if count > 0 { ",{" } else { "{" });
            count += 1;
            let _ = write!(out, "\"name\":\"{}\"", wait.part.key());
            quoted(out, "timeUnixNano", wait.from.max(0));
            let mut attributes = Attributes::default();
            attributes.number("duration_ns", ns(wait));
            if let Some(cause) = self.regions.causes.get(usize::from(wait.cause)) {
                attributes.text("cause", cause.to_string().as_bytes());
            }
            let _ = write!(out, ",\"attributes\":[{}]}}", attributes.0);
        }
        let _ = write!(out, "],\"droppedEventsCount\":{}", waits.len() - count);
    }

    fn flush(&mut self) -> Result<(), E> {
        if let Some((text, spans)) = self.request.take() {
            (self.send)(&text, spans)?;
            self.counts.spans += spans;
        }
        Ok(())
    }
}

impl Described {
    fn of(session: &Session) -> Described {
        let json = session.json().deref();
        let mut provenance = Attributes::default();
        let mut host_name = "vmm";
        if let Some(origin) = &json.origin {
            let program = origin.command.split(' ').next().unwrap_or_default();
            host_name = program.rsplit('/').next().unwrap_or_default();
            provenance.text("host.name", origin.host.as_bytes());
            provenance.text("host.arch", origin.machine.as_bytes());
            provenance.text("os.type", b"linux");
            provenance.text("os.version", origin.kernel.as_bytes());
            provenance.text("hypertrace.command", origin.command.as_bytes());
            provenance.text("hypertrace.version", origin.version.as_bytes());
        }
        provenance.text("hypertrace.session", json.uuid.as_bytes());
        if let Some(boot) = &json.boot_id {
            provenance.text("hypertrace.boot_id", boot.as_bytes());
        }
        let lost = json
            .streams
            .iter()
            .fold(json.lost_unattached, |sum, stream| sum.saturating_add(stream.lost()));
        provenance.number("hypertrace.lost_events", lost);
        let parent = json.trace_parent.as_deref().and_then(|text| text.parse().ok());
        Described {
            host_name: host_name.to_owned(),
            parent: parent.map(|parent: TraceParent| parent.into()),
            hash: added(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, json.uuid.as_bytes()),
            is_program: json.programs,
            provenance,
        }
    }

    /// Returns the attributes of the resource for a span: the process that made the span, on the host or in
    /// the guest.
    fn resource(&self, is_host: bool, holder: &mut Holder) -> Rc<str> {
        if let Some(known) = &holder.resources[usize::from(is_host)] {
            return known.clone();
        }
        let mut attributes = Attributes::default();
        let (side, name) = match (self.is_program, is_host) {
            (true, true) => ("host", &*self.host_name),
            (true, false) => ("program", holder.program()),
            (false, true) => ("vmm", &*self.host_name),
            (false, false) => ("guest", holder.program()),
        };
        let name = if name.is_empty() { side } else { name };
        attributes.text("service.name", name.as_bytes());
        attributes.text("hypertrace.side", side.as_bytes());
        if let Some(pid) = holder.pid.filter(|pid| *pid > 0) {
            attributes.number("process.pid", pid);
        }
        attributes.append(&self.provenance);
        holder.resources[usize::from(is_host)].insert(attributes.0.into()).clone()
    }
}

/// Returns the trace context in the event that begins a region. Returns `Some(None)` if the event's context
/// is not valid, and `None` if the event has no context.
fn own_context(event: &EventRef<'_>) -> Option<Option<Context>> {
    let (_, value) = event.fields.iter().find(|(name, _)| &***name == CONTEXT)?;
    let text = match value {
        ValueRef::Str(text) => std::str::from_utf8(text).ok(),
        _ => None,
    };
    Some(text.and_then(|text| text.parse::<TraceParent>().ok()).map(Context::from))
}

/// Adds the parts of a region's time as attributes.
fn describe_times(attributes: &mut Attributes, sample: &Sample) {
    for (part, ns) in sample.times.iter().filter(|(_, ns)| *ns > 0) {
        attributes.number(&format!("hypertrace.{}", part.key_ns()), ns);
    }
    if let Some(ns) = sample.bound_ns() {
        attributes.number("hypertrace.duration_bound_ns", ns);
    }
}

/// Adds the fields of the event that begins a region, except the fields that hold the region's id and
/// context.
fn describe_begin(
    attributes: &mut Attributes,
    event: &EventRef<'_>,
    (has_context, is_of_tracing): (bool, bool),
) {
    if let Some(ns) = event.bound_ns() {
        attributes.number("hypertrace.begin_bound_ns", ns);
    }
    for (name, value) in event.fields.iter() {
        let is_context = has_context && &**name == CONTEXT;
        let is_parent = is_of_tracing && &**name == "parent";
        if !is_context && !is_parent && !["id", "any_client"].contains(&&**name) {
            attributes.field(name, &value);
        }
    }
}

/// Returns the polls of each span of the crate `tracing`, with [`Sample::span`] as the key.
fn polls(regions: &Regions) -> HashMap<u32, Vec<(i64, u64)>> {
    let is_poll = |sample: &&Sample| {
        regions.groups.get(usize::from(sample.group)).is_some_and(|group| group.is_of_polls())
    };
    let mut polls: HashMap<_, Vec<_>> = HashMap::new();
    for poll in regions.samples().filter(is_poll).take(MAX_POLLS) {
        let Some(span) = poll.span() else { continue };
        polls.entry(span).or_default().push((poll.begin_ns, poll.duration_ns()));
    }
    polls
}

/// Appends polls as events of a span. If there are too many polls, only the first polls are appended.
fn poll_events(out: &mut String, polls: &[(i64, u64)]) {
    out.push_str(",\"events\":[");
    for (at, (begin, duration)) in polls.iter().take(MAX_EVENTS).enumerate() {
        out.push_str(if at > 0 { ",{" } else { "{" });
        out.push_str("\"name\":\"poll\"");
        quoted(out, "timeUnixNano", (*begin).max(0));
        let mut attributes = Attributes::default();
        attributes.number("duration_ns", *duration);
        let _ = write!(out, ",\"attributes\":[{}]}}", attributes.0);
    }
    let _ = write!(out, "],\"droppedEventsCount\":{}", polls.len().saturating_sub(MAX_EVENTS));
}

fn source(event: &EventRef<'_>) -> Source {
    match event.source.client {
        Some(client) => (event.source.session, Some(client), 0),
        None => (event.source.session, None, event.thread.map_or(0, |thread| thread.tid)),
    }
}

/// Returns a hash of a region (FNV-1a of 128 bits). The calculation starts from the hash of the session and
/// mixes the bits at the end.
fn hash(session: u128, name: &str, numbers: &[u64]) -> u128 {
    let hash = numbers.iter().fold(session, |hash, number| added(hash, &number.to_le_bytes()));
    mixed(added(hash, name.as_bytes()))
}

/// Adds bytes to a hash.
fn added(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Mixes the bits of a hash, so that each half of the result depends on all bits of the hash.
fn mixed(hash: u128) -> u128 {
    let step =
        |hash: u128| (hash ^ hash >> 64).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    step(step(hash))
}
