//! A device with a guest: its clients, its sizes, the guest's memory, and bounds of the drain.

use crate::input::Input;
use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::{Geometry, WORD};
use hypertrace_abi::sink::SessionInfo;
use hypertrace_device::{ChipConfig, Memory};
use std::cell::Cell;
use std::sync::Arc;

/// Id of the hostile client.
pub const HOSTILE: u32 = 0;
/// Id of the honest client.
pub const HONEST: u32 = 1;
/// Number of clients: the hostile client, the honest client, and an idle client.
pub const CLIENTS: u32 = 3;

/// Schema of client 1's event.
pub const EVENT: &str = "honest(n:u64,inverse:u64,rest:[u64])";
/// Schema of client 1's reference point.
pub const POINT: &str = "honest_point(n:u64,inverse:u64)";

/// Number of passes after which the drain must have taken everything that a guest can write.
pub const MAX_PASSES: usize = 5000;
/// Number of steps of each client in a pass.
pub const MAX_STEPS_EACH: u64 = 4;

/// Returns a clock that advances by one tick at each step of the drain.
pub fn steps() -> impl Fn() -> u64 {
    let now = Cell::new(0);
    move || {
        now.set(now.get() + 1);
        now.get()
    }
}

/// Configuration of the device.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Sizes and number of clients of the device.
    pub geometry: Geometry,
    /// Mode of the rings.
    pub ring_mode: RingMode,
    /// Maximum number of reference points per second, or 0 for no limit.
    pub points_per_second: u32,
}

impl Setup {
    /// Decodes a valid configuration from any bytes.
    pub fn decode(input: &mut Input<'_>) -> Setup {
        let bits = input.u8();
        let (ring_bytes, block_bytes) = [(4096, 256), (65_536, 4096)][usize::from(bits & 1)];
        Setup {
            geometry: Geometry {
                clients: CLIENTS,
                legacy_args: [8, 1, 16, 3][usize::from(bits >> 1 & 3)],
                ring_bytes,
                block_bytes,
                schema_bytes: 4096,
            },
            ring_mode: if bits & 8 == 0 { RingMode::Discard } else { RingMode::Overwrite },
            points_per_second: if bits & 16 == 0 { 0 } else { 2 },
        }
    }

    /// Makes memory with two mappings: one mapping for the device, and one mapping for the guest.
    pub fn memory(&self) -> (Memory, Arc<Memory>) {
        let file = tempfile::tempfile().expect("a temporary file");
        let other = file.try_clone().expect("another descriptor");
        let map = |file| Memory::from_file(self.geometry, file).expect("memory for the rings");
        (map(file), Arc::new(map(other)))
    }

    /// Returns the facts of a session for the device.
    pub fn session_info(&self) -> SessionInfo {
        SessionInfo::default().with(|info| {
            info.ring_mode = self.ring_mode;
            info.host_frequency = 1_000_000_000;
        })
    }

    /// Returns the device's configuration.
    pub fn chip_config(&self) -> ChipConfig {
        ChipConfig::default().with(|config| {
            config.vcpu_clients = CLIENTS;
            config.reference_points_per_second = self.points_per_second;
        })
    }
}

/// Returns the area of client 0.
pub fn hostile_area<'m>(rings: &'m [AtomicU64], geometry: &Geometry) -> &'m [AtomicU64] {
    let start = (geometry.client_offset(HOSTILE) / WORD) as usize;
    &rings[start..][..(geometry.client_stride() / WORD) as usize]
}

/// Stores to a word. The index of the word is taken modulo the number of words.
pub fn poke(words: &[AtomicU64], word: u64, value: u64) {
    words[(word % words.len() as u64) as usize].store(value, Ordering::Release);
}

/// Returns the sequence number of an event of client 1 if the event is whole.
pub fn event_number(words: &[u64]) -> Option<u64> {
    let (&n, rest) = words.split_first()?;
    let len = n % 8;
    let whole = rest.len() as u64 == 2 + len
        && rest[..2] == [!n, len]
        && rest[2..].iter().all(|word| *word == n);
    whole.then_some(n)
}
