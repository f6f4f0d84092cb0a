// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The clock of a directory's times, and the directory's anchor. The anchor says which value of the host's
//! counter belongs to time 0.

use std::path::Path;

use hypertrace_format::clock::FREQUENCIES;
use hypertrace_format::uuid;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, file};

/// Name of the file with the anchor.
pub const FILE: &str = "hypertrace.json";

/// Maximum size of the file in bytes.
const MAX: u64 = 4096;

const FORMAT: &str = "hypertrace-functions";
const VERSION: u32 = 1;

/// Clock that converts values of the host's counter to a directory's times.
///
/// The time is *(counter - begin) × floor(2^32 × 10^9 / frequency) / 2^32* nanoseconds, rounded down.
/// Therefore a reader can compute which values of the counter give a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    begin: u64,
    /// Duration of a tick in units of 2^-32 nanoseconds
    scale: u64,
}

impl Clock {
    /// Makes a clock whose time is 0 at the counter's value `begin`. If the frequency is outside of
    /// [`FREQUENCIES`], the clock uses the nearer end of this range.
    #[must_use]
    pub fn new(begin: u64, frequency: u64) -> Self {
        let frequency = frequency.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
        // The scale is at least 2^32 / 1,000, and at most 2^32 x 10^6.
        Clock { begin, scale: ((1_000_000_000_u128 << 32) / u128::from(frequency)) as u64 }
    }

    /// Returns the time in nanoseconds of a value of the counter. The time is 0 before the beginning.
    #[inline]
    #[must_use]
    pub fn time(&self, counter: u64) -> u64 {
        let ticks = counter.saturating_sub(self.begin);
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }

    /// Returns the first and the last value of the counter that have this time. If no value has this time,
    /// both results are the first value with a later time.
    #[must_use]
    pub fn counter(&self, time: u64) -> (u64, u64) {
        let first = |time: u128| (time << 32).div_ceil(self.scale.into());
        let time = u128::from(time);
        let (from, to) = (first(time), first(time + 1) - 1);
        let value = |ticks| u64::try_from(u128::from(self.begin) + ticks).unwrap_or(u64::MAX);
        (value(from), value(to.max(from)))
    }
}

/// The values of the host's clocks at a directory's time 0. The host is the machine that recorded the
/// directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// `/proc/sys/kernel/random/boot_id` of the host, if known. Recordings with the same `boot_id` have times
    /// of the same counter.
    pub boot_id: Option<String>,
    /// Value of the host's counter at time 0.
    pub counter: u64,
    /// Frequency of the counter in ticks per second.
    pub frequency: u64,
    /// Unix time at time 0, in nanoseconds.
    pub unix_ns: i64,
}

/// Contents of the file.
#[derive(Deserialize, Serialize)]
struct Json {
    format: String,
    version: u32,
    boot_id: Option<String>,
    counter: u64,
    frequency: u64,
    unix_ns: i64,
}

impl Anchor {
    /// Returns the clock of the directory's times.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::new(self.counter, self.frequency)
    }

    /// Returns the contents of the file.
    pub(crate) fn to_json(&self) -> String {
        let Anchor { boot_id, counter, frequency, unix_ns } = self.clone();
        let json =
            Json { format: FORMAT.into(), version: VERSION, boot_id, counter, frequency, unix_ns };
        // The conversion never fails, because the fields are numbers and texts.
        serde_json::to_string(&json).unwrap_or_default() + "\n"
    }

    /// Reads the file of a directory. Returns `None` if the directory has no such file, because another
    /// recorder has made the directory.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        if !path.try_exists().map_err(Error::io("read", &path))? {
            return Ok(None);
        }
        let advice = "move it away, and the directory is read without a place on the host's clock";
        let wrong = |why: String| Error::unsuitable(&path, format!("{why}; {advice}"));
        let bytes = file::contents(&path, MAX, advice)?;
        let json: Json = serde_json::from_slice(&bytes)
            .map_err(|why| wrong(format!("not the anchor of a function trace: {why}")))?;
        if json.format != FORMAT || json.version != VERSION {
            let found = format!("{:?}, version {}", json.format, json.version);
            return Err(wrong(format!("expected {FORMAT:?}, version {VERSION}, found {found}")));
        }
        if !FREQUENCIES.contains(&json.frequency) {
            let found = json.frequency;
            return Err(wrong(format!("expected a frequency of 10^3 to 10^12, found {found}")));
        }
        if let Some(boot) = json.boot_id.as_deref().filter(|boot| uuid::parse(boot).is_none()) {
            let why = format!("expected a boot_id of the form 8-4-4-4-12, found {boot:?}");
            return Err(wrong(why));
        }
        let Json { boot_id, counter, frequency, unix_ns, .. } = json;
        Ok(Some(Anchor { boot_id, counter, frequency, unix_ns }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_time_gives_back_the_counters_value(
            begin: u32,
            ticks in 0_u64..1 << 50,
            frequency in FREQUENCIES,
        ) {
            let clock = Clock::new(begin.into(), frequency);
            let counter = u64::from(begin) + ticks;

            let (first, last) = clock.counter(clock.time(counter));

            prop_assert!((first..=last).contains(&counter));
            prop_assert_eq!(clock.time(first), clock.time(last));
            if first > u64::from(begin) {
                prop_assert!(clock.time(first - 1) < clock.time(first));
            }
        }

        #[test]
        fn any_time_has_values_of_the_counter(begin: u64, time: u64, frequency: u64) {
            let (first, last) = Clock::new(begin, frequency).counter(time);
            prop_assert!(begin <= first && first <= last);
        }
    }

    #[test]
    fn a_clock_is_exact_to_the_nanosecond_for_an_hour() {
        let clock = Clock::new(1_000, 2_500_000_000);

        assert_eq!(clock.time(999), 0);
        assert_eq!(clock.time(1_000 + 5), 1);
        let hour = clock.time(1_000 + 3_600 * 2_500_000_000);
        assert!(hour.abs_diff(3_600_000_000_000) < 1_000, "{hour}");
    }
}
