// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A reader of the parts of a file. The reader's errors name the place of the wrong bytes.

use crate::error::{Error, Result};
use crate::value::number;
use std::path::Path;

/// Maximum size of a part of a file that is read at once, in bytes. The formats of all events of Linux 6.18
/// have 4 MiB, and the names of all functions of Linux 6.18 have 12 MiB.
pub(crate) const MAX: u64 = 64 << 20;

/// Bytes of a file, and the position of the next byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    /// Place of `bytes` in the file.
    base: u64,
    at: usize,
    /// Whether the bytes are the file's own bytes. If false, the bytes were decompressed.
    plain: bool,
}

impl<'a> Bytes<'a> {
    pub fn new(path: &'a Path, bytes: &'a [u8], base: u64, plain: bool) -> Bytes<'a> {
        Bytes { path, bytes, base, at: 0, plain }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns the place in the file of the next byte. If the bytes were decompressed, returns the place of
    /// the compressed part.
    pub fn offset(&self) -> u64 {
        self.base + if self.plain { self.at as u64 } else { 0 }
    }

    /// Returns `bytes`, which must be the next bytes, as a part with a position of its own.
    pub fn part(&self, bytes: &'a [u8]) -> Bytes<'a> {
        Bytes { path: self.path, bytes, base: self.offset(), at: 0, plain: self.plain }
    }

    /// Returns the number of bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns an error that names the place of the next byte.
    pub fn damaged(&self, expected: &str, found: impl std::fmt::Display) -> Error {
        let inside = if self.plain { String::new() } else { format!(" at its byte {}", self.at) };
        Error::damaged(self.path, self.offset(), expected, format!("{found}{inside}"))
    }

    pub fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        if len > self.left() as u64 {
            let expected = format!("{what}, {len} bytes");
            return Err(self.damaged(&expected, format_args!("{} bytes", self.left())));
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    pub fn number(&mut self, len: u64, what: &str) -> Result<u64> {
        self.take(len, what).map(number)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(self.number(4, what)? as u32)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.number(8, what)
    }

    /// Returns the rest as a text. The text ends at the first NUL, if there is one.
    pub fn rest(&mut self) -> std::borrow::Cow<'a, str> {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        String::from_utf8_lossy(rest.split(|byte| *byte == 0).next().unwrap_or_default())
    }

    /// Returns the text up to the next NUL.
    pub fn text(&mut self, what: &str) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some(len) = rest.iter().position(|byte| *byte == 0) else {
            return Err(self.damaged(&format!("{what}, a text with a NUL"), "none"));
        };
        self.at += len + 1;
        Ok(&rest[..len])
    }
}
