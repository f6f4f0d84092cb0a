//! Generation of the constants that the guest's kernel module shares with the crate `abi`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hypertrace_abi::config::{ConfigPage, Features, RingMode};
use hypertrace_abi::layout::local::{BELLS, BOOT, BOOT_SEEN, END, PAGE_L, STATE, State};
use hypertrace_abi::layout::{
    IVSHMEM_BAR, IVSHMEM_DEVICE, LEGACY_SLOT_STRIDE_PER_ARG, MASK_BYTES, MIN_BAR, PCI_DEVICE,
    PCI_SUBSYSTEM, PCI_VENDOR, Region, SHARED_REGISTERS, SLOT_WORDS, guest_page, host_page, module,
};
use hypertrace_abi::record::{ClockKind, HEADER_WORDS, MAX_WORDS};
use hypertrace_abi::schema::{MAX_NAME, MAX_SCHEMAS, MAX_TEXT};
use hypertrace_abi::sink::Status;

use crate::constants::{COMMON, define};

const TOP: &str = "\
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR BSD-3-Clause */
/* Made by `cargo xtask header` from the crate hypertrace-abi. docs/abi.md says what they are. */
#ifndef HYPERTRACE_ABI_H
#define HYPERTRACE_ABI_H

";

/// Returns the path of the header.
pub fn path(root: &Path) -> PathBuf {
    root.join("guest-lib/linux-module/hypertrace_abi.h")
}

/// Generates the header's text.
pub fn text() -> String {
    let own = [
        ("PCI_VENDOR", PCI_VENDOR.into()),
        ("PCI_DEVICE", PCI_DEVICE.into()),
        ("PCI_SUBSYSTEM", PCI_SUBSYSTEM.into()),
        ("PCI_IVSHMEM", IVSHMEM_DEVICE.into()),
        ("IVSHMEM_BAR", IVSHMEM_BAR as u64),
        ("BAR_CONFIG", Region::Config.bar() as u64),
        ("BAR_CONTROL", Region::Control.bar() as u64),
        ("BAR_RINGS", Region::Rings.bar() as u64),
        ("MIN_BAR", MIN_BAR),
        ("LEGACY_SLOT_STRIDE_PER_ARG", LEGACY_SLOT_STRIDE_PER_ARG),
        ("SHARED_REGISTERS", SHARED_REGISTERS),
        ("MASK_BYTES", MASK_BYTES),
        ("DISCARD", RingMode::Discard as u64),
        ("CONFIG_BYTES", size_of::<ConfigPage>() as u64),
        ("FEATURE_APART", Features::APART.bits()),
        ("IOCTL_LEASE", module::LEASE.into()),
        ("IOCTL_RELEASE", module::RELEASE.into()),
        ("G_LOST_UNATTACHED", guest_page::LOST_UNATTACHED as u64),
        ("SLOT_WORDS", SLOT_WORDS as u64),
        ("H_MASK_VERSION", host_page::MASK_VERSION as u64),
        ("STATUS_FILTERED", Status::Filtered as u64),
        ("HEADER_WORDS", HEADER_WORDS as u64),
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
        ("STATE_ENDED", State::Ended as u64),
    ];
    let mut text = TOP.to_owned();
    for constants in [&COMMON[..], &own] {
        define(&mut text, "HT_", "", constants);
        text.push('\n');
    }
    text.push_str("#endif\n");
    text
}

/// Writes the header: `cargo xtask header`.
///
/// # Errors
/// If it cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let path = path(root);
    fs::write(&path, text()).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_constants_are_those_of_the_crate() {
        let root = crate::root().unwrap();

        let found = fs::read_to_string(path(&root)).unwrap_or_default();

        assert!(found == text(), "run `cargo xtask header` and commit {}", path(&root).display());
    }
}
