//! The ring: one producer, one consumer, 64-bit counters of words.
//!
//! A power-of-two area is cut into at least 16 blocks. A record never crosses
//! a block; what is left of one is skipped by a pad record (id 0), or by
//! nothing where a single word is left. A block begins with two words: the
//! sequence number of its first record, and the lease token of who wrote it.
//!
//! ```text
//! block | seq | token | record | record | ... | pad ~~~~~ | block | seq | ...
//! ```
//!
//! *discard*: a producer that finds no room drops the event and counts it.
//! *overwrite*: it goes on; the consumer, having copied, looks at head again
//! and throws away what may have been overwritten meanwhile.
//!
//! Either side may lie. A producer that reads a wrong tail harms only its own
//! events; a consumer bounds everything that it reads and counts what cannot
//! be ([`Fault`]).

mod consumer;
mod counts;
mod lease;
mod producer;
mod schema_log;
mod state;

pub use consumer::{Consumer, ConsumerState, Flow, Logged, Payload, Pulled, Record};
pub use counts::{FAULT_KINDS, Fault, Losses, Total};
pub use lease::{Lease, LeaseInfo, MAX_NAME_BYTES};
pub use producer::{Emit, Producer, Wake};
pub use schema_log::SchemaText as LoggedSchema;
pub use state::ProducerState;

use crate::atomic::{AtomicU64, Ordering};
use crate::config::RingMode;
use crate::layout::{Geometry, MASK_BYTES, PAGE, WORD, host_page};

/// Words of a block's header.
pub const BLOCK_HEADER_WORDS: u64 = 2;

/// Whether a running counter goes backwards. A guest can bring it to wrap, so
/// half of all steps are forwards.
pub fn is_back(from: u64, to: u64) -> bool {
    to.wrapping_sub(from) > u64::MAX / 2
}

/// One client's memory in BAR 4.
#[derive(Clone, Copy, Debug)]
pub struct ClientMemory<'m> {
    /// Page G: written by the guest.
    pub guest: &'m [AtomicU64],
    /// Page H: written by the host.
    pub host: &'m [AtomicU64],
    /// The schema log: a power of two of words.
    pub schema: &'m [AtomicU64],
    /// The ring's data: a power of two of words.
    pub ring: &'m [AtomicU64],
    block_words: u64,
    mode: RingMode,
}

impl<'m> ClientMemory<'m> {
    /// Cuts a client's area (`Geometry::client_stride` bytes) into its parts.
    /// `None` if its size is not that. The geometry was
    /// [checked](Geometry::check): a device does this for every reference
    /// point.
    pub fn new(area: &'m [AtomicU64], geometry: &Geometry, mode: RingMode) -> Option<Self> {
        debug_assert_eq!(geometry.check(), Ok(()));
        if area.len() as u64 * WORD != geometry.client_stride() {
            return None;
        }
        let page = (PAGE / WORD) as usize;
        let (guest, rest) = area.split_at(page);
        let (host, rest) = rest.split_at(page);
        let (schema, ring) = rest.split_at((geometry.schema_bytes / WORD) as usize);
        Some(ClientMemory {
            guest,
            host,
            schema,
            ring,
            block_words: geometry.block_bytes / WORD,
            mode,
        })
    }

    /// Cuts client `client` out of all of BAR 4.
    pub fn of_rings(
        rings: &'m [AtomicU64],
        client: u32,
        geometry: &Geometry,
        mode: RingMode,
    ) -> Option<Self> {
        if client >= geometry.clients {
            return None;
        }
        let start = (geometry.client_offset(client) / WORD) as usize;
        let end = start + (geometry.client_stride() / WORD) as usize;
        ClientMemory::new(rings.get(start..end)?, geometry, mode)
    }

    /// The ring's parts with sizes that the wire does not allow, so that a
    /// model checker or a property test meets every edge soon.
    #[doc(hidden)]
    pub fn for_test(
        guest: &'m [AtomicU64],
        host: &'m [AtomicU64],
        schema: &'m [AtomicU64],
        ring: &'m [AtomicU64],
        block_words: u64,
        mode: RingMode,
    ) -> Self {
        assert!(ring.len().is_power_of_two() && block_words.is_power_of_two());
        ClientMemory { guest, host, schema, ring, block_words, mode }
    }

    /// The ring's capacity in words.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Words of a block.
    pub fn block_words(&self) -> u64 {
        self.block_words
    }

    /// What a full ring does.
    pub fn mode(&self) -> RingMode {
        self.mode
    }

    /// Most words that a record may have, header included.
    pub fn max_record_words(&self) -> u64 {
        let block = self.block_words - BLOCK_HEADER_WORDS;
        block.min((crate::record::HEADER_WORDS + crate::record::MAX_WORDS) as u64)
    }

    /// Words that only reference points may use.
    fn reserve(&self) -> u64 {
        self.capacity() / 16
    }

    #[inline(always)]
    fn block_start(&self, position: u64) -> u64 {
        position & !(self.block_words - 1)
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &'m AtomicU64 {
        &self.ring[(position & (self.capacity() - 1)) as usize]
    }

    /// `words` words from `position` on; never crosses the ring's end when
    /// they do not cross a block's.
    #[inline(always)]
    fn span(&self, position: u64, words: u64) -> &'m [AtomicU64] {
        let start = (position & (self.capacity() - 1)) as usize;
        &self.ring[start..start + words as usize]
    }
}

/// Replaces the enable mask in BAR 4, one byte per slot: 0 is on, 1 is off;
/// then shows its new version to every client, which copies it. One caller at a
/// time.
pub fn set_mask(
    rings: &[AtomicU64],
    geometry: &Geometry,
    mode: RingMode,
    mask: &[u8; MASK_BYTES as usize],
    version: u64,
) {
    let Some(words) = mask_words(rings) else {
        return;
    };
    for (word, bytes) in words.iter().zip(mask.as_chunks().0) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    for client in 0..geometry.clients {
        if let Some(memory) = ClientMemory::of_rings(rings, client, geometry, mode) {
            // ORDERING: pairs with the Acquire load of a guest that then
            // copies the mask.
            memory.host[host_page::MASK_VERSION].store(version, Ordering::Release);
        }
    }
}

/// The words of the enable mask in BAR 4.
pub fn mask_words(rings: &[AtomicU64]) -> Option<&[AtomicU64]> {
    rings.get(..(MASK_BYTES / WORD) as usize)
}
