//! Chooses the clock that stamps a guest's events, and measures 10 ms on that clock.

use super::options::Options;
use super::{cpus, sys};
use crate::error::OpenError;
use crate::os;
use crate::time::Clock;
use hypertrace_abi::clock::Reason;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Environment variable with the name of a clock: `tsc` or `monotonic_raw`.
const ENVIRONMENT: &str = "HYPERTRACE_CLOCK";

/// The kernel's clocks that programs read without a system call.
const CHEAP: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// Chooses a clock, and returns the clock and the reason. The first choice is the clock of the options, then
/// the clock of the environment, then the TSC if the TSC is known to be one clock. The TSC is one clock if
/// the kernel keeps the TSC, if QEMU emulates the CPUs, or if the counters of a virtual machine's CPUs agree.
/// The last choice is CLOCK_MONOTONIC_RAW. AArch64's counter always ticks at one rate. If this rate is not
/// `told`, the counter is an emulator's, and the function chooses CLOCK_MONOTONIC_RAW.
///
/// `told` is the rate of AArch64's counter, as the host says; 0 if the host does not say a rate.
///
/// # Errors
/// If the environment variable has a value that is no clock's name.
pub(super) fn choose(options: &Options, told: u64) -> Result<(Clock, Reason), OpenError> {
    if let Some(clock) = options.clock {
        return Ok((clock, Reason::Named));
    }
    if let Some(clock) = in_environment()? {
        return Ok((clock, Reason::Named));
    }
    if let Some(own) = hypertrace_abi::clock::frequency() {
        let is_told = told == 0 || own.abs_diff(told) <= told / 100;
        return Ok(match is_told {
            true => (Clock::Counter, Reason::Kept),
            false => (Clock::MonotonicRaw, Reason::Doubtful),
        });
    }
    if hypertrace_abi::clock::is_emulated() {
        return Ok((Clock::Counter, Reason::Emulated));
    }
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let sources = options.sysfs.join("devices/system/clocksource/clocksource0");
    let available = text(sources.join("available_clocksource"));
    let tsc = tsc(&text(options.proc.join("cpuinfo")), &available);
    let (clock, reason) = of_tsc(tsc, cpus::are_one_clock);
    let current = text(sources.join("current_clocksource"));
    if clock == Clock::MonotonicRaw && !CHEAP.contains(&current.trim()) {
        warn(current.trim());
    }
    Ok((clock, reason))
}

/// Chooses a clock by the state of the TSC. `are_one_clock` compares the TSCs of all CPUs.
fn of_tsc(tsc: Tsc, are_one_clock: impl FnOnce() -> Option<bool>) -> (Clock, Reason) {
    match tsc {
        Tsc::Kept => (Clock::Counter, Reason::Kept),
        Tsc::Unusable => (Clock::MonotonicRaw, Reason::Doubtful),
        Tsc::Dropped => match are_one_clock() {
            Some(true) => (Clock::Counter, Reason::Agreeing),
            Some(false) => (Clock::MonotonicRaw, Reason::Differing),
            None => (Clock::MonotonicRaw, Reason::Doubtful),
        },
    }
}

/// Returns the clock that the program's environment names.
fn in_environment() -> Result<Option<Clock>, OpenError> {
    let named = std::env::var_os(ENVIRONMENT).filter(|named| !named.is_empty());
    match named.filter(|_| !sys::is_secure()) {
        None => Ok(None),
        Some(named) if named == "tsc" => Ok(Some(Clock::Counter)),
        Some(named) if named == "monotonic_raw" => Ok(Some(Clock::MonotonicRaw)),
        Some(named) => Err(OpenError::Clock(named.to_string_lossy().into_owned())),
    }
}

/// Says once in a boot that events are slow. `source` is the name of the kernel's clock; empty if not known.
fn warn(source: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    // Programs of root can write to the first folder. Programs of a user who has logged in can write to the
    // second folder.
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !sys::is_secure());
    let folders = [Some("/run".into()), of_user];
    if !source.is_empty()
        && !WARNED.swap(true, Ordering::Relaxed)
        && is_first(folders.into_iter().flatten().map(PathBuf::from))
    {
        sys::say(&format!(
            "hypertrace: events are stamped with CLOCK_MONOTONIC_RAW, which costs microseconds for each \
             event on this kernel's clock, {source}, because the TSC is not known to be one clock on all \
             CPUs; {ENVIRONMENT}=tsc uses the TSC nevertheless, {ENVIRONMENT}=monotonic_raw removes this \
             line\n"
        ));
    }
}

/// Returns true if no other process has given this warning since the system started. The first process makes
/// a file in one of these folders, and a restart of the system removes this file. If no folder can be
/// written, each process is the first.
fn is_first(folders: impl IntoIterator<Item = PathBuf>) -> bool {
    let note = |folder: PathBuf| {
        let made = fs::File::create_new(folder.join("hypertrace-slow-clock"));
        match made.map_err(|error| error.kind()) {
            Ok(_) => Some(true),
            Err(ErrorKind::AlreadyExists) => Some(false),
            Err(_) => None,
        }
    };
    // By the specification of XDG_RUNTIME_DIR, a path that is not absolute does not count.
    folders.into_iter().filter(|folder| folder.is_absolute()).find_map(note).unwrap_or(true)
}

/// State of the TSC, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tsc {
    /// The kernel has not dropped the TSC. Besides, the TSC always ticks at one rate, or a hypervisor offers
    /// the TSC.
    Kept,
    /// The TSC is a virtual machine's, and the kernel has dropped it, perhaps because the kernel knows too
    /// little about the hypervisor.
    Dropped,
    Unusable,
}

fn tsc(cpuinfo: &str, clocksources: &str) -> Tsc {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag| flags.split_whitespace().any(|word| word == flag);
    let offered = clocksources.split_whitespace().any(|word| word == "tsc");
    let is_steady = has("constant_tsc") && has("nonstop_tsc");
    // A system that shows no clocks has not dropped any clock.
    let is_kept = offered || (is_steady && clocksources.trim().is_empty());
    match has("tsc") && (is_steady || has("hypervisor")) {
        true if is_kept => Tsc::Kept,
        true if has("hypervisor") => Tsc::Dropped,
        _ => Tsc::Unusable,
    }
}

/// Measures time in ticks of a clock.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Clock,
    /// Ticks per second; 0 if the host does not know.
    frequency: u64,
    /// Time at which this value was made, in ticks and in `nanoseconds`.
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

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns true if this many ticks are more than 10 ms. If the host does not know the frequency, the
    /// function uses the average frequency since this value was made.
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
        assert_eq!(tsc(steady, ""), Tsc::Kept);
        assert_eq!(tsc(guest, "kvm-clock tsc acpi_pm\n"), Tsc::Kept);
        assert_eq!(tsc("flags\t\t: tsc constant_tsc\n", "tsc hpet"), Tsc::Unusable);
        assert_eq!(tsc("", ""), Tsc::Unusable);
        assert_eq!(of_tsc(Tsc::Kept, || panic!()), (Clock::Counter, Reason::Kept));
    }

    #[test]
    fn only_the_first_process_of_a_boot_says_that_events_are_slow() {
        let folder = tempfile::tempdir().unwrap();
        let folders = || [folder.path().join("none"), folder.path().to_owned()];

        assert_eq!([(); 3].map(|()| is_first(folders())), [true, false, false]);
        assert_eq!([(); 2].map(|()| is_first([folder.path().join("none")])), [true, true]);
        assert_eq!([(); 2].map(|()| is_first(["".into(), ".".into()])), [true, true]);
    }

    #[test]
    fn a_tsc_that_the_kernel_has_dropped_is_taken_in_a_virtual_machine_whose_cpus_agree() {
        let clocks = "kvm-clock acpi_pm\n";
        let steady = "tsc constant_tsc nonstop_tsc";
        assert_eq!(tsc(&format!("flags\t\t: {steady}\n"), clocks), Tsc::Unusable);
        assert_eq!(tsc(&format!("flags\t\t: {steady} hypervisor\n"), clocks), Tsc::Dropped);
        assert_eq!(tsc("flags\t\t: fpu tsc hypervisor\n", clocks), Tsc::Dropped);
        let raw = Clock::MonotonicRaw;
        assert_eq!(of_tsc(Tsc::Unusable, || panic!()), (raw, Reason::Doubtful));
        for (found, expected) in [
            (Some(true), (Clock::Counter, Reason::Agreeing)),
            (Some(false), (raw, Reason::Differing)),
            (None, (raw, Reason::Doubtful)),
        ] {
            assert_eq!(of_tsc(Tsc::Dropped, || found), expected);
        }
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
