//! `cargo xtask full`: tests whose sizes depend on the time that one has, at full size, as users run the program.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};

use crate::notes::Notes;
use crate::probe::{Machine, cargo};
use crate::step;

/// No check takes this long; one that does hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// What a line of the table is about, the test that shows it, and what that needs of the machine.
struct Check {
    what: &'static str,
    /// Package, file and name
    test: [&'static str; 3],
    needs: &'static [&'static str],
}

const CHECKS: [Check; 9] = [
    Check {
        what: "kills of the demo",
        test: ["hypertrace-cli", "kills", "a_killed_demo_is_read_to_its_end"],
        needs: &["babeltrace2"],
    },
    Check {
        what: "kills of a program",
        test: ["hypertrace-cli", "run_kills", "a_killed_program_is_recorded_to_its_last_commit"],
        needs: &["babeltrace2"],
    },
    Check {
        what: "kills of run, recovered",
        test: [
            "hypertrace-cli",
            "run_kills",
            "a_killed_run_is_completed_or_made_anew_from_its_segment",
        ],
        needs: &["babeltrace2"],
    },
    Check {
        what: "four threads, Rust, natively",
        test: ["hypertrace-cli", "run", "a_program_of_four_threads_is_recorded_whole"],
        needs: &["babeltrace2"],
    },
    Check {
        what: "four threads, Rust, natively and under qemu-x86_64",
        test: ["hypertrace-cli", "run_qemu", "a_program_does_the_same_natively_and_emulated"],
        needs: &["babeltrace2", "qemu-x86_64"],
    },
    Check {
        what: "four threads, C, natively",
        test: ["hypertrace-cli", "c_programs", "the_c_program_is_recorded_whole"],
        needs: &["babeltrace2", "gcc"],
    },
    Check {
        what: "four threads, C, under qemu-x86_64, with the plugin and without",
        test: ["hypertrace-cli", "c_programs", "the_same_program_under_qemu_x86_64"],
        needs: &["babeltrace2", "gcc", "qemu-x86_64"],
    },
    Check {
        what: "four threads, C, under qemu-aarch64, with the plugin and without",
        test: ["hypertrace-cli", "c_programs", "the_same_program_for_aarch64_under_qemu_aarch64"],
        needs: &["babeltrace2", "aarch64-gcc", "aarch64-rust", "qemu-aarch64"],
    },
    Check {
        what: "faults of the disk",
        test: [
            "hypertrace-tests",
            "disk_faults",
            "all_events_are_recorded_or_counted_whatever_the_disk_does",
        ],
        needs: &["babeltrace2"],
    },
];

/// How much
#[derive(clap::Args)]
pub struct Options {
    /// Kills of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,

    /// Events of each of four threads; a hundredth of that are points of each strength
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..))]
    events: u64,

    /// Runs on a disk that fails
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    faults: u64,
}

/// Runs all checks, and prints a line for each; false if one failed, or could not be run here.
///
/// # Errors
/// Something is wrong with the machine rather than with what is tested.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let machine = Machine::probe();
    // So that a check's time is its own.
    for package in ["hypertrace-cli", "hypertrace-tests"] {
        let build = cargo_test(root, &machine, package, &["--no-run"]);
        if !step::run("build", build, LIMIT)?.ok {
            return Ok(false);
        }
    }
    let mut table = Table::new();
    table.load_preset(presets::ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(["check", "size", "", "took"]);
    let mut good = true;
    for check in &CHECKS {
        let begin = Instant::now();
        let became = check.run(root, options, &machine)?;
        good &= became == "ok";
        let size = match check.what.split_once(' ').map_or("", |(kind, _)| kind) {
            "kills" => format!("{} kills", options.kills),
            "faults" => format!("{} runs", options.faults),
            _ => format!("4 x {} events", options.events),
        };
        table.add_row([check.what, &size, &became, &step::duration(begin.elapsed())]);
    }
    println!("\n{table}");
    Ok(good)
}

fn cargo_test(root: &Path, machine: &Machine, package: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command
        .args(["test", "--release", "-p", package])
        .args(arguments)
        .current_dir(root)
        .env("PATH", machine.search_path())
        .env("CARGO_TERM_COLOR", "never");
    command
}

impl Check {
    fn run(&self, root: &Path, options: &Options, machine: &Machine) -> Result<String> {
        for needed in self.needs {
            if let Err(why) = machine.found(needed) {
                step::skipped(self.what, why);
                return Ok(format!("not run: no {needed}"));
            }
        }
        let [package, file, name] = self.test;
        let arguments = ["--test", file, "--", "--exact", name];
        let mut command = cargo_test(root, machine, package, &arguments);
        command
            .env("HYPERTRACE_TEST_KILLS", options.kills.to_string())
            .env("HYPERTRACE_TEST_EVENTS", options.events.to_string())
            .env("HYPERTRACE_TEST_FAULTS", options.faults.to_string());
        let finished = step::run(self.what, command, LIMIT).context("cannot run cargo")?;
        let mut notes = Notes::default();
        notes.read_output(&finished.output);
        Ok(match notes.missing.keys().next() {
            _ if !finished.ok => "FAILED".to_owned(),
            Some(missing) => format!("not run: no {missing}"),
            // Or the test has another name by now.
            None if notes.passed != 1 => "FAILED: no such test".to_owned(),
            None => "ok".to_owned(),
        })
    }
}
