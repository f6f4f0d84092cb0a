//! A device, its guest, and what the guest does.

use crate::bytes::Bytes;
use crate::guest::geometry;
use crate::honest::Honest;
use crate::operation::{Access, Front, Operation, TEXTS};
use crate::{HONEST, HOSTILE, Setup};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{
    MASK_BYTES, PAGE, SLOT_HEADER_WORDS, SLOT_WORDS, WORD, guest_page, register,
};
use hypertrace_abi::record::{ClockKind, Header};
use hypertrace_abi::ring::{ClientMemory, Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::EventSink;
use hypertrace_device::{BarChange, Chip, ChipConfig, Memory, PciFunction, Region, Window};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Operations of one run.
const MOST: usize = 400;
/// Passes in which everything that there is must have been drained.
const MOST_PASSES: usize = 64;

/// A client's pages, log and ring, as the guest has them mapped.
pub fn area(guest: &Memory, client: u32) -> &[AtomicU64] {
    let rings = guest.region(Region::Rings).map_or(&[][..], |region| region.words());
    let start = (geometry().client_offset(client) / WORD) as usize;
    &rings[start..start + (geometry().client_stride() / WORD) as usize]
}

pub struct World<'g, S> {
    setup: Setup,
    chip: Arc<Chip<S>>,
    window: Window<S>,
    pci: PciFunction<S>,
    /// What the VMM believes of the BARs.
    mapped: HashMap<Region, u64>,
    guest: &'g Memory,
    memory: ClientMemory<'g>,
    honest: Honest<'g>,
    /// Where the hostile client's next record goes, and how many there were.
    head: u64,
    sequence: u64,
    /// Words in its schema log.
    logged: u64,
}

impl<'g, S: EventSink> World<'g, S> {
    pub fn new(
        device: Memory,
        guest: &'g Memory,
        state: &'g ProducerState,
        setup: Setup,
        session: [u8; 16],
        host_frequency: u64,
        sink: S,
    ) -> Self {
        let config = ChipConfig {
            ring_mode: setup.mode,
            session,
            guest_frequency: host_frequency,
            host_frequency,
            ..ChipConfig::default()
        };
        let chip = Arc::new(Chip::new(device, &config, sink, ()));
        let of = |client| {
            ClientMemory::new(area(guest, client), &geometry(), setup.mode).expect("its size")
        };
        World {
            setup,
            window: Window::new(chip.clone()),
            pci: PciFunction::new(chip.clone()),
            chip,
            mapped: HashMap::new(),
            guest,
            memory: of(HOSTILE),
            honest: Honest::new(of(HONEST), state),
            head: 0,
            sequence: 0,
            logged: 0,
        }
    }

    pub fn chip(&self) -> &Chip<S> {
        &self.chip
    }

    pub fn honest(&self) -> &Honest<'g> {
        &self.honest
    }

    /// Does everything that the bytes say, then drains to the end.
    pub fn run(&mut self, mut bytes: Bytes<'_>) {
        let told = std::env::var_os("HYPERTRACE_FUZZ").is_some();
        for _ in 0..MOST {
            if bytes.is_empty() {
                break;
            }
            let operation = Operation::decode(&mut bytes);
            if told {
                eprintln!("{operation:x?}");
            }
            self.perform(operation);
        }
        self.honest.end();
        let passes = (0..MOST_PASSES).take_while(|_| self.chip.drain_pass(8)).count();
        assert!(passes < MOST_PASSES, "a guest that does nothing any more keeps the drain busy");
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Read(access) => self.read(access),
            Operation::Write(access, data) => self.write(access, &data[..access.len]),
            Operation::ConfigRead(offset, len) => {
                self.pci.config_read(offset, &mut [0; 16][..len]);
            }
            Operation::ConfigWrite(offset, len, data) => self.config_write(offset, &data[..len]),
            Operation::Poke(word, value) => self.poke(word, value),
            Operation::Mask(word, value) => {
                let rings = self.words(Region::Rings);
                rings[word % (MASK_BYTES / WORD) as usize].store(value, Release);
            }
            Operation::Data(word, value) => {
                let data = self.words(Region::Data);
                data[word % data.len()].store(value, Release);
            }
            Operation::Record { text, timestamp, told, flags, payload } => {
                let told = told.unwrap_or(payload.len() as u16);
                self.record([timestamp, Header::meta(id(text), told, flags)], &payload);
            }
            Operation::Publish(by) => {
                self.head = self.head.wrapping_add(by);
                self.publish();
            }
            Operation::Schema { text, id: other, flip } => {
                let mut bytes = TEXTS[text].as_bytes().to_vec();
                if let Some((at, byte)) = flip {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] = byte;
                }
                self.schema(other.unwrap_or(id(text)), &bytes);
            }
            Operation::Emit { text, seq, stored, told, payload } => {
                self.slot(seq, id(text), told, &payload);
                self.emit(stored);
            }
            Operation::Lease(token, events) => self.lease(token, events),
            Operation::Honest(events) => (0..events).for_each(|_| self.honest.emit()),
            Operation::Point => self.honest.point(&self.chip),
            Operation::SetMask(byte) => self.chip.set_mask(&[byte; 4096]),
            Operation::Drain(packets) => {
                self.chip.drain_pass(packets);
            }
        }
    }

    /// Where an access goes, if anywhere.
    fn target(&self, access: &Access) -> (u64, Option<(Region, u64)>) {
        let base = match access.front {
            Front::Chip => return (access.offset, Some((access.region, access.offset))),
            Front::Window => geometry().window_offset(access.region),
            Front::Pci => self.mapped.get(&access.region).copied().unwrap_or(0),
        };
        let address = base.wrapping_add(access.offset);
        let target = match access.front {
            Front::Pci => self.pci.find(address),
            _ => self.window.find(address),
        };
        (address, target)
    }

    fn read(&self, access: Access) {
        let (address, target) = self.target(&access);
        let (mut one, mut other) = ([0x5a; 16], [0xa5; 16]);
        for data in [&mut one, &mut other] {
            let data = &mut data[..access.len];
            match access.front {
                Front::Chip => self.chip.read(access.region, access.offset, data),
                Front::Window => self.window.read(address, data),
                Front::Pci => {
                    assert_eq!(self.pci.read(address, data), target.is_some());
                    if target.is_none() {
                        data.fill(0);
                    }
                }
            }
        }
        let left = |i: usize| one[i] == 0x5a && other[i] == 0xa5;
        assert!(!(0..access.len).any(left), "a load left a byte as it was");
    }

    fn write(&self, access: Access, data: &[u8]) {
        let (address, target) = self.target(&access);
        if self.setup.contained && target.is_some_and(|(region, at)| !is_own(region, at, data)) {
            return;
        }
        match access.front {
            Front::Chip => self.chip.write(access.region, access.offset, data),
            Front::Window => self.window.write(address, data),
            Front::Pci => assert_eq!(self.pci.write(address, data), target.is_some()),
        }
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) {
        let mapped = &mut self.mapped;
        self.pci.config_write(offset, data, |BarChange { region, from, to }| {
            assert_eq!(mapped.get(&region).copied(), from);
            match to {
                Some(to) => mapped.insert(region, to),
                None => mapped.remove(&region),
            };
        });
        for region in Region::ALL {
            let Some(&base) = self.mapped.get(&region) else { continue };
            let found = self.pci.find(base).map(|(found, _)| found);
            // Another BAR may lie over this one.
            assert!(found.is_some_and(|found| self.mapped.contains_key(&found)));
        }
    }

    fn words(&self, region: Region) -> &'g [AtomicU64] {
        self.guest.region(region).map_or(&[][..], |region| region.words())
    }

    fn poke(&self, word: usize, value: u64) {
        let own = area(self.guest, HOSTILE);
        let words = if self.setup.contained { own } else { self.words(Region::Rings) };
        words[word % words.len()].store(value, Release);
    }

    fn word(&mut self, value: u64) {
        let ring = self.memory.ring;
        ring[self.head as usize % ring.len()].store(value, Relaxed);
        self.head = self.head.wrapping_add(1);
    }

    fn publish(&self) {
        self.memory.guest[guest_page::HEAD].store(self.head, Release);
    }

    fn record(&mut self, header: [u64; 2], payload: &[u64]) {
        let left = self.memory.block_words() - self.head % self.memory.block_words();
        let words = 2 + payload.len() as u64;
        if left < words && left < self.memory.block_words() {
            (0..left).for_each(|_| self.word(0));
        }
        if self.head.is_multiple_of(self.memory.block_words()) {
            self.word(self.sequence);
            self.word(0xbad);
        }
        header.iter().chain(payload).for_each(|word| self.word(*word));
        self.sequence = self.sequence.wrapping_add(1);
        self.publish();
    }

    fn schema(&mut self, id: u32, text: &[u8]) {
        let header = u64::from(id) | (text.len() as u64) << 32;
        let words = text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        for word in [header].into_iter().chain(words) {
            let log = self.memory.schema;
            log[self.logged as usize % log.len()].store(word, Relaxed);
            self.logged = self.logged.wrapping_add(1);
        }
        self.memory.guest[guest_page::SCHEMA_LEN].store(self.logged, Release);
    }

    fn slot(&self, seq: u32, id: u32, told: u16, payload: &[u64]) {
        let header = [u64::from(seq) | u64::from(id) << 32, 0, ticks(), told.into()];
        let slot = &self.memory.guest[guest_page::SLOT..][..SLOT_HEADER_WORDS + SLOT_WORDS];
        for (to, from) in slot.iter().zip(header.iter().chain(payload)) {
            to.store(*from, Relaxed);
        }
    }

    fn emit(&self, value: u32) {
        let offset = geometry().control_pages_offset() + u64::from(HOSTILE) * PAGE + register::EMIT;
        self.chip.write(Region::Control, offset, &u64::from(value).to_le_bytes());
    }

    fn lease(&mut self, token: u64, events: u8) {
        let state = ProducerState::new();
        let info = LeaseInfo { pid: 1, tid: 2, clock: ClockKind::Tsc, name: "\x1b[2Jguest\n" };
        let lease = Lease::new(token | 1, ticks(), &info);
        let producer = Producer::lease(self.memory, &state, lease, false);
        for n in 0..u64::from(events) {
            let (site, fields) = event_type!("ruled", n, text = "\x1b]0;");
            producer.emit(site, ticks(), fields);
        }
        producer.release();
        let guest = self.memory.guest;
        self.head = guest[guest_page::HEAD].load(Relaxed);
        self.logged = guest[guest_page::SCHEMA_LEN].load(Relaxed);
    }
}

fn id(text: usize) -> u32 {
    id_of(TEXTS[text])
}

/// Whether a store leaves the honest client's memory and registers alone.
fn is_own(region: Region, offset: u64, data: &[u8]) -> bool {
    let g = geometry();
    let end = offset.saturating_add(data.len() as u64);
    let apart = |from: u64, to: u64| end <= from || offset >= to;
    match region {
        Region::Config | Region::Data => true,
        Region::Rings => apart(g.client_offset(HONEST), g.client_offset(HONEST + 1)),
        Region::Control => {
            let page = g.control_pages_offset() + u64::from(HONEST) * PAGE;
            apart(page, page + PAGE)
        }
    }
}
