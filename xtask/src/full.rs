//! `cargo xtask full`: tests of adjustable size, at full size, with the program built as for users.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use comfy_table::{Table, presets};

use crate::command::{LOOM_TEST, cargo, first_line, model_check, nightly};
use crate::notes::Notes;
use crate::probe::{MIRI, Machine};
use crate::step;

/// Line of the table: a test of adjustable size, or several tests.
struct Check {
    what: &'static str,
    build: Build,
    size: Size,
    /// Arguments of `cargo test` that select the tests
    tests: &'static str,
}

/// Build of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// Tests of the program, built as for users
    Program,
    /// Optimized, with overflow checks and debug assertions
    Checked,
    /// The same under AddressSanitizer, with the nightly toolchain
    AddressSanitizer,
    /// Interpreted by Miri, with the nightly toolchain
    Miri,
    /// Model-checked by loom
    Loom,
}

/// Unit of a check's size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Kills,
    Events,
    Seconds,
    Faults,
    Restores,
    /// Several tests, each of its own size
    Tests,
}

use Build::{AddressSanitizer, Checked, Loom, Miri, Program};
use Size::{Events, Faults, Kills, Restores, Seconds, Tests};

const CHECKS: [Check; 20] = [
    // Unit tests without files, time and assembly, which Miri would not run.
    check("unit tests of abi and trace, Miri", Miri, Tests).by(
        "-p hypertrace-abi -p hypertrace-trace --lib -- config:: layout:: schema:: event:: \
         ctf::metadata ctf::packet ctf::session_json drain:: events::gaps events::pattern \
         events::text events::line simple::ns trigger::table",
    ),
    check("segment, abi, device, guest-lib, trace, AddressSanitizer", AddressSanitizer, Tests)
        .by("-p hypertrace-segment -p hypertrace-abi -p hypertrace-device -p hypertrace \
         -p hypertrace-trace --all-features --lib --tests"),
    check("ring that discards, loom", Loom, Tests).by("-- --ignored"),
    check("storm of hostile vCPUs, overflow checks", Checked, Seconds)
        .by("-p hypertrace-tests --test it storm::a_storm_harms_nobody"),
    check("storm of hostile vCPUs, AddressSanitizer", AddressSanitizer, Seconds)
        .by("-p hypertrace-tests --test it storm::a_storm_harms_nobody"),
    check("faults of the disk", Checked, Faults).by("-p hypertrace-tests --test it \
         disk_faults::all_events_are_recorded_or_counted_whatever_the_disk_does"),
    check("restores of a guest in KVM", Checked, Restores)
        .by("-p hypertrace-tests --test it \
         restore::a_guest_in_kvm_continues_in_other_processes_with_every_event_once"),
    check("kills of the demo", Program, Kills).by("--test it kills::a_killed_demo_is_read_to_its_end"),
    check("kills of a program", Program, Kills)
        .by("--test it run_kills::a_killed_programs_commits_are_all_recorded"),
    check("kills of run, recovered", Program, Kills)
        .by("--test it run_kills::a_killed_run_is_recovered_into_its_session_or_a_new_one"),
    check("kills of record", Program, Kills)
        .by("--test it record_kills::a_killed_recording_is_completed_by_the_next_start"),
    check("kills of a machine with a function trace", Checked, Kills)
        .by("-p hypertrace-qemu --test it kills::what_a_killed_machine_has_written_is_read"),
    check("kernel of a Linux guest, by a recorder without libraries", Program, Tests)
        .by("--test it linux_guest_kernel::"),
    check("boots with function traces", Checked, Tests)
        .by("-p hypertrace-qemu --test it -- --ignored functions_boot:: linux::"),
    check("four threads, Rust, in a Linux guest of AArch64, by each way", Program, Events)
        .by("--test it \
         linux_guest::an_aarch64_guest_loses_nothing_by_a_shared_file_and_by_the_device_over_vfio_user"),
    check("four threads, Rust, natively", Program, Events)
        .by("--test it run::every_event_of_a_program_with_four_threads_is_recorded"),
    check("four threads, Rust, natively and under qemu-x86_64", Program, Events)
        .by("--test it run_qemu::a_program_does_the_same_natively_and_emulated"),
    check("four threads, C, natively", Program, Events)
        .by("--test it c_programs::every_event_of_the_c_program_is_recorded"),
    check("four threads, C, under qemu-x86_64, with the plugin and without", Program, Events)
        .by("--test it c_programs::the_same_program_under_qemu_x86_64"),
    check("four threads, C, under qemu-aarch64, with the plugin and without", Program, Events)
        .by("--test it c_programs::the_same_program_for_aarch64_under_qemu_aarch64"),
];

const fn check(what: &'static str, build: Build, size: Size) -> Check {
    Check { what, build, size, tests: "" }
}

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

    /// Number of restores of a guest in a process of its own
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    restores: u64,

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
        let size = check.size(options).map_or_else(String::new, |(_, _, size)| size);
        table.add_row([check.what, &size, &became, &step::duration(took)]);
    }
    figures.iter().for_each(|figure| println!("{figure}"));
    println!("\n{table}");
    Ok(good)
}

impl Check {
    const fn by(self, tests: &'static str) -> Check {
        Check { tests, ..self }
    }

    /// Returns the size of a single test: its environment variable, the number, and a text.
    fn size(&self, options: &Options) -> Option<(&'static str, u64, String)> {
        let Options { kills, events, faults, restores, .. } = *options;
        let half = if self.build == AddressSanitizer { 2 } else { 1 };
        let seconds = options.seconds / half;
        Some(match self.size {
            Kills => ("HYPERTRACE_TEST_KILLS", kills, format!("{kills} kills")),
            Events => ("HYPERTRACE_TEST_EVENTS", events, format!("4 x {events} events")),
            Seconds => ("HYPERTRACE_STORM_SECONDS", seconds, format!("{seconds} s")),
            Faults => ("HYPERTRACE_TEST_FAULTS", faults, format!("{faults} runs")),
            Restores => ("HYPERTRACE_TEST_RESTORES", restores, format!("{restores} restores")),
            Tests => return None,
        })
    }

    /// Returns the part of the toolchain that is missing for it, and the reason.
    fn missing(&self, machine: &Machine) -> Option<(&'static str, String)> {
        let (name, found) = match self.build {
            Program | Checked | Loom => return None,
            Miri => (MIRI, machine.found(MIRI).map_err(|why| Error::msg(why.to_owned()))),
            AddressSanitizer => {
                ("nightly toolchain", first_line(nightly().arg("--version")).map(drop))
            }
        };
        found.err().map(|why| (name, format!("{why:#}")))
    }

    /// Returns a `cargo test` of the tests, with an option.
    fn command(&self, root: &Path, machine: &Machine, option: &str) -> Command {
        let (mut command, test) = match self.build {
            Program => (Command::new(cargo()), "test --release -p hypertrace-cli"),
            Checked => (Command::new(cargo()), "test --profile checked"),
            // With an explicit target, build scripts and proc macros are built without the sanitizer.
            AddressSanitizer => {
                (nightly(), "test --profile checked --target x86_64-unknown-linux-gnu")
            }
            Miri => (nightly(), "miri test"),
            Loom => (Command::new(cargo()), LOOM_TEST),
        };
        if self.build == Loom {
            model_check(&mut command, &root.join("target"));
        }
        if self.build == AddressSanitizer {
            // The sanitizer's quarantine of freed memory would be counted as use. Leaks are reported for the storm alone:
            // those of the crates' tests have not been examined.
            let leaks = u8::from(self.size != Tests);
            command.env("ASAN_OPTIONS", format!("quarantine_size_mb=64:detect_leaks={leaks}"));
            command.env("HYPERTRACE_STORM_RESIDENT_MIB", "2048");
            command.env("RUSTFLAGS", "-Zsanitizer=address");
            command.env("CARGO_TARGET_DIR", root.join("target/asan"));
        }
        command
            .args(test.split(' '))
            .arg(option)
            .args(self.tests.split(' '))
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
        if let Some((name, why)) = self.missing(machine) {
            step::skipped(self.what, &why);
            return Ok(format!("not run: no {name}"));
        }
        // Built first, so that the check's time does not include it.
        let build = self.command(root, machine, "--no-run");
        if !step::run(&format!("{}: build", self.what), build, step::BUILD)?.ok {
            return Ok("FAILED to build".to_owned());
        }
        let mut command = self.command(root, machine, "--no-fail-fast");
        if let Some((variable, size, _)) = self.size(options) {
            command.env(variable, size.to_string()).args(["--", "--exact", "--nocapture"]);
        }
        let begin = Instant::now();
        let silence = options.patience.silence();
        let finished = step::run(self.what, command, silence).context("cannot run cargo")?;
        *took = begin.elapsed();
        let is_figure = |line: &&str| line.starts_with("figure: ");
        figures.extend(finished.output.lines().filter(is_figure).map(str::to_owned));
        let mut notes = Notes::default();
        notes.read_output(&finished.output);
        notes.print_missing();
        Ok(match notes.missing.keys().next() {
            _ if !finished.ok => "FAILED".to_owned(),
            Some(missing) if self.size != Tests => format!("not run: no {missing}"),
            // The test may have been renamed.
            _ if notes.passed == 0 || self.size != Tests && notes.passed != 1 => {
                "FAILED: no such test".to_owned()
            }
            _ => "ok".to_owned(),
        })
    }
}
