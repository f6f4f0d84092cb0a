//! The floor of the benchmark: a plugin that QEMU calls back after marked stores, as QEMU calls hypertrace's
//! plugin back. For each marked store, the plugin reads the counter and stores 32 bytes. A plugin that does
//! less than this does not record the stores.
//!
//! The plugin is for x86-64 guests with one thread, and for API 1 to 6. The code is unsafe because QEMU calls
//! the plugin from C.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_qemu::api::library::TO_6;
use hypertrace_qemu::api::{Access, Accesses, Block, Events, Qemu, Reads};
use hypertrace_qemu::device::marker;
use std::error::Error;
use std::ffi::{c_uint, c_void};

/// Number of words of the ring. hypertrace's plugin, with which the benchmark compares this plugin, has a
/// ring of the same size.
const WORDS: usize = (1 << 20) / 8;
static RING: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static HEAD: AtomicU64 = AtomicU64::new(0);

hypertrace_qemu::library!(TO_6, install);

fn install(qemu: &Qemu, _: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    qemu.on_translation::<Floor>();
    Ok(())
}

struct Floor;

impl Events for Floor {
    fn translated(block: &Block) {
        for instruction in block.instructions() {
            if instruction.with_bytes(marker::is_x86_64_store) {
                instruction.on_access(Accesses::Stores, Reads::Nothing, stored, 0);
            }
        }
    }
}

extern "C" fn stored(vcpu: c_uint, _: Access, address: u64, _: *mut c_void) {
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
