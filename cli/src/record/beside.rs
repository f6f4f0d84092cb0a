//! `hypertrace record -p` and `-a`: the host kernel's events beside a session.

use super::Args;
use crate::interrupt::Interrupts;
use crate::kernel;
use crate::output::say;
use crate::place::{self, Output};
use crate::recording::{Failure, tidy};
use anyhow::Result;
use hypertrace_kernel::{Config, is_incomplete};
use hypertrace_trace::{Session, Share, session_json};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// A signal may come just before the wait for the processes begins. The signal is then noticed after at most
/// this time.
const PERIOD: Duration = Duration::from_millis(200);

/// Records the processes, or all threads.
pub fn run(args: &Args) -> Result<ExitCode> {
    let out = place::joined(args.output.as_deref(), args.overwrite)?;
    let recorded = tidy(Some(out.path()), || record(args, &out));
    recorded.inspect_err(|_| out.give_back()).map(|()| ExitCode::SUCCESS)
}

fn record(args: &Args, place: &Output) -> Result<()> {
    let out = place.path();
    let mut config = Config::new(out);
    config.events.clone_from(&args.event);
    config.buffer_kib = args.buffer;
    config.pids.clone_from(&args.pid);
    config.own_only = args.own_only;
    config.share = args.share;
    // The guard lives until the recording has ended, because a signal must not leave the recording
    // unfinished.
    let interrupts = Interrupts::catch_end();
    kernel::complete(out);
    let failure = Failure::default();
    let own = own_session(out, args.share, &failure)?;
    let is_alone = own.is_some();
    if let Some(session) = &own {
        config.folder = Some(session.folder()?.clone());
    }
    let mut recording = match kernel::start(&config) {
        Ok(recording) => recording,
        Err(why) => {
            match own {
                // Another recorder has joined this session already.
                Some(session) if is_incomplete(out) => drop(session.end()),
                Some(session) => session.abandon(),
                None => {}
            }
            return Err(why);
        }
    };
    place.settle();
    if !args.quiet {
        kernel::say_start(&recording, out, "Ctrl-C ends it");
    }
    // With `--all`, no process's end can end the recording.
    while Interrupts::came().is_none() && (!recording.wait(PERIOD) || args.all) {}
    // The session ends before the kernel's recording, because the session's end measures the clock once more.
    let written = own.map_or(Ok(()), |session| session.end().1.map_err(Into::into));
    let finished = kernel::finish(recording, args.quiet);
    drop(interrupts);
    finished.and(failure.check(written))?;
    if !args.quiet {
        if is_alone {
            say(
                "the programs' own events are not recorded: `hypertrace record PROGRAM` records them",
            );
        }
        say(format_args!("next: hypertrace report {} | less", out.display()));
    }
    Ok(())
}

/// Makes a session in a new or empty directory. `None`: the directory has a session already.
fn own_session(dir: &Path, share: Share, failure: &Failure) -> Result<Option<Session>> {
    if dir.join(session_json::FILE).exists() {
        return Ok(None);
    }
    Ok(Some(Session::create(failure.of_session(dir, share))?))
}
