//! A sink that checks a device's calls. During the calls, a guest changes memory.

use crate::setup::{CLIENTS, EVENT, HONEST, HOSTILE, POINT, event_number, hostile_area, poke};
use hypertrace_abi::layout::{MASK_BYTES, Region, SLOT_WORDS};
use hypertrace_abi::record::id;
use hypertrace_abi::ring::{Consumer, Flow, Losses};
use hypertrace_abi::schema::{Schema, id_of};
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, PassConfig, ReferencePoint, SessionInfo, Status,
};
use hypertrace_device::Memory;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Stores to client 0's area that are executed during a drain.
#[derive(Debug, Default)]
pub struct Ambush(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    stores: VecDeque<(u64, u64)>,
    fail: u8,
    mask: Option<u8>,
}

impl Ambush {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("one thread")
    }

    /// Adds a store between two records of the next drain.
    pub fn lie(&self, word: u64, value: u64) {
        self.lock().stores.push_back((word, value));
    }

    /// Makes the next drains fail to write.
    pub fn fail(&self, drains: u8) {
        self.lock().fail = drains;
    }

    /// Makes the next pass set the enable mask: each byte of the mask gets this value.
    pub fn set_mask(&self, byte: u8) {
        self.lock().mask = Some(byte);
    }

    /// Drops all waiting stores and failures.
    pub fn give_up(&self) {
        *self.lock() = Waiting::default();
    }

    /// Executes the oldest waiting store.
    pub fn store(&self, guest: &Memory) {
        if let Some((word, value)) = self.lock().stores.pop_front() {
            let rings = guest.region(Region::Rings).expect("it is memory").words();
            poke(hostile_area(rings, guest.geometry()), word, value);
        }
    }

    fn fails(&self) -> bool {
        let mut waiting = self.lock();
        let fails = waiting.fail > 0;
        waiting.fail = waiting.fail.saturating_sub(1);
        fails
    }
}

/// Records of client 1 that the device delivered.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    /// Numbers of the events.
    pub events: Vec<u64>,
    /// Number of lease records.
    pub leases: u64,
    /// Numbers of the reference points.
    pub points: Vec<u64>,
    /// Losses, as the consumer counts them.
    pub losses: Losses,
}

/// Sink that checks all calls and keeps the records of client 1.
pub struct Recorder {
    guest: Arc<Memory>,
    ambush: Arc<Ambush>,
    facts: SessionInfo,
    delivered: Mutex<Delivered>,
}

/// Maximum number of records that the sink takes at once. This limit plays the part of the room in a packet.
const PACKET: u64 = 48;

impl Recorder {
    /// Makes a sink whose guest has this memory.
    pub fn new(guest: Arc<Memory>, ambush: Arc<Ambush>, facts: SessionInfo) -> Recorder {
        Recorder { guest, ambush, facts, delivered: Mutex::default() }
    }

    /// Returns the delivered records.
    pub fn delivered(&self) -> Delivered {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Delivered> {
        self.delivered.lock().expect("one thread")
    }
}

impl EventSink for Recorder {
    fn session_info(&self) -> SessionInfo {
        self.facts
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        assert!(point.client < CLIENTS && point.words.len() <= SLOT_WORDS);
        if point.id == id::HYPERTRACE {
            let [client, count, args @ ..] = point.words else { panic!("{point:?}") };
            assert!(*client == u64::from(point.client) && *count == args.len() as u64, "{point:?}");
        } else if point.client == HONEST {
            let &[n, inverse] = point.words else { panic!("{point:?}") };
            assert!(point.id == id_of(POINT) && inverse == !n && point.cpu == 7, "{point:?}");
            self.lock().points.push(n);
        } else {
            assert!(point.client == HOSTILE && point.id >= id::FIRST, "{point:?}");
        }
        Status::Recorded
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Recorder {
    fn begin_pass(&mut self) -> PassConfig {
        let mask = self.ambush.lock().mask.take();
        PassConfig::default()
            .with(|config| config.mask = mask.map(|byte| [byte; MASK_BYTES as usize]))
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        while let Some(text) = consumer.next_schema() {
            let _ = str::from_utf8(text.bytes()).map(Schema::parse);
        }
        let fails = self.ambush.fails();
        if !fails {
            consumer.commit_schemas();
        }

        let mut taken = Delivered::default();
        let (mut visits, mut words) = (0, 0);
        let most = consumer.max_payload_words();
        let mut stage = vec![0; consumer.stage_words()];
        let pulled = consumer.pull(&mut stage, |_, record| {
            if client == HOSTILE {
                self.ambush.store(&self.guest);
            }
            if visits == PACKET {
                return Flow::Stop;
            }
            visits += 1;
            let len = record.payload.len();
            words += 2 + len as u64;
            assert!(len == usize::from(record.header.words) && len <= most);
            let mut payload = vec![0; len];
            record.payload.copy_to(&mut payload);
            if client != HOSTILE {
                assert_eq!(client, HONEST, "client 2 does nothing");
                match record.header.id {
                    id::LEASE => taken.leases += 1,
                    other => {
                        assert_eq!(other, id_of(EVENT));
                        let number = event_number(&payload);
                        taken.events.push(number.unwrap_or_else(|| panic!("torn: {payload:x?}")));
                    }
                }
            }
            Flow::Taken
        });
        assert!(pulled.records == visits && words <= self.guest.geometry().ring_bytes / 8);
        if fails {
            consumer.rollback();
            return Drained::default();
        }
        let losses = consumer.losses();
        consumer.commit();
        if client != HOSTILE {
            assert!(
                consumer.faults().iter().all(|count| *count == 0),
                "client {client} committed no fault"
            );
        }
        if client == HONEST {
            let mut delivered = self.lock();
            delivered.events.append(&mut taken.events);
            delivered.leases += taken.leases;
            delivered.losses = losses;
        }
        Drained { words: pulled.end.wrapping_sub(pulled.begin), more: pulled.more }
    }
}
