//! `hypertrace info --names` and `--events`: the events that can be recorded, and the names in a session.

use hypertrace_test_support::made::{BOOT, Made, OPENED, Packet, VCPU_EXIT};
use hypertrace_test_support::trace_dat::{Page, TraceDat, recorded};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::{c, capability};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Compiler options with which a program loses everything that it does not use.
const SMALL: [&str; 4] = ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s"];
const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn the_names_of_a_session_are_those_that_other_commands_take() {
    let made = Made::new()
        .stream("host-0", &[Packet::host(0), Packet::host(0).event(5, VCPU_EXIT, &[1])])
        .stream("guest-0", &[Packet::guest(0), Packet::guest(0).event_str(7, OPENED, &[], b"x")])
        // Nobody leased this client.
        .stream("guest-1", &[Packet::guest(1)]);
    let commands =
        ["info --names S", "info --names S --json", "info --events S", "info --names S/none"];
    golden("names", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_damaged_session_has_names_and_the_damage_is_said() {
    // The event lacks its text.
    let made =
        Made::new().stream("guest-0", &[Packet::guest(0), Packet::guest(0).event(7, OPENED, &[])]);
    let ran = run(HYPERTRACE.command(["info", "--names"]).arg(made.path()));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stdout.contains("opened") && ran.stderr.contains("damaged at byte"), "{ran:?}");
}

#[test]
fn of_a_kernels_events_those_that_occur_are_listed_with_their_number() {
    let made = Made::of_boot(Some(BOOT));
    let page = Page::at(1_000_000).mmio(1_000, 43, 0x17).mmio(1_000, 43, 0x18);
    made.kernel(&TraceDat::new("x86-tsc").option(recorded(BOOT, 0)).cpu(&[page]));

    let json: Value =
        run(HYPERTRACE.command(["info", "--names", "--json"]).arg(made.path())).json();

    let events = json["events"].as_array().unwrap().iter();
    let of_kernel = events.filter(|event| event["name"].as_str().unwrap().contains(':'));
    let of_kernel = Vec::from_iter(of_kernel.map(|event| (&event["name"], &event["count"])));
    assert_eq!(of_kernel, [(&"kvm:kvm_mmio".into(), &2.into())]);
    // The columns of CSV are the fields of these events.
    let csv = run(HYPERTRACE.command(["export", "--to", "csv", "-o", "-"]).arg(made.path())).ok();
    let header = csv.lines().next().unwrap();
    assert!(header.contains(",field_gpa,") && !header.contains("prev_pid"), "{header}");
}

#[test]
fn a_program_declares_the_events_of_its_trace_events_files() {
    // The command `hypertrace` is itself a VMM, because of its demo.
    let program = env!("CARGO_BIN_EXE_hypertrace");
    let json: Value = HYPERTRACE.run(["info", "--events", program, "--json"]).json();

    let names = json["events"].as_array().unwrap().iter();
    let names = Vec::from_iter(names.map(|event| event["name"].as_str().unwrap()));
    assert!(names.contains(&"vcpu_exit") && names.is_sorted(), "{names:?}");
    let none = HYPERTRACE.run(["info", "--events", "/bin/true"]).failed(2);
    assert!(none.contains("declares no event"), "{none}");
    let none = HYPERTRACE.run(["info", "--events", "/etc/passwd"]).failed(2);
    assert!(none.contains("neither a program"), "{none}");
}

#[test]
fn a_stripped_program_lists_the_events_of_its_macros() {
    let Some(strip) = capability::program("strip") else { return };
    let folder = tempfile::tempdir().unwrap();
    let stripped = folder.path().join("hypertrace");
    let mut strip = Command::new(strip);
    run(strip.arg("-o").arg(&stripped).arg(env!("CARGO_BIN_EXE_hypertrace"))).ok();

    let listed = run(HYPERTRACE.command(["info", "--events"]).arg(&stripped)).ok();

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

            let listed = run(HYPERTRACE.command(["info", "--events"]).arg(&program)).ok();

            golden("of_c", listed);
        }
    }
}

#[test]
fn notes_and_sections_of_hostile_sizes_are_refused() {
    let whole = fs::read(env!("CARGO_BIN_EXE_hypertrace")).unwrap();
    // A note begins with the size of the owner's name, two numbers and the name. The name may also stand
    // elsewhere.
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
        // The command has 256 MiB of addresses, including the program's own.
        let limited = "ulimit -v 262144; exec \"$0\" info --events \"$1\"";
        let mut command = Command::new("sh");
        run(command.args(["-c", limited, HYPERTRACE.0]).arg(&path)).failed(2)
    };
    for size in [u32::MAX, u32::MAX - 3, 1 << 20, 1 << 31] {
        // The size of the owner's name, and the size of the text.
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

/// Returns an ELF program that has only a section of notes and the table of sections. The header states the
/// number `sections` in the size of the first section.
fn program(notes: &[u8], sections: u64) -> Vec<u8> {
    let names = b"\0.note.hypertrace\0.shstrtab\0";
    let (notes_at, names_at) = (64, 64 + notes.len() as u64);
    let table = (names_at + names.len() as u64).next_multiple_of(8);
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // An executable for x86-64, of version 1.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    elf.extend([0_u64, 0, table].iter().flat_map(|word| word.to_le_bytes()));
    // Sizes: of this header, of a segment's header, of a section's header. The number of sections is in the
    // first section.
    elf.extend([0, 0, 64, 56, 0, 64, 0, 2].map(u16::to_le_bytes).concat());
    elf.extend(notes);
    elf.extend(names);
    elf.resize(table as usize, 0);
    let section = |name: u32, kind: u32, at: u64, size: u64| {
        let words = [0, 0, at, size, 0, 1, 0].map(u64::to_le_bytes).concat();
        [&name.to_le_bytes()[..], &kind.to_le_bytes(), &words].concat()
    };
    elf.extend(section(0, 0, 0, sections));
    elf.extend(section(1, 7, notes_at, notes.len() as u64));
    elf.extend(section(18, 3, names_at, names.len() as u64));
    elf
}

/// Returns a note of the library.
fn library_note(text: &str) -> Vec<u8> {
    let sizes = [11, text.len() as u32, 1].map(u32::to_le_bytes).concat();
    let mut note = [&sizes[..], b"hypertrace\0\0", text.as_bytes()].concat();
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

#[test]
fn programs_of_hostile_contents_are_refused_in_little_memory_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let listed = |elf: &[u8], length: u64| {
        fs::write(&path, elf).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        // The command has 256 MiB of addresses and 20 s of a CPU, which is less than each of these files once
        // took.
        let limited = "ulimit -v 262144; ulimit -t 20; exec \"$0\" info --events \"$1\"";
        run(Command::new("sh").args(["-c", limited, HYPERTRACE.0]).arg(&path))
    };
    let whole = program(&library_note("opened(path:str,mode:u64)"), 3);
    let shown = listed(&whole, whole.len() as u64).ok();
    assert!(shown.contains("opened") && shown.contains("path:str mode:u64"), "{shown}");

    // In a sparse file of 64 GiB, the table of sections takes most of the space.
    let said = listed(&program(&library_note("opened()"), 1 << 30), 1 << 36).failed(2);
    assert!(said.contains("1,073,741,824 sections or segments, more than the 16,384"), "{said}");
    let fields = vec!["f"; 4 << 20].join(",");
    for notes in [
        library_note(&format!("one({})", &fields[..3 << 20])),
        library_note(&format!("one({})", &fields[..40])),
        library_note(&"n".repeat(3 << 20)),
    ] {
        let elf = program(&notes, 3);
        let said = listed(&elf, elf.len() as u64).failed(2);
        assert!(said.contains("its section .note.hypertrace is damaged"), "{said}");
    }
    let many = |count: usize| {
        let notes = (0..count).flat_map(|n| library_note(&format!("n{n}(a,b,c)")));
        let elf = program(&notes.collect::<Vec<_>>(), 3);
        listed(&elf, elf.len() as u64)
    };
    let said = many(300_000).failed(2);
    assert!(said.contains("its section .note.hypertrace has more than 4M"), "{said}");
    let said = many(16_385).failed(2);
    assert!(said.contains("it declares more than 16,384 events"), "{said}");
    assert!(many(16_384).ok().contains("n16383"));
}

#[test]
fn a_sparse_file_of_symbols_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let symbols = folder.path().join("symbols");
    fs::File::create(&symbols).unwrap().set_len(4 << 30).unwrap();
    let trace = hypertrace_test_support::functions::write(folder.path());
    let limited = "ulimit -v 262144; exec \"$0\" functions \"$1\" --symbols \"$2\"";

    let mut command = Command::new("sh");
    let ran = run(command.args(["-c", limited, HYPERTRACE.0]).arg(&trace).arg(&symbols));

    let said = ran.failed(2);
    assert!(said.contains("more than 1073741824 bytes"), "{said}");
}

#[test]
fn the_kernels_events_are_as_record_takes_them() {
    let ran = HYPERTRACE.run(["info", "--events", "--json"]);
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
