//! Functions for the process or the calling thread, without a call site.
//!
//! The code is unsafe because strings, arrays and results are addresses that a
//! C program passes.
#![allow(unsafe_code)]

use crate::site;
use hypertrace::Client;
use hypertrace::abi::event::cut;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::slice;

/// Options of `hypertrace_open`: the place of the device. With all zeros, or
/// with no options, the library finds the device by itself.
#[repr(C)]
pub struct Options {
    /// `sizeof(struct hypertrace_options)`. Later versions may have more fields.
    size: usize,
    /// The file of a segment. If NULL, the library uses the file that the environment variable
    /// HYPERTRACE_SEGMENT names, if this variable is set.
    segment: *const c_char,
    /// The PCI function, as in "0000:00:04.0". If NULL, the library uses the first function that
    /// is a hypertrace device.
    function: *const c_char,
    /// The physical address of the MMIO window. If 0, the library uses the address on the kernel
    /// command line, if there is one.
    window: u64,
}

/// Opens the device, or the segment of `hypertrace record`, for this process. If the process
/// does not call this function, the library opens the channel at the first event of the process,
/// and reports no error.
///
/// `options` may be NULL. If there is no device and no segment, or the system refuses to open
/// one, the function returns false. In this case, if `error` is not NULL, the function stores a
/// text to `error` that says what failed, where, and what to do. The text is cut to `size` bytes,
/// including the zero at its end.
///
/// A channel that is already open stays open.
///
/// # Safety
/// Each pointer is NULL or valid for the use described above.
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
        let text = cut(text, size - 1);
        // SAFETY: the caller promises that `size` bytes can be stored to.
        unsafe {
            error.cast::<u8>().copy_from(text.as_ptr(), text.len());
            error.add(text.len()).write(0);
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
        // SAFETY: the caller promises that both values are strings or NULL.
        unsafe {
            wanted.segment = string(options.segment).map(Into::into);
            wanted.function =
                string(options.function).map(|name| name.to_string_lossy().into_owned());
        }
        wanted.window = (options.window != 0).then_some(options.window);
    }
    hypertrace::open(&wanted).map(drop).map_err(|why| with_causes(&why))
}

/// Returns an error's text, followed by the texts of the error's causes.
pub(crate) fn with_causes(why: &dyn Error) -> String {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(why) = source {
        // Cannot fail.
        let _ = write!(text, ": {why}");
        source = why.source();
    }
    text
}

/// Returns the system's error number, if the error or one of its causes is a system error.
pub(crate) fn system_error(why: &(dyn Error + 'static)) -> Option<i32> {
    let own = why.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    own.or_else(|| why.source().and_then(system_error))
}

/// # Safety
/// `at` is a C string that lives as long as the result, or NULL.
unsafe fn string<'a>(at: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()))
}

/// Returns the library's version, as in "0.1.0". A program that loads the library at run time compares the
/// versions: until 1.0, libraries of two minor versions may have different functions and structures.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Stores the span during which the host records this process, in the form of W3C's Trace
/// Context: the value of a `traceparent` header, which has 55 characters, and a zero. The
/// program's own tracing can continue the trace of this span. If no event has looked for the
/// device, this function looks for the device.
///
/// Returns false, and stores nothing, if there is no device, if its host has no such span, or if `size`
/// is less than 56.
///
/// # Safety
/// `text` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_trace_parent(text: *mut c_char, size: usize) -> bool {
    let Some(parent) = hypertrace::trace_parent() else { return false };
    let bytes = format!("{parent}\0");
    if size < bytes.len() {
        return false;
    }
    // SAFETY: the caller promises that `size` bytes can be stored to.
    unsafe { text.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    true
}

/// Immediately applies the host's enable mask, and reports to the host how many events this
/// thread has dropped. A thread of the library applies the mask and reports dropped events every
/// 10 ms.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_poll() {
    hypertrace::poll();
}

/// Waits until the ring has room for the next `events` events of this thread. The fields of each
/// event may take at most `words` words. If there is no room, the function wakes the host and
/// waits at most a second. The function is for programs that prefer a wait to a lost event.
/// Returns false if there is still no room, if there can never be enough room, or if no host
/// drains this thread's ring.
///
/// A field takes one word; a string takes its bytes and 4 more, rounded up to words.
#[unsafe(no_mangle)]
pub extern "C" fn hypertrace_wait_for_room(events: usize, words: usize) -> bool {
    let wait = |client: &Client<'_>| client.wait_for_room(events as u64, words as u64);
    hypertrace::with_client(wait).unwrap_or(false)
}

/// Records an event of the interface of 2016, which has only numbers: `arg1` and the words at
/// `args`. The device has a maximum number of arguments. All further arguments are left out. The
/// event costs one exit. If the channel is a segment, the event is a commit.
///
/// # Safety
/// `args` points to `count` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hypertrace_legacy(arg1: u64, args: *const u64, count: usize) {
    let args = match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { slice::from_raw_parts(args, count) },
    };
    hypertrace::with_client(|client| hypertrace::hypertrace(client, arg1, args));
}

/// Counts of this process's clients and events. The host does not show these counts.
/// The counts are running totals; a forked child begins at zero.
#[repr(C)]
pub struct Counts {
    /// Events of threads that had no client. There are three reasons: no client was free, the
    /// thread was ending, or another thread took more than a second to open the device.
    unattached: u64,
    /// Clients that a thread abandoned because a signal handler had jumped out
    /// of an event.
    abandoned: u64,
    /// Clients that a thread gave up because another holder had taken them.
    taken: u64,
    /// Reference points without an answer of a segment's host: either the host did not answer
    /// within a second, or the host was already dead and no thread waited.
    unanswered: u64,
    /// Events whose names and types make no valid schema. A fork does not reset this count.
    refused: u64,
    /// Events that no host took, because the host had ended.
    host_ended: u64,
}

/// Stores the first `size` bytes of the counts. Pass
/// `sizeof(struct hypertrace_counts)` as `size`. Counts that this version of the library does
/// not have are zero.
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
        host_ended: now.host_ended,
    };
    let known = size.min(size_of::<Counts>());
    // SAFETY: the caller's promise.
    unsafe {
        let to = counts.cast::<u8>();
        to.copy_from((&raw const now).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
}
