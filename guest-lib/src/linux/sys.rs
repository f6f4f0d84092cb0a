//! The few system calls that threads make when they get a client.
//!
//! Unsafe, because they are C functions. All of them may be called in a signal
//! handler: none allocates or takes a lock.
#![allow(unsafe_code)]

use hypertrace_abi::layout::mark;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

/// While it lives, no signal handler runs on this thread, and afterwards errno
/// is what it was: an event does not disturb the code around it.
pub(super) struct Undisturbed {
    mask: libc::sigset_t,
    errno: i32,
}

impl Undisturbed {
    pub(super) fn begin() -> Undisturbed {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: errno is this thread's own. sigfillset fills `all`, and
        // pthread_sigmask, which cannot fail with these arguments, `mask`.
        // Signals that the CPU raises stay: blocked, they would kill.
        unsafe {
            let errno = *libc::__errno_location();
            libc::sigfillset(all.as_mut_ptr());
            for raised in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
                libc::sigdelset(all.as_mut_ptr(), raised);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mask.as_mut_ptr());
            Undisturbed { mask: mask.assume_init(), errno }
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: `mask` is what pthread_sigmask gave; errno is this thread's.
        // A pending signal is delivered in the first call, and its handler
        // keeps errno or it is broken anyway.
        unsafe {
            *libc::__errno_location() = self.errno;
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Sleeps on a word that processes share, if it is as `found`, until somebody
/// wakes it or the time ([`nanoseconds`]) has come: `false`.
pub(crate) fn sleep(word: &AtomicU32, found: u32, until: u64) -> bool {
    let Some(left) = until.checked_sub(nanoseconds()).filter(|left| *left > 0) else {
        return false;
    };
    let time = libc::timespec {
        tv_sec: (left / 1_000_000_000) as libc::time_t,
        tv_nsec: (left % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `word` and `time` live through the call, which reads them; errno
    // is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, found, &raw const time);
        *libc::__errno_location() = errno;
    }
    true
}

/// Wakes who sleeps on a word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: takes the address only; errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
        *libc::__errno_location() = errno;
    }
}

/// Tells an emulator's plugin of a store to a register. A kernel has no such
/// call, and says so.
pub(crate) fn tell_plugin(register: *mut u64, value: u64) {
    // SAFETY: a kernel that does not know the call does nothing, a plugin does
    // what the store would do; errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(mark::SYSCALL as libc::c_long, register, value);
        *libc::__errno_location() = errno;
    }
}

/// Whether the program runs with rights that whoever started it does not have:
/// then the environment is not to be believed.
pub(super) fn is_secure() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The CPU that this thread runs on.
pub(crate) fn cpu() -> u32 {
    // SAFETY: takes nothing.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Whether the process may do what only root may, short of a lockdown.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() == 0 }
}

pub(super) fn process_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::getpid() }
}

pub(super) fn thread_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// The kernel's name of this thread: the program's, unless it was given one.
pub(super) fn thread_name(name: &mut [u8; 16]) -> &str {
    // SAFETY: PR_GET_NAME writes at most 16 bytes, a NUL among them.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or("?")
}

/// A lease token: nonzero, and no other lessee's.
pub(super) fn token() -> u64 {
    let mut token = 0u64;
    // SAFETY: writes at most 8 bytes to `token`.
    let got = unsafe {
        libc::getrandom(
            std::ptr::from_mut(&mut token).cast(),
            size_of::<u64>(),
            libc::GRND_NONBLOCK,
        )
    };
    if got != 8 {
        // Too early after boot. No two threads have the same id and time.
        token = hypertrace_abi::clock::ticks() << 22 ^ thread_id() as u64;
    }
    token.max(1)
}

/// Milliseconds of a clock that is cheap and coarse.
pub(super) fn coarse_ms() -> u64 {
    let now = clock(libc::CLOCK_MONOTONIC_COARSE);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Nanoseconds that no one adjusts.
pub(crate) fn nanoseconds() -> u64 {
    let now = clock(libc::CLOCK_MONOTONIC_RAW);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call. Both clocks exist since Linux
    // 2.6.32, so it cannot fail.
    unsafe { libc::clock_gettime(id, &mut now) };
    now
}
