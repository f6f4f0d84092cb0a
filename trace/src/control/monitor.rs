//! The monitor: takes commands while a VM runs. Clients send the commands through the Unix stream socket
//! `DIR/control.sock` of the VMM's session.
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
//! A *request* is one line of UTF-8 with at most [`MAX_COMMAND`] bytes. The line ends with LF or CRLF. A
//! *reply* consists of lines of text, each with two spaces before the text, and of a last line without these
//! spaces:
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
//! * The last line is `ok`, or `error: ` and a message. A message may have several lines. The first line is
//!   then in the reply's last line, and the other lines are in the reply's text.
//! * Each request gets one reply, and a blank request gets the reply `ok`. A client may send further requests
//!   before it has read earlier replies. The monitor sends replies in the order of the requests.
//! * Control characters in a reply are escaped (`\x1b`), so that a terminal can show the reply.
//! * If a line is too long, the monitor replies with an error at once, and skips the line.
//! * A client may shut down its sending side and continue to read. In this case, the monitor does not execute
//!   a last line without a line end, because the line may be half of a command.
//!
//! # One client at a time
//! Clients are served one after another, in the order in which they connect. Further clients wait in the
//! socket's queue. While no other client waits, the served client may stay for as long as it likes. If
//! another client waits, the served client must complete a request or read a part of a reply within [`IDLE`].
//! Otherwise the monitor closes the connection of the served client. If the client has received all earlier
//! replies completely, the monitor first sends a line `error: ...` to the client. Therefore a program that
//! may pause connects anew for each command, as `hypertrace ctl` does.
//!
//! # What it does not do
//! Only the closure `execute` knows the commands. The monitor asks for no password, because the socket always
//! has mode 0600. Commands run on the monitor's one thread, so a slow command delays other clients, but no
//! vCPU and no drain loop. A command begins only after earlier replies are sent. So the monitor keeps at most
//! one request and one reply of [`MAX_REPLY`] bytes in memory.

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
/// Time after which an idle client gives way to a waiting client.
pub const IDLE: Duration = Duration::from_secs(1);

/// The last line that is sent to a client that gives way.
const GAVE_WAY: &[u8] =
    b"error: this connection was closed because it was idle and another client waits; \
                          connect again\n";
/// Time until the next attempt to accept a client, if the machine has no descriptors or no memory left.
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
    /// One end of a connection to the thread. A close of this end wakes the thread, and the thread then ends.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    entry: Entry,
}

impl Monitor {
    /// Starts a monitor that listens in the directory `dir`. `execute` executes one command, and returns the
    /// reply's text or an error message. If `execute` panics, the client gets an error, and the next command
    /// is executed as usual.
    ///
    /// # Errors
    /// If the socket cannot be made, or another monitor listens at the socket. The call replaces the socket
    /// of a dead process.
    pub fn start(
        dir: &Path,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let folder = Folder::open(dir, Share::Owner)
            .map_err(|source| MonitorError::Directory { path: dir.to_owned(), source })?;
        Monitor::start_in(folder, || Ok(()), execute)
    }

    /// Starts a monitor like [`Monitor::start`], but in an open directory. The monitor's thread first calls
    /// `before`.
    ///
    /// # Errors
    /// The errors of [`Monitor::start`], and the error of `before`.
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
        // A command may have dropped the monitor's last owner. In this case, the drop runs on the monitor's
        // own thread, and a thread cannot wait for its own end.
        let thread = self.thread.take().filter(|t| t.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join(); // its panics were reported already
        }
    }
}

/// State of the monitor's thread.
struct Server<E> {
    listener: UnixListener,
    /// A stream that becomes readable when the monitor is dropped.
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
                // No descriptors are left. Without a pause, this loop would spin, because the listener stays
                // readable.
                Err(_) => thread::sleep(BACK_OFF),
            }
        }
    }

    /// Serves one client. The caller then closes the client's connection.
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

    /// Waits until a client has sent bytes or has room for a reply. The client has been idle since `moved`.
    /// Returns `None` if the client must give way to another client, or if the monitor ends.
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

    /// Waits until one of `fds` is ready, a signal arrives or the time is over. The returned array has the
    /// value true for each descriptor that is ready. Returns `None` if the monitor ends.
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

/// Sends the part of the bytes for which the socket has room. Raises no SIGPIPE, because SIGPIPE would kill a
/// VMM that does not ignore this signal.
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
    /// Received bytes that are not executed yet. The number of bytes is below the maximum size of a line plus
    /// the size of one read.
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

    /// Returns the next request, or the error with which the monitor replies to a wrong request.
    fn request(&mut self) -> Option<Result<String, String>> {
        loop {
            let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
                if self.skipping {
                    self.bytes.clear();
                    return None;
                }
                // The limit is one byte more than the longest request, because the last byte may be a CR.
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
    // A panic can leave only the closure's own state half changed.
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

/// Escapes control characters. A guest may have chosen the names and paths in a reply. Without the escapes,
/// such a name could control the terminal of a user of socat.
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
