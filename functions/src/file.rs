// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Files that are read as a whole.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use crate::{Error, Result};

/// Reads a regular file of at most `most` bytes. `advice` is what to do about another one.
pub(crate) fn contents(path: &Path, most: u64, advice: &str) -> Result<Vec<u8>> {
    // Not opened before: a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
    if !metadata.is_file() {
        return Err(Error::unsuitable(path, format!("not a file: {advice}")));
    }
    let file = File::open(path).map_err(Error::io("read", path))?;
    let mut bytes = Vec::new();
    // Files of /proc do not have their size.
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > most {
        return Err(Error::unsuitable(path, format!("more than {most} bytes: {advice}")));
    }
    Ok(bytes)
}
