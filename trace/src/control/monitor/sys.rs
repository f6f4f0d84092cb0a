//! System calls that std does not have in this form: poll, flock, a connect that
//! never waits, and a send that raises no SIGPIPE in a VMM that does not ignore it.
#![allow(unsafe_code)] // libc's

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes that an address has room for, with a NUL (`sun_path`, unix(7)).
pub const MAX_ADDRESS: usize = 108;

/// Returns an entry of poll's list; only errors are reported where `events` is 0.
pub fn pollfd(fd: &impl AsRawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits for an event, without limit if there is no timeout.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    // Rounded up: a wake before the time would make the caller spin.
    let ms =
        timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: `fds` is a list of that many, which the call reads and writes.
    match unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Sends as many bytes as there is room for.
pub fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `bytes` are that many, which the call only reads.
    let n = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Locks a file until it is closed. Fails with `WouldBlock` if another description holds the lock.
pub fn lock(file: &File) -> io::Result<()> {
    // SAFETY: takes and returns numbers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects. Fails with `WouldBlock` if the queue of waiting connections is
/// full. The stream is non-blocking.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let bytes = path.as_os_str().as_bytes();
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; MAX_ADDRESS],
    };
    if bytes.len() >= MAX_ADDRESS || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes and returns numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, so nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a whole sockaddr_un with a NUL after its path, and
    // the call only reads it.
    match unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(fd.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
