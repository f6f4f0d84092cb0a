// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The trait of exporters and printers, which receive the contents of a recording.

use crate::compiled::FunctionNames;
use crate::error::Error;
use crate::event::{EntryRef, EventKind};
use crate::inputs::needs::Needs;
use crate::recording::Recording;
use crate::regions::{Begins, Options, Region, Regions, ThreadInterval};
use hypertrace_format::error::Warning;

/// An exporter or a printer, which receives the events, losses, intervals or regions of a recording one by
/// one. The default of each method ignores its argument.
///
/// ```
/// use hypertrace_timeline::regions::Region;
/// use hypertrace_timeline::{Consumer, Error};
///
/// /// The longest region.
/// #[derive(Default)]
/// struct Longest(u64);
///
/// impl Consumer for Longest {
///     type Error = Error;
///
///     fn region(&mut self, region: &Region<'_>) -> Result<bool, Error> {
///         self.0 = self.0.max(region.sample.duration_ns());
///         Ok(true)
///     }
/// }
/// ```
pub trait Consumer {
    /// Why the consumer cannot go on.
    type Error: From<Error>;

    /// Receives the next event, or the next place where events were lost, in order of time. Returns whether
    /// the consumer wants more. If the kernel's buffer with the scheduling events of all threads lost events,
    /// only [`Regions::warnings`] says so.
    ///
    /// # Errors
    /// The first error ends the reading.
    fn entry(&mut self, _: &EntryRef<'_>) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Receives an interval: what a thread did for some time. The intervals of one thread come in order of
    /// time. The intervals of different threads are not in order.
    ///
    /// # Errors
    /// After the first error the consumer receives no more intervals.
    fn interval(&mut self, _: &ThreadInterval<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Receives the next region in the order of [`Regions::by_begin`], with the event that begins the region.
    /// Returns whether the consumer wants more.
    ///
    /// # Errors
    /// The first error ends the reading.
    fn region(&mut self, _: &Region<'_>) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// A closure that receives entries.
impl<E: From<Error>, F: FnMut(&EntryRef<'_>) -> Result<bool, E>> Consumer for F {
    type Error = E;

    fn entry(&mut self, entry: &EntryRef<'_>) -> Result<bool, E> {
        self(entry)
    }
}

impl Recording {
    /// Reads the recording, and gives the consumer all losses and the needed events, until the consumer wants
    /// no more. Returns the faults of inputs that could be read in spite of these faults. If there are
    /// several CPUs, another thread reads up to some thousand events ahead of the consumer, which runs on the
    /// caller's thread.
    ///
    /// # Errors
    /// If an input is damaged, or the consumer returns an error. Before the error of a damaged input, the
    /// consumer receives the events before the damage.
    pub fn read<E: From<Error>>(
        &self,
        needs: &Needs,
        consumer: &mut dyn Consumer<Error = E>,
    ) -> Result<Vec<Warning>, E> {
        let mut names = FunctionNames::new(self.modules.clone());
        let mut give = |entry: EntryRef<'_>| match self.modules.is_empty() {
            true => consumer.entry(&entry),
            false => consumer.entry(&names.named(entry)),
        };
        if self.can_be_read_ahead(needs)
            && let Some(result) = self.read_ahead(needs, &mut give)
        {
            return result;
        }
        let mut timeline = self.timeline(needs)?;
        while let Some(entry) = timeline.read() {
            if !give(entry?)? {
                break;
            }
        }
        Ok(timeline.warnings())
    }

    /// Finds the regions, as [`Regions::of`] does, and gives the intervals of all threads of the sessions to
    /// [`Consumer::interval`]. The [`Regions::lanes`] of the result lack these intervals.
    ///
    /// # Errors
    /// If a stream or a trace is damaged, or the consumer returns an error.
    pub fn regions<E: From<Error>>(
        &self,
        options: &Options,
        consumer: &mut dyn Consumer<Error = E>,
    ) -> Result<Regions, E> {
        let mut taken = Ok(());
        let mut take = |interval: &ThreadInterval<'_>| {
            if taken.is_ok() {
                taken = consumer.interval(interval);
            }
        };
        let regions = Regions::with_intervals(self, options, &mut take)?;
        taken.map(|()| regions)
    }

    /// Gives the regions that were found to [`Consumer::region`], each with the event that begins the region,
    /// until the consumer wants no more. [`Consumer::entry`] receives only the events that say which thread
    /// holds a client. A caller that needs only the regions can iterate over [`Regions::by_begin`], which has
    /// the same regions in the same order.
    ///
    /// Events that begin regions are read a second time, because memory does not hold the fields of these
    /// events, and only the end of the recording shows which regions count.
    ///
    /// # Errors
    /// If a stream is damaged, or the consumer returns an error.
    pub fn read_regions<E: From<Error>>(
        &self,
        regions: &Regions,
        consumer: &mut dyn Consumer<Error = E>,
    ) -> Result<(), E> {
        let needs = Needs::default().of_sessions();
        let needs = needs.named(&self.sessions, |name| name.ends_with("_begin"));
        let mut timeline = self.timeline(&needs)?;
        let mut begins = Begins::of(regions);
        while let Some(entry) = timeline.read() {
            let entry = entry?;
            let EntryRef::Event(event) = &entry else { continue };
            let wants_more = match event.kind {
                EventKind::Lease => consumer.entry(&entry)?,
                _ => begins.event(event, &mut |region| consumer.region(region))?,
            };
            if !wants_more {
                return Ok(());
            }
        }
        begins.finish(&mut |region| consumer.region(region))
    }
}
