// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A server that serves one VMM after another.

use super::{End, PATIENCE, serve};
use crate::pci::PciFunction;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Wait before the reset for each VMM after the first. Each reset begins a generation.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum time for which one call of [`Server::turn`] waits for a connection.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// An occurrence in a [`Server`] that the server's user should know.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A second connection was closed, because a VMM is being served. Only the first connection that is
    /// closed while a VMM is served is reported. The refused VMM may report only that its connection was
    /// closed, or nothing.
    Refused,
    /// A VMM's connection failed, or the server ended the connection because of what the VMM sent.
    Ended(io::Result<End>),
}

/// A server that serves one VMM after another, each on a thread of its own. A connection of a second VMM at
/// the same time is closed at once. Each VMM after the first finds the device reset.
pub struct Server {
    function: Arc<PciFunction>,
    listener: UnixListener,
    notice: Arc<dyn Fn(Notice) + Send + Sync>,
    client: Option<Client>,
    has_served: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { listener, client, has_served, .. } = self;
        f.debug_struct("Server")
            .field("listener", listener)
            .field("client", client)
            .field("has_served", has_served)
            .finish_non_exhaustive()
    }
}

/// A client that is being served.
#[derive(Debug)]
struct Client {
    stream: UnixStream,
    /// Thread that serves the client. The thread returns whether the client was a VMM. A client that sends at
    /// least one byte counts as a VMM.
    thread: JoinHandle<bool>,
    has_refused: bool,
}

impl Server {
    /// Makes a server for VMMs that connect to `listener`. The server calls `notice` on the server's own
    /// threads.
    ///
    /// # Errors
    /// If the listener cannot be used.
    pub fn new(
        function: Arc<PciFunction>,
        listener: UnixListener,
        notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let notice = Arc::new(notice);
        Ok(Server { function, listener, notice, client: None, has_served: false })
    }

    /// Returns whether a VMM was served and has left, and no other VMM is being served.
    pub fn is_left(&self) -> bool {
        self.has_served && self.client.is_none()
    }

    /// Ends the connection of a client that is no longer served, and then waits for a short time for a new
    /// client.
    ///
    /// # Errors
    /// If no connection can be accepted or served. The error is `TimedOut` if a connection does not end,
    /// because the client has sent a descriptor that cannot be closed. The server must serve no other client
    /// after this error.
    pub fn turn(&mut self) -> io::Result<()> {
        if self.client.as_ref().is_some_and(|client| client.thread.is_finished()) {
            self.end()?;
        }
        match self.listener.accept() {
            Ok((stream, _)) => self.admit(stream),
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                // A signal may end the wait early, which does no harm.
                let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&PERIOD));
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    fn admit(&mut self, stream: UnixStream) -> io::Result<()> {
        if self.client.as_ref().is_some_and(|client| has_closed(&client.stream)) {
            self.end()?;
        }
        if let Some(client) = &mut self.client {
            if !std::mem::replace(&mut client.has_refused, true) {
                let notice = Arc::clone(&self.notice);
                thread::spawn(move || notice(Notice::Refused));
            }
            return Ok(());
        }
        stream.set_nonblocking(false)?;
        let (function, theirs) = (Arc::clone(&self.function), stream.try_clone()?);
        let (notice, is_first) = (Arc::clone(&self.notice), !self.has_served);
        let run = move || {
            let is_vmm = sends(&theirs);
            if is_vmm {
                if !is_first {
                    thread::sleep(PAUSE);
                    function.reset(|_| ());
                }
                match serve(&function, &theirs) {
                    Ok(End::Closed) => {}
                    ended => notice(Notice::Ended(ended)),
                }
            }
            // Closes the connection at once, although `Client::stream` is still open.
            let _ = theirs.shutdown(Shutdown::Both);
            is_vmm
        };
        let thread = thread::Builder::new().name("vfio-user".into()).spawn(run)?;
        self.client = Some(Client { stream, thread, has_refused: false });
        Ok(())
    }

    /// Ends the connection that is being served, if there is one.
    ///
    /// # Errors
    /// As [`turn`](Server::turn).
    pub fn end(&mut self) -> io::Result<()> {
        let Some(Client { stream, thread, .. }) = self.client.take() else { return Ok(()) };
        let _ = stream.shutdown(Shutdown::Both);
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > PATIENCE {
                let why =
                    "the VMM's connection does not end: a descriptor that it sent cannot be closed";
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.has_served |= thread.join().unwrap_or(true);
        Ok(())
    }
}

/// Waits for a client's first byte. Returns false if no byte arrives. There are two kinds of such clients:
/// one only checks whether the socket is served, and one keeps the connection open without sending anything.
fn sends(stream: &UnixStream) -> bool {
    let mut byte = [0];
    stream.set_read_timeout(Some(PATIENCE)).is_ok()
        && recv(stream, &mut byte, RecvFlags::PEEK).is_ok_and(|(n, _)| n > 0)
}

/// Returns whether the other side of a connection has closed it.
fn has_closed(stream: &UnixStream) -> bool {
    // `poll` needs no flags here, because it always reports a hang-up.
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}
