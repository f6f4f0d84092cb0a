//! The command `hypertrace`: records, shows and controls sessions.
#![warn(clippy::print_stdout, clippy::print_stderr)] // these macros panic, see `output`

mod boot;
mod compare;
mod ctl;
mod demo;
mod export;
mod forward;
mod functions;
mod generate;
mod info;
mod interrupt;
mod kernel;
mod output;
mod page;
mod place;
mod receive;
mod record;
mod recording;
mod recover;
mod regions;
mod report;
#[cfg(test)]
mod schema;
mod serve;
mod temporary;
mod units;
mod writer;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use hypertrace_format::error::{BadInput, DirectoryError, Warning};
use hypertrace_trace::receive::ReceiveError;
use hypertrace_trace::{SessionError, session_json};
use hypertrace_user::{ProgramError, allow_open_files};
use recording::tidy;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

/// Record and show events of guests and of their host on one timeline
#[derive(Debug, Parser)]
#[command(name = "hypertrace", version = env!("HYPERTRACE_VERSION"), max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Args),
    Serve(serve::Args),
    Receive(receive::Args),
    Forward(forward::Args),
    Recover(recover::Args),
    Report(report::Args),
    Info(info::Args),
    Regions(regions::Args),
    Compare(compare::Args),
    Boot(boot::Args),
    Functions(functions::Args),
    Export(export::Args),
    Ctl(ctl::Args),
    Demo(demo::Args),
    Completions(generate::Completions),
    #[command(hide = true)]
    Man(generate::Man),
}

/// Wrong usage that clap does not detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

impl BadInput for Usage {
    fn is_bad_input(&self) -> bool {
        true
    }
}

/// Returns a closure for `map_err` that adds the path of a given file to an I/O error.
fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> hypertrace_timeline::Error {
    move |source| hypertrace_timeline::Error::Io { path: path.to_owned(), source }
}

fn main() -> ExitCode {
    // On wrong usage, clap ends the process with exit code 2.
    let command = Cli::command();
    let help = help(&command);
    let mut command = command.help_template(help);
    let matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    let cli =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    // These commands read all streams of a session at the same time, or keep the kernel's buffers of all CPUs
    // open. The usual limit of 1,024 open files may be too low for these commands.
    let has_many_files = match &cli.command {
        Command::Report(_)
        | Command::Info(_)
        | Command::Regions(_)
        | Command::Compare(_)
        | Command::Boot(_)
        | Command::Export(_)
        | Command::Functions(_)
        | Command::Forward(_) => true,
        Command::Demo(args) => args.kernel,
        _ => false,
    };
    if has_many_files {
        allow_open_files();
    }
    let succeeded = |()| ExitCode::SUCCESS;
    let done = match cli.command {
        Command::Record(args) => record::run(&args),
        Command::Serve(args) => tidy(Some(&args.output), || serve::run(&args)),
        Command::Receive(args) => tidy(Some(&args.output), || receive::run(&args)).map(succeeded),
        Command::Forward(args) => forward::run(&args),
        Command::Recover(args) => recover::run(&args).map(succeeded),
        Command::Completions(args) => generate::completions(&args, Cli::command()).map(succeeded),
        Command::Man(args) => generate::man(&args, Cli::command()).map(succeeded),
        Command::Demo(args) => tidy(args.output.as_deref(), || demo::run(&args)),
        Command::Report(args) => report::run(&args).map(succeeded),
        Command::Info(args) => info::run(&args).map(succeeded),
        Command::Regions(args) => regions::run(&args).map(succeeded),
        Command::Compare(args) => compare::run(&args),
        Command::Boot(args) => boot::run(&args).map(succeeded),
        Command::Functions(args) => functions::run(&args).map(succeeded),
        Command::Export(args) => tidy(args.output.as_deref(), || export::run(&args)).map(succeeded),
        Command::Ctl(args) => ctl::run(&args).map(succeeded),
    };
    done.unwrap_or_else(|error| exit(&error))
}

/// Groups of commands in the help, by purpose.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Try it", &["demo"]),
    ("Record", &["record", "serve", "receive", "forward", "recover", "ctl"]),
    ("Look", &["report", "regions", "compare", "boot", "functions", "info"]),
    ("Hand over", &["export", "completions"]),
];

/// Returns the template of the help, with the commands in groups.
fn help(command: &clap::Command) -> String {
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        text += &format!("\n{group}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:<11} {}\n", about.cloned().unwrap_or_default());
        }
    }
    text + "\nOptions:\n{options}\n\n`hypertrace help COMMAND` describes a command."
}

/// Returns what the user can do about an error in reading a session, if the error's text does not say so.
fn next_step(error: &anyhow::Error) -> Option<String> {
    use hypertrace_timeline::Error;
    match error.downcast_ref()? {
        Error::Damaged { path, .. }
        | Error::NotATrace { path, .. }
        | Error::NotSupported { path, .. }
            if path.file_name()? == hypertrace_kernel::FILE
                && path.with_file_name(session_json::FILE).exists() =>
        {
            Some("without this file (move it away), the rest of the session is shown".into())
        }
        Error::NotASession { path, .. } if path == Path::new(place::DEFAULT) && !path.exists() => {
            Some("record one here: hypertrace record PROGRAM".into())
        }
        Error::Io { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            // The metadata of the file or, if this user may not read them, of the closest parent directory
            // with readable metadata.
            let found = path.ancestors().find_map(|path| std::fs::metadata(path).ok())?;
            let is_others = found.uid() != rustix::process::geteuid().as_raw();
            is_others.then(|| {
                format!(
                    "it is of user {}; others can read a session that is recorded with --share",
                    found.uid()
                )
            })
        }
        _ => None,
    }
}

/// Returns an error's text, with what can be done.
fn message(error: &anyhow::Error) -> String {
    let next = next_step(error).map_or(String::new(), |next| format!("; {next}"));
    format!("{error:#}{next}")
}

/// One check for each type of error that a command can end with. The check returns whether the error comes
/// from bad input.
const ASKED: [fn(&anyhow::Error) -> bool; 10] = [
    is_bad::<Usage>,
    is_bad::<Warning>,
    is_bad::<hypertrace_timeline::Error>,
    is_bad::<hypertrace_functions::Error>,
    is_bad::<hypertrace_export::Error>,
    is_bad::<hypertrace_user::Error>,
    is_bad::<hypertrace_kernel::Error>,
    is_bad::<ReceiveError>,
    is_bad::<DirectoryError>,
    is_bad::<SessionError>,
];

fn is_bad<E: BadInput + Send + Sync + 'static>(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(E::is_bad_input)
}

/// Prints an error once and returns the exit code. The code is 0 if a pipe broke because the reader of stdout
/// has left. For a [`ProgramError`], the code is the program's. If the arguments or the input are wrong, the
/// code is 2, and otherwise 1.
fn exit(error: &anyhow::Error) -> ExitCode {
    let closed = |cause: &&(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    // The broken pipe may be another pipe than stdout, such as the pipe of `-o`.
    if error.chain().any(|cause| closed(&cause)) && output::reader_has_left() {
        return ExitCode::SUCCESS;
    }
    output::say(message(error));
    if let Some(error) = error.downcast_ref::<ProgramError>() {
        return ExitCode::from(error.exit_code());
    }
    ExitCode::from(if ASKED.iter().any(|is_bad| is_bad(error)) { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_that_is_not_stdout_is_an_error() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);

        assert_eq!(exit(&anyhow::Error::new(broken).context("cannot send")), ExitCode::from(1));
    }

    #[test]
    fn lines_of_help_have_80_columns() {
        for command in Cli::command().get_subcommands() {
            let texts = [command.get_long_about(), command.get_after_help()].into_iter().flatten();
            for line in texts
                .flat_map(|text| text.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
            {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
    }
}
