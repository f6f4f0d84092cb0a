// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Event classes, one for each schema.

use crate::by_name::address;
use hypertrace_timeline::ValueRef;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of event names for which classes are found by the name's address.
const MAX: usize = 1 << 14;

/// Members that an event's context may have. The bool says whether the member has eight bytes instead of
/// four.
pub(super) const CONTEXT: [(&str, bool); 9] = [
    ("client", false),
    ("pid", false),
    ("tid", false),
    ("cpu", false),
    ("bound_ns", true),
    ("reference_client", false),
    ("reference_cpu", false),
    ("reference_seq", false),
    ("reference_guest_time", true),
];

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Type {
    Unsigned,
    Signed,
    Hex,
    Float,
    Bool,
    Text,
    Words,
    SignedWords,
}

impl Type {
    pub fn of(value: &ValueRef<'_>) -> Type {
        match value {
            ValueRef::Unsigned(_) => Type::Unsigned,
            ValueRef::Signed(_) => Type::Signed,
            ValueRef::Hex(_) => Type::Hex,
            ValueRef::Float(_) => Type::Float,
            ValueRef::Bool(_) => Type::Bool,
            ValueRef::Str(_) | ValueRef::Name(_) => Type::Text,
            ValueRef::Array(array) if array.is_signed() => Type::SignedWords,
            ValueRef::Array(_) => Type::Words,
        }
    }
}

/// Schema of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub name: Arc<str>,
    /// Bits of [`CONTEXT`].
    pub context: u16,
    pub fields: Vec<(Arc<str>, Type)>,
}

/// The classes so far, by id.
#[derive(Debug, Default)]
pub(super) struct Classes {
    all: Vec<Arc<Class>>,
    numbers: HashMap<Arc<Class>, u32>,
    /// Classes of an event in a context. The address of the event's name stands for the event. The name is
    /// kept, so that no other name is stored at the same address. The last class is the likeliest class of
    /// the next event.
    known: HashMap<(usize, u16), (Arc<str>, Vec<u32>)>,
}

impl Classes {
    /// Iterates over all classes, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Class> {
        self.all.iter().map(|class| &**class)
    }

    /// Iterates over the known classes of an event, the likeliest first.
    pub fn of(&self, name: &Arc<str>, context: u16) -> impl Iterator<Item = (u32, &Class)> {
        let known = self.known.get(&(address(name), context));
        let numbers = known.map_or(&[][..], |(_, numbers)| numbers);
        numbers.iter().rev().map(|number| (*number, &*self.all[*number as usize]))
    }

    /// Adds the class of an event that no known class fits, and returns the id of the new class. A kernel's
    /// field may be a name in one event and a number in the next event. From the second event on, the class
    /// has this field as a text.
    pub fn add<'a>(
        &mut self,
        name: &Arc<str>,
        context: u16,
        fields: impl Iterator<Item = (&'a Arc<str>, ValueRef<'a>)>,
    ) -> u32 {
        let mut fields: Vec<(Arc<str>, Type)> =
            fields.map(|(name, value)| (name.clone(), Type::of(&value))).collect();
        let is_same = |(_, class): &(u32, &Class)| {
            let names = class.fields.iter().map(|(name, _)| name);
            names.eq(fields.iter().map(|(name, _)| name))
        };
        if let Some((_, before)) = self.of(name, context).find(is_same) {
            for ((_, own), (_, before)) in fields.iter_mut().zip(&before.fields) {
                *own = if own == before { *own } else { Type::Text };
            }
        }
        let class = Arc::new(Class { name: name.clone(), context, fields });
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(class.clone()).or_insert(next);
        if number == next {
            self.all.push(class);
        }
        if self.known.len() == MAX {
            self.known.clear();
        }
        let known = self.known.entry((address(name), context));
        known.or_insert_with(|| (name.clone(), Vec::new())).1.push(number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_one_class() {
        let mut classes = Classes::default();
        let mut add = |value| {
            let (name, field): (Arc<str>, Arc<str>) = ("disk_read".into(), "lba".into());
            classes.add(&name, 0, [(&field, value)].into_iter())
        };
        let numbers = [
            add(ValueRef::Unsigned(5)),
            add(ValueRef::Unsigned(6)),
            add(ValueRef::Signed(5)),
            add(ValueRef::Str(b"5")),
        ];
        assert_eq!(numbers, [0, 0, 1, 2]);
        assert_eq!(classes.iter().count(), 3);
    }

    #[test]
    fn a_field_of_two_types_is_a_text_from_then_on() {
        let mut classes = Classes::default();
        let (name, a, b): (Arc<str>, Arc<str>, Arc<str>) = ("exit".into(), "a".into(), "b".into());
        let mut add = |values: [ValueRef<'_>; 2]| {
            let number = classes.add(&name, 0, [&a, &b].into_iter().zip(values));
            let (likeliest, class) = classes.of(&name, 0).next().unwrap();
            assert_eq!(likeliest, number);
            class.fields.iter().map(|(_, kind)| *kind).collect::<Vec<_>>()
        };
        let (number, text) = (ValueRef::Unsigned(1), ValueRef::Str(b"MMIO"));
        assert_eq!(add([number, number]), [Type::Unsigned, Type::Unsigned]);
        assert_eq!(add([text, number]), [Type::Text, Type::Unsigned]);
        assert_eq!(add([number, text]), [Type::Text, Type::Text]);
    }
}
