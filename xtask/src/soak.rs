//! `cargo xtask soak`: the test of the same name for a chosen time, with the program built as for users.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::cargo;

/// Duration of the soak
#[derive(clap::Args)]
pub struct Options {
    /// Seconds during which everything is emitted
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Runs the test, and prints its figures on stdout. Returns false if it failed.
///
/// # Errors
/// If cargo cannot be started.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let status = Command::new(cargo())
        .args("test --release -p hypertrace-tests --test it soak:: -- --nocapture".split(' '))
        .env("HYPERTRACE_SOAK_SECONDS", options.seconds.to_string())
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}
