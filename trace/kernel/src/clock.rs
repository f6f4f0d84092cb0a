//! The clocks of recordings, and the map from CLOCK_MONOTONIC_RAW to the session's raw counter.
//!
//! The kernel derives CLOCK_MONOTONIC_RAW from the counter by a constant factor. So the map is a line through
//! the first and the last reading of the clock and the counter, and is as exact as these readings. perf
//! stamps records with CLOCK_MONOTONIC_RAW. The kernel's trace uses this clock, too, on machines on which no
//! trace clock is the counter.

use crate::error::Error;
use hypertrace_abi::clock::ticks;
use hypertrace_format::folder::{Folder, read_at};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io;

/// A clock of a recording's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Clock {
    /// The session's counter.
    #[default]
    #[serde(rename = "x86-tsc")]
    Tsc,
    /// CLOCK_MONOTONIC_RAW, in nanoseconds.
    #[serde(rename = "mono_raw")]
    MonotonicRaw,
}

impl Clock {
    /// The clock of recordings on this machine.
    pub const OWN: Clock =
        if cfg!(target_arch = "x86_64") { Clock::Tsc } else { Clock::MonotonicRaw };

    /// Returns the clock's name in the kernel's trace.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Tsc => "x86-tsc",
            Clock::MonotonicRaw => "mono_raw",
        }
    }

    /// Reads this clock together with the counter, unless the clock is the counter.
    pub fn reading(self) -> Option<Reading> {
        (self == Clock::MonotonicRaw).then(Reading::now)
    }
}

/// Name of the file with readings of both clocks, in a recording that perf made.
pub(crate) const FILE: &str = "clock";

/// Maximum size of the used readings in bytes. This size suffices for 12 hours with two readings a second.
const MAX: usize = 2 << 20;

/// Returns the map from the readings in a recording's folder, or `None` if there are no readings.
///
/// # Errors
/// If the readings cannot be read.
pub(crate) fn map(folder: &Folder, frequency: u64) -> Result<Option<Map>, Error> {
    let failed = |source| Error::File { action: "read", path: folder.path().join(FILE), source };
    let file = match folder.file(FILE, OFlags::RDONLY) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut readings = vec![0; MAX];
    let read = read_at(&file, &mut readings, 0).map_err(failed)?;
    Ok(Map::new(&Reading::all(&readings[..read]), frequency))
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// CLOCK_MONOTONIC_RAW, nanoseconds
    pub raw: u64,
    /// Ticks of the counter in the middle between the two readings that enclose the reading of the clock.
    pub ticks: u64,
    /// Ticks between the counter's readings before and after the reading of the clock.
    pub width: u64,
}

/// Number of tries. Several tries are needed, because an interrupt may stretch a reading.
const TRIES: u32 = 32;

impl Reading {
    pub const BYTES: usize = 24;

    /// Reads the clock and the counter several times, and returns the reading with the least width.
    pub fn now() -> Reading {
        let read = || {
            let before = ticks();
            let time = clock_gettime(ClockId::MonotonicRaw);
            let width = ticks().saturating_sub(before);
            let raw = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
            Reading { raw, ticks: before + width / 2, width }
        };
        let closer = |a: Reading, b: Reading| if b.width < a.width { b } else { a };
        (1..TRIES).map(|_| read()).fold(read(), closer)
    }

    /// Returns the reading as the bytes in the file.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (word, at) in [self.raw, self.ticks, self.width].into_iter().zip((0..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns all whole readings of a file.
    pub fn all(bytes: &[u8]) -> Vec<Reading> {
        let word = |part: &[u8], at: usize| {
            part.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        let parts = bytes.chunks_exact(Self::BYTES);
        parts.map(|p| Reading { raw: word(p, 0), ticks: word(p, 8), width: word(p, 16) }).collect()
    }
}

/// The map from CLOCK_MONOTONIC_RAW to the counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    first: Reading,
    /// Ticks and nanoseconds from the first reading to the last.
    ticks: u64,
    ns: u64,
    /// True if `ticks` and `ns` are from two readings.
    has_last: bool,
    /// Maximum error of the map in nanoseconds, before or after the right time.
    pub bound_ns: u64,
}

impl Map {
    /// Returns the map of these readings. With fewer than two readings, the map's rate is `frequency`, in
    /// ticks per second. Returns `None` without any reading.
    pub fn new(readings: &[Reading], frequency: u64) -> Option<Map> {
        let (first, last) = (*readings.first()?, *readings.last()?);
        let (ticks, ns, has_last) =
            match (last.ticks.checked_sub(first.ticks), last.raw.checked_sub(first.raw)) {
                (Some(ticks @ 1..), Some(ns @ 1..)) => (ticks, ns, true),
                _ => (frequency.max(1), 1_000_000_000, false),
            };
        let mut map = Map { first, ticks, ns, has_last, bound_ns: 0 };
        // The distances of the other readings from the line show how straight the line is.
        let off =
            |r: &Reading| map.ticks_of(r.raw).abs_diff(r.ticks).saturating_add(r.width.div_ceil(2));
        let bound = readings.iter().map(off).max().unwrap_or(0);
        let ns = u128::from(bound) * 1_000_000_000 / u128::from(frequency.max(1));
        map.bound_ns = u64::try_from(ns).unwrap_or(u64::MAX).saturating_add(1);
        Some(map)
    }

    /// Returns the first and the last reading, each as nanoseconds and ticks, or `None` if there is only one
    /// reading.
    pub fn line(&self) -> Option<[(u64, u64); 2]> {
        let Reading { raw, ticks, .. } = self.first;
        self.has_last.then_some([(raw, ticks), (raw + self.ns, ticks + self.ticks)])
    }

    /// Returns the counter's value at a time of CLOCK_MONOTONIC_RAW.
    pub fn ticks_of(&self, raw: u64) -> u64 {
        let since = i128::from(raw) - i128::from(self.first.raw);
        // The readings of a damaged file may be any numbers. The product of two such numbers has up to 128
        // bits and a sign.
        let ticks = since.saturating_mul(i128::from(self.ticks)).div_euclid(i128::from(self.ns));
        u64::try_from(ticks.saturating_add(i128::from(self.first.ticks))).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_goes_through_its_readings_and_knows_its_width() {
        let reading = |raw, ticks| Reading { raw, ticks, width: 52 };
        let readings = [
            reading(1_000, 50),
            reading(500_001_000, 1_300_000_050 + 260),
            reading(1_000_001_000, 2_600_000_050),
        ];
        let map = Map::new(&readings, 2_600_000_000).unwrap();
        assert_eq!(map.ticks_of(1_000), 50);
        assert_eq!(map.ticks_of(1_000_001_000), 2_600_000_050);
        assert_eq!(map.ticks_of(999), 47);
        // The middle reading is 100 ns off the line, and half of this reading's width is 10 ns.
        assert_eq!(map.bound_ns, 111);
        let one = Map::new(&readings[..1], 2_600_000_000).unwrap();
        assert_eq!(one.ticks_of(1_000_001_000), 2_600_000_050);
        assert!(Map::new(&[], 1).is_none());
    }

    #[test]
    fn readings_of_any_numbers_make_a_map() {
        let extremes = [0, 1, u64::MAX / 2, u64::MAX];
        let of = |raw, ticks, width| Reading { raw, ticks, width };
        for raw in extremes {
            for ticks in extremes {
                for last in extremes {
                    let readings =
                        [of(raw, ticks, last), of(last, 0, u64::MAX), of(last, last, u64::MAX)];
                    for frequency in extremes {
                        let map = Map::new(&readings, frequency).unwrap();
                        assert!(map.bound_ns > 0);
                        let _ = extremes.map(|raw| map.ticks_of(raw));
                    }
                }
            }
        }
    }

    #[test]
    fn readings_survive_a_file_that_was_cut() {
        let reading = Reading::now();
        let mut bytes = reading.to_bytes().to_vec();
        bytes.extend(&reading.to_bytes()[..10]);
        assert_eq!(Reading::all(&bytes), [reading]);
    }
}
