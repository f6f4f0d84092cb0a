//! The two regions that guest and host share: argument slots and rings.
//!
//! Unsafe here, because shared memory is seen as a slice of atomics: vm-memory
//! offers one atomic at a time, and the drain copies thousands.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::layout::{Geometry, GeometryError, Region, WORD};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::sync::Arc;
use thiserror::Error;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Why shared memory could not be had.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// Sizes that cannot be.
    #[error("geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// The host gave no memory file.
    #[error("create a memory file of {bytes} bytes")]
    Create {
        /// Its size.
        bytes: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("map the {region:?} region ({bytes} bytes at offset {offset})")]
    Map {
        /// Which region.
        region: Region,
        /// Where in the file.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Why.
        #[source]
        source: MmapRegionError,
    },
}

/// One region, mapped into the host and ready to be mapped into a guest.
#[derive(Debug)]
pub struct SharedRegion {
    mapping: MmapRegion,
    file: FileOffset,
}

impl SharedRegion {
    fn new(region: Region, file: &Arc<File>, offset: u64, bytes: u64) -> Result<Self, MemoryError> {
        let file = FileOffset::from_arc(file.clone(), offset);
        let mapping = MmapRegion::from_file(file.clone(), bytes as usize)
            .map_err(|source| MemoryError::Map { region, offset, bytes, source })?;
        Ok(SharedRegion { mapping, file })
    }

    /// Where the host has it: what a KVM memslot wants.
    pub fn host_address(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.mapping.size() as u64
    }

    /// The file and the offset in it: what another process maps.
    pub fn file(&self) -> &FileOffset {
        &self.file
    }

    /// For accesses that trap.
    pub(crate) fn bytes(&self) -> VolatileSlice<'_> {
        self.mapping.as_volatile_slice()
    }

    /// The region as words: for a guest on threads of this process.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as `self`, is
        // readable and writable over its whole size, and is only ever accessed
        // by volatile or atomic operations.
        unsafe {
            std::slice::from_raw_parts(
                self.mapping.as_ptr().cast::<AtomicU64>(),
                self.mapping.size() / WORD as usize,
            )
        }
    }
}

/// Argument slots (BAR 1) and rings (BAR 4), in one file.
#[derive(Debug)]
pub struct Memory {
    pub(crate) geometry: Geometry,
    data: SharedRegion,
    rings: SharedRegion,
}

impl Memory {
    /// Fresh memory in a memfd, sealed against shrinking: nothing that another
    /// process does with the descriptor can take the pages away.
    ///
    /// # Errors
    /// If the geometry cannot be, or the host has no memory.
    pub fn anonymous(geometry: Geometry) -> Result<Memory, MemoryError> {
        geometry.check()?;
        let bytes = Memory::file_size(&geometry);
        let file = memfd(bytes).map_err(|source| MemoryError::Create { bytes, source })?;
        Memory::map(geometry, file)
    }

    /// Memory in a file of the caller's, which is made as large as needed. The
    /// caller keeps it from being truncated.
    ///
    /// # Errors
    /// If the geometry cannot be, or the file cannot be sized or mapped.
    pub fn from_file(geometry: Geometry, file: File) -> Result<Memory, MemoryError> {
        geometry.check()?;
        let bytes = Memory::file_size(&geometry);
        file.set_len(bytes).map_err(|source| MemoryError::Create { bytes, source })?;
        Memory::map(geometry, file)
    }

    fn map(geometry: Geometry, file: File) -> Result<Memory, MemoryError> {
        let file = Arc::new(file);
        let data = geometry.bar_size(Region::Data);
        let rings = geometry.bar_size(Region::Rings);
        Ok(Memory {
            geometry,
            data: SharedRegion::new(Region::Data, &file, 0, data)?,
            rings: SharedRegion::new(Region::Rings, &file, data, rings)?,
        })
    }

    /// Bytes of the file: both BARs.
    pub fn file_size(geometry: &Geometry) -> u64 {
        geometry.bar_size(Region::Data) + geometry.bar_size(Region::Rings)
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// A region that is memory; `None` for those that are not.
    pub fn region(&self, region: Region) -> Option<&SharedRegion> {
        match region {
            Region::Data => Some(&self.data),
            Region::Rings => Some(&self.rings),
            Region::Config | Region::Control => None,
        }
    }

    pub(crate) fn rings(&self) -> &[AtomicU64] {
        self.rings.words()
    }

    pub(crate) fn data(&self) -> &[AtomicU64] {
        self.data.words()
    }
}

fn memfd(bytes: u64) -> io::Result<File> {
    let file = memfd_create("hypertrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}
