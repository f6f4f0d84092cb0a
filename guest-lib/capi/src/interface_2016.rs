//! The interface of 2016: the functions of its library for guests.
//!
//! This module keeps the arguments of each client number that the program uses in the process's
//! memory, and copies the arguments to the device at each event. Each thread records these events
//! through its own client. In the session, such an event nevertheless has the client number that
//! the program gave.
//!
//! The code is unsafe because a path and arguments are addresses that a C program passes.
#![allow(unsafe_code)]

use crate::process::{system_error, with_causes};
use hypertrace::abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace::{Options, this_thread};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The open channel.
struct Channel {
    clients: u64,
    args: u64,
    /// Arguments of all clients. Each client has as many words as an event has arguments.
    data: Box<[AtomicU64]>,
}

static CHANNEL: OnceLock<Channel> = OnceLock::new();

/// Opens the device or segment for this process. Later calls, also of other threads, do nothing.
///
/// `base` is the folder of the PCI function in sysfs, as in "/sys/devices/pci0000:00/0000:00:04.0", or the
/// file of a segment. If `base` is NULL, the library searches for a device or a segment.
///
/// Returns 0. If there is no device and no segment, or the system refuses to open one, the
/// function sets errno, writes the reason to stderr and returns -1.
///
/// # Safety
/// `base` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_hypertrace_init(base: *const c_char) -> c_int {
    let mut options = Options::default();
    if !base.is_null() {
        // SAFETY: the caller's promise.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(base) }.to_bytes()));
        match path.file_name().filter(|_| path.is_dir()) {
            Some(function) => options.function = Some(function.to_string_lossy().into_owned()),
            None => options.segment = Some(path.to_owned()),
        }
    }
    match hypertrace::open(&options) {
        Ok(info) => {
            CHANNEL.get_or_init(|| {
                let (clients, args) = (info.clients.end, info.legacy_args);
                let words = clients as usize * args as usize;
                Channel {
                    clients: clients.into(),
                    args: args.into(),
                    data: (0..words).map(|_| AtomicU64::new(0)).collect(),
                }
            });
            0
        }
        Err(why) => {
            hypertrace::say(&format!("hypertrace: {}\n", with_causes(&why)));
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = system_error(&why).unwrap_or(libc::ENOENT) };
            -1
        }
    }
}

/// Publishes this thread's counts of lost events. The channel stays open, as other threads may still
/// record events. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_hypertrace_fini() -> c_int {
    hypertrace::poll();
    0
}

/// Returns the number of clients, 0 without a channel. The clients' numbers begin at 0.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_hypertrace_max_clients() -> u64 {
    CHANNEL.get().map_or(0, |channel| channel.clients)
}

/// Returns the number of arguments of an event, including the first argument, or 0 without a channel.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_hypertrace_num_args() -> u64 {
    CHANNEL.get().map_or(0, |channel| channel.args)
}

/// Returns the place for all arguments of a client except the first, or NULL if there is no such client. The
/// arguments keep their values after an event.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_hypertrace_data(client: u64) -> *mut u64 {
    let data = CHANNEL.get().and_then(|channel| channel.data_of(client));
    data.map_or(null_mut(), |data| data.as_ptr().cast::<u64>().cast_mut())
}

/// Records an event with `arg1` as its first argument, and the other arguments from the client's
/// `qemu_hypertrace_data`. In a virtual machine, the event costs one exit. Over a segment, the
/// event is a commit.
///
/// Threads that call this function at the same time need different clients.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_hypertrace(client: u64, arg1: u64) {
    let Some(data) = CHANNEL.get().and_then(|channel| channel.data_of(client)) else {
        return;
    };
    let mut args = [0; MAX_ARGS];
    let args = &mut args[..(data.len() - 1).min(MAX_ARGS)];
    for (arg, word) in args.iter_mut().zip(data) {
        *arg = word.load(Relaxed);
    }
    this_thread::hypertrace_as(client as u32, arg1, args);
}

/// Maximum number of arguments besides the first.
const MAX_ARGS: usize = 15;

impl Channel {
    fn data_of(&self, client: u64) -> Option<&[AtomicU64]> {
        let args = self.args as usize;
        (client < self.clients).then(|| &self.data[client as usize * args..][..args])
    }
}
