// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regular files, which no other file replaces while they are opened.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::{Error, Result};

/// Opens a regular file. `why` is what to say of another one.
pub(crate) fn open(path: &Path, why: &str) -> Result<File> {
    // Before the open, which for a device may have an effect.
    let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
    if !metadata.is_file() {
        return Err(Error::unsuitable(path, why));
    }
    // A pipe in its place would wait for a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(Error::io("read", path))?;
    let metadata = file.metadata().map_err(Error::io("read", path))?;
    if !metadata.is_file() {
        return Err(Error::unsuitable(path, why));
    }
    Ok(file)
}

/// Opens a regular file to write at its end.
pub(crate) fn append(path: &Path) -> Result<File> {
    // A pipe in its place would wait for a reader.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = File::options().append(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(Error::io("write", path))?;
    let is_file = file.metadata().map_err(Error::io("read", path))?.is_file();
    is_file.then_some(file).ok_or_else(|| Error::unsuitable(path, "not a file with records"))
}

/// Opens a file of records. `None`: there is none.
pub(crate) fn open_records(path: &Path) -> Result<Option<File>> {
    match open(path, "not a file with records") {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads a regular file of at most `most` bytes. `advice` is what to do about another one.
pub(crate) fn contents(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    let file = open(path, &format!("not a file: {advice}"))?;
    let mut bytes = Vec::new();
    // Files of /proc do not have their size.
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > most {
        return Err(Error::unsuitable(path, format!("more than {most} bytes: {advice}")));
    }
    Ok(bytes)
}
