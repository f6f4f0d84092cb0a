// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Opens and reads the files of inputs. Only regular files are accepted.

use crate::error::{Error, Result};
pub(crate) use hypertrace_format::folder::read_at;
use hypertrace_format::folder::{NotRegular, open_given, open_regular};
use rustix::fs::{CWD, OFlags, Stat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An open file, with its length.
#[derive(Debug)]
pub(crate) struct Opened {
    pub file: File,
    pub len: u64,
}

impl Opened {
    fn new((file, stat): (OwnedFd, Stat)) -> Opened {
        Opened { file: file.into(), len: u64::try_from(stat.st_size).unwrap_or(0) }
    }
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> io::Result<Opened> {
    open_regular(CWD, path, OFlags::RDONLY).map(Opened::new)
}

/// Opens a regular file that a user has named. The name may be the name of a link.
pub(crate) fn given(path: &Path) -> io::Result<Opened> {
    open_given(path, OFlags::RDONLY).map(Opened::new)
}

/// Opens a regular file. If the file is no regular file, the input counts as damaged.
pub(crate) fn open_stream(path: &Path) -> Result<Opened> {
    open(path).map_err(|why| match not_regular(&why) {
        Some(found) => Error::damaged(path, 0, "a regular file", found),
        None => Error::io(path)(why),
    })
}

/// Returns the kind of the file, if the file cannot be opened because it is no regular file.
pub(crate) fn not_regular(why: &io::Error) -> Option<&'static str> {
    NotRegular::of(why).map(|found| found.0)
}
