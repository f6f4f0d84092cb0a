//! `cargo xtask test`: every step of the test run, and the table that says what it did not show.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::notes::{Notes, Required};
use crate::probe::{Machine, cargo};
use crate::step;

/// What to run, and what must not be left out
#[derive(clap::Args)]
pub struct Options {
    /// Fail unless these capabilities are here and tests used them; `found`: all that are here
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = Required::parse)]
    require: Vec<Required>,

    /// How long each fuzz target runs, where cargo-fuzz is here
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    fuzz: u32,

    #[command(flatten)]
    patience: step::Patience,
}

/// Runs everything; false if something failed or was not used. Goes on after a failure: the next step may tell more.
///
/// # Errors
/// Something is wrong with the machine rather than with what is tested.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let begin = Instant::now();
    let machine = Machine::probe();
    // Absolute, because the commands run in the root, wherever this runs.
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(folder)?,
        None => root.join("target"),
    };
    // Tests keep their files in it, and a test that is killed leaves them. Open to all, as the system's own: some tests
    // run programs as other users.
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
    if let Ok(text) = std::fs::read_to_string(&run.capability_file) {
        run.notes.read_file(&text);
    }
    Ok(run.conclude(&options.require, begin.elapsed()))
}

struct Run<'a> {
    root: &'a Path,
    target: PathBuf,
    /// What steps take for the system's temporary folder
    temporary: &'a Path,
    /// Tests append to it what they used and missed
    capability_file: PathBuf,
    machine: Machine,
    notes: Notes,
    /// The longest silence of a step
    silence: Duration,
    /// Names of steps
    failed: Vec<String>,
}

impl Run<'_> {
    /// Whether the source is as it should be, before anything long runs.
    fn style(&mut self) -> Result<()> {
        let plain = ["--", "--color", "never"];
        self.with("rustfmt", &[&["fmt", "--all", "--check"][..], &plain].concat())?;
        let lints = ["--", "-D", "warnings"];
        let everything = ["clippy", "--workspace", "--all-targets", "--all-features"];
        self.with("clippy", &[&everything[..], &lints].concat())?;
        // What a guest without an operating system uses: features that other crates switch on must not hide here.
        let no_std = ["clippy", "--no-default-features"];
        let packages = ["-p", "hypertrace-abi", "-p", "hypertrace"];
        self.with("clippy", &[&no_std[..], &packages, &lints].concat())?;
        // Advisories are left out: they change by themselves, and a test run says something about this tree.
        let checks = ["deny", "check", "bans", "licenses", "sources"];
        self.with("cargo-deny", &checks)
    }

    /// All tests as `cargo test` builds them (overflow checks and debug assertions), and the end-to-end ones once
    /// more as users run the program.
    fn tests(&mut self) -> Result<()> {
        self.test_step(&["test", "--workspace", "--all-features", "--no-fail-fast"])?;
        self.step(&["build", "--release"])?;
        let end_to_end = ["-p", "hypertrace-tests", "-p", "hypertrace-cli"];
        self.test_step(&[&["test", "--release", "--no-fail-fast"][..], &end_to_end].concat())
    }

    /// The ring, model-checked: built with `--cfg hypertrace_loom` into a target folder of its own, so that nothing is built twice.
    fn loom(&mut self) -> Result<()> {
        let arguments = ["test", "--release", "-p", "hypertrace-abi-loom"];
        let mut command = self.cargo(&arguments);
        let mut flags = std::env::var_os("RUSTFLAGS").unwrap_or_default();
        flags.push(" --cfg hypertrace_loom");
        command.env("RUSTFLAGS", flags);
        command.env("CARGO_TARGET_DIR", self.target.join("loom"));
        self.finish_tests("loom: cargo test -p hypertrace-abi-loom", command)
    }

    /// The library of the fuzz targets on stable; the targets themselves where cargo-fuzz is.
    fn fuzz(&mut self, seconds: u32) -> Result<()> {
        let manifest = "fuzz/Cargo.toml";
        if !self.root.join(manifest).exists() {
            step::skipped("fuzz", "there is no fuzz/Cargo.toml");
            return Ok(());
        }
        if self.root.join("fuzz/src/lib.rs").exists() {
            let mut command = self.cargo(&["test", "--manifest-path", manifest, "--lib"]);
            command.env("CARGO_TARGET_DIR", self.target.join("fuzz"));
            self.finish_tests("fuzz: tests of the input library", command)?;
        }
        if let Err(why) = self.machine.found("cargo-fuzz") {
            step::skipped("fuzz: targets", why);
            return Ok(());
        }
        let listed = self.cargo_fuzz(&["list"]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for fuzz_target in listed.split_whitespace() {
            let limit = format!("-max_total_time={seconds}");
            let command = self.cargo_fuzz(&["run", fuzz_target, "--", &limit, "-len_control=0"]);
            let name = format!("fuzz: {fuzz_target} for {seconds} s");
            if self.finish(&name, command)? {
                self.notes.used_by_step("cargo-fuzz", &name);
            }
        }
        Ok(())
    }

    fn cargo_fuzz(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("rustup");
        command
            .args(["run", "nightly", "cargo", "fuzz"])
            .args(arguments)
            .current_dir(self.root)
            // Both name the stable toolchain that runs this.
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("CARGO_TARGET_DIR", self.target.join("fuzz"))
            .env("TMPDIR", self.temporary);
        command
    }

    fn documentation(&mut self) -> Result<()> {
        // Libraries only: the guest library and the program have the same name, and would have the same pages.
        // So has the C library, whose documentation is its header.
        let arguments = ["doc", "--workspace", "--no-deps", "--all-features", "--lib"];
        let mut command = self.cargo(&arguments);
        command.args(["--exclude", "hypertrace-c"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        self.finish("cargo doc, warnings are errors", command)?;
        Ok(())
    }

    /// A step that needs a part of the toolchain that may not be here.
    fn with(&mut self, capability: &str, arguments: &[&str]) -> Result<()> {
        let name = format!("cargo {}", arguments.join(" "));
        if let Err(why) = self.machine.found(capability) {
            step::skipped(&name, why);
            return Ok(());
        }
        self.step(arguments)?;
        self.notes.used_by_step(capability, &name);
        Ok(())
    }

    fn step(&mut self, arguments: &[&str]) -> Result<()> {
        let command = self.cargo(arguments);
        self.finish(&format!("cargo {}", arguments.join(" ")), command)?;
        Ok(())
    }

    fn test_step(&mut self, arguments: &[&str]) -> Result<()> {
        let command = self.cargo(arguments);
        self.finish_tests(&format!("cargo {}", arguments.join(" ")), command)
    }

    fn finish(&mut self, name: &str, command: Command) -> Result<bool> {
        let finished = step::run(name, command, self.silence)?;
        if !finished.ok {
            self.failed.push(name.to_owned());
        }
        Ok(finished.ok)
    }

    fn finish_tests(&mut self, name: &str, command: Command) -> Result<()> {
        let finished = step::run(name, command, self.silence)?;
        let before = self.notes.passed;
        let unfinished = self.notes.unfinished;
        self.notes.read_output(&finished.output);
        let (passed, unfinished) = (self.notes.passed - before, self.notes.unfinished - unfinished);
        println!("    {passed} tests passed");
        if finished.killed {
            let left = "test programs after the one that hung did not run";
            self.failed
                .push(format!("{name} (killed: {unfinished} tests did not end, and {left})"));
        } else if !finished.ok {
            self.failed.push(name.to_owned());
        }
        Ok(())
    }

    /// A cargo command for tests: fetched programs on PATH, tracefs mounted if that needs a namespace.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = match self.machine.prefix.split_first() {
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(cargo());
                command
            }
            None => Command::new(cargo()),
        };
        command
            .args(arguments)
            .current_dir(self.root)
            .env("PATH", self.machine.search_path())
            .env("HYPERTRACE_CAPABILITIES", &self.capability_file)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("TMPDIR", self.temporary)
            // The output is read here.
            .env("CARGO_TERM_COLOR", "never");
        command
    }

    /// Prints what came of it all; true if it is good.
    fn conclude(&self, required: &[Required], took: Duration) -> bool {
        let notes = &self.notes;
        println!();
        for (title, list) in [("ignored", &notes.ignored), ("FAILED", &notes.failed)] {
            for name in list {
                println!("{title}: {name}");
            }
        }
        for (name, reasons) in &notes.missing {
            for why in reasons {
                println!("not run for want of {name}: {why}");
            }
        }
        for step in &self.failed {
            println!("FAILED: {step}");
        }
        let violations = notes.violations(&self.machine.capabilities, required);
        for violation in &violations {
            println!("FAILED: {violation}");
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
