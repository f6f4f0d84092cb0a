//! `hypertrace ctl`: commands to a running VMM, through its session's socket.

use crate::Usage;
use crate::escape::Message;
use crate::output::{print, prompt, say};
use anyhow::{Context, Result, anyhow, bail};
use hypertrace_trace::monitor::{self, MAX_REPLY, SOCKET};
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Tell a running VMM what to trace, and ask it what it does.
///
/// The command goes to the VMM that writes the session, through the socket
/// control.sock in its directory, and is executed there; `help` tells what this
/// VMM understands. Without a command, commands are read from standard input,
/// one per line, each is executed whether the ones before it were or not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Seconds to wait for a reply; give it before COMMAND
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    timeout: Duration,

    /// Directory of the session of a running VMM (the one with session.json in
    /// it)
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Command and its arguments; words are joined by spaces
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

const EXAMPLES: &str = "\
Commands:
  help                           what this VMM understands
  info trace-events [PATTERN]    events and their states
  info trace                     buffers: what is in them and how full they are
  trace-event NAME|PATTERN on|off
                                 switch events, of the VMM and of the guest
  trace-file on|off|flush|set PATH
                                 the file of the simple backend
  trace-backend NAME on|off      log, syslog, ftrace[:DIR], ftrace-raw[:DIR], sdt
  trigger add RULE               when this happens, do that
  trigger list                   what was added
  trigger remove N               removes the rule of this number
  trace-events-all               all declarations, for a reader of the simple backend's file
  snapshot                       what a flight recorder holds now, as a session of its own

Examples:
  hypertrace ctl S info trace-events 'virtio_*'  is it on?
  hypertrace ctl S trace-event 'disk_*' off      silence, from now on
  hypertrace ctl S trace-file set /tmp/trace     go on in another file
  hypertrace ctl S < commands                    many, one per line
  hypertrace ctl S                               talk to it
  hypertrace ctl --timeout 60 S trace-file flush wait longer, for a slow disk

Quote patterns: the shell would replace them by names of files.

Exit code: 0 done, 1 the command failed or there was no reply, 2 wrong usage, or
nobody listens in DIR.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let command = args.command.join(" ");
    if command.contains('\n') {
        bail!(Usage("a command is one line; give several on standard input".into()));
    }
    let mut vmm = Vmm::connect(&args.dir, args.timeout)?;
    if args.command.is_empty() {
        return converse(&mut vmm);
    }
    let text = vmm.ask(command.as_bytes())?.map_err(anyhow::Error::msg)?;
    print(Message(&text))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    // Up to a year: nobody waits longer, and times can be added to it.
    if !(0.001..=31_536_000.0).contains(&number) {
        return Err("not a time from 0.001 to 31536000 seconds".into());
    }
    Ok(Duration::from_secs_f64(number))
}

/// Commands from standard input, to its end.
fn converse(vmm: &mut Vmm) -> Result<()> {
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
        prompt('\n'); // behind the prompt
        return Ok(()); // whoever typed them saw what became of them
    }
    if failed > 0 {
        bail!("{failed} of {commands} commands failed");
    }
    Ok(())
}

/// A connection to a monitor.
struct Vmm {
    /// Who is meant in messages.
    socket: String,
    replies: BufReader<Timed>,
    timeout: Duration,
}

impl Vmm {
    fn connect(dir: &Path, timeout: Duration) -> Result<Vmm> {
        let socket = dir.join(SOCKET).display().to_string();
        let usage = |text: String| anyhow!(Usage(text));
        let stream = monitor::connect(dir, timeout).map_err(|e| match e.kind() {
            ErrorKind::NotFound if !dir.exists() => usage(format!(
                "there is no {}; give the directory of a running VMM's session",
                dir.display()
            )),
            ErrorKind::NotADirectory => usage(format!(
                "{} is not a directory; give that of a running VMM's session",
                dir.display()
            )),
            ErrorKind::NotFound => usage(format!(
                "there is no {socket}: is the VMM still running, and was it started with a monitor?"
            )),
            ErrorKind::ConnectionRefused => {
                usage(format!("nobody listens at {socket}: is the VMM still running?"))
            }
            ErrorKind::PermissionDenied => {
                usage(format!("{socket} is not yours to use; be the user that runs the VMM"))
            }
            ErrorKind::TimedOut => no_reply(&socket, timeout),
            _ => anyhow!(e).context(format!("cannot connect to {socket}")),
        })?;
        let replies = BufReader::new(Timed { stream, until: Instant::now() });
        Ok(Vmm { socket, replies, timeout })
    }

    /// Sends one command; its reply, text or error message.
    fn ask(&mut self, command: &[u8]) -> Result<Result<String, String>> {
        let timed = self.replies.get_mut();
        timed.until = Instant::now() + self.timeout;
        match timed.send(&[command, b"\n"].concat()) {
            // It may have said why before it closed.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            sent => sent.map_err(|e| self.failed(&e))?,
        }
        self.reply()
    }

    fn reply(&mut self) -> Result<Result<String, String>> {
        let mut text = String::new();
        loop {
            let mut line = Vec::new();
            // Whoever answers there is not trusted to end.
            let room = (MAX_REPLY + 1).saturating_sub(text.len()) as u64;
            (&mut self.replies)
                .take(room)
                .read_until(b'\n', &mut line)
                .map_err(|e| self.failed(&e))?;
            let Some(line) = line.strip_suffix(b"\n") else {
                if line.len() as u64 == room {
                    bail!("what {} sends has no end; it is no monitor", self.socket);
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
                bail!("what {} sends is no reply of a monitor: {line}", self.socket);
            }
        }
    }

    /// Without its source: a broken pipe there is not one that we write to.
    fn failed(&self, error: &io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::TimedOut => no_reply(&self.socket, self.timeout),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                anyhow!("{} was closed without a reply: has the VMM ended?", self.socket)
            }
            _ => anyhow!("cannot talk to {}: {error}", self.socket),
        }
    }
}

fn no_reply(socket: &str, timeout: Duration) -> anyhow::Error {
    anyhow!(
        "no reply from {socket} within {} s: is the VMM stopped, or busy with another command?",
        timeout.as_secs_f64()
    )
}

/// A stream that is read and written up to a point in time.
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(timed(e)),
            }
        }
        Ok(())
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer).map_err(timed)
    }
}

/// What a socket's timeout is called.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}
