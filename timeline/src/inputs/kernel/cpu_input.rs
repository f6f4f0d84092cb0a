// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The input that reads the pages of a CPU.

use super::file::{Buffer, Cpu, TraceFile};
use super::pages::PageReader;
use super::printk::print;
use super::times::{Scale, Times};
use crate::error::{Error, Result};
use crate::event::{Bound, Encoded, EntryRef, EventKind, EventRef, Fields, Lost, Thread};
use crate::format::{self, COMMON, Format};
use crate::inputs::input::{Input, Time, UNPLACED, nanoseconds, nanoseconds_up};
use crate::inputs::names::Names;
use crate::source::Source;
use crate::value::number;
use hypertrace_abi::ring::Losses;
use hypertrace_format::error::Warning;
use hypertrace_format::number::counted;
use hypertrace_format::ring_page::{Page, Wrong};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of threads whose names are kept: the default maximum number of threads of Linux.
const MAX_NAMES: usize = 1 << 15;

/// A CPU and the next entry of this CPU.
#[derive(Debug)]
pub(crate) struct CpuInput<'a> {
    file: &'a TraceFile,
    times: &'a Times,
    hints: (usize, usize),
    session: usize,
    /// Index of the trace among the traces of the timeline.
    pub trace: usize,
    /// Whether a loss is placed right after the event before the loss, and not right before the next event.
    pub tells_losses_early: bool,
    /// Whether a guest has made the file. Faults of such a file are no damage of the session that holds the
    /// file.
    pub is_by_guest: bool,
    prefix: String,
    cpu: u32,
    pages: PageReader<'a>,
    page: Page,
    /// Event that was read last, until the timeline takes the event.
    event: Option<Event<'a>>,
    /// Number of lost events before `event` that the kernel counted.
    missed: u64,
    /// Whether events that the kernel did not count were lost before `event`, too.
    has_uncounted: bool,
    /// Time of the last event. Times never decrease.
    time: Time,
    /// Bound on the error of the event's time.
    bound: Option<u64>,
    sources: HashMap<u32, Arc<Source>>,
    /// Text of the last event of `trace_printk`.
    printed: Vec<u8>,
    /// Id of the last event's thread, and the thread's source.
    source: (u32, Arc<Source>),
    /// Source of events that the CPU lost.
    lost: Option<Arc<Source>>,
    faults: Faults,
    /// Time of the last event in the last page without damage. The times of a page with damage are doubtful.
    sound: Option<Time>,
    /// Whether the current page has a fault that shows damage. Every fault counts, except a cut file or a
    /// format that cannot be read. `is_damaged` says whether the last page had such a fault.
    has_damage: bool,
    is_damaged: bool,
}

#[derive(Debug)]
struct Event<'a> {
    format: &'a Format,
    place: Range<usize>,
    tid: u32,
}

/// Faults of events that could be read in spite of these faults: for each kind of fault, the number and the
/// first fault.
#[derive(Debug, Default)]
struct Faults {
    unknown: Option<(u64, String)>,
    partial: Option<(u64, String)>,
    short: Option<(u64, String)>,
    backwards: Option<(u64, String)>,
    /// Number of pages with missing events, and the error of the first such page.
    damaged: Option<(u64, String)>,
    cut: Option<String>,
}

impl<'a> CpuInput<'a> {
    pub fn new(
        file: &'a TraceFile,
        times: &'a Times,
        session: usize,
        prefix: &str,
        (buffer, cpu): (&Buffer, Cpu),
    ) -> CpuInput<'a> {
        CpuInput {
            file,
            times,
            hints: (0, 0),
            session,
            trace: 0,
            tells_losses_early: false,
            is_by_guest: false,
            prefix: prefix_of(prefix, &buffer.name),
            cpu: cpu.number,
            pages: PageReader::new(file, buffer, cpu),
            page: Page::default(),
            event: None,
            missed: 0,
            has_uncounted: false,
            time: Time::MIN,
            bound: None,
            sources: HashMap::new(),
            printed: Vec::new(),
            source: (u32::MAX, Arc::default()),
            lost: None,
            faults: Faults::default(),
            sound: None,
            has_damage: false,
            is_damaged: false,
        }
    }

    /// Reads the next event, if there is one, and the losses before this event. The rest of a damaged page is
    /// left out, and counts as a loss that the kernel did not count.
    ///
    /// # Errors
    /// If the system cannot read the file.
    pub fn read(&mut self) -> Result<bool> {
        // The loop ends, because each turn takes a record or a page.
        loop {
            match self.page.next(self.pages.page()) {
                Ok(Some(place)) => match self.event(place) {
                    Ok(()) => return Ok(true),
                    Err(wrong) => self.wrong(wrong),
                },
                Ok(None) => {}
                Err(wrong) => self.wrong(wrong),
            }
            self.end_page();
            match self.pages.next() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error @ Error::Damaged { .. }) => {
                    // Reading ends here, because the place of the next page is not known.
                    self.pages.end();
                    self.damaged(&error);
                    self.end_page();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            match Page::open(self.pages.page()) {
                Ok((page, missed)) => {
                    self.page = page;
                    self.add_missed(missed);
                }
                Err(wrong) => {
                    self.wrong(wrong);
                    self.skip_hole();
                }
            }
        }
    }

    /// If a hole of the file follows this page, counts the pages of the hole as damaged, because nobody wrote
    /// these pages.
    fn skip_hole(&mut self) {
        let pages = self.pages.skip_hole();
        if let Some((damaged, _)) = &mut self.faults.damaged {
            *damaged += pages;
        }
    }

    fn add_missed(&mut self, missed: Option<u64>) {
        self.missed = self.missed.saturating_add(missed.unwrap_or(0));
        self.has_uncounted |= missed == Some(0);
    }

    /// Returns the number of events that the kernel counted as lost before the last event, if there are any.
    /// Then returns 0 once, if the kernel did not count all lost events. All further calls return `None`.
    pub fn take_missed(&mut self) -> Option<u64> {
        match std::mem::take(&mut self.missed) {
            0 => std::mem::take(&mut self.has_uncounted).then_some(0),
            missed => Some(missed),
        }
    }

    /// Returns the name of the event that was read last.
    pub fn name(&self) -> Option<&'a Arc<str>> {
        self.event.as_ref().map(|event| &event.format.name)
    }

    /// Returns the format of the event that was read last.
    pub fn format(&self) -> Option<&'a Format> {
        self.event.as_ref().map(|event| event.format)
    }

    /// Returns whether the last page was cut, so that later events are missing.
    pub fn is_cut(&self) -> bool {
        self.faults.cut.is_some()
    }

    /// Returns the thread and the fields of the event that was read last.
    pub fn record(&self) -> Option<(u32, format::Fields<'_>)> {
        let Event { format, place, tid } = self.event.as_ref()?;
        let bytes = self.pages.page().get(place.clone())?;
        Some((*tid, format::Fields { format, bytes, printed: None }))
    }

    /// Returns the time of the event that was read last, in ticks of the trace's clock.
    pub fn raw(&self) -> u64 {
        self.page.time
    }

    /// Returns the time of the event that was read last.
    pub fn time(&self) -> Time {
        self.time
    }

    /// Returns the bound on the error of the time of the event that was read last, in nanoseconds.
    pub fn bound_ns(&self) -> Option<u64> {
        self.bound
    }

    /// Returns the Unix time in nanoseconds of the last event, or of the last event's page. The caller must
    /// have read all pages. Pages with a fault do not count, because their times may be wrong too.
    pub fn last(&self) -> Option<i64> {
        self.sound.map(nanoseconds)
    }

    /// Returns whether the last page has a fault that shows damage. The caller must have read all pages.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Ends the page, and keeps the time of the page's last event if the page has no damage.
    fn end_page(&mut self) {
        self.is_damaged = std::mem::take(&mut self.has_damage);
        if !self.is_damaged {
            let page = (self.page.time > 0)
                .then(|| self.times.at(&mut self.hints, self.cpu, self.page.time).0);
            let last = page.max((self.time > Time::MIN).then_some(self.time));
            self.sound = last.max(self.sound);
        }
    }

    /// Ends the page, because it has a wrong value.
    fn wrong(&mut self, wrong: Wrong) {
        self.page = Page::default();
        let Wrong { at, expected, found } = wrong;
        let error = self.pages.damaged(at, &expected, found);
        if self.pages.is_whole() {
            return self.damaged(&error);
        }
        self.faults.cut = Some(format!("the last page of CPU {} is cut: {error}", self.cpu));
    }

    /// Notes that events are missing between the current position and the next page.
    fn damaged(&mut self, error: &Error) {
        (self.has_uncounted, self.has_damage) = (true, true);
        count(&mut self.faults.damaged, || error.to_string());
    }

    fn event(&mut self, place: Range<usize>) -> std::result::Result<(), Wrong> {
        let bytes = self.pages.page();
        let data = &bytes[place.clone()];
        let (Some(id), Some(tid)) = (data.get(..2), data.get(4..COMMON)) else {
            let expected = "an event of at least 8 bytes".into();
            return Err(Wrong {
                at: place.start,
                expected,
                found: format!("{} bytes", data.len()),
            });
        };
        let (id, tid) = (number(id) as u16, number(tid) as u32);
        let (format, unknown) = self.file.formats.get(id);
        let here = || self.pages.place(place.start);
        if let Some(why) = unknown {
            self.has_damage |= !self.file.formats.has(id);
            count(&mut self.faults.unknown, || {
                format!("the first, of id {id}, at {}: {why}", here())
            });
        } else if !format.fits(data) {
            self.has_damage = true;
            count(&mut self.faults.short, || {
                format!("the first, {}, at {}: no {}", format.name, here(), format.missing(data))
            });
        }
        if let Some((lines, first)) = &format.unread {
            count(&mut self.faults.partial, || {
                let name = &format.name;
                format!("the first, {name}, at {}: {lines} like {first:?}", here())
            });
        }
        let (time, bound) = self.times.at(&mut self.hints, self.cpu, self.page.time);
        if time < self.time {
            self.has_damage = true;
            count(&mut self.faults.backwards, || format!("the first at {}", here()));
        }
        self.time = time.max(self.time);
        let late = nanoseconds_up(self.time - time);
        self.bound = bound.map(|bound| bound.saturating_add(late));
        self.event = Some(Event { format, place, tid });
        Ok(())
    }

    /// Sets `source` to the source of a thread.
    fn set_source(&mut self, tid: u32, names: &mut Names) {
        if self.sources.len() >= MAX_NAMES {
            self.sources.clear();
        }
        let (prefix, file, session) = (&self.prefix, self.file, self.session);
        let source = self.sources.entry(tid).or_insert_with(|| {
            let name = file.comm(tid).filter(|_| tid != 0);
            let text = match (tid, name) {
                (0, _) => format!("{prefix}kernel/idle"),
                (_, Some(comm)) => format!("{prefix}kernel/{comm}-{tid}"),
                (_, None) => format!("{prefix}kernel/{tid}"),
            };
            names.add(session, name, text)
        });
        self.source = (tid, source.clone());
    }
}

/// Returns the prefix for the sources of a buffer. The prefix ends with the name of the instance.
fn prefix_of(prefix: &str, instance: &str) -> String {
    match instance {
        "" => prefix.to_owned(),
        // A `/` separates the name of a thread, so the instance's name must not contain a `/`.
        name => format!("{prefix}{}:", name.replace('/', "_")),
    }
}

fn count(fault: &mut Option<(u64, String)>, first: impl FnOnce() -> String) {
    match fault {
        Some((n, _)) => *n += 1,
        None => *fault = Some((1, first())),
    }
}

impl Input for CpuInput<'_> {
    fn advance(&mut self) -> Result<Option<Time>> {
        let last = self.time;
        let there = self.event.is_some() || self.read()?;
        let has_lost = self.missed > 0 || self.has_uncounted;
        if !there && !has_lost {
            return Ok(None);
        }
        if has_lost && self.tells_losses_early && last > Time::MIN {
            return Ok(Some(last));
        }
        // If there is no event, the place of losses is unknown. Losses after the last event get the time of
        // the last event.
        Ok(Some(if self.time == Time::MIN { UNPLACED } else { self.time }))
    }

    fn take<'s>(&'s mut self, names: &'s mut Names) -> Option<EntryRef<'s>> {
        if let Some(events) = self.take_missed() {
            let text = || format!("{}kernel/cpu{}", self.prefix, self.cpu);
            let source = self.lost.get_or_insert_with(|| names.add(self.session, None, text()));
            return Some(EntryRef::Lost(Lost {
                ts_ns: (self.time != Time::MIN && !matches!(self.times.scale, Scale::Ticks))
                    .then(|| nanoseconds(self.time)),
                source: source.clone(),
                cpu: Some(self.cpu),
                thread: None,
                trace: self.trace,
                events,
                causes: Losses { overwritten: events, ..Losses::default() },
            }));
        }
        let Event { format, place, tid } = self.event.take()?;
        if tid != self.source.0 {
            self.set_source(tid, names);
        }
        let bytes = &self.pages.page()[place];
        let ticks = matches!(self.times.scale, Scale::Ticks).then_some(self.page.time);
        let printed = format.printk.and_then(|printk| {
            let fields = format::Fields { format, bytes, printed: None };
            let text = self.file.printk.get(fields.number(printk.address)? as u64)?;
            Some(match printk.arguments {
                Some(arguments) => {
                    self.printed.clear();
                    print(&mut self.printed, text, fields.rest(arguments)?);
                    &self.printed
                }
                None => text.as_bytes(),
            })
        });
        Some(EntryRef::Event(EventRef {
            ts_ns: nanoseconds(self.time),
            ticks,
            source: &self.source.1,
            name: &format.name,
            fields: Fields(Encoded::Kernel(format::Fields { format, bytes, printed })),
            flags: 0,
            kind: EventKind::Kernel,
            reference: None,
            thread: Some(Thread { pid: None, tid, cpu: Some(self.cpu) }),
            function: None,
            reading: None,
            bound: Bound::Known(self.bound),
            trace: self.trace,
        }))
    }

    fn is_host(&self) -> bool {
        true
    }

    fn warnings(&self) -> Vec<Warning> {
        let Faults { unknown, partial, short, backwards, damaged, cut } = &self.faults;
        // The bool says whether events are missing. An unknown event is shown whole, and some clocks of the
        // kernel run back, so these faults do not mean that events are missing.
        let events = [
            (unknown, "events without a readable format", false),
            (partial, "events without the fields whose formats cannot be read", false),
            (short, "events that do not hold what their format says", true),
            (
                backwards,
                "events with a time before the one before them, shown at that one's",
                false,
            ),
        ];
        let path = self.file.path.display();
        let events = events.into_iter().filter_map(|(fault, what, is_damage)| {
            let (n, first) = fault.as_ref()?;
            Some((format!("{path}: {n} {what} on CPU {}; {first}", self.cpu), is_damage))
        });
        let damaged = damaged.iter().map(|(n, first)| {
            let pages = counted(*n, "page");
            (format!("{first}: events are missing, of {pages} of CPU {}", self.cpu), true)
        });
        let cut = cut.iter().map(|cut| (cut.clone(), true));
        let all = events.chain(damaged).chain(cut);
        all.map(|(text, is_damage)| match is_damage && !self.is_by_guest {
            true => Warning::damage(text),
            false => text.into(),
        })
        .collect()
    }
}
