//! `hypertrace recover`: recovers the events that a killed recorder left.

use crate::output::print;
use crate::place;
use crate::recording::tidy;
use anyhow::Result;
use hypertrace_trace::{SessionConfig, Share};
use std::path::PathBuf;

/// Recover the events that a crash left in a file of rings
///
/// FILE is the file of `record --segment` or `serve --file`. `recover` does not
/// change the session in DIR: it writes the events that the session lacks to
/// DIR/recovered, and all commands show both as one session. If DIR has no session,
/// `recover` makes one there. FILE is not needed afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// The file of the rings
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Directory of the session: the session of the crash, or a new directory
    #[arg(value_name = "DIR", default_value = place::DEFAULT)]
    dir: PathBuf,

    /// Users that may read what is recovered
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    share: Share,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace recover /dev/shm/s          what the session hypertrace.data lacks
  hypertrace recover /dev/shm/s S        that in S, or a new one there

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let config = SessionConfig::new(&args.dir).with(|config| config.share = args.share);
    let (dir, summary) =
        tidy(Some(&args.dir), || Ok(hypertrace_user::recover(&args.file, config)?))?;
    print(format_args!(
        "{} holds {} records, {} lost; {} is not needed any more.\n",
        dir.display(),
        summary.records,
        summary.lost,
        args.file.display(),
    ))
}
