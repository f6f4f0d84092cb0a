//! Opens the device through the guest's kernel module, for programs of any user: `/dev/hypertrace` has the
//! MMIO window. The pages of a client are in the mapping while the client is leased. An access to a page of
//! another client does not fault, but reaches only memory that nobody else uses.

use super::opened::{Opened, Window, open_bar};
use super::options::{ChannelLocation, Options};
use crate::error::OpenError;
use hypertrace_segment::LockFile;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

/// Returns the module's node if the module has a device. A node that this user may not open is returned, too,
/// because opening this node gives the reason.
pub(super) fn find(options: &Options) -> Option<ChannelLocation> {
    let node = options.dev.join("hypertrace");
    match OpenOptions::new().read(true).write(true).open(&node) {
        Err(why) if why.kind() != ErrorKind::PermissionDenied => None,
        _ => Some(ChannelLocation::Module(node)),
    }
}

pub(super) fn open(node: &Path, options: &Options) -> Result<Opened, OpenError> {
    let file = open_bar(node, false)?;
    let window = Window { file: &file, path: node, offset: 0 };
    let (channel, mapping) = window.map(&window.config_page()?)?;
    let place = ChannelLocation::Module(node.to_owned());
    Opened::new(place, channel.lent(), vec![mapping], LockFile::of_module(file), options)
}
