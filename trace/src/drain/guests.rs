//! The guests' sources.

use super::source::Source;
use super::stats::Stats;
use crate::ctf::Domain;
use hypertrace_format::limits::MAX_CLIENTS;

/// The guests' sources, by client.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    sources: Vec<Option<Box<Source>>>,
}

impl Guests {
    /// Returns the source of a client; a new one if it has none. `None` if there is no
    /// such client.
    pub fn source(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Source> {
        Some(self.slot(client, stats)?.as_mut()?)
    }

    /// Takes the source of a client out, until it is [checked in](Self::check_in).
    pub fn check_out(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<Box<Source>> {
        self.slot(client, stats)?.take()
    }

    /// Puts a source back that was [checked out](Self::check_out).
    pub fn check_in(&mut self, source: Box<Source>) {
        let client = source.number as usize;
        if let Some(slot) = self.sources.get_mut(client) {
            *slot = Some(source);
        }
    }

    /// Iterates over the sources.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().flatten().map(|source| &**source)
    }

    /// Iterates over the sources.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Source> {
        self.sources.iter_mut().flatten().map(|source| &mut **source)
    }

    fn slot(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Option<Box<Source>>> {
        if client >= MAX_CLIENTS {
            return None;
        }
        let index = client as usize;
        if self.sources.len() <= index {
            self.sources.resize_with(index + 1, || None);
        }
        let slot = &mut self.sources[index];
        if slot.is_none() {
            *slot = Some(Box::new(Source::new(Domain::Guest, client, stats.len())));
            stats.push(Stats::new(Domain::Guest, client));
        }
        Some(slot)
    }
}
