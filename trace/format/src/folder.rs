//! A directory of a session or of another result, held by its descriptor.
//!
//! Every file of such a directory is made, opened, renamed and removed relative to the directory's
//! descriptor, and no link is followed on the way. If someone renames or replaces the directory meanwhile, or
//! plants a link in the directory, no write and no removal goes elsewhere. Every written file is a new file,
//! and gets its name by rename. The code sets all modes, and leaves none to the umask. The system resolves
//! the directory's path once, when the directory is opened: code that needs a path later takes
//! [`Folder::by_descriptor`].
//!
//! The code makes system calls through rustix, because std repeats an interrupted call without bound.

use crate::error::{DirectoryError, WriteFailed};
use rustix::fs::unlinkat;
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::fs::{RenameFlags, renameat_with};
use rustix::fs::{
    chmod, fchmod, flock, fstat, ftruncate, linkat, mkdirat, openat, renameat, statat,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use hypertrace_abi::file::check_size;

/// Maximum number of tries of a system call that is interrupted. After the last try, the interruption is an
/// error like any other.
pub const MAX_TRIES: u32 = 100;

/// Maximum number of entries that are read from a folder; a trace has fewer files.
const MAX_NAMES: usize = 1 << 20;

/// Users that may read a session, in addition to the session's owner. A session holds all that guests and
/// programs traced, and may therefore hold secrets. Only the owner can write to a session. The control socket
/// and a segment's file are always the owner's alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Share {
    /// No other users: directories of mode 0700, files of mode 0600.
    #[default]
    Owner,
    /// The directory's group: modes 0750 and 0640.
    Group,
    /// All users: modes 0755 and 0644.
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

/// Calls `call` again as long as a signal interrupts the call, at most a hundred times.
pub fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match call() {
            Err(Errno::INTR) if tries < MAX_TRIES => tries += 1,
            done => return done.map_err(io::Error::from),
        }
    }
}

/// Writes all bytes. After a short write, the function writes the rest with a further call, so that the
/// system gives the reason of the short write.
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

/// Reads as many bytes as there are, up to the buffer's length.
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

/// Sets the length of a file.
pub fn set_len(file: impl AsFd, len: u64) -> io::Result<()> {
    retry(|| ftruncate(&file, len))
}

/// Returns the id of the device and the number of the inode: no two files have the same pair.
pub fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Kind of a file that is not a regular file, such as `a pipe`.
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

    /// If a file cannot be opened because the file is not a regular file, returns the file's kind.
    pub fn of(why: &io::Error) -> Option<NotRegular> {
        why.get_ref()?.downcast_ref().copied()
    }
}

impl From<NotRegular> for io::Error {
    fn from(why: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, why)
    }
}

/// Returns true if a file could not be read because of its path, so that another path would help. For any
/// other error, the function returns false, because the system is at fault.
pub fn is_bad_path(why: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let leads_nowhere =
        matches!(why.raw_os_error(), Some(libc::ELOOP | libc::ENAMETOOLONG | libc::ENXIO));
    leads_nowhere
        || NotRegular::of(why).is_some()
        || matches!(why.kind(), NotFound | NotADirectory | IsADirectory | PermissionDenied)
}

/// Opens the regular file at a path relative to a directory. Other files are refused: a pipe would block
/// until there is a writer, opening a device may have an effect, and a link leads out of the session.
///
/// # Errors
/// If the file cannot be opened. The error holds [`NotRegular`] if something else has the file's name.
pub fn open_regular(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
    // The check comes before the open, because opening a device may have an effect.
    NotRegular::check(&statat(at, path, AtFlags::SYMLINK_NOFOLLOW)?)?;
    opened(at, path, flags)
}

/// Opens a regular file that a user has named, as [`open_regular`] does. The name may be a link's name,
/// because the user decides where the name leads.
///
/// # Errors
/// As [`open_regular`].
pub fn open_given(path: &Path, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
    NotRegular::check(&statat(CWD, path, AtFlags::empty())?)?;
    checked(openat_retried(CWD, path, flags)?)
}

/// Opens a regular file as [`open_regular`] does. The check follows the open, so the call may open a file of
/// another kind, and then closes this file.
fn opened(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
    let file = openat_retried(at, path, flags | OFlags::NOFOLLOW).map_err(|why| {
        match why.raw_os_error() {
            Some(libc::ELOOP) => NotRegular("a link").into(),
            _ => why,
        }
    })?;
    checked(file)
}

/// Opens a file. If the file is a pipe, the call does not wait for the pipe's other end.
fn openat_retried(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry(|| openat(at, path, flags, Mode::empty()))
}

fn checked(file: OwnedFd) -> io::Result<(OwnedFd, Stat)> {
    let stat = fstat(&file)?;
    NotRegular::check(&stat)?;
    Ok((file, stat))
}

/// Checks that a file or directory belongs to this user. The error's message shows `path`.
///
/// # Errors
/// If the file or directory is another user's.
pub fn check_owner(stat: &Stat, path: &Path) -> Result<(), DirectoryError> {
    let (path, owner, user) = (path.to_owned(), stat.st_uid, geteuid().as_raw());
    if owner == user { Ok(()) } else { Err(DirectoryError::NotOwned { path, owner, user }) }
}

/// Returns a path that leads to an open file. System calls that link a file or set a file's mode take this
/// path.
fn in_proc(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// A directory of a session or of another result.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
    /// Path of the directory when it was opened. For messages only.
    path: PathBuf,
    share: Share,
}

impl Folder {
    /// Opens an existing directory.
    pub fn open(path: &Path, share: Share) -> io::Result<Folder> {
        Folder::open_at(CWD, path.as_os_str(), path.to_owned(), OFlags::empty(), share)
    }

    /// Opens an existing directory. Returns `None` if no file has the path. The directory must belong to this
    /// user. A link to the directory must also belong to this user. Any other owner could exchange and read
    /// the files that are written.
    ///
    /// # Errors
    /// If the directory is another user's, is no directory, or cannot be opened.
    pub fn open_own(path: &Path, share: Share) -> Result<Option<Folder>, DirectoryError> {
        let unusable = DirectoryError::unusable(path);
        let found = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => found.map_err(|why| unusable(why.into()))?,
        };
        check_owner(&found, path)?;
        // Without NOFOLLOW, the open would follow a link that another user has meanwhile put in the
        // directory's place.
        let flags = match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => OFlags::empty(),
            _ => OFlags::NOFOLLOW,
        };
        let opened = Folder::open_at(CWD, path.as_os_str(), path.to_owned(), flags, share);
        let folder = opened.map_err(|why| match why.kind() {
            io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
            _ => unusable(why),
        })?;
        folder.check_own().map(|()| Some(folder))
    }

    /// Checks that the folder is a directory of this user.
    ///
    /// # Errors
    /// If the folder is no directory, or is another user's.
    pub fn check_own(&self) -> Result<(), DirectoryError> {
        let stat = self.stat().map_err(DirectoryError::unusable(&self.path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(DirectoryError::NotADirectory(self.path.clone()));
        }
        check_owner(&stat, &self.path)
    }

    /// Makes a folder of an open directory. The folder shows `path` in messages, and does not open the path.
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

    /// Creates a subdirectory of this directory.
    pub fn create(&self, name: impl AsRef<OsStr>) -> io::Result<Folder> {
        let name = name.as_ref();
        mkdirat(&self.fd, name, Share::Owner.folder_mode())?;
        self.take_made(name).inspect_err(|_| {
            let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
        })
    }

    /// Opens a directory that was just made, and sets its mode. Any user who may write to the directory above
    /// could have put another directory in the place of the new directory. Such a directory may even belong
    /// to this user, and hold files that other users must not read.
    fn take_made(&self, name: &OsStr) -> io::Result<Folder> {
        let flags = OFlags::NOFOLLOW | OFlags::PATH;
        // The umask may have left the user no right to read the directory. A PATH descriptor needs no such
        // right.
        let made = Folder::open_at(self.fd.as_fd(), name, self.path.join(name), flags, self.share)?;
        made.check_own().map_err(io::Error::other)?;
        let opened = made.folder(".").or_else(|why| {
            if why.kind() != io::ErrorKind::PermissionDenied {
                return Err(why);
            }
            chmod(in_proc(&made.fd), Share::Owner.folder_mode())?;
            made.folder(".")
        });
        let opened = opened?.moved(made.path);
        opened.take_empty().map_err(io::Error::other)?;
        Ok(opened)
    }

    /// Opens the parent directory of a path, for a caller that makes a file or a directory in the parent
    /// directory. Returns the parent directory, and the last name of the path. The directory above may belong
    /// to any user.
    ///
    /// # Errors
    /// If there is no directory above, or the path has no last name, such as `..`.
    pub fn above(path: &Path, share: Share) -> io::Result<(Folder, OsString)> {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        // A PATH descriptor is enough, because this user may be unable to list the directory.
        let opened = Folder::open_at(CWD, above.as_os_str(), above.to_owned(), OFlags::PATH, share);
        let folder = opened.map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => {
                let why = format!("there is no directory {}", above.display());
                io::Error::new(io::ErrorKind::NotFound, why)
            }
            _ => why,
        })?;
        Ok((folder, name))
    }

    /// Creates a directory at a path. The directory above must exist.
    pub fn create_path(path: &Path, share: Share) -> io::Result<Folder> {
        let (above, name) = Folder::above(path, share)?;
        Ok(above.create(name)?.moved(path.to_owned()))
    }

    /// Creates a directory at a path, or takes an empty directory that this user owns. The directory's new
    /// mode lets only this user write to the directory, so no other user can exchange the directory's files.
    ///
    /// # Errors
    /// If the directory is another user's, is not empty, or cannot be made.
    pub fn new_or_empty(path: &Path, share: Share) -> Result<Folder, DirectoryError> {
        let opened = || Folder::open_own(path, share);
        let folder = match opened()? {
            Some(folder) => folder,
            None => match Folder::create_path(path, share) {
                // Another process has made the directory since the first look.
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                    opened()?.ok_or_else(|| DirectoryError::NotEmpty(path.to_owned()))?
                }
                made => made.map_err(DirectoryError::unusable(path))?,
            },
        };
        folder.take_empty()?;
        Ok(folder)
    }

    /// Takes an empty directory of this user, and sets its mode.
    ///
    /// # Errors
    /// If the directory is another user's, or is not empty.
    pub fn take_empty(&self) -> Result<(), DirectoryError> {
        let check = || match self.names(1).map_err(DirectoryError::unusable(&self.path))?.is_empty()
        {
            true => Ok(()),
            false => Err(DirectoryError::NotEmpty(self.path.clone())),
        };
        self.check_own()?;
        check()?;
        self.set_mode().map_err(DirectoryError::unusable(&self.path))?;
        // The directory is checked again, because other users could write to the directory until the new mode
        // was set.
        check()
    }

    /// Opens a subdirectory of this directory.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> io::Result<Folder> {
        let name = name.as_ref();
        let path = self.path.join(name);
        Folder::open_at(self.fd.as_fd(), name, path, OFlags::NOFOLLOW, self.share)
    }

    /// Returns a path that leads to this directory as long as this value lives. Child processes can use the
    /// path, too. If someone renames or replaces the directory, the path still leads to the same directory.
    pub fn by_descriptor(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Returns the path of the directory when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the path for messages, after the directory was renamed.
    pub fn moved(self, path: PathBuf) -> Folder {
        Folder { path, ..self }
    }

    /// Returns the same directory with other modes for new files.
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

    /// Sets the mode of a session's directory.
    pub fn set_mode(&self) -> io::Result<()> {
        retry(|| fchmod(&self.fd, self.share.folder_mode()))
    }

    /// Takes a shared lock of the directory until the descriptor is closed. By this lock, readers see that a
    /// process writes the session. On a file system without locks, the call does nothing.
    pub fn lock(&self) {
        let _ = retry(|| flock(&self.fd, FlockOperation::NonBlockingLockShared));
    }

    /// Takes an exclusive lock of the directory until the descriptor is closed. Returns `false` if the
    /// directory is locked already. On a file system without locks, the call returns `true`.
    pub fn lock_alone(&self) -> bool {
        let locked = retry(|| flock(&self.fd, FlockOperation::NonBlockingLockExclusive));
        !locked.is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns true if a process has [locked](Folder::lock) the directory.
    ///
    /// # Errors
    /// If the call cannot tell, as on a file system without locks.
    pub fn is_locked(&self) -> io::Result<bool> {
        // This function opens the directory anew, so that the lock that it takes ends with the new
        // descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = retry(|| openat(&self.fd, ".", flags, Mode::empty()))?;
        match retry(|| flock(&folder, FlockOperation::NonBlockingLockExclusive)) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(true),
            locked => locked.map(|()| false),
        }
    }

    /// Returns at most `most` names in the directory, without `.` and `..`.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        // `Dir` opens the directory anew, so no other reader of the directory moves the position of `Dir`.
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

    /// Returns all names in the directory.
    pub fn all_names(&self) -> io::Result<Vec<OsString>> {
        self.names(MAX_NAMES)
    }

    /// Creates a file. Removes a file of the same name, which an earlier try left.
    pub fn new_file(&self, name: impl AsRef<OsStr>) -> io::Result<OwnedFd> {
        let name = name.as_ref();
        let _ = self.remove(name);
        self.only_file(name)
    }

    /// Creates a file. An existing name is an error.
    pub fn only_file(&self, name: impl AsRef<OsStr>) -> io::Result<OwnedFd> {
        let name = name.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = self.share.file_mode();
        let file = retry(|| openat(&self.fd, name, flags | OFlags::NOFOLLOW, mode))?;
        retry(|| fchmod(&file, mode))?;
        Ok(file)
    }

    /// Opens a regular file. If a pipe or a device has the name, the call fails at once and does not wait for
    /// the other side.
    pub fn file(&self, name: impl AsRef<OsStr>, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
        // The kind of the file is not checked before the open, because such a check takes one more system
        // call, and some threads can make only few system calls.
        opened(self.fd.as_fd(), name.as_ref().as_ref(), flags)
    }

    /// Returns the metadata of the file with this name, such as device and inode. If the file is a link,
    /// returns the metadata of the link.
    pub fn stat_of(&self, name: impl AsRef<OsStr>) -> io::Result<Stat> {
        Ok(statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Creates a file without a name. Returns `None` if the system has no such files, or could not
    /// [give](Folder::link) the file a name later.
    pub fn unnamed_file(&self) -> Option<OwnedFd> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.fd, ".", flags, self.share.file_mode()).ok()?;
        fchmod(&file, self.share.file_mode()).ok()?;
        in_proc(&file).exists().then_some(file)
    }

    /// Adds a name in this directory to a file that has no name. If the name exists already, the call fails.
    pub fn link(&self, file: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<()> {
        let file = in_proc(&file);
        retry(|| linkat(CWD, &file, &self.fd, name.as_ref(), AtFlags::SYMLINK_FOLLOW))
    }

    /// Makes a file or a directory under a free name: calls `make` with further names until a name is free.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn with_free_name<T>(
        prefix: &str,
        mut make: impl FnMut(&str) -> io::Result<T>,
    ) -> io::Result<(String, T)> {
        let mut number = 0;
        loop {
            let name = format!("{prefix}{}-{number}", std::process::id());
            match make(&name) {
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists && number < MAX_TRIES => {
                    number += 1;
                }
                made => return made.map(|made| (name, made)),
            }
        }
    }

    /// Renames an entry of this directory. If another entry already has the new name, the renamed entry
    /// replaces the other entry.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        retry(|| renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref()))
    }

    /// Moves a file of this directory to another directory on the same file system. If the other directory
    /// already has an entry with the new name, the call fails.
    pub fn move_new(
        &self,
        from: impl AsRef<OsStr>,
        folder: &Folder,
        to: impl AsRef<OsStr>,
    ) -> io::Result<()> {
        let (from, to, flags) = (from.as_ref(), to.as_ref(), RenameFlags::NOREPLACE);
        match renameat_with(&self.fd, from, &folder.fd, to, flags) {
            // Some file systems, such as NFS, do not support the flag NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS) => {
                retry(|| linkat(&self.fd, from, &folder.fd, to, AtFlags::empty()))?;
                self.remove(from)
            }
            moved => Ok(moved?),
        }
    }

    /// Removes a file.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        retry(|| unlinkat(&self.fd, name, AtFlags::empty()))
    }

    /// Removes a file if its device and inode are `own`. If the removal fails, the file stays.
    pub fn remove_own(&self, name: impl AsRef<OsStr>, own: (u64, u64)) {
        let name = name.as_ref();
        if self.stat_of(name).is_ok_and(|found| inode(&found) == own) {
            let _ = self.remove(name);
        }
    }

    /// Removes a directory and the files in it, but no subdirectory.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        let folder = self.folder(name)?;
        for file in folder.all_names()? {
            folder.remove(file)?;
        }
        self.remove_empty(name)
    }

    /// Removes all entries of this directory. A link is removed, and the link's target stays.
    ///
    /// # Errors
    /// If an entry cannot be removed. The call may have removed other entries before this error.
    pub fn remove_all(&self) -> io::Result<()> {
        self.all_names()?.iter().try_for_each(|name| self.remove_tree(name))
    }

    /// Removes a file or a link, or a directory with all that is in it. No link is followed on the way.
    ///
    /// # Errors
    /// If an entry cannot be removed. The call may have removed other entries before this error.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        if FileType::from_raw_mode(self.stat_of(name)?.st_mode) != FileType::Directory {
            return self.remove(name);
        }
        self.folder(name)?.remove_all()?;
        self.remove_empty(name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If the directory cannot be removed.
    pub fn remove_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        retry(|| unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR))
    }

    /// Replaces a file with a rename, so that a reader sees either the old file or the new file. Returns the
    /// new file.
    ///
    /// # Errors
    /// If the new file cannot be written. The old file then stays.
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

/// A path, and whether the path was free when [`Missing::look`] was called. If the path was free, the owner
/// of this value can later remove a directory that has been made at the path.
#[derive(Debug)]
pub struct Missing(Option<(Folder, OsString)>);

impl Missing {
    /// Notes whether the path is still free.
    pub fn look(path: &Path) -> Missing {
        let above = Folder::above(path, Share::Owner).ok();
        Missing(above.filter(|(above, name)| {
            above.stat_of(name).is_err_and(|why| why.kind() == io::ErrorKind::NotFound)
        }))
    }

    /// If the path was free, removes the directory that has been made at the path since, unless this
    /// directory has entries.
    pub fn remove(&self) {
        let _ = self.0.as_ref().map(|(above, name)| above.remove_empty(name));
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
    use std::os::unix::fs::{MetadataExt, symlink};

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
    fn a_tree_is_removed_without_the_targets_of_its_links() {
        let (dir, folder) = folder();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("mine/sub")).unwrap();
        std::fs::create_dir_all(at("tree/sub")).unwrap();
        symlink(at("mine"), at("tree/sub/link")).unwrap();
        symlink(at("mine"), at("link")).unwrap();

        folder.remove_tree("tree").unwrap();
        folder.remove_tree("link").unwrap();

        assert!(!at("tree").exists() && !at("link").is_symlink() && at("mine/sub").exists());
    }

    #[test]
    fn another_directory_in_the_place_of_one_that_was_made_stays_as_private_as_it_is() {
        let (place, folder) = folder();
        let folder = folder.shared(Share::All);
        let mode = || std::fs::metadata(place.path().join("other")).unwrap().mode() & 0o777;
        let other = folder.clone().shared(Share::Owner).create("other").unwrap();
        other.new_file("secret").unwrap();

        folder.take_made("other".as_ref()).unwrap_err();

        assert_eq!(mode(), 0o700);
        other.remove("secret").unwrap();
        folder.take_made("other".as_ref()).unwrap();
        assert_eq!(mode(), 0o755);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_taken_for_this_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, _) = folder();
        let path = dir.path().join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();

        Folder::new_or_empty(&path, Share::Owner).unwrap();

        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(path.join("file"), "mine").unwrap();
        let refused = Folder::new_or_empty(&path, Share::Owner).unwrap_err();
        assert!(matches!(refused, DirectoryError::NotEmpty(_)), "{refused}");
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
