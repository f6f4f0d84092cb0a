// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes a directory that uftrace can read at any time, even if the recorder was killed.
//!
//! | file | contents |
//! |---|---|
//! | `info` | a header of 40 bytes, then lines: the program, the command, the numbers of all tasks |
//! | `task.txt` | for each task a session (which has its name) and the task itself |
//! | `sid-0000000000000001.map` | address ranges of the modules, as lines of `/proc/PID/maps`; 48-bit addresses |
//! | `MODULE.sym` | functions of a module: `ADDRESS T NAME`, relative to the module's first address |
//! | `TID.dat` | records of a task, 16 bytes each ([`crate::record`]) |
//! | `extern.dat` | events: `SECONDS.NANOSECONDS TEXT` |
//! | `hypertrace.json` | where time 0 is on the host's clocks ([`crate::clock::Anchor`]); uftrace ignores it |
//!
//! Except for the files of records, the writer replaces each file as a whole: a rename puts the new file in
//! place of the old file. Therefore a reader never sees a part of such a file.
//!
//! A recorder appends records in *windows*: the recorder extends `TID.dat` by up to [`WINDOW`] zero bytes,
//! maps these bytes, and fills the bytes from the beginning. At the end, the recorder cuts the file after its
//! last record. After a kill, the zeros remain until [`cut`] removes the zeros. uftrace ignores the zeros,
//! and prints a warning.

mod cut;
mod directory;
mod events;
mod text;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

pub use cut::{Removed, cut};
pub use directory::Directory;
pub use events::Events;
pub use text::{event_line, reader_name};

use crate::record::Record;
use crate::{Error, Result};

/// Maximum number of bytes by which a recorder extends a file of records at once. The number is a multiple of
/// a page's size and of a record's size.
pub const WINDOW: u64 = 32 << 20;

/// Writer of a task's records for programs that convert other traces. The writer uses plain system calls.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Records {
    fn of(file: File, path: PathBuf) -> Records {
        Records { path, file: BufWriter::with_capacity(1 << 16, file) }
    }

    /// Opens the file of records that [`Directory::add_tasks`] has created. The writer writes at the file's
    /// end.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn append(path: &Path) -> Result<Self> {
        let file = crate::file::append(path)?;
        Ok(Records::of(file, path.to_owned()))
    }

    /// Appends a record. The caller has to write records in the order of time, and has to balance entries and
    /// exits.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, record: Record) -> Result<()> {
        self.file.write_all(&record.to_bytes()).map_err(Error::io("write", &self.path))
    }

    /// Writes the buffered records.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(Error::io("write", &self.path))
    }
}
