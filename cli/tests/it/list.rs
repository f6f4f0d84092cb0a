//! `hypertrace list`: what can be recorded, and the names in a session.

use hypertrace_test_support::made::{BOOT, Made, OPENED, Packet, VCPU_EXIT};
use hypertrace_test_support::trace_dat::{Page, TraceDat, recorded};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::{c, capability};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Options of a program from which all goes that it does not use.
const SMALL: [&str; 4] = ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s"];
const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn the_names_of_a_session_are_those_that_other_commands_take() {
    let made = Made::new()
        .stream("host-0", &[Packet::host(0), Packet::host(0).event(5, VCPU_EXIT, &[1])])
        .stream("guest-0", &[Packet::guest(0), Packet::guest(0).event_str(7, OPENED, &[], b"x")])
        // Nobody had this client.
        .stream("guest-1", &[Packet::guest(1)]);
    let commands =
        ["list S", "list names S --json", "list events S", "list S/none", "list event S"];
    golden("names", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_damaged_session_has_names_and_the_damage_is_said() {
    // The event lacks its text.
    let made =
        Made::new().stream("guest-0", &[Packet::guest(0), Packet::guest(0).event(7, OPENED, &[])]);
    let ran = run(HYPERTRACE.command(["list"]).arg(made.path()));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stdout.contains("opened") && ran.stderr.contains("damaged at byte"), "{ran:?}");
}

#[test]
fn of_a_kernels_events_those_that_occur_are_listed_with_their_number() {
    let made = Made::of_boot(Some(BOOT));
    let page = Page::at(1_000_000).mmio(1_000, 43, 0x17).mmio(1_000, 43, 0x18);
    made.kernel(&TraceDat::new("x86-tsc").option(recorded(BOOT, 0)).cpu(&[page]));

    let json: Value = run(HYPERTRACE.command(["list", "--json"]).arg(made.path())).json();

    let events = json["events"].as_array().unwrap().iter();
    let of_kernel = events.filter(|event| event["name"].as_str().unwrap().contains(':'));
    let of_kernel = Vec::from_iter(of_kernel.map(|event| (&event["name"], &event["count"])));
    assert_eq!(of_kernel, [(&"kvm:kvm_mmio".into(), &2.into())]);
    // The columns are those of their fields.
    let csv = run(HYPERTRACE.command(["export", "--to", "csv", "-o", "-"]).arg(made.path())).ok();
    let header = csv.lines().next().unwrap();
    assert!(header.contains(",field_gpa,") && !header.contains("prev_pid"), "{header}");
}

#[test]
fn a_program_declares_the_events_of_its_trace_events_files() {
    // This command is itself a VMM.
    let program = env!("CARGO_BIN_EXE_hypertrace");
    let json: Value = HYPERTRACE.run(["list", "events", program, "--json"]).json();

    let names = json["events"].as_array().unwrap().iter();
    let names = Vec::from_iter(names.map(|event| event["name"].as_str().unwrap()));
    assert!(names.contains(&"vcpu_exit") && names.is_sorted(), "{names:?}");
    let none = HYPERTRACE.run(["list", "/bin/true"]).failed(2);
    assert!(none.contains("declares no event"), "{none}");
    let none = HYPERTRACE.run(["list", "/etc/passwd"]).failed(2);
    assert!(none.contains("neither a program"), "{none}");
}

#[test]
fn a_stripped_program_lists_the_events_of_its_macros() {
    let Some(strip) = capability::program("strip") else { return };
    let folder = tempfile::tempdir().unwrap();
    let stripped = folder.path().join("hypertrace");
    let mut strip = Command::new(strip);
    run(strip.arg("-o").arg(&stripped).arg(env!("CARGO_BIN_EXE_hypertrace"))).ok();

    let listed = run(HYPERTRACE.command(["list"]).arg(&stripped)).ok();

    capability::used("strip");
    for (name, fields) in [("batch_begin", "id"), ("cache_miss", "id address write")] {
        let is = |line: &str| Vec::from_iter(line.split_whitespace())[1..].join(" ");
        assert!(listed.lines().any(|line| is(line) == format!("{name} {fields}")), "{listed}");
    }
}

#[test]
fn a_c_program_lists_the_events_of_its_macros() {
    let folder = tempfile::tempdir().unwrap();
    for compiler in c::compilers().into_iter().chain(c::aarch64()) {
        for compiler in [compiler.plain(), compiler] {
            let compiler = compiler.with(&SMALL);
            let source = c::source("examples/c/events.c");
            let program = compiler.program(&source, c::Linked::Static, folder.path());

            let listed = run(HYPERTRACE.command(["list"]).arg(&program)).ok();

            golden("of_c", listed);
        }
    }
}

#[test]
fn notes_and_sections_of_hostile_sizes_are_refused() {
    let whole = fs::read(env!("CARGO_BIN_EXE_hypertrace")).unwrap();
    // The size of the owner's name, two numbers, and the name, which may also stand elsewhere.
    let is_note =
        |bytes: &[u8]| bytes[..4] == 11u32.to_le_bytes() && &bytes[12..] == b"hypertrace\0\0";
    let note = whole.windows(24).position(is_note).unwrap();
    let sections = u64::from_le_bytes(whole[0x28..0x30].try_into().unwrap()) as usize;
    let folder = tempfile::tempdir().unwrap();
    let refused = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        let path = folder.path().join("changed");
        fs::write(&path, changed).unwrap();
        // In 256 MiB of addresses, the program's own among them.
        let limited = "ulimit -v 262144; exec \"$0\" list \"$1\"";
        let mut command = Command::new("sh");
        run(command.args(["-c", limited, HYPERTRACE.0]).arg(&path)).failed(2)
    };
    for size in [u32::MAX, u32::MAX - 3, 1 << 20, 1 << 31] {
        // Of the owner, and of the text.
        for at in [note, note + 4] {
            let said = refused(at, &size.to_le_bytes());
            assert!(said.contains("its section .note.hypertrace is damaged"), "{said}");
        }
    }
    let count = u16::from_le_bytes(whole[0x3c..0x3e].try_into().unwrap());
    let offset = |index: u16| sections + 64 * usize::from(index) + 0x18;
    let is_of_notes = |index: &u16| whole[offset(*index)..][..8] == (note as u64).to_le_bytes();
    let section = (0..count).find(is_of_notes).unwrap();
    for value in [u64::MAX, 1 << 63, whole.len() as u64, 1 << 40] {
        // The offset and the size of the section, and the offset of all sections.
        for at in [offset(section), offset(section) + 8, 0x28] {
            refused(at, &value.to_le_bytes());
        }
    }
}

#[test]
fn the_kernels_events_are_as_record_takes_them() {
    let ran = HYPERTRACE.run(["list", "events", "--json"]);
    if ran.code == Some(1) {
        assert!(ran.stderr.contains("the kernel's tracing cannot be used"), "{}", ran.stderr);
        capability::missing("tracefs", ran.stderr);
        return;
    }
    let json: Value = ran.json();
    let events = json["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "sched:sched_switch"), "{json}");
    let dir = tempfile::tempdir().unwrap();
    let mut record = HYPERTRACE.command(["record", "-q", "-e", "sched:sched_switch", "true"]);
    assert_eq!(run(record.current_dir(dir.path())).code, Some(0));
    capability::used("tracefs");
}
