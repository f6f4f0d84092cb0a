//! The monitor: commands to a VMM while it runs, through the Unix stream socket
//! `DIR/control.sock` of its session.
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
//! `hypertrace ctl` uses it. A person at a terminal can use
//! `socat - UNIX:DIR/control.sock` or `nc -U DIR/control.sock`.
//!
//! A *request* is one line of UTF-8, at most [`MAX_COMMAND`] bytes, ended by LF or
//! CRLF. Its *reply* is the text, which is any number of lines that begin with two
//! spaces, and then one line that does not:
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
//! * The connection ends after `error: too many clients` ([`MAX_CLIENTS`]), and when
//!   a client has read nothing of a reply for 30 s.
//!
//! # What it does not do
//! It knows no commands; the closure does. It asks for no password: the socket
//! has mode 0600 and is never more open than that. Commands of all clients run
//! one after another on the monitor's one thread, and the clients take turns. A
//! slow command therefore delays the others, but no vCPU and no drain loop. A
//! command begins after this client's earlier replies are sent, so a client that
//! does not read delays only itself and occupies at most [`MAX_REPLY`] bytes of
//! memory.

#[doc(hidden)]
pub mod socket;

pub use socket::connect;

use crate::ctf::{Folder, Share};
use hypertrace_format::folder::{MOST_TRIES, retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket::{Entry, listen};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The socket's name in the session's directory.
pub const SOCKET: &str = "control.sock";
/// Bytes of a request, without its line end.
pub const MAX_COMMAND: usize = 4096;
/// Bytes of a reply; an error replaces a longer one.
pub const MAX_REPLY: usize = 1 << 20;
/// Clients at a time.
pub const MAX_CLIENTS: usize = 256;

/// Time for which a client may read nothing of its reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time until the next try when the machine is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Error of starting a monitor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The session's directory cannot be opened.
    #[error("cannot use {} as a session directory", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process, or another monitor of this one, answers there.
    #[error("{} is in use by a running VMM; give another session directory", .0.display())]
    InUse(PathBuf),
    /// A file that is not a socket has this name.
    #[error("{} is in the way and no socket; move it", .0.display())]
    NotASocket(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the monitor's thread")]
    Thread(#[source] io::Error),
}

/// A running monitor. When it is dropped, it waits for the command that runs,
/// ends its thread and removes the socket. After a fork it belongs to the
/// parent only.
#[derive(Debug)]
pub struct Monitor {
    /// End of a connection to the thread: its close wakes the thread, which then ends.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    entry: Entry,
}

impl Monitor {
    /// Listens in this directory. `execute` answers one command, with its text or
    /// with an error message. If it panics, the client gets an error and the next
    /// command is executed as usual.
    ///
    /// # Errors
    /// If the socket cannot be made, or another monitor answers there. A dead
    /// process's socket is replaced.
    pub fn start(
        dir: &Path,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let folder = Folder::open(dir, Share::Owner)
            .map_err(|source| MonitorError::Directory { path: dir.to_owned(), source })?;
        Monitor::start_in(folder, PATIENCE, execute)
    }

    /// Starts in the same way in a directory that is open already. `patience` is
    /// [`PATIENCE`] or, in a test, less.
    pub(crate) fn start_in(
        dir: Folder,
        patience: Duration,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let (listener, entry) = listen(dir, SOCKET)?;
        let (wake, waker) = UnixStream::pair().map_err(MonitorError::Thread)?;
        wake.set_nonblocking(true).map_err(MonitorError::Thread)?;
        let server =
            Server { listener, wake, execute, patience, clients: Vec::new(), accept_from: None };
        let thread = thread::Builder::new()
            .name("monitor".into())
            .spawn(move || server.serve())
            .map_err(MonitorError::Thread)?;
        Ok(Monitor { wake: Some(waker), thread: Some(thread), entry })
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
        // A command may have dropped the monitor's last owner. The drop then
        // runs on the monitor's own thread, which cannot wait for itself.
        let thread = self.thread.take().filter(|t| t.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join(); // its panics were reported already
        }
    }
}

/// State of the thread.
struct Server<E> {
    listener: UnixListener,
    /// Readable when the monitor is dropped.
    wake: UnixStream,
    execute: E,
    patience: Duration,
    clients: Vec<Connection>,
    /// Earliest time at which a client is accepted.
    accept_from: Option<Instant>,
}

impl<E: FnMut(&str) -> Result<String, String>> Server<E> {
    fn serve(mut self) {
        let mut interrupted = 0;
        loop {
            let now = Instant::now();
            self.accept_from = self.accept_from.filter(|from| *from > now);
            let accepting = match self.accept_from {
                Some(_) => PollFlags::empty(),
                None => PollFlags::IN,
            };
            let wake = PollFd::new(&self.wake, PollFlags::IN);
            let mut fds = vec![wake, PollFd::new(&self.listener, accepting)];
            fds.extend(self.clients.iter().map(|c| PollFd::new(&c.stream, c.waits_for())));
            let timeout = self.timeout(now).and_then(|left| Timespec::try_from(left).ok());
            let failed = match poll(&mut fds, timeout.as_ref()) {
                // The timeout begins anew, so it is another one.
                Err(Errno::INTR) if interrupted < MOST_TRIES => {
                    interrupted += 1;
                    continue;
                }
                polled => polled.is_err(),
            };
            interrupted = 0;
            if failed {
                // Everything is tried after that; none of it blocks.
                thread::sleep(BACK_OFF);
            }
            let ready: Vec<bool> =
                fds.iter().map(|fd| failed || !fd.revents().is_empty()).collect();

            if ready[0] && is_closed(&self.wake) {
                return;
            }
            let mut clients_ready = ready[2..].iter();
            self.clients.retain_mut(|client| {
                client.turn(clients_ready.next() == Some(&true), &mut self.execute, self.patience)
            });
            if ready[1] && self.accept_from.is_none() {
                self.accept();
            }
        }
    }

    /// Returns the time until there is something to do if no client sends anything.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        if self.clients.iter().any(Connection::has_work) {
            return Some(Duration::ZERO);
        }
        let unread = self.clients.iter().filter(|c| !c.output.is_empty());
        let ends = unread.map(|c| c.moved + self.patience).chain(self.accept_from);
        ends.min().map(|end| end.saturating_duration_since(now))
    }

    fn accept(&mut self) {
        // Bounded, so that the present clients get their turn.
        for _ in 0..MAX_CLIENTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    // No descriptors: the listener stays readable, and the loop must not spin.
                    _ => {
                        self.accept_from = Some(Instant::now() + BACK_OFF);
                        return;
                    }
                },
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                let _ = send(&stream, b"error: too many clients\n");
                continue;
            }
            self.clients.push(Connection {
                stream,
                input: Vec::new(),
                skipping: false,
                ended: false,
                output: Vec::new(),
                sent: 0,
                moved: Instant::now(),
            });
        }
    }
}

/// Sends as many bytes as there is room for. Raises no SIGPIPE in a VMM that does
/// not ignore it.
fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    retry(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
}

fn is_closed(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0]) {
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        Ok(n) => n == 0, // nothing is ever sent there
    }
}

/// One connection.
struct Connection {
    stream: UnixStream,
    /// Bytes that are received and not yet executed: less than a line and one read.
    input: Vec<u8>,
    /// True in a line that was too long.
    skipping: bool,
    /// True if the client sends nothing more.
    ended: bool,
    /// The reply that is being sent; `sent` bytes of it are sent.
    output: Vec<u8>,
    sent: usize,
    /// The time of the last progress of the output: when it was made, or a part of it was sent.
    moved: Instant,
}

impl Connection {
    /// Returns the events that poll waits for. It reports a closed connection anyway.
    fn waits_for(&self) -> PollFlags {
        if !self.output.is_empty() {
            PollFlags::OUT
        } else if self.ended || self.has_line() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        }
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn has_work(&self) -> bool {
        self.output.is_empty() && self.has_line()
    }

    /// Reads, executes and sends without waiting, and executes at most one
    /// command, so that clients take turns. Returns `false` if the connection has
    /// ended.
    fn turn(
        &mut self,
        ready: bool,
        execute: &mut impl FnMut(&str) -> Result<String, String>,
        patience: Duration,
    ) -> bool {
        if ready && !self.output.is_empty() && self.send().is_err() {
            return false;
        }
        if !self.output.is_empty() {
            return self.moved.elapsed() < patience;
        }
        if ready && !self.ended && !self.has_line() && self.receive().is_err() {
            return false;
        }
        let Some(request) = self.request() else { return !self.ended };
        self.output = reply(request.and_then(|command| run(execute, &command)));
        self.moved = Instant::now();
        self.send().is_ok()
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(n) => self.input.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match send(&self.stream, &self.output[self.sent..]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                sent => self.sent += sent?,
            }
            self.moved = Instant::now();
        }
        // A long reply's memory is not kept.
        (self.output, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    /// Returns the next request, or the error that answers it.
    fn request(&mut self) -> Option<Result<String, String>> {
        loop {
            let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
                if self.skipping {
                    self.input.clear();
                    return None;
                }
                // One byte more than the longest request, because the last may be a CR.
                if self.input.len() <= MAX_COMMAND + 1 {
                    return None;
                }
                self.input.clear();
                self.skipping = true;
                return Some(Err(too_long()));
            };
            let mut line: Vec<u8> = self.input.drain(..=end).collect();
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
    // Anything that a panic leaves half done is the closure's own state.
    catch_unwind(AssertUnwindSafe(|| execute(command)))
        .unwrap_or_else(|_| Err("the command failed inside the VMM; its log says where".into()))
}

/// Returns a reply in the format of the protocol.
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

/// Escapes control characters. Names and paths in a reply may be a guest's and
/// must not control the terminal of a user of socat.
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
    fn a_client_that_reads_nothing_of_a_reply_is_disconnected() {
        let dir = tempfile::tempdir().unwrap();
        let patience = Duration::from_millis(50);
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();
        let long = |_: &str| Ok("x".repeat(MAX_REPLY / 2));
        let _monitor = Monitor::start_in(folder, patience, long).unwrap();
        let mut client = connect(dir.path(), patience).unwrap();

        client.write_all(b"a\n").unwrap();
        thread::sleep(10 * patience);

        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(!received.is_empty() && received.len() < MAX_REPLY / 2, "{}", received.len());
    }

    #[test]
    #[allow(unsafe_code)] // signal(2)
    fn signals_do_not_delay_the_disconnection_of_a_client() {
        extern "C" fn nothing(_: libc::c_int) {}
        let dir = tempfile::tempdir().unwrap();
        let patience = Duration::from_millis(200);
        let folder = Folder::open(dir.path(), Share::Owner).unwrap();
        let long = |_: &str| Ok("x".repeat(MAX_REPLY / 2));
        let monitor = Monitor::start_in(folder, patience, long).unwrap();
        let thread = monitor.thread.as_ref().unwrap().as_pthread_t();
        let mut client = connect(dir.path(), patience).unwrap();

        client.write_all(b"a\n").unwrap();
        for _ in 0..60 {
            // SAFETY: the handler does nothing, and the monitor has its thread.
            unsafe {
                libc::signal(libc::SIGUSR2, nothing as extern "C" fn(_) as libc::sighandler_t);
                libc::pthread_kill(thread, libc::SIGUSR2);
            }
            thread::sleep(patience / 4);
        }

        // Less than the reply, and then the connection's end.
        let (mut received, mut part) = (0, vec![0; MAX_REPLY]);
        while received < MAX_REPLY / 2 {
            match client.read(&mut part).unwrap() {
                0 => return,
                bytes => received += bytes,
            }
        }
        panic!("the client is still connected");
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
