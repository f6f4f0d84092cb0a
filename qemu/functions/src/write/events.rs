// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writer of the events that a reader shows among the calls.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use hypertrace_format::folder::Folder;

use super::text;
use crate::{Error, Result};

const FILE: &str = "extern.dat";
/// Name of the file while it is written.
const ASIDE: &str = ".extern.dat.new";

/// Writer of `extern.dat`. The file gets its name when the writer is finished.
#[derive(Debug)]
pub struct Events {
    folder: Folder,
    path: PathBuf,
    file: BufWriter<File>,
    time: u64,
}

impl Events {
    pub(super) fn create(folder: Folder) -> Result<Self> {
        let path = folder.path().join(FILE);
        let file = File::from(folder.new_file(ASIDE).map_err(Error::io("create", &path))?);
        Ok(Events { folder, path, file: BufWriter::with_capacity(1 << 16, file), time: 0 })
    }

    /// Writes an event: its time in nanoseconds, as in records, and its text. If the time is earlier than the
    /// last event's time, then the event's time becomes the last event's time, because readers expect the
    /// events in the order of time.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, time: u64, event: &str) -> Result<()> {
        self.time = self.time.max(time);
        let line = text::event_line(self.time, event);
        self.file.write_all(line.as_bytes()).map_err(Error::io("write", &self.path))
    }

    /// Returns the time of the last event, in nanoseconds, or 0.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Writes the buffered events, and gives the file its name.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        let written = self.file.flush().and_then(|()| self.folder.rename(ASIDE, FILE));
        written.map_err(Error::io("write", &self.path))
    }
}
