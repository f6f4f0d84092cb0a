//! A segment: a file with the regions of a device in it, for programs outside
//! of any VM.
//!
//! The code is unsafe because the library treats the memory that is mapped here as a device's regions.
#![allow(unsafe_code)]

use super::opened::{Opened, keep_from_children};
use super::options::{ChannelLocation, Options};
use super::sys;
use crate::channel::Channel;
use crate::error::OpenError;
use hypertrace_abi::layout::local::ENVIRONMENT;
use hypertrace_segment::{LockFile, Segment, SegmentError};
use std::io;
use std::path::{Path, PathBuf};

/// Returns the segment that the program's environment names.
pub(super) fn in_environment() -> Option<PathBuf> {
    let path = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty())?;
    (!sys::is_secure()).then(|| path.into())
}

pub(super) fn open(path: &Path, options: &Options) -> Result<Opened, OpenError> {
    use_segment(Segment::open(path), path, options, |file| LockFile::new(file, 0, LockFile::ANY))
}

/// Opens the segment of this lock file again. If the lock file's descriptor is still open, the function uses
/// the descriptor. Otherwise the function opens `path`, which must still name the same file.
pub(super) fn reopen(lock: &LockFile, path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let Some(lock) = lock.move_out() else {
        let opened = open(path, options)?;
        let is_same = opened.lock.as_ref().is_some_and(|now| now.is_same_file(lock));
        let other = || unusable(path, io::Error::other("it is another file than before"));
        return is_same.then_some(opened).ok_or_else(other);
    };
    let file = lock.file().map_err(|why| unusable(path, why))?;
    use_segment(Segment::of_file(file, path), path, options, |_| lock)
}

fn use_segment(
    segment: Result<Segment, SegmentError>,
    path: &Path,
    options: &Options,
    lock: impl FnOnce(std::fs::File) -> LockFile,
) -> Result<Opened, OpenError> {
    let segment = segment.map_err(|why| match why {
        SegmentError::System { source, .. } => unusable(path, source),
        other => unusable(path, io::Error::other(other)),
    })?;
    let (file, mapping, page) = segment.into_parts();
    keep_from_children(&mapping, path)?;
    // SAFETY: the segment is mapped up to the end of the last region that this copy of the page describes.
    // The process keeps the mapping with the channel.
    let channel = unsafe { Channel::in_window(&page, mapping.address())? };
    let place = ChannelLocation::Segment(path.to_owned());
    Opened::new(place, channel, vec![mapping], lock(file), options)
}

fn unusable(path: &Path, source: io::Error) -> OpenError {
    OpenError::System {
        doing: "use as a segment",
        path: path.to_owned(),
        hint: "HYPERTRACE_SEGMENT names the file that `hypertrace record` has made, or a descriptor \
               of it, which a program of another user has to inherit",
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_abi::config::{ConfigPage, HostInfo};
    use hypertrace_abi::layout::Geometry;
    use hypertrace_abi::zerocopy::IntoBytes;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// A channel's regions must be inside its mapping. Otherwise the library
    /// would read and write memory that is not the segment's.
    #[test]
    fn a_config_page_that_changes_all_the_time_is_refused_or_fits_its_mapping() {
        let page = |clients| {
            let geometry = Geometry { clients, ..Geometry::default() };
            (ConfigPage::new(&geometry, &HostInfo::default()), geometry)
        };
        let ((small, _), (large, geometry)) = (page(2), page(64));
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(geometry.window_size()).unwrap();
        file.as_file().write_all_at(small.words().as_bytes(), 0).unwrap();
        let done = AtomicBool::new(false);
        let mut opens = Vec::new();

        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    for page in [&large, &small] {
                        file.as_file().write_all_at(page.words().as_bytes(), 0).unwrap();
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
}
