//! A directory of a session, held by its descriptor.
//!
//! Every file of a session is made, opened, renamed and removed relative to
//! such a descriptor, and no link is followed on the way: a directory that is
//! renamed or replaced meanwhile, or a link that is planted in it, sends
//! no write elsewhere. A file is always a new one that gets its name by rename.
//! Modes are set, not left to the umask.
//!
//! System calls are rustix's, as std repeats an interrupted one without bound.

use crate::error::{DirectoryError, WriteFailed};
use rustix::fs::unlinkat;
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::fs::{fchmod, flock, fstat, ftruncate, mkdirat, openat, renameat, statat};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{Resource, geteuid, getrlimit};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tries of a system call that signals interrupt. After that the interruption
/// is an error like any other.
pub const MOST_TRIES: u32 = 100;

/// Entries that a folder is asked for at most; a trace has fewer files.
const MOST_NAMES: usize = 1 << 20;

/// The users that may read a session, besides its owner. A session holds what
/// guests and programs traced, which may be anything; only the owner can
/// write to it. The control socket and a segment's file are the owner's alone,
/// always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Share {
    /// None: directories of mode 0700, files of mode 0600.
    #[default]
    Owner,
    /// The directory's group: 0750, 0640.
    Group,
    /// All: 0755, 0644.
    All,
}

impl Share {
    /// Returns the mode of directories.
    pub fn folder_mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            Share::Owner => 0o700,
            Share::Group => 0o750,
            Share::All => 0o755,
        })
    }

    /// Returns the mode of files.
    pub fn file_mode(self) -> Mode {
        self.folder_mode() & !Mode::from_raw_mode(0o111)
    }
}

/// Calls until it is not interrupted, at most a hundred times.
pub fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match call() {
            Err(Errno::INTR) if tries < MOST_TRIES => tries += 1,
            done => return done.map_err(io::Error::from),
        }
    }
}

/// Writes all of it; what remains of a short write is tried again, so that the
/// reason shows.
pub fn write_at(file: impl AsFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match retry(|| pwrite(&file, bytes, at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                bytes = bytes.get(n..).unwrap_or_default();
                at += n as u64;
            }
        }
    }
    Ok(())
}

/// Reads as much as there is, up to the buffer's length.
pub fn read_at(file: impl AsFd, bytes: &mut [u8], mut at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match retry(|| pread(&file, &mut bytes[filled..], at))? {
            0 => break,
            n => {
                filled += n;
                at += n as u64;
            }
        }
    }
    Ok(filled)
}

/// Gives a file this length.
pub fn set_len(file: impl AsFd, len: u64) -> io::Result<()> {
    retry(|| ftruncate(&file, len))
}

/// Returns device and inode, which no other file has.
pub fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Checks that a file may have this many bytes. Beyond RLIMIT_FSIZE the kernel refuses them with
/// a SIGXFSZ, which ends a process by default.
///
/// # Errors
/// If it may not: the error names the limit.
pub fn check_size(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current.filter(|limit| bytes > *limit) {
        None => Ok(()),
        Some(limit) => {
            let why = format!("{bytes} bytes are beyond RLIMIT_FSIZE, {limit} (see ulimit -f)");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
        }
    }
}

/// What is in the place of a regular file, such as `a pipe`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is {0}, not a regular file")]
pub struct NotRegular(pub &'static str);

impl NotRegular {
    fn check(stat: &Stat) -> io::Result<()> {
        let found = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => "a directory",
            FileType::Symlink => "a link",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            _ => "a device",
        };
        Err(NotRegular(found).into())
    }
}

impl From<NotRegular> for io::Error {
    fn from(why: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, why)
    }
}

/// Opens a regular file, by its path from a directory. A pipe would block until there is a writer, opening a
/// device may have an effect, and a link leads out of the session.
///
/// # Errors
/// If it cannot be opened. The error holds [`NotRegular`] if something else has its name.
pub fn open_regular(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
    // Before the open, which for a device may have an effect.
    NotRegular::check(&statat(at, path, AtFlags::SYMLINK_NOFOLLOW)?)?;
    opened(at, path, flags)
}

/// Opens a regular file as [`open_regular`] does, but something else may be opened first.
fn opened(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = retry(|| openat(at, path, flags, Mode::empty())).map_err(|why| {
        match why.raw_os_error() {
            Some(libc::ELOOP) => NotRegular("a link").into(),
            _ => why,
        }
    })?;
    let stat = fstat(&file)?;
    NotRegular::check(&stat)?;
    Ok((file, stat))
}

/// Checks that a file or directory is this user's. `path` is for the message.
///
/// # Errors
/// If it is another user's.
pub fn check_owner(stat: &Stat, path: &Path) -> Result<(), DirectoryError> {
    let (path, owner, user) = (path.to_owned(), stat.st_uid, geteuid().as_raw());
    if owner == user { Ok(()) } else { Err(DirectoryError::NotOwned { path, owner, user }) }
}

/// A directory of a session.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
    /// Where it was when it was opened: for messages only.
    path: PathBuf,
    share: Share,
}

impl Folder {
    /// Opens a directory that is there.
    pub fn open(path: &Path, share: Share) -> io::Result<Folder> {
        Folder::open_at(CWD, path.as_os_str(), path.to_owned(), OFlags::empty(), share)
    }

    /// Opens a directory that is there, `None` if there is none. It, and a link to it if it is one, must be this
    /// user's: in another's, that user could exchange and read what is written.
    ///
    /// # Errors
    /// If it is another user's, is no directory, or cannot be opened.
    pub fn open_own(path: &Path, share: Share) -> Result<Option<Folder>, DirectoryError> {
        let unusable = DirectoryError::unusable(path);
        match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => check_owner(&found.map_err(|why| unusable(why.into()))?, path)?,
        }
        let folder = Folder::open(path, share).map_err(|why| match why.kind() {
            io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
            _ => unusable(why),
        })?;
        folder.check_own().map(|()| Some(folder))
    }

    /// Checks that it is a directory of this user.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_own(&self) -> Result<(), DirectoryError> {
        let stat = self.stat().map_err(DirectoryError::unusable(&self.path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(DirectoryError::NotADirectory(self.path.clone()));
        }
        check_owner(&stat, &self.path)
    }

    /// Makes a folder of an open directory, whose path is for messages.
    pub fn of(fd: OwnedFd, path: &Path, share: Share) -> Folder {
        Folder { fd: Arc::new(fd), path: path.to_owned(), share }
    }

    fn open_at(
        at: BorrowedFd<'_>,
        name: &OsStr,
        path: PathBuf,
        flags: OFlags,
        share: Share,
    ) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | flags;
        let fd = retry(|| openat(at, name, flags, Mode::empty()))?;
        Ok(Folder { fd: Arc::new(fd), path, share })
    }

    /// Makes a directory in this one.
    pub fn create(&self, name: &str) -> io::Result<Folder> {
        mkdirat(&self.fd, name, self.share.folder_mode())?;
        let made = self.folder(name).and_then(|made| made.set_mode().map(|()| made));
        made.inspect_err(|_| {
            let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
        })
    }

    /// Makes a directory by its path. The one above it must be there.
    pub fn create_path(path: &Path, share: Share) -> io::Result<Folder> {
        mkdirat(CWD, path, share.folder_mode()).map_err(|why| match (why, path.parent()) {
            (Errno::NOENT, Some(above)) if !above.is_dir() => {
                let why = format!("there is no directory {}", above.display());
                io::Error::new(io::ErrorKind::NotFound, why)
            }
            (why, _) => why.into(),
        })?;
        let (name, flags) = (path.as_os_str(), OFlags::NOFOLLOW);
        let made = Folder::open_at(CWD, name, path.to_owned(), flags, share);
        made.and_then(|made| made.set_mode().map(|()| made)).inspect_err(|_| {
            let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
        })
    }

    /// Opens a directory in this one.
    pub fn folder(&self, name: &str) -> io::Result<Folder> {
        let path = self.path.join(name);
        Folder::open_at(self.fd.as_fd(), name.as_ref(), path, OFlags::NOFOLLOW, self.share)
    }

    /// Returns its path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes its new path, for messages, after it was renamed.
    pub fn moved(self, path: PathBuf) -> Folder {
        Folder { path, ..self }
    }

    /// Returns the same directory, where new files have other modes.
    pub fn shared(self, share: Share) -> Folder {
        Folder { share, ..self }
    }

    /// Returns the modes of new files.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the folder's metadata: device, inode, owner.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.fd)?)
    }

    /// Gives it the mode of a session's directory.
    pub fn set_mode(&self) -> io::Result<()> {
        retry(|| fchmod(&self.fd, self.share.folder_mode()))
    }

    /// Locks it against an exclusive lock, until its descriptor is closed: readers see by that that a process writes the
    /// session. A file system without locks has none.
    pub fn lock(&self) {
        let _ = retry(|| flock(&self.fd, FlockOperation::NonBlockingLockShared));
    }

    /// Locks it against every other lock, until its descriptor is closed. Returns `false` if it is locked. A file system
    /// without locks has none.
    pub fn lock_alone(&self) -> bool {
        let locked = retry(|| flock(&self.fd, FlockOperation::NonBlockingLockExclusive));
        !locked.is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns whether a process has [locked](Folder::lock) it.
    ///
    /// # Errors
    /// If its file system does not say.
    pub fn is_locked(&self) -> io::Result<bool> {
        // A separate open file description: its close releases the lock.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = retry(|| openat(&self.fd, ".", flags, Mode::empty()))?;
        match retry(|| flock(&folder, FlockOperation::NonBlockingLockExclusive)) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(true),
            locked => locked.map(|()| false),
        }
    }

    /// Returns the names in it, `.` and `..` excluded; not more than `most`.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        // Through a descriptor of its own, with its own position.
        for entry in retry(|| Dir::read_from(&self.fd))? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
            if names.len() == most {
                break;
            }
        }
        Ok(names)
    }

    /// Returns all names in it.
    pub fn all_names(&self) -> io::Result<Vec<OsString>> {
        self.names(MOST_NAMES)
    }

    /// Makes a file; one of this name, which an earlier try left, is removed.
    pub fn new_file(&self, name: &str) -> io::Result<OwnedFd> {
        let _ = self.remove(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = self.share.file_mode();
        let file = retry(|| openat(&self.fd, name, flags | OFlags::NOFOLLOW, mode))?;
        retry(|| fchmod(&file, mode))?;
        Ok(file)
    }

    /// Opens a regular file. A pipe or a device that has the name is an error
    /// at once, not a wait for its other side.
    pub fn file(&self, name: impl AsRef<OsStr>, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
        // Without a look at it before, which is a system call more for threads that may make few.
        opened(self.fd.as_fd(), name.as_ref().as_ref(), flags)
    }

    /// Returns device and inode of what has this name.
    pub fn stat_of(&self, name: impl AsRef<OsStr>) -> io::Result<Stat> {
        Ok(statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Renames what is in it; what has the new name is replaced.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        retry(|| renameat(&self.fd, from, &self.fd, to))
    }

    /// Removes a file.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        retry(|| unlinkat(&self.fd, name, AtFlags::empty()))
    }

    /// Removes a file if it is this one, by device and inode. It stays if it cannot be removed.
    pub fn remove_own(&self, name: impl AsRef<OsStr>, own: (u64, u64)) {
        let name = name.as_ref();
        if self.stat_of(name).is_ok_and(|found| inode(&found) == own) {
            let _ = self.remove(name);
        }
    }

    /// Removes a directory and the files in it.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        let folder = self.folder(name)?;
        for file in folder.all_names()? {
            folder.remove(file)?;
        }
        self.remove_empty(name)
    }

    /// Removes what is in it. No link is followed on the way.
    ///
    /// # Errors
    /// If that fails: a part may be removed.
    pub fn remove_all(&self) -> io::Result<()> {
        for name in self.all_names()? {
            if FileType::from_raw_mode(self.stat_of(&name)?.st_mode) == FileType::Directory {
                let (path, flags) = (self.path.join(&name), OFlags::NOFOLLOW);
                Folder::open_at(self.fd.as_fd(), &name, path, flags, self.share)?.remove_all()?;
                retry(|| unlinkat(&self.fd, &name, AtFlags::REMOVEDIR))?;
            } else {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes a folder that is empty.
    ///
    /// # Errors
    /// If that fails.
    pub fn remove_empty(&self, name: &str) -> io::Result<()> {
        retry(|| unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
    }

    /// Replaces a file by rename, so that a reader sees the old or the new one. Returns the new one.
    ///
    /// # Errors
    /// If it cannot be written: the old one stays.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<OwnedFd, WriteFailed> {
        let hidden = format!(".{name}.new");
        let write = || {
            check_size(text.len() as u64)?;
            let file = self.new_file(&hidden)?;
            write_at(&file, text, 0)?;
            self.rename(&hidden, name).map(|()| file)
        };
        write().map_err(|source| {
            let _ = self.remove(&hidden);
            WriteFailed { action: "write", path: self.path.join(name), source }
        })
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();
        (dir, folder)
    }

    #[test]
    fn an_interruption_without_end_is_an_error() {
        let mut calls = 0;
        let failed = retry(|| -> rustix::io::Result<()> {
            calls += 1;
            Err(Errno::INTR)
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(calls, 100);
    }

    #[test]
    fn links_that_are_planted_redirect_nothing() {
        let (dir, folder) = folder();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        for name in ["name", ".name.new"] {
            symlink(&victim, dir.path().join(name)).unwrap();
        }

        folder.replace("name", b"text").unwrap();

        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        assert_eq!(std::fs::read(dir.path().join("name")).unwrap(), b"text");
        assert!(!dir.path().join("name").is_symlink());
        symlink(dir.path(), dir.path().join("ctf")).unwrap();
        assert!(folder.folder("ctf").is_err());
        symlink(&victim, dir.path().join("link")).unwrap();
        let failed = folder.file("link", OFlags::WRONLY).unwrap_err();
        assert!(failed.to_string().contains("not a regular file"), "{failed}");
    }

    #[test]
    fn a_renamed_folder_is_followed_and_its_successor_is_not_used() {
        let (dir, folder) = folder();
        let made = folder.create("a").unwrap();
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();

        made.replace("file", b"text").unwrap();

        assert_eq!(std::fs::read(dir.path().join("b/file")).unwrap(), b"text");
        assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 0);
    }
}
