//! Maps a part of a file.
//!
//! The code is unsafe because this module maps memory, and shows shared memory as atomics.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::layout::WORD;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;

/// A part of a file, mapped and shared; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    at: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: this type accesses the memory with atomic operations only; a caller that uses the address must
// argue for that use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on; `offset` is a multiple of the page size.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(file: impl AsFd, offset: u64, len: u64, writable: bool) -> io::Result<Mapping> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset)? };
        Ok(Mapping { at: at.cast(), len, writable })
    }

    /// Keeps the mapping from being inherited by forked children.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the call concerns exactly this mapping, and changes no memory of this process.
        unsafe { madvise(self.at.cast(), self.len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// Fills the hole that the mapping left in a forked child with private memory. Code that was in the
    /// middle of an emit then has memory to store to.
    pub fn detach(&self) {
        let fixed = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the call maps memory only at addresses where nothing is mapped.
        unsafe {
            match mmap_anonymous(self.at.cast(), self.len, protection, fixed) {
                // A kernel before 4.17 takes the address as a hint only.
                Ok(at) if at != self.at.cast() => drop(munmap(at, self.len)),
                _ => {}
            }
        }
    }

    /// Replaces the mapping with private memory that is all zeros. Code that uses the mapping then continues,
    /// although the file's memory is gone. A signal handler may call this function.
    pub fn replace(&self) {
        let fixed = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the call replaces exactly this mapping, which is shared memory whose words may change at
        // any time.
        let _ = unsafe { mmap_anonymous(self.at.cast(), self.len, protection, fixed) };
    }

    /// Returns the address of the mapping's first byte.
    pub fn address(&self) -> *mut u8 {
        self.at
    }

    /// Returns the addresses of the mapping.
    pub fn range(&self) -> Range<usize> {
        self.at as usize..self.at as usize + self.len
    }

    /// Returns the mapping's words; no words if the mapping is not writable.
    pub fn words(&self) -> &[AtomicU64] {
        let bytes = if self.writable { self.len } else { 0 };
        // SAFETY: the words are mapped as long as `self` lives, and are aligned as pages are. Any other user
        // of the mapped file is another process, or accesses these words with atomic operations only.
        unsafe { std::slice::from_raw_parts(self.at.cast(), bytes / WORD as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this type owns the mapping. A program that uses the mapping's address for longer keeps this
        // value for longer.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}
