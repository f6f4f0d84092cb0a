// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Arguments of events: debug annotations.

use super::fields::{argument, event};
use super::intern::{Interned, Kind};
use super::proto::Proto;
use hypertrace_timeline::{EventRef, Fields, ValueRef};
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

/// Appends a field of the event that begins a region.
pub(super) fn field(proto: &mut Proto, interned: &mut Interned, name: &str, value: ValueRef<'_>) {
    proto.message(event::ARGUMENTS, |proto| {
        let name = interned.number(Kind::Argument, &format!("field.{name}"));
        proto.number(argument::NAME_IID, name);
        self::value(proto, interned, value);
    });
}

/// Appends what a reference point has before its fields.
pub(super) fn point(proto: &mut Proto, interned: &mut Interned, event: &EventRef<'_>) {
    if let Some(point) = &event.reference {
        number(proto, interned, "reference.client", point.client.into());
        number(proto, interned, "reference.cpu", point.cpu.into());
        number(proto, interned, "reference.seq", point.seq.into());
        number(proto, interned, "reference.guest_time", point.guest_time);
        if let Some(bound_ns) = event.bound_ns {
            number(proto, interned, "reference.bound_ns", bound_ns);
        }
    }
}

/// Appends a number with a name.
pub(super) fn number(proto: &mut Proto, interned: &mut Interned, name: &'static str, number: u64) {
    proto.message(event::ARGUMENTS, |proto| {
        proto.number(argument::NAME_IID, interned.own(name));
        proto.number(argument::UNSIGNED, number);
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
    match value {
        ValueRef::Unsigned(v) => proto.number(argument::UNSIGNED, v),
        ValueRef::Signed(v) => proto.signed(argument::SIGNED, v),
        ValueRef::Float(v) => proto.double(argument::DOUBLE, v),
        ValueRef::Bool(v) => proto.number(argument::BOOL, v.into()),
        ValueRef::Hex(v) => proto.number(argument::POINTER, v),
        ValueRef::Str(bytes) => {
            interned.value(proto, bytes, argument::STRING_IID, argument::STRING);
        }
        ValueRef::Name(name) => {
            let name = name.to_string();
            interned.value(proto, name.as_bytes(), argument::STRING_IID, argument::STRING);
        }
        ValueRef::Words(words) => {
            array(proto, words, |entry, word| entry.number(argument::UNSIGNED, *word));
        }
        ValueRef::SignedWords(words) => {
            array(proto, words, |entry, word| entry.signed(argument::SIGNED, *word));
        }
        ValueRef::Array(numbers) => {
            array(proto, numbers.iter(), |entry, number| match u64::try_from(number) {
                Ok(number) => entry.number(argument::UNSIGNED, number),
                Err(_) => entry.signed(argument::SIGNED, number as i64),
            });
        }
    }
}

/// Appends the numbers of an array. An empty one is an argument without a value.
fn array<T>(
    proto: &mut Proto,
    numbers: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Proto, T),
) {
    for number in numbers {
        proto.message(argument::ARRAY, |entry| write(entry, number));
    }
}
