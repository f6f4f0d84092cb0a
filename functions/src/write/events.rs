// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events among the calls, as a stream.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use super::{private, text};
use crate::{Error, Result};

/// Writer of `extern.dat`, which appears when it is finished.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    aside: PathBuf,
    file: BufWriter<File>,
    time: u64,
}

impl Events {
    pub(super) fn create(directory: &Path) -> Result<Self> {
        let (path, aside) = (directory.join("extern.dat"), directory.join(".extern.dat.new"));
        let file = private::another_file(&aside).map_err(Error::io("create", &aside))?;
        Ok(Events { path, aside, file: BufWriter::with_capacity(1 << 16, file), time: 0 })
    }

    /// Writes an event: its time in nanoseconds, as in records, and its text. One with an earlier time than the one before
    /// it gets that one's, because readers expect an order.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, time: u64, event: &str) -> Result<()> {
        self.time = self.time.max(time);
        let line = text::event_line(self.time, event);
        self.file.write_all(line.as_bytes()).map_err(Error::io("write", &self.aside))
    }

    /// Returns the time of the last event, in nanoseconds, or 0.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Writes what is buffered, and gives the file its name.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(Error::io("write", &self.aside))?;
        fs::rename(&self.aside, &self.path).map_err(Error::io("write", &self.path))
    }
}
