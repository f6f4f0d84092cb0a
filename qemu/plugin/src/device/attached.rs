//! The segment that the plugin serves. The plugin attaches the segment once, and keeps it for the life of the
//! process.

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::layout::{Geometry, PAGE, Region, WORD};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_segment::{Bell, LocalPages, LockFile, Mapping, Segment, SegmentError};
use std::path::Path;

/// File descriptor that the plugin uses. The number is large, because an emulated program shares QEMU's
/// descriptors, and many programs expect their own descriptors to begin at 3. The number is below 1,024,
/// because this is the usual limit.
const DESCRIPTOR: i32 = 960;

/// A segment, mapped as long as the process lives.
pub struct Attached {
    /// Page L and the bells.
    pub local: LocalPages<'static>,
    /// Locks of the segment's clients.
    pub lock: LockFile,
    clients: Box<[ClientMemory<'static>]>,
    geometry: Geometry,
    /// The clock epoch, from the config page.
    pub epoch: u64,
    /// Number of relays. The relays are the clients whose ids are less than this number.
    pub relays: u32,
    /// Offset of the first client's registers in the file.
    registers: u64,
    mapping: &'static Mapping,
    /// Bells of the relays.
    pub bells: Box<[Bell<'static>]>,
}

impl Attached {
    /// Opens the segment in this file.
    pub fn open(path: &Path) -> Result<Attached, SegmentError> {
        let segment = Segment::open(path)?;
        let (geometry, mode, (relays, all)) =
            (*segment.geometry(), segment.mode(), segment.clients());
        let (file, mapping, page) = segment.into_parts();
        let mapping: &'static Mapping = Box::leak(Box::new(mapping));
        let rings = &mapping.words()[(geometry.window_offset(Region::Rings) / WORD) as usize..];
        let local = LocalPages::of(mapping.words()).expect("a segment has a whole config region");
        Ok(Attached {
            local,
            lock: LockFile::new(file, 0, DESCRIPTOR),
            clients: (0..all)
                .filter_map(|client| ClientMemory::of_rings(rings, client, &geometry, mode))
                .collect(),
            geometry,
            epoch: page.epoch,
            relays,
            registers: geometry.window_offset(Region::Control) + geometry.control_pages_offset(),
            mapping,
            bells: (0..relays).map(|client| Bell::new(local, client)).collect(),
        })
    }

    /// Returns an address in the plugin's mapping. The line of `/proc/self/maps` that contains this address
    /// is the line of the segment's file.
    pub fn address(&self) -> u64 {
        self.mapping.address() as u64
    }

    /// Returns the client and the register at this offset of the file. Returns `None` if programs cannot
    /// lease the client.
    #[inline(always)]
    pub fn register_at(&self, offset: u64) -> Option<(u32, u64)> {
        let at = offset.wrapping_sub(self.registers);
        let (client, register) = (at / PAGE, at % PAGE);
        (client >= u64::from(self.relays) && client < u64::from(self.geometry.clients))
            .then_some((client as u32, register))
    }

    /// Returns the offset in the file of these words, which are in the plugin's mapping.
    pub fn offset_of(&self, words: &[AtomicU64]) -> u64 {
        (words.as_ptr() as u64).wrapping_sub(self.address())
    }

    /// Returns a client's memory.
    #[inline(always)]
    pub fn client(&self, client: u32) -> Option<&ClientMemory<'static>> {
        self.clients.get(client as usize)
    }
}
