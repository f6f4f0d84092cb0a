// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The texts of a sequence of packets. Each text is written once, and later packets refer to the text by the
//! text's id.

use super::fields::interned;
use super::proto::Proto;
use crate::by_name::{ByName, ByNumber};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of texts of a sequence. A sequence that would have more texts begins anew.
const MAX: usize = 1 << 14;
/// Maximum size of the texts of a sequence in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum size of a text that is interned, in bytes.
const LONGEST: usize = 256;
/// Maximum size of any text in bytes.
pub(super) const MAX_TEXT: usize = 1 << 16;

/// Kinds of texts. Each kind counts the ids of its texts separately.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Event,
    Argument,
    Value,
}

/// The texts of a sequence.
#[derive(Debug, Default)]
pub(super) struct Interned {
    texts: [HashMap<Box<[u8]>, u64>; 3],
    classes: ByName<Class>,
    /// Numbers of the names that this program gives to arguments, by the name's address and length.
    own: ByNumber<(usize, usize), u64>,
    /// Table entries for the texts that no packet has defined yet.
    new: Proto,
    bytes: usize,
    /// Number of texts that were cut, or were not UTF-8.
    pub changed: u64,
}

/// The id of an event's name, and the ids of the names of the event's fields.
#[derive(Debug)]
struct Class {
    number: u64,
    fields: Vec<(Arc<str>, u64)>,
}

impl Interned {
    /// Returns whether there are so many texts that the sequence has to begin anew.
    pub fn is_full(&self) -> bool {
        let count: usize = self.texts.iter().map(HashMap::len).sum();
        count > MAX || self.bytes > MAX_BYTES || self.classes.len() > MAX
    }

    /// Forgets all texts.
    pub fn clear(&mut self) {
        self.texts.iter_mut().for_each(HashMap::clear);
        self.classes.clear();
        self.own.clear();
        self.new.clear();
        self.bytes = 0;
    }

    /// Appends the texts that are new since the last call to a packet.
    pub fn write_new(&mut self, packet: &mut Proto) {
        if !self.new.bytes().is_empty() {
            packet.put(interned::DATA, self.new.bytes());
            self.new.clear();
        }
    }

    /// Returns the id of a text.
    pub fn number(&mut self, kind: Kind, text: &str) -> u64 {
        let (text, is_cut) = shorten(text, LONGEST);
        self.changed += u64::from(is_cut);
        self.short(kind, text)
    }

    fn short(&mut self, kind: Kind, text: &str) -> u64 {
        let texts = &mut self.texts[kind as usize];
        if let Some(number) = texts.get(text.as_bytes()) {
            return *number;
        }
        let number = texts.len() as u64 + 1;
        texts.insert(text.as_bytes().into(), number);
        self.bytes += text.len();
        let field = [interned::EVENT_NAMES, interned::ARGUMENT_NAMES, interned::VALUES];
        self.new.message(field[kind as usize], |entry| {
            entry.number(interned::IID, number);
            entry.put(interned::TEXT, text.as_bytes());
        });
        number
    }

    /// Returns the id of a name that this program gives to an argument.
    pub fn own(&mut self, name: &'static str) -> u64 {
        let key = (name.as_ptr() as usize, name.len());
        if let Some(number) = self.own.get(&key) {
            return *number;
        }
        let number = self.number(Kind::Argument, name);
        self.own.insert(key, number);
        number
    }

    /// Returns the number of an event's name.
    pub fn event(&mut self, name: &Arc<str>) -> u64 {
        if let Some(class) = self.classes.get(name) {
            return class.number;
        }
        let number = self.number(Kind::Event, name);
        self.classes.insert(name, Class { number, fields: Vec::new() });
        number
    }

    /// Returns the id of the name of an event's field. `at` is the place of the field in the event.
    pub fn field(&mut self, event: &Arc<str>, at: usize, name: &Arc<str>) -> u64 {
        let class = self.classes.get(event);
        match class.and_then(|class| class.fields.get(at)) {
            Some((known, number)) if Arc::ptr_eq(known, name) => *number,
            other => {
                let is_next = other.is_none() && class.is_some_and(|c| c.fields.len() == at);
                let number = self.number(Kind::Argument, name);
                if is_next && let Some(class) = self.classes.get_mut(event) {
                    class.fields.push((name.clone(), number));
                }
                number
            }
        }
    }

    /// Writes a text as a value. A short text is written as the text's number, and a long text in full. Bytes
    /// that are not UTF-8 are replaced.
    pub fn value(&mut self, proto: &mut Proto, bytes: &[u8], number: u32, whole: u32) {
        let (text, is_changed) = valid(bytes, MAX_TEXT);
        self.changed += u64::from(is_changed);
        match text.len() <= LONGEST {
            true => proto.number(number, self.short(Kind::Value, &text)),
            false => proto.put(whole, text.as_bytes()),
        }
    }
}

/// Returns the beginning of a text, at most `most` bytes, and whether the text was cut.
fn shorten(text: &str, most: usize) -> (&str, bool) {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    (&text[..end.unwrap_or(0)], text.len() > most)
}

/// Returns bytes as a text of at most `most` bytes, and whether the text differs from these bytes.
pub(super) fn valid(bytes: &[u8], most: usize) -> (Cow<'_, str>, bool) {
    let cut = &bytes[..bytes.len().min(most)];
    match std::str::from_utf8(cut) {
        Ok(text) => (text.into(), cut.len() < bytes.len()),
        // The limit divides the last character, so the text ends before this character.
        Err(why) if cut.len() < bytes.len() && why.error_len().is_none() => {
            (String::from_utf8_lossy(&cut[..why.valid_up_to()]), true)
        }
        // Each invalid byte becomes a character of three bytes, so only a third of `most` bytes is read.
        Err(_) => {
            let text = String::from_utf8_lossy(&cut[..cut.len().min(most / 3)]).into_owned();
            (text.into(), true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_once() {
        let mut interned = Interned::default();
        let name: Arc<str> = "disk_read".into();
        let field: Arc<str> = "lba".into();
        let mut packet = Proto::default();
        let first = (interned.event(&name), interned.field(&name, 0, &field));
        interned.write_new(&mut packet);
        let len = packet.bytes().len();

        let other: Arc<str> = "disk_read".into();
        let second = (interned.event(&other), interned.field(&other, 0, &field));
        interned.write_new(&mut packet);
        assert_eq!((first, packet.bytes().len()), (second, len));
        assert!(packet.bytes().windows(9).any(|part| part == b"disk_read"));
    }

    #[test]
    fn a_table_that_is_full_can_begin_anew() {
        let mut interned = Interned::default();
        let mut number = 0;
        while !interned.is_full() {
            interned.short(Kind::Value, &format!("value {number}"));
            number += 1;
        }
        assert!(number <= MAX + 1);
        interned.clear();
        assert!(!interned.is_full());
        assert_eq!(interned.short(Kind::Value, "value 7"), 1);
    }

    #[test]
    fn any_bytes_become_a_short_valid_text() {
        let of = |bytes: &[u8], most| {
            let (text, is_changed) = valid(bytes, most);
            assert!(text.len() <= most);
            (text.into_owned(), is_changed)
        };
        assert_eq!(of(b"whole", 100), ("whole".into(), false));
        assert_eq!(of(b"whole", 3), ("who".into(), true));
        assert_eq!(of("xä".as_bytes(), 2), ("x".into(), true));
        assert_eq!(of(&[b'a', 0xff, b'b'], 100), ("a\u{fffd}b".into(), true));
        of(&[0xff; 1 << 20], MAX_TEXT);
        of(&[0xe2; 301], 300);
        assert_eq!(shorten("aä", 2), ("a", true));
    }
}
