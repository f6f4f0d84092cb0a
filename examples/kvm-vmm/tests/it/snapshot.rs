//! The program's own snapshots.

use crate::common;
use std::path::Path;
use std::process::{Command, Output};

use hypertrace_trace::session_json::{GuestTscJson, SessionJson};

fn kvm_vmm(dir: &Path, args: &[&str]) -> Output {
    // The program is in the folder above this test's folder. In another machine, the path at build time does
    // not exist.
    let program = std::env::current_exe().unwrap().parent().unwrap().join("../kvm-vmm");
    Command::new(program).args(args).current_dir(dir).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the number of events in the session of a run, which must have lost no event.
#[track_caller]
fn events(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().and_then(|line| line.strip_suffix(" events, 0 lost"));
    line.and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{text}{}", stderr(output)))
}

#[test]
fn a_guest_that_was_saved_is_restored_by_another_process() {
    let Some(_machine) = common::machine(1) else { return };
    let dir = tempfile::tempdir().unwrap();

    // On a slow machine, the guest may have made no event after 3 ms.
    let times = ["3", "30", "300", "3000"].into_iter();
    let mut saved = times.map(|after| {
        let saved = kvm_vmm(dir.path(), &["--save", after, after, &format!("first-{after}"), "2"]);
        (after, events(&saved))
    });
    let (after, before) = saved.find(|(_, events)| *events > 1_000).expect("a guest that runs");
    let restored = events(&kvm_vmm(dir.path(), &["--restore", after, "second"]));

    // A guest that runs without a pause makes 100,000 events and 1,000 points on each vCPU, and causes events
    // of the VMM. Both sessions together must have as many events and points. Each session also has a few
    // events of its own, such as leases.
    assert!((206_017..206_100).contains(&(before + restored)), "{before} {restored}");
}

#[test]
fn a_restored_session_has_the_tsc_of_its_own_epoch() {
    let Some(_machine) = common::machine(1) else { return };
    let dir = tempfile::tempdir().unwrap();

    kvm_vmm(dir.path(), &["--save", "snapshot", "3", "first", "2"]);
    kvm_vmm(dir.path(), &["--restore", "snapshot", "second"]);

    let [first, second] = ["first", "second"].map(|name| -> SessionJson {
        let json = std::fs::read(dir.path().join(name).join("session.json")).unwrap();
        serde_json::from_slice(&json).unwrap()
    });
    // Before Linux 5.16, KVM does not tell the TSC's offset.
    for json in [first, second].iter().filter(|json| !json.guest_tscs.is_empty()) {
        let epoch = json.clocks.iter().map(|clock| clock.epoch).max();
        let is_its = |tsc: &GuestTscJson| Some(tsc.epoch) == epoch;
        assert!(json.guest_tscs.iter().all(is_its), "{:?}", json.guest_tscs);
    }
}

#[test]
fn a_snapshot_without_a_device_or_a_state_is_named() {
    let Some(_machine) = common::machine(1) else { return };
    let dir = tempfile::tempdir().unwrap();

    let none = kvm_vmm(dir.path(), &["--restore", "none", "out"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("none/state.json"), "{}", stderr(&none));

    assert!(kvm_vmm(dir.path(), &["--save", "snapshot", "3", "first"]).status.success());
    let path = dir.path().join("snapshot/state.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"block_bytes\":65536", "\"block_bytes\":4096", 1))
        .unwrap();
    let other = kvm_vmm(dir.path(), &["--restore", "snapshot", "other"]);
    let why = "the state is of a device whose block size is 4096, expected 65536";
    assert!(stderr(&other).contains(why), "{}", stderr(&other));
}
