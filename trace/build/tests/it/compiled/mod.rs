//! Generated code, compiled against a stand-in for `hypertrace-trace`.
#![allow(dead_code)] // Each test program uses a part of it.

pub use hypertrace_test_support::capability;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with the stand-in crates, compiled.
pub struct Workshop {
    pub dir: TempDir,
}

impl Workshop {
    pub fn new() -> Workshop {
        let workshop = Workshop { dir: TempDir::new().unwrap() };
        let mock = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mock");
        let attribute =
            ["--crate-type=proc-macro", "--crate-name=linkme_mock", "--extern=proc_macro"];
        workshop.compile("rustc", &mock.join("linkme.rs"), &attribute);
        let engine = ["--crate-type=rlib", "--crate-name=hypertrace_trace", "--extern=linkme_mock"];
        workshop.compile("rustc", &mock.join("hypertrace_trace.rs"), &engine);
        workshop
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs a compiler on a file that uses the stand-in.
    pub fn rust(&self, compiler: &str, source: &Path, arguments: &[&str]) {
        self.compile(compiler, source, &[arguments, &["--extern=hypertrace_trace"]].concat());
    }

    fn compile(&self, compiler: &str, source: &Path, arguments: &[&str]) {
        let dir = self.dir.path();
        let mut command = Command::new(compiler);
        command.arg("--edition=2024").arg("-L").arg(dir).args(arguments).arg(source);
        run(command.current_dir(dir));
    }

    /// Returns the output of a compiled program.
    pub fn output_of(&self, program: &str, environment: &[(&str, &str)]) -> String {
        let mut command = Command::new(self.dir.path().join(program));
        let output = run(command.envs(environment.iter().copied()));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{shown}", output.status);
    output
}
