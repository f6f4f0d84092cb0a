//! Commands of the stable toolchain, which runs this program, and of the nightly one; a command's first line of output.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

/// Returns the cargo that runs this.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Returns cargo's target folder, as an absolute path: commands run in the root.
///
/// # Errors
/// If there is no current folder.
pub fn target_folder(root: &Path) -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => Ok(std::path::absolute(folder)?),
        None => Ok(root.join("target")),
    }
}

/// Returns a command of the nightly toolchain's cargo.
pub fn nightly() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]);
    // These variables select the stable toolchain that runs this.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Arguments of cargo for the model checks of the ring, see [`model_check`].
pub const LOOM_TEST: &str = "test --release -p hypertrace-abi-loom";

/// Sets a cargo up for model checks: `--cfg hypertrace_loom`, and a target folder of its own, so that nothing is built
/// twice.
pub fn model_check(command: &mut Command, target: &Path) {
    let mut flags = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    flags.push(" --cfg hypertrace_loom");
    command.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target.join("loom"));
}

/// Returns the first line of a command's output that is not empty.
///
/// # Errors
/// If it cannot be started or fails; the first line of its stderr is the message.
pub fn first_line(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    ensure!(output.status.success(), "{}", first(&output.stderr));
    Ok(first(&output.stdout))
}

fn output(command: &mut Command) -> Result<Output> {
    let program = command.get_program().display().to_string();
    command.output().with_context(|| format!("cannot start {program}"))
}

fn first(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim().lines().next().unwrap_or_default().trim().to_owned()
}

/// Returns the first line of a program's `--version`. trace-cmd fails after it has printed that.
///
/// # Errors
/// If the program cannot be started, or fails and prints nothing.
pub fn version(program: impl AsRef<OsStr>) -> Result<String> {
    let output = output(Command::new(program).arg("--version"))?;
    let version = first(&output.stdout);
    ensure!(output.status.success() || !version.is_empty(), "{}", first(&output.stderr));
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_version_counts_although_the_program_fails() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            version(path)
        };
        assert_eq!(program("a", "echo; echo tool 3.1; exit 255").unwrap(), "tool 3.1");
        assert_eq!(
            program("b", "echo no library >&2; exit 127").unwrap_err().to_string(),
            "no library"
        );
    }
}
