//! The descriptor that a journal is written to, without waiting for its reader.
//!
//! - A socket is written by send(2) with MSG_DONTWAIT and MSG_NOSIGNAL.
//! - A pipe gets O_NONBLOCK, a flag of the open file: its reader can fill it or make it smaller at any instant, so
//!   no look at it beforehand would do. Nobody else writes to it.
//! - A file is written at its own position, as any file of a session is.

use super::signal::without_sigpipe;
use hypertrace_format::folder::{check_size, retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, seek};
use rustix::io::write;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_type};
use rustix::net::{SendFlags, SocketType, send};
use rustix::pipe::fcntl_setpipe_size;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that the kernel is asked to hold for the reader.
const KERNELS_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum Kind {
    /// With its position.
    File(u64),
    Pipe,
    Socket,
}

/// An open file, pipe or stream socket.
#[derive(Debug)]
pub(super) struct Descriptor {
    fd: OwnedFd,
    kind: Kind,
}

impl Descriptor {
    /// Checks that this is a descriptor that a journal can be written to.
    pub fn new(fd: OwnedFd) -> io::Result<Descriptor> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let flags = fcntl_getfl(&fd)?;
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return refused("it is not open for writing");
        }
        let kind = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::RegularFile => {
                let from = if flags.contains(OFlags::APPEND) {
                    SeekFrom::End(0)
                } else {
                    SeekFrom::Current(0)
                };
                Kind::File(seek(&fd, from)?)
            }
            FileType::Fifo => {
                if flags & OFlags::RWMODE == OFlags::RDWR {
                    return refused("it is open for reading, too, and would be its own reader");
                }
                fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
                // Less does, and loses more events where the reader is slow.
                let _ = fcntl_setpipe_size(&fd, KERNELS_BYTES);
                Kind::Pipe
            }
            FileType::Socket if socket_type(&fd)? == SocketType::STREAM => {
                let _ = set_socket_send_buffer_size(&fd, KERNELS_BYTES);
                Kind::Socket
            }
            _ => return refused("it is not a file, a pipe or a stream socket"),
        };
        Ok(Descriptor { fd, kind })
    }

    /// Returns whether another process takes what is written.
    pub fn has_reader(&self) -> bool {
        !matches!(self.kind, Kind::File(_))
    }

    /// Writes as many bytes as it takes at once, and returns their number. Where it takes none, the error
    /// is [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.kind {
            Kind::File(at) => {
                check_size(*at + bytes.len() as u64)?;
                let written = retry(|| write(&self.fd, bytes))?;
                *at += written as u64;
                Ok(written)
            }
            Kind::Pipe => without_sigpipe(|| retry(|| write(&self.fd, bytes))),
            Kind::Socket => {
                retry(|| send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
            }
        }
    }

    /// Returns whether it takes more bytes, now or within this time.
    ///
    /// # Errors
    /// If the reader of a pipe is gone.
    pub fn is_writable_within(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        retry(|| poll(&mut fds, Some(&time)))?;
        let events = fds[0].revents();
        if matches!(self.kind, Kind::Pipe) && events.contains(PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(!events.is_empty())
    }
}
