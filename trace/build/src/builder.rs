//! The builder for build scripts: reads files of the crate, and writes a file to `OUT_DIR`.

use crate::error::{Errors, SyntaxError};
use crate::generate::generate_all;
use crate::parser::{Declared, parse_into};
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

/// Name of the file that is written to `OUT_DIR`.
pub const OUTPUT: &str = "trace-events.rs";

/// Error of a builder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The declarations have errors.
    #[error(transparent)]
    Declarations(#[from] Errors),
    /// The system cannot read or write a file.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An environment variable is not set. Cargo sets this variable for build scripts, so the program was not
    /// run by cargo.
    #[error("the environment variable {0} is not set: this is for build scripts")]
    Environment(&'static str),
    /// [`Builder::file`] was never called.
    #[error("no trace-events file is named")]
    NoFile,
}

/// Generator of `OUT_DIR/trace-events.rs`, for build scripts.
#[derive(Clone, Debug, Default)]
#[must_use = "it does nothing until generate() or generate_or_exit()"]
pub struct Builder {
    files: Vec<String>,
}

impl Builder {
    /// Returns a builder with no files.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Adds the file with this path relative to the crate's folder. No two events in the files of a builder
    /// may have the same name.
    pub fn file(mut self, path: impl Into<String>) -> Builder {
        self.files.push(path.into());
        self
    }

    /// Writes the generated file, and makes cargo run the build script again
    /// when one of the named files changes.
    pub fn generate(&self) -> Result<(), Error> {
        let folder = |name| env::var_os(name).map(PathBuf::from).ok_or(Error::Environment(name));
        let root = folder("CARGO_MANIFEST_DIR")?;
        let out = folder("OUT_DIR")?;
        for file in &self.files {
            println!("cargo:rerun-if-changed={file}");
        }
        self.generate_in(&root, &out)
    }

    /// Calls [`Builder::generate`]. If `generate` fails, writes the errors to stderr and ends the process
    /// with status 1.
    pub fn generate_or_exit(&self) {
        if let Err(error) = self.generate() {
            eprintln!("{}", chain(&error));
            process::exit(1);
        }
    }

    /// Writes the generated file for the given folders, without output for cargo.
    pub fn generate_in(&self, root: &Path, out: &Path) -> Result<(), Error> {
        if self.files.is_empty() {
            return Err(Error::NoFile);
        }
        let mut errors = Errors::default();
        let mut declared = Declared::new();
        let mut events = Vec::new();
        for file in &self.files {
            let path = root.join(file);
            let bytes = fs::read(&path).map_err(failed("read", path))?;
            match str::from_utf8(&bytes) {
                Ok(text) => events.push(parse_into(file, text, &mut declared, &mut errors)),
                Err(error) => errors.push(not_text(file, &bytes, error.valid_up_to())),
            }
        }
        let events = errors.or(events)?;
        let files: Vec<_> =
            self.files.iter().map(String::as_str).zip(events.iter().map(Vec::as_slice)).collect();
        let path = out.join(OUTPUT);
        fs::write(&path, generate_all(&files)).map_err(failed("write", path))
    }
}

fn failed(action: &'static str, path: PathBuf) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action, path, source }
}

/// Returns the error for bytes that are not UTF-8 text from `at` on.
fn not_text(file: &str, bytes: &[u8], at: usize) -> SyntaxError {
    let before = String::from_utf8_lossy(&bytes[..at]);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    SyntaxError {
        file: file.to_owned(),
        line,
        column: before[start..].chars().count() + 1,
        expected: "UTF-8 text".to_owned(),
        found: format!("'\\x{:02x}'", bytes[at]),
    }
}

/// Formats an error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
