//! Events whose names and types are known at run time only.

use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::event::{DynamicEvent, Field, Fields};
use hypertrace::abi::schema::{FieldType, Schema, SchemaError, mask_slot_of};
use hypertrace::{Hex, Site};

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Hex(u64),
    Bool(bool),
    Text(String),
}

impl Value {
    /// Returns the value of a text that a script has written: a number if the text is a number.
    pub fn of(text: &str) -> Value {
        // Rust's parsers accept a plus sign, but here a text with a plus sign is not a number.
        let number = Some(text).filter(|text| !text.contains('+'));
        let hex = number.and_then(|number| number.strip_prefix("0x"));
        let hex = hex.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        hex.map(Value::Hex)
            .or_else(|| number?.parse().ok().map(Value::Unsigned))
            .or_else(|| number?.parse().ok().map(Value::Signed))
            .unwrap_or_else(|| Value::Text(text.to_owned()))
    }

    fn field_type(&self) -> FieldType {
        match self {
            Value::Unsigned(_) => FieldType::U64,
            Value::Signed(_) => FieldType::I64,
            Value::Hex(_) => FieldType::X64,
            Value::Bool(_) => FieldType::Bool,
            Value::Text(_) => FieldType::Str,
        }
    }

    fn words(&self) -> usize {
        match self {
            Value::Text(text) => text.as_str().words(),
            _ => 1,
        }
    }

    fn put(&self, out: &[AtomicU64]) {
        match self {
            Value::Unsigned(n) => n.put(out),
            Value::Signed(n) => n.put(out),
            Value::Hex(n) => Hex(*n).put(out),
            Value::Bool(b) => b.put(out),
            Value::Text(text) => text.as_str().put(out),
        }
    }
}

/// An event with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    names: DynamicEvent<String>,
    values: Vec<Value>,
}

impl Event {
    /// Makes an event of these fields.
    ///
    /// # Errors
    /// If a name is not valid, or there are too many fields.
    pub fn new(name: &str, fields: &[(&str, Value)]) -> Result<Event, SchemaError> {
        let typed =
            fields.iter().map(|(name, value)| format!("{name}:{}", value.field_type().name()));
        let text = format!("{name}({})", Vec::from_iter(typed).join(","));
        Schema::parse(&text)?;
        let values = fields.iter().map(|(_, value)| value.clone()).collect();
        Ok(Event { names: DynamicEvent::new(text), values })
    }

    /// Returns a copy of the event in which the last field has this value. The value must have the type of
    /// the last field.
    pub fn with(&self, last: Value) -> Event {
        let mut event = self.clone();
        if let Some(value) = event.values.last_mut() {
            *value = last;
        }
        event
    }

    /// Returns the event's slot in the enable mask.
    pub fn slot(&self) -> usize {
        mask_slot_of(self.names().name_hash())
    }

    pub fn names(&self) -> &DynamicEvent<String> {
        &self.names
    }

    pub fn values(&self) -> Values<'_> {
        Values(&self.values)
    }
}

/// The values of an event.
#[derive(Clone, Copy)]
pub struct Values<'e>(&'e [Value]);

impl Fields for Values<'_> {
    // The event's schema has the field types, so this list is empty.
    const TYPES: &'static [FieldType] = &[];

    fn words(self) -> usize {
        self.0.iter().map(Value::words).sum()
    }

    fn put(self, out: &[AtomicU64]) {
        let mut at = 0;
        for value in self.0 {
            value.put(&out[at..]);
            at += value.words();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_numbers_and_the_rest_is_text() {
        let cases = [
            ("0", Value::Unsigned(0)),
            ("18446744073709551615", Value::Unsigned(u64::MAX)),
            ("-3", Value::Signed(-3)),
            ("0xff", Value::Hex(255)),
        ];
        for (text, value) in cases {
            assert_eq!(Value::of(text), value);
        }
        for text in ["", "1.5", "+3", "18446744073709551616", "0x", "0x+1", "-", "3 ", "a=b"] {
            assert_eq!(Value::of(text), Value::Text(text.into()));
        }
    }

    #[test]
    fn an_event_has_the_schema_of_its_values() {
        let fields = [("n", Value::Unsigned(1)), ("s", Value::Text("abcde".into()))];
        let event = Event::new("e", &fields).unwrap();
        let out: Vec<_> = (0..event.values().words()).map(|_| AtomicU64::new(0)).collect();
        event.values().put(&out);
        assert_eq!(event.names().as_str(), "e(n:u64,s:str)");
        assert_eq!(out.len(), 3);
        assert!(Event::new("e", &[("n", Value::Bool(true)), ("n", Value::Bool(true))]).is_err());
    }
}
