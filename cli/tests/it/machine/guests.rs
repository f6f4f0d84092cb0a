//! A Linux guest of KVM in a stock QEMU, once for each way in which the guest reaches the host. The guest's
//! kernel is recorded, too.

use super::{FILE, HYPERTRACE, json, kvm_guest, program, run};
use crate::linux_guest::check_numbers;
use crate::linux_guest_kernel::{ROUNDS, check_cpus, check_regions_by_both, recorder};
use crate::linux_module::{check_contexts, check_panic};
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::linux_module::Module;
use hypertrace_tests::machine::Machine;
use hypertrace_tests::serve::device_at;
use hypertrace_tests::{c, interface_2016};
use serde_json::json;
use std::path::Path;

/// Events and points of each of four threads.
const EVENTS: u64 = 50_000;
const POINTS: u64 = 50;

/// Asserts that a session has all events of one run of the program, and lost nothing.
#[track_caller]
fn check_session(session: &Path) {
    let stat = HYPERTRACE.info(session);
    assert_eq!((&stat["total"]["lost"], &stat["total"]["faults"]), (&json!(0), &json!({})));
    assert_eq!((&stat["finished"], &stat["unusable_reference_points"]), (&json!(true), &json!(0)));
    check_numbers(session, EVENTS, POINTS);
}

/// Asserts that the host's kernel recorded entries to guests in this session, and as many exits.
#[track_caller]
fn check_host(shared: &Path) {
    let names = json(&shared.join("names"));
    let names = names["events"].as_array().unwrap();
    let count = |name: &str| {
        let event = names.iter().find(|event| event["name"] == name);
        event.unwrap_or_else(|| panic!("no {name}: {names:?}"))["count"].as_u64().unwrap()
    };
    let (entries, exits) = (count("kvm:kvm_entry"), count("kvm:kvm_exit"));
    assert!(entries == exits && exits > 1_000, "{entries} entries, {exits} exits");
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_stands_beside_its_kernel_and_the_hosts_by_a_shared_file() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let regions =
        static_program("hypertrace-linux-guest").with_file_name("hypertrace-linux-regions");
    let files = [vec![program(), ("regions".into(), regions)], recorder()].concat();
    let script = format!(
        "hypertrace forward program {EVENTS} {POINTS}; echo \"ended: $?\"
        hypertrace forward regions {ROUNDS}; echo \"ended: $?\""
    );
    let qemu = kvm_guest(&linux, folder.path(), &FILE, &files, &script);

    let (console, shared) = run(
        machine,
        &format!(
            "serve --file /dev/shm/guest; host; linux {qemu}
            end $host host; end $server serve; cp host $shared/; $H info --names S --json >$shared/names"
        ),
    );

    assert_eq!(console.matches("ended: 0").count(), 2, "{console}");
    assert!(console.contains("failed: 0"), "{console}");
    let said = std::fs::read_to_string(shared.join("host")).unwrap();
    assert!(said.contains("(by tracefs) in S/kernel.dat, none lost"), "{said}");
    let session = shared.join("S");
    check_session(&session);
    let stat = HYPERTRACE.info(&session);
    let kernels = stat["guest_kernels"].as_array().unwrap();
    let cpus: Vec<_> = kernels.iter().flat_map(|of| of["cpus"].as_array().unwrap()).collect();
    assert_eq!((kernels.len(), cpus.len()), (2, 4), "{stat}");
    assert!(cpus.iter().all(|cpu| cpu["events"] != 0 && cpu["lost"] == 0), "{stat}");
    check_cpus(&session, 2 * EVENTS);
    check_host(&shared);
    check_regions_by_both(&session);
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_stands_beside_its_kernel_by_vfio_user() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = [vec![program()], recorder()].concat();
    let script = format!("hypertrace forward program {EVENTS} {POINTS}; echo \"ended: $?\"");
    let device = device_at("socket");
    let device = device.iter().map(String::as_str).collect::<Vec<_>>();
    let qemu = kvm_guest(&linux, folder.path(), &device, &files, &script);

    let (console, shared) =
        run(machine, &format!("serve --socket socket; linux {qemu}; end $server serve"));

    assert!(console.contains("failed: 0") && console.contains("ended: 0"), "{console}");
    let session = shared.join("S");
    check_session(&session);
    check_cpus(&session, 2 * EVENTS);
    Linux::used();
}

/// Runs programs in a guest with the module and this device, and then makes the guest's kernel panic. `serve`
/// serves the device.
#[track_caller]
fn check_module(served: &str, device: &[&str]) {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = [&[program()], &module.files()[..]].concat();
    // The console could mix the kernel's last words with output that is not written yet. A plain user runs
    // the program, because for root the library would take the device from sysfs if the module did not work.
    let script = format!(
        "insmod /hypertrace.ko events=sched:sched_switch; echo \"loaded: $?\"
        echo 'plain:x:1000:1000::/:/bin/sh' >/etc/passwd; chown plain /dev/hypertrace
        su -s /bin/sh plain -c 'program {EVENTS} {POINTS}'; echo \"ended: $?\"
        insmod /hypertrace_test.ko; echo \"tested: $?\"
        dmesg | grep -E 'hypertrace|BUG: |Oops|WARNING: CPU'
        sleep 3; echo c >/proc/sysrq-trigger"
    );
    let qemu = kvm_guest(&linux, folder.path(), device, &files, &script);

    let (console, shared) =
        run(machine, &format!("serve {served}; linux {qemu}; end $server serve"));

    let said = ["loaded: 0", "found Module(\"/dev/hypertrace\")", "ended: 0", "tested: 0"];
    assert!(said.iter().all(|text| console.contains(text)), "{console}");
    let (before, _) = console.split_once("sysrq: Trigger a crash").unwrap_or((&console, ""));
    assert!(
        ["BUG: ", "Oops", "WARNING: CPU"].iter().all(|wrong| !before.contains(wrong)),
        "{console}"
    );
    let session = shared.join("S");
    let stat = HYPERTRACE.info(&session);
    assert_eq!(stat["total"]["faults"], json!({}), "{stat}");
    check_numbers(&session, EVENTS, POINTS);
    let mut workers = 0;
    HYPERTRACE.report_each(&session, |line| {
        let next = line.fields.get("next_comm").and_then(|name| name.as_str());
        workers += u64::from(line.event == "sched_switch" && next == Some("worker0"));
    });
    assert_ne!(workers, 0);
    check_contexts(&session, &stat, &console);
    check_panic(&session);
    module.used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_plain_user_and_the_kernel_trace_by_the_module_and_a_shared_file() {
    check_module("--file /dev/shm/guest", &FILE);
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_plain_user_and_the_kernel_trace_by_the_module_and_vfio_user() {
    let device = device_at("socket");
    check_module("--socket socket", &device.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_program_of_2016_and_marks_of_a_shell_work_as_they_do_without_kvm() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let Some(compiler) = c::compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = c::source("tests/c/interface_2016.c");
    let legacy = compiler.program(&source, c::Linked::Static, folder.path());
    let files = [("legacy".into(), legacy), ("mark".into(), static_program("hypertrace-mark"))];
    let script = "mark --begin boot; mark --sync point; mark --end boot
        legacy - 3 200; echo \"legacy: $?\"";
    let device = device_at("socket");
    let device = device.iter().map(String::as_str).collect::<Vec<_>>();
    let qemu = kvm_guest(&linux, folder.path(), &device, &files, script);

    let (console, shared) = run(
        machine,
        &format!(
            "serve --socket socket --args 5 --ring 64K; linux {qemu}
            end $server serve"
        ),
    );

    let said = ["15 clients, 5 arguments", "legacy: 0"];
    assert!(said.iter().all(|text| console.contains(text)), "{console}");
    let session = shared.join("S");
    let stat = HYPERTRACE.info(&session);
    assert_eq!((&stat["total"]["lost"], &stat["total"]["faults"]), (&json!(0), &json!({})));
    interface_2016::check(&HYPERTRACE.report(&session), 3, 200, 5);
    assert_eq!(HYPERTRACE.regions(&session, &[]), [("boot".to_owned(), 1)]);
    Linux::used();
}
