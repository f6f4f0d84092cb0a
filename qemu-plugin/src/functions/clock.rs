//! The time of records.

use hypertrace_abi::clock::ticks;
use hypertrace_functions::clock::{Anchor, Clock as Scale};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time for which the counter's rate is measured. It is known to some parts in 100,000 then.
const MEASURED: Duration = Duration::from_millis(20);

/// Readings of a moment, of which the best one is taken.
const READINGS: u32 = 32;

/// Nanoseconds since the beginning, by this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Scale);

/// Readings of the counter and of the system's clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    counter: u64,
    monotonic: Instant,
    unix: SystemTime,
    /// Ticks between the counter's readings before and after those of the clocks.
    width: u64,
}

impl Moment {
    /// Reads all three, several times, and returns the readings that were nearest to each other: another thread may
    /// get the CPU between two of them.
    fn read() -> Moment {
        let read = |_| {
            let before = ticks();
            let (monotonic, unix) = (Instant::now(), SystemTime::now());
            let width = ticks().saturating_sub(before);
            Moment { counter: before + width / 2, monotonic, unix, width }
        };
        let first = read(0);
        (1..READINGS)
            .map(read)
            .fold(first, |best, next| if next.width < best.width { next } else { best })
    }
}

impl Clock {
    /// Measures the counter's rate. Returns the clock, and where its beginning is on this machine's clocks.
    pub fn measure() -> (Clock, Anchor) {
        let begin = Moment::read();
        sleep(MEASURED);
        let end = Moment::read();
        let ticks = u128::from(end.counter.saturating_sub(begin.counter));
        let passed = end.monotonic.duration_since(begin.monotonic);
        let frequency = ticks * 1_000_000_000 / passed.as_nanos().max(1);
        let since = begin.unix.duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let anchor = Anchor {
            boot_id: boot.ok().map(|id| id.trim_end().to_owned()),
            counter: begin.counter,
            frequency: u64::try_from(frequency).unwrap_or(u64::MAX),
            unix_ns: i64::try_from(since.as_nanos()).unwrap_or(0),
        };
        (Clock(anchor.clock()), anchor)
    }

    /// Returns the nanoseconds since the beginning.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.time(ticks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_busy_machine_all_measurements_are_of_one_rate() {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let frequencies: Vec<u64> = std::thread::scope(|scope| {
            let spin = || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            for _ in 0..8 {
                scope.spawn(spin);
            }
            let found = (0..10).map(|_| Clock::measure().1.frequency).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            found
        });

        let (least, most) = (frequencies.iter().min().unwrap(), frequencies.iter().max().unwrap());
        // A reader takes recordings whose rates differ by more than 1,000 ppm as those of different machines.
        assert!(most - least < least / 2_000, "{frequencies:?}");
    }
}
