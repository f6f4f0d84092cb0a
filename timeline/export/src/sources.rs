// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Texts of sources. Most lines with events of one source describe the source in the same words, so the text
//! is kept and used again.

use hypertrace_timeline::{EventKind, EventRef, Thread};

/// Number of texts that are kept.
const SLOTS: usize = 256;
/// Maximum size in bytes of a text that is kept. The size is limited because a guest chooses names.
const LONGEST: usize = 1 << 10;

/// The texts of the last sources.
#[derive(Debug)]
pub(crate) struct Sources {
    slots: Vec<Option<Known>>,
    /// Last text that was too long to be kept.
    long: String,
}

#[derive(Debug)]
struct Known {
    of: (u64, EventKind, Option<Thread>),
    text: String,
}

impl Default for Sources {
    fn default() -> Self {
        let slots = std::iter::repeat_with(|| None).take(SLOTS).collect();
        Sources { slots, long: String::new() }
    }
}

impl Sources {
    /// Returns the text of an event's source. `write` appends the text, which must depend only on the event's
    /// source, kind and thread.
    pub fn text(
        &mut self,
        event: &EventRef<'_>,
        write: impl FnOnce(&mut String, &EventRef<'_>) -> std::fmt::Result,
    ) -> Result<&str, std::fmt::Error> {
        let of = (event.source.number, event.kind, event.thread);
        let cpu = event.thread.and_then(|thread| thread.cpu).unwrap_or(0);
        let slot = &mut self.slots[(of.0 as usize).wrapping_add(cpu as usize) % SLOTS];
        if !slot.as_ref().is_some_and(|known| known.of == of) {
            let mut text = slot.take().map_or_else(String::new, |known| known.text);
            text.clear();
            write(&mut text, event)?;
            if text.len() > LONGEST {
                self.long = text;
                return Ok(&self.long);
            }
            *slot = Some(Known { of, text });
        }
        Ok(slot.as_ref().map_or("", |known| &known.text))
    }
}
