// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regular files, which no other file replaces while they are opened.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::{Error, Result};

/// Opens a regular file of a directory. `why` is what to say of another one: a link leads out of the directory.
fn open(path: &Path, why: &str) -> Result<File> {
    opened(path, why, |path| fs::symlink_metadata(path), OFlags::NOFOLLOW)
}

fn open_given(path: &Path, why: &str) -> Result<File> {
    opened(path, why, |path| fs::metadata(path), OFlags::empty())
}

fn opened(
    path: &Path,
    why: &str,
    look: fn(&Path) -> io::Result<fs::Metadata>,
    flags: OFlags,
) -> Result<File> {
    // Before the open, which for a device may have an effect.
    let metadata = look(path).map_err(Error::io("read", path))?;
    if !metadata.is_file() {
        return Err(Error::unsuitable(path, why));
    }
    // A pipe in its place would wait for a writer.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
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
    is_file.then_some(file).ok_or_else(|| Error::unsuitable(path, NO_RECORDS))
}

const NO_RECORDS: &str = "not a file with records";

/// Opens a file of records in a directory. `None`: there is none.
pub(crate) fn open_records(path: &Path) -> Result<Option<File>> {
    match open(path, NO_RECORDS) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads a regular file of a directory, of at most `most` bytes. `advice` is what to do about another one.
pub(crate) fn contents(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    whole(open(path, &format!("not a file: {advice}"))?, path, most, advice)
}

/// Reads a file that is given by its name, which may be a link's, as [`contents`] does.
pub(crate) fn given(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    whole(open_given(path, &format!("not a file: {advice}"))?, path, most, advice)
}

fn whole(file: File, path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    let too_large = || Error::unsuitable(path, format!("more than {most} bytes: {advice}"));
    // Before the contents: a sparse file of any size takes no room on a disk, and memory for all of its bytes.
    if file.metadata().map_err(Error::io("read", path))?.len() > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // Files of /proc do not have their size.
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}
