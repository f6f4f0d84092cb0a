// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Cuts files of records at their last record, after the recorder was killed.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::WINDOW;
use crate::record::{Record, SIZE};
use crate::{Error, Result, file};

/// Most zeros at the end of a file: a recorder has two windows at a time.
const MAX_ZEROS: u64 = 4 * WINDOW;

/// Bytes that are read at a time.
const CHUNK: u64 = 1 << 16;

/// Bytes that [`cut`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files that were shortened.
    pub files: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Shortens all files of records in a directory to their last whole record. No recorder may be writing there.
///
/// # Errors
/// If a file cannot be read or shortened, or has more zeros at its end than a recorder leaves. The others are shortened.
pub fn cut(directory: &Path) -> Result<Removed> {
    let mut removed = Removed::default();
    let mut first = None;
    for entry in fs::read_dir(directory).map_err(Error::io("read", directory))? {
        let entry = entry.map_err(Error::io("read", directory))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".dat"));
        let is_task = number.is_some_and(|number| number.parse::<u32>().is_ok());
        // Not a link to another directory's file.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_task || !is_file {
            continue;
        }
        match cut_file(&entry.path()) {
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

/// Shortens a file. Returns the removed bytes.
fn cut_file(path: &Path) -> Result<u64> {
    let file = fs::File::options().read(true).write(true).open(path);
    let file = file.map_err(Error::io("write", path))?;
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let end = end_of_records(&file, path, length)?;
    if end < length {
        file.set_len(end).map_err(Error::io("write", path))?;
    }
    Ok(length.saturating_sub(end))
}

/// Opens a file of records, and finds the end of the last one. `None`: there is no such file.
pub(super) fn whole_records(path: &Path) -> Result<Option<(fs::File, u64)>> {
    let Some(file) = file::open_records(path)? else { return Ok(None) };
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let end = end_of_records(&file, path, length)?;
    Ok(Some((file, end)))
}

/// Finds the end of the last record: after it are zeros, or a part of a record.
fn end_of_records(file: &fs::File, path: &Path, length: u64) -> Result<u64> {
    let size = SIZE as u64;
    let mut buffer = vec![0; CHUNK as usize];
    let mut end = length / size * size;
    let lowest = end.saturating_sub(MAX_ZEROS);
    // At most MAX_ZEROS / CHUNK rounds.
    while end > lowest {
        let from = end.saturating_sub(CHUNK).max(lowest);
        let chunk = &mut buffer[..(end - from) as usize];
        file.read_exact_at(chunk, from).map_err(Error::io("read", path))?;
        for (index, bytes) in chunk.as_chunks::<SIZE>().0.iter().enumerate().rev() {
            if *bytes != [0; SIZE] {
                let start = from + index as u64 * size;
                // Of the last record, one half may be missing.
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
