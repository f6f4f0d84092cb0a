//! How often a thread reads files that tell what no event tells: seldom if a reading takes long.

use std::time::{Duration, Instant};

/// Least number of times that a reading takes until the next one.
const PAUSE: u32 = 100;

/// The readings of some files.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Least time between two readings.
    period: Duration,
    /// When the last reading ended, and how long the shortest one took.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Makes the pace of files that are read once in `period` at most.
    pub const fn new(period: Duration) -> Pace {
        Pace { period, last: None }
    }

    /// Returns the time between two readings.
    pub fn pause(&self) -> Duration {
        let shortest = self.last.map_or(Duration::ZERO, |(_, shortest)| shortest);
        self.period.max(shortest.saturating_mul(PAUSE))
    }

    /// Returns whether the next reading is due.
    pub fn is_due(&self) -> bool {
        self.last.is_none_or(|(at, _)| at.elapsed() >= self.pause())
    }

    /// Notes that a reading has ended, which began then.
    pub fn ended(&mut self, begun: Instant) {
        let took = begun.elapsed();
        let shortest = self.last.map_or(took, |(_, shortest)| shortest.min(took));
        self.last = Some((Instant::now(), shortest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_takes_long_is_rare() {
        let period = Duration::from_millis(10);
        let mut pace = Pace::new(period);
        assert!(pace.is_due());
        assert_eq!(pace.pause(), period);
        pace.last = Some((Instant::now(), Duration::from_micros(300)));
        assert_eq!(pace.pause(), Duration::from_millis(30));
        assert!(!pace.is_due());
    }
}
