//! Output of the simple backend: a file that is opened with checks, and written without waiting for the
//! file's reader.
//!
//! If the disk is full, the file stays valid: a partly written record is cut off, and written again when the
//! disk has room. A pipe takes the bytes for which it has room, and the other bytes wait in the output's
//! buffer.

use super::HEADER;
use crate::ctf::Folder;
use hypertrace_format::folder::{check_size, read_at, retry, set_len};
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::process::geteuid;
use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zerocopy::IntoBytes;

/// A file, and whole records that wait for the write to the file.
pub(super) struct Out {
    file: File,
    meta: Metadata,
    bytes: Vec<u8>,
    /// Number of `bytes` that are written.
    sent: usize,
    /// Index in `bytes` of the end of a record that is written whole.
    whole: usize,
    /// Number of bytes in the file before `bytes`.
    before: u64,
    /// True if the pipe's reader is gone. The output then writes no more records, because a new reader would
    /// begin in the middle of a record.
    broken: bool,
}

impl AsFd for Out {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Out {
    /// Begins a file, and writes the file's header. The new file replaces an existing file. An existing file
    /// must be empty, or begin with the header of a simpletrace file.
    pub fn create(path: &Path, session: &Folder) -> io::Result<Out> {
        let mut file = open(path, session)?;
        let meta = file.metadata()?;
        if meta.is_file() {
            empty(&mut file)?;
        }
        let bytes = HEADER.as_bytes().to_vec();
        let mut out = Out { file, meta, bytes, sent: 0, whole: 0, before: 0, broken: false };
        out.send()?;
        Ok(out)
    }

    /// Returns true if this output writes to `path`.
    pub fn is(&self, path: &Path) -> bool {
        let id = |meta: &Metadata| (meta.dev(), meta.ino());
        std::fs::symlink_metadata(path).is_ok_and(|meta| id(&meta) == id(&self.meta))
    }

    /// Returns true if the output is a regular file.
    pub fn is_file(&self) -> bool {
        self.meta.is_file()
    }

    /// Returns true if all bytes are written.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Returns the number of bytes that have been written until now.
    pub fn written(&self) -> u64 {
        self.before + self.sent as u64
    }

    /// Returns the records that are not written or only partly written.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.last_whole()..]
    }

    /// Discards all bytes of the buffer, and returns the buffer for further records. The bytes are already
    /// written, or the caller gives them up.
    pub fn renew(&mut self) -> &mut Vec<u8> {
        self.before += self.sent as u64;
        (self.sent, self.whole) = (0, 0);
        self.bytes.clear();
        &mut self.bytes
    }

    /// Writes as many bytes as possible without waiting. A full pipe is no error.
    pub fn send(&mut self) -> io::Result<()> {
        while !self.is_empty() {
            if self.broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let bytes = &self.bytes[self.sent..];
            let fits = if self.is_file() {
                check_size(self.written() + bytes.len() as u64)
            } else {
                Ok(())
            };
            let why = match fits.and_then(|()| retry(|| rustix::io::write(&self.file, bytes))) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(n) => {
                    self.sent += n;
                    continue;
                }
                Err(why) => why,
            };
            match why.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                io::ErrorKind::BrokenPipe => self.broken = true,
                _ => self.cut(),
            }
            return Err(why);
        }
        Ok(())
    }

    /// Cuts off a partly written record, because every reader would stop at such a record.
    fn cut(&mut self) {
        self.whole = self.last_whole();
        if self.is_file() && self.sent > self.whole {
            let end = self.before + self.whole as u64;
            // The result is ignored: if the cut fails, the same bytes will be written again at the same
            // place.
            let _ = set_len(&self.file, end);
            if self.file.seek(SeekFrom::Start(end)).is_ok() {
                self.sent = self.whole;
            }
        }
    }

    /// Returns the end of the last record that is written whole.
    fn last_whole(&self) -> usize {
        let mut at = self.whole;
        while let Some(len) = record_len(&self.bytes[at..])
            && at + len <= self.sent
        {
            at += len;
        }
        at
    }
}

/// Returns the size in bytes of the record at the beginning of `bytes`.
pub(super) fn record_len(bytes: &[u8]) -> Option<usize> {
    let u32_at = |at: usize| {
        let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    Some(match super::word(bytes, 0)? {
        super::EVENT => 8 + u32_at(24)?,
        super::MAPPING => 20 + u32_at(16)?,
        _ => size_of_val(&HEADER),
    })
}

/// Opens an existing file of this user, or creates a file with the mode of the session's files. The function
/// follows no link, because other users may write to the directory, as in `/tmp`.
fn open(path: &Path, session: &Folder) -> io::Result<File> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let (above, name) = Folder::above(path, session.share())?;
    let before = match above.stat_of(&name) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            return above.only_file(&name).map(File::from);
        }
        Err(why) => return Err(why),
    };
    let access = match before {
        FileType::Fifo | FileType::CharacterDevice => OFlags::WRONLY,
        // An existing file is opened for reading, too, because its contents are checked.
        FileType::RegularFile => OFlags::RDWR,
        FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
        FileType::Symlink => return Err(refused("it is a link; give the file's own path".into())),
        _ => return Err(refused("it is no file and no pipe; nothing was written".into())),
    };
    // The reader of a pipe or a terminal must not delay the drain.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file =
        retry(|| openat(&above, &name, flags | access, Mode::empty())).map_err(|why| match why
            .raw_os_error()
        {
            Some(libc::ENXIO) if before == FileType::Fifo => {
                refused("nobody reads this pipe; start its reader first".into())
            }
            _ => why,
        })?;
    // The kind is checked again, because another file may have got the name since the first check.
    let stat = fstat(&file)?;
    let (owner, user) = (stat.st_uid, geteuid().as_raw());
    match FileType::from_raw_mode(stat.st_mode) {
        now if now != before => Err(refused("another file has got its name".into())),
        // A device such as /dev/null belongs to the system and not to a user.
        FileType::CharacterDevice => Ok(file.into()),
        _ if owner == user => Ok(file.into()),
        _ => Err(refused(format!(
            "it belongs to user {owner}, not to user {user} who runs this; nothing was written"
        ))),
    }
}

/// Checks that a file is empty or a simpletrace file, and cuts the file to length 0.
fn empty(file: &mut File) -> io::Result<()> {
    let mut head = [0; size_of_val(&HEADER)];
    let read = read_at(&*file, &mut head, 0)?;
    if !HEADER.as_bytes().starts_with(&head[..read]) {
        let why = "this file exists and is no simple trace; nothing was overwritten";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    set_len(&*file, 0)?;
    file.rewind()
}
