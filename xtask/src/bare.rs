//! Generation of the C header for firmware and kernels: its code, and constants of the crate `abi`.

use std::fs;
use std::mem::offset_of;
use std::path::Path;

use anyhow::{Context, Result};
use hypertrace_abi::clock::{Counter, CounterKind};
use hypertrace_abi::config::ConfigPage;
use hypertrace_abi::layout::{LEGACY_SLOT_STRIDE_PER_ARG, host_page, mark};
use hypertrace_abi::schema::FNV_PRIME;

use crate::constants::{COMMON, define};

/// Path of the header.
pub const PATH: &str = "guest-lib/include/hypertrace-bare.h";
/// Begin of the constants' names.
const PREFIX: &str = "HYPERTRACE_ABI_";
const WORD: usize = size_of::<u64>();

/// Generates the header's text.
///
/// # Errors
/// If its code cannot be read.
pub fn text(root: &Path) -> Result<String> {
    let code = root.join("guest-lib/capi/bare.h");
    let code =
        fs::read_to_string(&code).with_context(|| format!("cannot read {}", code.display()))?;
    let region = |n: usize| offset_of!(ConfigPage, regions) + n * 2 * WORD;
    let config = [
        ("CLIENTS", offset_of!(ConfigPage, max_clients)),
        ("ARGS", offset_of!(ConfigPage, client_args)),
        ("MAGIC", offset_of!(ConfigPage, magic)),
        // With the ring's mode in its upper half.
        ("VERSION", offset_of!(ConfigPage, version)),
        ("FEATURES", offset_of!(ConfigPage, features)),
        ("FREQUENCY", offset_of!(ConfigPage, guest_frequency)),
        ("DATA", region(1)),
        ("CONTROL", region(2)),
        ("RINGS", region(3)),
        ("REGISTERS", offset_of!(ConfigPage, control_pages_offset)),
        ("REGISTERS_STRIDE", offset_of!(ConfigPage, control_page_stride)),
        ("FIRST_CLIENT", offset_of!(ConfigPage, client_offset)),
        ("CLIENT_STRIDE", offset_of!(ConfigPage, client_stride)),
        ("SCHEMA_SIZE", offset_of!(ConfigPage, schema_size)),
        ("RING_SIZE", offset_of!(ConfigPage, ring_size)),
        ("BLOCK_SIZE", offset_of!(ConfigPage, block_size)),
        ("RESERVE", offset_of!(ConfigPage, ring_reserve)),
        ("SHARED", offset_of!(ConfigPage, shared_registers)),
    ];
    let others = [
        ("LEGACY_WORDS", LEGACY_SLOT_STRIDE_PER_ARG / WORD as u64),
        ("MARK_IMMEDIATE", mark::IMMEDIATE.into()),
        ("H_REPLY_HOST_TIME", host_page::REPLY_HOST_TIME as u64),
        ("FNV_PRIME", FNV_PRIME.into()),
        ("COUNTER_CNTVCT", (CounterKind::Cntvct as u64) << Counter::KIND_SHIFT),
    ];
    let mut constants = String::new();
    for (name, offset) in config {
        let name = format!("CONFIG_{name}");
        define(&mut constants, PREFIX, "U", &[(&name, (offset / WORD) as u64)]);
    }
    define(&mut constants, PREFIX, "U", &COMMON);
    define(&mut constants, PREFIX, "U", &others);
    Ok(code.replace("@constants@", constants.trim_end()))
}
