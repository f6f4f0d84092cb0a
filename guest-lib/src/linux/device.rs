//! Finds a device and opens it.

use super::opened::Opened;
use super::options::{ChannelLocation, Options};
use super::{function, ivshmem, module, pci, segment, window};
use crate::error::OpenError;
use std::path::PathBuf;

/// Finds the device by the options, the environment, the kernel command line, the kernel module, or the PCI
/// bus, in this order.
pub(super) fn find(options: &Options) -> Result<ChannelLocation, OpenError> {
    if let Some(path) = &options.segment {
        return Ok(ChannelLocation::Segment(path.clone()));
    }
    if let Some(address) = options.window {
        return Ok(ChannelLocation::Window(address));
    }
    if let Some(function) = &options.function {
        return Ok(place(function::devices(options).join(function)));
    }
    if let Some(path) = segment::in_environment() {
        return Ok(ChannelLocation::Segment(path));
    }
    if let Some(address) = window::on_command_line(options)? {
        return Ok(ChannelLocation::Window(address));
    }
    match module::find(options).or_else(|| on_bus(options)) {
        Some(place) => Ok(place),
        None => Err(match functions_of_ivshmem(options).next() {
            Some(function) => OpenError::NoServer(function),
            None => OpenError::NotFound(function::devices(options), window::command_line(options)),
        }),
    }
}

/// Returns the PCI functions that are ivshmem, in the order of their addresses.
fn functions_of_ivshmem(options: &Options) -> impl Iterator<Item = PathBuf> {
    let functions = function::candidates(options);
    functions.into_iter().filter(|function| function::is_ivshmem(function))
}

/// Among the PCI functions whose ids are those of a hypertrace device, returns the function with the lowest
/// address. If there is no such function, returns the first function whose memory is a segment.
fn on_bus(options: &Options) -> Option<ChannelLocation> {
    let functions = function::candidates(options);
    if let Some(device) = functions.iter().find(|function| function::is_device(function)) {
        return Some(ChannelLocation::Function(device.clone()));
    }
    // If the system refuses a look at a function, this function may be the device. A try to open the function
    // then gives the reason for the refusal.
    let mut unseen = None;
    for function in functions_of_ivshmem(options) {
        match ivshmem::is_segment(&function) {
            Ok(true) => return Some(ChannelLocation::Ivshmem(function)),
            Err(why) if why.is_refused() => unseen = unseen.or(Some(function)),
            _ => {}
        }
    }
    unseen.map(ChannelLocation::Ivshmem)
}

/// Returns the location of a channel at this function.
fn place(function: PathBuf) -> ChannelLocation {
    match function::is_ivshmem(&function) {
        true => ChannelLocation::Ivshmem(function),
        false => ChannelLocation::Function(function),
    }
}

/// Maps the device at this location.
pub(super) fn open(place: &ChannelLocation, options: &Options) -> Result<Opened, OpenError> {
    match place {
        ChannelLocation::Function(function) | ChannelLocation::Uio(function) => {
            pci::open(function, options)
        }
        ChannelLocation::Window(address) => window::open(*address, options),
        ChannelLocation::Module(node) => module::open(node, options),
        ChannelLocation::Ivshmem(function) => ivshmem::open(function, options),
        ChannelLocation::Segment(path) => segment::open(path, options),
        // The program has mapped the memory, and the library cannot map it again.
        ChannelLocation::Installed => Err(OpenError::Open),
    }
}
