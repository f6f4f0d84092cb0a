// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Cuts files of records after their last record, when the recorder was killed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hypertrace_format::error::Warning;
use hypertrace_format::folder::{Folder, NotRegular, Share};
use rustix::fs::OFlags;

use super::WINDOW;
use crate::record::{Malformed, Record, SIZE};
use crate::{Error, Result, file};

/// Maximum size in bytes of the zeros at the end of a file. A killed recorder leaves fewer zeros, because a
/// recorder has only two windows mapped at a time.
const MAX_ZEROS: u64 = 4 * WINDOW;

/// Number of bytes that are read at a time.
const CHUNK: u64 = 1 << 16;

/// Counts of what [`cut`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of shortened files.
    pub files: u64,
    /// Number of bytes that were removed from all files.
    pub bytes: u64,
}

/// Shortens all files of records in a directory, so that each file ends with its last whole record. No
/// recorder may be writing to the directory.
///
/// # Errors
/// If a file cannot be read or shortened, or has more zeros at its end than a recorder leaves. An error of
/// one file does not keep the other files from being shortened.
pub fn cut(directory: &Path) -> Result<Removed> {
    let mut removed = Removed::default();
    let mut first = None;
    let folder = Folder::open(directory, Share::Owner).map_err(Error::io("read", directory))?;
    for name in folder.all_names().map_err(Error::io("read", directory))? {
        let number = name.to_str().and_then(|name| name.strip_suffix(".dat"));
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        // A link is left out, because a link leads to a file of another directory.
        let file = match folder.file(&name, OFlags::RDWR) {
            Err(why) if NotRegular::of(&why).is_some() => continue,
            file => file.map(|(file, _)| File::from(file)),
        };
        let path = directory.join(&name);
        match file.map_err(Error::io("write", &path)).and_then(|file| cut_file(&file, &path)) {
            Ok(0) => {}
            Ok(bytes) => {
                removed.files += 1;
                removed.bytes += bytes;
            }
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(error) => Err(error),
        None => Ok(removed),
    }
}

/// Shortens a file. Returns the number of removed bytes.
fn cut_file(file: &File, path: &Path) -> Result<u64> {
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let end = end_of_records(file, path, length)?;
    if end < length {
        file.set_len(end).map_err(Error::io("write", path))?;
    }
    Ok(length.saturating_sub(end))
}

/// Opens a file of records, and finds the end of the last record. Returns `None` if there is no such file.
/// Adds a warning if the file ends with a part of a record that a killed recorder cannot have left.
pub(super) fn whole_records(
    path: &Path,
    warnings: &mut Vec<Warning>,
) -> Result<Option<(File, u64)>> {
    let Some(file) = file::open_records(path)? else { return Ok(None) };
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let end = end_of_records(&file, path, length)?;
    let mut rest = [0; SIZE];
    let rest = &mut rest[..(length % SIZE as u64) as usize];
    // A recorder extends its files by whole records. Therefore, if the bytes after the last whole record are
    // not all zeros, no kill of the recorder explains these bytes.
    file.read_exact_at(rest, length - rest.len() as u64).map_err(Error::io("read", path))?;
    if rest.iter().any(|byte| *byte != 0) {
        let why = Error::damaged(path, length - rest.len() as u64, Malformed::Cut);
        warnings.push(Warning::damage(why.to_string()));
    }
    Ok(Some((file, end)))
}

/// Finds the end of the last record. After the record, the file may have zeros or a part of a record.
fn end_of_records(file: &File, path: &Path, length: u64) -> Result<u64> {
    let size = SIZE as u64;
    let mut buffer = vec![0; CHUNK as usize];
    let mut end = length / size * size;
    let lowest = end.saturating_sub(MAX_ZEROS);
    // The loop has at most MAX_ZEROS / CHUNK rounds, because each round reads CHUNK bytes.
    while end > lowest {
        let from = end.saturating_sub(CHUNK).max(lowest);
        let chunk = &mut buffer[..(end - from) as usize];
        file.read_exact_at(chunk, from).map_err(Error::io("read", path))?;
        for (index, bytes) in chunk.as_chunks::<SIZE>().0.iter().enumerate().rev() {
            if *bytes != [0; SIZE] {
                let start = from + index as u64 * size;
                // One half of the last record may be missing.
                let is_whole = Record::from_bytes(*bytes).is_ok();
                return Ok(if is_whole { start + size } else { start });
            }
        }
        end = from;
    }
    if end > 0 {
        let why =
            format!("no record in the last {MAX_ZEROS} bytes: no recorder leaves so many zeros");
        return Err(Error::damaged(path, end, why));
    }
    Ok(0)
}
