// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes the values of fields in the binary form of a record.

use super::class::Type;
use hypertrace_timeline::{Array, ValueRef, ValueWriter};
use std::sync::Arc;

/// Maximum size of a text in bytes. A text of four times this size takes a reader a second.
const MAX_TEXT: usize = 1 << 16;

/// Appends the fields of an event to a record. Returns the number of texts that were cut. A value of any type
/// is written as text if its type in `types` is a text. If a field's name or type otherwise differs from
/// `types`, the function returns `None`; the record may then already have some of the fields.
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
        match Type::of(&value) {
            own if own == *of => value.write(&mut Record { record, cut: &mut cut }),
            _ if *of == Type::Text => {
                let mut shown = String::new();
                value.write(&mut shown);
                cut += u64::from(text(record, shown.as_bytes()));
            }
            _ => return None,
        }
    }
    types.next().is_none().then_some(cut)
}

/// Appends a text up to its first NUL. Returns whether the text was cut.
pub(super) fn text(record: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let most = &bytes[..bytes.len().min(MAX_TEXT)];
    let end = most.iter().position(|byte| *byte == 0).unwrap_or(most.len());
    record.extend_from_slice(&bytes[..end]);
    record.push(0);
    end < bytes.len()
}

/// Writes a value in the form of the value's own type.
struct Record<'r> {
    record: &'r mut Vec<u8>,
    /// Number of texts that were cut.
    cut: &'r mut u64,
}

impl ValueWriter for Record<'_> {
    fn put(&mut self, text: &str) {
        self.text(text.as_bytes());
    }

    fn text(&mut self, bytes: &[u8]) {
        *self.cut += u64::from(text(self.record, bytes));
    }

    fn unsigned(&mut self, number: u64) {
        self.record.extend_from_slice(&number.to_le_bytes());
    }

    fn signed(&mut self, number: i64) {
        self.record.extend_from_slice(&number.to_le_bytes());
    }

    fn float(&mut self, number: f64) {
        self.record.extend_from_slice(&number.to_le_bytes());
    }

    fn bool(&mut self, is_true: bool) {
        self.record.push(is_true.into());
    }

    fn array(&mut self, array: &Array<'_>) {
        self.record.extend_from_slice(&(array.len() as u32).to_le_bytes());
        array.iter().for_each(|number| self.unsigned(number as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((record.len(), count), (MAX_TEXT + 1, 1));
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
