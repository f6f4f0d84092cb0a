// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A thread that reads a recording while the consumer works on the caller's thread. Reading takes about as
//! much time as consuming, so it pays to do both at once.

use crate::error::Error;
use crate::event::{
    Bound, Encoded, EntryRef, EventKind, EventRef, Fields, Lost, Reference, Thread,
};
use crate::format;
use crate::inputs::needs::Needs;
use crate::merge::Timeline;
use crate::recording::Recording;
use crate::source::Source;
use hypertrace_format::error::Warning;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::mpsc;
use std::{mem, panic, thread};

/// Maximum number of entries of a batch.
const MAX_ENTRIES: usize = 1024;
/// Size of a batch's fields in bytes. A batch of at least this size takes no further entry.
const MAX_BYTES: usize = 256 << 10;
/// Maximum number of filled batches that wait for the consumer.
const MAX_BATCHES: usize = 2;
/// Number of slots in `Batch::last`.
const SLOTS: usize = 64;

/// Entries in order, with copies of their fields.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<Kept>,
    /// Payloads of the events of sessions.
    words: Vec<u64>,
    /// Records of kernels' traces, and texts of `trace_printk`.
    bytes: Vec<u8>,
    recorders: Vec<Recorder>,
    /// Index of the recorder that was last looked up, by the source's number modulo [`SLOTS`].
    last: Vec<usize>,
    rare: Vec<Rare>,
}

#[derive(Debug)]
enum Kept {
    Event(KeptEvent),
    Lost(Box<Lost>),
}

/// The values that each event has. The struct is small, because the events go from one CPU's cache to another
/// CPU's cache.
#[derive(Debug)]
struct KeptEvent {
    ts_ns: i64,
    bound_ns: Option<u64>,
    /// Index of the recorder.
    recorder: u32,
    /// Id of the event's class in a session, or index of the event's format in a kernel's trace.
    described_by: u32,
    /// Index in `words` at which a session's payload begins, or index in `bytes` at which a kernel's record
    /// begins.
    begin: u32,
    len: u32,
    /// Index of the event's rare values, counted from 1. 0 if the event has no rare values.
    rare: u32,
    trace: u32,
    flags: u16,
    kind: EventKind,
}

/// Who recorded an event.
#[derive(Debug)]
struct Recorder {
    source: Arc<Source>,
    thread: Option<Thread>,
}

/// Values that few events have.
#[derive(Debug)]
struct Rare {
    ticks: Option<u64>,
    reference: Option<Reference>,
    /// The text of `trace_printk`.
    printed: Option<Range<usize>>,
}

impl Batch {
    fn clear(&mut self) {
        let Batch { entries, words, bytes, recorders, last, rare } = self;
        entries.clear();
        words.clear();
        bytes.clear();
        recorders.clear();
        last.clear();
        rare.clear();
    }

    fn is_full(&self) -> bool {
        let bytes = mem::size_of_val(&*self.words) + self.bytes.len();
        self.entries.len() >= MAX_ENTRIES || bytes >= MAX_BYTES
    }

    /// Adds an entry. Events of function traces are ignored, so the caller must not read function traces
    /// ahead.
    fn push(&mut self, entry: &EntryRef<'_>, needs: &Needs) {
        let event = match entry {
            EntryRef::Event(event) => event,
            EntryRef::Lost(lost) => return self.entries.push(Kept::Lost(Box::new(lost.clone()))),
        };
        let mut rare = Rare { ticks: event.ticks, reference: event.reference, printed: None };
        let (described_by, place) = match event.fields.0 {
            Encoded::Record(record) => (record.class, append(&mut self.words, record.payload)),
            Encoded::Kernel(fields) => {
                rare.printed = fields.printed.map(|printed| append(&mut self.bytes, printed));
                (fields.format.number, append(&mut self.bytes, fields.bytes))
            }
            Encoded::Function(_) => return,
        };
        let Rare { ticks, reference, printed } = &rare;
        let has_rare = ticks.is_some() || reference.is_some() || printed.is_some();
        if has_rare {
            self.rare.push(rare);
        }
        let recorder = self.recorder(event);
        self.entries.push(Kept::Event(KeptEvent {
            ts_ns: event.ts_ns,
            bound_ns: if needs.without_bounds { None } else { event.bound_ns() },
            recorder: recorder as u32,
            described_by,
            begin: place.start as u32,
            len: place.len() as u32,
            rare: if has_rare { self.rare.len() as u32 } else { 0 },
            trace: event.trace as u32,
            flags: event.flags,
            kind: event.kind,
        }));
    }

    /// Returns the index of the recorder of an event.
    fn recorder(&mut self, event: &EventRef<'_>) -> usize {
        let new = self.recorders.len();
        self.last.resize(SLOTS, usize::MAX);
        let last = &mut self.last[event.source.number as usize % SLOTS];
        let is_same =
            |of: &Recorder| of.source.number == event.source.number && of.thread == event.thread;
        if !self.recorders.get(*last).is_some_and(is_same) {
            *last = new;
            self.recorders.push(Recorder { source: event.source.clone(), thread: event.thread });
        }
        *last
    }

    /// Hands over the entries until the consumer wants no more.
    fn hand_over(
        &self,
        recording: &Recording,
        give: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.entries.iter().try_for_each(|entry| match entry {
            Kept::Lost(lost) => give(EntryRef::Lost((**lost).clone())),
            // The lookup succeeds, because the recording still has the class or format with which the event
            // was read.
            Kept::Event(event) => match self.event(recording, event) {
                Some(event) => give(EntryRef::Event(event)),
                None => ControlFlow::Continue(()),
            },
        })
    }

    fn event<'a>(&'a self, recording: &'a Recording, event: &KeptEvent) -> Option<EventRef<'a>> {
        const NONE: &Rare = &Rare { ticks: None, reference: None, printed: None };
        let place = event.begin as usize..event.begin as usize + event.len as usize;
        let rare = event.rare.checked_sub(1).map_or(Some(NONE), |at| self.rare.get(at as usize))?;
        let Recorder { source, thread } = self.recorders.get(event.recorder as usize)?;
        let (name, fields) = match event.kind {
            EventKind::Kernel => {
                let trace = recording.traces.get(event.trace as usize)?;
                let format = trace.format(event.described_by)?;
                let printed = rare.printed.clone().and_then(|printed| self.bytes.get(printed));
                let fields = format::Fields { format, bytes: self.bytes.get(place)?, printed };
                (&format.name, Fields(Encoded::Kernel(fields)))
            }
            _ => {
                let (session, _) = recording.sessions.get(source.session)?;
                let class = session.classes().get(event.described_by)?;
                (&class.name, class.own_fields(self.words.get(place)?))
            }
        };
        Some(EventRef {
            ts_ns: event.ts_ns,
            ticks: rare.ticks,
            source,
            name,
            fields,
            flags: event.flags,
            kind: event.kind,
            reference: rare.reference,
            thread: *thread,
            function: None,
            reading: None,
            bound: Bound::Known(event.bound_ns),
            trace: event.trace as usize,
        })
    }
}

/// Appends values. Returns their range.
fn append<T: Copy>(to: &mut Vec<T>, values: &[T]) -> Range<usize> {
    let begin = to.len();
    to.extend_from_slice(values);
    begin..to.len()
}

impl Recording {
    /// Returns whether the recording's events can be read ahead, and there is a second CPU for the reader.
    pub(crate) fn can_be_read_ahead(&self, needs: &Needs) -> bool {
        let has_functions = !self.functions.is_empty() && !needs.without_functions;
        !has_functions && thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
    }

    /// Reads as [`Recording::read`] does, but on another thread than the consumer's. If the system cannot
    /// create a thread, returns `None` and gives no entry.
    pub(crate) fn read_ahead<E: From<Error>>(
        &self,
        needs: &Needs,
        give: &mut dyn FnMut(EntryRef<'_>) -> Result<bool, E>,
    ) -> Option<Result<Vec<Warning>, E>> {
        thread::scope(|scope| {
            let (full, batches) = mpsc::sync_channel::<Batch>(MAX_BATCHES);
            let (back, empty) = mpsc::channel();
            let read = || self.timeline(needs).map(|timeline| fill(timeline, needs, full, empty));
            let reader = thread::Builder::new().spawn_scoped(scope, read).ok()?;
            let (mut end, mut given) = (None, 0);
            let mut give = |entry: EntryRef<'_>| {
                given += 1;
                match give(entry) {
                    Ok(true) => ControlFlow::Continue(()),
                    ended => {
                        end = Some(ended.map(drop));
                        ControlFlow::Break(())
                    }
                }
            };
            for batch in &batches {
                if batch.hand_over(self, &mut give).is_break() {
                    break;
                }
                // Sending fails if the reader has ended. The result is ignored, because the end of the reader
                // is no fault.
                let _ = back.send(batch);
            }
            // Without a receiver, the reader's next send fails and the reader ends.
            drop(batches);
            let read = reader.join().unwrap_or_else(|reason| panic::resume_unwind(reason));
            Some(read.map_err(E::from).and_then(|(warnings, read)| match end {
                None => read.map_err(E::from).map(|()| warnings),
                // The reader may have found damage and faults behind the last entry that the consumer wanted.
                // Such damage and faults are left out of the result.
                Some(Ok(())) if !warnings.is_empty() => Ok(self.warnings_up_to(given, needs)?),
                Some(ended) => ended.map(|()| warnings),
            }))
        })
    }

    /// Returns the faults that are known after the first `entries` entries.
    fn warnings_up_to(&self, entries: u64, needs: &Needs) -> Result<Vec<Warning>, Error> {
        let mut timeline = self.timeline(needs)?;
        for _ in 0..entries {
            timeline.read().transpose()?;
        }
        Ok(timeline.warnings())
    }
}

/// Fills batches with the entries until nobody takes the batches. Returns the faults so far, and the error
/// that ended the reading.
fn fill(
    mut timeline: Timeline<'_>,
    needs: &Needs,
    full: mpsc::SyncSender<Batch>,
    empty: mpsc::Receiver<Batch>,
) -> (Vec<Warning>, Result<(), Error>) {
    let mut batch = Batch::default();
    let read = loop {
        match timeline.read() {
            Some(Ok(entry)) => batch.push(&entry, needs),
            Some(Err(why)) => break Err(why),
            None => break Ok(()),
        }
        if batch.is_full() {
            let mut next = empty.try_recv().unwrap_or_default();
            next.clear();
            if full.send(mem::replace(&mut batch, next)).is_err() {
                return (timeline.warnings(), Ok(()));
            }
        }
    };
    // Sending fails if the consumer has ended. The end of the consumer is no fault.
    let _ = full.send(batch);
    (timeline.warnings(), read)
}
