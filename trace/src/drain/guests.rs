//! The guests' lanes.

use super::lane::Lane;
use super::stats::Stats;
use crate::ctf::Domain;
use crate::limits::MAX_CLIENTS;

/// The guests' lanes, by client.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    lanes: Vec<Option<Box<Lane>>>,
}

impl Guests {
    /// Returns the lane of a client; a new one if it has none. `None` if there is no
    /// such client.
    pub fn lane(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Lane> {
        Some(self.slot(client, stats)?.as_mut()?)
    }

    /// Takes the lane of a client out, until it is [checked in](Self::check_in).
    pub fn check_out(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<Box<Lane>> {
        self.slot(client, stats)?.take()
    }

    /// Puts a lane back that was [checked out](Self::check_out).
    pub fn check_in(&mut self, lane: Box<Lane>) {
        let client = lane.number as usize;
        if let Some(slot) = self.lanes.get_mut(client) {
            *slot = Some(lane);
        }
    }

    /// Iterates over the lanes.
    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten().map(|lane| &**lane)
    }

    /// Iterates over the lanes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten().map(|lane| &mut **lane)
    }

    fn slot(&mut self, client: u32, stats: &mut Vec<Stats>) -> Option<&mut Option<Box<Lane>>> {
        if client >= MAX_CLIENTS {
            return None;
        }
        let index = client as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        let slot = &mut self.lanes[index];
        if slot.is_none() {
            *slot = Some(Box::new(Lane::new(Domain::Guest, client, stats.len())));
            stats.push(Stats::new(Domain::Guest, client));
        }
        Some(slot)
    }
}
