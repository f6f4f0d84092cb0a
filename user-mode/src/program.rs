//! Runs a program in a session, and passes on the program's status.
//!
//! The code is unsafe because this module makes a call between fork and exec.
#![allow(unsafe_code)]

use crate::privilege::{self, Privilege};
use crate::session::Session;
use hypertrace_segment::child;
use rustix::fs::Access;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

/// Reason why a program cannot be run in a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// There is no such program.
    #[error("{}: no such program{}", .0.to_string_lossy(), hint(.0))]
    NotFound(OsString),
    /// The file cannot be executed.
    #[error("{} is not a program: it cannot be executed", .0.display())]
    NotExecutable(PathBuf),
    /// The system did not start the program.
    #[error("cannot start {}", path.display())]
    Start {
        /// Path of the program.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl ProgramError {
    /// Returns the code that a shell would exit with.
    pub fn exit_code(&self) -> u8 {
        match self {
            ProgramError::NotFound(_) => 127,
            _ => 126,
        }
    }
}

fn hint(name: &OsStr) -> &'static str {
    if name.as_encoded_bytes().contains(&b'/') { "" } else { " in PATH" }
}

/// A program that exists and can be run in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    name: OsString,
}

impl Program {
    /// Looks for a program as a shell does: a name with a slash is a path.
    ///
    /// # Errors
    /// If there is no such program, or the file cannot be executed.
    pub fn find(name: &OsStr) -> Result<Program, ProgramError> {
        let is_file = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.is_file());
        let path = if hint(name).is_empty() {
            Some(PathBuf::from(name)).filter(|path| path.exists())
        } else {
            let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
            let mut found: Vec<PathBuf> =
                std::env::split_paths(&folders).map(|at| at.join(name)).filter(is_file).collect();
            // Takes the file that a shell takes: the first file that can be executed or, if no file can be
            // executed, the first file.
            found.sort_by_key(|path| !is_executable(path));
            found.into_iter().next()
        };
        let path = path.ok_or_else(|| ProgramError::NotFound(name.to_owned()))?;
        let failed = |source| ProgramError::Start { path: path.clone(), source };
        let meta = path.metadata().map_err(failed)?;
        if !meta.is_file() || !is_executable(&path) {
            return Err(ProgramError::NotExecutable(path));
        }
        Ok(Program { path, name: name.to_owned() })
    }

    /// If the program would not be traced, returns the file with more rights and the kind of these rights.
    /// For a script, this file is the interpreter. A program with more rights than this process takes no
    /// segment from its environment.
    pub fn privilege(&self) -> Option<(PathBuf, Privilege)> {
        privilege::of(&self.path)
    }

    /// Returns the program's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name under which the program was found.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns a command that starts the program.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0(&self.name);
        command
    }
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Runs a program in a session to its end. Meanwhile SIGTERM and SIGHUP are passed on to the program. SIGINT
/// and SIGQUIT are left to the program, because a terminal sends these signals to this process and to the
/// program.
///
/// # Errors
/// If the program cannot be started.
pub fn run(
    session: &Session,
    program: &Program,
    mut command: Command,
) -> Result<ExitStatus, ProgramError> {
    session.pass_to(&mut command);
    run_command(program, command)
}

/// Runs a program to its end as [`run`] does, without a session.
///
/// # Errors
/// If the program cannot be started.
pub fn run_command(program: &Program, mut command: Command) -> Result<ExitStatus, ProgramError> {
    let failed = |source| ProgramError::Start { path: program.path.clone(), source };
    if let Some(limit) = OPEN_FILES.get().copied() {
        // SAFETY: setrlimit(2) may be called between fork and exec.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
    }
    child::run(&mut command).map_err(failed)
}

/// The limit of open files before it was raised.
static OPEN_FILES: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit of open files to its maximum. Programs that [`run_command`] starts get the
/// limit that was there before.
pub fn allow_open_files() {
    let limit = OPEN_FILES.get_or_init(|| getrlimit(Resource::Nofile));
    // If the limit cannot be raised, the old limit may still suffice.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..*limit });
}
