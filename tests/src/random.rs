//! Random numbers whose seed is printed, so that a failure can be repeated.

use std::hash::{BuildHasher, RandomState};

/// Environment variable that sets the seed.
pub const SEED: &str = "HYPERTRACE_SEED";

/// xorshift64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator with a new seed, unless `HYPERTRACE_SEED` is set. Prints the seed, which the test
    /// harness shows when the test fails.
    pub fn seeded() -> Random {
        let told = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let seed = told.unwrap_or_else(|| RandomState::new().hash_one(()));
        println!("again with {SEED}={seed}");
        Random::new(seed)
    }

    /// Makes a generator with this seed.
    pub fn new(seed: u64) -> Random {
        // From zero, the sequence would be all zeros.
        Random(seed | 1)
    }

    /// Returns a number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// Returns one of these values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Makes another generator, for another thread.
    pub fn fork(&mut self) -> Random {
        Random::new(self.number())
    }
}
