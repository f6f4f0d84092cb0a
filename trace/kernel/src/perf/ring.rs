//! A ring of perf records in memory shared with the kernel, and the perf events that write to the ring.
//!
//! Uses unsafe code for perf_event_open(2) and mmap(2).
#![allow(unsafe_code)]

use hypertrace_format::folder::retry;
use rustix::param::page_size;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the records' room in bytes, a power of two.
pub(super) const BYTES: usize = 512 << 10;

// Offsets in the ring's first page (struct perf_event_mmap_page).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The fields of struct perf_event_attr up to version 5. The kernel takes the fields of later versions as 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
/// Fields after each record: pid and tid, time, CPU.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 7;
/// With this flag, a read also returns the number of lost records (since Linux 6.0).
const PERF_FORMAT_LOST: u64 = 1 << 4;

// Bits of the flags.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const COMM: u64 = 1 << 9;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCKID: u64 = 1 << 25;
const CONTEXT_SWITCH: u64 = 1 << 26;

const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
/// `_IO('$', 1)` and `_IO('$', 5)` in linux/perf_event.h.
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

fn attributes(flags: u64) -> Attributes {
    Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: PERF_COUNT_SW_DUMMY,
        sample_type: SAMPLE_TYPE,
        flags: flags | EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID,
        // Wakes the reader when a quarter of the ring is full.
        wakeup_watermark: BYTES as u32 / 4,
        clockid: libc::CLOCK_MONOTONIC_RAW,
        ..Attributes::default()
    }
}

/// Opens an event of a thread (0 for the calling thread) on a CPU.
fn open(attributes: &Attributes, thread: u32, cpu: u32) -> io::Result<OwnedFd> {
    let number = |n: u32| i32::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH));
    // SAFETY: the kernel reads `size` bytes, which is the whole size of the attributes. The kernel writes
    // nothing.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            number(thread)?,
            number(cpu)?,
            -1i32,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this is a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A perf event of one thread and of all threads and processes that the thread starts. The kernel records
/// this event as long as the event's descriptor is open.
#[derive(Debug)]
pub(super) struct Event {
    fd: OwnedFd,
    counts_losses: bool,
}

impl Event {
    /// Opens an event that writes the thread's switches on this CPU to the ring of another event.
    pub fn open(thread: u32, cpu: u32, ring: RawFd) -> io::Result<Event> {
        let without = attributes(INHERIT | COMM | CONTEXT_SWITCH);
        let with = Attributes { read_format: PERF_FORMAT_LOST, ..without };
        let (fd, counts_losses) = match open(&with, thread, cpu) {
            // The kernel is older than 6.0.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (open(&without, thread, cpu)?, false)
            }
            opened => (opened?, true),
        };
        // SAFETY: the call takes a descriptor by its number, and refuses a descriptor that is not of perf.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT, ring) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Event { fd, counts_losses }) }
    }

    /// Ends the event. Returns how many of the event's records were lost because the ring had no room; the
    /// number is a sum over all threads of the event. Returns `None` if the kernel does not count these
    /// records.
    pub fn end(self) -> Option<u64> {
        // SAFETY: this ioctl takes no argument.
        let stopped = unsafe { libc::ioctl(self.fd.as_raw_fd(), PERF_EVENT_IOC_DISABLE, 0) };
        // The first word is the event's own counter. The second word is the number of lost records.
        let mut words = [[0; 8]; 2];
        let read = retry(|| rustix::io::read(&self.fd, words.as_flattened_mut()));
        let is_whole = stopped == 0 && self.counts_losses && read.is_ok_and(|bytes| bytes == 16);
        is_whole.then(|| u64::from_ne_bytes(words[1]))
    }
}

/// A ring.
#[derive(Debug)]
pub(super) struct Ring {
    event: OwnedFd,
    map: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, wherever the value is moved.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens a ring for a CPU, with an event that records nothing.
    pub fn new(cpu: u32) -> io::Result<Ring> {
        let event = open(&attributes(0), 0, cpu)?;
        let bytes = page_size() + BYTES;
        // SAFETY: this makes a new mapping at an address that the kernel chooses.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { event, map, bytes })
    }

    /// Returns the descriptor. The descriptor becomes readable when the ring has many records.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Returns a word of the first page.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped as long as `self` lives. Both words are in the first page and
        // aligned. The kernel accesses both as whole words.
        unsafe { self.map.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Passes all records to a function, in one or two parts, and frees the room of the records. If the
    /// function fails to write a part, this part stays in the ring.
    pub fn take(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let start = page_size();
        // ORDERING: pairs with the kernel's barrier before the store of data_head: the records before `head`
        // are complete.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        // The loop has at most two iterations: one for the records up to the ring's end, and one for the
        // records from the ring's start.
        while tail != head {
            let at = (tail % BYTES as u64) as usize;
            let length = (head.wrapping_sub(tail) as usize).min(BYTES - at);
            // SAFETY: these bytes are in the mapping. The kernel does not write to the bytes between tail and
            // head until this process moves tail.
            let bytes =
                unsafe { std::slice::from_raw_parts(self.map.add(start + at).as_ptr(), length) };
            write(bytes)?;
            tail = tail.wrapping_add(length as u64);
            // ORDERING: pairs with the kernel's load of data_tail: the kernel overwrites these records only
            // after they were read.
            self.word(DATA_TAIL).store(tail, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.bytes) };
    }
}
