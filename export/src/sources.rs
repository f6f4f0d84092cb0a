// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Texts of sources: what lines say of an event's source is the same in most lines of that source.

use hypertrace_timeline::{EventKind, EventRef, Thread};
use std::sync::Arc;

/// Texts that are kept.
const SLOTS: usize = 256;
/// Most bytes of a text that is kept: a guest chooses names.
const LONGEST: usize = 1 << 10;

/// The texts of the last sources.
#[derive(Debug)]
pub(crate) struct Sources {
    slots: Vec<Option<Known>>,
    /// One that is not kept.
    long: String,
}

#[derive(Debug)]
struct Known {
    name: Arc<str>,
    rest: (EventKind, Option<u32>, Option<Thread>),
    text: String,
}

impl Default for Sources {
    fn default() -> Self {
        let slots = std::iter::repeat_with(|| None).take(SLOTS).collect();
        Sources { slots, long: String::new() }
    }
}

impl Sources {
    /// Returns the text of an event's source. `write` appends it: a function of the event's source, kind, client and
    /// thread alone.
    pub fn text(
        &mut self,
        event: &EventRef<'_>,
        write: impl FnOnce(&mut String, &EventRef<'_>) -> std::fmt::Result,
    ) -> Result<&str, std::fmt::Error> {
        let rest = (event.kind, event.client, event.thread);
        let cpu = event.thread.and_then(|thread| thread.cpu).unwrap_or(0) as usize;
        let address = Arc::as_ptr(event.source).cast::<u8>() as usize;
        let slot = &mut self.slots[(address / 16 + cpu) % SLOTS];
        let is_same = |known: &Known| Arc::ptr_eq(&known.name, event.source) && known.rest == rest;
        if !slot.as_ref().is_some_and(is_same) {
            let mut text = slot.take().map_or_else(String::new, |known| known.text);
            text.clear();
            write(&mut text, event)?;
            if text.len() > LONGEST {
                self.long = text;
                return Ok(&self.long);
            }
            *slot = Some(Known { name: event.source.clone(), rest, text });
        }
        Ok(slot.as_ref().map_or("", |known| &known.text))
    }
}
