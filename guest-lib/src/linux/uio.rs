//! Maps the device's BARs through the kernel's driver `uio_pci_generic`, which maps BARs for programs even if
//! the kernel is locked down. The driver offers a map only for a 32-bit BAR that is not prefetchable.
//!
//! The code is unsafe because a C function returns the size of a page.
#![allow(unsafe_code)]

use super::opened::{self, open_bar};
use super::options::Options;
use crate::error::OpenError;
use hypertrace_segment::Mapping;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of maps of a device, `MAX_UIO_MAPS` of the kernel.
const MAX_MAPS: u64 = 5;

/// A function's uio device.
#[derive(Debug)]
pub(super) struct Uio {
    /// The uio device's node, `/dev/uioN`.
    node: PathBuf,
    /// The folder of the uio device's maps in sysfs.
    maps: PathBuf,
}

impl Uio {
    /// Returns a function's uio device, if the function is bound to a driver that has made one.
    pub(super) fn of(function: &Path, options: &Options) -> Option<Uio> {
        let mut devices = fs::read_dir(function.join("uio")).ok()?.flatten();
        let device =
            devices.find(|entry| entry.file_name().as_encoded_bytes().starts_with(b"uio"))?;
        let node = options.dev.join(device.file_name());
        Some(Uio { node, maps: device.path().join("maps") })
    }

    /// Maps a BAR of the function.
    pub(super) fn map(
        &self,
        function: &Path,
        bar: usize,
        len: u64,
        is_writable: bool,
    ) -> Result<Mapping, OpenError> {
        let refused = |why| OpenError::because("map a BAR by", &self.node, why);
        let Some((number, size)) = self.find(function, bar) else {
            let why = format!(
                "it has no map of BAR {bar}: uio_pci_generic maps 32-bit BARs only that are not \
                 prefetchable, such as those of `hypertrace serve --bars 32`"
            );
            return Err(refused(io::Error::other(why)));
        };
        if size < len {
            let why = format!("its map of BAR {bar} is shorter than the config page says");
            return Err(refused(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
        }
        let file = open_bar(&self.node, !is_writable)?;
        opened::map(&file, &self.node, number * page_size(), len, is_writable)
    }

    /// Returns the number and the size of the map of a BAR.
    fn find(&self, function: &Path, bar: usize) -> Option<(u64, u64)> {
        // Each BAR has a line with its first address, last address and flags.
        let resources = fs::read_to_string(function.join("resource")).ok()?;
        let start = hexadecimal(resources.lines().nth(bar)?.split_whitespace().next()?)?;
        let number = |map: u64, name: &str| {
            let path = self.maps.join(format!("map{map}")).join(name);
            hexadecimal(fs::read_to_string(path).ok()?.trim())
        };
        let map = (0..MAX_MAPS).find(|map| start != 0 && number(*map, "addr") == Some(start))?;
        Some((map, number(map, "size")?))
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the size of a page of this kernel: map N of a uio device is at N pages.
fn page_size() -> u64 {
    // SAFETY: sysconf takes a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_a_bar_is_found_by_its_address() {
        let function = tempfile::tempdir().unwrap();
        let resources = "0xfe000000 0xfe00ffff 0x40200\n0xfe010000 0xfe01ffff 0x40200\n\
                         0x0 0x0 0x0\n0x0 0x0 0x0\n0x380000000000 0x380000ffffff 0x14220c\n";
        fs::write(function.path().join("resource"), resources).unwrap();
        for (map, address) in ["0xfe010000", "0xfe000000"].iter().enumerate() {
            let map = function.path().join(format!("uio/uio7/maps/map{map}"));
            fs::create_dir_all(&map).unwrap();
            fs::write(map.join("addr"), format!("{address}\n")).unwrap();
            fs::write(map.join("size"), "0x10000\n").unwrap();
        }

        let uio = Uio::of(function.path(), &Options::default()).unwrap();
        let found = [0, 1, 2, 4, 9].map(|bar| uio.find(function.path(), bar));

        assert_eq!(uio.node, Path::new("/dev/uio7"));
        assert_eq!(found, [Some((1, 0x10000)), Some((0, 0x10000)), None, None, None]);
        let error = uio.map(function.path(), 4, 1, true).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("BAR 4") && why.contains("--bars 32"), "{why}");
        assert!(Uio::of(&function.path().join("uio"), &Options::default()).is_none());
    }
}
