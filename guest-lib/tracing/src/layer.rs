//! The layer.
//!
//! What is recorded of a span:
//!
//! ```text
//! callback      event
//! first entry   NAME_begin (the first poll begins, too)
//! first exit    poll_end, unless the spans of this place in the code close after one entry
//! later entry   poll_begin
//! later exit    poll_end
//! close         NAME_end, with `any_client` unless the span was entered once, on the thread that closes it
//! ```

use crate::counts::{LOST_SPANS, WITHOUT_SCHEMA, add};
use crate::destination::{Destination, RING};
use crate::names::{Callsite, Names, Purpose, Shape};
use crate::open::{Close, Entry, Open, OpenSpans, WORDS};
use crate::text::EventText;
use crate::values::{BeginWords, Limits, Values};
use hypertrace_abi::event_type;
use hypertrace_abi::schema::mask_slot;
use hypertrace_log::parts::{Formatting, Message};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Interest, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Maximum number of words of an event.
const EVENT_WORDS: usize = 128;
/// Limits of an event's record. Besides the event's fields, the record has the target, the current span, and
/// the number of bytes that were cut off.
const OF_EVENT: Limits = Limits { fields: Shape::FIELDS - 3, text: 512, spare: 1 };
/// Limits of a span's record. Besides the span's fields, the record has the span's id, the parent's id, and
/// the target.
const OF_SPAN: Limits = Limits { fields: Shape::FIELDS - 3, text: 64, spare: 0 };
/// Number of words of a begin without fields.
const PLAIN: usize = 2;
/// Number that stands for a place in the code without schemas.
const NO_CALLSITE: u16 = u16::MAX;
/// Number of low bits of a span's number. The low bits count the process's spans, and the 22 bits above are
/// the process's number. A double can hold a whole number of these 53 bits.
const COUNT_BITS: u32 = 31;

/// A layer that records into a guest's ring or a VMM's backends.
pub struct HypertraceLayer<D> {
    _destination: D,
    names: Names,
    open: OpenSpans,
    has_polls: bool,
}

#[cfg(feature = "guest")]
impl HypertraceLayer<crate::Guest> {
    /// Returns a layer for a guest or a program.
    pub fn guest() -> Self {
        HypertraceLayer::new(crate::Guest)
    }
}

#[cfg(feature = "host")]
impl HypertraceLayer<crate::Host> {
    /// Returns a layer for a VMM.
    pub fn host() -> Self {
        HypertraceLayer::new(crate::Host)
    }
}

impl<D> HypertraceLayer<D> {
    /// Leaves out the polls of spans that are entered several times. Leaving out the polls saves two events
    /// for each poll, but `hypertrace regions` can then not distinguish a span's busy time from the span's
    /// idle time.
    ///
    /// ```
    /// # #[cfg(feature = "guest")] {
    /// let layer = hypertrace_tracing::HypertraceLayer::guest().without_polls();
    /// # let _ = layer;
    /// # }
    /// ```
    pub fn without_polls(self) -> Self {
        HypertraceLayer { has_polls: false, ..self }
    }
}

impl<D: fmt::Debug> fmt::Debug for HypertraceLayer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HypertraceLayer").field(&self._destination).finish()
    }
}

impl<D: Destination> HypertraceLayer<D> {
    fn new(destination: D) -> Self {
        HypertraceLayer {
            _destination: destination,
            names: Names::new(),
            open: OpenSpans::new(),
            has_polls: true,
        }
    }

    /// Returns a span that this process made, and the span's id.
    #[inline]
    fn own(&self, id: &Id) -> Option<(&Open, u64)> {
        let open = self.open.get(id.into_u64())?;
        Some((open, Self::own_serial(open)?))
    }

    #[inline]
    fn own_serial(open: &Open) -> Option<u64> {
        // A forked child has copies of its parent's spans, which the parent ends.
        Some(open.serial()).filter(|serial| serial >> COUNT_BITS == u64::from(D::process()))
    }

    /// Returns the id of the span that is around a new span or an event; 0 if there is no such span.
    #[inline]
    fn around<S>(&self, parent: Option<&Id>, is_contextual: bool, ctx: &Context<'_, S>) -> u64
    where
        S: Subscriber + for<'l> LookupSpan<'l>,
    {
        let serial = |id: &Id| self.open.get(id.into_u64()).map(Open::serial);
        if !is_contextual {
            return parent.and_then(serial).unwrap_or(0);
        }
        let current = ctx.current_span();
        let Some(id) = current.id() else { return 0 };
        // A filter may hide the innermost spans from this layer.
        serial(id).or_else(|| serial(&ctx.lookup_current()?.id())).unwrap_or(0)
    }

    /// Writes the fields of a new span. Returns the index of the begin's schema, and how many words the begin
    /// has.
    #[inline]
    fn first_words(
        &self,
        callsite: &Callsite,
        attributes: &Attributes<'_>,
        values: &mut Values<'_>,
    ) -> (u8, usize) {
        if callsite.metadata.fields().is_empty() || D::on_span(callsite.begin_slot) & RING == 0 {
            return (0, PLAIN);
        }
        let Some(_formatting) = Formatting::begin() else { return (0, PLAIN) };
        attributes.record(values);
        match self.names.schema(callsite, Purpose::Begin, values.shape()) {
            Some((number, _)) => (number, values.len()),
            None => (0, PLAIN),
        }
    }

    /// Records the begin of a span. Returns whether a backend receives the begin.
    #[inline]
    fn begin(&self, open: &Open, metadata: Option<&'static Metadata<'static>>) -> bool {
        let (number, schema, words) = open.get();
        if let Some(callsite) = self.names.get(number) {
            let on = D::on_span(callsite.begin_slot);
            if on & RING != 0
                && let Some(schema) = callsite.variant(schema)
            {
                D::emit(&schema.names, BeginWords(words, &callsite.target));
            }
            if on & !RING != 0 {
                D::begin(on & !RING, open.serial(), callsite.metadata.name());
            }
            return on != 0;
        }
        if let Some(metadata) = metadata {
            let (on, name) = (D::on_span(const { mask_slot("span_begin") }), metadata.name());
            let [id, parent] =
                [0, 1].map(|at| words.0.get(at).map_or(0, |word| word.load(Relaxed)));
            if on & RING != 0 {
                let target = metadata.target();
                let (site, fields) = event_type!("span_begin", id, parent, name, target);
                D::emit(site, fields);
            }
            if on & !RING != 0 {
                D::begin(on & !RING, id, name);
            }
            return on != 0;
        }
        false
    }

    #[inline]
    fn end(&self, callsite: Option<&Callsite>, id: u64, is_parted: bool) {
        let slot = callsite.map_or(const { mask_slot("span_end") }, |callsite| callsite.end_slot);
        let on = D::on_span(slot);
        if on & RING != 0 {
            match (callsite, is_parted) {
                (Some(callsite), false) => D::emit(&callsite.end, (id,)),
                (Some(callsite), true) => D::emit(&callsite.parted_end, (id, true)),
                (None, false) => {
                    let (site, fields) = event_type!("span_end", id);
                    D::emit(site, fields);
                }
                (None, true) => {
                    let (site, fields) = event_type!("span_end", id, any_client = true);
                    D::emit(site, fields);
                }
            }
        }
        if on & !RING != 0 {
            D::end(on & !RING, id);
        }
    }

    #[inline]
    fn poll_begin(&self, span: u64) {
        if self.has_polls && D::on_span(const { mask_slot("poll_begin") }) & RING != 0 {
            let (site, fields) = event_type!("poll_begin", span);
            D::emit(site, fields);
        }
    }

    #[inline]
    fn poll_end(&self, span: u64) {
        if self.has_polls && D::on_span(const { mask_slot("poll_end") }) & RING != 0 {
            let (site, fields) = event_type!("poll_end", span);
            D::emit(site, fields);
        }
    }

    /// Counts a span that finds no place. The function also records the loss in the trace.
    #[cold]
    fn lose(&self, metadata: &Metadata<'_>) {
        add(&LOST_SPANS);
        if D::on_span(const { mask_slot("span_lost") }) & RING != 0 {
            let (name, target) = (metadata.name(), metadata.target());
            let (site, fields) = event_type!("span_lost", name, target);
            D::emit(site, fields);
        }
    }

    /// Records an event with its fields. Returns `false` if the event has no schema of its own.
    #[inline]
    fn event(&self, event: &Event<'_>, span: u64) -> bool {
        let Some((_, callsite)) = self.names.find(event.metadata()) else {
            add(&WITHOUT_SCHEMA);
            return false;
        };
        let words = [const { AtomicU64::new(0) }; EVENT_WORDS];
        let mut values = Values::new(&words, OF_EVENT);
        values.text(event.metadata().target());
        values.word(span);
        event.record(&mut values);
        values.add_cut();
        let schema = self.names.schema(callsite, Purpose::Event, values.shape());
        if let Some((_, schema)) = schema {
            D::emit(&schema.names, values.kept());
        }
        schema.is_some()
    }
}

/// Returns an id for a new span of a process.
#[inline]
fn next_serial(process: u32) -> u64 {
    /// Number of span ids that a thread takes at once.
    const BLOCK: u64 = 1 << 10;
    static SPANS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    let next = NEXT.get();
    let next = if next.is_multiple_of(BLOCK) { SPANS.fetch_add(1, Relaxed) * BLOCK } else { next };
    NEXT.set(next + 1);
    let count = next % (1 << COUNT_BITS);
    u64::from(process) << COUNT_BITS | count
}

fn level(level: &Level) -> log::Level {
    match *level {
        Level::ERROR => log::Level::Error,
        Level::WARN => log::Level::Warn,
        Level::INFO => log::Level::Info,
        Level::DEBUG => log::Level::Debug,
        Level::TRACE => log::Level::Trace,
    }
}

impl<D, S> Layer<S> for HypertraceLayer<D>
where
    D: Destination,
    S: Subscriber + for<'l> LookupSpan<'l>,
{
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Prepares the place now, because the thread of the place's first event may be a vCPU's thread.
        self.names.find(metadata);
        Interest::always()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let id = id.into_u64();
        let Some(claim) = self.open.claim(id) else { return self.lose(attributes.metadata()) };
        let mut values = Values::new(claim.words(), OF_SPAN);
        values.word(next_serial(D::process()));
        values.word(self.around(attributes.parent(), attributes.is_contextual(), &ctx));
        let Some((number, callsite)) = self.names.find(attributes.metadata()) else {
            add(&WITHOUT_SCHEMA);
            return claim.keep(id, NO_CALLSITE, 0, PLAIN);
        };
        let (schema, words) = self.first_words(callsite, attributes, &mut values);
        claim.keep(id, number, schema, words);
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        let Some((open, serial)) = self.own(id) else { return };
        match open.enter() {
            Entry::First => {
                let is_kept = open.get().0 != NO_CALLSITE;
                let is_on = self.begin(open, if is_kept { None } else { ctx.metadata(id) });
                open.is_recorded.store(is_on, Relaxed);
            }
            Entry::Later => {
                if let Some(callsite) = self.names.get(open.get().0) {
                    callsite.note_again();
                }
                if open.is_recorded.load(Relaxed) {
                    self.poll_begin(serial);
                }
            }
            Entry::Nested => {}
        }
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        let Some((open, serial)) = self.own(id) else { return };
        let is_once = || self.names.get(open.get().0).is_some_and(Callsite::is_once);
        if open.exit() && open.is_recorded.load(Relaxed) && !is_once() {
            self.poll_end(serial);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.open.remove(id.into_u64(), |open| {
            if !open.is_recorded.load(Relaxed) {
                return;
            }
            let Some(serial) = Self::own_serial(open) else { return };
            let callsite = self.names.get(open.get().0);
            match open.close() {
                Close::NeverEntered => {}
                Close::Plain => {
                    callsite.into_iter().for_each(Callsite::note_once);
                    self.end(callsite, serial, false);
                }
                Close::Parted => self.end(callsite, serial, true),
            }
        });
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let Some((open, serial)) = self.own(id) else { return };
        let Some(callsite) = self.names.get(open.get().0) else {
            add(&WITHOUT_SCHEMA);
            return;
        };
        // Values that come before the first entry belong to a begin that is still to come.
        let has_begin = open.is_recorded.load(Relaxed) || open.close() == Close::NeverEntered;
        if !has_begin || D::on_span(callsite.record_slot) & RING == 0 {
            return;
        }
        let Some(_formatting) = Formatting::begin() else { return };
        let words = [const { AtomicU64::new(0) }; WORDS];
        let mut values = Values::new(&words, OF_SPAN);
        values.word(serial);
        record.record(&mut values);
        let schema = self.names.schema(callsite, Purpose::Record, values.shape());
        if let Some((_, schema)) = schema {
            D::emit(&schema.names, values.kept());
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let metadata = event.metadata();
        let level = level(metadata.level());
        let on = D::on(level);
        if on == 0 {
            return;
        }
        let Some(_formatting) = Formatting::begin() else { return };
        let span = || self.around(event.parent(), event.is_contextual(), &ctx);
        let others = if on & RING != 0 && self.event(event, span()) { on & !RING } else { on };
        if others != 0 {
            D::record(others, level, metadata.target(), &Message::of(EventText(event)));
        }
    }
}
