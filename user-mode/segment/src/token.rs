//! Lease tokens.

use hypertrace_abi::clock::ticks;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a lease token: a nonzero number that no other holder has. A signal handler may call this function.
pub fn token() -> u64 {
    let mut token = [0; 8];
    match getrandom(&mut token, GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_le_bytes(token),
        // Soon after boot, the kernel may have no random numbers yet, but no two threads have the same id and
        // time.
        _ => ticks() << 22 ^ rustix::thread::gettid().as_raw_nonzero().get() as u64,
    }
    .max(1)
}
