// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The event formats in a file. A format is parsed when an event first needs it.

use super::bytes::Bytes;
use crate::error::Result;
use crate::format::{self, Format};
use std::sync::OnceLock;

#[derive(Debug)]
pub(crate) struct Formats {
    texts: Vec<Text>,
    /// Indices of the texts in `texts`, counted from 1. The first index is the upper byte of an event's id,
    /// and the second index is the lower byte. The table is divided by the upper byte, so that ids without
    /// formats take little memory: a session may have many traces.
    by_id: Vec<Vec<u32>>,
    /// Format for events whose own format is missing.
    unknown: Format,
}

#[derive(Debug)]
struct Text {
    system: Box<str>,
    text: Box<str>,
    format: OnceLock<std::result::Result<Format, String>>,
}

impl Text {
    /// Returns the format with this number. The text is parsed only at the first call.
    fn parsed(&self, number: u32) -> std::result::Result<&Format, &String> {
        self.format.get_or_init(|| Format::parse(number, &self.system, &self.text)).as_ref()
    }
}

/// Returns the upper and the lower byte of an id.
fn places(id: u16) -> [usize; 2] {
    id.to_be_bytes().map(usize::from)
}

impl Formats {
    pub fn new() -> Formats {
        Formats { texts: Vec::new(), by_id: Vec::new(), unknown: Format::unknown() }
    }

    /// Reads the formats of ftrace's own events: the number of texts, and then the texts.
    pub fn take_ftrace(&mut self, bytes: &mut Bytes<'_>) -> Result<()> {
        self.take_system("ftrace", bytes)
    }

    /// Reads the formats of all other systems, with the names of the systems.
    pub fn take(&mut self, bytes: &mut Bytes<'_>) -> Result<()> {
        let systems = bytes.u32("a number of systems of events")?;
        // The file's size limits the number of turns, because each system takes at least 5 bytes.
        for _ in 0..systems {
            let system = String::from_utf8_lossy(bytes.text("a system's name")?);
            self.take_system(&system, bytes)?;
        }
        Ok(())
    }

    fn take_system(&mut self, system: &str, bytes: &mut Bytes<'_>) -> Result<()> {
        let events = bytes.u32("a number of event formats")?;
        // The file's size limits the number of turns, because each format takes at least 8 bytes.
        for _ in 0..events {
            let len = bytes.u64("the length of an event format")?;
            let text = String::from_utf8_lossy(bytes.take(len, "an event format")?);
            // A text without an id is left out, so events of this format are shown without a name.
            let Some([upper, lower]) = format::id(&text).map(places) else { continue };
            let (system, text) = (system.into(), text.into());
            let text = Text { system, text, format: OnceLock::new() };
            self.by_id.resize(self.by_id.len().max(upper + 1), Vec::new());
            let part = &mut self.by_id[upper];
            part.resize(part.len().max(lower + 1), 0);
            // If several formats have the same id, only the last of these formats is kept, so that the number
            // of formats is at most the number of ids.
            match part[lower].checked_sub(1) {
                Some(index) => self.texts[index as usize] = text,
                None => {
                    self.texts.push(text);
                    part[lower] = self.texts.len() as u32;
                }
            }
        }
        Ok(())
    }

    /// Returns the index of an event's text, counted from 1. Returns 0 if there is no text for the event.
    fn number(&self, id: u16) -> u32 {
        let [upper, lower] = places(id);
        let number = self.by_id.get(upper).and_then(|part| part.get(lower));
        number.copied().unwrap_or(0)
    }

    /// Returns the format of an event. If the event has no readable format, returns the format of unknown
    /// events and the reason.
    pub fn get(&self, id: u16) -> (&Format, Option<&str>) {
        let number = self.number(id);
        let Some(text) = number.checked_sub(1).and_then(|index| self.texts.get(index as usize))
        else {
            return (&self.unknown, Some("the file has no format of its id"));
        };
        match text.parsed(number) {
            Ok(format) => (format, None),
            Err(why) => (&self.unknown, Some(why)),
        }
    }

    /// Returns the format with this index, if an event of that format was read before.
    pub fn numbered(&self, number: u32) -> Option<&Format> {
        match number.checked_sub(1) {
            Some(index) => self.texts.get(index as usize)?.format.get()?.as_ref().ok(),
            None => Some(&self.unknown),
        }
    }

    /// Returns whether the file has a format of this id, even if the format cannot be read.
    pub fn has(&self, id: u16) -> bool {
        self.number(id) > 0
    }

    /// Iterates over the names of the own fields of all events whose formats can be read.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let formats = (1..).zip(&self.texts).filter_map(|(number, text)| text.parsed(number).ok());
        formats.flat_map(Format::own_fields).map(|name| &**name)
    }

    /// Iterates over the names of all events that have a format, if the name can be shown.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.texts.iter().filter_map(|text| format::full_name(&text.system, &text.text))
    }
}
