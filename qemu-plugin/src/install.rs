//! The functions that QEMU calls: installation, translation, the callbacks.
//!
//! Unsafe, because it is called from C, with what C has.
#![allow(unsafe_code)]

use crate::api::{self, Block, Id, Info, Instruction, Tb};
use crate::attached::Attached;
use crate::counts::{Counter, count, summary};
use crate::relay::{self, Entry};
use crate::{device, marker};
use hypertrace_abi::layout::local::ENVIRONMENT;
use hypertrace_abi::layout::{PAGE, mark};
use hypertrace_segment::SegmentError;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Why the plugin is not installed.
#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error(
        "this QEMU speaks plugin API {0}; the plugin knows {first} to {last}",
        first = api::KNOWN.start(),
        last = api::KNOWN.end()
    )]
    Version(c_int),
    #[error(
        "this is qemu-system-{0}: the plugin is for programs under qemu-{0}; a whole machine has \
         the device"
    )]
    System(String),
    #[error("guests of the kind {0:?} are not known: x86_64 and aarch64 are")]
    Target(String),
    #[error("unknown option {0:?}; there is segment=PATH")]
    Option(String),
    #[error(
        "no segment: start the program by `hypertrace run --qemu`, or give segment=PATH, or set \
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

/// Architecture of the guest.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    X86_64,
    Aarch64,
}

struct Plugin {
    target: Target,
    segment: Attached,
}

/// Difference between QEMU's address and the guest's, from the last block that was
/// translated: for system calls, whose callback names no instruction.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// A panic: nothing is done any more.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs a callback's body. A panic must not unwind into QEMU, nor is a trace
/// worth a program's life: it continues untraced.
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

/// Installs the plugin: QEMU calls this first.
///
/// # Safety
/// For QEMU to call: `info` and `argv` are as its API says.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let installed = catch_unwind(|| {
        // SAFETY: the caller's promise.
        let (info, options) = unsafe {
            let count = usize::try_from(argc).unwrap_or(0);
            let options = (0..count).map(|i| CStr::from_ptr(*argv.add(i)).to_bytes());
            (&*info, options.collect::<Vec<_>>())
        };
        // SAFETY: the caller's promise.
        let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
        install(id, info, &target, &options)
    });
    match installed {
        Ok(Ok(())) => 0,
        Ok(Err(why)) => {
            let mut text = format!("hypertrace plugin: {why}");
            let mut source = why.source();
            while let Some(why) = source {
                text += &format!(": {why}");
                source = why.source();
            }
            eprintln!("{text}");
            1
        }
        // The panic has been reported already.
        Err(_) => 1,
    }
}

fn install(id: Id, info: &Info, target: &str, options: &[&[u8]]) -> Result<(), InstallError> {
    if !api::KNOWN.contains(&info.version) {
        return Err(InstallError::Version(info.version));
    }
    if info.system_emulation {
        return Err(InstallError::System(target.to_owned()));
    }
    let target = match target {
        "x86_64" => Target::X86_64,
        "aarch64" => Target::Aarch64,
        other => return Err(InstallError::Target(other.to_owned())),
    };
    let mut path = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()).map(PathBuf::from);
    for option in options {
        match option.strip_prefix(b"segment=") {
            Some(value) if !value.is_empty() => path = Some(OsStr::from_bytes(value).into()),
            _ => return Err(InstallError::Option(String::from_utf8_lossy(option).into_owned())),
        }
    }
    let segment = Attached::open(&path.ok_or(InstallError::NoSegment)?)?;
    PLUGIN.set(Plugin { target, segment }).map_err(|_| InstallError::Twice)?;
    api::speak(info.version);
    // SAFETY: all of these live as long as the process: QEMU does not unload a
    // plugin that does not ask for it.
    unsafe {
        if libc::pthread_atfork(None, None, Some(in_child)) != 0 {
            return Err(InstallError::Fork);
        }
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        api::qemu_plugin_register_vcpu_exit_cb(id, vcpu_ended);
        api::qemu_plugin_register_vcpu_syscall_cb(id, called);
        api::qemu_plugin_register_atexit_cb(id, ended, std::ptr::null_mut());
    }
    Ok(())
}

extern "C" fn in_child() {
    guarded(|plugin| relay::forget_all(&plugin.segment));
}

/// Instruments a block that is being translated.
extern "C" fn translated(_: Id, tb: *mut Tb) {
    guarded(|plugin| {
        // SAFETY: QEMU's, for this callback.
        let block = unsafe { Block::new(tb) };
        if let Some(base) = block.instructions().next().and_then(|first| first.guest_base()) {
            GUEST_BASE.store(base, Relaxed);
        }
        match plugin.target {
            Target::X86_64 => find_x86_64(&block),
            Target::Aarch64 => find_aarch64(&block),
        }
    });
}

fn find_x86_64(block: &Block) {
    for instruction in block.instructions() {
        // Most are not of this length, which is cheap to ask.
        if matches!(instruction.len(), 7 | 8) && instruction.with_bytes(marker::is_x86_64_store) {
            instrument(&instruction);
        }
    }
}

fn find_aarch64(block: &Block) {
    let mut marked = false;
    for (index, instruction) in block.instructions().enumerate() {
        let is_store = instruction.with_bytes(marker::is_aarch64_store);
        // A block may begin between the two.
        if is_store && (marked || index == 0 && is_mark_before(&instruction)) {
            instrument(&instruction);
        }
        marked = instruction.with_bytes(marker::is_aarch64_mark);
    }
}

/// Returns true if the instruction before a block's first one is the marker.
fn is_mark_before(first: &Instruction<'_>) -> bool {
    const BEFORE: u64 = marker::WORD as u64;
    let Some(at) = first.host_address() else { return false };
    let mut code = [0u8; marker::WORD];
    if first.address() % PAGE >= BEFORE {
        // SAFETY: of a page that is being translated, so it is there.
        code = unsafe { (at.wrapping_sub(BEFORE) as *const [u8; marker::WORD]).read() };
        return marker::is_aarch64_mark(&code);
    }
    // The page before may not be there: let the kernel look. Where it must not,
    // the store is not found, and the guest asks the host itself.
    let local = libc::iovec { iov_base: code.as_mut_ptr().cast(), iov_len: code.len() };
    let remote = libc::iovec { iov_base: at.wrapping_sub(BEFORE) as *mut _, iov_len: code.len() };
    // SAFETY: writes into `code` only; a bad address is an error.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    read == marker::WORD as isize && marker::is_aarch64_mark(&code)
}

#[cold]
fn instrument(instruction: &Instruction<'_>) {
    let Some(guest_base) = instruction.guest_base() else { return };
    count(Counter::Found);
    instruction.on_store(stored, guest_base);
}

/// Handles a marked store, after it was done.
extern "C" fn stored(vcpu: c_uint, _: u32, address: u64, guest_base: *mut c_void) {
    let address = address.wrapping_add(guest_base as u64);
    guarded(|plugin| at_register(plugin, vcpu, address, None));
}

#[inline(always)]
fn at_register(plugin: &'static Plugin, index: c_uint, address: u64, value: Option<u64>) {
    let Some(entry) = Entry::get(&plugin.segment, index) else {
        return count(Counter::NoRelay);
    };
    // SAFETY: in a callback of this vCPU, on its thread, which has no other reference.
    let vcpu = unsafe { entry.vcpu() };
    device::store(&plugin.segment, vcpu, entry, address, value);
}

/// Handles a system call. Ours has a number that no kernel uses.
extern "C" fn called(
    _: Id,
    vcpu: c_uint,
    number: i64,
    address: u64,
    value: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if number == mark::SYSCALL {
        let address = address.wrapping_add(GUEST_BASE.load(Relaxed));
        guarded(|plugin| at_register(plugin, vcpu, address, Some(value)));
    }
}

extern "C" fn vcpu_ended(_: Id, index: c_uint) {
    guarded(|_| {
        if let Some(entry) = Entry::find(index) {
            // SAFETY: as in `at_register`.
            unsafe { entry.vcpu() }.release();
        }
    });
}

/// Handles the end of the process. QEMU lets the other vCPUs run again before it calls
/// this, so their state must not be touched.
extern "C" fn ended(_: Id, _: *mut c_void) {
    guarded(|_| api::log(&(summary(relay::recorded()) + "\n")));
}
