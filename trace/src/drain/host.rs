//! The drain loop's side of a host ring.

use super::classes::Classes;
use super::source::Source;
use super::stats::Stats;
use crate::events::Escaped;
use crate::events::rings::HostRing;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::{Consumer, ConsumerState, Flow};
use hypertrace_abi::schema::{Schema, Value};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Maximum number of a ring's records that are shown.
const SHOWN: usize = 16;

/// The drain loop's side of a host ring.
#[derive(Debug)]
pub(crate) struct HostConsumer {
    pub ring: Arc<HostRing>,
    state: ConsumerState,
    /// The ring's head at the beginning of the pass. The consumer reads no records after this position.
    noted: u64,
    /// True if the head has moved since the previous pass.
    has_moved: bool,
}

impl HostConsumer {
    pub fn new(ring: Arc<HostRing>) -> HostConsumer {
        HostConsumer { ring, state: ConsumerState::default(), noted: 0, has_moved: false }
    }

    /// Notes the present head of the ring.
    pub fn note_head(&mut self) {
        let head = self.ring.head();
        self.has_moved = head != self.noted;
        self.noted = head;
    }

    /// Returns true if the ring's head has not moved since it was noted for the previous pass, and no thread
    /// is writing a record now.
    pub fn is_quiet(&self) -> bool {
        // The order of the checks matters: if an emit ends after the check of `is_busy`, the emit has moved
        // the head.
        !self.has_moved && !self.ring.is_busy() && self.ring.head() == self.noted
    }

    /// Returns a consumer of the ring up to the noted head.
    pub fn consumer(&mut self) -> Option<Consumer<'_>> {
        let mut consumer = Consumer::new(self.ring.memory()?, &mut self.state);
        consumer.up_to(self.noted);
        Some(consumer)
    }

    /// Formats the fill of the ring, and the newest records that wait in the ring. Takes no record out.
    pub fn describe(
        &self,
        text: &mut String,
        source: &Source,
        stats: &Stats,
        classes: &Classes,
    ) -> fmt::Result {
        let Some(memory) = self.ring.memory() else { return Ok(()) };
        let mut state = self.state.clone();
        let mut consumer = Consumer::new(memory, &mut state);
        let (mut waiting, mut newest) = (0u64, VecDeque::new());
        let mut stage = vec![0; consumer.stage_words()];
        for _ in 0..consumer.most_leases() {
            let pulled = consumer.pull(&mut stage, |_, record| {
                waiting += 2 + record.payload.len() as u64;
                if newest.len() == SHOWN {
                    newest.pop_front();
                }
                let mut words = vec![0; record.payload.len()];
                record.payload.copy_to(&mut words);
                newest.push_back((record.header, words));
                Flow::Taken
            });
            if !pulled.more {
                break;
            }
        }
        let capacity = memory.capacity();
        writeln!(
            text,
            "ring {}: {stats}; {}% of {} KiB waiting",
            source.number,
            waiting * 100 / capacity,
            capacity / 128
        )?;
        let now = ticks();
        for (header, words) in newest {
            let ago = now.saturating_sub(header.timestamp);
            write!(text, "  {ago} ticks ago: ")?;
            describe_record(text, source.texts.table.text(classes, header.id), &words)?;
        }
        Ok(())
    }
}

fn describe_record(text: &mut String, schema: Option<&str>, words: &[u64]) -> fmt::Result {
    let Some(schema) = schema.and_then(|text| Schema::parse(text).ok()) else {
        return writeln!(text, "{words:x?}");
    };
    write!(text, "{}", schema.name())?;
    let shape = schema.shape();
    for (field, value) in schema.fields().zip(shape.values(words)) {
        write!(text, " {}=", field.name)?;
        match value {
            Value::Unsigned(n) => write!(text, "{n}")?,
            Value::Signed(n) => write!(text, "{n}")?,
            Value::Float(n) => write!(text, "{n}")?,
            Value::Bool(b) => write!(text, "{b}")?,
            Value::Hex(n) => write!(text, "{n:#x}")?,
            Value::Str(bytes) => write!(text, "{}", Escaped(bytes))?,
            Value::Words(words) => write!(text, "{words:x?}")?,
        }
    }
    writeln!(text)
}
