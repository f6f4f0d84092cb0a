//! The pace at which a thread reads files. The files tell facts that no event tells. The longer a reading
//! takes, the more seldom the thread reads the files.

use std::time::{Duration, Instant};

/// Minimum time until the next reading, as a multiple of the time that a reading takes.
const PAUSE: u32 = 100;

/// The pace at which some files are read.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Minimum time between two readings.
    period: Duration,
    /// End of the last reading, and duration of the shortest reading.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// Returns the pace of files that are read at most once in `period`.
    pub const fn new(period: Duration) -> Pace {
        Pace { period, last: None }
    }

    /// Returns the minimum time between two readings.
    pub fn pause(&self) -> Duration {
        let shortest = self.last.map_or(Duration::ZERO, |(_, shortest)| shortest);
        self.period.max(shortest.saturating_mul(PAUSE))
    }

    /// Returns true if the next reading is due.
    pub fn is_due(&self) -> bool {
        self.last.is_none_or(|(at, _)| at.elapsed() >= self.pause())
    }

    /// Notes the end of a reading that began at `begun`.
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
