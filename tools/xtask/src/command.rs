//! Commands that are written as lines of text, and the first line of a command's output.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the cargo that runs this program.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Returns cargo's target folder as an absolute path, because commands run in the root.
///
/// # Errors
/// If there is no current folder.
pub fn target_folder(root: &Path) -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => Ok(std::path::absolute(folder)?),
        None => Ok(root.join("target")),
    }
}

/// Returns the command of a line. The line is what a user would type, without quotes: `NAME=VALUE.. PROGRAM
/// ARGUMENT..`. If the environment sets a variable of the project, then the variable keeps this value. If
/// `prefix` is not empty, the command starts with its words.
pub fn parse(line: &str, prefix: &[impl AsRef<Path>]) -> Command {
    let mut words = line.split_whitespace().peekable();
    let mut variables = Vec::new();
    while let Some(variable) = words.peek().and_then(|word| word.split_once('=')) {
        variables.push(variable);
        words.next();
    }
    let program = words.next().unwrap_or_default();
    let path = if program == "cargo" { cargo() } else { PathBuf::from(program) };
    let mut all = prefix.iter().map(|word| word.as_ref().to_owned()).chain([path]);
    let mut command = Command::new(all.next().unwrap_or_default());
    command.args(all).args(words);
    if program == "rustup" {
        // With these variables, rustup would use the toolchain that runs this program.
        command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    }
    let is_set = |name: &str| name.starts_with("HYPERTRACE_") && std::env::var_os(name).is_some();
    command.envs(variables.into_iter().filter(|(name, _)| !is_set(name)));
    command
}

/// Returns the first line of a command's output that is not empty.
///
/// # Errors
/// If the command cannot be started, or fails. The message is the first line of the command's stderr.
pub fn first_line(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{}", first(&output.stderr));
    Ok(first(&output.stdout))
}

fn first(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim().lines().next().unwrap_or_default().trim().to_owned()
}

/// Finds a program on PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_variables_then_a_program_with_a_prefix_then_arguments() {
        let command = parse("A=1=2 HYPERTRACE_B=3 tool x=y --z", &["nice", "-n1"]);

        let words = command.get_args().map(|word| word.to_str().unwrap());
        assert_eq!(command.get_program(), "nice");
        assert_eq!(words.collect::<Vec<_>>(), ["-n1", "tool", "x=y", "--z"]);
        let variables = command.get_envs().map(|(name, value)| (name, value.unwrap()));
        let variables: Vec<_> = variables.collect();
        assert_eq!(
            variables,
            [("A".as_ref(), "1=2".as_ref()), ("HYPERTRACE_B".as_ref(), "3".as_ref())]
        );
    }
}
