// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Converts the map of a guest's clock to a list of corrections, for readers that do not know clock maps.
//!
//! trace-cmd adds a correction to a guest's ticks. Between two given corrections, trace-cmd computes the
//! correction by linear interpolation with 64 bits.

use super::KernelTrace;
use super::times::Scale;
use crate::clock::FRACTION;
use crate::clock::host::HostCounter;
use crate::error::Result;
use crate::inputs::ctf::{GuestClock, Session};

/// Divisor of the bound. At the readings of the map's points, corrected times may differ from the map's times
/// by the bound divided by this number. Between two points, the bound can be smaller than at both points.
/// Even there, the difference stays below a 16th of the bound.
const PART: u64 = 20;

/// Maximum product of the time between two corrections and the difference of both corrections: half of the
/// largest product that fits in 64 bits.
const MAX_PRODUCT: u128 = 1 << 62;

/// A guest's time with its correction. `tolerance` is the largest error that is allowed at this time if the
/// correction is left out.
#[derive(Clone, Copy, Debug)]
struct Knot {
    guest: u64,
    offset: i64,
    tolerance: u64,
}

impl Knot {
    fn of(clock: &GuestClock, host: &HostCounter, hints: &mut (usize, usize), guest: u64) -> Knot {
        let (time, bound) = clock.at(hints, guest);
        let unix = time.div_euclid(FRACTION.into());
        let unix = unix.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let offset = host.raw(unix).wrapping_sub(guest) as i64;
        let bound_ns = bound.unwrap_or(0) / FRACTION as u64;
        // Rounding can lose the ticks of one nanosecond and one further tick.
        let ticks = |ns: u64| u128::from(ns) * u128::from(host.frequency()) / 1_000_000_000 + 1;
        let tolerance = ticks(bound_ns / PART).max(ticks(1) + 1) as u64;
        Knot { guest, offset, tolerance }
    }

    /// Returns the number of parts into which the line from the knot `before` to this knot must be cut, so
    /// that readers can compute each part with 64 bits.
    fn parts(&self, before: &Knot) -> u64 {
        let product =
            u128::from(self.guest - before.guest) * u128::from(self.offset.abs_diff(before.offset));
        // The number of parts is the smallest whole number whose square is at least the quotient, because n
        // parts divide the product by the square of n.
        (product.div_ceil(MAX_PRODUCT) as f64).sqrt().ceil().max(1.0) as u64
    }

    /// Returns the slope of the line from the knot `before` to this knot. The offset of this knot is first
    /// increased by `moved` ticks.
    fn slope(&self, before: &Knot, moved: i128) -> f64 {
        let rise = i128::from(self.offset) - i128::from(before.offset) + moved;
        rise as f64 / (self.guest - before.guest) as f64
    }
}

impl KernelTrace {
    /// Returns corrections of the times of a guest's trace: guest ticks in order, each with the offset that
    /// gives the host's ticks. Between two corrections, readers interpolate the offset linearly. The
    /// corrected times differ from the trace's times by at most a 16th of the times' bound plus 3 ns. Returns
    /// `None` if the trace's clock is not the TSC of the guest in this session, if the trace has no events,
    /// or if more than `most` corrections are needed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn corrections(&self, session: &Session, most: usize) -> Result<Option<Vec<(u64, i64)>>> {
        let scale = self.times.first().map(|times| &times.scale);
        let is_tsc = self.file.buffers.first().is_some_and(|buffer| *buffer.clock == *super::TSC);
        let Some(Scale::Guest(clock, None)) = scale.filter(|_| is_tsc) else {
            return Ok(None);
        };
        let (mut first, mut last) = (u64::MAX, 0);
        for (_, mut input) in self.inputs(0, "") {
            while input.read()? {
                (first, last) = (first.min(input.raw()), last.max(input.raw()));
            }
        }
        if first > last {
            return Ok(None);
        }
        let (host, mut hints) = (session.counter(), (0, 0));
        let mut knot = |guest| Knot::of(clock, &host, &mut hints, guest);
        let mut before = knot(first);
        // `least` and `largest` limit the slope of the line from the last kept correction.
        let mut from = before;
        let (mut least, mut largest) = (f64::NEG_INFINITY, f64::INFINITY);
        let mut kept = vec![(from.guest, from.offset)];
        let inside = clock.readings().filter(|reading| first < *reading && *reading < last);
        for reading in inside.chain([last]).filter(|reading| *reading > first) {
            let (start, end) = (before, knot(reading));
            let ticks = end.guest - start.guest;
            let parts = end.parts(&start).min(ticks);
            for n in 1..=parts {
                let part = u128::from(ticks) * u128::from(n) / u128::from(parts);
                let next = knot(start.guest + part as u64);
                let slope = next.slope(&from, 0);
                let is_far = next.parts(&from) > 1 || !(least..=largest).contains(&slope);
                if is_far && before.guest > from.guest {
                    kept.push((before.guest, before.offset));
                    if kept.len() >= most {
                        return Ok(None);
                    }
                    (from, least, largest) = (before, f64::NEG_INFINITY, f64::INFINITY);
                }
                let tolerance = i128::from(next.tolerance);
                least = least.max(next.slope(&from, -tolerance));
                largest = largest.min(next.slope(&from, tolerance));
                before = next;
            }
        }
        if before.guest > from.guest {
            kept.push((before.guest, before.offset));
        }
        Ok(Some(kept).filter(|kept| kept.len() <= most))
    }
}
