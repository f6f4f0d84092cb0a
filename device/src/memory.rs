// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The regions that are memory: argument slots and rings, which guest and host share, and the config page,
//! which only the host writes.
//!
//! The host accesses these regions only as slices of atomic words. The ring needs whole words with an
//! ordering, and racing accesses of different sizes are undefined in Rust's memory model. This module makes
//! such a slice with an unsafe cast: vm-memory offers only one atomic at a time, but the drain copies
//! thousands of words. The call of `madvise` is unsafe, too.
#![allow(unsafe_code)]

use crate::state::RestoreError;
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace_abi::config::{ConfigPage, RingMode};
use hypertrace_abi::file::{check_size, memfd};
use hypertrace_abi::layout::{Geometry, GeometryError, MIN_BAR, PAGE, Region, WORD};
use hypertrace_abi::ring::ClientMemory;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, madvise};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use thiserror::Error;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion};

/// The reason why shared memory is not available.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A size in the geometry is out of bounds.
    #[error("geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// The host could not create or size the memory file.
    #[error("create a memory file of {bytes} bytes")]
    Create {
        /// Size of the file in bytes.
        bytes: u64,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The host could not map the file.
    #[error("map the {region:?} region ({bytes} bytes at offset {offset})")]
    Map {
        /// The region.
        region: Region,
        /// Offset of the region in the file, in bytes.
        offset: u64,
        /// Size of the region in bytes.
        bytes: u64,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// A region that is mapped into this process, and that can be mapped into a guest.
#[derive(Debug)]
pub struct SharedRegion {
    mapping: MmapRegion,
    file: Arc<File>,
    file_offset: u64,
}

impl SharedRegion {
    fn new(region: Region, file: &Arc<File>, offset: u64, bytes: u64) -> Result<Self, MemoryError> {
        let part = FileOffset::from_arc(file.clone(), offset);
        let mapping = MmapRegion::from_file(part, bytes as usize).map_err(|why| {
            let source = match why {
                MmapRegionError::Mmap(why) => why,
                why => io::Error::other(why),
            };
            MemoryError::Map { region, offset, bytes, source }
        })?;
        Ok(SharedRegion { mapping, file: file.clone(), file_offset: offset })
    }

    /// Returns the region's address in this process, for a KVM memslot.
    pub fn host_address(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Returns the region's size in bytes.
    pub fn size(&self) -> u64 {
        self.mapping.size() as u64
    }

    /// Returns the file that contains the region, for another process to map.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns the region's offset in the file, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Fills `data` from `offset` on, for a guest's load that trapped. Returns `false` and reads nothing if
    /// the load is not within the region.
    pub(crate) fn load(&self, offset: u64, data: &mut [u8]) -> bool {
        self.parts(offset, data.len(), |word, part, bytes| {
            // ORDERING: pairs with the Release stores of `store_bytes` and of the host. A guest needs this
            // order if each of its accesses traps.
            let word = word.load(Ordering::Acquire).to_le_bytes();
            data[bytes].copy_from_slice(&word[part]);
        })
    }

    /// Stores `data` at `offset`, for a guest's store that trapped. Returns `false` and stores nothing if the
    /// store is not within the region.
    pub(crate) fn store(&self, offset: u64, data: &[u8]) -> bool {
        self.parts(offset, data.len(), |word, part, bytes| {
            store_bytes(word, part, &data[bytes]);
        })
    }

    /// Calls `f` for each word that an access of `len` bytes at `offset` touches. The arguments of `f` are
    /// the range of the touched bytes within the word, and the range of these bytes within the access.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&AtomicU64, Range<usize>, Range<usize>),
    ) -> bool {
        let Some(end) = offset.checked_add(len as u64).filter(|end| *end <= self.size()) else {
            return false;
        };
        // Bound: the access is within the region, and each turn handles at least one byte.
        let mut at = offset;
        while at < end {
            let first = (at % WORD) as usize;
            let count = (WORD - at % WORD).min(end - at) as usize;
            let done = (at - offset) as usize;
            f(&self.words()[(at / WORD) as usize], first..first + count, done..done + count);
            at += count as u64;
        }
        true
    }

    /// Returns the region as words, also for a guest on threads of this process.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as `self`, and is readable and writable over its
        // whole size. This process accesses the mapping only through slices like this one. Stores of vCPUs
        // and of other processes are not part of this program; on the supported targets, an aligned load of a
        // word sees such stores as if they were atomic stores of this process.
        unsafe {
            std::slice::from_raw_parts(
                self.mapping.as_ptr().cast::<AtomicU64>(),
                self.mapping.size() / WORD as usize,
            )
        }
    }
}

/// Consecutive pages of a device's memory, in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Pages {
    /// Offset in the memory's file, in bytes.
    pub offset: u64,
    /// Contents, as little-endian words.
    pub words: Vec<u64>,
}

impl Pages {
    /// Returns the offset after the last page.
    fn end(&self) -> u64 {
        self.offset.saturating_add((self.words.len() as u64).saturating_mul(WORD))
    }
}

/// The argument slots (BAR 1), the rings (BAR 4) and the config page (BAR 0), in one file.
#[derive(Debug)]
pub struct Memory {
    pub(crate) geometry: Geometry,
    config: SharedRegion,
    data: SharedRegion,
    rings: SharedRegion,
}

impl Memory {
    /// Makes memory in a memfd, sealed against changes of its size and against further seals. A process that
    /// has the descriptor can then neither remove the file's pages nor prevent a later process from mapping
    /// the file.
    ///
    /// # Errors
    /// If the geometry is invalid, or the host cannot make the file.
    pub fn anonymous(geometry: Geometry) -> Result<Memory, MemoryError> {
        geometry.check()?;
        let bytes = Memory::file_size(&geometry);
        let file = memfd(bytes).map_err(|source| MemoryError::Create { bytes, source })?;
        Memory::map(geometry, file)
    }

    /// Makes memory in a file of the caller, and sets the file's size. The caller ensures that nobody
    /// truncates the file.
    ///
    /// # Errors
    /// If the geometry is invalid, or the file cannot be sized or mapped.
    pub fn from_file(geometry: Geometry, file: File) -> Result<Memory, MemoryError> {
        geometry.check()?;
        let bytes = Memory::file_size(&geometry);
        check_size(bytes)
            .and_then(|()| file.set_len(bytes))
            .map_err(|source| MemoryError::Create { bytes, source })?;
        Memory::map(geometry, file)
    }

    fn map(geometry: Geometry, file: File) -> Result<Memory, MemoryError> {
        let file = Arc::new(file);
        let data = geometry.bar_size(Region::Data);
        let rings = geometry.bar_size(Region::Rings);
        let config = geometry.bar_size(Region::Config);
        Ok(Memory {
            geometry,
            data: SharedRegion::new(Region::Data, &file, 0, data)?,
            rings: SharedRegion::new(Region::Rings, &file, data, rings)?,
            config: SharedRegion::new(Region::Config, &file, data + rings, config)?,
        })
    }

    /// Returns the size of the file, which has BARs 0, 1 and 4.
    pub fn file_size(geometry: &Geometry) -> u64 {
        let regions = [Region::Data, Region::Rings, Region::Config];
        regions.iter().map(|region| geometry.bar_size(*region)).sum()
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns a region that is memory, or `None` for the control region, whose accesses trap. Guests may
    /// only read the config region.
    pub fn region(&self, region: Region) -> Option<&SharedRegion> {
        match region {
            Region::Config => Some(&self.config),
            Region::Data => Some(&self.data),
            Region::Rings => Some(&self.rings),
            Region::Control => None,
        }
    }

    /// Hides these mappings from processes that this process forks from now on. Without this call, a device
    /// of the VMM in a jailed process could write to this memory, even to the config page. A forked process
    /// must close the memory's file, and must not use or drop its copy of this value. If a forked process
    /// will drain the rings, do not call this function in its parent before the fork.
    ///
    /// # Errors
    /// If the kernel does not accept the advice.
    pub fn hide_from_children(&self) -> io::Result<()> {
        for region in [&self.config, &self.data, &self.rings] {
            let (start, len) = (region.mapping.as_ptr().cast(), region.mapping.size());
            // SAFETY: the range is a mapping of `self`, and this advice does not change the mapping in this
            // process.
            unsafe { madvise(start, len, Advice::LinuxDontFork)? };
        }
        Ok(())
    }

    /// For a snapshot, returns the pages that a restored machine needs. Pages of zeros are left out. Call
    /// [`Chip::state`](crate::Chip::state) first, which drains the rings. For each ring, the result contains
    /// only the pages of the [live part](ClientMemory::live). A ring in discard mode thus adds at most two
    /// blocks to a snapshot.
    ///
    /// Call this while no vCPU runs.
    ///
    /// # Errors
    /// If the memory cannot be read.
    pub fn save(&self) -> io::Result<Vec<Pages>> {
        let mut saved: Vec<Pages> = Vec::new();
        let mut chunk = vec![0; MIN_BAR as usize];
        let is_needed = self.needed_pages();
        // The size of a chunk divides the size of every region.
        for begin in (0..Memory::file_size(&self.geometry)).step_by(MIN_BAR as usize) {
            self.file().read_exact_at(&mut chunk, begin)?;
            for (page, at) in chunk.chunks(PAGE as usize).zip((begin..).step_by(PAGE as usize)) {
                if !is_needed(at) || page.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let words = page.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
                match saved.last_mut() {
                    Some(last) if last.end() == at => last.words.extend(words),
                    _ => saved.push(Pages { offset: at, words: words.collect() }),
                }
            }
        }
        Ok(saved)
    }

    /// Overwrites the contents of all regions with the pages that [`Memory::save`] returned. Call this before
    /// the device has guests.
    ///
    /// # Errors
    /// If a page is beyond the end of this memory; the contents of this memory are then unchanged. Or if the
    /// host has no memory for the pages; the contents of this memory are then unknown.
    pub fn load(&self, saved: &[Pages]) -> Result<(), RestoreError> {
        let most = Memory::file_size(&self.geometry);
        if let Some(found) = saved.iter().map(Pages::end).find(|end| *end > most) {
            return Err(RestoreError::Exceeds { what: "end of its pages", most, found });
        }
        self.clear();
        for pages in saved {
            let bytes: Vec<u8> = pages.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let written = self.file().write_all_at(&bytes, pages.offset);
            written.map_err(|why| RestoreError::Memory(why.kind()))?;
        }
        Ok(())
    }

    /// Returns a function that tells whether a restored machine needs the page at an offset of the file. The
    /// machine needs the pages in the used part of a region. Of a ring, the machine needs only the pages in
    /// the live part.
    fn needed_pages(&self) -> impl Fn(u64) -> bool {
        let geometry = self.geometry;
        let words = std::array::from_fn(|at| self.config.words()[at].load(Relaxed));
        let mode = ConfigPage::from_words(&words).ring_mode().unwrap_or(RingMode::Overwrite);
        let live = |client| {
            let memory = ClientMemory::of_rings(self.rings(), client, &geometry, mode)?;
            let (first, words) = memory.live();
            let page = first * WORD / PAGE * PAGE;
            Some((page, (first + words) * WORD - page))
        };
        let live: Vec<_> = (0..geometry.clients).filter_map(live).collect();
        let (rings, config) = (self.rings.file_offset, self.config.file_offset);
        move |at| match at.checked_sub(rings) {
            None => at < geometry.data_size(),
            Some(_) if at >= config => true,
            Some(in_rings) if in_rings >= geometry.rings_size() => false,
            Some(in_rings) => in_rings.checked_sub(geometry.client_offset(0)).is_none_or(|at| {
                let (client, in_area) =
                    (at / geometry.client_stride(), at % geometry.client_stride());
                let ring = geometry.client_stride() - geometry.ring_bytes;
                let (first, bytes) = live[client as usize];
                // The live part may wrap around the ring's end.
                let is_live = |at: u64| at.wrapping_sub(first) & (geometry.ring_bytes - 1) < bytes;
                in_area.checked_sub(ring).is_none_or(is_live)
            }),
        }
    }

    fn file(&self) -> &File {
        &self.data.file
    }

    /// Zeroes the argument slots and the rings, and gives their memory back to the host.
    pub(crate) fn clear(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for region in [&self.data, &self.rings] {
            // The file system of a caller's file may not support holes.
            if fallocate(&region.file, flags, region.file_offset, region.size()).is_err() {
                region.words().iter().for_each(|word| word.store(0, Relaxed));
            }
        }
    }

    /// Writes the config page.
    pub(crate) fn set_config(&self, page: &[u8]) {
        self.config.store(0, page);
    }

    pub(crate) fn rings(&self) -> &[AtomicU64] {
        self.rings.words()
    }

    pub(crate) fn data(&self) -> &[AtomicU64] {
        self.data.words()
    }
}

/// Stores bytes to a word or a part of it. If other CPUs store to the other bytes at the same time, the other
/// bytes keep these stores. If another CPU stores to the same bytes at the same time, the bytes become a
/// mixture of both stores: the guest races with itself.
fn store_bytes(word: &AtomicU64, part: Range<usize>, data: &[u8]) {
    // ORDERING: pairs with the host's Acquire loads: the guest's earlier stores, which
    // trapped as well, are complete.
    if let Ok(whole) = data.try_into() {
        return word.store(u64::from_le_bytes(whole), Ordering::Release);
    }
    let old = word.load(Relaxed).to_le_bytes();
    let mut flips = [0; WORD as usize];
    for ((flip, old), new) in flips[part.clone()].iter_mut().zip(&old[part]).zip(data) {
        *flip = old ^ new;
    }
    // ORDERING: as above. A guest could make a compare-and-exchange fail again and again, but an exclusive-or
    // cannot fail.
    word.fetch_xor(u64::from_le_bytes(flips), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_add_seals};

    #[test]
    fn children_have_none_of_the_memory_if_it_is_hidden() {
        let memory = Memory::anonymous(Geometry::default()).unwrap();
        // The kernel's flags: "dc" is "do not copy on fork".
        let hidden = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            Region::ALL.map(|region| {
                let start = memory.region(region)?.host_address() as usize;
                let of = maps.split_once(&format!("{start:x}-"))?.1;
                let flags = of.lines().find(|line| line.starts_with("VmFlags:"))?;
                Some(flags.split(' ').any(|flag| flag == "dc"))
            })
        };
        let all = |is_hidden| [Some(is_hidden), Some(is_hidden), None, Some(is_hidden)];
        assert_eq!(hidden(), all(false));

        memory.hide_from_children().unwrap();

        assert_eq!(hidden(), all(true));
    }

    #[test]
    fn the_file_of_the_memory_can_neither_be_cut_nor_sealed_further() {
        let memory = Memory::anonymous(Geometry::default()).unwrap();
        let file = memory.file();

        assert!(file.set_len(0).is_err() && file.set_len(1 << 40).is_err());
        // A process that has the descriptor could keep other processes from mapping the file.
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            assert!(fcntl_add_seals(file, seal).is_err(), "{seal:?}");
        }
    }
}
