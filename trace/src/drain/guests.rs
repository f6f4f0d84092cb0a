//! The guests' sources.

use super::classes::{Earlier, Table};
use super::source::Source;
use super::stats::Stats;
use crate::ctf::Domain;
use hypertrace_format::limits::MAX_CLIENTS;
use std::sync::Arc;

/// The guests' sources, by client.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    sources: Vec<Option<Box<Source>>>,
    /// Texts that a killed process may have read of any client.
    pub earlier: Arc<Earlier>,
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
            let mut source = Source::new(Domain::Guest, client, stats.len());
            source.texts.table = Table::of_earlier(Arc::clone(&self.earlier));
            *slot = Some(Box::new(source));
            stats.push(Stats::new(Domain::Guest, client));
        }
        Some(slot)
    }
}
