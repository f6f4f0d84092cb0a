//! Constants of the crate `abi` in a C header that needs no library. Firmware and the guest's kernel module
//! use this header.

use std::fmt::Write as _;
use std::mem::offset_of;

use hypertrace_abi::clock::{Counter, CounterKind, Reason};
use hypertrace_abi::config::{ConfigPage, Features, MAGIC, RingMode, VERSION};
use hypertrace_abi::drain::PAUSE;
use hypertrace_abi::layout::local::{BELLS, BOOT, BOOT_SEEN, END, PAGE_L, STATE, State};
use hypertrace_abi::layout::{
    IVSHMEM_BAR, IVSHMEM_DEVICE, LEGACY_SLOT_STRIDE_PER_ARG, MASK_BYTES, MIN_BAR, PAGE, PCI_DEVICE,
    PCI_SUBSYSTEM, PCI_VENDOR, RESERVED_PART, Region, SLOT_HEADER_WORDS, SLOT_WORDS, guest_page,
    host_page, mark, module, register,
};
use hypertrace_abi::record::{ClockKind, Flags, MAX_WORDS, id};
use hypertrace_abi::schema::{FNV_PRIME, FNV_START, MAX_FIELDS, MAX_NAME, MAX_SCHEMAS, MAX_TEXT};
use hypertrace_abi::sink::Status;

const WORD: usize = size_of::<u64>();

/// Words of the config page. The upper half of the word VERSION is the ring's mode.
const CONFIG: &[(&str, usize)] = &[
    ("CLIENTS", offset_of!(ConfigPage, legacy.max_clients)),
    ("ARGS", offset_of!(ConfigPage, legacy.client_args)),
    ("MAGIC", offset_of!(ConfigPage, magic)),
    ("VERSION", offset_of!(ConfigPage, version)),
    ("FEATURES", offset_of!(ConfigPage, features)),
    ("SESSION", offset_of!(ConfigPage, session)),
    ("FREQUENCY", offset_of!(ConfigPage, guest_frequency)),
    ("VCPU_CLIENTS", offset_of!(ConfigPage, vcpu_clients)),
    ("SCHEMA_SIZE", offset_of!(ConfigPage, schema_size)),
    ("RING_SIZE", offset_of!(ConfigPage, ring_size)),
    ("BLOCK_SIZE", offset_of!(ConfigPage, block_size)),
    ("TRACE_PARENT", offset_of!(ConfigPage, trace_parent)),
];

/// Names of constants without the common prefix, and the constants' values.
const OTHERS: &[(&str, u64)] = &[
    ("CONFIG_WORDS", (size_of::<ConfigPage>() / WORD) as u64),
    ("PAGE", PAGE),
    ("MIN_BAR", MIN_BAR),
    ("MASK_BYTES", MASK_BYTES),
    ("RESERVED_PART", RESERVED_PART),
    ("MAGIC", MAGIC),
    ("VERSION", VERSION as u64),
    ("OVERWRITE", RingMode::Overwrite as u64),
    ("FEATURE_KICK", Features::KICK.bits()),
    ("FEATURE_TRAPS", Features::TRAPS.bits()),
    ("REGISTER_EMIT", register::EMIT),
    ("REGISTER_LEASE", register::LEASE),
    ("MARK_DISPLACEMENT", mark::DISPLACEMENT as u64),
    ("G_HEAD", guest_page::HEAD as u64),
    ("G_COUNTER", guest_page::COUNTER as u64),
    ("G_LOST_FULL", guest_page::LOST_FULL as u64),
    ("G_LOST_BUSY", guest_page::LOST_BUSY as u64),
    ("G_SCHEMA_LEN", guest_page::SCHEMA_LEN as u64),
    ("G_SLOT", guest_page::SLOT as u64),
    ("SLOT_HEADER_WORDS", SLOT_HEADER_WORDS as u64),
    ("H_TAIL", host_page::TAIL as u64),
    ("H_SCHEMA_SEEN", host_page::SCHEMA_SEEN as u64),
    ("H_REPLY", host_page::REPLY as u64),
    ("STATUS_RECORDED", Status::Recorded as u64),
    ("ID_PAD", id::PAD as u64),
    ("ID_LEASE", id::LEASE as u64),
    ("ID_FIRST", id::FIRST as u64),
    ("REFERENCE_POINT", Flags::REFERENCE_POINT.bits() as u64),
    ("CLOCK_COUNTER", ClockKind::Tsc as u64),
    ("COUNTER_TSC", (CounterKind::Tsc as u64) << Counter::KIND_SHIFT),
    ("PAUSE_MS", PAUSE.as_millis() as u64),
    ("FNV_START", FNV_START as u64),
    ("MAX_FIELDS", MAX_FIELDS as u64),
    ("LEGACY_WORDS", LEGACY_SLOT_STRIDE_PER_ARG / WORD as u64),
    ("MARK_IMMEDIATE", mark::IMMEDIATE as u64),
    ("H_REPLY_HOST_TIME", host_page::REPLY_HOST_TIME as u64),
    ("FNV_PRIME", FNV_PRIME as u64),
    ("COUNTER_CNTVCT", (CounterKind::Cntvct as u64) << Counter::KIND_SHIFT),
    ("PCI_VENDOR", PCI_VENDOR as u64),
    ("PCI_DEVICE", PCI_DEVICE as u64),
    ("PCI_SUBSYSTEM", PCI_SUBSYSTEM as u64),
    ("PCI_IVSHMEM", IVSHMEM_DEVICE as u64),
    ("IVSHMEM_BAR", IVSHMEM_BAR as u64),
    ("BAR_CONFIG", Region::Config.bar() as u64),
    ("BAR_CONTROL", Region::Control.bar() as u64),
    ("BAR_RINGS", Region::Rings.bar() as u64),
    ("FEATURE_REMOTE", Features::REMOTE.bits()),
    ("IOCTL_LEASE", module::LEASE as u64),
    ("IOCTL_RELEASE", module::RELEASE as u64),
    ("G_LOST_UNATTACHED", guest_page::LOST_UNATTACHED as u64),
    ("SLOT_WORDS", SLOT_WORDS as u64),
    ("H_MASK_VERSION", host_page::MASK_VERSION as u64),
    ("STATUS_FILTERED", Status::Filtered as u64),
    ("STATUS_FAILED", Status::Failed as u64),
    ("STATUS_INVALID", Status::Invalid as u64),
    ("STATUS_LIMITED", Status::Limited as u64),
    ("MAX_WORDS", MAX_WORDS as u64),
    ("CLOCK_MONOTONIC_RAW", ClockKind::MonotonicRaw as u64),
    ("MAX_NAME", MAX_NAME as u64),
    ("MAX_TEXT", MAX_TEXT as u64),
    ("MAX_SCHEMAS", MAX_SCHEMAS as u64),
    ("PAGE_L", PAGE_L),
    ("BELLS", BELLS),
    ("L_STATE", STATE),
    ("L_BOOT", BOOT),
    ("L_BOOT_SEEN", BOOT_SEEN),
    ("L_END", END),
    ("REASON_SHIFT", Counter::REASON_SHIFT as u64),
    ("REASON_NAMED", Reason::Named as u64),
    ("REASON_KEPT", Reason::Kept as u64),
    ("REASON_EMULATED", Reason::Emulated as u64),
    ("REASON_AGREEING", Reason::Agreeing as u64),
    ("REASON_DIFFERING", Reason::Differing as u64),
    ("REASON_DOUBTFUL", Reason::Doubtful as u64),
    ("STATE_ENDED", State::Ended as u64),
];

/// Returns the macros of all constants.
pub fn text() -> String {
    let mut text = String::new();
    for (name, offset) in CONFIG {
        define(&mut text, &format!("CONFIG_{name}"), (offset / WORD) as u64);
    }
    for (name, value) in OTHERS {
        define(&mut text, name, *value);
    }
    text
}

/// Writes a constant as a macro. A number that needs more than 32 bits gets the suffix ULL.
fn define(text: &mut String, name: &str, value: u64) {
    let suffix = if value > u32::MAX.into() { "ULL" } else { "U" };
    let _ = writeln!(text, "#define HYPERTRACE_ABI_{name} {value:#x}{suffix}");
}
