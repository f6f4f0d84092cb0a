//! A segment: a file with the regions of a device in it, for programs outside
//! of any VM.
//!
//! Unsafe, because what is mapped here is taken for a device's regions.
#![allow(unsafe_code)]

use super::device::{Opened, open_file};
use super::lock::LockFile;
use super::mapping::{Mapping, MemoryType};
use super::{Options, clock, sys};
use crate::channel::{Channel, read_config};
use crate::error::OpenError;
use crate::mmio::Store;
use hypertrace_abi::layout::local::{ENVIRONMENT, STORE_ENVIRONMENT};
use hypertrace_abi::layout::{MIN_BAR, Region};
use std::io;
use std::path::{Path, PathBuf};

/// The segment that the program's environment names.
pub(super) fn in_environment() -> Option<PathBuf> {
    let path = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty())?;
    (!sys::is_secure()).then(|| path.into())
}

/// Maps the segment in this file.
pub(super) fn open(path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let file = open_file(path, false).map_err(|why| match why {
        OpenError::System { source, .. } => unusable(path, source),
        other => other,
    })?;
    map(LockFile::new(file, 0), path, options)
}

/// Maps the segment in a file that is open.
pub(super) fn map(lock: LockFile, path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let wrong = |why: String| unusable(path, io::Error::other(why));
    let file = lock.file().map_err(|why| unusable(path, why))?;
    let has = file.metadata().map_err(|why| unusable(path, why))?.len();
    if has < MIN_BAR {
        return Err(wrong(format!("it has {has} bytes and no room for a config page")));
    }
    // The first region is the config page; it tells how far the rest goes.
    let first = Mapping::new(&file, path, 0, MIN_BAR, false)?;
    // SAFETY: a page of it is mapped, and the file has it.
    let page = unsafe { read_config(first.address()) };
    let geometry = page.geometry().map_err(|why| wrong(why.to_string()))?;
    drop(first);
    let end = geometry.window_offset(Region::Rings) + geometry.rings_size();
    if has < end {
        return Err(wrong(format!("it has {has} bytes, and its config page says {end}")));
    }
    let mapping = Mapping::new(&file, path, 0, end, true)?;
    // SAFETY: the segment is mapped up to the last region's end, and the
    // process keeps the mapping with the channel.
    let channel = unsafe { Channel::at_window(mapping.address())? };
    if channel.traps() {
        return Err(wrong("it is a device's: its config page says TRAPS".into()));
    }
    let channel = channel.with_clock(clock::choose(options, channel.frequency()));
    Ok(Opened {
        channel: channel.with_store(store(options)?),
        memory_type: MemoryType::WriteBack,
        mappings: vec![mapping],
        lock: Some(lock),
        name: process_name(options),
    })
}

/// How to store to registers: as told, then as the environment says.
fn store(options: &Options) -> Result<Store, OpenError> {
    if let Some(store) = options.store {
        return Ok(store);
    }
    let told = std::env::var_os(STORE_ENVIRONMENT).filter(|told| !told.is_empty());
    match told.filter(|_| !sys::is_secure()) {
        None => Ok(Store::default()),
        Some(told) if told == "marked" => Ok(Store::Marked),
        Some(told) if told == "syscall" => Ok(Store::Syscall),
        Some(told) => Err(OpenError::Store(told.to_string_lossy().into_owned())),
    }
}

/// The kernel's name of the process.
fn process_name(options: &Options) -> Option<Box<str>> {
    let name = std::fs::read_to_string(options.proc.join("self/comm")).ok()?;
    Some(name.trim_end().into())
}

fn unusable(path: &Path, source: io::Error) -> OpenError {
    OpenError::System {
        doing: "use as a segment",
        path: path.to_owned(),
        hint: "HYPERTRACE_SEGMENT names the file that `hypertrace run` has made, or a descriptor \
               of it that has to be inherited",
        source,
    }
}
