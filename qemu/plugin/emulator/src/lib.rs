//! Emulators of QEMU, for programs that start emulators. Each emulator comes with the hypertrace plugin for
//! the emulator's release.
//!
//! ```no_run
//! use hypertrace_qemu_emulator::Emulator;
//! use hypertrace_user::Program;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let emulator = Emulator::of_programs(Program::find("qemu-x86_64".as_ref())?)?;
//! emulator.command(&Program::find("./program".as_ref())?).status()?;
//! # Ok(())
//! # }
//! ```

mod release;

use hypertrace_user::Program;
use release::Release;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable with the plugin's path, for a plugin that is not in a usual folder or has another
/// name.
pub const ENVIRONMENT: &str = "HYPERTRACE_QEMU_PLUGIN";

/// Emulator, and a plugin for the emulator.
#[derive(Debug)]
pub struct Emulator {
    qemu: Program,
    plugin: PathBuf,
    /// `functions=` and further options of a function trace.
    functions: Option<OsString>,
}

/// Reason why an emulator cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is no emulator, or an emulator of machines.
    #[error("{} is not an emulator of QEMU's user mode", .0.display())]
    NotOfPrograms(PathBuf),
    /// The emulator has no option `-plugin`.
    #[error(
        "{} takes no plugins: it was built without them, as static ones are; \
         `cargo xtask fetch qemu-x86_64 qemu-aarch64` gets some that do",
        .0.display()
    )]
    NoPlugins(PathBuf),
    /// The program cannot be started, so this crate cannot find out what the program is.
    #[error("cannot start {}", path.display())]
    Start {
        /// Path of the program.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The plugin in the environment cannot be accessed.
    #[error("{ENVIRONMENT} names {}", path.display())]
    Named {
        /// The plugin's path.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// No plugin is known for the emulator.
    #[error("no plugin for {} (name one in {ENVIRONMENT} to try it)", path.display())]
    NoPlugin {
        /// The emulator's path.
        path: PathBuf,
        /// Reason.
        source: Box<Error>,
    },
    /// With `--version`, the emulator prints this line, and the line contains no release.
    #[error("`--version` prints no version: {0:?}")]
    NoVersion(String),
    /// No plugin is for the emulator's release.
    #[error("it is QEMU {0}, and there are plugins for QEMU 6.0 to 11.1")]
    Unknown(String),
    /// The plugin for the emulator's release is in none of the usual folders.
    #[error(
        "{ENVIRONMENT} is not set: no {name} in {places}: `cargo build --release` in hypertrace's \
         source makes it"
    )]
    NotInstalled {
        /// The plugin's file name.
        name: &'static str,
        /// The folders, separated by commas.
        places: String,
    },
}

impl Emulator {
    /// Finds a plugin for an emulator of QEMU's user mode. The emulator's release decides which plugin the
    /// emulator loads.
    ///
    /// # Errors
    /// If the emulator emulates machines or was built without plugins, or if there is no plugin for the
    /// emulator's release.
    pub fn of_programs(qemu: Program) -> Result<Emulator, Error> {
        let help = help(&qemu)?;
        if help.contains("usage: qemu-system-") {
            return Err(Error::NotOfPrograms(qemu.path().to_owned()));
        }
        Emulator::with_help(qemu, &help)
    }

    /// Finds a plugin for an emulator of QEMU's user mode or of machines, as [`Emulator::of_programs`] does.
    ///
    /// # Errors
    /// If the program is no emulator or was built without plugins, or if there is no plugin for its release.
    pub fn of_any(qemu: Program) -> Result<Emulator, Error> {
        let help = help(&qemu)?;
        Emulator::with_help(qemu, &help)
    }

    fn with_help(qemu: Program, help: &str) -> Result<Emulator, Error> {
        if !help.contains("-plugin ") {
            return Err(Error::NoPlugins(qemu.path().to_owned()));
        }
        let plugin = plugin(&qemu)?;
        Ok(Emulator { qemu, plugin, functions: None })
    }

    /// Returns a command that starts a program under the emulator, without the program's arguments.
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

    /// Returns a command that starts a program under the emulator without the plugin.
    pub fn bare(&self, program: &Program) -> Command {
        let mut command = self.qemu.command();
        command.arg("-0").arg(program.name()).arg(program.path());
        command
    }

    /// Makes the plugin record a function trace, too. The value is the trace's directory, followed by options
    /// of the plugin after commas.
    pub fn with_functions(self, functions: Option<&OsStr>) -> Emulator {
        Emulator { functions: functions.map(OsStr::to_owned), ..self }
    }

    /// Returns the same emulator with another plugin.
    pub fn with_plugin(&self, plugin: PathBuf) -> Emulator {
        Emulator { qemu: self.qemu.clone(), plugin, functions: None }
    }

    /// Returns the emulator's release as text.
    ///
    /// # Errors
    /// If the emulator prints no release.
    pub fn version(&self) -> Result<String, Error> {
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

/// Returns an emulator's help.
///
/// # Errors
/// If the program is no emulator.
fn help(qemu: &Program) -> Result<String, Error> {
    let help = printed(qemu, "-help")?;
    match help.contains("usage: qemu-") {
        true => Ok(help),
        false => Err(Error::NotOfPrograms(qemu.path().to_owned())),
    }
}

/// Returns the text that an emulator prints with this option.
fn printed(qemu: &Program, option: &str) -> Result<String, Error> {
    let ran = qemu.command().arg(option).stdin(Stdio::null()).output();
    let ran = ran.map_err(|source| Error::Start { path: qemu.path().to_owned(), source })?;
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Finds the plugin at the path in the environment or, if there is no such path, the installed plugin for the
/// emulator's release.
fn plugin(qemu: &Program) -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        // The path is made absolute, because dlopen searches other folders for a name without a slash.
        return std::fs::canonicalize(&path).map_err(|source| Error::Named { path, source });
    }
    let name = release(qemu).and_then(Release::plugin).map_err(|source| Error::NoPlugin {
        path: qemu.path().to_owned(),
        source: Box::new(source),
    })?;
    installed(name)
}

/// Returns the release of an emulator.
fn release(qemu: &Program) -> Result<Release, Error> {
    let version = printed(qemu, "--version")?;
    let first = || version.lines().next().unwrap_or_default().to_owned();
    Release::parse(&version).ok_or_else(|| Error::NoVersion(first()))
}

/// Finds a plugin in the folder of this program, where cargo builds the plugin, or in a folder where a
/// package would install the plugin.
fn installed(name: &'static str) -> Result<PathBuf, Error> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib/hypertrace")];
    let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let places = places.map(|place| place.display().to_string()).join(", ");
        Error::NotInstalled { name, places }
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
