// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Records of one task, in the order of the file.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::record::{Malformed, Record, SIZE};
use crate::{Error, Result, file};

/// Iterator over the records of a file.
///
/// It ends at zeros that were never written, at an incomplete record, and after the first error.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    /// Nothing after the end
    file: Option<BufReader<File>>,
    offset: u64,
}

impl Records {
    /// Opens a file of records. One that does not exist has no records.
    ///
    /// # Errors
    /// If it is not a file, or cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = file::open_records(path)?;
        let file = file.map(|file| BufReader::with_capacity(1 << 16, file));
        Ok(Records { path: path.to_owned(), file, offset: 0 })
    }

    /// Reads the next record; `None` at the end.
    fn read(&mut self) -> Result<Option<Record>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let mut bytes = [0; SIZE];
        match file.read_exact(&mut bytes) {
            Ok(()) => {}
            // A part of a record: its writer was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(Error::io("read", &self.path)(error)),
        }
        match Record::from_bytes(bytes) {
            Ok(record) => {
                self.offset += SIZE as u64;
                Ok(Some(record))
            }
            Err(Malformed::Unwritten) => Ok(None),
            Err(error) => Err(Error::damaged(&self.path, self.offset, error)),
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let next = self.read().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.file = None;
        }
        next
    }
}
