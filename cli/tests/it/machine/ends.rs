//! A guest of KVM that loses its programs, its kernel or QEMU in the middle of a trace, or that is restored
//! to an earlier state.

use super::{COMMANDED, FILE, HYPERTRACE, kvm_guest, program, run};
use crate::linux_deaths::check_kills;
use crate::linux_guest::check_numbers;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::Machine;
use hypertrace_tests::serve::device_at;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Number of events and points of each of four threads of a program that runs for some seconds.
const EVENTS: u64 = 200_000;
const POINTS: u64 = 2_000;
/// Number of events of all threads. When `SOME` events are recorded, each thread has made some events, and
/// the program has run about half of its work.
const SOME: u64 = 40_000;

/// For each lease and thread, ranges of the numbers `n` of the recorded events. Between two ranges, events
/// are missing.
type Stretches = BTreeMap<(String, u64, u64), Vec<Range<u64>>>;

/// Returns which of the program's events `step` were recorded.
#[track_caller]
fn stretches(session: &Path) -> Stretches {
    let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
    let mut found = Stretches::new();
    HYPERTRACE.report_each(session, |line| match line.event.as_str() {
        "lease" => drop(tokens.insert(line.source.clone(), line.number("token").unwrap())),
        "step" => {
            let (thread, n) = (line.number("thread").unwrap(), line.number("n").unwrap());
            let of = found.entry((line.source.clone(), tokens[&line.source], thread)).or_default();
            match of.last_mut() {
                Some(last) if last.end == n => last.end += 1,
                _ => of.push(n..n + 1),
            }
        }
        _ => {}
    });
    found
}

/// Command that notes the TSC offsets of a VM's CPUs.
const NOTE: &str = "cat /sys/kernel/debug/kvm/*-*/vcpu*/tsc-offset >$shared/offsets";

/// Asserts that the session in a folder has ended, with nothing lost.
#[track_caller]
fn check_total(shared: &Path) {
    let stat = HYPERTRACE.info(&shared.join("S"));
    assert_eq!(
        (&stat["total"]["lost"], &stat["unusable_reference_points"]),
        (&json!(0), &json!(0))
    );
    // The CPUs of a restored VM may disagree about the time, because a slow machine may set the TSC of one
    // CPU a second after the TSC of another CPU.
    let offsets = fs::read_to_string(shared.join("offsets")).unwrap_or_default();
    let offsets: BTreeSet<&str> = offsets.lines().collect();
    let allowed: &[&str] = if offsets.len() > 1 { &["time_backwards", "time_future"] } else { &[] };
    let faults = stat["total"]["faults"].as_object().unwrap();
    assert!(faults.keys().all(|name| allowed.contains(&&**name)), "{offsets:?}: {stat}");
}

/// Asserts that a guest with this device reboots in mid-trace. Asserts also that a server with these options
/// records the first events of each boot without a gap, and each event once.
#[track_caller]
fn check_reboots(served: &str, device: &[&str]) {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = [device, &["-action", "reboot=reset"]].concat();
    let qemu = kvm_guest(&linux, folder.path(), &device, &[program()], COMMANDED);

    // The guest reboots by itself, and then QEMU resets the guest without the guest's knowledge.
    let (console, shared) = run(
        machine,
        &format!(
            "serve {served}; boot {qemu}; ready
            guest 'program {EVENTS} {POINTS} &'; more {SOME}; echo 'reboot -f' >&3; ready
            guest 'program {EVENTS} {POINTS} &'; more {SOME}; monitor system_reset; ready
            guest 'program {EVENTS} {POINTS}' || exit; off; end $server serve"
        ),
    );

    assert_eq!(console.matches("failed: 0").count(), 1, "{console}");
    let session = shared.join("S");
    check_total(&shared);
    let found = stretches(&session);
    assert_eq!(found.len(), 12, "{found:?}");
    let mut complete = 0;
    for of in found.values() {
        let [Range { start: 0, end }] = of[..] else { panic!("{found:?}") };
        complete += u64::from(end == EVENTS);
        assert!(end > 0, "{found:?}");
    }
    assert_eq!(complete, 4, "{found:?}");
    let clocks = HYPERTRACE.info(&session)["clocks"].as_array().unwrap().len();
    assert_eq!(clocks, 3, "each boot has a clock of its own");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn reboots_in_mid_trace_cut_no_event_and_repeat_none_by_a_shared_file() {
    check_reboots("--file /dev/shm/guest", &FILE);
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn reboots_in_mid_trace_cut_no_event_and_repeat_none_by_vfio_user() {
    let device = device_at("socket");
    check_reboots("--socket socket", &device.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Writes a qcow2 image that has room for a snapshot, and no sectors of its own.
pub fn write_image(path: &Path) {
    const CLUSTER: usize = 1 << 16;
    let mut image = vec![0; 4 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &2u32.to_be_bytes());
    put(20, &16u32.to_be_bytes()); // bits of a cluster's size
    put(24, &(1u64 << 20).to_be_bytes()); // size of the disk
    put(36, &1u32.to_be_bytes()); // entries of the table at..
    put(40, &(3 * CLUSTER as u64).to_be_bytes());
    put(48, &(CLUSTER as u64).to_be_bytes()); // table of blocks of reference counts
    put(56, &1u32.to_be_bytes()); // clusters of it
    put(CLUSTER, &(2 * CLUSTER as u64).to_be_bytes());
    (0..4).for_each(|cluster| put(2 * CLUSTER + 2 * cluster, &1u16.to_be_bytes()));
    fs::write(path, image).unwrap();
}

/// Options for a shared file whose contents are a part of a VM's state.
pub const SAVED: [&str; 6] =
    ["-m", "256M", FILE[0], FILE[1], FILE[2], "ivshmem-plain,memdev=ht,master=on"];

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_that_goes_back_to_a_snapshot_continues_with_the_events_that_it_makes_again() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    write_image(&image);
    let device = [&SAVED[..], &["-drive", "if=none,format=qcow2,file=image"]].concat();
    let qemu = kvm_guest(&linux, folder.path(), &device, &[program()], COMMANDED);

    // While the VM is stopped, the server reads all of the VM's rings.
    let (console, shared) = run(
        machine,
        &format!(
            "cp {} image; serve --file /dev/shm/guest; boot {qemu}; ready
            guest 'program {EVENTS} {POINTS} &'; more {SOME}
            monitor stop; sleep 2; cp -r S $shared/saved; monitor 'savevm a'; monitor cont
            more {SOME}
            monitor stop; sleep 2; cp -r S $shared/left; monitor 'loadvm a'; {NOTE}; monitor cont
            guest wait; off; end $server serve",
            image.display()
        ),
    );

    assert!(console.contains("failed: 0"), "{console}");
    check_total(&shared);
    let [saved, left, found] = ["saved", "left", "S"].map(|name| stretches(&shared.join(name)));
    assert_eq!([saved.len(), left.len(), found.len()], [4; 3], "{saved:?} {left:?} {found:?}");
    for (of, found) in &found {
        let ([saved], [left]) = (&saved[of][..], &left[of][..]) else {
            panic!("{saved:?} {left:?}")
        };
        let before = saved.start == 0 && saved.end < left.end;
        assert!(before, "{saved:?} {left:?}");
        assert_eq!(found, &[0..left.end, saved.end..EVENTS]);
    }
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_that_goes_back_to_a_snapshot_loses_the_device_by_vfio_user_and_is_told_so() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    write_image(&image);
    let device = device_at("socket");
    let device = device.iter().map(String::as_str).collect::<Vec<_>>();
    let device = [&device[..], &["-drive", "if=none,format=qcow2,file=image"]].concat();
    let qemu = kvm_guest(&linux, folder.path(), &device, &[program()], COMMANDED);

    let (console, shared) = run(
        machine,
        &format!(
            "cp {} image; serve --socket socket; boot {qemu}; ready
            guest '{{ program {EVENTS} {POINTS}; echo \"ended: $?\"; }} &'; more {SOME}
            monitor stop; sleep 2; cp -r S $shared/saved; monitor 'savevm a'; monitor cont; more {SOME}
            monitor stop; sleep 2; cp -r S $shared/left; monitor 'loadvm a'; monitor cont
            guest wait; off; end $server serve; cp serve $shared/",
            image.display()
        ),
    );

    // The device's memory is gone, and KVM does not emulate all instructions by which the program accesses
    // this memory.
    assert!(console.contains("ended: ") && !console.contains("ended: 0"), "{console}");
    let said = fs::read_to_string(shared.join("serve")).unwrap();
    assert!(
        said.contains("If loadvm brought the guest back, the guest has lost the device"),
        "{said}"
    );
    let [saved, left, found] = ["saved", "left", "S"].map(|name| stretches(&shared.join(name)));
    assert_eq!((saved.len(), &found), (4, &left), "{saved:?}");
    for (of, left) in &left {
        let ([saved], [left]) = (&saved[of][..], &left[..]) else { panic!("{saved:?} {left:?}") };
        assert!(saved.start == 0 && left.start == 0 && saved.end < left.end, "{saved:?} {left:?}");
    }
    assert_eq!(HYPERTRACE.info(&shared.join("S"))["device"]["reset_leased"], 1);
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_that_continues_in_another_qemu_has_each_event_once() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let qemu = kvm_guest(&linux, folder.path(), &SAVED, &[program()], COMMANDED);

    let (console, shared) = run(
        machine,
        &format!(
            "serve --file /dev/shm/guest; boot {qemu}; ready
            guest 'program {EVENTS} {POINTS} &'; more {SOME}
            monitor stop; cp -r S $shared/left; monitor 'migrate file:state'; echo quit >&5; wait $qemu
            boot {qemu} -incoming file:state
            until monitor 'info status'; grep -q 'VM status: running' $shared/monitor; do monitor cont; done; {NOTE}
            guest wait; off; end $server serve"
        ),
    );

    assert_eq!(console.matches("failed: 0").count(), 1, "{console}");
    let left = stretches(&shared.join("left"));
    let is_between = |of: &Vec<Range<u64>>| of[0].end < EVENTS;
    assert!(left.len() == 4 && left.values().all(is_between), "{left:?}");
    let session = shared.join("S");
    check_total(&shared);
    check_numbers(&session, EVENTS, POINTS);
    let total = &HYPERTRACE.info(&session)["total"];
    let expected = [4 * EVENTS, 4 * 2 * POINTS].map(Value::from);
    assert_eq!(["events", "reference_points"].map(|name| total[name].clone()), expected, "{total}");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn killed_programs_of_a_guest_lose_nothing_else() {
    let (batches, children) = (20, 10);
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let deaths = static_program("hypertrace-linux-guest").with_file_name("deaths");
    let script = format!("deaths kills {batches} {children}");
    let files = [("deaths".to_owned(), deaths)];
    let qemu = kvm_guest(&linux, folder.path(), &FILE, &files, &script);

    let (console, shared) =
        run(machine, &format!("serve --file /dev/shm/guest; linux {qemu}; end $server serve"));

    assert!(console.contains(&format!("killed: {}", batches * children)), "{console}");
    let session = shared.join("S");
    check_total(&shared);
    check_kills(&session, batches, children);
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_vm_outlives_the_end_of_its_server_by_vfio_user() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = device_at("socket");
    let device = device.iter().map(String::as_str).collect::<Vec<_>>();
    let qemu = kvm_guest(&linux, folder.path(), &device, &[program()], COMMANDED);

    let (console, shared) = run(
        machine,
        &format!(
            "serve --socket socket; boot {qemu}; ready
            guest 'program {EVENTS} {POINTS} &'; more {SOME}; end $server serve
            await $shared/console 'Unable to write to socket: Broken pipe' $qemu
            guest 'kill %1; wait; echo alive' || exit; monitor 'info status'; off"
        ),
    );

    assert!(console.contains("alive"), "{console}");
    let session = shared.join("S");
    assert_eq!(HYPERTRACE.info(&session)["finished"], true);
    let found = stretches(&session);
    let is_beginning =
        |of: &Vec<Range<u64>>| matches!(of[..], [Range { start: 0, end }] if end > 0);
    assert!(found.len() == 4 && found.values().all(is_beginning), "{found:?}");
    Linux::used();
}
