// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A machine and a guest without a hypervisor, for tests of a VMM's own code around the device.
//!
//! ```
//! use hypertrace_vmm::test_utils::{Bus, FakeGuest, FakeVm};
//! use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig, Window};
//!
//! /// The VMM's bus, with a window at 0xd000_0000.
//! struct Mmio(Window);
//!
//! impl Bus for Mmio {
//!     fn read(&self, gpa: u64, data: &mut [u8]) {
//!         self.0.read(gpa - 0xd000_0000, data);
//!     }
//!
//!     fn write(&self, gpa: u64, data: &[u8]) {
//!         self.0.write(gpa - 0xd000_0000, data);
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let hypertrace = Hypertrace::start(SessionConfig::new(dir), DeviceConfig::new(1))?;
//! let vm = FakeVm::default();
//! let bus = Mmio(hypertrace.device().place_window(&vm, 0xd000_0000)?);
//!
//! let guest = FakeGuest::at_window(&vm, &bus, 0xd000_0000)?;
//! guest.emit(0, 100);
//! assert!(guest.point(0));
//!
//! let summary = hypertrace.finish()?;
//! assert_eq!((summary.ring_events, summary.reference_points, summary.lost), (100, 1, 0));
//! # Ok(())
//! # }
//! ```

use crate::vm::Vm;
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::{CONFIG_WORDS, ConfigError, ConfigPage, RingMode};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{Geometry, PAGE, WORD, guest_page, host_page, register};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_abi::sink::Status;
use hypertrace_device::{DrainWaker, Kick, Mapping, Region};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A machine that keeps what is mapped and armed. Clones are the same machine.
#[derive(Clone, Debug, Default)]
pub struct FakeVm(Arc<Mutex<Placed>>);

#[derive(Debug, Default)]
struct Placed {
    mapped: BTreeMap<u64, Mapped>,
    armed: BTreeMap<u64, Kick>,
}

#[derive(Debug)]
struct Mapped {
    region: Region,
    size: u64,
    file: Arc<File>,
    file_offset: u64,
    is_read_only: bool,
}

impl Placed {
    /// Returns the mapping at an address, and the address's offset in the file.
    fn at(&self, gpa: u64) -> Option<(&Mapped, u64)> {
        let (base, mapped) = self.mapped.range(..=gpa).next_back()?;
        (gpa - base < mapped.size).then(|| (mapped, mapped.file_offset + (gpa - base)))
    }
}

impl FakeVm {
    /// Returns the regions that are mapped, with their addresses.
    pub fn mapped(&self) -> Vec<(Region, u64)> {
        self.lock().mapped.iter().map(|(gpa, mapped)| (mapped.region, *gpa)).collect()
    }

    /// Returns the addresses that are armed.
    pub fn armed(&self) -> Vec<u64> {
        self.lock().armed.keys().copied().collect()
    }

    /// Performs a guest's load from mapped memory. Returns `false` if the load traps.
    pub fn load(&self, gpa: u64, data: &mut [u8]) -> bool {
        let placed = self.lock();
        placed.at(gpa).is_some_and(|(mapped, at)| mapped.file.read_exact_at(data, at).is_ok())
    }

    /// Performs a guest's store to mapped memory or to an armed doorbell. Returns `false` if the store traps.
    pub fn store(&self, gpa: u64, data: &[u8]) -> bool {
        let placed = self.lock();
        if let Some(kick) = placed.armed.get(&gpa) {
            kick.wake();
            return true;
        }
        let writable = placed.at(gpa).filter(|(mapped, _)| !mapped.is_read_only);
        writable.is_some_and(|(mapped, at)| mapped.file.write_all_at(data, at).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, Placed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm for FakeVm {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        let Mapping { region, gpa, size, file, file_offset, is_read_only, .. } = *memory;
        let placed = &mut *self.lock();
        let overlaps =
            |(base, other): (&u64, &Mapped)| gpa < base + other.size && *base < gpa + size;
        if placed.mapped.iter().any(overlaps) {
            // KVM refuses an overlap, too.
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::clone(file);
        placed.mapped.insert(gpa, Mapped { region, size, file, file_offset, is_read_only });
        Ok(())
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        let mapped = &mut self.lock().mapped;
        if mapped.get(&memory.gpa).is_some_and(|mapped| mapped.region == memory.region) {
            mapped.remove(&memory.gpa);
        }
    }

    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let kick = Kick::from(eventfd.try_clone_to_owned()?);
        self.lock().armed.insert(gpa, kick);
        Ok(())
    }

    fn disarm(&self, gpa: u64, _: BorrowedFd<'_>) {
        self.lock().armed.remove(&gpa);
    }
}

/// The VMM's bus, which receives all accesses that trap. An access has at most 8 bytes.
pub trait Bus {
    /// Performs a load. Fills every byte of `data`.
    fn read(&self, gpa: u64, data: &mut [u8]);

    /// Performs a store.
    fn write(&self, gpa: u64, data: &[u8]);
}

/// A guest. The guest's accesses go to the memory that a [`FakeVm`] has mapped. If no memory is mapped at the
/// address, the access goes to the bus. The guest uses the device as the guest library does, one access after
/// another.
pub struct FakeGuest<'a> {
    vm: &'a FakeVm,
    bus: &'a dyn Bus,
    /// Guest-physical address of each region.
    bases: [u64; 4],
    geometry: Geometry,
    mode: RingMode,
}

impl fmt::Debug for FakeGuest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeGuest").field("bases", &self.bases).finish_non_exhaustive()
    }
}

impl<'a> FakeGuest<'a> {
    /// Finds the device in a window.
    ///
    /// # Errors
    /// If there is no hypertrace config page.
    pub fn at_window(
        vm: &'a FakeVm,
        bus: &'a dyn Bus,
        base: u64,
    ) -> Result<FakeGuest<'a>, ConfigError> {
        // The config page is at the beginning of the window, and the other regions follow from it.
        let guest = FakeGuest::at_bars(vm, bus, [base; 4])?;
        let bases = Region::ALL.map(|region| base + guest.geometry.window_offset(region));
        Ok(FakeGuest { bases, ..guest })
    }

    /// Finds the device of a PCI function whose BARs are at these addresses, in the order of [`Region::ALL`].
    ///
    /// # Errors
    /// If there is no hypertrace config page.
    pub fn at_bars(
        vm: &'a FakeVm,
        bus: &'a dyn Bus,
        bases: [u64; 4],
    ) -> Result<FakeGuest<'a>, ConfigError> {
        let (geometry, mode) = (Geometry::default(), RingMode::default());
        let guest = FakeGuest { vm, bus, bases, geometry, mode };
        let words: [u64; CONFIG_WORDS] =
            std::array::from_fn(|word| guest.load(Region::Config, WORD * word as u64));
        let page = ConfigPage::from_words(&words);
        Ok(FakeGuest { geometry: page.geometry()?, mode: page.ring_mode()?, ..guest })
    }

    /// Emits `events` events `fake(n)` in the ring of a client, for n from 0 on, and rings the doorbell.
    /// Returns the number of events that found room.
    ///
    /// # Panics
    /// If the device has no such client.
    pub fn emit(&self, client: u32, events: u64) -> u64 {
        let copy = Copy::of(self, client);
        let state = ProducerState::new();
        let producer = copy.lease(&state);
        let emit = |n: &u64| producer.emit(event_type!("fake", n = *n), ticks) == Emit::Recorded;
        let recorded = (0..events).filter(emit).count() as u64;
        copy.write_back();
        self.kick();
        recorded
    }

    /// Makes a reference point `fake_point()` of a client. Returns whether the host has recorded the point.
    ///
    /// # Panics
    /// If the device has no such client.
    pub fn point(&self, client: u32) -> bool {
        let copy = Copy::of(self, client);
        let state = ProducerState::new();
        let producer = copy.lease(&state);
        let (site, fields) = event_type!("fake_point");
        let seq =
            (copy.memory().host[host_page::REPLY].load(Relaxed) as u32).wrapping_add(1).max(1);
        let control = self.geometry.control_pages_offset() + u64::from(client) * PAGE;
        let reply = producer.slot(
            site,
            ticks,
            || seq,
            0,
            fields,
            |_, seq| {
                copy.write_back();
                self.store(Region::Control, control + register::EMIT, seq.into());
                self.load(Region::Rings, copy.begin + PAGE + WORD * host_page::REPLY as u64)
            },
        );
        reply == Ok(u64::from(seq) | (Status::Recorded as u64) << 32)
    }

    /// Stores to KICK.
    pub fn kick(&self) {
        self.store(Region::Control, self.geometry.kick_offset(), 0);
    }

    /// Performs a load of 8 bytes.
    fn load(&self, region: Region, offset: u64) -> u64 {
        let (gpa, mut data) = (self.bases[region as usize] + offset, [0; 8]);
        if !self.vm.load(gpa, &mut data) {
            self.bus.read(gpa, &mut data);
        }
        u64::from_le_bytes(data)
    }

    /// Performs a store of 8 bytes.
    fn store(&self, region: Region, offset: u64, value: u64) {
        let (gpa, data) = (self.bases[region as usize] + offset, value.to_le_bytes());
        if !self.vm.store(gpa, &data) {
            self.bus.write(gpa, &data);
        }
    }
}

/// A copy of a client's memory, whose changes are stored later.
struct Copy<'a> {
    guest: &'a FakeGuest<'a>,
    client: u32,
    /// Offset in the region.
    begin: u64,
    words: Vec<AtomicU64>,
    /// Words when the copy was made.
    before: Vec<u64>,
}

impl<'a> Copy<'a> {
    fn of(guest: &'a FakeGuest<'a>, client: u32) -> Copy<'a> {
        let geometry = &guest.geometry;
        assert!(client < geometry.clients, "the device has {} clients", geometry.clients);
        let begin = geometry.client_offset(client);
        let offsets = (begin..begin + geometry.client_stride()).step_by(WORD as usize);
        let before: Vec<u64> = offsets.map(|at| guest.load(Region::Rings, at)).collect();
        let words = before.iter().map(|word| AtomicU64::new(*word)).collect();
        Copy { guest, client, begin, words, before }
    }

    fn memory(&self) -> ClientMemory<'_> {
        let FakeGuest { geometry, mode, .. } = self.guest;
        ClientMemory::new(&self.words, geometry, *mode).expect("it is a client's")
    }

    fn lease<'c>(&'c self, state: &'c ProducerState) -> Producer<'c> {
        let token = ticks() | 1;
        let control = self.guest.geometry.control_pages_offset() + u64::from(self.client) * PAGE;
        self.guest.store(Region::Control, control + register::LEASE, token);
        let info = LeaseInfo { pid: 0, tid: self.client, name: "fake" };
        let lease = Lease::new(token, ClockKind::Tsc, ticks(), &info);
        Producer::lease(self.memory(), state, lease, false)
    }

    /// Stores the words that have changed, in this order: the words after the first two pages, page G without
    /// its head, the head.
    fn write_back(&self) {
        let page = (PAGE / WORD) as usize;
        let changed = |at: &usize| self.words[*at].load(Relaxed) != self.before[*at];
        let store = |at: usize| {
            let value = self.words[at].load(Relaxed);
            self.guest.store(Region::Rings, self.begin + WORD * at as u64, value);
        };
        (2 * page..self.words.len()).filter(changed).for_each(store);
        (0..page).filter(|at| *at != guest_page::HEAD).filter(changed).for_each(store);
        store(guest_page::HEAD);
    }
}
