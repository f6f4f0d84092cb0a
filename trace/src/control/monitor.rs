//! The monitor: takes commands to a VMM while it runs, through the Unix stream socket `DIR/control.sock` of
//! the VMM's session.
//!
//! ```no_run
//! use hypertrace_trace::monitor::Monitor;
//!
//! # fn main() -> Result<(), hypertrace_trace::monitor::MonitorError> {
//! let monitor = Monitor::start("out".as_ref(), |command| match command {
//!     "help" => Ok("help: this text".into()),
//!     other => Err(format!("no command {other:?}\nhelp: what there is")),
//! })?;
//! println!("listening at {}", monitor.path().display());
//! # Ok(())
//! # }
//! ```
//!
//! # Protocol
//! `hypertrace ctl` uses this protocol. A person at a terminal can use `socat - UNIX:DIR/control.sock` or `nc
//! -U DIR/control.sock`.
//!
//! A *request* is one line of UTF-8, at most [`MAX_COMMAND`] bytes, ended by LF or CRLF. A *reply* is its
//! text, any number of lines that begin with two spaces, and then one line that does not begin so:
//!
//! ```text
//! info trace-events virtio_*
//!   virtio_irq on
//!   virtio_kick off
//! ok
//! trace-events
//!   help: what there is
//! error: no command "trace-events"
//! ```
//!
//! * The last line is `ok`, or `error: ` and a message of one line. If a message
//!   has several lines, its first line is there and the others are in the text
//!   above.
//! * Each request has one reply; that of a blank request is `ok`. Requests may
//!   be sent before earlier replies were read; replies are sent in order.
//! * Control characters in a reply are escaped (`\x1b`), so that it can be shown on a terminal.
//! * A line that is too long is answered with an error at once, and skipped.
//! * A client may shut down its sending side and continue to read. A last line
//!   without a line end is not executed then, because it may be half of a
//!   command.
//!
//! # One client at a time
//! Clients are served one after another, in the order in which they connect. Further clients wait in the
//! socket's queue. While no other client waits, the served client may stay for as long as it likes. Once
//! another client waits, a client that has neither completed a request nor read any part of a reply for
//! [`IDLE`] gives way: its connection is closed, after a line `error: ...` if it was between two replies. So
//! a program that may pause connects for each command, as `hypertrace ctl` does.
//!
//! # What it does not do The monitor knows no commands: the closure does. The monitor asks for no password,
//! because the socket always has mode 0600. Commands run on the monitor's one thread, so a slow command
//! delays other clients, but no vCPU and no drain loop. A command begins after earlier replies are sent, so
//! clients occupy at most one request and [`MAX_REPLY`] bytes of memory.

#[doc(hidden)]
pub mod socket;

pub use socket::connect;

use crate::ctf::{Folder, Share};
use hypertrace_format::folder::retry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket::{Entry, listen};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Name of the socket in the session's directory.
pub const SOCKET: &str = "control.sock";
/// Maximum size of a request without its line end, in bytes.
pub const MAX_COMMAND: usize = 4096;
/// Maximum size of a reply in bytes. An error replaces a longer reply.
pub const MAX_REPLY: usize = 1 << 20;
/// Time after which an idle client gives way to one that waits.
pub const IDLE: Duration = Duration::from_secs(1);

/// The last line that is sent to a client that gives way.
const GAVE_WAY: &[u8] =
    b"error: this connection was closed because it was idle and another client waits; \
                          connect again\n";
/// Time until the next try after the machine ran out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Error of starting a monitor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The session's directory cannot be opened.
    #[error("cannot use {} as a session directory", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Another process, or another monitor of this process, listens at the socket.
    #[error("{} is in use by a running VMM; give another session directory", .0.display())]
    InUse(PathBuf),
    /// A file that is not a socket has this name.
    #[error("{} exists and is no socket; move it away", .0.display())]
    NotASocket(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {}", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The thread cannot be started, or the function that the thread calls first has failed.
    #[error("cannot start the monitor's thread")]
    Thread(#[source] io::Error),
}

/// A running monitor. Dropping the monitor waits for the command that runs, ends the thread and removes the
/// socket. After a fork, the monitor belongs to the parent only.
#[derive(Debug)]
pub struct Monitor {
    /// One end of a connection to the thread. Closing this end wakes the thread, which then ends.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    entry: Entry,
}

impl Monitor {
    /// Listens in the directory `dir`. `execute` answers one command, with the reply's text or with an error
    /// message. If `execute` panics, the client gets an error, and the next command is executed as usual.
    ///
    /// # Errors
    /// If the socket cannot be made, or another monitor listens there. The socket of a dead process is
    /// replaced.
    pub fn start(
        dir: &Path,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let folder = Folder::open(dir, Share::Owner)
            .map_err(|source| MonitorError::Directory { path: dir.to_owned(), source })?;
        Monitor::start_in(folder, || Ok(()), execute)
    }

    /// Starts in the same way in an open directory. The thread calls `before` first.
    ///
    /// # Errors
    /// As [`Monitor::start`], or if `before` fails.
    pub(crate) fn start_in(
        dir: Folder,
        before: impl FnOnce() -> io::Result<()> + Send + 'static,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let (listener, entry) = listen(dir, SOCKET)?;
        let (wake, waker) = UnixStream::pair().map_err(MonitorError::Thread)?;
        wake.set_nonblocking(true).map_err(MonitorError::Thread)?;
        let server = Server { listener, wake, execute };
        let (began, begins) = mpsc::channel();
        let run = move || {
            let before = before();
            let failed = before.is_err();
            // The receiver waits for this message, so sending cannot fail.
            let _ = began.send(before);
            if !failed {
                server.serve();
            }
        };
        let thread = thread::Builder::new().name("ht-monitor".into()).spawn(run);
        let thread = thread.map_err(MonitorError::Thread)?;
        // If the channel closes without a message, `before` has panicked.
        let before = begins.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)));
        let monitor = Monitor { wake: Some(waker), thread: Some(thread), entry };
        before.map(|()| monitor).map_err(MonitorError::Thread)
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.entry.path()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if !self.entry.is_this_process() {
            return; // a fork's copy: there is no thread here to wait for
        }
        self.wake = None;
        // A command may have dropped the monitor's last owner. In that case this drop runs on the monitor's
        // own thread, which cannot wait for itself.
        let thread = self.thread.take().filter(|t| t.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join(); // its panics were reported already
        }
    }
}

/// State of the monitor's thread.
struct Server<E> {
    listener: UnixListener,
    /// Readable when the monitor is dropped.
    wake: UnixStream,
    execute: E,
}

impl<E: FnMut(&str) -> Result<String, String>> Server<E> {
    fn serve(mut self) {
        while let Some([waits]) = self.poll([PollFd::new(&self.listener, PollFlags::IN)], None) {
            if !waits {
                continue;
            }
            match self.listener.accept() {
                Ok((stream, _)) => _ = self.converse(&stream),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // No descriptors are left. The listener stays readable, and the loop must not spin.
                Err(_) => thread::sleep(BACK_OFF),
            }
        }
    }

    /// Serves one client. Returns `None` when its connection is to be closed.
    fn converse(&mut self, stream: &UnixStream) -> Option<()> {
        stream.set_nonblocking(true).ok()?;
        let (mut input, mut moved) = (Input::default(), Instant::now());
        loop {
            let Some(request) = input.request() else {
                self.wait(stream, PollFlags::IN, moved)?;
                input.receive(stream).ok()?;
                continue;
            };
            let reply = reply(request.and_then(|command| run(&mut self.execute, &command)));
            let mut unsent = reply.as_slice();
            moved = Instant::now();
            while !unsent.is_empty() {
                match send(stream, unsent) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        self.wait(stream, PollFlags::OUT, moved)?;
                    }
                    sent => (unsent, moved) = (&unsent[sent.ok()?..], Instant::now()),
                }
            }
        }
    }

    /// Waits until a client, idle since `moved`, has sent something or has room for a reply. Returns `None`
    /// if the client gives way to another one, or if the monitor ends.
    fn wait(&self, stream: &UnixStream, ready: PollFlags, moved: Instant) -> Option<()> {
        loop {
            let left = IDLE.checked_sub(moved.elapsed());
            let others = if left.is_some() { PollFlags::empty() } else { PollFlags::IN };
            let fds = [PollFd::new(stream, ready), PollFd::new(&self.listener, others)];
            let [is_ready, another_waits] = self.poll(fds, left)?;
            if another_waits {
                if ready == PollFlags::IN {
                    let _ = send(stream, GAVE_WAY);
                }
                return None;
            }
            if is_ready {
                return Some(());
            }
        }
    }

    /// Waits until one of `fds` is ready, a signal arrives or the time is over. Returns which of them are
    /// ready, or `None` if the monitor ends.
    fn poll<const N: usize>(
        &self,
        fds: [PollFd<'_>; N],
        timeout: Option<Duration>,
    ) -> Option<[bool; N]> {
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let mut all: Vec<_> = fds.into_iter().chain([wake]).collect();
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut all, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => all.iter_mut().for_each(PollFd::clear_revents),
            Err(_) => thread::sleep(BACK_OFF), // no memory
        }
        (!is_closed(&self.wake)).then(|| std::array::from_fn(|n| !all[n].revents().is_empty()))
    }
}

/// Sends as many bytes as there is room for. Raises no SIGPIPE, which a VMM may not ignore.
fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    retry(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
}

fn is_closed(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0]) {
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        Ok(n) => n == 0, // nothing is ever sent there
    }
}

/// Bytes that a client has sent.
#[derive(Default)]
struct Input {
    /// Bytes that are not executed yet: less than a line and one read.
    bytes: Vec<u8>,
    /// True inside a line that was too long.
    skipping: bool,
}

impl Input {
    /// Receives the bytes that have arrived.
    ///
    /// # Errors
    /// If the client has closed its sending side or the connection fails.
    fn receive(&mut self, mut stream: &UnixStream) -> io::Result<()> {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.bytes.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Returns the next request, or the error that answers it.
    fn request(&mut self) -> Option<Result<String, String>> {
        loop {
            let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
                if self.skipping {
                    self.bytes.clear();
                    return None;
                }
                // One byte more than the longest request, because the last byte may be a CR.
                if self.bytes.len() <= MAX_COMMAND + 1 {
                    return None;
                }
                self.bytes.clear();
                self.skipping = true;
                return Some(Err(too_long()));
            };
            let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
            if std::mem::take(&mut self.skipping) {
                continue; // the end of the long line
            }
            line.truncate(line.strip_suffix(b"\r\n").map_or(end, <[u8]>::len));
            return Some(if line.len() > MAX_COMMAND {
                Err(too_long())
            } else {
                String::from_utf8(line).map_err(|_| "the command is not UTF-8".into())
            });
        }
    }
}

fn too_long() -> String {
    format!("a command has at most {MAX_COMMAND} bytes")
}

fn run(
    execute: &mut impl FnMut(&str) -> Result<String, String>,
    command: &str,
) -> Result<String, String> {
    if command.trim().is_empty() {
        return Ok(String::new());
    }
    // Only the closure's own state can be left half changed by a panic.
    catch_unwind(AssertUnwindSafe(|| execute(command)))
        .unwrap_or_else(|_| Err("the command failed inside the VMM; its log says where".into()))
}

/// Formats a reply for the protocol.
fn reply(result: Result<String, String>) -> Vec<u8> {
    let (text, end) = match &result {
        Ok(text) => (text.as_str(), None),
        Err(message) => match message.split_once('\n') {
            Some((first, others)) => (others, Some(first)),
            None => ("", Some(message.as_str())),
        },
    };
    let mut reply = String::new();
    for line in text.lines() {
        reply.push_str("  ");
        escape(line, &mut reply);
        reply.push('\n');
        if reply.len() > MAX_REPLY {
            break;
        }
    }
    match end {
        None => reply.push_str("ok\n"),
        Some(message) => {
            reply.push_str("error: ");
            escape(message.trim_end_matches('\r'), &mut reply);
            reply.push('\n');
        }
    }
    if reply.len() > MAX_REPLY {
        reply = format!("error: the reply has more than {MAX_REPLY} bytes; ask for less\n");
    }
    reply.into_bytes()
}

/// Escapes control characters. A guest may have chosen the names and paths in a reply, which must not control
/// the terminal of a user of socat.
fn escape(line: &str, out: &mut String) {
    for c in line.chars() {
        // Writing to a String does not fail.
        let _ = match c {
            // The highest control character is U+009F.
            c if c.is_control() => write!(out, "{}", std::ascii::escape_default(c as u8)),
            c => out.write_char(c),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::thread::JoinHandleExt;

    #[test]
    #[allow(unsafe_code)] // signal(2)
    fn signals_do_not_keep_an_idle_client_connected() {
        extern "C" fn nothing(_: libc::c_int) {}
        let dir = tempfile::tempdir().unwrap();
        let monitor = Monitor::start(dir.path(), |_| Ok("x".repeat(MAX_REPLY / 2))).unwrap();
        let thread = monitor.thread.as_ref().unwrap().as_pthread_t();
        let [mut idle, mut waiting] = [(); 2].map(|()| connect(dir.path(), IDLE).unwrap());
        idle.write_all(b"it reads no reply\n").unwrap();
        waiting.write_all(b"a\n").unwrap();
        waiting.set_nonblocking(true).unwrap();
        let begun = Instant::now();

        while waiting.read(&mut [0]).is_err() {
            assert!(begun.elapsed() < 20 * IDLE, "the idle client is still connected");
            // SAFETY: the handler does nothing, and the monitor has its own thread.
            unsafe {
                libc::signal(libc::SIGUSR2, nothing as extern "C" fn(_) as libc::sighandler_t);
                libc::pthread_kill(thread, libc::SIGUSR2);
            }
            thread::sleep(IDLE / 10);
        }

        assert!(begun.elapsed() >= IDLE * 9 / 10, "it had less than its time");
    }

    #[test]
    fn a_reply_is_text_and_one_last_line() {
        let sent = |result| String::from_utf8(reply(result)).unwrap();
        assert_eq!(sent(Ok("".into())), "ok\n");
        assert_eq!(sent(Ok("a\n\nok\r\n".into())), "  a\n  \n  ok\nok\n");
        assert_eq!(sent(Err("no x\none\ntwo".into())), "  one\n  two\nerror: no x\n");
        assert_eq!(sent(Ok("\x1b[2J\u{9b}\t\0".into())), "  \\x1b[2J\\x9b\\t\\x00\nok\n");
        for long in [Ok("x".repeat(MAX_REPLY)), Err("\n".repeat(MAX_REPLY))] {
            let sent = sent(long);
            assert!(sent.starts_with("error: ") && sent.len() < 80, "{sent}");
        }
    }
}
