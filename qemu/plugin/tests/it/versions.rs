//! Tests of the versions of QEMU's plugin API. The tests load each of the two libraries into each emulator.

use crate::common;
use common::{Ran, Segment, capability, guests, library};
use hypertrace_qemu::api::library::{FROM_7, Library, TO_6};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Emulators of machines. Each entry has an emulator, the library that fits the emulator, and the version of
/// the API that this library requests.
const MACHINES: [(&str, Library, i32); 2] =
    [("qemu-system-x86_64", TO_6, 2), ("qemu-backports-system-x86_64", FROM_7, 7)];
/// Emulator of programs, with API 1.
const PROGRAMS: &str = "qemu-x86_64";
const PROBE: &str = "libhypertrace_qemu_probe.so";
/// Versions of the API that no emulator of `cargo xtask fetch` has.
const NOT_FETCHED: [(i32, &str); 2] = [(5, "qemu-api-5"), (6, "qemu-api-6")];

/// Start of the last 64 KiB below 4 GiB. After a reset, a CPU begins to execute 16 bytes before 4 GiB.
const BASE: u64 = 0xffff_0000;
/// 16-bit code of a machine, and its offset from [`BASE`].
const CODE: (usize, [u8; 27]) = (
    0xff00,
    [
        0xb0, 0x31, // ff00: mov $0x31, %al
        0xe8, 0x15, 0x00, // ff02: call ff1a
        // Sets the handler of interrupt 0 to f000:ff15. After a reset, the timer's interrupt has the number
        // 0.
        0xc7, 0x06, 0x00, 0x00, 0x15, 0xff, // ff05: movw $0xff15, 0
        0xc7, 0x06, 0x02, 0x00, 0x00, 0xf0, // ff0b: movw $0xf000, 2
        0xfb, // ff11: sti
        0xf4, // ff12: hlt
        0xeb, 0xfd, // ff13: jmp ff12
        0xe6, 0xf4, // ff15: out %al, $0xf4, which ends QEMU
        0xf4, // ff17: hlt
        0xeb, 0xfd, // ff18: jmp ff17
        0xc3, // ff1a: ret
    ],
);
/// jmp ff00
const RESET: (usize, [u8; 3]) = (0xfff0, [0xe9, 0x0d, 0xff]);
/// Exit status of QEMU after the code has stored 0x31 to the device isa-debug-exit.
const STATUS: i32 = 0x31 << 1 | 1;

/// Writes the machine's code as its firmware.
fn firmware(folder: &Path) -> PathBuf {
    let mut bytes = vec![0xf4; 1 << 16];
    bytes[CODE.0..][..CODE.1.len()].copy_from_slice(&CODE.1);
    bytes[RESET.0..][..RESET.1.len()].copy_from_slice(&RESET.1);
    let file = folder.join("firmware");
    std::fs::write(&file, bytes).unwrap();
    file
}

/// Returns the command of a machine that loads a plugin and runs the code.
fn machine(qemu: &Path, plugin: &Path, folder: &Path) -> Command {
    // `timeout` kills a machine that does not end.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120"]).arg(qemu);
    // The CPU `486` has no APIC. Firmware would have to set an APIC up for interrupts.
    command.args(["-accel", "tcg", "-M", "isapc", "-cpu", "486", "-m", "1", "-nodefaults"]);
    command.args(["-display", "none", "-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-bios"]);
    command.arg(firmware(folder)).args(["-d", "plugin", "-plugin"]).arg(plugin);
    command.env_remove("HYPERTRACE_SEGMENT");
    command
}

/// Runs a machine with the probe. The probe asks for this version of the API.
fn probed(qemu: &Path, version: i32, folder: &Path) -> Ran {
    let mut command = machine(qemu, &library(PROBE), folder);
    command.env("HYPERTRACE_PROBE_API", version.to_string()).output().unwrap().into()
}

#[track_caller]
fn has(ran: &Ran, lines: &[&str]) {
    for line in lines {
        assert!(ran.stderr.contains(line), "{line}: {}\n{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn the_code_of_a_machine_is_read_with_its_accesses_and_registers() {
    let mut seen = Vec::new();
    for (name, library, asked) in MACHINES {
        let Some(qemu) = capability::program(name) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let ran = probed(&qemu, asked, folder.path());
        assert_eq!(ran.code, Some(STATUS), "{name}: {ran:?}");
        let version = version_of(&ran);
        assert!(library.knows(version), "{name} has API {version}");
        let [reset, first, call, ret] = [0xfff0, 0xff00, 0xff02, 0xff1a].map(|at| BASE + at);
        has(
            &ran,
            &[
                "probe: machine x86_64 api",
                "probe: vcpu 0 registers [\"rax\", \"rsp\"]",
                &format!("probe: block Some({reset:x}) with cs Some(f000)\n"),
                &format!("probe: code {reset:#x} [e9, 0d, ff] mapped true"),
                &format!("probe: code {first:#x} [b0, 31] mapped true"),
                &format!("probe: executed {call:#x} on 0, rax and rsp Some([31, 0])\n"),
                &format!("probe: executed {ret:#x} on 0, rax and rsp Some([31, fffe])\n"),
                &format!("probe: store of {call:#x} on 0 at 0xfffe: Some(ff05)\n"),
                &format!("probe: load of {ret:#x} on 0 at 0xfffe: Some(ff05)\n"),
                "logged: end blocks ",
            ],
        );
        assert_eq!(number(&ran, "started"), 1, "{name}: {ran:?}");
        // The code waited for the timer, so the CPU became idle and was resumed.
        for name in ["blocks", "idle", "resumed"] {
            assert!(number(&ran, name) > 0, "{name}: {ran:?}");
        }
        seen.push(version);
        capability::used(name);
    }
    for (version, name) in NOT_FETCHED {
        if seen.contains(&version) {
            capability::used(name);
        } else {
            capability::missing(name, "no emulator with it was tried: compiled, not run");
        }
    }
}

/// Returns the version that the probe printed.
#[track_caller]
fn version_of(ran: &Ran) -> i32 {
    number(ran, "api") as i32
}

/// Returns the number after this word in the probe's output.
#[track_caller]
fn number(ran: &Ran, word: &str) -> u64 {
    let lines = ran.stderr.lines().filter(|line| line.starts_with("probe: "));
    let mut words = lines.flat_map(str::split_ascii_whitespace);
    words.find(|&found| found == word).unwrap_or_else(|| panic!("{word}: {ran:?}"));
    words.next().unwrap().parse().unwrap()
}

#[test]
fn the_code_of_a_program_is_read_with_api_1() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = guests(folder.path()).into_iter().find(|guest| guest.is_x86_64()) else {
        return;
    };
    let segment = Segment::new(1);
    let mut command = Command::new(&guest.qemu);
    command.args(["-d", "plugin", "-plugin"]).arg(library(PROBE)).arg(&guest.program);
    command.args(["crowd", "2"]);
    command.env("HYPERTRACE_PROBE_API", "1").env("HYPERTRACE_SEGMENT", segment.path());

    let ran: Ran = command.output().unwrap().into();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    // This version has neither registers nor values.
    has(
        &ran,
        &[
            "probe: program x86_64 api 1\n",
            "probe: vcpu 0 registers []\n",
            " on 0, rax and rsp None\n",
            " with cs None\n",
            " mapped true\n",
            "logged: end blocks ",
        ],
    );
    assert_eq!(number(&ran, "started"), 3, "{ran:?}");
    assert!(number(&ran, "ended") >= 2, "{ran:?}");
    // When a second thread starts, QEMU drops the code that it has translated, and translates the program
    // again.
    assert!(number(&ran, "flushed") > 0, "{ran:?}");
    let is_access = |line: &&str| line.contains(" of 0x");
    let accesses: Vec<&str> = ran.stderr.lines().filter(is_access).collect();
    assert!(accesses.iter().all(|line| line.ends_with(": None")), "{accesses:?}");
    for kind in ["probe: load of ", "probe: store of "] {
        assert!(accesses.iter().any(|line| line.starts_with(kind)), "{accesses:?}");
    }
    capability::used(PROGRAMS);
}

#[test]
fn a_whole_machine_is_refused_with_the_reason() {
    for (name, its_own, _) in MACHINES {
        let Some(qemu) = capability::program(name) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let segment = Segment::new(1);
        let mut command = machine(&qemu, &library(its_own.file), folder.path());

        let ran: Ran = command.env("HYPERTRACE_SEGMENT", segment.path()).output().unwrap().into();

        assert_eq!(ran.code, Some(1), "{name}: {ran:?}");
        let reason = "hypertrace plugin: this is qemu-system-x86_64: the plugin is for programs \
                      under qemu-x86_64; a whole machine has the device, and functions=DIR traces its functions\n";
        has(&ran, &[reason, "qemu_plugin_install returned error code 1"]);
        assert!(!ran.stderr.contains("refuses"), "{name}: {ran:?}");
        capability::used(name);
    }
}

#[test]
fn a_library_for_other_qemu_is_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (name, its_own, _) in MACHINES {
        let Some(qemu) = capability::program(name) else { continue };
        let other = if its_own == TO_6 { FROM_7 } else { TO_6 };
        wrong.push((name, other, machine(&qemu, &library(other.file), folder.path())));
    }
    if let Some(qemu) = capability::program(PROGRAMS) {
        let mut command = Command::new(qemu);
        command.arg("-plugin").arg(library(FROM_7.file)).arg("/bin/true");
        wrong.push((PROGRAMS, FROM_7, command));
    }
    for (name, other, mut command) in wrong {
        let ran: Ran = command.output().unwrap().into();

        assert_eq!(ran.code, Some(1), "{name}: {ran:?}");
        // Some emulators first print their own message, and unload the plugin only when they exit.
        let (ours, qemus): (Vec<&str>, Vec<&str>) =
            ran.stderr.lines().partition(|line| line.starts_with("hypertrace plugin: "));
        let ([ours], [qemus]) = (&ours[..], &qemus[..]) else { panic!("{name}: {ran:?}") };
        let refused = format!("hypertrace plugin: this QEMU refuses {}, which is for ", other.file);
        assert!(ours.starts_with(&refused), "{name}: {ours}");
        let its_own = if other == TO_6 { FROM_7 } else { TO_6 };
        assert!(ours.ends_with(&its_own.to_string()), "{name}: {ours}");
        assert!(qemus.contains("plugin requires API version"), "{name}: {qemus}");
        capability::used(name);
    }
}
