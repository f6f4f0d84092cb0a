//! Opens the device as a PCI function, in sysfs.
//!
//! The code is unsafe because the library treats the memory that is mapped here as a device's regions.
#![allow(unsafe_code)]

use super::function::{bar_file, combining, decode, enable};
use super::opened::{self, Opened, not_a_device, open_bar};
use super::options::{ChannelLocation, Options};
use super::uio::Uio;
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::layout::{PAGE, Region};
use hypertrace_segment::{LockFile, Mapping};
use std::io;
use std::path::Path;

/// Switches the function on, and maps its BARs. The BARs are mapped through sysfs, or through a uio device if
/// the kernel refuses a mapping through sysfs.
pub(super) fn open(function: &Path, options: &Options) -> Result<Opened, OpenError> {
    enable(function)?;
    decode(function)?;
    // Programs that use sysfs and programs that use uio lock the same file, because both kinds of programs
    // may run at once.
    let path = bar_file(function, Region::Control.bar());
    let lock = LockFile::new(open_bar(&path, false)?, 0, LockFile::ANY);
    let mapped = map_all(function, |bar, len, is_writable| {
        let path = match bar == Region::Data.bar() || bar == Region::Rings.bar() {
            true => combining(function, bar),
            false => bar_file(function, bar),
        };
        map(&path, len, is_writable)
    });
    let ((channel, mappings), place) = match (mapped, Uio::of(function, options)) {
        (Err(why), Some(uio)) if why.is_refused() => {
            let map = |bar, len, is_writable| uio.map(function, bar, len, is_writable);
            (map_all(function, map)?, ChannelLocation::Uio(function.to_owned()))
        }
        (mapped, _) => (mapped?, ChannelLocation::Function(function.to_owned())),
    };
    Opened::new(place, channel, mappings, lock, options)
}

/// Maps the BARs with `map`, which takes a BAR's index, a length, and whether the mapping is for stores, too.
fn map_all(
    function: &Path,
    map: impl Fn(usize, u64, bool) -> Result<Mapping, OpenError>,
) -> Result<(Channel<'static>, Vec<Mapping>), OpenError> {
    let config = map(Region::Config.bar(), PAGE, false)?;
    // SAFETY: a page of the BAR is mapped.
    let page = unsafe { read_config(config.address()) };
    let path = bar_file(function, Region::Config.bar());
    let geometry = page.geometry().map_err(|why| not_a_device(&path, why))?;
    let data = map(Region::Data.bar(), geometry.data_size(), true)?;
    let control = map(Region::Control.bar(), geometry.control_size(), true)?;
    let rings = map(Region::Rings.bar(), geometry.rings_size(), true)?;
    // SAFETY: the mapping of each BAR is as long as the config page says. The process keeps the mappings with
    // the channel.
    let channel =
        unsafe { Channel::at_regions(&page, data.address(), control.address(), rings.address())? };
    Ok((channel, vec![data, control, rings]))
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
