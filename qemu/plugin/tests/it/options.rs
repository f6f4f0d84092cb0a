//! Tests of the plugin's messages when the plugin cannot work, and a test that the plugin uses no signals.

use crate::common;
use common::{Guest, Ran, Segment, capability, guests, plugin};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a guest. One guest is enough to test refusals.
fn guest(folder: &Path) -> Option<Guest> {
    guests(folder).into_iter().next()
}

/// Starts the guest with these options of the plugin, and asserts that the plugin refuses them. Returns the
/// plugin's message.
#[track_caller]
fn refused(guest: &Guest, options: &str, environment: Option<&str>) -> String {
    let mut command = Command::new(&guest.qemu);
    command.arg("-plugin").arg(format!("{}{options}", plugin().display()));
    command.arg(&guest.program).arg("kick").env_remove("HYPERTRACE_SEGMENT");
    let ran: Ran =
        command.envs(environment.map(|path| ("HYPERTRACE_SEGMENT", path))).output().unwrap().into();
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let [ours, qemus] = lines[..] else { panic!("{ran:?}") };
    assert!(qemus.contains("qemu_plugin_install returned error code 1"), "{qemus}");
    ours.strip_prefix("hypertrace plugin: ").expect(ours).to_owned()
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    path
}

#[test]
fn wrong_and_missing_options_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = guest(folder.path()) else { return };
    let told = refused(&guest, "", None);
    assert!(told.starts_with("no segment: start the program by `hypertrace record"), "{told}");
    assert_eq!(refused(&guest, "", Some("")), told);
    let told = refused(&guest, ",segment=", None);
    assert_eq!(told, "unknown option \"segment=\"; there are segment=PATH and functions=DIR");
    let told = refused(&guest, ",colour=blue", None);
    assert_eq!(told, "unknown option \"colour=blue\"; there are segment=PATH and functions=DIR");
    let told = refused(&guest, ",segment=/nowhere/at/all", None);
    assert_eq!(
        told,
        "cannot open the segment /nowhere/at/all: No such file or directory (os error 2)"
    );
    // An option takes precedence over the environment.
    let segment = Segment::new(1);
    assert!(refused(&guest, ",segment=/nowhere", Some(&segment.path())).contains("/nowhere"));
}

#[test]
fn files_that_are_no_segment_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let Some(guest) = guest(folder.path()) else { return };
    let told = |path: &Path| refused(&guest, &format!(",segment={}", path.display()), None);
    let short = told(&file(folder.path(), "short", b"x"));
    assert!(short.ends_with("it has 1 bytes and no room for a config page"), "{short}");
    let zeros = told(&file(folder.path(), "zeros", &[0; 1 << 16]));
    assert!(zeros.contains("magic at 0x28 is 0x0"), "{zeros}");

    let segment = Segment::new(1);
    let mut page = vec![0; 1 << 16];
    std::os::unix::fs::FileExt::read_exact_at(&segment.file, &mut page, 0).unwrap();
    let cut = told(&file(folder.path(), "cut", &page));
    assert!(cut.contains("it has 65536 bytes, and its config page says "), "{cut}");
    page[0x30] = 4;
    let version = told(&file(folder.path(), "version", &page));
    assert!(version.contains("hypertrace interface version 4, this library speaks 3"), "{version}");
    page[0x30] = 3;
    page[0x38] = 4;
    let device = told(&file(folder.path(), "device", &page));
    assert!(device.contains("its config page says TRAPS"), "{device}");
    page[0x38] = 0;
    page[0x78] = 1;
    let sizes = told(&file(folder.path(), "sizes", &page));
    assert!(sizes.contains("ring_bytes must be a power of two"), "{sizes}");
}

#[test]
fn no_signal_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let Some(strace) = capability::program("strace") else { return };
    for guest in guests(folder.path()) {
        let segment = Segment::new(4);
        let log = folder.path().join("strace");
        let ran: Ran = Command::new(&strace)
            .args(["-f", "-qq", "-e", "trace=none", "-o"])
            .arg(&log)
            .arg(&guest.qemu)
            .arg("-plugin")
            .arg(plugin())
            .arg(&guest.program)
            .args(["threads", "2", "1000"])
            .env("HYPERTRACE_SEGMENT", segment.path())
            .output()
            .unwrap()
            .into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(segment.take().points.len(), 2000);
        let log = std::fs::read_to_string(log).unwrap();
        // SIGCHLD does not come from the plugin. A shell starts a fetched emulator, and the shell gets
        // SIGCHLD when one of its children ends.
        let is_signal = |line: &&str| line.contains("---") && !line.contains("SIGCHLD");
        let signals: Vec<&str> = log.lines().filter(is_signal).collect();
        assert!(signals.is_empty(), "{}: {signals:?}", guest.name);
        capability::used("strace");
    }
}
