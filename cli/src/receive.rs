//! `hypertrace receive`: makes a session of a journal.

use crate::interrupt::Interrupts;
use crate::unreadable;
use anyhow::{Context, Result};
use hypertrace_trace::receive::{ReceiveError, receive};
use hypertrace_trace::{Share, session_json};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Make a session of the journal that a sandboxed VMM writes
///
/// A VMM that can open no file writes a journal of its session to a socket.
/// `receive` reads the journal and writes the session's files. Meanwhile and
/// afterwards, all other commands can read DIR as a session. `receive` trusts
/// nothing in the journal: a VMM that was taken over can only write a false
/// session.
///
/// `receive` ends when the session ends. If the journal ends earlier or is damaged,
/// an error names the place in the journal, and DIR has everything before this
/// place. The VMM never waits for `receive`: events that `receive` does not take in
/// time are counted as lost.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// File or named pipe to read; "-" is standard input, which may be a socket
    #[arg(value_name = "JOURNAL", default_value = "-")]
    journal: PathBuf,

    /// New or empty directory for the session
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Users that may read the session
    #[arg(long, value_enum, default_value_t)]
    share: Share,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace receive -o S                        receive what a VMM writes to
                                                 the socket that is standard
                                                 input; and in a terminal:
  hypertrace report S --follow                   show its events as they come
  hypertrace receive -o S < journal              make a session of a finished
                                                 journal

Exit code: 0 done, 1 failed or the VMM was ended, 2 wrong usage, or a damaged
journal.";

/// Period of the check for a signal.
const SIGNAL_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A file whose reads wait for data or a signal. The reads wait even if another process has set O_NONBLOCK,
/// because processes share this flag.
struct Waiting(File);

impl Read for Waiting {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            // The wait has a limit, because a signal may come between this check and the wait.
            if Interrupts::came().is_some() {
                return Err(io::Error::other("interrupted by a signal"));
            }
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&SIGNAL_PERIOD)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(why) => return Err(why.into()),
            }
            match self.0.read(bytes) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let journal = if args.journal == Path::new("-") {
        io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?.into()
    } else {
        File::open(&args.journal).map_err(unreadable(&args.journal))?
    };
    // A signal makes the read fail, so a receiver that is ended before the session begins leaves nothing.
    let _interrupts = Interrupts::catch_end();
    let received = receive(&mut Waiting(journal), &args.output, args.share);
    let is_begun = args.output.join(session_json::FILE).exists();
    match received {
        Err(error @ (ReceiveError::Damaged { .. } | ReceiveError::Unfinished { .. }))
            if is_begun =>
        {
            let kept = format!("{} has what came before", args.output.display());
            Err(error).context(kept)
        }
        received => Ok(received.map(drop)?),
    }
}
