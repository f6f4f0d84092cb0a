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
    // The first region is the config page; it says how far the rest goes.
    let first = Mapping::new(&file, path, 0, MIN_BAR, false)?;
    // The only look at the page: other programs can change it at any time.
    // SAFETY: a page of it is mapped, and the file has it.
    let page = unsafe { read_config(first.address()) };
    let geometry = page.geometry().map_err(|why| wrong(why.to_string()))?;
    drop(first);
    let end = geometry.window_offset(Region::Rings) + geometry.rings_size();
    if has < end {
        return Err(wrong(format!("it has {has} bytes, and its config page says {end}")));
    }
    let mapping = Mapping::new(&file, path, 0, end, true)?;
    // SAFETY: the segment is mapped up to the end of the last region of this
    // very copy of the page, and the process keeps the mapping with the channel.
    let channel = unsafe { Channel::in_window(&page, mapping.address())? };
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

/// What the process is called, and its threads that were given no name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcessName {
    /// The process.
    pub name: Box<str>,
    /// Under an emulator, threads have its name, not the program's.
    pub emulator: Option<Box<str>>,
}

impl ProcessName {
    /// Whether this is the name of a thread that was given none.
    pub(super) fn is_of_all(&self, thread: &str) -> bool {
        *thread == *self.name || self.emulator.as_deref() == Some(thread)
    }
}

/// The kernel's name of the process, or the emulator's: QEMU's user mode shows
/// the program where one looks by way of `self`, and itself by `thread-self`.
fn process_name(options: &Options) -> Option<ProcessName> {
    let in_proc = |file: &str| options.proc.join(file);
    let stat = std::fs::read_to_string(in_proc("self/stat")).ok()?;
    let exe = |of: &str| std::fs::read_link(in_proc(of).join("exe")).ok();
    let emulator =
        exe("thread-self").filter(|real| exe("self").is_some_and(|shown| shown != *real));
    Some(ProcessName {
        name: name_in_stat(&stat)?.into(),
        emulator: emulator.and_then(|real| {
            let file = real.file_name()?.to_str()?;
            // As the kernel cuts it off.
            Some(file.get(..file.len().min(15))?.into())
        }),
    })
}

/// A name may have parentheses of its own.
fn name_in_stat(stat: &str) -> Option<&str> {
    let (_, behind) = stat.split_once('(')?;
    Some(behind.rsplit_once(')')?.0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_abi::config::{ConfigPage, HostFacts};
    use hypertrace_abi::layout::Geometry;
    use hypertrace_abi::zerocopy::IntoBytes;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// A channel's regions lie in its mapping, or the library reads and writes
    /// memory that is not the segment's.
    #[test]
    fn a_config_page_that_changes_all_the_time_is_refused_or_fits_its_mapping() {
        let page = |clients| {
            let geometry = Geometry { clients, ..Geometry::default() };
            (ConfigPage::new(&geometry, &HostFacts::default()), geometry)
        };
        let ((small, _), (large, geometry)) = (page(2), page(64));
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(geometry.window_size()).unwrap();
        file.as_file().write_all_at(small.as_bytes(), 0).unwrap();
        let done = AtomicBool::new(false);
        let mut opens = Vec::new();

        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    for page in [&large, &small] {
                        file.as_file().write_all_at(page.as_bytes(), 0).unwrap();
                    }
                }
            });
            opens.extend((0..400).map(|_| open(file.path(), &Options::default())));
            done.store(true, Relaxed);
        });

        for opened in opens {
            match opened {
                Ok(opened) => {
                    let mapped = opened.mappings[0].range();
                    let Channel { rings, data, .. } = opened.channel;
                    for region in [rings, data].map(<[_]>::as_ptr_range) {
                        assert!(mapped.contains(&(region.start as usize)));
                        assert!(region.end as usize <= mapped.end);
                    }
                }
                // The copy was made in the middle of a change.
                Err(OpenError::System { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_process_is_called_what_the_kernel_calls_it() {
        assert_eq!(name_in_stat("12 (a) S 1"), Some("a"));
        assert_eq!(name_in_stat("12 (a) (b)) S 1"), Some("a) (b)"));
        assert_eq!(name_in_stat("12 a S 1"), None);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let name = process_name(&Options::default()).unwrap();
        assert_eq!((&*name.name, name.emulator), (comm.trim_end(), None));
    }
}
