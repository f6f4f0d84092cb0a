//! Commands of the stable toolchain, which runs this program, and of the nightly one.

use std::path::PathBuf;
use std::process::Command;

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
