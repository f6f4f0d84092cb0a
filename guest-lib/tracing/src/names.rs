//! Schemas of places in the code, made when a place is first seen.

use crate::counts::{WITHOUT_SCHEMA, add};
use hypertrace_abi::event::{Bytes, DynamicEvent, Field as _, cut};
use hypertrace_abi::schema::{FieldType, MAX_NAME, mask_slot};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tracing_core::{Level, Metadata};

/// Number of places in the table. All spans and events that can have schemas take fewer places, so a search
/// ends near the hash.
const PLACES: usize = 1024;
/// Number of places in the table where a place in the code may be.
const PROBES: usize = 32;
/// Maximum number of schemas: fewer than a producer knows at once, because the program's own events need
/// some.
const MAX_SCHEMAS: usize = 400;
/// Maximum number of schemas of one place: one for each set of fields that was given.
const VARIANTS: usize = 6;
/// Maximum number of bytes of a span's target.
const MAX_TARGET: usize = 128;
/// Suffix of the event for values that are added to a span later. No event of a span has a longer suffix.
const RECORD: &str = "_record";
/// Number of bits of a field's type in a [`Shape`].
const TYPE_BITS: usize = 4;

/// The use of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Begin,
    Record,
    Event,
}

/// The types of fields, by the fields' indexes in the metadata. A type is its number in [`FieldType::ALL`]
/// plus 1, or 0 if the field is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape(u64);

impl Shape {
    /// Number of fields that have a place in a shape.
    pub const FIELDS: usize = 64 / TYPE_BITS;

    /// Adds a field, whose index is below [`Shape::FIELDS`].
    #[inline]
    pub fn add(&mut self, index: usize, ty: FieldType) {
        self.0 |= (ty as u64 + 1) << (index * TYPE_BITS);
    }

    fn get(self, index: usize) -> Option<FieldType> {
        let code = (self.0 >> (index * TYPE_BITS)) as usize % (1 << TYPE_BITS);
        FieldType::ALL.get(code.checked_sub(1)?).copied()
    }
}

/// A schema that is made at run time.
#[derive(Debug)]
pub struct Schema {
    purpose: Purpose,
    shape: Shape,
    pub names: DynamicEvent<Box<str>>,
}

impl Schema {
    fn new(metadata: &Metadata<'_>, purpose: Purpose, shape: Shape) -> Schema {
        // A reader would take a begin with a field `any_client` for a region that any client may end.
        let of_span = ["id", "parent", "target", "any_client"].as_slice();
        let (name, first, last, own) = match purpose {
            Purpose::Begin => {
                (event_name(metadata.name(), "_begin"), "id:u64,parent:u64", ",target:str", of_span)
            }
            Purpose::Record => (event_name(metadata.name(), RECORD), "id:u64", "", of_span),
            Purpose::Event => {
                let name = level_name(metadata.level()).to_owned();
                (name, "target:str,span:u64", ",cut:u32", ["target", "span", "cut"].as_slice())
            }
        };
        let mut text = format!("{name}({first}");
        let mut used: BTreeSet<String> = own.iter().map(|own| (*own).to_owned()).collect();
        for (index, field) in metadata.fields().iter().enumerate().take(Shape::FIELDS) {
            let Some(ty) = shape.get(index) else { continue };
            let mut field = identifier(field.name(), "");
            while !used.insert(field.clone()) {
                field = identifier(&field, "_");
                if field.len() == MAX_NAME {
                    field = format!("field{index}");
                }
            }
            text.push_str(&format!(",{field}:{}", ty.name()));
        }
        text.push_str(last);
        text.push(')');
        Schema { purpose, shape, names: DynamicEvent::new(text.into()) }
    }
}

fn level_name(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "log_error",
        Level::WARN => "log_warn",
        Level::INFO => "log_info",
        Level::DEBUG => "log_debug",
        Level::TRACE => "log_trace",
    }
}

/// Returns the name of an event of a span. If the suffixes are left out, all events of the span have the same
/// name.
fn event_name(span: &str, suffix: &str) -> String {
    let mut name = identifier(span, "");
    name.truncate(MAX_NAME - RECORD.len());
    name + suffix
}

/// Returns the name with its suffix, after replacing each character that a schema cannot contain by `_`.
fn identifier(name: &str, suffix: &str) -> String {
    let of = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let starts_well = name.starts_with(|c: char| !c.is_ascii_digit());
    let mut identifier = if starts_well { String::new() } else { "_".to_owned() };
    identifier.extend(name.chars().map(of).take(MAX_NAME));
    identifier.truncate(MAX_NAME - suffix.len());
    identifier + suffix
}

/// A span or an event in the code.
#[derive(Debug)]
pub struct Callsite {
    pub metadata: &'static Metadata<'static>,
    /// Event for the end of a span that was entered only once, on the thread that closes the span.
    pub end: DynamicEvent<Box<str>>,
    /// Event for the end of every other span.
    pub parted_end: DynamicEvent<Box<str>>,
    /// Words of the target.
    pub target: Box<[AtomicU64]>,
    /// How spans of this place are entered: a [`Habit`].
    habit: AtomicU8,
    pub begin_slot: usize,
    pub end_slot: usize,
    pub record_slot: usize,
    /// The first schema of a span is the schema of its begin without fields.
    variants: [OnceLock<Schema>; VARIANTS],
}

/// How often the spans of a place in the code are entered, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Habit {
    /// No span has closed or was entered again yet.
    Unknown,
    /// Each span is entered once.
    Once,
    /// Some spans are entered several times.
    Again,
}

impl Callsite {
    fn new(metadata: &'static Metadata<'static>) -> Callsite {
        let target = Bytes(cut(metadata.target(), MAX_TARGET).as_bytes());
        let target_words = Box::from_iter((0..target.words()).map(|_| AtomicU64::new(0)));
        target.put(&target_words);
        let end = event_name(metadata.name(), "_end");
        let slot = |suffix| mask_slot(&event_name(metadata.name(), suffix));
        let variants = [const { OnceLock::new() }; VARIANTS];
        if metadata.is_span() {
            let plain = Schema::new(metadata, Purpose::Begin, Shape::default());
            let _ = variants[0].set(plain);
        }
        Callsite {
            metadata,
            parted_end: DynamicEvent::new(format!("{end}(id:u64,any_client:bool)").into()),
            end: DynamicEvent::new((end + "(id:u64)").into()),
            target: target_words,
            habit: AtomicU8::new(Habit::Unknown as u8),
            begin_slot: slot("_begin"),
            end_slot: slot("_end"),
            record_slot: slot(RECORD),
            variants,
        }
    }

    /// Notes that a span was entered again.
    #[inline]
    pub fn note_again(&self) {
        if self.habit.load(Relaxed) != Habit::Again as u8 {
            self.habit.store(Habit::Again as u8, Relaxed);
        }
    }

    /// Notes that a span was closed after one entry.
    #[inline]
    pub fn note_once(&self) {
        if self.habit.load(Relaxed) == Habit::Unknown as u8 {
            let (unknown, once) = (Habit::Unknown as u8, Habit::Once as u8);
            let _ = self.habit.compare_exchange(unknown, once, Relaxed, Relaxed);
        }
    }

    /// Returns whether a span that was entered is likely to close without another entry.
    #[inline]
    pub fn is_once(&self) -> bool {
        self.habit.load(Relaxed) == Habit::Once as u8
    }

    /// Returns the schema with this index.
    #[inline]
    pub fn variant(&self, number: u8) -> Option<&Schema> {
        self.variants.get(usize::from(number))?.get()
    }
}

/// Table of all places in the code and their schemas.
#[derive(Debug)]
pub struct Names {
    places: Box<[OnceLock<Callsite>]>,
    schemas: AtomicUsize,
}

impl Names {
    pub fn new() -> Names {
        let places = (0..PLACES).map(|_| OnceLock::new()).collect();
        Names { places, schemas: AtomicUsize::new(0) }
    }

    /// Returns the place of this number.
    #[inline]
    pub fn get(&self, number: u16) -> Option<&Callsite> {
        self.places.get(usize::from(number))?.get()
    }

    /// Returns a place in the code and the place's index, or `None` if there are too many places.
    #[inline]
    pub fn find(&self, metadata: &'static Metadata<'static>) -> Option<(u16, &Callsite)> {
        for at in probes(metadata) {
            match self.places[at].get() {
                Some(found) if std::ptr::eq(found.metadata, metadata) => {
                    return Some((at as u16, found));
                }
                Some(_) => {}
                None => return self.make(at, metadata),
            }
        }
        None
    }

    #[cold]
    fn make(&self, first: usize, metadata: &'static Metadata<'static>) -> Option<(u16, &Callsite)> {
        // A span has schemas of a begin without fields and of two kinds of ends.
        let schemas = if metadata.is_span() { 3 } else { 0 };
        if !self.reserve(schemas) {
            return None;
        }
        for at in probes(metadata).skip_while(|at| *at != first) {
            let mut is_new = false;
            let found = self.places[at].get_or_init(|| {
                is_new = true;
                Callsite::new(metadata)
            });
            if std::ptr::eq(found.metadata, metadata) {
                if !is_new {
                    self.schemas.fetch_sub(schemas, Relaxed);
                }
                return Some((at as u16, found));
            }
        }
        self.schemas.fetch_sub(schemas, Relaxed);
        None
    }

    /// Returns a place's schema for these fields, and the schema's index. If there are too many schemas,
    /// counts the event or span and returns `None`.
    #[inline]
    pub fn schema<'n>(
        &'n self,
        callsite: &'n Callsite,
        purpose: Purpose,
        shape: Shape,
    ) -> Option<(u8, &'n Schema)> {
        for (number, variant) in (0..).zip(&callsite.variants) {
            let schema = match variant.get() {
                Some(schema) => schema,
                None => {
                    if !self.reserve(1) {
                        break;
                    }
                    let mut is_new = false;
                    let schema = variant.get_or_init(|| {
                        is_new = true;
                        Schema::new(callsite.metadata, purpose, shape)
                    });
                    if !is_new {
                        self.schemas.fetch_sub(1, Relaxed);
                    }
                    schema
                }
            };
            if schema.shape == shape && schema.purpose == purpose {
                return Some((number, schema));
            }
        }
        add(&WITHOUT_SCHEMA);
        None
    }

    fn reserve(&self, schemas: usize) -> bool {
        let more = |n: usize| Some(n + schemas).filter(|n| *n <= MAX_SCHEMAS);
        self.schemas.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

/// Returns the places in the table where a place in the code may be.
#[inline]
fn probes(metadata: &'static Metadata<'static>) -> impl Iterator<Item = usize> {
    let address = std::ptr::from_ref(metadata).addr() as u64;
    let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..PROBES).map(move |n| (hash as usize + n) % PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        assert_eq!(event_name("http.request id", "_begin"), "http_request_id_begin");
        assert_eq!(identifier("3rd", ""), "_3rd");
        assert_eq!(event_name("", "_end"), "__end");
        assert_eq!(identifier("\u{fc}ber", ""), "_ber");
        assert_eq!(identifier(&"x".repeat(100), "_").len(), MAX_NAME);
    }

    #[test]
    fn all_events_of_a_span_with_a_long_name_are_of_one_region() {
        for length in 50..70 {
            let span = "x".repeat(length);
            let region = |suffix| event_name(&span, suffix).strip_suffix(suffix).map(str::to_owned);
            assert!(event_name(&span, RECORD).len() <= MAX_NAME);
            assert_eq!(region("_begin"), region("_end"), "{length}");
            assert_eq!(region("_begin"), region(RECORD), "{length}");
        }
    }
}
