// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes values of OTLP in JSON. 64-bit integers and times are strings, and ids are hexadecimal.

use crate::escape::Json;
use crate::number::signed;
use hypertrace_timeline::{Array, Name, ValueRef, ValueWriter};
use std::fmt::Write as _;

/// Appends a text.
pub fn string(out: &mut String, text: &[u8]) {
    // Writing to a String does not fail.
    let _ = write!(out, "{}", Json(text));
}

/// Attributes, as the members of an array.
#[derive(Debug, Default)]
pub struct Attributes(pub String);

impl Attributes {
    /// Adds a text.
    pub fn text(&mut self, key: &str, text: &[u8]) {
        self.add(key, |out| {
            out.push_str("\"stringValue\":");
            string(out, text);
        });
    }

    /// Adds a number. A number that does not fit a signed 64-bit integer becomes a text.
    pub fn number(&mut self, key: &str, number: impl Into<i128>) {
        let number = number.into();
        self.add(key, |out| integer(out, number));
    }

    /// Adds all attributes of `others`.
    pub fn append(&mut self, others: &Attributes) {
        if !self.0.is_empty() && !others.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&others.0);
    }

    /// Adds a field of an event.
    pub fn field(&mut self, key: &str, value: &ValueRef<'_>) {
        value.write(&mut Field { attributes: self, key });
    }

    fn add(&mut self, key: &str, value: impl FnOnce(&mut String)) {
        let out = &mut self.0;
        out.push_str(if out.is_empty() { "{\"key\":" } else { ",{\"key\":" });
        string(out, key.as_bytes());
        out.push_str(",\"value\":{");
        value(out);
        out.push_str("}}");
    }
}

/// A writer of a field's value.
struct Field<'a> {
    attributes: &'a mut Attributes,
    key: &'a str,
}

impl ValueWriter for Field<'_> {
    fn put(&mut self, text: &str) {
        self.text(text.as_bytes());
    }

    fn text(&mut self, bytes: &[u8]) {
        self.attributes.text(self.key, bytes);
    }

    /// Ignores the name, because only fields of kernels' events have names as values, and no span has fields
    /// of kernels' events.
    fn name(&mut self, _: &Name<'_>) {}

    fn unsigned(&mut self, number: u64) {
        self.attributes.number(self.key, number);
    }

    fn signed(&mut self, number: i64) {
        self.attributes.number(self.key, number);
    }

    fn hex(&mut self, number: u64) {
        self.put(&format!("{number:#x}"));
    }

    fn float(&mut self, number: f64) {
        match number.is_finite() {
            true => {
                self.attributes.add(self.key, |out| _ = write!(out, "\"doubleValue\":{number:?}"));
            }
            // The number is infinite or NaN and becomes a text, because JSON has no such numbers.
            false => self.put(&number.to_string()),
        }
    }

    fn bool(&mut self, is_true: bool) {
        self.attributes.add(self.key, |out| _ = write!(out, "\"boolValue\":{is_true}"));
    }

    fn array(&mut self, array: &Array<'_>) {
        self.attributes.add(self.key, |out| {
            out.push_str("\"arrayValue\":{\"values\":[");
            for (i, number) in array.iter().enumerate() {
                out.push_str(if i > 0 { ",{" } else { "{" });
                integer(out, number);
                out.push('}');
            }
            out.push_str("]}");
        });
    }
}

/// Appends an integer. If the integer does not fit OTLP's 64 bits, it becomes a text.
fn integer(out: &mut String, number: i128) {
    match i64::try_from(number) {
        Ok(number) => {
            out.push_str("\"intValue\":\"");
            signed(out, number);
            out.push('"');
        }
        Err(_) => _ = write!(out, "\"stringValue\":\"{number}\""),
    }
}

/// Appends a member with a number as a string.
pub fn quoted(out: &mut String, name: &str, value: i64) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":\"");
    signed(out, value);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(attributes: &Attributes) -> Value {
        serde_json::from_str(&format!("[{}]", attributes.0)).unwrap()
    }

    #[test]
    fn values_have_the_forms_of_otlp() {
        let mut all = Attributes::default();
        let words = [1, u64::MAX];
        for (key, value) in [
            ("n", ValueRef::Unsigned(7)),
            ("most", ValueRef::Unsigned(u64::MAX)),
            ("least", ValueRef::Signed(i64::MIN)),
            ("hex", ValueRef::Hex(255)),
            ("yes", ValueRef::Bool(true)),
            ("half", ValueRef::Float(0.5)),
            ("none", ValueRef::Float(f64::NAN)),
            ("text", ValueRef::Str(b"a")),
            ("words", ValueRef::Array(words[..].into())),
        ] {
            all.field(key, &value);
        }
        let of = |key: &str, kind: &str, value: Value| json!({"key": key, "value": {kind: value}});
        let words = json!({"values": [{"intValue": "1"}, {"stringValue": "18446744073709551615"}]});
        let expected = [
            of("n", "intValue", json!("7")),
            of("most", "stringValue", json!("18446744073709551615")),
            of("least", "intValue", json!("-9223372036854775808")),
            of("hex", "stringValue", json!("0xff")),
            of("yes", "boolValue", json!(true)),
            of("half", "doubleValue", json!(0.5)),
            of("none", "stringValue", json!("NaN")),
            of("text", "stringValue", json!("a")),
            of("words", "arrayValue", words),
        ];
        assert_eq!(parsed(&all), json!(expected));
    }
}
