//! The program's own snapshots.

use crate::common;
use std::path::Path;
use std::process::{Command, Output};

use hypertrace_trace::session_json::{GuestTscJson, SessionJson};

fn kvm_vmm(dir: &Path, args: &[&str]) -> Output {
    // Cargo puts it there. In another machine, the path of the build is none.
    let program = std::env::current_exe().unwrap().parent().unwrap().join("../kvm-vmm");
    Command::new(program).args(args).current_dir(dir).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_guest_that_was_saved_is_restored_by_another_process() {
    let Some(_machine) = common::machine(1) else { return };
    let dir = tempfile::tempdir().unwrap();

    let saved = kvm_vmm(dir.path(), &["--save", "snapshot", "3", "first", "2"]);
    let restored = kvm_vmm(dir.path(), &["--restore", "snapshot", "second"]);

    assert!(saved.status.success(), "{}", stderr(&saved));
    assert!(restored.status.success(), "{}", stderr(&restored));
    for out in [saved, restored] {
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.ends_with(" events, 0 lost\n"), "{text}");
    }
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
    // Before Linux 5.16, KVM does not say it.
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
