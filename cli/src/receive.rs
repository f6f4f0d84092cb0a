//! `hypertrace receive`: makes a session of a journal.

use anyhow::{Context, Result};
use hypertrace_trace::receive::{ReceiveError, receive};
use hypertrace_trace::{Share, session_json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Make a session of the journal that a sandboxed VMM writes
///
/// A VMM that can open no file writes its session to a file, a pipe or a socket:
/// a journal. This command writes the session's files, as it reads it. Meanwhile
/// and afterwards DIR is a session for all other commands. It trusts nothing that
/// it reads, so a VMM that was taken over can only write a false session.
///
/// It ends with the session. If the journal ends before that, or is damaged, an
/// error says where; DIR has all that came before. The VMM never waits for this
/// command: events that it does not take in time are counted as lost.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// File or named pipe to read; "-" is standard input, which may be a socket
    #[arg(value_name = "JOURNAL", default_value = "-")]
    journal: PathBuf,

    /// New or empty directory for the session
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Users that may read the session
    #[arg(long, value_enum, default_value_t)]
    share: Share,
}

const EXAMPLES: &str = "\
Examples:
  mkfifo J; hypertrace receive J --out S         receive what a VMM writes to J;
                                                 and in another terminal, once
                                                 the VMM has started:
  hypertrace report S --follow                   show its events as they come
  hypertrace receive --out S < journal           make a session of a finished journal

Exit code: 0 done, 1 failed or the VMM was ended, 2 wrong usage, or a damaged journal.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let received = if args.journal == Path::new("-") {
        receive(&mut io::stdin().lock(), &args.out, args.share)
    } else {
        let failed = || format!("cannot open {}", args.journal.display());
        receive(&mut File::open(&args.journal).with_context(failed)?, &args.out, args.share)
    };
    let is_begun = args.out.join(session_json::FILE).exists();
    match received {
        Err(error @ (ReceiveError::Damaged { .. } | ReceiveError::Unfinished { .. }))
            if is_begun =>
        {
            let kept = format!("{} has what came before", args.out.display());
            Err(error).context(kept)
        }
        received => Ok(received.map(drop)?),
    }
}
