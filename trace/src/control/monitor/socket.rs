//! Creates, finds and removes a socket in a directory.

use super::{MonitorError, SOCKET};
use crate::ctf::Folder;
use hypertrace_format::folder::{inode, retry};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::fs::{fchmod, flock, openat, renameat, unlinkat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum size of an address's path in bytes, with a NUL (`sun_path`, unix(7)).
const MAX_ADDRESS: usize = 108;
/// Maximum number of clients that wait in the socket's queue. Further clients wait in connect(2).
const QUEUE: i32 = 128;

/// Connects to the monitor of the session in `dir`. `dir` may be longer than the longest path in a socket's
/// address. The stream is blocking.
///
/// # Errors
/// - `NotFound` or `NotADirectory` if the directory does not exist or has no socket
/// - `ConnectionRefused` if no process listens at the socket
/// - `PermissionDenied` if the socket belongs to another user
/// - `TimedOut` if a process listens but accepts no client within `timeout`
pub fn connect(dir: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let begun = Instant::now();
    // The flag PATH opens the directory even if the caller may not read the directory.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = retry(|| openat(rustix::fs::CWD, dir, flags, Mode::empty()))?;
    let address = address(&directory, &std::path::absolute(dir)?, SOCKET);
    let stream = loop {
        match try_connect(&address) {
            // The queue of waiting connections is full.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if begun.elapsed() >= timeout {
                    return Err(ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(10));
            }
            done => break done?,
        }
    };
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Connects. Fails with `WouldBlock` if the queue of waiting connections is full.
/// The stream is non-blocking.
fn try_connect(address: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(address)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    retry(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// Returns a path to `name` in an open directory. The path goes through the descriptor. So the path leads to
/// the open directory even if another directory has taken its name. If there is no `/proc`, as for a VMM in a
/// jail, the function returns `path` with the name, if this fits an address.
fn address(directory: &impl AsRawFd, path: &Path, name: impl AsRef<OsStr>) -> PathBuf {
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let direct = path.join(name.as_ref());
    if direct.as_os_str().len() < MAX_ADDRESS && !by_descriptor.exists() {
        return direct;
    }
    by_descriptor.join(name.as_ref())
}

/// A socket's entry in a directory, removed on drop.
#[derive(Debug)]
pub struct Entry {
    folder: Folder,
    name: OsString,
    path: PathBuf,
    /// Device and inode of the socket. The drop compares these numbers, so that it removes no other socket's
    /// entry.
    inode: (u64, u64),
    process: u32,
}

impl Entry {
    /// Returns true if this process made the entry, and false if the parent process made the entry before a
    /// fork.
    pub fn is_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the path at which the socket was made.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.is_this_process() {
            self.folder.remove_own(&self.name, self.inode);
        }
    }
}

fn is_socket(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket
}

/// Makes a socket. The new socket replaces a socket that nobody serves. Only this user may connect. The
/// socket gets its name only after it has its mode and listens.
///
/// # Errors
/// If the socket cannot be made, another process listens at a socket of this name, or another kind of file
/// has the name.
pub fn listen(
    folder: Folder,
    name: impl AsRef<OsStr>,
) -> Result<(UnixListener, Entry), MonitorError> {
    let name = name.as_ref();
    // The path is made absolute, because a VMM may change its working directory while the socket is used.
    let path = std::path::absolute(folder.path()).unwrap_or_else(|_| folder.path().to_owned());
    let at = path.join(name);
    let failed = |source| MonitorError::Socket { path: at.clone(), source };

    let folder = folder.moved(path);
    let _lock = lock(&folder).map_err(failed)?;
    // The kind of the file is checked first, because the system refuses a connection to a plain file in the
    // same way as a connection to a dead socket.
    if folder.stat_of(name).is_ok_and(|there| !is_socket(&there)) {
        return Err(MonitorError::NotASocket(at));
    }
    if is_heard(&address(&folder.as_fd(), folder.path(), name)).map_err(failed)? {
        return Err(MonitorError::InUse(at));
    }
    let process = std::process::id();
    let newborn = format!(".{SOCKET}-{process}");
    // A killed process with the same pid may have left a file of this name.
    let _ = unlinkat(&folder, &newborn, AtFlags::empty());
    let named = new_socket(&folder, &newborn).and_then(|(listener, inode)| {
        retry(|| renameat(&folder, &newborn, &folder, name))?;
        Ok((listener, inode))
    });
    let (listener, inode) = named.map_err(|why| {
        let _ = unlinkat(&folder, &newborn, AtFlags::empty());
        failed(why)
    })?;
    Ok((listener, Entry { folder, name: name.to_owned(), path: at, inode, process }))
}

/// Returns a new socket that listens, with its device and inode.
fn new_socket(folder: &Folder, name: &str) -> io::Result<(UnixListener, (u64, u64))> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The mode is set before the socket has a name, because bind(2) gives the file the mode of the descriptor
    // without the bits of the umask.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(address(&folder.as_fd(), folder.path(), name))?)?;
    rustix::net::listen(&socket, QUEUE)?;
    // Without `/proc`, the address has the directory's path, and the path may now lead to another directory.
    let made = folder.stat_of(name)?;
    if is_socket(&made) {
        Ok((socket.into(), inode(&made)))
    } else {
        Err(ErrorKind::NotFound.into())
    }
}

/// Locks the directory. Without this lock, each of two processes that start at the same time could take the
/// other process's socket for a dead socket. Other programs may hold the lock for their own reasons, perhaps
/// as long as the VMM runs. So the wait is short, and after the wait the monitor starts without the lock.
fn lock(folder: &Folder) -> io::Result<OwnedFd> {
    // The directory is opened anew, so that a close of the new descriptor releases the lock.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = retry(|| openat(folder, ".", flags, Mode::empty()))?;
    let locked = || retry(|| flock(&file, FlockOperation::NonBlockingLockExclusive));
    let begun = Instant::now();
    while locked().is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        && begun.elapsed() < Duration::from_secs(1)
    {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// Returns true if a process listens at a socket.
fn is_heard(address: &Path) -> io::Result<bool> {
    match try_connect(address) {
        Ok(_) => Ok(true),
        Err(e) => match e.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Ok(false),
            ErrorKind::WouldBlock => Ok(true), // its queue is full
            _ => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctf::Share;
    use std::fs;

    #[test]
    fn the_socket_is_removed_from_its_own_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        let [own, moved] = ["own", "moved"].map(|name| dir.path().join(name));
        fs::create_dir(&own).unwrap();
        let (_listener, entry) = listen(Folder::open(&own, Share::Owner).unwrap(), "s").unwrap();
        // Another directory gets the old path, and has a second entry for the same socket.
        fs::rename(&own, &moved).unwrap();
        fs::create_dir(&own).unwrap();
        fs::hard_link(moved.join("s"), own.join("s")).unwrap();

        drop(entry);

        assert!(own.join("s").exists() && !moved.join("s").exists());
    }
}
