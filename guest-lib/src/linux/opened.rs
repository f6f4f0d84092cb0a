//! An open device, the opening and mapping of its files, and a window in a file.
//!
//! The code is unsafe because the library treats the memory that is mapped here as a device's regions.
#![allow(unsafe_code)]

use super::clock;
use super::mapping::{MemoryType, memory_type};
use super::name::{self, ProcessName};
use super::options::{ChannelLocation, Options};
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use hypertrace_abi::config::{ConfigError, ConfigPage};
use hypertrace_abi::layout::{PAGE, Region};
use hypertrace_segment::{LockFile, Mapping};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// A device, mapped.
pub(super) struct Opened {
    pub place: ChannelLocation,
    pub channel: Channel<'static>,
    pub memory_type: MemoryType,
    /// The memory that `channel` refers to, kept as long as the channel.
    pub mappings: Vec<Mapping>,
    /// File of locks. The locks show processes which clients are free.
    pub lock: Option<LockFile>,
    /// The process's name, for leases of a device that several processes share.
    pub name: Option<ProcessName>,
}

impl Opened {
    /// Returns an open device whose memory is mapped. Chooses the device's clock, and sets fences if the
    /// mapping needs them.
    pub(super) fn new(
        place: ChannelLocation,
        channel: Channel<'static>,
        mappings: Vec<Mapping>,
        lock: LockFile,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        let memory_type = match place {
            ChannelLocation::Segment(_) => MemoryType::WriteBack,
            _ => memory_type(channel.rings),
        };
        let (clock, reason) = clock::choose(options, channel.frequency())?;
        let channel = channel
            .with_fences(memory_type == MemoryType::Uncached)
            .with_clock_because(clock, reason);
        let is_shared = matches!(
            place,
            ChannelLocation::Module(_) | ChannelLocation::Ivshmem(_) | ChannelLocation::Segment(_)
        );
        let name = is_shared.then(|| name::of_process(options)).flatten();
        Ok(Opened { place, channel, memory_type, mappings, lock: Some(lock), name })
    }
}

/// The window of a device, or a segment, at an offset of a file.
pub(super) struct Window<'a> {
    pub file: &'a File,
    /// The name of the file, for errors.
    pub path: &'a Path,
    pub offset: u64,
}

impl Window<'_> {
    /// Copies the window's config page.
    pub(super) fn config_page(&self) -> Result<ConfigPage, OpenError> {
        let first = map(self.file, self.path, self.offset, PAGE, false)?;
        // SAFETY: a page is mapped.
        Ok(unsafe { read_config(first.address()) })
    }

    /// Maps all regions that this copy of the config page describes.
    pub(super) fn map(&self, page: &ConfigPage) -> Result<(Channel<'static>, Mapping), OpenError> {
        let geometry = page.geometry().map_err(|why| not_a_device(self.path, why))?;
        let end = geometry.window_offset(Region::Rings) + geometry.rings_size();
        let window = map(self.file, self.path, self.offset, end, true)?;
        // SAFETY: the window is mapped up to the end of the last region that this copy of the page describes.
        // The process keeps the mapping with the channel.
        let channel = unsafe { Channel::in_window(page, window.address())? };
        Ok((channel, window))
    }
}

/// Returns the error for a file that has no valid config page.
pub(super) fn not_a_device(path: &Path, why: ConfigError) -> OpenError {
    let mut error = OpenError::because("find the config page in", path, std::io::Error::other(why));
    if let (ConfigError::Magic(u64::MAX), OpenError::System { hint, .. }) = (why, &mut error) {
        *hint = "every load gives all ones: the VMM has dropped the device, because its server has ended or \
                 hangs";
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

/// Keeps forked children from inheriting a mapping, because a child opens the device anew.
pub(super) fn keep_from_children(mapping: &Mapping, path: &Path) -> Result<(), OpenError> {
    let kept = mapping.keep_from_children();
    kept.map_err(|why| OpenError::because("keep from children the mapping of", path, why))
}
