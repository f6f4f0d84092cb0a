// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Arguments of events: debug annotations. Viewers replace the dots of a name, so names are nested.

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

/// Appends what a reference point has before its fields.
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
    match value {
        ValueRef::Unsigned(v) => unsigned(proto, interned, v),
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
        ValueRef::Array(numbers) => {
            array(proto, numbers.iter(), |entry, number| match u64::try_from(number) {
                Ok(number) => unsigned(entry, interned, number),
                Err(_) => entry.signed(argument::SIGNED, number as i64),
            });
        }
    }
}

/// Appends a number without a sign. Viewers keep 63 bits of a number, so a larger one is a text.
#[inline]
fn unsigned(proto: &mut Proto, interned: &mut Interned, number: u64) {
    if i64::try_from(number).is_ok() {
        return proto.number(argument::UNSIGNED, number);
    }
    let text = number.to_string();
    interned.value(proto, text.as_bytes(), argument::STRING_IID, argument::STRING);
}

/// Appends the numbers of an array. An empty one is an argument without a value.
fn array<T>(
    proto: &mut Proto,
    numbers: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Proto, T),
) {
    for number in numbers {
        proto.message(argument::ARRAY, |entry| write(entry, number));
    }
}
