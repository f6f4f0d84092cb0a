//! Files of this workspace that rows need in addition to this program.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Finds a file that cargo has built from a package. The file is in the folder of this program, or in the
/// folder `deps` there.
///
/// # Errors
/// If the file is in neither folder. The error says how to build the file.
pub fn beside(name: &str, package: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's path")?;
    let folder = program.parent().context("this program is in no folder")?;
    let places = [folder.join(name), folder.join("deps").join(name)];
    places.into_iter().find(|file| file.is_file()).with_context(|| {
        let folder = folder.display();
        format!("no {name} in {folder}: `cargo build --release -p {package}` makes it")
    })
}

/// Builds the C library as its users do, in this program's target folder. Returns the static library.
///
/// # Errors
/// If cargo cannot build the library.
pub fn c_library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's path")?;
    let target = program.ancestors().nth(2).context("this program is in no target folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "--release", "--package", "hypertrace-c"]);
    command.arg("--target-dir").arg(target).stdin(Stdio::null());
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let built = command.output().context("cannot start cargo")?;
    let why = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "cargo does not build hypertrace-c: {}", why.trim());
    Ok(target.join("release/libhypertrace.a"))
}
