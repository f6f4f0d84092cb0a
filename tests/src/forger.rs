//! A guest that breaks every rule: it can do anything to one client's memory and registers.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::layout::{Geometry, PAGE, SLOT_HEADER_WORDS, WORD, guest_page, register};
use hypertrace_abi::record::Header;
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::schema::id_of;
use hypertrace_device::{Chip, Region, RingMode};

/// Guest that writes arbitrary values anywhere in the area of one client.
pub struct Forger<'c> {
    chip: &'c Chip,
    client: u32,
    memory: ClientMemory<'c>,
    area: &'c [AtomicU64],
    mask: &'c [AtomicU64],
    /// Position in the ring, in words, to which the next [`Forger::word`] writes.
    pub head: u64,
    /// Next word of the schema log.
    pub logged: u64,
}

impl<'c> Forger<'c> {
    /// Makes a forger of this client, at the beginning of its ring and log.
    pub fn new(chip: &'c Chip, client: u32) -> Forger<'c> {
        let geometry: &Geometry = chip.geometry();
        let rings = chip.memory().region(Region::Rings).unwrap().words();
        let start = (geometry.client_offset(client) / WORD) as usize;
        let area = &rings[start..start + (geometry.client_stride() / WORD) as usize];
        Forger {
            chip,
            client,
            memory: ClientMemory::new(area, geometry, RingMode::Discard).unwrap(),
            area,
            mask: hypertrace_abi::ring::mask_words(rings).unwrap(),
            head: 0,
            logged: 0,
        }
    }

    /// Stores to any word of the area: pages G and H, schema log, ring.
    pub fn poke(&self, word: usize, value: u64) {
        self.area[word % self.area.len()].store(value, Ordering::Release);
    }

    /// Stores to the enable mask, which all clients share.
    pub fn mask(&self, word: usize, value: u64) {
        self.mask[word % self.mask.len()].store(value, Ordering::Release);
    }

    /// Writes a word to the ring.
    pub fn word(&mut self, value: u64) {
        let at = self.head as usize % self.memory.ring.len();
        self.memory.ring[at].store(value, Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
    }

    /// Returns whether a block begins at the position.
    pub fn at_block(&self) -> bool {
        self.head.is_multiple_of(self.memory.block_words())
    }

    /// Writes a block's header to the ring.
    pub fn block(&mut self, sequence: u64, token: u64) {
        self.word(sequence);
        self.word(token);
    }

    /// Writes a record to the ring. The header states the length `told`, which may differ from the payload's
    /// length.
    pub fn record(&mut self, timestamp: u64, id: u32, told: u16, flags: u16, payload: &[u64]) {
        self.word(timestamp);
        self.word(Header::meta(id, told, flags));
        payload.iter().for_each(|word| self.word(*word));
    }

    /// Publishes head.
    pub fn publish(&self) {
        self.poke(guest_page::HEAD, self.head);
    }

    /// Writes a text with an id, both possibly invalid, to the schema log, and publishes them.
    pub fn schema(&mut self, id: u32, text: &[u8]) {
        let header = u64::from(id) | (text.len() as u64) << 32;
        let words = text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        for word in [header].into_iter().chain(words) {
            let at = self.logged as usize % self.memory.schema.len();
            self.memory.schema[at].store(word, Ordering::Relaxed);
            self.logged = self.logged.wrapping_add(1);
        }
        self.poke(guest_page::SCHEMA_LEN, self.logged);
    }

    /// Writes a text with its id to the schema log, as an honest guest does.
    pub fn tell(&mut self, text: &str) -> u32 {
        self.schema(id_of(text), text.as_bytes());
        id_of(text)
    }

    /// Fills the slot, with the length `told`, and stores to EMIT.
    pub fn emit(&self, seq: u32, id: u32, guest_time: u64, told: u16, payload: &[u64]) {
        let header = [u64::from(seq) | u64::from(id) << 32, 0, guest_time, told.into()];
        let slot = self.memory.guest[guest_page::SLOT..].iter();
        for (to, from) in slot.zip(header.iter().chain(payload).take(SLOT_HEADER_WORDS + 256)) {
            to.store(*from, Ordering::Relaxed);
        }
        self.register(register::EMIT, &u64::from(seq).to_le_bytes());
    }

    /// Stores to KICK.
    pub fn kick(&self) {
        self.chip.write(Region::Control, self.chip.geometry().kick_offset(), &[0; 8]);
    }

    /// Stores any bytes to the client's register page.
    pub fn register(&self, offset: u64, bytes: &[u8]) {
        let page = self.chip.geometry().control_pages_offset() + u64::from(self.client) * PAGE;
        self.chip.write(Region::Control, page + offset, bytes);
    }
}

/// Finds two texts of different shape with the same id.
pub fn collision() -> (String, String) {
    static FOUND: OnceLock<(String, String)> = OnceLock::new();
    let text = |n: u32| (format!("c{n}(x:u64)"), format!("c{n}(s:str)"));
    let search = || {
        let numbers: HashMap<u32, u32> = (0..300_000).map(|n| (id_of(&text(n).0), n)).collect();
        let found = (0..).find_map(|n| {
            let other = text(n).1;
            numbers.get(&id_of(&other)).map(|n| (text(*n).0, other))
        });
        found.expect("32 bits have a collision among these texts")
    };
    FOUND.get_or_init(search).clone()
}
