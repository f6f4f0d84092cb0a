//! Which clock a guest's threads stamp with, and how long 10 ms are on it.

use super::options::Options;
use crate::os;
use crate::time::Clock;
use std::fs;

/// Chooses a clock: the TSC if it always ticks at one rate, or if a hypervisor
/// offers it as a clock; otherwise CLOCK_MONOTONIC_RAW. AArch64's counter
/// always ticks at one rate, but an emulator's counter is not the one whose
/// frequency the host knows.
pub(super) fn choose(options: &Options, told: u64) -> Clock {
    if let Some(clock) = options.clock {
        return clock;
    }
    if let Some(own) = hypertrace_abi::clock::frequency() {
        let is_told = told == 0 || own.abs_diff(told) <= told / 100;
        return if is_told { Clock::Counter } else { Clock::MonotonicRaw };
    }
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = text(options.proc.join("cpuinfo"));
    let sources = "devices/system/clocksource/clocksource0/available_clocksource";
    if is_tsc_usable(&cpuinfo, &text(options.sysfs.join(sources))) {
        Clock::Counter
    } else {
        Clock::MonotonicRaw
    }
}

fn is_tsc_usable(cpuinfo: &str, clocksources: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag| flags.split_whitespace().any(|word| word == flag);
    let offered = clocksources.split_whitespace().any(|word| word == "tsc");
    (has("constant_tsc") && has("nonstop_tsc")) || (has("hypervisor") && offered)
}

/// Ticks of a clock, in time.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Clock,
    /// Ticks per second, 0 if the host does not know.
    frequency: u64,
    /// When it was made, in ticks and nanoseconds.
    ticks: u64,
    nanoseconds: u64,
}

impl Pace {
    pub(super) fn new(clock: Clock, frequency: u64) -> Pace {
        Pace {
            clock,
            frequency: match clock {
                Clock::Counter => frequency,
                Clock::MonotonicRaw => 1_000_000_000,
            },
            ticks: clock.now(),
            nanoseconds: os::nanoseconds(),
        }
    }

    /// Returns the clock.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns true if this many ticks are more than 10 ms. Where the host does not
    /// know the frequency, it is the average since this value was made.
    pub(super) fn is_over_10_ms(&self, ticks: u64) -> bool {
        if self.frequency > 0 {
            return ticks > self.frequency / 100;
        }
        let passed = self.clock.now().saturating_sub(self.ticks);
        let nanoseconds = os::nanoseconds().saturating_sub(self.nanoseconds);
        u128::from(ticks) * u128::from(nanoseconds) > 10_000_000 * u128::from(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tsc_is_taken_where_it_is_steady_or_offered_by_a_hypervisor() {
        let steady = "processor: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";
        let guest = "flags\t\t: fpu tsc hypervisor\n";
        assert!(is_tsc_usable(steady, ""));
        assert!(is_tsc_usable(guest, "kvm-clock tsc acpi_pm\n"));
        assert!(!is_tsc_usable(guest, "kvm-clock acpi_pm\n"));
        assert!(!is_tsc_usable("flags\t\t: tsc constant_tsc\n", "tsc hpet"));
        assert!(!is_tsc_usable("", ""));
    }

    #[test]
    fn ten_milliseconds_are_measured_where_the_frequency_is_unknown() {
        let clock = Clock::Counter;
        let pace = Pace::new(clock, 0);
        let start = clock.now();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let ticks = clock.now() - start;
        assert!(pace.is_over_10_ms(ticks));
        assert!(!pace.is_over_10_ms(ticks / 100));
        assert!(Pace::new(Clock::MonotonicRaw, 1).is_over_10_ms(10_000_001));
    }
}
