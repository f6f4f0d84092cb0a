// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Damaged inputs: what can be read is shown, the damage is named, and the exit code tells of the damage.

use hypertrace_test_support::{functions as data, made, trace_dat};
use hypertrace_tests::command::{Hypertrace, run};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Makes a session `S` of a region and of a kernel's events, and the kernel's events alone in `t.dat`.
/// `change` damages the kernel's file.
fn make(folder: &Path, change: impl Fn(&mut Vec<u8>)) {
    let events = r#"[
        {"id":16,"schema":"work_begin(id:u64)","reference_point":false},
        {"id":17,"schema":"work_end(id:u64)","reference_point":false}]"#;
    let json = made::with_boot(&made::json(&made::clocks(), events, "[]"), Some(made::BOOT));
    let regions = made::Packet::host(3).lease(1_000, 9, "vcpu0");
    let regions = regions.event(40_000, 16, &[1]).event(50_000, 17, &[1]);
    let made = made::Made::with_json(&json);
    let made = made.stream("host-003-0000", &[made::Packet::host(3), regions]);
    let page = |time| trace_dat::Page::at(time).mmio(0, 77, time);
    let pages = [1_041_000, 1_042_000, 1_043_000].map(page);
    let dat =
        trace_dat::TraceDat::new("x86-tsc").cpu(&pages).option(trace_dat::recorded(made::BOOT, 0));
    let mut bytes = dat.version_7();
    change(&mut bytes);
    run(std::process::Command::new("cp").arg("-r").arg(made.path()).arg(folder.join("S"))).ok();
    fs::write(folder.join("S/kernel.dat"), &bytes).unwrap();
    fs::write(folder.join("t.dat"), &bytes).unwrap();
}

/// Commands that read the session or the kernel's file, and a part of what they show of the file's last page.
const SHOWN: [(&str, &str); 11] = [
    ("report t.dat", "gpa"),
    ("report t.dat --json", "gpa"),
    ("report S", "gpa"),
    ("info t.dat", "cpu0 2 events"),
    ("info S --json", "\"uncounted_losses\":1"),
    ("info --names S", "kvm:kvm_mmio"),
    ("regions S", "work"),
    ("regions S --json", "events are missing"),
    ("export t.dat --to json -o -", "gpa"),
    ("export S --to csv -o -", "kvm:kvm_mmio"),
    ("export S --to otlp -o -", ""),
];

#[test]
fn a_damaged_page_is_named_and_the_exit_code_tells_of_it() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |bytes| {
        let at = bytes.len() - 2 * 4096;
        bytes[at + 8..at + 16].copy_from_slice(&[0xff; 8]);
    });
    let files =
        ["export S --to perfetto -o P", "export S --to ctf -o C"].map(|command| (command, ""));
    for (command, shown) in SHOWN.into_iter().chain(files) {
        let ran = run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path()));

        assert_eq!(ran.code, Some(2), "{command}: {ran:?}");
        assert!(ran.stdout.contains(shown), "{command}: {ran:?}");
        let said = ran.stderr.matches("events are missing, of 1 page of CPU 0").count();
        assert_eq!(said, 1, "{command}: {}", ran.stderr);
    }
    assert!(dir.path().join("P").exists() && dir.path().join("C/metadata").exists());
}

#[test]
fn a_cut_file_is_named_and_the_exit_code_tells_of_it() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |bytes| bytes.truncate(bytes.len() - 4096));
    for (command, shown) in SHOWN.into_iter().filter(|(_, shown)| !shown.contains("uncounted")) {
        let ran = run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path()));

        assert_eq!(ran.code, Some(2), "{command}: {ran:?}");
        let shown = shown.replace("events are missing", "4096 of 12288 bytes of CPU 0 are missing");
        assert!(ran.stdout.contains(&shown), "{command}: {ran:?}");
        let said = ran.stderr.matches("4096 of 12288 bytes of CPU 0 are missing").count();
        assert_eq!(said, 1, "{command}: {}", ran.stderr);
    }
}

#[test]
fn damage_of_each_input_is_named() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |bytes| bytes.truncate(bytes.len() - 4096));
    fs::rename(dir.path().join("t.dat"), dir.path().join("u.dat")).unwrap();
    fs::remove_dir_all(dir.path().join("S")).unwrap();
    make(dir.path(), |bytes| bytes.truncate(bytes.len() - 2 * 4096));

    let ran = run(HYPERTRACE.command(["info", "t.dat", "u.dat", "S"]).current_dir(dir.path()));

    assert_eq!(ran.code, Some(2), "{ran:?}");
    for part in ["t.dat: cut at", "u.dat: cut at", "S/kernel.dat: cut at"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn a_file_without_what_is_asked_for_is_named() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |_| ());
    for command in [
        "regions t.dat",
        "export t.dat --to perfetto -o P",
        "export t.dat --to otlp -o O",
        "export t.dat --to uftrace -o U",
        "compare t.dat --with t.dat",
    ] {
        let said = run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path())).failed(2);
        assert!(said.contains("t.dat: "), "{command}: {said}");
    }
}

#[test]
fn a_link_that_is_given_has_its_own_name() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |bytes| bytes.truncate(bytes.len() - 4096));
    symlink("t.dat", dir.path().join("link")).unwrap();
    fs::write(dir.path().join("text"), "text").unwrap();
    symlink("text", dir.path().join("words")).unwrap();
    for (command, name) in [
        ("report link", "link: cut at"),
        ("info link", "link: cut at"),
        ("info --events words", "words: neither a program"),
        ("report words", "words: not a trace.dat"),
    ] {
        let said = run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path()));
        assert_eq!(said.code, Some(2), "{said:?}");
        let line = said.stderr.lines().last().unwrap();
        assert!(line.starts_with(&format!("hypertrace: {name}")), "{}", said.stderr);
    }
}

#[test]
fn an_input_that_cannot_be_one_is_wrong_usage_in_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    symlink("loop", path("loop")).unwrap();
    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("text"), "text").unwrap();
    let long = "x".repeat(5_000);
    let inputs = [
        "loop",
        "loop/S",
        "pipe",
        "socket",
        "/dev/null",
        "folder",
        "text",
        "text/S",
        "gone",
        &long,
    ];
    for command in [
        "report INPUT",
        "report INPUT --follow",
        "info INPUT",
        "info --events INPUT",
        "info --names INPUT",
        "regions INPUT",
        "functions INPUT",
        "functions text --symbols INPUT",
        "compare INPUT --with INPUT",
        "export INPUT --to json -o -",
        "export INPUT --to trace-dat -o K",
        "recover INPUT R",
        "ctl -d INPUT status",
    ] {
        for input in inputs {
            let words = command.split(' ').map(|word| if word == "INPUT" { input } else { word });
            let ran = run(HYPERTRACE.command(words).current_dir(dir.path()));

            assert_eq!(ran.code, Some(2), "{command} {input:.20}: {:.1000}", ran.stderr);
        }
    }
}

#[test]
fn a_long_text_of_a_file_is_one_short_line_in_a_message() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), |_| ());
    let trace = data::write(dir.path());
    fs::rename(trace, dir.path().join("F")).unwrap();
    fs::create_dir(dir.path().join("A")).unwrap();
    for text in ["x", "\n", "\u{1b}", "\u{202e}"].map(|text| text.repeat(100_000)) {
        let json = |key: &str| serde_json::json!({ key: text }).to_string();
        for (file, contents, command) in [
            ("S/session.json", json("format"), "report S"),
            ("S/session.json", json("version"), "info S"),
            ("S/classes.jsonl", json("event"), "report S"),
            ("S/classes.jsonl", json(&text), "info --names S"),
            (
                "S/classes.jsonl",
                serde_json::json!({"event":{"id":99,"schema":text}}).to_string(),
                "regions S",
            ),
            ("F/hypertrace.json", json("format"), "functions F"),
            ("F/hypertrace.json", json("version"), "report F"),
            ("A/run.json", json("version"), "compare A --with A"),
        ] {
            let path = dir.path().join(file);
            let whole = fs::read(&path).unwrap_or_default();
            fs::write(&path, contents + "\n").unwrap();

            let said =
                run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path())).failed(2);

            assert!(
                said.contains(file) && said.len() < 16_000,
                "{} bytes: {said:.300}",
                said.len()
            );
            fs::write(&path, whole).unwrap();
        }
    }
}

/// Makes a damaged function trace `F`: one file of symbols is a link, and one file of records is cut.
fn damaged_functions(folder: &Path) {
    let path = data::write(folder);
    fs::remove_file(path.join("kernel.sym")).unwrap();
    symlink("program.sym", path.join("kernel.sym")).unwrap();
    let records = fs::read(path.join("103.dat")).unwrap();
    fs::write(path.join("103.dat"), &records[..records.len() - 5]).unwrap();
    fs::rename(path, folder.join("F")).unwrap();
}

#[test]
fn damage_of_a_function_trace_is_named_in_every_command() {
    let dir = tempfile::tempdir().unwrap();
    damaged_functions(dir.path());
    for (command, shown) in [
        ("functions F", " main"),
        ("functions F --json", "\"main\""),
        ("functions F --flame f.svg", ""),
        ("report F", "main"),
        ("export F --to json -o -", "main"),
        ("export F --to uftrace -o U", ""),
    ] {
        let ran = run(HYPERTRACE.command(command.split(' ')).current_dir(dir.path()));

        assert_eq!(ran.code, Some(2), "{command}: {ran:?}");
        assert!(ran.stdout.contains(shown), "{command}: {ran:?}");
        for part in [
            "F/kernel.sym: it is a link, not a regular file",
            "F/103.dat: damaged at byte 144: the file ends within a record",
        ] {
            assert!(ran.stderr.contains(part), "{command}: {part}: {}", ran.stderr);
        }
    }
}
