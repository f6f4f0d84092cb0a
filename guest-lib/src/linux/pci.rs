//! The device as a PCI function, in sysfs.
//!
//! Unsafe, because what is mapped here is taken for a device's regions.
#![allow(unsafe_code)]

use super::ivshmem;
use super::mapping::MemoryType;
use super::opened::{self, Opened, not_a_device, open_bar, open_file};
use super::options::{Options, Place};
use super::uio::Uio;
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::layout::{IVSHMEM_DEVICE, PAGE, PCI_DEVICE, PCI_SUBSYSTEM, PCI_VENDOR, Region};
use hypertrace_segment::{LockFile, Mapping};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offset of COMMAND in config space, and its bit for decoding memory (PCI
/// Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u8 = 2;

/// Hint for a plain user whose device is off.
const ENABLE_HINT: &str =
    "root has to switch it on after each boot, as hypertrace's rules for udev do";

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
    let shared = functions.into_iter().filter(|function| is_ivshmem(function));
    // One that this user may not look at may be the device: to open it gives the reason.
    let mut unseen = None;
    for function in shared {
        match ivshmem::is_segment(&function) {
            Ok(true) => return Some(Place::Ivshmem(function)),
            Err(why) if is_refused(&why) => unseen = unseen.or(Some(function)),
            _ => {}
        }
    }
    unseen.map(Place::Ivshmem)
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

/// Switches the function on, and maps its BARs: by sysfs, or where the kernel refuses that, by a uio
/// device.
pub(super) fn open(function: &Path, options: &Options) -> Result<Opened, OpenError> {
    enable(function)?;
    decode(function)?;
    // Both routes lock the same file, as programs can come by either.
    let path = bar_file(function, Region::Control.bar());
    let lock = LockFile::new(open_bar(&path, false)?, 0, LockFile::ANY);
    let opened = map_all(Place::Function(function.to_owned()), |bar, len, is_writable| {
        let path = match bar == Region::Data.bar() || bar == Region::Rings.bar() {
            true => combining(function, bar),
            false => bar_file(function, bar),
        };
        map(&path, len, is_writable)
    });
    let opened = match (opened, Uio::of(function, options)) {
        (Err(why), Some(uio)) if is_refused(&why) => {
            map_all(Place::Uio(function.to_owned()), |bar, len, is_writable| {
                uio.map(function, bar, len, is_writable)
            })
        }
        (opened, _) => opened,
    };
    Ok(Opened { lock: Some(lock), ..opened? })
}

/// Maps the BARs by this function, which takes a BAR's number, a length, and whether it is for stores
/// too.
fn map_all(
    place: Place,
    map: impl Fn(usize, u64, bool) -> Result<Mapping, OpenError>,
) -> Result<Opened, OpenError> {
    let (Place::Function(function) | Place::Uio(function)) = &place else {
        return Err(OpenError::Open);
    };
    let config = map(Region::Config.bar(), PAGE, false)?;
    // SAFETY: a page of it is mapped.
    let page = unsafe { read_config(config.address()) };
    let path = bar_file(function, Region::Config.bar());
    let geometry = page.geometry().map_err(|why| not_a_device(&path, why))?;
    let data = map(Region::Data.bar(), geometry.data_size(), true)?;
    let control = map(Region::Control.bar(), geometry.control_size(), true)?;
    let rings = map(Region::Rings.bar(), geometry.rings_size(), true)?;
    // SAFETY: each is mapped as far as the page says, and the process keeps
    // the mappings with the channel.
    let channel =
        unsafe { Channel::at_regions(&page, data.address(), control.address(), rings.address())? };
    Ok(Opened {
        place,
        channel,
        memory_type: MemoryType::Uncached,
        mappings: vec![data, control, rings],
        lock: None,
        name: None,
    })
}

/// Returns true if the kernel refuses to map a BAR by sysfs: it is locked down, or a policy says so.
fn is_refused(why: &OpenError) -> bool {
    matches!(why, OpenError::System { source, .. } if source.kind() == ErrorKind::PermissionDenied)
}

/// Enables a function, which may be off if no driver has taken it. The kernel
/// counts every 1 that is written, so this writes only if the function is off.
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

/// Sets the bit by which the function decodes addresses. The kernel sets it when the function is
/// enabled: only where another program has cleared it, this needs a writable `config`.
fn decode(function: &Path) -> Result<(), OpenError> {
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

/// Returns the file of a BAR.
fn bar_file(function: &Path, bar: usize) -> PathBuf {
    function.join(format!("resource{bar}"))
}

/// Returns the file of a BAR of plain memory: write-combining, if the kernel supports that. The first
/// mapping of a range determines the type for all, so `resourceN` alone would make it uncached for
/// all programs.
pub(super) fn combining(function: &Path, bar: usize) -> PathBuf {
    let combining = function.join(format!("resource{bar}_wc"));
    if combining.exists() { combining } else { bar_file(function, bar) }
}

fn map(path: &Path, len: u64, writable: bool) -> Result<Mapping, OpenError> {
    let file = open_bar(path, !writable)?;
    let has = file.metadata().map_err(|why| OpenError::because("look at", path, why))?.len();
    if has < len {
        let why =
            io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than the config page says");
        return Err(OpenError::because("map all of", path, why));
    }
    opened::map(&file, path, 0, len, writable)
}
