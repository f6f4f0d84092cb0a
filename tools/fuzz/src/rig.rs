//! A device with a guest. The guest's client 0 is hostile, and its client 1 is honest.
//!
//! Hostile stores go anywhere except to the memory and the registers of client 1. Stores to client 1 would
//! prove nothing. If the operating system lets a program write another program's pages, no client is safe.

use crate::input::Input;
use crate::op::{Access, Op, Path};
use crate::recorder::Ambush;
use crate::setup::{HONEST, HOSTILE, MAX_PASSES, MAX_STEPS_EACH, hostile_area, poke, steps};
use crate::vmm::Act;
use hypertrace::{Channel, Client};
use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{
    PAGE, Region, SLOT_HEADER_WORDS, SLOT_WORDS, WORD, guest_page, host_page, register,
};
use hypertrace_abi::record::Header;
use hypertrace_abi::ring::{ClientMemory, Emit, LeaseInfo, ProducerState, mask_words};
use hypertrace_abi::schema::id_of;
use hypertrace_device::{Chip, Memory, PciFunction, Window};
use std::sync::Arc;

/// Maximum number of operations of an input.
const MAX_OPS: usize = 2000;
/// The honest client's own counts.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Sequence numbers of the events that were reported as recorded.
    pub recorded: Vec<u64>,
    /// Number of events in `recorded` that came before the VMM's last action. All later events are still in
    /// the ring.
    pub before: usize,
    /// Number of events that found no room.
    pub full: u64,
    /// Number of leases.
    pub leases: u64,
    /// Numbers of the reference points that the host reported as recorded.
    pub points: Vec<u64>,
}

/// A device and both producers.
pub struct Rig<'a> {
    chip: Arc<Chip>,
    window: Window,
    pci: PciFunction,
    /// Address of each BAR that the device has reported to the VMM.
    decoded: [Option<u64>; 4],
    memory: ClientMemory<'a>,
    area: &'a [AtomicU64],
    mask: &'a [AtomicU64],
    data: &'a [AtomicU64],
    ambush: &'a Ambush,
    head: u64,
    logged: u64,
    channel: Channel<'a>,
    state: &'a ProducerState,
    honest: Option<Client<'a>>,
    next: u64,
    account: Account,
}

impl<'a> Rig<'a> {
    /// Makes a guest with this memory at this device.
    pub fn new(
        chip: Arc<Chip>,
        guest: &'a Memory,
        state: &'a ProducerState,
        ambush: &'a Ambush,
    ) -> Rig<'a> {
        let geometry = *chip.geometry();
        let words = |region| guest.region(region).expect("it is memory").words();
        let rings = words(Region::Rings);
        let channel = Channel::local(&chip.config_page(), rings).expect("a device's own page");
        let mode = chip.config_page().ring_mode().expect("a device's own page");
        let area = hostile_area(rings, &geometry);
        let mut rig = Rig {
            window: Window::new(chip.clone()),
            pci: PciFunction::new(chip.clone()),
            chip,
            decoded: [None; 4],
            memory: ClientMemory::new(area, &geometry, mode).expect("the size of an area"),
            area,
            mask: mask_words(rings).expect("the mask is in the rings"),
            data: words(Region::Data),
            ambush,
            head: 0,
            logged: 0,
            channel,
            state,
            honest: None,
            next: 0,
            account: Account::default(),
        };
        rig.lease();
        rig
    }

    /// Performs all operations of the input, and then drains everything. `host` performs the VMM's actions.
    pub fn run(mut self, input: &mut Input<'_>, host: &mut dyn FnMut(&Act)) -> Account {
        self.act(input, host);
        self.finish()
    }

    /// Performs all operations of the input, and leaves the rings undrained.
    pub fn leave(mut self, input: &mut Input<'_>, host: &mut dyn FnMut(&Act)) -> Account {
        self.act(input, host);
        self.release();
        self.account
    }

    fn act(&mut self, input: &mut Input<'_>, host: &mut dyn FnMut(&Act)) {
        self.act_some(input, MAX_OPS, host);
    }

    /// Performs the next operations of the input.
    pub fn act_some(&mut self, input: &mut Input<'_>, ops: usize, host: &mut dyn FnMut(&Act)) {
        let geometry = *self.chip.geometry();
        for _ in 0..ops {
            if input.is_empty() {
                break;
            }
            let op = Op::decode(input, &geometry);
            self.apply(&op, host);
        }
    }

    /// Continues with a restored device, and restores the PCI function in front of the device.
    pub fn continue_at(&mut self, chip: Arc<Chip>) {
        let state = self.pci.state();
        self.window = Window::new(chip.clone());
        self.pci = PciFunction::new(chip.clone());
        self.chip = chip;
        let mut decoded = [None; 4];
        let restored = self.pci.restore(&state, |change| {
            let at = Region::ALL.iter().position(|r| *r == change.region).expect("a region");
            assert_eq!(change.from, None, "{change:?}");
            decoded[at] = change.to;
        });
        assert_eq!(restored, Ok(()), "its own state");
        assert_eq!(decoded, self.decoded);
    }

    fn release(&mut self) {
        if let Some(client) = self.honest.take() {
            client.release();
        }
        self.ambush.give_up();
    }

    /// Releases client 1, and drains everything.
    pub fn finish(mut self) -> Account {
        self.release();
        let mut passes = 0;
        while self.chip.drain_pass_by(MAX_STEPS_EACH, &steps()) {
            passes += 1;
            assert!(passes < MAX_PASSES, "a guest that does nothing keeps the drain busy");
        }
        self.account
    }

    /// Performs one operation.
    pub fn apply(&mut self, op: &Op, host: &mut dyn FnMut(&Act)) {
        if let Op::Pass(_) | Op::Host(_) = op {
            self.account.before = self.account.recorded.len();
        }
        match op {
            Op::Read(access) => self.read(access),
            Op::Write(access, bytes) => self.write(access, &bytes[..access.width]),
            Op::ConfigRead(offset, width) => {
                fills(*width, |data| self.pci.config_read(*offset, data));
            }
            Op::ConfigWrite(offset, width, bytes) => self.config(*offset, &bytes[..*width]),
            Op::Bar(region, address) => {
                let register = 0x10 + 4 * region.bar() as u64;
                self.config(register, &(*address as u32).to_le_bytes());
                if *region == Region::Rings {
                    self.config(register + 4, &((*address >> 32) as u32).to_le_bytes());
                }
            }
            Op::Decode(on) => self.config(4, &(u16::from(*on) << 1).to_le_bytes()),
            Op::Find(address) => {
                self.find(*address);
            }
            Op::Poke(word, value) => poke(self.area, *word, *value),
            Op::Mask(word, value) => poke(self.mask, *word, *value),
            Op::Data(word, value) => poke(self.data, *word, *value),
            Op::Ambush(word, value) => self.ambush.lie(*word, *value),
            Op::Record(token, sequence, header, payload) => {
                if self.head.is_multiple_of(self.memory.block_words()) {
                    self.ring(*sequence);
                    self.ring(*token);
                }
                header.to_words().iter().chain(payload).for_each(|word| self.ring(*word));
            }
            Op::Publish => poke(self.area, guest_page::HEAD as u64, self.head),
            Op::Jump(words) => self.head = self.head.wrapping_add(*words),
            Op::Schema(text, id, len) => self.schema(text, *id, *len),
            Op::Emit(seq, value, id, told, guest_time, payload) => {
                let told = u64::from(*told);
                let header = [u64::from(*seq) | u64::from(*id) << 32, 0, *guest_time, told];
                let slot = &self.memory.guest[guest_page::SLOT..][..SLOT_HEADER_WORDS + SLOT_WORDS];
                for (to, from) in slot.iter().zip(header.iter().chain(payload)) {
                    to.store(*from, Ordering::Relaxed);
                }
                self.register(HOSTILE, register::EMIT, *value);
            }
            Op::Legacy(client, value) => {
                self.chip.write(Region::Control, u64::from(*client) * WORD, &value.to_le_bytes());
            }
            Op::Pass(steps_each) => {
                self.chip.drain_pass_by(*steps_each, &steps());
            }
            Op::Fail(drains) => self.ambush.fail(*drains),
            Op::SetMask(byte) => self.ambush.set_mask(*byte),
            Op::Host(act) => host(act),
            Op::Honest(events) => (0..*events).for_each(|_| self.event()),
            Op::Point => self.point(),
            Op::Lease => self.lease(),
            Op::Poll => assert!(self.client().poll(), "nobody took the client"),
        }
    }

    fn ring(&mut self, value: u64) {
        poke(self.memory.ring, self.head, value);
        self.head = self.head.wrapping_add(1);
    }

    fn schema(&mut self, text: &[u8], id: Option<u32>, len: Option<u32>) {
        let own = id_of(&String::from_utf8_lossy(text));
        let len = len.unwrap_or(text.len() as u32);
        let header = u64::from(id.unwrap_or(own)) | u64::from(len) << 32;
        let words = text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        for word in [header].into_iter().chain(words) {
            poke(self.memory.schema, self.logged, word);
            self.logged = self.logged.wrapping_add(1);
        }
        poke(self.area, guest_page::SCHEMA_LEN as u64, self.logged);
    }

    fn register(&self, client: u32, offset: u64, value: u64) {
        let page = self.chip.geometry().control_pages_offset() + u64::from(client) * PAGE;
        self.chip.write(Region::Control, page + offset, &value.to_le_bytes());
    }

    /// Looks up an address, and checks the result against the reports to the VMM.
    fn find(&self, address: u64) -> Option<(Region, u64)> {
        let found = self.pci.find(address);
        let told = Region::ALL.into_iter().zip(self.decoded).find_map(|(region, base)| {
            let inside = address.checked_sub(base?)?;
            (inside < self.chip.geometry().bar_size(region)).then_some((region, inside))
        });
        assert_eq!(found, told, "at {address:#x}");
        found
    }

    fn config(&mut self, offset: u64, bytes: &[u8]) {
        let decoded = &mut self.decoded;
        self.pci.config_write(offset, bytes, |change| {
            let at = Region::ALL.iter().position(|r| *r == change.region).expect("a region");
            assert_eq!(decoded[at], change.from, "{change:?}");
            decoded[at] = change.to;
        });
    }

    /// Returns the address that an access uses on its path. The function also returns the region and the
    /// offset that this address stands for.
    fn reach(&self, access: &Access) -> (u64, Option<(Region, u64)>) {
        let Access { path, region, offset, .. } = *access;
        match path {
            Path::Chip => (offset, Some((region, offset))),
            Path::Window => {
                let address = self.chip.geometry().window_offset(region).wrapping_add(offset);
                (address, self.window.find(address))
            }
            Path::Pci => {
                let at = Region::ALL.iter().position(|r| *r == region).unwrap_or(0);
                let address = self.decoded[at].unwrap_or(0).wrapping_add(offset);
                (address, self.find(address))
            }
        }
    }

    fn read(&self, access: &Access) {
        let (address, found) = self.reach(access);
        match access.path {
            Path::Chip => fills(access.width, |data| self.chip.read(access.region, address, data)),
            Path::Window => fills(access.width, |data| self.window.read(address, data)),
            Path::Pci if found.is_some() => {
                fills(access.width, |data| assert!(self.pci.read(address, data)));
            }
            Path::Pci => assert!(!self.pci.read(address, &mut [0; 16][..access.width])),
        }
    }

    fn write(&self, access: &Access, bytes: &[u8]) {
        let (mut address, found) = self.reach(access);
        if let Some((region, offset)) = found {
            let spared = self.spare(region, offset, bytes.len() as u64);
            address = address.wrapping_sub(offset).wrapping_add(spared);
        }
        match access.path {
            Path::Chip => self.chip.write(access.region, address, bytes),
            Path::Window => self.window.write(address, bytes),
            Path::Pci => assert_eq!(self.pci.write(address, bytes), found.is_some()),
        }
    }

    /// Returns an offset outside of client 1's area. An offset in this area becomes an offset in client 0's
    /// area.
    fn spare(&self, region: Region, offset: u64, len: u64) -> u64 {
        let geometry = self.chip.geometry();
        let stride = geometry.client_stride();
        let pages = geometry.control_pages_offset();
        match region {
            Region::Rings
                if offset < geometry.rings_size()
                    && offset + len > geometry.client_offset(HONEST) =>
            {
                geometry.client_offset(HOSTILE) + offset % (stride - 16)
            }
            Region::Control if (pages..geometry.control_size()).contains(&offset) => {
                pages + (offset - pages) % PAGE
            }
            _ => offset,
        }
    }

    fn client(&self) -> &Client<'a> {
        self.honest.as_ref().expect("leased from the start")
    }

    fn lease(&mut self) {
        if let Some(client) = self.honest.take() {
            client.release();
        }
        self.account.leases += 1;
        let token = 0x1000 + self.account.leases;
        let info = LeaseInfo { pid: 1, tid: 2, name: "honest" };
        let client = Client::lease(self.channel, HONEST, self.state, token, &info);
        self.honest = Some(client.expect("the device has this client"));
    }

    fn event(&mut self) {
        let n = self.next;
        self.next += 1;
        let rest = [n; 7];
        let rest = &rest[..(n % 8) as usize];
        let (site, fields) = event_type!("honest", n = n, inverse = !n, rest = rest);
        match self.client().emit(site, fields) {
            Emit::Recorded => self.account.recorded.push(n),
            Emit::Full => self.account.full += 1,
            other => panic!("{other:?}: no interrupt, and no other holder"),
        }
    }

    /// Makes a point as a vCPU does. The reply must belong to this point.
    fn point(&mut self) {
        let n = self.next;
        self.next += 1;
        let (seq, clock) = (n as u32, hypertrace_abi::clock::ticks);
        let (site, fields) = event_type!("honest_point", n = n, inverse = !n);
        let producer = self.client().producer();
        let fire = |before, seq: u32| {
            self.register(HONEST, register::EMIT, seq.into());
            let word = |at: usize| producer.memory().host[at].load(Ordering::Acquire);
            let reply = word(host_page::REPLY);
            assert_eq!(reply as u32, seq, "the reply is to another point");
            assert!(word(host_page::REPLY_HOST_TIME) >= before, "it was there before it came");
            reply >> 32
        };
        match producer.slot(site, clock, || seq, 7, fields, fire) {
            Ok(0) => self.account.points.push(n),
            Ok(status) => assert!(status == 2 || status == 4, "status {status}"),
            Err(why) => panic!("{why:?}: it fits, and there is no interrupt"),
        }
    }
}

/// Checks that a load fills every byte, whatever value the byte had before.
fn fills(width: usize, read: impl Fn(&mut [u8])) {
    let mut filled = [false; 16];
    // With at least one of the patterns, each byte has to change. A load may fill a byte with the value of
    // one pattern by chance, for example with a counter, but not with the values of all patterns.
    for pattern in [0xaa, 0x55, 0x33, 0xcc, 0x0f, 0xf0] {
        let mut data = [pattern; 16];
        read(&mut data[..width]);
        filled.iter_mut().zip(data).for_each(|(filled, byte)| *filled |= byte != pattern);
        if filled[..width].iter().all(|filled| *filled) {
            return;
        }
    }
    panic!("a load of {width} bytes filled only {filled:?}");
}

/// Checks the delivered records of client 1 against the client's own counts. `overwritten` also counts
/// records of leases. `filtered` is the number of events that the drain has taken and discarded.
pub fn check_exact(
    account: &Account,
    mode: RingMode,
    delivered: &[u64],
    overwritten: u64,
    filtered: u64,
) {
    check_order(&account.recorded, delivered);
    let missing = (account.recorded.len() - delivered.len()) as u64;
    let missing = missing.checked_sub(filtered).expect("more were filtered than are missing");
    match mode {
        RingMode::Discard => assert_eq!((missing, overwritten), (0, 0)),
        RingMode::Overwrite => {
            assert_eq!(account.full, 0);
            assert!(
                (missing..=missing + account.leases).contains(&overwritten),
                "{missing} events are missing, {overwritten} counted"
            );
        }
    }
}

/// Checks that each delivered event was emitted, was delivered only once, and is in order.
pub fn check_order(emitted: &[u64], delivered: &[u64]) {
    let mut emitted = emitted.iter();
    for n in delivered {
        assert!(emitted.any(|e| e == n), "event {n} came out of order");
    }
}

/// Returns the header of a record of this text.
pub fn header(text: &str, timestamp: u64, words: u16) -> Header {
    Header { timestamp, id: id_of(text), words, flags: 0 }
}
