//! Builds of this tree by cargo, for this machine, and for other machines by compilers that `cargo xtask
//! test` fetches.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::capability;

/// Returns the root of the source tree.
pub fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("a package in the workspace")
}

/// Returns a cargo command at the root, which builds with the versions in the lock file.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["--quiet", "--locked"]);
    cargo
}

/// Returns cargo's target folder, which has test programs in `PROFILE/deps`.
pub fn target_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    program.ancestors().nth(3).expect("a test program is in the target folder").to_owned()
}

/// Returns a cargo command that compiles with this compiler, and the folder with the results.
pub fn cross(rustc: &Path) -> (Command, PathBuf) {
    // The tree's own target folder has results of another rustc, so this compiler has a folder of its own.
    // The builds for all machines share this folder, because they use the same proc macros.
    let folder = target_folder().join("cross");
    let mut cargo = cargo();
    cargo.env("RUSTC", rustc).env("CARGO_TARGET_DIR", &folder);
    (cargo, folder)
}

/// Builds a package of this tree for AArch64 with these options of cargo. The programs of the package need no
/// library. Returns the folder with the results, or reports which compiler is missing.
#[track_caller]
pub fn aarch64(package: &str, options: &[&str]) -> Option<PathBuf> {
    let (mut cargo, folder) = for_aarch64(package, options)?;
    succeed(&mut cargo);
    Some(folder)
}

/// Builds a package's tests as [`aarch64`] does. Returns the first program that has tests.
#[track_caller]
pub fn aarch64_tests(package: &str) -> Option<PathBuf> {
    let (mut cargo, _) = for_aarch64(package, &["--tests", "--message-format=json"])?;
    let messages = succeed(&mut cargo);
    let messages = messages.split(|byte| *byte == b'\n');
    let mut messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let program = |message: Value| {
        let is_tests = message["profile"]["test"] == true;
        message["executable"].as_str().filter(|_| is_tests).map(PathBuf::from)
    };
    Some(messages.find_map(program).expect("a program of tests"))
}

#[track_caller]
fn for_aarch64(package: &str, options: &[&str]) -> Option<(Command, PathBuf)> {
    let linker = capability::program_of("aarch64-gcc", "aarch64-linux-gnu-gcc");
    let rustc = capability::program_of("aarch64-rust", "aarch64-rustc");
    let (linker, rustc) = (linker?, rustc?);
    let target = "aarch64-unknown-linux-gnu";
    let (mut cargo, folder) = cross(&rustc);
    cargo.args(["build", "--package", package, "--target", target]).args(options);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
    let flags = "-Ctarget-feature=+crt-static -Dwarnings";
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags);
    ["aarch64-gcc", "aarch64-rust"].into_iter().for_each(capability::used);
    Some((cargo, folder.join(target)))
}

/// Runs a command, which must succeed. Returns its output.
#[track_caller]
pub fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}");
    output.stdout
}
