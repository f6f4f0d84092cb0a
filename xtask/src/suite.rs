//! `cargo xtask test`: all steps of the test run, and the table of capabilities.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::command::{LOOM_TEST, cargo, model_check, nightly, target_folder};
use crate::notes::{Notes, Required};
use crate::probe::Machine;
use crate::step;

/// Options of the test run
#[derive(clap::Args)]
pub struct Options {
    /// Fail unless these capabilities were found and used by tests; `found`: all that were found
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = Required::parse)]
    require: Vec<Required>,

    /// Seconds that each fuzz target runs, if cargo-fuzz is installed
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    fuzz: u32,

    #[command(flatten)]
    patience: step::Patience,
}

/// Runs all steps, also after a failure. Returns false if a step failed or a required capability was not used.
///
/// # Errors
/// If the machine cannot run commands; a failed test is not an error.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let begin = Instant::now();
    let machine = Machine::probe();
    let target = target_folder(root)?;
    // Tests write their files there, and leave them if they are killed. Open to all users like the system's own: some
    // tests run programs as other users.
    let temporary = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o1777))
        .tempdir()
        .context("cannot make a temporary folder")?;
    let mut run = Run {
        root,
        target,
        temporary: temporary.path(),
        capability_file: temporary.path().join("capabilities"),
        silence: options.patience.silence(),
        machine,
        notes: Notes::default(),
        failed: Vec::new(),
    };

    run.style()?;
    run.tests()?;
    run.loom()?;
    run.fuzz(options.fuzz)?;
    run.documentation()?;
    if let Ok(text) = fs::read_to_string(&run.capability_file) {
        run.notes.read_file(&text);
    }
    Ok(run.conclude(&options.require, begin.elapsed()))
}

struct Run<'a> {
    root: &'a Path,
    target: PathBuf,
    /// The temporary folder of the steps
    temporary: &'a Path,
    /// File to which tests append the capabilities that they used and missed
    capability_file: PathBuf,
    machine: Machine,
    notes: Notes,
    /// The longest silence of a step that runs tests
    silence: Duration,
    /// Names of failed steps
    failed: Vec<String>,
}

impl Run<'_> {
    /// Checks formatting, lints and dependencies, before the longer steps.
    fn style(&mut self) -> Result<()> {
        self.with("rustfmt", "fmt --all --check -- --color never")?;
        self.with("clippy", "clippy --workspace --all-targets --all-features -- -D warnings")?;
        // Without `std`, as for a guest without an operating system: features of other crates must not hide errors.
        let no_std = "clippy --no-default-features -p hypertrace-abi -p hypertrace -- -D warnings";
        self.with("clippy", no_std)?;
        // As in a VMM without declared events.
        let no_events =
            "clippy --no-default-features -p hypertrace-trace -p vmm-shapes --tests -- -D warnings";
        self.with("clippy", no_events)?;
        // Without advisories, which change independently of this tree.
        self.with("cargo-deny", "deny check bans licenses sources")
    }

    /// Runs all tests, optimized as for users and with the checks of a debug build.
    fn tests(&mut self) -> Result<()> {
        self.test("test --profile checked --workspace --all-features")
    }

    /// Model-checks the ring.
    fn loom(&mut self) -> Result<()> {
        self.built_and_run("loom: cargo test -p hypertrace-abi-loom", |run, option| {
            let mut command = run.cargo(LOOM_TEST);
            model_check(&mut command, &run.target);
            command.arg(option);
            command
        })
    }

    /// Tests the library of the fuzz targets on stable, and runs the targets if cargo-fuzz is installed.
    fn fuzz(&mut self, seconds: u32) -> Result<()> {
        self.built_and_run("fuzz: tests of the input library", |run, option| {
            let mut command = run.cargo("test --manifest-path fuzz/Cargo.toml --lib");
            command.env("CARGO_TARGET_DIR", run.target.join("fuzz")).arg(option);
            command
        })?;
        if let Err(why) = self.machine.found("cargo-fuzz") {
            step::skipped("fuzz: targets", why);
            return Ok(());
        }
        if !self.finish("fuzz: build of the targets", self.cargo_fuzz(&["build"]), step::BUILD)? {
            return Ok(());
        }
        let listed = self.cargo_fuzz(&["list"]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for fuzz_target in listed.split_whitespace() {
            let limit = format!("-max_total_time={seconds}");
            let command = self.cargo_fuzz(&["run", fuzz_target, "--", &limit, "-len_control=0"]);
            let name = format!("fuzz: {fuzz_target} for {seconds} s");
            if self.finish(&name, command, self.silence)? {
                self.notes.used_by_step("cargo-fuzz", &name);
            }
        }
        Ok(())
    }

    fn cargo_fuzz(&self, arguments: &[&str]) -> Command {
        let mut command = nightly();
        command
            .arg("fuzz")
            .args(arguments)
            .current_dir(self.root)
            .env("CARGO_TARGET_DIR", self.target.join("fuzz"))
            .env("TMPDIR", self.temporary);
        command
    }

    fn documentation(&mut self) -> Result<()> {
        // Libraries only: the guest library and the program have the same name, and would have the same pages. So would
        // the C library, whose documentation is its header.
        let doc = "doc --workspace --no-deps --all-features --lib --exclude hypertrace-c";
        let mut command = self.cargo(doc);
        command.env("RUSTDOCFLAGS", "-D warnings");
        self.finish("cargo doc, warnings are errors", command, step::BUILD)?;
        Ok(())
    }

    /// Runs a step that needs a part of the toolchain that may be missing.
    fn with(&mut self, capability: &str, arguments: &str) -> Result<()> {
        let name = format!("cargo {arguments}");
        if let Err(why) = self.machine.found(capability) {
            step::skipped(&name, why);
            return Ok(());
        }
        self.step(arguments)?;
        self.notes.used_by_step(capability, &name);
        Ok(())
    }

    /// Runs a step that builds and checks.
    fn step(&mut self, arguments: &str) -> Result<bool> {
        self.finish(&format!("cargo {arguments}"), self.cargo(arguments), step::BUILD)
    }

    /// Builds tests, and runs them.
    fn test(&mut self, arguments: &str) -> Result<()> {
        self.built_and_run(&format!("cargo {arguments}"), |run, option| {
            let mut command = run.cargo(arguments);
            command.arg(option);
            command
        })
    }

    /// Builds tests in a step without a limit, and runs them in one with the limit for tests that hang. `command` returns
    /// the command with an option of `cargo test`.
    fn built_and_run(
        &mut self,
        name: &str,
        command: impl Fn(&Self, &str) -> Command,
    ) -> Result<()> {
        if self.finish(&format!("{name}: build"), command(self, "--no-run"), step::BUILD)? {
            self.finish(name, command(self, "--no-fail-fast"), self.silence)?;
        }
        Ok(())
    }

    /// Runs a step, and reads the results of tests from its output. Returns true if it succeeded.
    fn finish(&mut self, name: &str, command: Command, silence: Duration) -> Result<bool> {
        let finished = step::run(name, command, silence)?;
        let (passed, unfinished) = (self.notes.passed, self.notes.unfinished);
        self.notes.read_output(&finished.output);
        let (passed, unfinished) = (self.notes.passed - passed, self.notes.unfinished - unfinished);
        if passed > 0 {
            println!("    {passed} tests passed");
        }
        if finished.killed && passed + unfinished > 0 {
            let left = "test programs after the one that hung did not run";
            self.failed
                .push(format!("{name} (killed: {unfinished} tests did not end, and {left})"));
        } else if !finished.ok {
            self.failed.push(name.to_owned());
        }
        Ok(finished.ok)
    }

    /// Returns a cargo command for tests, with fetched programs on PATH and, if needed, a namespace with tracefs.
    fn cargo(&self, arguments: &str) -> Command {
        let prefix = self.machine.prefix.iter().map(PathBuf::from);
        let mut words = prefix.chain([cargo()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(arguments.split(' '))
            .current_dir(self.root)
            .env("PATH", self.machine.search_path())
            .env("HYPERTRACE_CAPABILITIES", &self.capability_file)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("TMPDIR", self.temporary)
            // The output is parsed.
            .env("CARGO_TERM_COLOR", "never");
        command
    }

    /// Prints the results of all steps. Returns true if they succeeded.
    fn conclude(&self, required: &[Required], took: Duration) -> bool {
        let notes = &self.notes;
        println!();
        for (title, list) in [("ignored", &notes.ignored), ("FAILED", &notes.failed)] {
            for name in list {
                println!("{title}: {name}");
            }
        }
        notes.print_missing();
        let violations = notes.violations(&self.machine.capabilities, required);
        for failure in self.failed.iter().chain(&violations) {
            println!("FAILED: {failure}");
        }
        let good = self.failed.is_empty() && violations.is_empty();
        println!(
            "result: {} in {}: {} tests passed, {} failed, {} did not end, {} ignored",
            if good { "ok" } else { "FAILED" },
            step::duration(took),
            notes.passed,
            notes.failed.len(),
            notes.unfinished,
            notes.ignored.len()
        );
        println!("\n{}", notes.table(&self.machine.capabilities));
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_build_is_waited_for_and_a_silent_test_is_killed() {
        let mut run = Run {
            root: Path::new("/"),
            target: PathBuf::new(),
            temporary: Path::new("/tmp"),
            capability_file: PathBuf::new(),
            machine: Machine::default(),
            notes: Notes::default(),
            silence: Duration::from_millis(300),
            failed: Vec::new(),
        };
        let command = |_: &Run, option: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "[ $0 != --no-run ] || exec sleep 1; exec sleep 1000", option]);
            command
        };
        run.built_and_run("sleeps", command).unwrap();
        assert_eq!(run.failed, ["sleeps"]);
    }
}
