//! Finding a device and mapping it.

use super::lock::LockFile;
use super::mapping::{Mapping, MemoryType, memory_type};
use super::segment::ProcessName;
use super::{Options, Place, clock, pci, segment, window};
use crate::channel::Channel;
use crate::error::OpenError;
use hypertrace_abi::config::ConfigError;
use std::fs::{File, OpenOptions};
use std::path::Path;

/// A device, mapped.
pub(super) struct Opened {
    pub channel: Channel<'static>,
    pub memory_type: MemoryType,
    /// What `channel` refers to: kept for ever with it.
    pub mappings: Vec<Mapping>,
    /// Who has which client.
    pub lock: Option<LockFile>,
    /// What to call the process, where its threads stand beside those of others.
    pub name: Option<ProcessName>,
}

/// Where the device is: as told, then as the environment says, then as the
/// kernel command line does, then on the PCI bus.
pub(super) fn find(options: &Options) -> Result<Place, OpenError> {
    if let Some(path) = &options.segment {
        return Ok(Place::Segment(path.clone()));
    }
    if let Some(address) = options.window {
        return Ok(Place::Window(address));
    }
    if let Some(function) = &options.function {
        return Ok(Place::Function(pci::devices(options).join(function)));
    }
    if let Some(path) = segment::in_environment() {
        return Ok(Place::Segment(path));
    }
    if let Some(address) = window::on_command_line(options)? {
        return Ok(Place::Window(address));
    }
    match pci::find(options) {
        Some(function) => Ok(Place::Function(function)),
        None => Err(OpenError::NotFound(pci::devices(options), window::command_line(options))),
    }
}

/// Maps the device that is there.
pub(super) fn open(place: &Place, options: &Options) -> Result<Opened, OpenError> {
    let mut opened = match place {
        Place::Function(function) => pci::open(function)?,
        Place::Window(address) => window::open(*address, options)?,
        Place::Segment(path) => return segment::open(path, options),
        // Nothing to map: the program did.
        Place::Installed => return Err(OpenError::Open),
    };
    opened.memory_type = memory_type(opened.channel.rings);
    opened.channel = opened
        .channel
        .with_fences(opened.memory_type == MemoryType::Uncached)
        .with_clock(clock::choose(options, opened.channel.frequency()));
    Ok(opened)
}

/// What stands where the config page should.
pub(super) fn not_a_device(path: &Path, why: ConfigError) -> OpenError {
    OpenError::because("find the config page in", path, std::io::Error::other(why))
}

/// Opens a file, for stores too unless `read_only`.
pub(super) fn open_file(path: &Path, read_only: bool) -> Result<File, OpenError> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(path)
        .map_err(|why| OpenError::because("open", path, why))
}
