//! The device as a PCI function, in sysfs.
//!
//! Unsafe, because what is mapped here is taken for a device's regions.
#![allow(unsafe_code)]

use super::ivshmem;
use super::mapping::MemoryType;
use super::opened::{self, Opened, not_a_device, open_file};
use super::options::{Options, Place};
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::layout::{IVSHMEM_DEVICE, PAGE, PCI_DEVICE, PCI_SUBSYSTEM, PCI_VENDOR, Region};
use hypertrace_segment::{LockFile, Mapping};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offset of COMMAND in config space, and its bit for decoding memory (PCI
/// Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u8 = 2;

/// Returns the folder of all PCI functions.
pub(super) fn devices(options: &Options) -> PathBuf {
    options.sysfs.join("bus/pci/devices")
}

/// Returns the first function, by address, that is a hypertrace device by its ids; else the first whose
/// memory is a segment.
pub(super) fn find(options: &Options) -> Option<Place> {
    let functions = fs::read_dir(devices(options)).ok()?;
    let mut functions: Vec<PathBuf> = functions.flatten().map(|entry| entry.path()).collect();
    functions.sort();
    functions.retain(|function| id(function, "vendor") == Some(PCI_VENDOR));
    let is_device = |function: &PathBuf| {
        id(function, "device") == Some(PCI_DEVICE)
            || id(function, "subsystem_device") == Some(PCI_SUBSYSTEM)
    };
    if let Some(device) = functions.iter().find(|function| is_device(function)) {
        return Some(Place::Function(device.clone()));
    }
    let mut shared = functions.into_iter().filter(|function| is_ivshmem(function));
    shared.find(|function| ivshmem::is_segment(function)).map(Place::Ivshmem)
}

/// Returns the place of this function.
pub(super) fn place(function: PathBuf) -> Place {
    match is_ivshmem(&function) {
        true => Place::Ivshmem(function),
        false => Place::Function(function),
    }
}

fn is_ivshmem(function: &Path) -> bool {
    id(function, "vendor") == Some(PCI_VENDOR) && id(function, "device") == Some(IVSHMEM_DEVICE)
}

fn id(function: &Path, name: &str) -> Option<u16> {
    let text = fs::read_to_string(function.join(name)).ok()?;
    u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Switches the function on, and maps its BARs.
pub(super) fn open(function: &Path) -> Result<Opened, OpenError> {
    enable(function)?;
    let path = function.join("config");
    let config = open_file(&path, false)?;
    decode(&config)
        .map_err(|why| OpenError::because("write the COMMAND register in", &path, why))?;

    let config_bar = map(&function.join("resource0"), PAGE, false)?;
    // SAFETY: a page of it is mapped.
    let page = unsafe { read_config(config_bar.address()) };
    let geometry = page.geometry().map_err(|why| not_a_device(&function.join("resource0"), why))?;
    let data = map_combining(function, Region::Data, geometry.data_size())?;
    let control = map(&function.join("resource2"), geometry.control_size(), true)?;
    let rings = map_combining(function, Region::Rings, geometry.rings_size())?;
    // SAFETY: each is mapped as far as the page says, and the process keeps
    // the mappings with the channel.
    let channel =
        unsafe { Channel::at_regions(&page, data.address(), control.address(), rings.address())? };
    Ok(Opened {
        channel,
        memory_type: MemoryType::Uncached,
        mappings: vec![data, control, rings],
        lock: Some(LockFile::new(config, 0, LockFile::ANY)),
        name: None,
    })
}

/// Enables a function, which may be off if no driver has taken it. The kernel
/// counts every 1 that is written, so this writes only if the function is off.
pub(super) fn enable(function: &Path) -> Result<(), OpenError> {
    let path = function.join("enable");
    let is_on =
        fs::read_to_string(&path).map_err(|why| OpenError::because("read", &path, why))?.trim()
            != "0";
    if !is_on {
        fs::write(&path, "1")
            .map_err(|why| OpenError::because("switch the device on with", &path, why))?;
    }
    Ok(())
}

fn decode(config: &fs::File) -> io::Result<()> {
    let mut command = [0; 2];
    config.read_exact_at(&mut command, COMMAND)?;
    if command[0] & COMMAND_MEMORY == 0 {
        command[0] |= COMMAND_MEMORY;
        config.write_all_at(&command, COMMAND)?;
    }
    Ok(())
}

/// Maps a region of plain memory, write-combining if the kernel supports that.
/// The first mapping of a range determines the type for all, so `resourceN`
/// alone would make it uncached for all programs.
fn map_combining(function: &Path, region: Region, len: u64) -> Result<Mapping, OpenError> {
    map(&combining(function, region.bar()), len, true)
}

/// Returns the file of a BAR: write-combining, if the kernel supports that.
pub(super) fn combining(function: &Path, bar: usize) -> PathBuf {
    let plain = function.join(format!("resource{bar}"));
    let combining = function.join(format!("resource{bar}_wc"));
    if combining.exists() { combining } else { plain }
}

fn map(path: &Path, len: u64, writable: bool) -> Result<Mapping, OpenError> {
    let file = open_file(path, !writable)?;
    let has = file.metadata().map_err(|why| OpenError::because("look at", path, why))?.len();
    if has < len {
        let why =
            io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than the config page says");
        return Err(OpenError::because("map all of", path, why));
    }
    opened::map(&file, path, 0, len, writable)
}
