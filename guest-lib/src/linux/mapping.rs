//! Memory: how a mapping is cached, and pages that a fork empties.
//!
//! The code is unsafe because it maps memory.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use std::io;
use std::ptr;
use std::time::Instant;

/// How the CPU caches a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryType {
    /// Write-back, as ordinary memory.
    WriteBack,
    /// Write-combining or uncached: every load goes to the memory, and stores
    /// are fenced to stay in order.
    Uncached,
}

/// Maps private memory for a `T` and a slice of `S`. The memory is all zeros, becomes all zeros in a forked
/// child, and is never freed.
///
/// # Safety
/// Both types must allow all zeros, and must allow that the memory becomes all zeros at any time.
pub(super) unsafe fn wiped_on_fork<T, S>(count: usize) -> io::Result<(&'static T, &'static [S])> {
    let start = size_of::<T>().next_multiple_of(align_of::<S>());
    let len = start + count * size_of::<S>();
    // SAFETY: the mapping is new, page-aligned and never unmapped. The caller promises that zeros are a valid
    // `T` and valid `S`s.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if libc::madvise(at, len, libc::MADV_WIPEONFORK) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(at, len);
            return Err(error);
        }
        let rest = at.cast::<u8>().add(start).cast();
        Ok((&*at.cast(), std::slice::from_raw_parts(rest, count)))
    }
}

/// Number of loads in a batch.
const LOADS: u32 = 64;
/// Number of batches. Only the fastest batch is used, because an interrupt or a first touch may slow down
/// other batches.
const BATCHES: usize = 16;
/// Maximum number of extra nanoseconds per load for a cached mapping. The difference between a load from
/// memory and a load from a cache is several times larger.
const UNCACHED_NS: u32 = 20;

/// Finds out the kind of a mapping: compares the time of loads from the mapping with the time of loads from
/// private memory. Stores cannot be measured, because any word may be in use. Loads distinguish write-back
/// memory from the other kinds, which need fences.
pub(super) fn memory_type(words: &[AtomicU64]) -> MemoryType {
    let private: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(0));
    let floor = fastest(&private);
    let shared = words.first_chunk().map_or(u32::MAX, fastest);
    if shared.saturating_sub(floor) > UNCACHED_NS * LOADS {
        MemoryType::Uncached
    } else {
        MemoryType::WriteBack
    }
}

/// Returns the time of the fastest batch of loads, in nanoseconds. Each load uses the result of the load
/// before. Without this dependency, loads from write-combining memory might overlap.
fn fastest(words: &[AtomicU64; 8]) -> u32 {
    let mut batches = [0; BATCHES];
    for batch in &mut batches {
        let start = Instant::now();
        let mut at = 0;
        for _ in 0..LOADS {
            at = (words[at].load(Relaxed) >> 61) as usize;
        }
        std::hint::black_box(at);
        *batch = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
    }
    batches.into_iter().min().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_write_back() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(memory_type(&words), MemoryType::WriteBack);
        assert_eq!(memory_type(&[]), MemoryType::Uncached);
    }

    #[test]
    fn a_child_finds_wiped_pages_empty() {
        // SAFETY: atomics may be all zeros at any time.
        let (word, _) = unsafe { wiped_on_fork::<AtomicU64, AtomicU64>(1) }.unwrap();
        word.store(1, Relaxed);
        // SAFETY: the child only loads and ends.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(word.load(Relaxed) as i32);
            }
            child
        };
        let mut status = -1;
        // SAFETY: `waitpid` writes to `status`.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((status, word.load(Relaxed)), (0, 1));
    }
}
