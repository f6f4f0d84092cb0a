//! The layer.

use crate::counts::{WITHOUT_FIELDS, WITHOUT_SCHEMA, add};
use crate::destination::{Destination, RING};
use crate::names::{Callsite, Names, Purpose, Shape};
use crate::open::{OpenSpans, WORDS};
use crate::text::EventText;
use crate::values::{Limits, Values};
use hypertrace_log::parts::{Formatting, Message};
use std::fmt;
use std::sync::atomic::AtomicU64;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Interest, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Words of an event.
const EVENT_WORDS: usize = 128;
/// Besides the fields of an event, its record has the target and the bytes cut off.
const OF_EVENT: Limits = Limits { fields: Shape::FIELDS - 2, text: 512, spare: 1 };
/// Besides the fields of a span, its record has the span's number.
const OF_SPAN: Limits = Limits { fields: Shape::FIELDS - 1, text: 64, spare: 0 };

/// A layer that records into a guest's ring or a VMM's backends.
pub struct HypertraceLayer<D> {
    _destination: D,
    names: Names,
    open: OpenSpans,
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

impl<D: fmt::Debug> fmt::Debug for HypertraceLayer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HypertraceLayer").field(&self._destination).finish()
    }
}

impl<D: Destination> HypertraceLayer<D> {
    fn new(destination: D) -> Self {
        HypertraceLayer { _destination: destination, names: Names::new(), open: OpenSpans::new() }
    }

    /// Writes the words of an entry into a new span. Returns the number of its schema and
    /// of the words.
    #[inline]
    fn first_words(
        &self,
        callsite: &Callsite,
        attributes: &Attributes<'_>,
        values: &mut Values<'_>,
    ) -> (u8, usize) {
        if callsite.metadata.fields().is_empty() || D::on_span(callsite.begin_slot) & RING == 0 {
            return (0, 1);
        }
        let Some(_formatting) = Formatting::begin() else { return (0, 1) };
        attributes.record(values);
        match self.names.schema(callsite, Purpose::Begin, values.shape()) {
            Some((number, _)) => (number, values.len()),
            None => (0, 1),
        }
    }

    /// Records an entry into a span, or an exit, that is not kept.
    #[cold]
    fn not_kept(&self, id: u64, metadata: &'static Metadata<'static>, is_begin: bool) {
        let found = self.names.find(metadata);
        if is_begin {
            add(if found.is_some() { &WITHOUT_FIELDS } else { &WITHOUT_SCHEMA });
        }
        match found {
            Some((_, callsite)) if is_begin => {
                let on = D::on_span(callsite.begin_slot);
                if on & RING != 0
                    && let Some(schema) = callsite.variant(0)
                {
                    D::emit(&schema.names, (id,));
                }
                Self::begin(on & !RING, id, metadata);
            }
            Some((_, callsite)) => Self::end(callsite, id),
            None if is_begin => Self::begin(D::on_span(span_slot()), id, metadata),
            None => {
                let on = D::on_span(span_slot());
                if on != 0 {
                    D::end(on, id);
                }
            }
        }
    }

    #[inline]
    fn begin(on: u32, id: u64, metadata: &'static Metadata<'static>) {
        if on != 0 {
            D::begin(on, id, metadata.name());
        }
    }

    #[inline]
    fn end(callsite: &Callsite, id: u64) {
        let on = D::on_span(callsite.end_slot);
        if on & RING != 0 {
            D::emit(&callsite.end, (id,));
        }
        if on & !RING != 0 {
            D::end(on & !RING, id);
        }
    }

    /// Records an event with its fields. `false`: it has no schema of its own.
    #[inline]
    fn event(&self, event: &Event<'_>) -> bool {
        let Some((_, callsite)) = self.names.find(event.metadata()) else {
            add(&WITHOUT_SCHEMA);
            return false;
        };
        let words = [const { AtomicU64::new(0) }; EVENT_WORDS];
        let mut values = Values::new(&words, OF_EVENT);
        values.text(event.metadata().target());
        event.record(&mut values);
        values.add_cut();
        let schema = self.names.schema(callsite, Purpose::Event, values.shape());
        if let Some((_, schema)) = schema {
            D::emit(&schema.names, values.kept());
        }
        schema.is_some()
    }
}

/// The slot of the spans that have no schema of their own.
const fn span_slot() -> usize {
    const { hypertrace_abi::schema::mask_slot("span_begin") }
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
        // Now rather than at the first event, which may be on a vCPU's thread.
        self.names.find(metadata);
        Interest::always()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let id = id.into_u64();
        // One that finds no schema, or no place, is found again by its entry.
        if let Some((number, callsite)) = self.names.find(attributes.metadata())
            && let Some(claim) = self.open.claim(id)
        {
            let mut values = Values::new(claim.words(), OF_SPAN);
            values.word(id);
            let (schema, words) = self.first_words(callsite, attributes, &mut values);
            claim.keep(id, number, schema, words);
        }
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        let id_word = id.into_u64();
        let Some(open) = self.open.get(id_word) else {
            if let Some(metadata) = ctx.metadata(id) {
                self.not_kept(id_word, metadata, true);
            }
            return;
        };
        let (number, schema, words) = open.get();
        let Some(callsite) = self.names.get(number) else { return };
        let on = D::on_span(callsite.begin_slot);
        if on & RING != 0
            && let Some(schema) = callsite.variant(schema)
        {
            D::emit(&schema.names, words);
        }
        Self::begin(on & !RING, id_word, callsite.metadata);
    }

    fn on_exit(&self, id: &Id, ctx: Context<'_, S>) {
        let id_word = id.into_u64();
        if let Some(open) = self.open.get(id_word) {
            if let Some(callsite) = self.names.get(open.get().0) {
                Self::end(callsite, id_word);
            }
        } else if let Some(metadata) = ctx.metadata(id) {
            self.not_kept(id_word, metadata, false);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.open.remove(id.into_u64());
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, ctx: Context<'_, S>) {
        let Some(metadata) = ctx.metadata(id) else { return };
        let Some((_, callsite)) = self.names.find(metadata) else {
            add(&WITHOUT_SCHEMA);
            return;
        };
        if D::on_span(callsite.record_slot) & RING == 0 {
            return;
        }
        let Some(_formatting) = Formatting::begin() else { return };
        let words = [const { AtomicU64::new(0) }; WORDS];
        let mut values = Values::new(&words, OF_SPAN);
        values.word(id.into_u64());
        record.record(&mut values);
        let schema = self.names.schema(callsite, Purpose::Record, values.shape());
        if let Some((_, schema)) = schema {
            D::emit(&schema.names, values.kept());
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let level = level(metadata.level());
        let on = D::on(level);
        if on == 0 {
            return;
        }
        let Some(_formatting) = Formatting::begin() else { return };
        let others = if on & RING != 0 && self.event(event) { on & !RING } else { on };
        if others != 0 {
            D::record(others, level, metadata.target(), &Message::of(EventText(event)));
        }
    }
}
