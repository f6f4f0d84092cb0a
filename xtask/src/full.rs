//! `cargo xtask full`: tests of adjustable size, at full size, with the program built as for users.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets};

use crate::notes::Notes;
use crate::probe::{Machine, cargo};
use crate::step;

/// Line of the table: a test, and the capabilities that it needs.
struct Check {
    what: &'static str,
    /// File and name
    test: [&'static str; 2],
    build: Build,
    size: Size,
    needs: &'static [&'static str],
}

/// Build of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// Tests of the program, built as for users
    Program,
    /// End-to-end tests, optimized, with overflow checks and debug assertions
    Checked,
    /// The same under AddressSanitizer, with the nightly toolchain
    AddressSanitizer,
}

/// Unit of a check's size.
#[derive(Clone, Copy)]
enum Size {
    Kills,
    Events,
    Seconds,
    Faults,
}

const STORM: [&str; 2] = ["storm", "a_storm_harms_nobody"];

/// Defaults of a check's fields.
const PLAIN: Check = Check {
    what: "",
    test: ["", ""],
    build: Build::Program,
    size: Size::Events,
    needs: &["babeltrace2"],
};

const CHECKS: [Check; 11] = [
    Check {
        what: "storm of hostile vCPUs, overflow checks",
        test: STORM,
        build: Build::Checked,
        size: Size::Seconds,
        ..PLAIN
    },
    Check {
        what: "storm of hostile vCPUs, AddressSanitizer",
        test: STORM,
        build: Build::AddressSanitizer,
        size: Size::Seconds,
        ..PLAIN
    },
    Check {
        what: "faults of the disk",
        test: ["disk_faults", "all_events_are_recorded_or_counted_whatever_the_disk_does"],
        build: Build::Checked,
        size: Size::Faults,
        ..PLAIN
    },
    Check {
        what: "kills of the demo",
        test: ["kills", "a_killed_demo_is_read_to_its_end"],
        size: Size::Kills,
        ..PLAIN
    },
    Check {
        what: "kills of a program",
        test: ["run_kills", "a_killed_programs_commits_are_all_recorded"],
        size: Size::Kills,
        ..PLAIN
    },
    Check {
        what: "kills of run, recovered",
        test: ["run_kills", "a_killed_run_is_recovered_into_its_session_or_a_new_one"],
        size: Size::Kills,
        ..PLAIN
    },
    Check {
        what: "four threads, Rust, natively",
        test: ["run", "every_event_of_a_program_with_four_threads_is_recorded"],
        ..PLAIN
    },
    Check {
        what: "four threads, Rust, natively and under qemu-x86_64",
        test: ["run_qemu", "a_program_does_the_same_natively_and_emulated"],
        needs: &["babeltrace2", "qemu-x86_64"],
        ..PLAIN
    },
    Check {
        what: "four threads, C, natively",
        test: ["c_programs", "every_event_of_the_c_program_is_recorded"],
        needs: &["babeltrace2", "gcc"],
        ..PLAIN
    },
    Check {
        what: "four threads, C, under qemu-x86_64, with the plugin and without",
        test: ["c_programs", "the_same_program_under_qemu_x86_64"],
        needs: &["babeltrace2", "gcc", "qemu-x86_64"],
        ..PLAIN
    },
    Check {
        what: "four threads, C, under qemu-aarch64, with the plugin and without",
        test: ["c_programs", "the_same_program_for_aarch64_under_qemu_aarch64"],
        needs: &["babeltrace2", "aarch64-gcc", "aarch64-rust", "qemu-aarch64"],
        ..PLAIN
    },
];

/// Sizes of the tests
#[derive(clap::Args)]
pub struct Options {
    /// Number of kills of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,

    /// Number of events of each of four threads; it makes a hundredth as many points of each strength
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..))]
    events: u64,

    /// Duration of each storm in seconds; half of it under AddressSanitizer
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(6..))]
    seconds: u64,

    /// Number of runs on a disk that fails
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    faults: u64,

    /// Run only checks whose line contains this text
    #[arg(long)]
    only: Option<String>,

    #[command(flatten)]
    patience: step::Patience,
}

/// Runs all checks, and prints a line for each. Returns false if one failed or could not be run.
///
/// # Errors
/// If the machine cannot run commands; a failed check is not an error.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let machine = Machine::probe();
    let only = options.only.as_deref().unwrap_or_default();
    let checks: Vec<&Check> = CHECKS.iter().filter(|check| check.what.contains(only)).collect();
    ensure!(!checks.is_empty(), "no check has {only:?} in its line");
    let mut table = Table::new();
    table.load_preset(presets::ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(["check", "size", "", "took"]);
    let (mut good, mut figures) = (true, Vec::new());
    for check in checks {
        let mut took = Duration::ZERO;
        let became = check.run(root, options, &machine, &mut figures, &mut took)?;
        good &= became == "ok";
        let size = match check.size {
            Size::Kills => format!("{} kills", options.kills),
            Size::Events => format!("4 x {} events", options.events),
            Size::Seconds => format!("{} s", check.seconds(options)),
            Size::Faults => format!("{} runs", options.faults),
        };
        table.add_row([check.what, &size, &became, &step::duration(took)]);
    }
    figures.iter().for_each(|figure| println!("{figure}"));
    println!("\n{table}");
    Ok(good)
}

impl Check {
    fn seconds(&self, options: &Options) -> u64 {
        match self.build {
            Build::AddressSanitizer => options.seconds / 2,
            Build::Program | Build::Checked => options.seconds,
        }
    }

    /// Returns a `cargo test` with these arguments.
    fn command(&self, root: &Path, machine: &Machine, arguments: &[&str]) -> Command {
        let [file, _] = self.test;
        let mut command = match self.build {
            Build::Program => Command::new(cargo()),
            Build::Checked => Command::new(cargo()),
            Build::AddressSanitizer => {
                let mut command = Command::new("rustup");
                // These variables select the stable toolchain that runs this.
                command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
                command.env("RUSTFLAGS", "-Zsanitizer=address");
                command.env("CARGO_TARGET_DIR", root.join("target/asan"));
                // The sanitizer's quarantine of freed memory would be counted as use.
                command.env("ASAN_OPTIONS", "quarantine_size_mb=64");
                command.env("HYPERTRACE_STORM_RESIDENT_MIB", "2048");
                command.args(["run", "nightly", "cargo"]);
                command
            }
        };
        command.arg("test");
        command.args(match self.build {
            Build::Program => &["--release", "-p", "hypertrace-cli"][..],
            Build::Checked => &["--profile", "checked", "-p", "hypertrace-tests"],
            // With an explicit target, build scripts and proc macros are built without the sanitizer.
            Build::AddressSanitizer => {
                &["--profile", "checked", "-p", "hypertrace-tests", "--target", TARGET]
            }
        });
        command
            .args(["--test", file])
            .args(arguments)
            .current_dir(root)
            .env("PATH", machine.search_path())
            .env("CARGO_TERM_COLOR", "never");
        command
    }

    fn run(
        &self,
        root: &Path,
        options: &Options,
        machine: &Machine,
        figures: &mut Vec<String>,
        took: &mut Duration,
    ) -> Result<String> {
        for needed in self.needs {
            if let Err(why) = machine.found(needed) {
                step::skipped(self.what, why);
                return Ok(format!("not run: no {needed}"));
            }
        }
        if self.build == Build::AddressSanitizer && !has_nightly() {
            step::skipped(self.what, "no nightly toolchain");
            return Ok("not run: no nightly toolchain".to_owned());
        }
        // Built first, so that the check's time does not include it.
        let build = self.command(root, machine, &["--no-run"]);
        if !step::run(&format!("{}: build", self.what), build, options.patience.silence())?.ok {
            return Ok("FAILED to build".to_owned());
        }
        let [_, name] = self.test;
        let mut command = self.command(root, machine, &["--", "--exact", name, "--nocapture"]);
        command
            .env("HYPERTRACE_TEST_KILLS", options.kills.to_string())
            .env("HYPERTRACE_TEST_EVENTS", options.events.to_string())
            .env("HYPERTRACE_TEST_FAULTS", options.faults.to_string())
            .env("HYPERTRACE_STORM_SECONDS", self.seconds(options).to_string());
        let begin = Instant::now();
        let silence = options.patience.silence();
        let finished = step::run(self.what, command, silence).context("cannot run cargo")?;
        *took = begin.elapsed();
        let is_figure = |line: &&str| line.starts_with("figure: ");
        figures.extend(finished.output.lines().filter(is_figure).map(str::to_owned));
        let mut notes = Notes::default();
        notes.read_output(&finished.output);
        Ok(match notes.missing.keys().next() {
            _ if !finished.ok => "FAILED".to_owned(),
            Some(missing) => format!("not run: no {missing}"),
            // The test may have been renamed.
            None if notes.passed != 1 => "FAILED: no such test".to_owned(),
            None => "ok".to_owned(),
        })
    }
}

/// Target of a sanitizer's build.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn has_nightly() -> bool {
    let version = Command::new("rustup").args(["run", "nightly", "rustc", "--version"]).output();
    version.is_ok_and(|out| out.status.success())
}
