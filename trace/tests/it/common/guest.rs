//! A client of a guest: the client's memory on the heap, and both sides of the client's ring.

use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{Fields, Site, Words};
use hypertrace_abi::layout::{Geometry, guest_page, host_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Emit, Lease, LeaseInfo, NewRecord, Producer,
    ProducerState,
};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::Drained;
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::Session;

/// A client. The client's memory is never freed, because tests are short.
pub struct Guest {
    pub client: u32,
    pub area: &'static [AtomicU64],
    pub memory: ClientMemory<'static>,
    pub producer: Producer<'static>,
    pub consumer: ConsumerState,
    /// Number of words that [`Guest::log`] has written to the schema log.
    pub logged: u64,
}

/// Returns sizes of a device for tests, with small rings.
pub fn geometry() -> Geometry {
    Geometry { ring_bytes: 1 << 18, block_bytes: 1 << 14, ..Geometry::default() }
}

impl Guest {
    pub fn new(client: u32) -> Guest {
        Guest::with(client, &geometry(), RingMode::Discard)
    }

    pub fn with(client: u32, geometry: &Geometry, mode: RingMode) -> Guest {
        let area: Vec<AtomicU64> =
            (0..geometry.client_stride() / 8).map(|_| AtomicU64::new(0)).collect();
        let area: &'static [AtomicU64] = area.leak();
        let memory = ClientMemory::new(area, geometry, mode).unwrap();
        let producer = lease(memory, 0x1000 + u64::from(client), "guest", ticks(), ClockKind::Tsc);
        Guest { client, area, memory, producer, consumer: ConsumerState::default(), logged: 0 }
    }

    /// Ends the present lease, and leases the client to another holder.
    pub fn lease(&mut self, token: u64, name: &str, now: u64) {
        self.lease_with(token, name, now, ClockKind::Tsc);
    }

    /// Ends the present lease, and leases the client to a holder that stamps with `clock`.
    pub fn lease_with(&mut self, token: u64, name: &str, now: u64, clock: ClockKind) {
        self.producer.release();
        self.producer = lease(self.memory, token, name, now, clock);
    }

    pub fn emit<S: Site, F: Fields>(&self, event: (S, F)) -> Emit {
        self.producer.emit(event, ticks)
    }

    pub fn emit_at<S: Site, F: Fields>(&self, now: u64, event: (S, F)) -> Emit {
        self.producer.emit(event, || now)
    }

    pub fn drain(&mut self, session: &Session) -> Drained {
        session.drain(self.client, &mut Consumer::new(self.memory, &mut self.consumer))
    }

    /// Makes a whole pass, to the ring's end.
    pub fn pass(&mut self, session: &Session) {
        session.begin_pass();
        while self.drain(session).more {}
        session.end_pass();
    }

    /// Discards the rest of the ring, and lets the session count the discarded records as lost.
    pub fn discard_unread(&mut self, session: &Session) {
        let mut consumer = Consumer::new(self.memory, &mut self.consumer);
        consumer.discard_unread(&mut vec![0; consumer.stage_words()]);
        session.drain(self.client, &mut consumer);
    }

    /// Writes a text directly to the schema log, without the producer. The log may have no room for the text.
    /// This method is for a guest that does not use the producer's log.
    pub fn log(&mut self, text: &str) {
        let mut put = |value| {
            let at = self.logged as usize % self.memory.schema.len();
            self.memory.schema[at].store(value, Ordering::Relaxed);
            self.logged += 1;
        };
        put(u64::from(id_of(text)) | (text.len() as u64) << 32);
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        for word in bytes.chunks(8) {
            put(u64::from_le_bytes(word.try_into().unwrap()));
        }
        self.poke(guest_page::SCHEMA_LEN, self.logged);
    }

    /// Returns the words of the schema log that the host has read.
    pub fn seen(&self) -> u64 {
        self.memory.host[host_page::SCHEMA_SEEN].load(Ordering::Relaxed)
    }

    /// Emits a record with the id of this text and with these payload words. The words need not fit the
    /// schema.
    pub fn emit_words(&self, text: &str, words: &[u64]) -> Emit {
        self.producer.emit(NewRecord::of_id(id_of(text), Words(words)), ticks)
    }

    /// Writes a word of the memory that the guest can write. The first indices are the words of page G, and
    /// the later indices follow `hypertrace_abi::layout`.
    pub fn poke(&self, word: usize, value: u64) {
        self.area[word].store(value, Ordering::Relaxed);
    }
}

fn lease(
    memory: ClientMemory<'static>,
    token: u64,
    name: &str,
    now: u64,
    clock: ClockKind,
) -> Producer<'static> {
    let state: &'static ProducerState = Box::leak(Box::default());
    let info = LeaseInfo { pid: 1, tid: 2, name };
    Producer::lease(memory, state, Lease::new(token, clock, now, &info), false)
}

/// Tries many texts until two texts have the same hash, because a hash has only 32 bits.
pub fn collision() -> (String, String) {
    let mut seen = std::collections::HashMap::new();
    (0..)
        .find_map(|n| {
            let text = format!("collide{n}(x:u64)");
            let other = seen.insert(id_of(&text), text.clone())?;
            Some((other, text))
        })
        .unwrap()
}
