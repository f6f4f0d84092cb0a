//! Programs under QEMU's user mode, with the hypertrace plugin.

mod release;

use anyhow::{Context, Result, bail};
use hypertrace_user::Program;
use release::Release;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable with the plugin's path, if it is not beside this program or of another name.
pub const ENVIRONMENT: &str = "HYPERTRACE_QEMU_PLUGIN";

/// Emulator and a plugin for it.
pub struct Emulator {
    qemu: Program,
    plugin: PathBuf,
    /// `functions=` and further options of a function trace.
    functions: Option<OsString>,
}

impl Emulator {
    /// Finds an emulator of QEMU's user mode and a plugin for it, and checks that it takes plugins. Its release decides
    /// which plugin.
    ///
    /// # Errors
    /// If one is missing, the emulator is one of machines or was built without plugins, or there is no
    /// plugin for its release.
    pub fn find(name: &OsStr) -> Result<Emulator> {
        let (emulator, help) = Emulator::with_help(name)?;
        if help.contains("usage: qemu-system-") {
            bail!(not_of_programs(&emulator.qemu));
        }
        Ok(emulator)
    }

    /// Finds an emulator as [`Emulator::find`] does, or one of machines.
    ///
    /// # Errors
    /// As there, but for machines.
    pub fn find_any(name: &OsStr) -> Result<Emulator> {
        Ok(Emulator::with_help(name)?.0)
    }

    /// Finds an emulator. Returns it with its help.
    fn with_help(name: &OsStr) -> Result<(Emulator, String)> {
        let qemu = Program::find(name)?;
        let help = printed(&qemu, "-help")?;
        if !help.contains("usage: qemu-") {
            bail!(not_of_programs(&qemu));
        }
        if !help.contains("-plugin ") {
            bail!(
                "{} takes no plugins: it was built without them, as static ones are; \
                 `cargo xtask fetch qemu-x86_64 qemu-aarch64` gets some that do",
                qemu.path().display()
            );
        }
        let plugin = plugin(&qemu)?;
        Ok((Emulator { qemu, plugin, functions: None }, help))
    }

    /// Returns a command that starts a program under it, without the program's arguments.
    pub fn command(&self, program: &Program) -> Command {
        let mut command = self.qemu.command();
        let mut plugin = escaped(&self.plugin);
        if let Some(functions) = &self.functions {
            plugin.push(",functions=");
            plugin.push(functions);
        }
        command.arg("-plugin").arg(plugin);
        command.arg("-0").arg(program.name()).arg(program.path());
        command
    }

    /// Returns a command that starts a program under it without the plugin.
    pub fn bare(&self, program: &Program) -> Command {
        let mut command = self.qemu.command();
        command.arg("-0").arg(program.name()).arg(program.path());
        command
    }

    /// Adds a function trace to what the plugin records: its directory, then options of the plugin after commas.
    pub fn with_functions(self, functions: Option<&OsStr>) -> Emulator {
        Emulator { functions: functions.map(OsStr::to_owned), ..self }
    }

    /// Returns the same emulator with another plugin.
    pub fn with_plugin(&self, plugin: PathBuf) -> Emulator {
        Emulator { qemu: self.qemu.clone(), plugin, functions: None }
    }

    /// Returns its release, as text.
    ///
    /// # Errors
    /// If it does not print one.
    pub fn version(&self) -> Result<String> {
        Ok(release(&self.qemu)?.to_string())
    }

    /// Returns the value of QEMU's option `-plugin`, to which options of the plugin can be added.
    pub fn plugin_option(&self) -> OsString {
        escaped(&self.plugin)
    }

    /// Returns the emulator's program.
    pub fn qemu(&self) -> &Program {
        &self.qemu
    }
}

fn not_of_programs(qemu: &Program) -> String {
    format!("{} is not an emulator of QEMU's user mode", qemu.path().display())
}

/// Returns what an emulator prints with this option.
fn printed(qemu: &Program, option: &str) -> Result<String> {
    let ran = qemu.command().arg(option).stdin(Stdio::null()).output();
    let ran = ran.with_context(|| format!("cannot start {}", qemu.path().display()))?;
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Finds the plugin: at the path in the environment, or beside this program the one for the
/// emulator's release.
fn plugin(qemu: &Program) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        // Absolute: dlopen searches other folders for a name without a slash.
        return std::fs::canonicalize(&path)
            .with_context(|| format!("{ENVIRONMENT} names {}", path.display()));
    }
    let remedy = || {
        let qemu = qemu.path().display();
        format!("no plugin for {qemu} (name one in {ENVIRONMENT} to try it)")
    };
    let name = release(qemu).and_then(|release| Ok(release.plugin()?)).with_context(remedy)?;
    beside(name).with_context(|| format!("{ENVIRONMENT} is not set"))
}

/// Returns the release of an emulator.
fn release(qemu: &Program) -> Result<Release> {
    let version = printed(qemu, "--version")?;
    Release::parse(&version).with_context(|| {
        let line = version.lines().next().unwrap_or_default();
        format!("`--version` prints no version: {line:?}")
    })
}

/// Finds a library that another program loads: beside this program, where cargo
/// builds it, or where a package would install it.
///
/// # Errors
/// If it is not there: the error names the places.
pub fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's path")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib/hypertrace")];
    let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
    found.with_context(|| {
        let places = places.map(|place| place.display().to_string()).join(", ");
        format!("no {name} in {places}: `cargo build --release` in hypertrace's source makes it")
    })
}

/// Doubles each comma, as QEMU's options require.
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
