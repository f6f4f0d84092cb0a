// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regular files of directories, and files that a user gives.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use hypertrace_format::folder::{NotRegular, open_given, open_regular};
use rustix::fs::{CWD, OFlags};

use crate::{Error, Result};

/// Returns a function that converts the error of an open. If the path does not lead to a regular file, the
/// converted error says what was found there.
fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |why| match NotRegular::of(&why) {
        Some(found) => Error::unsuitable(path, found),
        None => Error::io(what, path)(why),
    }
}

/// Opens a regular file of a directory. A link is refused, because a link could lead out of the directory.
fn open(path: &Path) -> Result<File> {
    let opened = open_regular(CWD, path, OFlags::RDONLY).map_err(failed("read", path));
    opened.map(|(file, _)| file.into())
}

/// Opens a regular file to write at its end.
pub(crate) fn append(path: &Path) -> Result<File> {
    let opened = open_regular(CWD, path, OFlags::WRONLY | OFlags::APPEND);
    opened.map(|(file, _)| file.into()).map_err(failed("write", path))
}

/// Opens a file of records in a directory. Returns `None` if the file does not exist.
pub(crate) fn open_records(path: &Path) -> Result<Option<File>> {
    match open(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads a regular file of a directory, of at most `most` bytes. `advice` says what to do about a larger
/// file.
pub(crate) fn contents(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    whole(open(path)?, path, most, advice)
}

/// Reads a file that a user gives, as [`contents`] does. The path may be a link.
pub(crate) fn given(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    let (file, _) = open_given(path, OFlags::RDONLY).map_err(failed("read", path))?;
    whole(file.into(), path, most, advice)
}

fn whole(file: File, path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    let too_large = || Error::unsuitable(path, format!("more than {most} bytes: {advice}"));
    // The size is checked before the contents are read, because a sparse file may take little room on the
    // disk, but its contents take memory for every byte.
    if file.metadata().map_err(Error::io("read", path))?.len() > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // The code also limits the read, because the size of a file in /proc is not known before the read.
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}
