//! A device that is open, and its files.

use super::mapping::MemoryType;
use super::name::ProcessName;
use super::options::Place;
use crate::channel::Channel;
use crate::error::OpenError;
use hypertrace_abi::config::ConfigError;
use hypertrace_segment::{LockFile, Mapping};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// A device, mapped.
pub(super) struct Opened {
    pub place: Place,
    pub channel: Channel<'static>,
    pub memory_type: MemoryType,
    /// The memory that `channel` refers to: kept as long as it.
    pub mappings: Vec<Mapping>,
    /// Which process has which client.
    pub lock: Option<LockFile>,
    /// The process's name, for leases where several processes share the device.
    pub name: Option<ProcessName>,
}

/// Returns the error that this file has no valid config page.
pub(super) fn not_a_device(path: &Path, why: ConfigError) -> OpenError {
    let mut error = OpenError::because("find the config page in", path, std::io::Error::other(why));
    if let (ConfigError::Magic(u64::MAX), OpenError::System { hint, .. }) = (why, &mut error) {
        *hint = "every load gives all ones: the VMM has dropped the device, as its server has ended or hung";
    }
    error
}

/// Opens a file, for stores too unless `read_only`.
pub(super) fn open_file(path: &Path, read_only: bool) -> Result<File, OpenError> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(path)
        .map_err(|why| OpenError::because("open", path, why))
}

/// Opens a file by which a device is mapped.
pub(super) fn open_bar(path: &Path, read_only: bool) -> Result<File, OpenError> {
    let opened = open_file(path, read_only);
    opened.map_err(|why| {
        why.for_plain_users(
            "run as root, or as a member of the group hypertrace where hypertrace's rules for udev are \
             installed",
        )
    })
}

/// Maps a part of a file for this process, not for children that it forks.
pub(super) fn map(
    file: &File,
    path: &Path,
    offset: u64,
    len: u64,
    writable: bool,
) -> Result<Mapping, OpenError> {
    let mapping = Mapping::new(file, offset, len, writable)
        .map_err(|why| OpenError::because("map", path, why))?;
    keep_from_children(&mapping, path)?;
    Ok(mapping)
}

/// Keeps a mapping from children: a child opens the device anew.
pub(super) fn keep_from_children(mapping: &Mapping, path: &Path) -> Result<(), OpenError> {
    let kept = mapping.keep_from_children();
    kept.map_err(|why| OpenError::because("keep from children the mapping of", path, why))
}
