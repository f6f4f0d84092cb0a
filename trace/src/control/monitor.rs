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
//! `hypertrace ctl` speaks it, and so does a person with `socat - UNIX:DIR/control.sock`
//! or `nc -U DIR/control.sock`.
//!
//! A *request* is one line of UTF-8, at most [`MAX_COMMAND`] bytes, ended by LF or
//! CRLF. Its *reply* is any number of lines that begin with two spaces, the text,
//! and then one line that does not:
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
//! * `ok`, or `error: ` and a message of one line. A message of several lines has
//!   its first line there and the others above, as text.
//! * Each request has one reply, a blank one `ok`. Requests may be sent before
//!   earlier replies were read; replies come in order.
//! * Control characters in a reply are escaped (`\x1b`), so that it may be shown.
//! * A line that is too long is answered as soon as it is, and skipped.
//! * A client may shut down its sending side and read on. What it sent without a
//!   line end is not executed then: it may be half of a command.
//! * The connection ends after `error: too many clients` ([`MAX_CLIENTS`]), and when
//!   a client has taken nothing of a reply for 30 s.
//!
//! # What it does not do
//! It knows no commands; those are the closure's. It asks for no password: the
//! socket has mode 0600 and is never more open than that. Commands of all clients
//! run one after another on the monitor's one thread, taken in turn, so a slow
//! command delays the others, but no vCPU and no drain loop. A command is begun
//! when this client's replies before it are sent, so a client that does not read
//! holds up itself and at most [`MAX_REPLY`] bytes of memory.

mod socket;
mod sys;

pub use socket::connect;

use crate::ctf::folder::{Folder, MOST_TRIES, Share};
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
/// Bytes of a reply; a longer one is answered as an error.
pub const MAX_REPLY: usize = 1 << 20;
/// Clients at a time.
pub const MAX_CLIENTS: usize = 256;

/// How long a client may take nothing of its reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Until the next try, where the machine has no descriptors or memory now.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Why there is no monitor.
#[derive(Debug, thiserror::Error)]
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
    /// What has the name is not ours to replace.
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

/// A running monitor. Dropped, it lets the command that runs come to its end,
/// ends its thread and removes the socket. After a fork it stays the parent's.
#[derive(Debug)]
pub struct Monitor {
    /// Closed, it wakes the thread and ends it.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    entry: Entry,
}

impl Monitor {
    /// Listens in this directory. `execute` answers one command, with its text or
    /// with what was wrong with it; where it panics the client is told so and the
    /// next command is given to it as if nothing had been.
    ///
    /// # Errors
    /// If the socket cannot be made, or another monitor answers there. The socket
    /// of a process that is dead is replaced.
    pub fn start(
        dir: &Path,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        Monitor::start_with(dir, PATIENCE, execute)
    }

    /// The same in a directory that is open already.
    pub(crate) fn start_in(
        dir: Folder,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        Monitor::serve(dir, PATIENCE, execute)
    }

    fn start_with(
        dir: &Path,
        patience: Duration,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let folder = Folder::open(dir, Share::Owner)
            .map_err(|source| MonitorError::Directory { path: dir.to_owned(), source })?;
        Monitor::serve(folder, patience, execute)
    }

    fn serve(
        dir: Folder,
        patience: Duration,
        execute: impl FnMut(&str) -> Result<String, String> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let (listener, entry) = listen(dir)?;
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

    /// Where the socket is.
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
        // A command may have held the last of what owns the monitor: its thread
        // cannot wait for itself.
        let thread = self.thread.take().filter(|t| t.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join(); // it had its panics already
        }
    }
}

/// What the thread has.
struct Server<E> {
    listener: UnixListener,
    /// Readable when the monitor is dropped.
    wake: UnixStream,
    execute: E,
    patience: Duration,
    clients: Vec<Connection>,
    /// Nobody is accepted before.
    accept_from: Option<Instant>,
}

impl<E: FnMut(&str) -> Result<String, String>> Server<E> {
    fn serve(mut self) {
        let (mut fds, mut interrupted) = (Vec::new(), 0);
        loop {
            let now = Instant::now();
            self.accept_from = self.accept_from.filter(|from| *from > now);
            fds.clear();
            fds.push(sys::pollfd(&self.wake, libc::POLLIN));
            let accepting = if self.accept_from.is_some() { 0 } else { libc::POLLIN };
            fds.push(sys::pollfd(&self.listener, accepting));
            fds.extend(self.clients.iter().map(|c| sys::pollfd(&c.stream, c.waits_for())));
            match sys::poll(&mut fds, self.timeout(now)) {
                Err(e) if e.kind() == ErrorKind::Interrupted && interrupted < MOST_TRIES => {
                    interrupted += 1;
                    continue;
                }
                Err(_) => {
                    // Everything is tried then; nothing of it blocks.
                    thread::sleep(BACK_OFF);
                    fds.iter_mut().for_each(|fd| fd.revents = libc::POLLIN);
                }
                Ok(()) => interrupted = 0,
            }

            if fds[0].revents != 0 && is_closed(&self.wake) {
                return;
            }
            let mut ready = fds[2..].iter().map(|fd| fd.revents != 0);
            self.clients.retain_mut(|client| {
                client.turn(ready.next() == Some(true), &mut self.execute, self.patience)
            });
            if fds[1].revents != 0 && self.accept_from.is_none() {
                self.accept();
            }
        }
    }

    /// How long there is nothing to do if nothing comes.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        if self.clients.iter().any(Connection::has_work) {
            return Some(Duration::ZERO);
        }
        let unread = self.clients.iter().filter(|c| !c.output.is_empty());
        let ends = unread.map(|c| c.moved + self.patience).chain(self.accept_from);
        ends.min().map(|end| end.saturating_duration_since(now))
    }

    fn accept(&mut self) {
        // Bounded, so that those who are there get their turn.
        for _ in 0..MAX_CLIENTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    // No descriptors: it stays readable, and must not make us spin.
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
                let _ = sys::send(&stream, b"error: too many clients\n");
                continue;
            }
            self.clients.push(Connection::new(stream));
        }
    }
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
    /// Received and not yet executed: less than a line and one read.
    input: Vec<u8>,
    /// In a line that was too long.
    skipping: bool,
    /// It sends nothing more.
    ended: bool,
    /// The reply that is being sent, and how far it is.
    output: Vec<u8>,
    sent: usize,
    /// When something of the output was taken, or it was made.
    moved: Instant,
}

impl Connection {
    fn new(stream: UnixStream) -> Connection {
        Connection {
            stream,
            input: Vec::new(),
            skipping: false,
            ended: false,
            output: Vec::new(),
            sent: 0,
            moved: Instant::now(),
        }
    }

    /// What poll is to tell. It tells of a closed connection anyway.
    fn waits_for(&self) -> libc::c_short {
        if !self.output.is_empty() {
            libc::POLLOUT
        } else if self.ended || self.has_line() {
            0
        } else {
            libc::POLLIN
        }
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn has_work(&self) -> bool {
        self.output.is_empty() && self.has_line()
    }

    /// Does what can be done without waiting, at most one command, so that clients
    /// take turns; `false` if the connection is at its end.
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
        let mut interrupted = 0;
        while self.sent < self.output.len() {
            match sys::send(&self.stream, &self.output[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.moved = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted && interrupted < MOST_TRIES => {
                    interrupted += 1;
                }
                Err(e) => return Err(e),
            }
        }
        // A long reply's memory is not kept.
        (self.output, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    /// The next request, or what is wrong with it.
    fn request(&mut self) -> Option<Result<String, String>> {
        loop {
            let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
                if self.skipping {
                    self.input.clear();
                    return None;
                }
                // One more than the longest: a CR may be the last of it.
                if self.input.len() <= MAX_COMMAND + 1 {
                    return None;
                }
                self.input.clear();
                self.skipping = true;
                return Some(Err(too_long()));
            };
            let mut line: Vec<u8> = self.input.drain(..=end).collect();
            if std::mem::take(&mut self.skipping) {
                continue; // its end
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
    // What it leaves half done is in the closure, which says what it promises.
    catch_unwind(AssertUnwindSafe(|| execute(command)))
        .unwrap_or_else(|_| Err("the command failed inside the VMM; its log says where".into()))
}

/// A reply as it is sent.
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

/// Names and paths in a reply may be a guest's: they must not steer the terminal
/// of somebody who reads with socat.
fn escape(line: &str, out: &mut String) {
    for c in line.chars() {
        // Writing to a String does not fail.
        let _ = match c {
            '\t' => out.write_str("\\t"),
            '\r' => out.write_str("\\r"),
            c if c.is_control() => write!(out, "\\x{:02x}", c as u32),
            c => out.write_char(c),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn who_takes_nothing_of_a_reply_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let patience = Duration::from_millis(50);
        let long = |_: &str| Ok("x".repeat(MAX_REPLY / 2));
        let _monitor = Monitor::start_with(dir.path(), patience, long).unwrap();
        let mut client = connect(dir.path(), patience).unwrap();

        client.write_all(b"a\n").unwrap();
        thread::sleep(10 * patience);

        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(!received.is_empty() && received.len() < MAX_REPLY / 2, "{}", received.len());
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
