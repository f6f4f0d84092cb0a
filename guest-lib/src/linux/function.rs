//! A PCI function in sysfs: its ids, its switch, the files of its BARs.

use super::opened::open_file;
use super::options::Options;
use crate::error::OpenError;
use hypertrace_abi::layout::{IVSHMEM_DEVICE, PCI_DEVICE, PCI_SUBSYSTEM, PCI_VENDOR};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offset of the register COMMAND in config space, and its bit for decoding memory (PCI Local Bus
/// Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u8 = 2;

/// Hint for a plain user whose device is off.
const ENABLE_HINT: &str =
    "root has to switch it on after each boot, as hypertrace's rules for udev do";

pub(super) fn devices(options: &Options) -> PathBuf {
    options.sysfs.join("bus/pci/devices")
}

/// Returns the PCI functions that may have a channel, in the order of their addresses.
pub(super) fn candidates(options: &Options) -> Vec<PathBuf> {
    let functions = fs::read_dir(devices(options)).into_iter().flatten();
    let mut functions: Vec<PathBuf> = functions.flatten().map(|entry| entry.path()).collect();
    functions.sort();
    functions.retain(|function| id(function, "vendor") == Some(PCI_VENDOR));
    functions
}

/// Returns true if the ids of a candidate are those of a hypertrace device.
pub(super) fn is_device(function: &Path) -> bool {
    id(function, "device") == Some(PCI_DEVICE)
        || id(function, "subsystem_device") == Some(PCI_SUBSYSTEM)
}

pub(super) fn is_ivshmem(function: &Path) -> bool {
    id(function, "vendor") == Some(PCI_VENDOR) && id(function, "device") == Some(IVSHMEM_DEVICE)
}

fn id(function: &Path, name: &str) -> Option<u16> {
    let text = fs::read_to_string(function.join(name)).ok()?;
    u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Enables a function. The function may be off if no driver uses the function. Writes only if the function is
/// off, because the kernel counts every 1 that is written.
pub(super) fn enable(function: &Path) -> Result<(), OpenError> {
    let path = function.join("enable");
    let is_on =
        fs::read_to_string(&path).map_err(|why| OpenError::because("read", &path, why))?.trim()
            != "0";
    if !is_on {
        fs::write(&path, "1").map_err(|why| {
            OpenError::because("switch the device on with", &path, why).for_plain_users(ENABLE_HINT)
        })?;
    }
    Ok(())
}

/// Sets the bit that lets the function decode addresses. The kernel sets the bit when the function is
/// enabled, so a writable `config` is needed only if another program has cleared the bit.
pub(super) fn decode(function: &Path) -> Result<(), OpenError> {
    let path = function.join("config");
    let mut command = [0; 2];
    let read = open_file(&path, true)?.read_exact_at(&mut command, COMMAND);
    read.map_err(|why| OpenError::because("read the COMMAND register in", &path, why))?;
    if command[0] & COMMAND_MEMORY == 0 {
        command[0] |= COMMAND_MEMORY;
        let refused = |why| {
            let doing = "switch the device's memory on in the COMMAND register in";
            OpenError::because(doing, &path, why).for_plain_users(ENABLE_HINT)
        };
        let config = fs::File::options().write(true).open(&path).map_err(refused)?;
        config.write_all_at(&command, COMMAND).map_err(refused)?;
    }
    Ok(())
}

pub(super) fn bar_file(function: &Path, bar: usize) -> PathBuf {
    function.join(format!("resource{bar}"))
}

/// Returns the file of a BAR of plain memory. If the BAR has a write-combining file, the function returns
/// that file. The first mapping of a range determines the type of all mappings of the range, so `resourceN`
/// would make the range uncached for all programs.
pub(super) fn combining(function: &Path, bar: usize) -> PathBuf {
    let combining = function.join(format!("resource{bar}_wc"));
    if combining.exists() { combining } else { bar_file(function, bar) }
}
