//! The device as an MMIO window, through /dev/mem.
//!
//! Unsafe, because what is mapped here is taken for a device's regions.
#![allow(unsafe_code)]

use super::mapping::MemoryType;
use super::opened::{Opened, map, not_a_device, open_file};
use super::options::{Options, Place};
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::layout::{MIN_BAR, PAGE, Region};
use hypertrace_segment::LockFile;
use std::fs;
use std::path::PathBuf;

/// The parameter by which a VMM passes the address on the kernel command line.
const PARAMETER: &str = "hypertrace.mmio=";

pub(super) fn command_line(options: &Options) -> PathBuf {
    options.proc.join("cmdline")
}

/// Returns the address on the kernel command line, if there is one. The last one
/// counts, as for the kernel.
pub(super) fn on_command_line(options: &Options) -> Result<Option<u64>, OpenError> {
    let path = command_line(options);
    let line = fs::read_to_string(&path).unwrap_or_default();
    let Some(found) =
        line.split_whitespace().filter_map(|word| word.strip_prefix(PARAMETER)).next_back()
    else {
        return Ok(None);
    };
    address(found).map(Some).ok_or_else(|| OpenError::Address(found.to_owned(), path))
}

fn address(text: &str) -> Option<u64> {
    let address = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .ok()?;
    (address != 0 && address.is_multiple_of(PAGE)).then_some(address)
}

/// Maps the window at this physical address.
pub(super) fn open(address: u64, options: &Options) -> Result<Opened, OpenError> {
    let path = &options.memory;
    let memory = open_file(path, false)?;
    // The first region is the config page; it says how far the rest goes.
    let first = map(&memory, path, address, MIN_BAR, false)?;
    // SAFETY: a page of it is mapped.
    let page = unsafe { read_config(first.address()) };
    let geometry = page.geometry().map_err(|why| not_a_device(path, why))?;
    drop(first);

    let end = geometry.window_offset(Region::Rings) + geometry.rings_size();
    let window = map(&memory, path, address, end, true)?;
    let at = |region| window.address().wrapping_add(geometry.window_offset(region) as usize);
    // SAFETY: the window is mapped up to the last region's end, and the
    // process keeps the mapping with the channel.
    let channel = unsafe {
        Channel::at_regions(&page, at(Region::Data), at(Region::Control), at(Region::Rings))?
    };
    Ok(Opened {
        place: Place::Window(address),
        channel,
        memory_type: MemoryType::Uncached,
        mappings: vec![window],
        // Two windows do not share bytes of the lock file.
        lock: Some(LockFile::new(memory, address, LockFile::ANY)),
        name: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_hexadecimal_or_decimal_and_aligned() {
        assert_eq!(address("0xfe000000"), Some(0xfe00_0000));
        assert_eq!(address("65536"), Some(65536));
        for wrong in ["", "0x", "0", "0xfe000001", "fe000000", "0x10000000000000000"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }
}
