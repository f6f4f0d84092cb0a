//! Generation of the C header for firmware and kernels: its code, and constants of the crate `abi`.

use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::path::Path;

use anyhow::{Context, Result};
use hypertrace_abi::config::{ConfigPage, Features, MAGIC, RingMode, VERSION};
use hypertrace_abi::layout::{
    LEGACY_SLOT_STRIDE_PER_ARG, PAGE, SLOT_HEADER_WORDS, guest_page, host_page, mark, register,
};
use hypertrace_abi::record::{ClockKind, Flags, id};
use hypertrace_abi::schema::{FNV_PRIME, FNV_START, MAX_FIELDS};
use hypertrace_abi::sink::Status;
use hypertrace_abi::turns::PAUSE;

/// Path of the header.
pub const PATH: &str = "guest-lib/include/hypertrace-bare.h";
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
        ("MAGIC", MAGIC),
        ("VERSION", VERSION.into()),
        ("OVERWRITE", RingMode::Overwrite as u64),
        ("FEATURE_KICK", Features::KICK.bits()),
        ("FEATURE_TRAPS", Features::TRAPS.bits()),
        ("FEATURE_SHARED", Features::SHARED.bits()),
        ("PAGE", PAGE),
        ("LEGACY_WORDS", LEGACY_SLOT_STRIDE_PER_ARG / WORD as u64),
        ("EMIT", register::EMIT),
        ("KICK", register::KICK),
        ("LEASE", register::LEASE),
        ("MARK_DISPLACEMENT", mark::DISPLACEMENT as u64),
        ("MARK_IMMEDIATE", mark::IMMEDIATE.into()),
        ("G_HEAD", guest_page::HEAD as u64),
        ("G_LOST_FULL", guest_page::LOST_FULL as u64),
        ("G_LOST_BUSY", guest_page::LOST_BUSY as u64),
        ("G_SCHEMA_LEN", guest_page::SCHEMA_LEN as u64),
        ("G_SLOT", guest_page::SLOT as u64),
        ("SLOT_HEADER_WORDS", SLOT_HEADER_WORDS as u64),
        ("H_TAIL", host_page::TAIL as u64),
        ("H_SCHEMA_SEEN", host_page::SCHEMA_SEEN as u64),
        ("H_REPLY", host_page::REPLY as u64),
        ("H_REPLY_HOST_TIME", host_page::REPLY_HOST_TIME as u64),
        ("RECORDED", Status::Recorded as u64),
        ("ID_PAD", id::PAD.into()),
        ("ID_LEASE", id::LEASE.into()),
        ("ID_FIRST", id::FIRST.into()),
        ("FLAG_REFERENCE_POINT", Flags::REFERENCE_POINT.bits().into()),
        ("CLOCK_COUNTER", ClockKind::Tsc as u64),
        ("PAUSE_MS", PAUSE.as_millis() as u64),
        ("FNV_START", FNV_START.into()),
        ("FNV_PRIME", FNV_PRIME.into()),
        ("MAX_FIELDS", MAX_FIELDS as u64),
    ];
    let config = config.map(|(name, offset)| (format!("CONFIG_{name}"), (offset / WORD) as u64));
    let others = others.map(|(name, value)| (name.to_owned(), value));
    let mut constants = String::new();
    for (name, value) in config.into_iter().chain(others) {
        let suffix = if value > u32::MAX.into() { "ULL" } else { "U" };
        let _ = writeln!(constants, "#define HYPERTRACE_ABI_{name} {value:#x}{suffix}");
    }
    Ok(code.replace("@constants@", constants.trim_end()))
}
