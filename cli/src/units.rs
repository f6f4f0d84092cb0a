//! Parses the sizes and times of arguments, and formats them for messages.

use hypertrace_format::number::time;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Units of sizes, the largest first.
const SIZES: [(&str, u64); 3] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// Parses a size with its unit, such as `64K`, to bytes.
pub fn size(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim_end_matches("iB");
    let unit = SIZES.iter().find(|(name, _)| *name == unit);
    let needed = || "a size is a number with K, M or G, such as 64K or 1M".to_owned();
    let (number, (_, unit)) = digits.parse::<u64>().ok().zip(unit).ok_or_else(needed)?;
    let size = number.saturating_mul(*unit);
    match range.contains(&size) {
        true => Ok(size),
        false => Err(format!(
            "a size from {} to {} is possible",
            shown(*range.start()),
            shown(*range.end())
        )),
    }
}

/// Parses a size that is a power of two.
pub fn power_of_two(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let (from, to) = (shown(*range.start()), shown(*range.end()));
    let needed = |_| format!("give a power of two from {from} to {to}, with its unit");
    let size = size(text, range.clone()).map_err(needed)?;
    let next = size.checked_next_power_of_two().unwrap_or(*range.end());
    match size == next {
        true => Ok(size),
        false => Err(format!("it has to be a power of two: the next is {}", shown(next))),
    }
}

/// Parses the size of a ring.
pub fn ring(text: &str) -> Result<u64, String> {
    power_of_two(text, 64 << 10..=1 << 30)
}

/// Parses the size of a kernel's buffer. Returns KiB.
pub fn buffer_kib(text: &str) -> Result<u32, String> {
    // The size is at most 4 GiB, so the number of KiB fits.
    size(text, 64 << 10..=1 << 32).map(|bytes| (bytes >> 10) as u32)
}

/// Formats a size in the largest unit that divides the size without a remainder.
pub fn shown(bytes: u64) -> String {
    let unit = SIZES.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or(format!("{bytes} bytes"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// A time on the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nanoseconds since the start.
    Since(i64),
    /// Nanoseconds of Unix time.
    Unix(i64),
}

impl At {
    /// Returns the time since `start`, which is in nanoseconds of Unix time.
    pub fn since(self, start: i64) -> i64 {
        match self {
            At::Since(since) => since,
            At::Unix(unix) => unix.saturating_sub(start),
        }
    }
}

/// Parses a time since the start, or a calendar time such as `2026-11-27T15:48:15.5Z`.
pub fn at(text: &str) -> Result<At, String> {
    if !text.contains(':') {
        return time(text).map(At::Since);
    }
    let parsed = text.parse::<jiff::Timestamp>().map_err(|why| why.to_string())?;
    let unix = i64::try_from(parsed.as_nanosecond());
    unix.map(At::Unix).map_err(|_| "expected a year from 1678 to 2261".into())
}

/// Parses a time to wait: at most a year, so that the sum with a point in time cannot overflow.
pub fn wait(text: &str) -> Result<Duration, String> {
    let ns = time(text)?.try_into().unwrap_or(0);
    let wait = Duration::from_nanos(ns);
    match (Duration::from_millis(1)..=Duration::from_secs(31_536_000)).contains(&wait) {
        true => Ok(wait),
        false => Err("a time from 1ms to 31536000s is possible".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [("64K", 64 << 10), ("1M", 1 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(size(text, 0..=u64::MAX), Ok(bytes), "{text}");
        }
        for text in ["64", "", "K", "1.5M", "-1K", "1KB", "1 K", "1T"] {
            assert!(size(text, 0..=u64::MAX).unwrap_err().contains("such as 64K"), "{text}");
        }
        assert_eq!(
            size("99999999999G", 0..=1 << 30).unwrap_err(),
            "a size from 0 bytes to 1G is possible"
        );
        for wrong in ["100", "1K", "2G"] {
            let needed = "give a power of two from 64K to 1G, with its unit";
            assert_eq!(ring(wrong).unwrap_err(), needed);
        }
        assert_eq!(ring("96K").unwrap_err(), "it has to be a power of two: the next is 128K");
        assert_eq!((shown(1_536 << 10), shown(1 << 30)), ("1536K".into(), "1G".into()));
    }

    #[test]
    fn times_are_exact() {
        for (text, ns) in [
            ("1.5ms", 1_500_000),
            ("200us", 200_000),
            ("2s", 2_000_000_000),
            (".5", 500_000_000),
            ("0.000000001", 1),
            ("0.0000000019", 1),
            ("17ns", 17),
            ("-1.25us", -1_250),
            ("3\u{b5}s", 3_000),
        ] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for text in
            ["", "s", "2", "1h", "1.2.3s", "--1s", "1 s", "99999999999999999s", "1e3", ".", "x5"]
        {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
