//! The floor of the benchmark: a plugin that has QEMU call back after marked
//! stores, as ours does, and then does the least that one could call recording:
//! it reads the counter and stores 32 bytes.
//!
//! x86-64 guests of one thread. Unsafe, because it is called from C.
#![allow(unsafe_code)]

#[allow(dead_code)] // because the plugin uses more of it
#[path = "../../src/api.rs"]
mod api;
#[allow(dead_code)]
#[path = "../../src/marker.rs"]
mod marker;

use api::{Block, Id, Info, Tb};
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// As large as the ring of the plugin that is compared.
const WORDS: usize = (1 << 20) / 8;
static RING: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static HEAD: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// For QEMU to call.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    _: c_int,
    _: *const *const c_char,
) -> c_int {
    // SAFETY: as QEMU's API says.
    unsafe {
        api::speak((*info).version);
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    }
    0
}

extern "C" fn translated(_: Id, tb: *mut Tb) {
    // SAFETY: QEMU's, for this callback.
    for instruction in unsafe { Block::new(tb) }.instructions() {
        if instruction.with_bytes(marker::is_x86_64_store) {
            instruction.on_store(stored, 0);
        }
    }
}

extern "C" fn stored(vcpu: c_uint, _: u32, address: u64, _: *mut c_void) {
    let now = ticks();
    let head = HEAD.load(Relaxed);
    let at = head as usize % WORDS;
    if let Some(record) = RING.get(at..at + 4) {
        record[0].store(now, Relaxed);
        record[1].store(vcpu.into(), Relaxed);
        record[2].store(address, Relaxed);
        record[3].store(head, Relaxed);
    }
    HEAD.store(head + 4, Relaxed);
}
