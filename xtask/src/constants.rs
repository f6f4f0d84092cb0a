//! Constants of the crate `abi` that both C headers without a library have: those of firmware and of the guest's
//! kernel module.

use std::fmt::Write as _;

use hypertrace_abi::clock::{Counter, CounterKind};
use hypertrace_abi::config::{Features, MAGIC, RingMode, VERSION};
use hypertrace_abi::layout::{PAGE, SLOT_HEADER_WORDS, guest_page, host_page, mark, register};
use hypertrace_abi::record::{ClockKind, Flags, id};
use hypertrace_abi::schema::{FNV_START, MAX_FIELDS};
use hypertrace_abi::sink::Status;
use hypertrace_abi::turns::PAUSE;

/// Names without their prefix, and values.
pub const COMMON: [(&str, u64); 31] = [
    ("PAGE", PAGE),
    ("MAGIC", MAGIC),
    ("VERSION", VERSION as u64),
    ("OVERWRITE", RingMode::Overwrite as u64),
    ("FEATURE_KICK", Features::KICK.bits()),
    ("FEATURE_TRAPS", Features::TRAPS.bits()),
    ("FEATURE_SHARED", Features::SHARED.bits()),
    ("REGISTER_EMIT", register::EMIT),
    ("REGISTER_KICK", register::KICK),
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
];

/// Writes constants as macros whose names have this prefix, and whose numbers have the suffix unless they need more
/// than 32 bits.
pub fn define(text: &mut String, prefix: &str, suffix: &str, constants: &[(&str, u64)]) {
    for (name, value) in constants {
        let suffix = if *value > u32::MAX.into() { "ULL" } else { suffix };
        let _ = writeln!(text, "#define {prefix}{name} {value:#x}{suffix}");
    }
}
