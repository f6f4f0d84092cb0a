// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Opening and reading the files of inputs. Only regular files are accepted.
//!
//! A pipe would block until there is a writer, opening a device may have an effect, and
//! a link leads out of the session. System calls are rustix's, because std repeats an
//! interrupted one without bound.

use crate::error::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, lstat, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Maximum number of tries of a system call that signals interrupt.
const MOST_TRIES: u32 = 100;

/// An open file, with its length.
#[derive(Debug)]
pub(crate) struct Opened {
    pub file: File,
    pub len: u64,
}

/// Why a file cannot be opened.
pub(crate) enum NotOpened {
    /// Something that is not a regular file has its name.
    Kind(&'static str),
    Io(io::Error),
}

impl NotOpened {
    /// Converts the reason to an error, with another kind of file as damage.
    pub fn damage(self, path: &Path) -> Error {
        match self {
            NotOpened::Kind(found) => Error::damaged(path, 0, "a regular file", found),
            NotOpened::Io(source) => Error::io(path)(source),
        }
    }
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> std::result::Result<Opened, NotOpened> {
    let io = |errno: Errno| NotOpened::Io(errno.into());
    // Before the open, which for a device may have an effect.
    regular(lstat(path).map_err(io)?.st_mode)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = retry(|| openat(CWD, path, flags, Mode::empty())).map_err(NotOpened::Io)?;
    let stat = fstat(&file).map_err(io)?;
    regular(stat.st_mode)?;
    Ok(Opened { file: file.into(), len: u64::try_from(stat.st_size).unwrap_or(0) })
}

/// Opens a regular file; another kind of file is damage.
pub(crate) fn open_stream(path: &Path) -> Result<Opened> {
    open(path).map_err(|why| why.damage(path))
}

fn regular(mode: u32) -> std::result::Result<(), NotOpened> {
    Err(NotOpened::Kind(match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    }))
}

/// Reads up to the buffer's length or the file's end. Returns the number of bytes.
pub(crate) fn read_at(file: &File, bytes: &mut [u8], mut at: u64) -> io::Result<usize> {
    let mut filled = 0;
    let mut tries = 1;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at) {
            Ok(0) => break,
            Ok(n) => {
                filled += n;
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted && tries < MOST_TRIES => tries += 1,
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match call() {
            Err(Errno::INTR) if tries < MOST_TRIES => tries += 1,
            done => return done.map_err(io::Error::from),
        }
    }
}
