//! `hypertrace ctl`: commands to a running VMM, over its session's socket.

use crate::output::{print, prompt, say};
use crate::{Usage, place, units};
use anyhow::{Context, Result, anyhow, bail};
use hypertrace_export::escape::Message;
use hypertrace_format::folder::is_bad_path;
use hypertrace_trace::monitor::{self, MAX_REPLY, SOCKET};
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Control the tracing of a running VMM
///
/// `ctl` sends a command to the VMM that writes the session, over the socket
/// control.sock in the session's directory, and the VMM executes it. The command
/// `help` lists the commands of this VMM. If no command is given, `ctl` reads
/// commands from standard input, one per line; a command that fails does not stop
/// the next ones.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Time to wait for a reply; options precede COMMAND
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::wait)]
    timeout: Duration,

    /// Directory of a session that is being recorded (the one with session.json in it)
    #[arg(long = "directory", short, value_name = "DIR", default_value = place::DEFAULT)]
    dir: PathBuf,

    /// Command and its arguments; words are joined by spaces
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

const EXAMPLES: &str = "\
Commands:
  help                           list this VMM's commands
  info trace-events [PATTERN]    list events and their states
  info trace                     show buffers: contents, and how full they are
  trace-event NAME|PATTERN on|off
                                 switch events of the VMM and of the guest
  trace-file on|off|flush|set [PATH]
                                 control the simple backend's file
  trace-backend NAME on|off      log, syslog, ftrace[:DIR], ftrace-raw[:DIR],
                                 sdt
  trigger add RULE               add a rule: on NAME do ACTION
  trigger list                   list the rules
  trigger remove N               remove the rule of this number
  trace-events-all               print all declarations, for readers of the
                                 simple file
  snapshot                       write a flight recorder's contents as a session

Examples:
  hypertrace ctl info trace-events 'virtio_*'    show which of these are on
  hypertrace ctl trace-event 'disk_*' off        switch these events off
  hypertrace ctl -d S trace-file set /tmp/trace  continue in another file
  hypertrace ctl -d S < commands                 execute commands, one per line
  hypertrace ctl                                 type commands
  hypertrace ctl --timeout 60s trace-file flush  wait longer, for a slow disk

Quote patterns, or the shell replaces them by file names.

Exit code: 0 done, 1 the command failed or there was no reply, 2 wrong usage, or
no VMM listens in DIR.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let command = args.command.join(" ");
    if command.contains('\n') {
        bail!(Usage("a command is one line; give several on standard input".into()));
    }
    let vmm = Vmm { dir: &args.dir, timeout: args.timeout };
    if args.command.is_empty() {
        return converse(&vmm);
    }
    let text = vmm.ask(command.as_bytes())?.map_err(anyhow::Error::msg)?;
    print(Message(&text))
}

/// Executes commands from standard input until the input ends.
fn converse(vmm: &Vmm<'_>) -> Result<()> {
    vmm.connect()?;
    let interactive = io::stdin().is_terminal();
    let (mut commands, mut failed) = (0, 0);
    let ask = || {
        if interactive {
            prompt("hypertrace> ");
        }
    };
    ask();
    for (number, line) in io::stdin().lock().split(b'\n').enumerate() {
        let line = line.context("cannot read standard input")?;
        if !line.trim_ascii().is_empty() {
            commands += 1;
            match vmm.ask(&line)? {
                Ok(text) => print(Message(&text))?,
                Err(message) => {
                    failed += 1;
                    let place =
                        if interactive { String::new() } else { format!("line {}: ", number + 1) };
                    say(format_args!("{place}{message}"));
                }
            }
        }
        ask();
    }
    if interactive {
        prompt('\n'); // ends the prompt's line
        return Ok(()); // the failures were shown interactively
    }
    if failed > 0 {
        bail!("{failed} of {commands} commands failed");
    }
    Ok(())
}

/// A VMM with a monitor. Each command uses its own connection, because other clients wait while a client is
/// connected.
struct Vmm<'a> {
    /// The session's directory.
    dir: &'a Path,
    timeout: Duration,
}

impl Vmm<'_> {
    fn socket(&self) -> String {
        self.dir.join(SOCKET).display().to_string()
    }

    fn connect(&self) -> Result<BufReader<Timed>> {
        let (dir, timeout, socket) = (self.dir, self.timeout, self.socket());
        let until = Instant::now() + timeout;
        let stream = monitor::connect(dir, timeout).map_err(|error| {
            let here = dir.display();
            anyhow!(Usage(match error.kind() {
                ErrorKind::NotFound if !dir.exists() => {
                    format!("there is no {here}; give the directory of a running VMM's session")
                }
                ErrorKind::NotADirectory => {
                    format!("{here} is not a directory; give that of a running VMM's session")
                }
                ErrorKind::NotFound => format!(
                    "there is no {socket}: is the VMM still running, and was it started with a \
                     monitor?"
                ),
                ErrorKind::ConnectionRefused => {
                    format!("no VMM listens at {socket}: is it still running?")
                }
                ErrorKind::PermissionDenied => {
                    format!("no permission to use {socket}; run as the user of the VMM")
                }
                ErrorKind::TimedOut => return no_reply(&socket, timeout),
                _ if is_bad_path(&error) => format!("cannot connect to {socket}: {error}"),
                _ => return anyhow!(error).context(format!("cannot connect to {socket}")),
            }))
        })?;
        Ok(BufReader::new(Timed { stream, until }))
    }

    /// Sends one command. Returns the monitor's reply to the command: text or an error message.
    fn ask(&self, command: &[u8]) -> Result<Result<String, String>> {
        let mut replies = self.connect()?;
        match replies.get_mut().write_all(&[command, b"\n"].concat()) {
            // The monitor may have sent a reason before it closed the connection.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            sent => sent.map_err(|e| self.failed(&e))?,
        }
        let mut text = String::new();
        loop {
            let mut line = Vec::new();
            // The peer is not trusted to end its reply.
            let room = (MAX_REPLY + 1).saturating_sub(text.len()) as u64;
            let read = (&mut replies).take(room).read_until(b'\n', &mut line);
            read.map_err(|e| self.failed(&e))?;
            let Some(line) = line.strip_suffix(b"\n") else {
                if line.len() as u64 == room {
                    bail!("the reply of {} has no end; it is not a monitor", self.socket());
                }
                return Err(self.failed(&ErrorKind::UnexpectedEof.into()));
            };
            let line = String::from_utf8_lossy(line);
            if let Some(line) = line.strip_prefix("  ") {
                text.push_str(line);
                text.push('\n');
            } else if line == "ok" {
                return Ok(Ok(text));
            } else if let Some(message) = line.strip_prefix("error: ") {
                return Ok(Err(format!("{message}\n{text}").trim_end().to_owned()));
            } else {
                bail!("{} did not send a monitor's reply: {line}", self.socket());
            }
        }
    }

    /// Describes an I/O error. The error has no source, because [`crate::exit`] takes a broken pipe in the
    /// chain of errors as a sign that standard output is closed.
    fn failed(&self, error: &io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::TimedOut => no_reply(&self.socket(), self.timeout),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                anyhow!("{} was closed without a reply: has the VMM ended?", self.socket())
            }
            _ => anyhow!("cannot talk to {}: {error}", self.socket()),
        }
    }
}

fn no_reply(socket: &str, timeout: Duration) -> anyhow::Error {
    anyhow!(
        "no reply from {socket} within {} s: is the VMM stopped, or busy with another command?",
        timeout.as_secs_f64()
    )
}

/// Stream with a deadline for reads and writes.
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes).map_err(timed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer).map_err(timed)
    }
}

/// Converts the error of a socket's timeout, `WouldBlock`, to `TimedOut`.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}
