// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Values of fields, as they are in a record.

use super::class::Type;
use crate::number::{array, decimal, signed};
use hypertrace_timeline::ValueRef;
use std::sync::Arc;

/// Most bytes of a text: readers take a second for four times as many.
const MOST_TEXT: usize = 1 << 16;

/// Appends the fields of an event to a record, if these are their names and types. Returns how many texts were cut; else
/// `None`, with a part of the fields in the record.
pub(super) fn append<'a>(
    record: &mut Vec<u8>,
    types: &[(Arc<str>, Type)],
    fields: impl Iterator<Item = (&'a Arc<str>, ValueRef<'a>)>,
) -> Option<u64> {
    let (mut types, mut cut) = (types.iter(), 0);
    for (name, value) in fields {
        let (known, of) = types.next()?;
        if !Arc::ptr_eq(known, name) && known != name {
            return None;
        }
        match (of, &value) {
            (Type::Unsigned, ValueRef::Unsigned(v)) | (Type::Hex, ValueRef::Hex(v)) => {
                record.extend_from_slice(&v.to_le_bytes());
            }
            (Type::Signed, ValueRef::Signed(v)) => record.extend_from_slice(&v.to_le_bytes()),
            (Type::Float, ValueRef::Float(v)) => record.extend_from_slice(&v.to_le_bytes()),
            (Type::Bool, ValueRef::Bool(v)) => record.push((*v).into()),
            (Type::Words | Type::SignedWords, ValueRef::Array(array))
                if array.is_signed() == (*of == Type::SignedWords) =>
            {
                record.extend_from_slice(&(array.len() as u32).to_le_bytes());
                let numbers = array.iter().map(|number| number as u64);
                numbers.for_each(|number| record.extend_from_slice(&number.to_le_bytes()));
            }
            (Type::Text, ValueRef::Str(bytes)) => cut += u64::from(text(record, bytes)),
            (Type::Text, other) => cut += u64::from(text(record, shown(other).as_bytes())),
            _ => return None,
        }
    }
    types.next().is_none().then_some(cut)
}

/// Appends a text up to its first NUL. Returns whether it was cut.
pub(super) fn text(record: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let most = &bytes[..bytes.len().min(MOST_TEXT)];
    let end = most.iter().position(|byte| *byte == 0).unwrap_or(most.len());
    record.extend_from_slice(&bytes[..end]);
    record.push(0);
    end < bytes.len()
}

/// Formats a value of a field that has texts, too.
fn shown(value: &ValueRef<'_>) -> String {
    let mut out = String::new();
    match value {
        ValueRef::Unsigned(v) | ValueRef::Hex(v) => decimal(&mut out, *v),
        ValueRef::Signed(v) => signed(&mut out, *v),
        ValueRef::Float(v) => return format!("{v:?}"),
        ValueRef::Bool(v) => return v.to_string(),
        ValueRef::Name(name) => return name.to_string(),
        ValueRef::Str(bytes) => return String::from_utf8_lossy(bytes).into_owned(),
        // Writing to a String does not fail.
        ValueRef::Array(numbers) => _ = array(&mut out, numbers, decimal, signed),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_timeline::Array;

    fn appended(of: Type, value: ValueRef<'_>) -> Option<(Vec<u8>, u64)> {
        let (name, mut record) = (Arc::from("f"), Vec::new());
        let cut = append(&mut record, &[(Arc::from("f"), of)], [(&name, value)].into_iter())?;
        Some((record, cut))
    }

    #[test]
    fn texts_end_at_a_nul_and_are_short() {
        let cut = |bytes: &[u8]| appended(Type::Text, ValueRef::Str(bytes)).unwrap();
        assert_eq!(cut(b"a\xff"), (b"a\xff\0".to_vec(), 0));
        assert_eq!(cut(b"a\0b"), (b"a\0".to_vec(), 1));
        let (record, count) = cut(&[b'x'; 10 << 20]);
        assert_eq!((record.len(), count), (MOST_TEXT + 1, 1));
    }

    #[test]
    fn a_text_takes_values_of_all_types_and_others_only_their_own() {
        let text = |value| appended(Type::Text, value).unwrap().0;
        assert_eq!(text(ValueRef::Unsigned(7)), b"7\0");
        assert_eq!(text(ValueRef::Signed(-7)), b"-7\0");
        let numbers = ValueRef::Array(Array::of_bytes(&[255, 2], 1, true));
        assert_eq!(text(numbers), b"[-1,2]\0");
        assert_eq!(appended(Type::Unsigned, ValueRef::Signed(7)), None);
        assert_eq!(appended(Type::Words, numbers), None);
    }

    #[test]
    fn other_names_and_other_numbers_of_fields_do_not_fit() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let types = [(a.clone(), Type::Bool)];
        let fits = |fields: &[(&Arc<str>, ValueRef<'static>)]| {
            append(&mut Vec::new(), &types, fields.iter().copied()).is_some()
        };
        let value = ValueRef::Bool(true);
        assert!(fits(&[(&a, value)]));
        assert!(!fits(&[(&b, value)]));
        assert!(!fits(&[]));
        assert!(!fits(&[(&a, value), (&a, value)]));
    }
}
