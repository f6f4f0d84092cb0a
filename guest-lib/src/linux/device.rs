//! Finding a device and opening it.

use super::mapping::{MemoryType, memory_type};
use super::opened::Opened;
use super::options::{Options, Place};
use super::{clock, pci, segment, window};
use crate::error::OpenError;

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
