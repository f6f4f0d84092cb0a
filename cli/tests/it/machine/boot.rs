//! Boots of virtual machines, divided into stages. The tests cause the slow part of a boot, and expect `boot`
//! to name this part.

use super::{FUNCTIONS, HYPERTRACE, json};
use hypertrace_tests::command::run;
use hypertrace_tests::linux::Linux;
use hypertrace_tests::machine::{Machine, line_of};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the line that starts a VM of this machine type.
fn vm(linux: &Linux, folder: &Path, machine: &str) -> String {
    let options = ["-M", machine, "-cpu", "host"].map(str::to_owned);
    line_of(&linux.command(folder, &["-accel", "kvm"], &options, &[], "echo booted"))
}

/// Asserts that each stage of a boot begins where the stage before ends, and that the counts of exits and the
/// times of threads fit the stages.
#[track_caller]
fn check(boot: &Value) {
    let stages = boot["stages"].as_array().unwrap();
    let time = |stage: &Value, name: &str| -> i128 {
        // In JSON, large integers are texts.
        let value = &stage[name];
        value.as_i64().map_or_else(|| value.as_str().unwrap().parse().unwrap(), i128::from)
    };
    for pair in stages.windows(2) {
        assert_eq!(time(&pair[0], "end_ns"), time(&pair[1], "begin_ns"), "{boot}");
    }
    for stage in stages {
        let duration = time(stage, "end_ns") - time(stage, "begin_ns");
        let path = stage["path"].as_array().unwrap().iter().map(|step| time(step, "ns"));
        assert_eq!(path.sum::<i128>(), duration, "{stage}");
        for thread in stage["threads"].as_array().unwrap() {
            let parts = thread["parts"].as_object().unwrap();
            let sum = parts.keys().map(|part| time(&thread["parts"], part)).sum::<i128>();
            assert!(sum <= duration, "{stage}");
        }
    }
    assert_eq!((&boot["has_start"], &boot["has_end"]), (&true.into(), &true.into()), "{boot}");
    assert!(stages.iter().all(|stage| stage["name"] != "unknown"), "{boot}");
}

/// Runs a script that records the boots of two sides with `boots SIDE COMMAND..`. Returns the folder with the
/// boots, and a function. The function returns the comparison of both sides by `boot --of .. --with` with the
/// given options.
#[track_caller]
fn compared(machine: &Machine, script: &str) -> (PathBuf, impl Fn(&[&str]) -> String) {
    let script = format!(
        r#"H='{}'
{FUNCTIONS}
        boots() {{ name=$1; shift; "$H" boot -n 2 --limit 200s -o $shared/$name -- "$@" || exit 7; }}
        {script}"#,
        HYPERTRACE.0
    );
    let (ran, shared) = machine.run(&script);
    assert_eq!(ran.code, 0, "{ran:?}");
    let folder = shared.clone();
    // A shell's pattern `boot-*` names the same recordings.
    let boots = move |side: &str| {
        let all = fs::read_dir(shared.join(side)).unwrap().map(|entry| entry.unwrap().file_name());
        let all = all.filter(|name| name.to_str().unwrap().starts_with("boot-"));
        let mut all = Vec::from_iter(all.map(|name| shared.join(side).join(name)));
        all.sort();
        assert_eq!(all.len(), 2, "{all:?}");
        all
    };
    let show = move |options: &[&str]| {
        let mut command = HYPERTRACE.command(["boot", "--of"]);
        run(command.args(boots("a")).arg("--with").args(boots("b")).args(options)).ok()
    };
    (folder, show)
}

/// Returns the sentence about the difference. The durations of two sides may overlap, because the load
/// outside of the machine changes, but the sentence names the cause all the same.
fn verdict(shown: &str) -> String {
    let words = Vec::from_iter(shown.split_whitespace()).join(" ");
    let verdict = words.split_once(" stage, fastest of").unwrap().0;
    let slower = [" slower: ", "each boot of the second side has "];
    assert!(slower.iter().any(|words| verdict.contains(words)), "{verdict}");
    verdict.to_owned()
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_program_that_takes_a_vcpus_cpu_is_named_as_the_cause_of_a_slow_boot() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let vm = vm(&linux, folder.path(), "microvm,rtc=on");
    let script = format!(
        "cp /bin/sh hog; boots a taskset -c 0 {vm}
        taskset -c 0 ./hog -c 'while :; do :; done' & hog=$!
        boots b taskset -c 0 {vm}; kill $hog"
    );

    let (_, show) = compared(machine, &script);

    let verdict = verdict(&show(&[]));
    assert!(verdict.contains("more waiting for a CPU behind hog"), "{verdict}");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn devices_that_are_enumerated_are_named_as_the_cause_of_a_slow_boot() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let vm = vm(&linux, folder.path(), "q35");
    // The first function of each device says that the device has further functions.
    let function = |at: u32| {
        let first = if at.is_multiple_of(8) { ",multifunction=on" } else { "" };
        format!(" -device pci-testdev,addr={:x}.{}{first}", 8 + at / 8, at % 8)
    };
    let more = (0..64).map(function).collect::<String>();

    let script = format!("boots a {vm}; boots b {vm}{more}");
    let (_, show) = compared(machine, &script);

    // Linux writes to each BAR of each function to learn its size.
    let verdict = verdict(&show(&[]));
    assert!(verdict.contains("exits more by pio write 0xcf"), "{verdict}");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_vm_that_does_not_end_is_ended_when_the_last_stage_begins() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = ["-M", "microvm,rtc=on", "-cpu", "host"].map(str::to_owned);
    let command = linux.command(folder.path(), &["-accel", "kvm"], &options, &[], "sleep 100000");
    let vm = line_of(&command);
    let script = format!(
        r#"H='{}'
        # A look is slow in the folder that is shared with this machine.
        boot() {{ "$H" boot --html $shared/$1.html -o "$@" -- {vm} 2>$shared/$1.said && cp -r $1 $shared/ || exit 7; }}
        boot until --until 'user space' --limit 300s
        boot never --mark 'never=kvm:kvm_mmio where gpa == 1' --until never --limit 20s"#,
        HYPERTRACE.0
    );

    let (ran, shared) = machine.run(&script);

    assert_eq!(ran.code, 0, "{ran:?}");
    let said = |name: &str| fs::read_to_string(shared.join(name)).unwrap();
    assert_eq!(said("until.said").lines().count(), 1, "{}", said("until.said"));
    assert!(said("never.said").contains("no stage \"never\" begins"), "{}", said("never.said"));
    let boot = |options: &[&str]| {
        let mut command = HYPERTRACE.command(["boot", "--json", "--of"]);
        let shown = run(command.arg(shared.join("until/boot-01")).args(options)).ok();
        fs::write(shared.join("json"), shown).unwrap();
        json(&shared.join("json"))["of"][0]["boots"][0].clone()
    };
    let names = |boot: &Value| {
        let stages = boot["stages"].as_array().unwrap().iter();
        Vec::from_iter(stages.map(|stage| stage["name"].as_str().unwrap().to_owned()))
    };
    let whole = boot(&[]);
    check(&whole);
    assert_eq!(names(&whole).last().unwrap(), "user space");
    assert!(!names(&boot(&["--until", "user space"])).contains(&"user space".to_owned()));
    // The limit has not ended the VMM.
    let time = |stage: &Value, name: &str| stage[name].as_str().unwrap().parse::<i64>().unwrap();
    let stages = whole["stages"].as_array().unwrap();
    let ms = (time(stages.last().unwrap(), "end_ns") - time(&stages[0], "begin_ns")) / 1_000_000;
    assert!(ms < 200_000, "{whole}");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_clock_that_is_not_there_is_named_as_the_cause_of_a_slow_boot() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let on = vm(&linux, folder.path(), "microvm,rtc=on");
    let off = vm(&linux, folder.path(), "microvm,rtc=off");

    let script = format!("boots a {on}; boots b {off}");
    let (shared, show) = compared(machine, &script);

    // Linux asks the clock 20,000 times through each of its two ports.
    let verdict = verdict(&show(&[]));
    assert!(verdict.contains("in \"second vCPU\""), "{verdict}");
    for port in ["exits more by pio write 0x70", "exits more by pio read 0x71"] {
        assert!(verdict.contains(port), "{verdict}");
    }
    fs::write(shared.join("json"), show(&["--json"])).unwrap();
    let all = json(&shared.join("json"));
    for side in ["of", "with"] {
        for recording in all[side].as_array().unwrap() {
            let [boot] = &recording["boots"].as_array().unwrap()[..] else { panic!("{recording}") };
            check(boot);
            let names = boot["stages"].as_array().unwrap().iter();
            let names = names.map(|stage| stage["name"].as_str().unwrap());
            let names = Vec::from_iter(names);
            let expected = ["VMM", "firmware", "kernel", "second vCPU", "user space"];
            assert_eq!(names, expected, "{boot}");
            let exits = boot["stages"].as_array().unwrap().iter();
            let exits = exits.flat_map(|stage| stage["exits"].as_array().unwrap());
            let clock = exits.filter(|exit| exit["what"] == "pio write 0x70");
            let clock = clock.map(|exit| exit["count"].as_u64().unwrap()).sum::<u64>();
            assert_eq!(clock > 15_000, side == "with", "{boot}");
        }
    }
    Linux::used();
}
