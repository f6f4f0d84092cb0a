//! Finding a device and opening it.

use super::opened::Opened;
use super::options::{Options, Place};
use super::{function, ivshmem, module, pci, segment, window};
use crate::error::OpenError;
use std::path::PathBuf;

/// Finds the device: by the options, the environment, the kernel command line, the kernel
/// module, or on the PCI bus, in this order.
pub(super) fn find(options: &Options) -> Result<Place, OpenError> {
    if let Some(path) = &options.segment {
        return Ok(Place::Segment(path.clone()));
    }
    if let Some(address) = options.window {
        return Ok(Place::Window(address));
    }
    if let Some(function) = &options.function {
        return Ok(place(function::devices(options).join(function)));
    }
    if let Some(path) = segment::in_environment() {
        return Ok(Place::Segment(path));
    }
    if let Some(address) = window::on_command_line(options)? {
        return Ok(Place::Window(address));
    }
    match module::find(options).or_else(|| on_bus(options)) {
        Some(place) => Ok(place),
        None => Err(match functions_of_ivshmem(options).next() {
            Some(function) => OpenError::NoServer(function),
            None => OpenError::NotFound(function::devices(options), window::command_line(options)),
        }),
    }
}

/// Returns the functions that are ivshmem, by address.
fn functions_of_ivshmem(options: &Options) -> impl Iterator<Item = PathBuf> {
    let functions = function::candidates(options);
    functions.into_iter().filter(|function| function::is_ivshmem(function))
}

/// Returns the first PCI function, by address, that is a hypertrace device by its ids; else the first whose
/// memory is a segment.
fn on_bus(options: &Options) -> Option<Place> {
    let functions = function::candidates(options);
    if let Some(device) = functions.iter().find(|function| function::is_device(function)) {
        return Some(Place::Function(device.clone()));
    }
    // One that this user may not look at may be the device: to open it gives the reason.
    let mut unseen = None;
    for function in functions_of_ivshmem(options) {
        match ivshmem::is_segment(&function) {
            Ok(true) => return Some(Place::Ivshmem(function)),
            Err(why) if why.is_refused() => unseen = unseen.or(Some(function)),
            _ => {}
        }
    }
    unseen.map(Place::Ivshmem)
}

/// Returns the place of this function.
fn place(function: PathBuf) -> Place {
    match function::is_ivshmem(&function) {
        true => Place::Ivshmem(function),
        false => Place::Function(function),
    }
}

/// Maps the device that is there.
pub(super) fn open(place: &Place, options: &Options) -> Result<Opened, OpenError> {
    match place {
        Place::Function(function) | Place::Uio(function) => pci::open(function, options),
        Place::Window(address) => window::open(*address, options),
        Place::Module(node) => module::open(node, options),
        Place::Ivshmem(function) => ivshmem::open(function, options),
        Place::Segment(path) => segment::open(path, options),
        // Nothing to map: the program did.
        Place::Installed => Err(OpenError::Open),
    }
}
