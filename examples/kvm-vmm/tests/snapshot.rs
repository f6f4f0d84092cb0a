//! The program's own snapshots.

mod common;

use std::path::Path;
use std::process::{Command, Output};

fn kvm_vmm(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvm-vmm")).args(args).current_dir(dir).output().unwrap()
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
