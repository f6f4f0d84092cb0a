//! The device of emulated programs: the callbacks that QEMU calls, and the places of marked stores.
//!
//! ```text
//! translate    marker    the marked stores of a block
//! callback     store     EMIT, LEASE, KICK: what a chip does with them
//!                place   where in the segment an address is
//!                relay   the vCPU's own ring in the segment
//!              attached  the segment, mapped
//!              counts    counters of the plugin
//! ```
//!
//! The code is unsafe because QEMU calls the callbacks from C, with pointers.
#![allow(unsafe_code)]

mod attached;
mod counts;
pub mod marker;
mod place;
mod relay;
mod store;

use crate::api::{self, Access, Accesses, Block, Events, Instruction, Qemu, Reads};
use crate::target::Target;
use attached::Attached;
use counts::{Counter, count, summary};
use hypertrace_abi::layout::PAGE;
use hypertrace_abi::layout::local::ENVIRONMENT;
use hypertrace_segment::SegmentError;
use relay::Entry;
use std::ffi::{OsStr, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Reason why the device is not installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    // To find a register, the plugin uses QEMU's own mappings of a program's files. In a whole machine, the
    // guest's memory has no such mappings; there, a device model takes the place of the segment.
    #[error(
        "this is qemu-system-{0}: the plugin is for programs under qemu-{0}; a whole machine has \
         the device, and functions=DIR traces its functions"
    )]
    Machine(String),
    #[error("unknown option {0:?}; there are segment=PATH and functions=DIR")]
    Option(String),
    #[error(
        "no segment: start the program by `hypertrace record --qemu`, or give segment=PATH, or set \
         HYPERTRACE_SEGMENT"
    )]
    NoSegment,
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error("out of memory for a fork handler")]
    Fork,
    #[error("it is loaded twice")]
    Twice,
}

struct Plugin {
    target: Target,
    segment: Attached,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// Whether the plugin has panicked. After a panic the plugin does nothing any more.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs a callback's body. A panic must not unwind into QEMU, and must not end the program either, because a
/// trace is worth less than the program's work. After a panic, the program continues without a trace.
#[inline(always)]
fn guarded(body: impl FnOnce(&'static Plugin)) {
    if BROKEN.load(Relaxed) {
        return;
    }
    let Some(plugin) = PLUGIN.get() else { return };
    if catch_unwind(AssertUnwindSafe(|| body(plugin))).is_err() {
        BROKEN.store(true, Relaxed);
        count(Counter::Panics);
    }
}

/// Returns whether the environment names a segment.
pub(crate) fn is_in_environment() -> bool {
    std::env::var_os(ENVIRONMENT).is_some_and(|path| !path.is_empty())
}

/// Prepares the device in QEMU's user mode, with the options of the command line. The callbacks of the device
/// are those of [`Device`].
pub(crate) fn install(qemu: &Qemu, target: Target, options: &[&[u8]]) -> Result<(), DeviceError> {
    if qemu.is_machine {
        return Err(DeviceError::Machine(qemu.target.clone()));
    }
    let mut path = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()).map(PathBuf::from);
    for option in options {
        match option.strip_prefix(b"segment=") {
            Some(value) if !value.is_empty() => path = Some(OsStr::from_bytes(value).into()),
            _ => return Err(DeviceError::Option(String::from_utf8_lossy(option).into_owned())),
        }
    }
    let segment = Attached::open(&path.ok_or(DeviceError::NoSegment)?)?;
    PLUGIN.set(Plugin { target, segment }).map_err(|_| DeviceError::Twice)?;
    // SAFETY: the function lives as long as the process: QEMU does not unload an installed plugin that does
    // not ask to be unloaded.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
        return Err(DeviceError::Fork);
    }
    Ok(())
}

extern "C" fn in_child() {
    guarded(|plugin| relay::forget_all(&plugin.segment));
}

/// The callbacks of the device.
pub(crate) struct Device;

impl Events for Device {
    /// Instruments a block.
    fn translated(block: &Block) {
        guarded(|plugin| {
            marked_stores(plugin.target, block, instrument);
        });
    }

    fn vcpu_ended(index: c_uint) {
        guarded(|_| {
            if let Some(entry) = Entry::find(index) {
                // SAFETY: as in `at_register`.
                unsafe { entry.vcpu() }.release();
            }
        });
    }

    /// Handles the end of the process. This function must not touch the state of other vCPUs, because QEMU
    /// lets the other vCPUs run again before QEMU calls this function.
    fn ended() {
        guarded(|_| api::log(&(summary(relay::recorded()) + "\n")));
    }
}

/// Calls `found` with each instruction of a block that stores to a register of hypertrace's device.
pub fn marked_stores(target: Target, block: &Block, found: impl FnMut(&Instruction<'_>)) {
    match target {
        Target::X86_64 => find_x86_64(block, found),
        Target::Aarch64 => find_aarch64(block, found),
    }
}

fn find_x86_64(block: &Block, mut found: impl FnMut(&Instruction<'_>)) {
    for instruction in block.instructions() {
        // The code checks the length first, because the length is cheap to get, and most instructions have
        // another length.
        if matches!(instruction.size(), 7 | 8) && instruction.with_bytes(marker::is_x86_64_store) {
            found(&instruction);
        }
    }
}

fn find_aarch64(block: &Block, mut found: impl FnMut(&Instruction<'_>)) {
    let mut marked = false;
    for (index, instruction) in block.instructions().enumerate() {
        let is_store = instruction.with_bytes(marker::is_aarch64_store);
        // A block may begin between the marker and the store.
        if is_store && (marked || index == 0 && is_mark_before(&instruction)) {
            found(&instruction);
        }
        marked = instruction.with_bytes(marker::is_aarch64_mark);
    }
}

/// Returns true if the instruction before a block's first instruction is the marker.
fn is_mark_before(first: &Instruction<'_>) -> bool {
    const BEFORE: u64 = marker::WORD as u64;
    let Some(at) = first.host_address() else { return false };
    let mut code = [0u8; marker::WORD];
    if first.address() % PAGE >= BEFORE {
        // SAFETY: the bytes are in a page that QEMU is translating, so the page is mapped.
        code = unsafe { (at.wrapping_sub(BEFORE) as *const [u8; marker::WORD]).read() };
        return marker::is_aarch64_mark(&code);
    }
    // The previous page may not be mapped, so the code asks the kernel to read the page. If the kernel cannot
    // or must not read the page, then the plugin does not find the store, and the guest itself asks the host.
    let local = libc::iovec { iov_base: code.as_mut_ptr().cast(), iov_len: code.len() };
    let remote = libc::iovec { iov_base: at.wrapping_sub(BEFORE) as *mut _, iov_len: code.len() };
    // SAFETY: the call writes into `code` only; a bad address is an error.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    read == marker::WORD as isize && marker::is_aarch64_mark(&code)
}

#[cold]
fn instrument(instruction: &Instruction<'_>) {
    let Some(guest_base) = instruction.guest_base() else { return };
    count(Counter::Found);
    instruction.on_access(Accesses::Stores, Reads::Nothing, stored, guest_base);
}

/// Handles a marked store after its execution.
extern "C" fn stored(vcpu: c_uint, _: Access, address: u64, guest_base: *mut c_void) {
    let address = address.wrapping_add(guest_base as u64);
    guarded(|plugin| at_register(plugin, vcpu, address));
}

#[inline(always)]
fn at_register(plugin: &'static Plugin, index: c_uint, address: u64) {
    let Some(entry) = Entry::get(&plugin.segment, index) else {
        return count(Counter::NoRelay);
    };
    // SAFETY: this code runs in a callback of this vCPU, on the vCPU's thread. The thread has no other
    // reference to the vCPU's state.
    let vcpu = unsafe { entry.vcpu() };
    store::store(&plugin.segment, vcpu, entry, address);
}
