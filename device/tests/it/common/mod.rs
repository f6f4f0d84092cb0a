// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A small device with a sink that keeps everything it gets.
#![allow(dead_code)] // each test file uses a part

#[cfg(feature = "vfio-user")]
pub mod server;

use hypertrace_abi::layout::MASK_BYTES;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Consumer, Flow};
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, PassConfig, ReferencePoint, SessionInfo, Status,
};
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_device::{Chip, ChipConfig, Counter, Geometry, Memory, PciFunction, Region, Window};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns a caller's span. The last digit of the span's id is `digit`.
pub fn trace_parent(digit: u8) -> Option<TraceParent> {
    let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{digit}-01");
    Some(text.parse().unwrap())
}

/// A reference point that the sink got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub client: u32,
    pub seq: u32,
    pub id: u32,
    pub name_hash: u32,
    pub cpu: u32,
    pub guest_time: u64,
    pub host_time: u64,
    pub words: Vec<u64>,
}

/// A call of the drain loop to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Begin,
    Drain(u32),
    End,
    Generation(u32),
}

/// Facts about a client. The sink gets these facts at a restore, and returns them for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub client: u32,
    pub token: u64,
    pub clock: ClockKind,
    pub name: String,
    pub texts: Vec<String>,
}

impl Known {
    fn of(known: &KnownClient<'_>) -> Known {
        let KnownClient { client, token, clock, name, texts } = *known;
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Known { client, token, clock, name: name.to_owned(), texts }
    }
}

/// A sink that keeps reference points, calls, and the timestamps of ring records.
#[derive(Debug, Default)]
pub struct Recorder {
    pub points: Mutex<Vec<Point>>,
    pub calls: Mutex<Vec<Call>>,
    pub records: Mutex<Vec<(u32, u64)>>,
    /// Lost events and faults of each client.
    pub losses: Mutex<BTreeMap<u32, (u64, u64)>>,
    /// Facts about clients, from a restore or for a snapshot.
    pub known: Mutex<Vec<Known>>,
    /// Status of the next reference points.
    pub status: Mutex<Option<Status>>,
    /// Maximum number of records that one drain takes.
    pub packet: Mutex<Option<usize>>,
    pub quiet_for: Mutex<Duration>,
    /// The enable mask that the next pass sets.
    pub mask: Mutex<Option<[u8; MASK_BYTES as usize]>>,
    /// Whether the next passes panic.
    pub panics: AtomicBool,
    pub facts: SessionInfo,
}

impl EventSink for Recorder {
    fn session_info(&self) -> SessionInfo {
        self.facts
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        let ReferencePoint { client, seq, id, name_hash, cpu, guest_time, host_time, words } =
            *point;
        let words = words.to_vec();
        self.points.lock().unwrap().push(Point {
            client,
            seq,
            id,
            name_hash,
            cpu,
            guest_time,
            host_time,
            words,
        });
        self.status.lock().unwrap().unwrap_or(Status::Recorded)
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Recorder {
    fn begin_pass(&mut self) -> PassConfig {
        self.calls.lock().unwrap().push(Call::Begin);
        PassConfig::default().with(|config| config.mask = self.mask.lock().unwrap().take())
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        self.calls.lock().unwrap().push(Call::Drain(client));
        let most = self.packet.lock().unwrap().unwrap_or(usize::MAX);
        let mut stage = vec![0; consumer.stage_words()];
        let mut records = self.records.lock().unwrap();
        let mut taken = 0;
        let pulled = consumer.pull(&mut stage, |_, record| {
            if taken == most {
                return Flow::Stop;
            }
            taken += 1;
            records.push((client, record.header.timestamp));
            Flow::Taken
        });
        consumer.commit();
        let losses = consumer.losses().total();
        self.losses.lock().unwrap().insert(client, (losses, consumer.faults().iter().sum()));
        Drained { words: pulled.end - pulled.begin, more: pulled.more }
    }

    fn end_pass(&mut self) {
        assert!(!self.panics.load(Relaxed), "in the test");
        self.calls.lock().unwrap().push(Call::End);
    }

    fn quiet_for(&mut self) -> Duration {
        *self.quiet_for.lock().unwrap()
    }

    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        self.calls.lock().unwrap().push(Call::Generation(epoch));
        *self.known.lock().unwrap() = known.iter().map(Known::of).collect();
        epoch
    }

    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        for Known { client, token, clock, name, texts } in &*self.known.lock().unwrap() {
            let texts = &texts.iter().map(String::as_str).collect::<Vec<_>>()[..];
            each(&KnownClient { client: *client, token: *token, clock: *clock, name, texts });
        }
    }
}

/// A guard that ends the loops of other threads, even if an assertion fails.
pub struct Done<'a>(pub &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// Returns a geometry with the smallest rings, four clients and four arguments.
pub fn geometry() -> Geometry {
    Geometry { clients: 4, legacy_args: 4, ring_bytes: 4096, block_bytes: 256, schema_bytes: 4096 }
}

/// Returns a chip with a new sink. The sink has these facts.
pub fn chip_of(config: &ChipConfig, facts: SessionInfo) -> (Arc<Chip>, Arc<Recorder>) {
    let memory = Memory::anonymous(geometry()).unwrap();
    let sink = Arc::new(Recorder { facts, ..Recorder::default() });
    (Arc::new(Chip::new(memory, config, sink.clone(), ())), sink)
}

pub fn chip() -> (Arc<Chip>, Arc<Recorder>) {
    chip_of(&ChipConfig::default(), SessionInfo::default())
}

pub fn points(sink: &Recorder) -> Vec<Point> {
    std::mem::take(&mut sink.points.lock().unwrap())
}

/// Gives the sink a new enable mask, and runs a pass, in which the device takes the mask from the sink.
pub fn set_mask(chip: &Chip, sink: &Recorder, mask: [u8; MASK_BYTES as usize]) {
    *sink.mask.lock().unwrap() = Some(mask);
    chip.drain_all();
}

/// Returns the number of complete passes.
pub fn passes(sink: &Recorder) -> usize {
    sink.calls.lock().unwrap().iter().filter(|call| **call == Call::End).count()
}

/// Returns the counters that have changed since `before`.
pub fn counted(chip: &Chip, before: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    counters(chip)
        .into_iter()
        .map(|(name, n)| (name, n - before[name]))
        .filter(|(_, n)| *n > 0)
        .collect()
}

pub fn counters(chip: &Chip) -> BTreeMap<&'static str, u64> {
    Counter::ALL.map(|counter| (counter.name(), chip.count(counter))).into_iter().collect()
}

/// Returns all bytes of the regions Data and Rings.
pub fn memory(chip: &Chip) -> Vec<u8> {
    let mut all = Vec::new();
    for region in [Region::Data, Region::Rings] {
        let mut bytes = vec![0; chip.geometry().bar_size(region) as usize];
        chip.read(region, 0, &mut bytes);
        all.extend(bytes);
    }
    all
}

/// Returns the offset of a client's register in the control region.
pub fn register(client: u32, offset: u64) -> u64 {
    geometry().control_pages_offset() + u64::from(client) * 4096 + offset
}

/// A way for a guest to reach the chip.
pub enum Front {
    Chip(Arc<Chip>),
    Window(Window),
    Pci(PciFunction),
}

/// Addresses of the tests' BARs, in the order of [`Region::ALL`].
pub const BARS: [u64; 4] = [0xe000_0000, 0xe100_0000, 0xe200_0000, 0x40_0000_0000];

impl Front {
    /// Makes all three fronts, each with a chip and a sink of its own.
    pub fn all() -> [(Front, Arc<Recorder>); 3] {
        let [(plain, sink), in_window, on_pci] = [chip(), chip(), chip()];
        let (window, pci) = (Window::new(in_window.0), PciFunction::new(on_pci.0));
        for (region, address) in Region::ALL.into_iter().zip(BARS) {
            let bar = 0x10 + 4 * region.bar() as u64;
            pci.config_write(bar, &(address as u32).to_le_bytes(), |_| ());
            if region == Region::Rings {
                pci.config_write(bar + 4, &((address >> 32) as u32).to_le_bytes(), |_| ());
            }
        }
        pci.config_write(4, &[2], |_| ());
        let in_window = (Front::Window(window), in_window.1);
        [(Front::Chip(plain), sink), in_window, (Front::Pci(pci), on_pci.1)]
    }

    pub fn chip(&self) -> &Chip {
        match self {
            Front::Chip(chip) => chip,
            Front::Window(window) => window.chip(),
            Front::Pci(pci) => pci.chip(),
        }
    }

    /// Returns the address at which a region begins.
    pub fn base(&self, region: Region) -> u64 {
        let i = Region::ALL.iter().position(|r| *r == region).unwrap();
        match self {
            Front::Chip(_) => 0,
            Front::Window(window) => {
                let g = window.chip().geometry();
                Region::ALL[..i].iter().map(|r| g.bar_size(*r)).sum()
            }
            Front::Pci(_) => BARS[i],
        }
    }

    /// Returns the region and the offset of an access, computed independently of the code
    /// under test.
    pub fn target(&self, region: Region, offset: u64) -> Option<(Region, u64)> {
        if let Front::Chip(_) = self {
            return Some((region, offset));
        }
        let address = self.base(region).wrapping_add(offset);
        Region::ALL.into_iter().find_map(|region| {
            let size = self.chip().geometry().bar_size(region);
            let inside = address.wrapping_sub(self.base(region));
            (inside < size).then_some((region, inside))
        })
    }

    /// Performs a load. Bytes that are not filled keep their value.
    pub fn read(&self, region: Region, offset: u64, data: &mut [u8]) {
        let address = self.base(region).wrapping_add(offset);
        match self {
            Front::Chip(chip) => chip.read(region, offset, data),
            Front::Window(window) => window.read(address, data),
            Front::Pci(pci) => {
                // If no BAR is at the address, the bus answers.
                if !pci.read(address, data) {
                    data.fill(0);
                }
            }
        }
    }

    pub fn write(&self, region: Region, offset: u64, data: &[u8]) {
        let address = self.base(region).wrapping_add(offset);
        match self {
            Front::Chip(chip) => chip.write(region, offset, data),
            Front::Window(window) => window.write(address, data),
            Front::Pci(pci) => {
                pci.write(address, data);
            }
        }
    }
}
