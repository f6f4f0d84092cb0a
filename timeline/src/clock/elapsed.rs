// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Computes how much host time passed between two readings of a guest's clock, from the clock's rate alone.

use super::sweep::{NONE, Rates, Span};
use super::{ClockMap, clamped};

/// A reading of a guest's clock, from which durations are computed. The host time between two readings
/// follows from the rate of the clock alone, and does not depend on the clock map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestTime {
    /// Id of the clock.
    pub clock: u32,
    x: i64,
    rates: Rates,
    /// Two counts of readings of the map. A reading counts if the clock may have jumped after the reading.
    /// The second number counts all readings of the map up to this reading. The first number leaves out the
    /// map's last reading up to this reading.
    jumps: (u32, u32),
}

impl GuestTime {
    /// Returns the least and the largest host time that can have passed until a later reading of the same
    /// clock, in units of 1/[`FRACTION`](super::FRACTION) ns. Returns `None` if the clock may have jumped
    /// between the readings, or if the clock's rate is unknown.
    pub fn until(self, later: GuestTime) -> Option<(i64, i64)> {
        let dx = later.x.checked_sub(self.x)?;
        let is_known =
            (self.clock, self.rates, self.jumps.0) == (later.clock, later.rates, later.jumps.1);
        if dx < 0 || !is_known {
            return None;
        }
        let Span { low, high } = Span { low: 0, high: 0 }.later(self.rates, dx);
        (high < NONE).then_some((low.max(0), high))
    }

    /// Returns this reading with limits of the rate that include the limits from both readings. The numbers
    /// of jumps are added.
    pub fn or(self, other: GuestTime) -> GuestTime {
        GuestTime {
            rates: self.rates.or(other.rates),
            // A map has too few readings for the sums to wrap.
            jumps: (
                self.jumps.0.wrapping_add(other.jumps.0),
                self.jumps.1.wrapping_add(other.jumps.1),
            ),
            ..self
        }
    }
}

/// A reading of a guest's clock, with the maps of this clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestReading<'a> {
    /// Id of the clock.
    pub clock: u32,
    pub ticks: u64,
    /// Map of the client's own readings, and a second map if the clock may follow either map.
    pub maps: (&'a ClockMap, Option<&'a ClockMap>),
    /// Index near which the lookup in a map begins.
    pub hint: usize,
}

impl GuestReading<'_> {
    /// Returns the distance from a host time to the farthest limit that a map sets for the reading, in units
    /// of 1/[`FRACTION`](super::FRACTION) ns. Returns `None` if a map lacks an upper or lower limit.
    pub fn distance(self, host: i64) -> Option<u64> {
        let mut hint = self.hint;
        let own = self.maps.0.distance_from(&mut hint, self.ticks, host);
        match self.maps.1 {
            None => own,
            Some(other) => Some(own?.max(other.distance_from(&mut hint, self.ticks, host)?)),
        }
    }

    /// Looks the reading up in the maps, and returns the [`GuestTime`] of the reading.
    pub fn time(self) -> GuestTime {
        let (own, other) = self.maps;
        let time = own.guest_time(self.ticks);
        let time = other.map_or(time, |other| time.or(other.guest_time(self.ticks)));
        GuestTime { clock: self.clock, ..time }
    }
}

impl ClockMap {
    /// Returns the [`GuestTime`] of a guest reading, with 0 as the id of the clock.
    pub(super) fn guest_time(&self, guest: u64) -> GuestTime {
        let x = clamped(guest);
        let at = self.find(&mut 0, x);
        let jumps = |knots: Option<usize>| {
            let last = knots.and_then(|n| self.knots.get(n));
            last.map_or(0, |knot| knot.jumps)
        };
        let jumps = (jumps(at.checked_sub(2)), jumps(at.checked_sub(1)));
        let own = GuestTime { clock: 0, x, rates: self.rates, jumps };
        // The map in `otherwise` has no further `otherwise`, so the recursion ends after one level.
        match &self.otherwise {
            None => own,
            Some(map) => own.or(map.guest_time(guest)),
        }
    }
}
