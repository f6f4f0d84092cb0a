//! Commands of the stable toolchain, which runs this program, and of the nightly one; a command's first line of output.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the cargo that runs this.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Returns a command of the nightly toolchain's cargo.
pub fn nightly() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]);
    // These variables select the stable toolchain that runs this.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Returns the first line of a command's output that is not empty.
///
/// # Errors
/// If it cannot be started or fails; the first line of its stderr is the message.
pub fn first_line(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let first = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        text.trim().lines().next().unwrap_or_default().trim().to_owned()
    };
    ensure!(output.status.success(), "{}", first(&output.stderr));
    Ok(first(&output.stdout))
}

/// Returns the first line of a program's `--version`.
///
/// # Errors
/// As [`first_line`].
pub fn version(program: impl AsRef<OsStr>) -> Result<String> {
    first_line(Command::new(program).arg("--version"))
}
