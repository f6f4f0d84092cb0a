//! The few things that portable code needs of an operating system: Linux with the
//! feature `std`, stubs without.
//!
//! The code is unsafe because of C functions. A signal handler may call all functions here: no function
//! allocates, takes a lock or changes errno.
#![cfg_attr(feature = "std", allow(unsafe_code))]

use core::sync::atomic::Ordering::Relaxed;
#[cfg(feature = "std")]
pub(crate) use linux::*;

#[cfg(feature = "std")]
mod linux {
    use hypertrace_abi::atomic::AtomicU64;
    use hypertrace_segment::futex;
    use std::time::Duration;

    /// Length, in nanoseconds, of the first naps of a thread that waits for a word. The thread takes naps if
    /// the writer of the word cannot wake the thread. Naps have this length until `SOON`, because a busy host
    /// answers within that time. Later naps are half as long as the wait so far, and at most `LONGEST_NAP`.
    const NAP: u64 = 200_000;
    const SOON: u64 = 1_000_000;
    const LONGEST_NAP: u64 = 2_000_000;

    /// Sleeps while the low half of a word is `found`. The writer of the word wakes the thread. Processes
    /// share the word. Returns `false` once the time `until` of [`nanoseconds`] has come. The thread began to
    /// wait at `begin`. `is_remote`: the writer has another kernel, and cannot wake the thread.
    pub(crate) fn sleep(
        word: &AtomicU64,
        found: u32,
        (begin, until): (u64, u64),
        is_remote: bool,
    ) -> bool {
        let now = nanoseconds();
        let left = until.saturating_sub(now);
        let of = Duration::from_nanos;
        if left > 0 && (is_remote || !futex::wait_low(word, found, Some(of(left)))) {
            let waited = now.saturating_sub(begin);
            let most = if waited < SOON { NAP } else { (waited / 2).min(LONGEST_NAP) };
            nap(of(left.min(most)));
        }
        left > 0
    }

    /// Sleeps for `time`, or until a signal. Returns false if the system refuses, as under a seccomp filter,
    /// where the standard library would panic.
    pub(crate) fn nap(time: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: nanosleep reads `time`. errno is this thread's own, and is put back.
        unsafe {
            let errno = *libc::__errno_location();
            let is_refused = libc::nanosleep(&time, std::ptr::null_mut()) != 0
                && *libc::__errno_location() != libc::EINTR;
            *libc::__errno_location() = errno;
            !is_refused
        }
    }

    /// Sleeps for a millisecond, or gives the CPU to another thread where the system refuses to sleep.
    pub(crate) fn nap_or_yield() {
        if !nap(Duration::from_millis(1)) {
            pause();
        }
    }

    /// Returns the CPU that this thread runs on.
    pub(crate) fn cpu() -> u32 {
        // SAFETY: sched_getcpu takes nothing.
        u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
    }

    thread_local! {
        /// Number of region ids that this thread has given out. A new client does not restart the count,
        /// because an open region, as in a forked child, may end on the new client.
        static REGIONS: AtomicU64 = const { AtomicU64::new(0) };
    }

    /// Returns the next id of a region. The thread counts regions over all its clients.
    #[inline(always)]
    pub(crate) fn next_region(_of_client: &AtomicU64) -> u64 {
        next_region_of_thread()
    }

    /// Returns the next id of a region of this thread.
    #[inline(always)]
    pub(crate) fn next_region_of_thread() -> u64 {
        REGIONS.with(super::next)
    }

    /// Returns true if the process has root's rights, which a lockdown may still restrict.
    pub(crate) fn is_root() -> bool {
        // SAFETY: geteuid takes nothing.
        unsafe { libc::geteuid() == 0 }
    }

    /// Returns the time of a clock that is never adjusted, in nanoseconds.
    pub(crate) fn nanoseconds() -> u64 {
        let now = clock(libc::CLOCK_MONOTONIC_RAW);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// Returns the time of a cheap and coarse clock, in milliseconds.
    pub(crate) fn coarse_ms() -> u64 {
        let now = clock(libc::CLOCK_MONOTONIC_COARSE);
        now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
    }

    fn clock(id: libc::clockid_t) -> libc::timespec {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` lives through the call. Both clocks exist since Linux 2.6.32, so the call cannot
        // fail.
        unsafe { libc::clock_gettime(id, &mut now) };
        now
    }

    /// Gives the CPU to another thread.
    pub(crate) fn pause() {
        std::thread::yield_now();
    }
}

/// Returns 0: the CPU that this thread runs on is not known.
#[cfg(not(feature = "std"))]
pub(crate) fn cpu() -> u32 {
    0
}

/// Returns the next id of a client's region.
#[cfg(not(feature = "std"))]
#[inline(always)]
pub(crate) fn next_region(of_client: &hypertrace_abi::atomic::AtomicU64) -> u64 {
    next(of_client)
}

/// Adds 1 to a count that only one thread changes, and returns the result. A signal handler that interrupts
/// this function may get the same number. The handler returns before the thread uses the number.
#[inline(always)]
fn next(count: &hypertrace_abi::atomic::AtomicU64) -> u64 {
    let next = count.load(Relaxed).wrapping_add(1);
    count.store(next, Relaxed);
    next
}

/// Gives the core to its other hardware thread.
#[cfg(not(feature = "std"))]
pub(crate) fn pause() {
    core::hint::spin_loop();
}

#[cfg(all(test, feature = "std", target_os = "linux"))]
mod tests {
    use super::*;
    use hypertrace_abi::atomic::AtomicU64;

    /// In this test, the kernel's own page of times stands for the memory of a PCI function. The kernel
    /// refuses a futex in both kinds of memory.
    #[test]
    fn a_thread_naps_on_a_word_that_takes_no_futex() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(line) = maps.lines().find(|line| line.ends_with("[vvar]")) else {
            eprintln!("not run: this kernel shows no page of times");
            return;
        };
        let start = usize::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
        // SAFETY: the address is that of a readable page, which the process keeps. No byte of the page is
        // loaded.
        let word = unsafe { &*(start as *const AtomicU64) };
        assert!(!hypertrace_segment::futex::wait_low(word, 0, None));

        let begin = nanoseconds();
        let until = begin + 20_000_000;
        let turns = (0..).take_while(|_| sleep(word, 0, (begin, until), false)).count();

        assert!(turns <= 100, "{turns} turns of 200 us or more in 20 ms");
    }
}
