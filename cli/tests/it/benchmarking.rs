//! The commands of docs/benchmarking.md, run unchanged, with one iteration of each benchmark.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use hypertrace_tests::command::run;
use hypertrace_tests::{build, c, capability, kvm};

/// Returns the commands in the guide's blocks for a shell, each with the section that it is in.
fn commands(guide: &str) -> Vec<(&str, &str)> {
    let (mut section, mut is_shell, mut commands) = ("", false, Vec::new());
    for line in guide.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if line.starts_with("```") {
            is_shell = line == "```sh";
        } else if is_shell {
            commands.push((section, line));
        }
    }
    commands
}

/// Makes a `cargo` that runs each benchmark once: criterion does so in `cargo test`. It builds with the profile and the
/// features of the tests, so that only the benchmark is compiled.
fn write_cargo(path: &Path) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let target = build::target_folder();
    let profile = Path::new(env!("CARGO_BIN_EXE_hypertrace")).parent().unwrap();
    let profile = match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        profile => profile,
    };
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'bench -p hypertrace-benchmark' ] || exit 99\nshift 3\ncd '{}' || exit 98\n\
         exec '{cargo}' test --quiet --locked --workspace --all-features --profile {profile} --target-dir '{}' \"$@\"\n",
        build::root().display(),
        target.display()
    );
    fs::write(path, script).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_commands_of_the_guide_work() {
    let guide = fs::read_to_string(c::source("docs/benchmarking.md")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let programs = place.path().join("programs");
    fs::create_dir(&programs).unwrap();
    write_cargo(&programs.join("cargo"));
    let hypertrace = Path::new(env!("CARGO_BIN_EXE_hypertrace")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", programs.display(), hypertrace.display());
    let has_kvm = kvm::is_usable();
    let commands = commands(&guide);
    assert!(commands.len() >= 8, "{commands:?}");

    for (section, command) in commands {
        if section == "In a guest" && !has_kvm {
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", command]).current_dir(place.path()).env("PATH", &path);

        let ran = run(&mut shell);

        if ran.stderr.contains("perf_event_open") {
            return capability::missing("perf", ran.stderr);
        }
        assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        if command.starts_with("hypertrace regions") && !command.contains('>') {
            assert!(ran.stdout.contains(": 1 region\n"), "{command}: {ran:?}");
        }
    }
    if has_kvm {
        capability::used("kvm");
    }
}
