//! Opens the device as an MMIO window, through /dev/mem.

use super::opened::{Opened, Window, open_file};
use super::options::{ChannelLocation, Options};
use crate::error::OpenError;
use hypertrace_abi::layout::PAGE;
use hypertrace_segment::LockFile;
use std::fs;
use std::path::PathBuf;

/// The parameter with which a VMM passes the address on the kernel command line.
const PARAMETER: &str = "hypertrace.mmio=";

pub(super) fn command_line(options: &Options) -> PathBuf {
    options.proc.join("cmdline")
}

/// Returns the address on the kernel command line, if there is one. If there are several addresses, the
/// function returns the last address, as the kernel does.
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
    let file = open_file(&options.memory, false)?;
    let window = Window { file: &file, path: &options.memory, offset: address };
    let (channel, mapping) = window.map(&window.config_page()?)?;
    // The first byte for locks is at the window's address, so that two windows do not lock the same bytes of
    // the file.
    let lock = LockFile::new(file, address, LockFile::ANY);
    Opened::new(ChannelLocation::Window(address), channel, vec![mapping], lock, options)
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
