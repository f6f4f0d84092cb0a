//! A new trace's UUID.

use hypertrace_abi::clock::ticks;
use hypertrace_format::folder::retry;
use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, RandomState};

/// Returns a random UUID (version 4).
pub(crate) fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    let read = retry(|| getrandom(&mut uuid[..], GetRandomFlags::empty()));
    if !matches!(read, Ok(16)) {
        // If the kernel has no random bytes yet, then a hash is enough: a UUID only has to be unique, and
        // this hash differs in every process and every call, too.
        for (i, half) in uuid.chunks_exact_mut(8).enumerate() {
            let hash = RandomState::new().hash_one((i, ticks(), std::process::id()));
            half.copy_from_slice(&hash.to_le_bytes());
        }
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
