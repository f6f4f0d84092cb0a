//! Programs under an emulator: QEMU's user mode with our plugin.

use anyhow::{Context, Result, bail};
use hypertrace_user::Program;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The plugin's file.
pub const PLUGIN: &str = "libhypertrace_qemu_plugin.so";
/// The environment variable that names it, where it is somewhere else.
pub const ENVIRONMENT: &str = "HYPERTRACE_QEMU_PLUGIN";

/// An emulator and a plugin for it.
pub struct Emulator {
    qemu: Program,
    plugin: PathBuf,
}

impl Emulator {
    /// Looks for both, and whether the one takes the other.
    ///
    /// # Errors
    /// If one is missing, or that emulator is built without plugins.
    pub fn find(name: &OsStr) -> Result<Emulator> {
        let qemu = Program::find(name)?;
        let help = qemu
            .command()
            .arg("-help")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", qemu.path().display()))?;
        let help = String::from_utf8_lossy(&help.stdout);
        if !help.contains("usage: qemu-") {
            bail!("{} is no emulator of QEMU's user mode", qemu.path().display());
        }
        if !help.contains("-plugin ") {
            bail!(
                "{} takes no plugins: it was built without them, as static ones are; \
                 `cargo xtask fetch qemu-x86_64 qemu-aarch64` gets some that do",
                qemu.path().display()
            );
        }
        Ok(Emulator { qemu, plugin: plugin()? })
    }

    /// How to start a program under it, up to the program's own arguments.
    pub fn command(&self, program: &Program) -> Command {
        let mut command = self.qemu.command();
        command.arg("-plugin").arg(escaped(&self.plugin));
        command.arg("-0").arg(program.name()).arg(program.path());
        command
    }

    /// How to start a program under it with no plugin.
    pub fn bare(&self, program: &Program) -> Command {
        let mut command = self.qemu.command();
        command.arg("-0").arg(program.name()).arg(program.path());
        command
    }

    /// The same emulator with another plugin.
    pub fn with_plugin(&self, plugin: PathBuf) -> Emulator {
        Emulator { qemu: self.qemu.clone(), plugin }
    }

    /// The emulator itself.
    pub fn qemu(&self) -> &Program {
        &self.qemu
    }
}

/// Where the plugin is: where the environment says, or beside this program.
fn plugin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        // As a path: dlopen looks for a name without a slash elsewhere.
        return std::fs::canonicalize(&path)
            .with_context(|| format!("{ENVIRONMENT} names {}", path.display()));
    }
    beside(PLUGIN).with_context(|| format!("{ENVIRONMENT} is not set"))
}

/// A library of ours that another program has: beside this one, as
/// cargo leaves it, or as a package would place it.
///
/// # Errors
/// If it is not there: the error names the places.
pub fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib/hypertrace")];
    let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
    found.with_context(|| {
        let places = places.map(|place| place.display().to_string()).join(", ");
        format!("no {name} in {places}: `cargo build --release` in hypertrace's source makes it")
    })
}

/// As QEMU's options want it: a comma doubled.
fn escaped(path: &Path) -> OsString {
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_are_doubled() {
        assert_eq!(escaped(Path::new("/a,b/c")), OsStr::new("/a,,b/c"));
    }
}
