//! The socket in the session's directory: made, found, and removed.

use super::{MonitorError, SOCKET, sys};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that an address has room for, with a NUL (`sun_path`, unix(7)).
pub const MAX_ADDRESS: usize = 108;

/// Connects to the monitor of the session in `dir`, however long its path is.
/// The stream blocks.
///
/// # Errors
/// `NotFound` or `NotADirectory` if there is no such directory or no socket in it,
/// `ConnectionRefused` if nobody listens there, `PermissionDenied` if it is another user's,
/// `TimedOut` if it listens and accepted nobody for so long.
pub fn connect(dir: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let begun = Instant::now();
    let directory = Directory::open(dir)?;
    let address = directory.address(SOCKET);
    let stream = loop {
        match sys::connect(&address) {
            // So many wait already that there is no room for one more.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if begun.elapsed() >= timeout {
                    return Err(ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A directory that sockets can be reached in.
struct Directory {
    path: PathBuf,
    file: File,
}

impl Directory {
    fn open(path: &Path) -> io::Result<Directory> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        // A VMM may change its working directory while the monitor runs.
        Ok(Directory { path: std::path::absolute(path)?, file })
    }

    /// A path to `name` that an address has room for. The detour only where it is
    /// needed: a VMM in a jail may have no `/proc`.
    fn address(&self, name: &str) -> PathBuf {
        let direct = self.path.join(name);
        if direct.as_os_str().len() < MAX_ADDRESS {
            return direct;
        }
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.file.as_raw_fd()))
    }
}

/// The socket's entry in the directory; goes when dropped.
#[derive(Debug)]
pub struct Entry {
    pub path: PathBuf,
    /// Device and inode, so that no other's is removed.
    file: (u64, u64),
    process: u32,
}

impl Entry {
    /// Whether it was made here, and not before a fork.
    pub fn is_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.file;
        if self.is_this_process() && fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path); // nothing else could be done
        }
    }
}

/// A directory of ours alone, in which the socket is made: while it has the mode
/// that the umask gave it, nobody else can reach it.
struct Nursery {
    path: PathBuf,
    name: String,
}

impl Nursery {
    fn new(directory: &Directory) -> io::Result<Nursery> {
        // A name may be taken by one that was killed at this point.
        for attempt in 0..1000 {
            let name = format!(".{SOCKET}-{}-{attempt}", std::process::id());
            let path = directory.path.join(&name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                done => return done.map(|()| Nursery { path, name }),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // what is left there harms nobody
    }
}

/// Makes the socket. It gets its name last, when it has its mode and listens.
pub fn listen(dir: &Path) -> Result<(UnixListener, Entry), MonitorError> {
    let directory = Directory::open(dir)
        .map_err(|source| MonitorError::Directory { path: dir.to_owned(), source })?;
    let path = directory.path.join(SOCKET);
    let failed = |source| MonitorError::Socket { path: path.clone(), source };

    let nursery = Nursery::new(&directory).map_err(failed)?;
    let made = nursery.path.join("s");
    let listener =
        UnixListener::bind(directory.address(&format!("{}/s", nursery.name))).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    fs::set_permissions(&made, Permissions::from_mode(0o600)).map_err(failed)?;
    let found = fs::symlink_metadata(&made).map_err(failed)?;

    let _lock = lock(&directory).map_err(failed)?;
    // A connection to a plain file is refused, too.
    if fs::symlink_metadata(&path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(MonitorError::NotASocket(path));
    }
    if is_heard(&directory.address(SOCKET)).map_err(failed)? {
        return Err(MonitorError::InUse(path));
    }
    fs::rename(&made, &path).map_err(failed)?;
    let file = (found.dev(), found.ino());
    Ok((listener, Entry { path, file, process: std::process::id() }))
}

/// Keeps two that start at once from taking each other's socket for a dead one.
/// Others may lock the directory for reasons of their own, perhaps for as long as
/// the VMM runs, so it is not waited for long, and done without.
fn lock(directory: &Directory) -> io::Result<File> {
    let file = File::open(&directory.path)?;
    let begun = Instant::now();
    while sys::lock(&file).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        && begun.elapsed() < Duration::from_secs(1)
    {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// Whether somebody listens at a socket.
fn is_heard(address: &Path) -> io::Result<bool> {
    match sys::connect(address) {
        Ok(_) => Ok(true),
        Err(e) => match e.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Ok(false),
            ErrorKind::WouldBlock => Ok(true), // more than it can take
            _ => Err(e),
        },
    }
}
