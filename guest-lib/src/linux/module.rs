//! The device by the guest's kernel module, for programs of any user: `/dev/hypertrace` has the MMIO window. The
//! pages of a client are in the mapping while the client is leased; its file never faults, as other pages lead nowhere.
//!
//! Unsafe, because what is mapped here is taken for a device's regions.
#![allow(unsafe_code)]

use super::mapping::{MemoryType, memory_type};
use super::opened::{Opened, map, not_a_device, open_bar};
use super::options::{Options, Place};
use super::{clock, name};
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::{PAGE, Region};
use hypertrace_segment::LockFile;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

/// Returns the module's node, if it has a device. One that this user may not open is returned too: to open
/// it gives the reason.
pub(super) fn find(options: &Options) -> Option<Place> {
    let node = options.dev.join("hypertrace");
    match OpenOptions::new().read(true).write(true).open(&node) {
        Err(why) if why.kind() != ErrorKind::PermissionDenied => None,
        _ => Some(Place::Module(node)),
    }
}

/// Maps the window.
pub(super) fn open(node: &Path, options: &Options) -> Result<Opened, OpenError> {
    let file = open_bar(node, false)?;
    let first = map(&file, node, 0, PAGE, false)?;
    // SAFETY: a page of it is mapped.
    let page = unsafe { read_config(first.address()) };
    let geometry = page.geometry().map_err(|why| not_a_device(node, why))?;
    drop(first);
    let window = map(&file, node, 0, geometry.window_size(), true)?;
    let at = |region| window.address().wrapping_add(geometry.window_offset(region) as usize);
    // SAFETY: the window is mapped up to the end of the last region of this very copy of the page, and
    // the process keeps the mapping with the channel.
    let channel = unsafe {
        match page.features().contains(Features::TRAPS) {
            true => Channel::at_regions(
                &page,
                at(Region::Data),
                at(Region::Control),
                at(Region::Rings),
            )?,
            false => Channel::in_window(&page, window.address())?,
        }
    };
    let memory_type = memory_type(channel.rings);
    let channel = channel
        .lent()
        .with_fences(memory_type == MemoryType::Uncached)
        .with_clock(clock::choose(options, channel.frequency())?);
    Ok(Opened {
        place: Place::Module(node.to_owned()),
        channel,
        memory_type,
        mappings: vec![window],
        lock: Some(LockFile::of_module(file)),
        name: name::of_process(options),
    })
}
