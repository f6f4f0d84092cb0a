//! What is about the process or the calling thread, and no call site.
//!
//! Unsafe, because strings, arrays and results are addresses that a C program
//! tells us.
#![allow(unsafe_code)]

use crate::event::Outcome;
use crate::site;
use hypertrace::abi::ring::BLOCK_HEADER_WORDS;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::slice;

/// Where to look for the device. All zeros, or no options at all, finds the one
/// that there is.
#[repr(C)]
pub struct Options {
    /// `sizeof(struct hypertrace_options)`: later versions may have more.
    size: usize,
    /// The file of a segment; NULL: what HYPERTRACE_SEGMENT in the environment
    /// names, if it does.
    segment: *const c_char,
    /// The PCI function, as in "0000:00:04.0"; NULL: the first that is a
    /// hypertrace device.
    function: *const c_char,
    /// The physical address of the MMIO window; 0: what the kernel command line
    /// says, if it does.
    window: u64,
    /// Tell an emulator's plugin of points by a system call that no kernel has,
    /// not by the form of a store; false: as HYPERTRACE_STORE in the environment
    /// says, if it does.
    by_syscall: bool,
}

/// Opens the device, or the segment of `hypertrace run`, for this process. An
/// event does the same at first, but tells nobody what is wrong.
///
/// `options` may be NULL. If there is nothing to open, or the system does not
/// allow it, the result is false and `error`, unless NULL, has the reason: what,
/// where, and what to do, cut off after `size` bytes, with a zero at its end.
///
/// If a channel is open already, it stays.
///
/// # Safety
/// Pointers are NULL or good for what is said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_open(
    options: *const Options,
    error: *mut c_char,
    size: usize,
) -> bool {
    // SAFETY: the caller's promise.
    let opened = unsafe { open(options) };
    if !error.is_null() && size > 0 {
        let text = opened.as_ref().err().map_or("", String::as_str);
        let mut end = text.len().min(size - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // SAFETY: `size` bytes can be stored to, says the caller.
        unsafe {
            error.cast::<u8>().copy_from(text.as_ptr(), end);
            error.add(end).write(0);
        }
    }
    opened.is_ok()
}

/// # Safety
/// As for `hypertrace_open`.
unsafe fn open(options: *const Options) -> Result<(), String> {
    let mut wanted = hypertrace::Options::default();
    // SAFETY: the caller's promise.
    if let Some(options) = unsafe { options.as_ref() } {
        let known = size_of::<Options>();
        if options.size != known {
            let size = options.size;
            return Err(format!(
                "the options have size {size}: set it to sizeof(struct hypertrace_options), \
                 which is {known} in this version of the library"
            ));
        }
        // SAFETY: strings or NULL, says the caller.
        unsafe {
            wanted.segment = string(options.segment).map(Into::into);
            wanted.function =
                string(options.function).map(|name| name.to_string_lossy().into_owned());
        }
        wanted.window = (options.window != 0).then_some(options.window);
        wanted.store = options.by_syscall.then_some(hypertrace::Store::Syscall);
    }
    hypertrace::open(&wanted).map(drop).map_err(|why| {
        let mut text = why.to_string();
        let mut source = why.source();
        while let Some(why) = source {
            // Cannot fail.
            let _ = write!(text, ": {why}");
            source = why.source();
        }
        text
    })
}

/// # Safety
/// A C string that stays, or NULL.
unsafe fn string<'a>(at: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()))
}

/// A kernel-stamped point: a record of this thread whose timestamp the host's
/// kernel traces together with its own time, at a fraction of the cost of a
/// reference point. Where the host cannot, it is a record only.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_stamp() -> Outcome {
    hypertrace::stamp().into()
}

/// Takes over what the host switched on or off, and tells it what this thread
/// has dropped, at once. A thread of the library does that every 10 ms anyway.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_poll() {
    hypertrace::poll();
}

/// Makes sure that the next event of this thread, if its fields take no more
/// than this many words, finds room: looks, wakes the host and waits, a second
/// at most. For programs that would rather wait than lose an event. False if
/// there is no room still, never can be, or nobody listens to this thread.
///
/// A field takes a word, but a string its bytes and 4 more, rounded up to words.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_wait_for_room(words: usize) -> bool {
    // The record may not fit into what is left of a block, which is less than
    // the record then; and a new block has a header, the first a lease too.
    let record = HEADER_WORDS + words as u64;
    let most = 2 * record + BLOCK_HEADER_WORDS + LEASE_WORDS;
    hypertrace::with_client(|client| client.wait_for_room(most)).unwrap_or(false)
}

/// Of a record.
const HEADER_WORDS: u64 = hypertrace::abi::record::HEADER_WORDS as u64;
/// More than a lease record has.
const LEASE_WORDS: u64 = 32;

/// The numbers-only interface of 2016: `arg1` and up to as many further
/// arguments as the device was built for. One exit; over a segment, a commit.
///
/// # Safety
/// `args` has `count` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_legacy(arg1: u64, args: *const u64, count: usize) {
    let args = match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { slice::from_raw_parts(args, count) },
    };
    hypertrace::with_client(|client| hypertrace::hypertrace(client, arg1, args));
}

/// What became of this process's clients and events, apart from what the host
/// shows. Running totals; a forked child begins at zero.
#[repr(C)]
pub struct Counts {
    /// Events of threads that had no client: none was free, the thread was
    /// ending, or the device was just being opened.
    unattached: u64,
    /// Clients that a thread left behind because a signal handler had jumped
    /// out of an event.
    abandoned: u64,
    /// Clients that were left because another had taken them.
    taken: u64,
    /// Reference points that a segment's host did not answer within a second,
    /// or that nobody waited for because it was dead already.
    unanswered: u64,
    /// Events whose names and types make no schema. Not set back by a fork.
    refused: u64,
}

/// Stores the counts, the first `size` bytes of them: pass
/// `sizeof(struct hypertrace_counts)`. What this version of the library does
/// not have is zero.
///
/// # Safety
/// `counts` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_counts(counts: *mut Counts, size: usize) {
    let now = hypertrace::counts();
    let now = Counts {
        unattached: now.unattached,
        abandoned: now.abandoned,
        taken: now.taken,
        unanswered: now.unanswered,
        refused: site::refused_events(),
    };
    let known = size.min(size_of::<Counts>());
    // SAFETY: the caller's promise.
    unsafe {
        let to = counts.cast::<u8>();
        to.copy_from((&raw const now).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
}
