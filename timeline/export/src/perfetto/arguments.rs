// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Arguments of events: debug annotations. Viewers replace the dots in an argument's name, so arguments of a
//! group are entries of one argument.

use super::fields::{argument, event};
use super::intern::{Interned, Kind};
use super::proto::Proto;
use hypertrace_timeline::{Array, EventRef, Fields, ValueRef, ValueWriter};
use std::sync::Arc;

/// Appends the fields of an event.
#[inline]
pub(super) fn fields(
    proto: &mut Proto,
    interned: &mut Interned,
    name: &Arc<str>,
    fields: &Fields<'_>,
) {
    for (at, (field, value)) in fields.iter().enumerate() {
        proto.message(event::ARGUMENTS, |proto| {
            proto.number(argument::NAME_IID, interned.field(name, at, field));
            self::value(proto, interned, value);
        });
    }
}

/// Appends the fields of the event that begins a region.
pub(super) fn of_begin<'a>(
    proto: &mut Proto,
    interned: &mut Interned,
    fields: impl Iterator<Item = (&'a str, ValueRef<'a>)>,
) {
    let mut fields = fields.peekable();
    if fields.peek().is_none() {
        return;
    }
    proto.message(event::ARGUMENTS, |proto| {
        proto.number(argument::NAME_IID, interned.own("field"));
        for (name, value) in fields {
            proto.message(argument::ENTRIES, |proto| {
                proto.number(argument::NAME_IID, interned.number(Kind::Argument, name));
                self::value(proto, interned, value);
            });
        }
    });
}

/// Appends the numbers of a reference point, and the bound on the error of its time.
pub(super) fn point(proto: &mut Proto, interned: &mut Interned, event: &EventRef<'_>) {
    let Some(point) = &event.reference else { return };
    proto.message(event::ARGUMENTS, |proto| {
        proto.number(argument::NAME_IID, interned.own("reference"));
        let mut entry = |name, number| {
            proto.message(argument::ENTRIES, |proto| {
                proto.number(argument::NAME_IID, interned.own(name));
                self::value(proto, interned, ValueRef::Unsigned(number));
            });
        };
        entry("client", point.client.into());
        entry("cpu", point.cpu.into());
        entry("seq", point.seq.into());
        entry("guest_time", point.guest_time);
        if let Some(bound_ns) = event.bound_ns() {
            entry("bound_ns", bound_ns);
        }
    });
}

/// Appends a number with a name.
pub(super) fn number(proto: &mut Proto, interned: &mut Interned, name: &'static str, number: u64) {
    proto.message(event::ARGUMENTS, |proto| {
        proto.number(argument::NAME_IID, interned.own(name));
        self::value(proto, interned, ValueRef::Unsigned(number));
    });
}

/// Appends a text with a name.
pub(super) fn text(proto: &mut Proto, interned: &mut Interned, name: &'static str, text: &str) {
    proto.message(event::ARGUMENTS, |proto| {
        proto.number(argument::NAME_IID, interned.own(name));
        interned.value(proto, text.as_bytes(), argument::STRING_IID, argument::STRING);
    });
}

#[inline]
fn value(proto: &mut Proto, interned: &mut Interned, value: ValueRef<'_>) {
    value.write(&mut Value { proto, interned });
}

/// A writer of an argument's value.
struct Value<'a> {
    proto: &'a mut Proto,
    interned: &'a mut Interned,
}

impl ValueWriter for Value<'_> {
    fn put(&mut self, text: &str) {
        self.text(text.as_bytes());
    }

    fn text(&mut self, bytes: &[u8]) {
        self.interned.value(self.proto, bytes, argument::STRING_IID, argument::STRING);
    }

    fn unsigned(&mut self, number: u64) {
        unsigned(self.proto, self.interned, number);
    }

    fn signed(&mut self, number: i64) {
        self.proto.signed(argument::SIGNED, number);
    }

    fn hex(&mut self, number: u64) {
        self.proto.number(argument::POINTER, number);
    }

    fn float(&mut self, number: f64) {
        self.proto.double(argument::DOUBLE, number);
    }

    fn bool(&mut self, is_true: bool) {
        self.proto.number(argument::BOOL, is_true.into());
    }

    /// Appends each number. An empty array becomes an argument without a value.
    fn array(&mut self, array: &Array<'_>) {
        for number in array.iter() {
            self.proto.message(argument::ARRAY, |entry| match u64::try_from(number) {
                Ok(number) => unsigned(entry, self.interned, number),
                Err(_) => entry.signed(argument::SIGNED, number as i64),
            });
        }
    }
}

/// Appends a number without a sign. Viewers keep 63 bits of a number, so a larger number becomes a text.
#[inline]
fn unsigned(proto: &mut Proto, interned: &mut Interned, number: u64) {
    if i64::try_from(number).is_ok() {
        return proto.number(argument::UNSIGNED, number);
    }
    let text = number.to_string();
    interned.value(proto, text.as_bytes(), argument::STRING_IID, argument::STRING);
}
