//! Programs of a user who is not root. Plain files imitate the system's sysfs.
#![cfg(feature = "std")]
#![allow(unsafe_code)]

use crate::common;
use common::device::{System, assert_says, refusal};
use common::{TICK, alone, emit, fork};
use hypertrace::open;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

const BARS: [&str; 6] =
    ["resource0", "resource1", "resource1_wc", "resource2", "resource4", "resource4_wc"];

/// Makes a system with a device. Root has set `enable` and the COMMAND register to these values, and the
/// BARs' files have this mode.
fn system(enable: &str, command: u8, bars: u32) -> System {
    let system = System::with_function(0x10f0, 0);
    let mut config = fs::read(system.file("config")).unwrap();
    config[4] = command;
    fs::write(system.file("config"), config).unwrap();
    fs::write(system.file("enable"), enable).unwrap();
    let set = |name: &str, mode| {
        fs::set_permissions(system.file(name), Permissions::from_mode(mode)).unwrap();
    };
    BARS.iter().for_each(|name| set(name, bars));
    ["config", "enable"].iter().for_each(|name| set(name, 0o444));
    fs::set_permissions(system.root.path(), Permissions::from_mode(0o755)).unwrap();
    system
}

/// Runs `body` in a child process of a plain user.
fn as_plain_user(body: impl FnOnce()) {
    let child = fork(|| {
        // SAFETY: only this child changes its user, and only root can.
        unsafe { libc::setresuid(65534, 65534, 65534) };
        body();
        0
    });
    assert_eq!(child.wait(), 0);
}

#[test]
fn a_plain_user_who_may_write_to_the_bars_and_nothing_else_traces() {
    alone(|| {
        let system = system("1\n", 2, 0o666);
        let mut fake = system.host();
        as_plain_user(|| {
            open(&system.options).unwrap();
            emit(10);
        });
        fake.host.drain();
        assert_eq!(fake.host.seen.count(TICK), 10);
    });
}

#[test]
fn a_plain_user_is_told_what_root_has_to_do() {
    alone(|| {
        let root = "root has to switch it on after each boot";
        let cases: [(System, &[&str]); 3] = [
            (system("0\n", 0, 0o666), &["cannot switch the device on with", "/enable", root]),
            (system("1\n", 0, 0o666), &["in the COMMAND register in", "/config", root]),
            // With mode 0, not even the owner of the BARs' files may open them, and this owner may run the
            // test.
            (system("1\n", 2, 0), &["cannot open", "/resource2", "group hypertrace"]),
        ];
        for (system, parts) in cases {
            as_plain_user(|| {
                let told = refusal(&system);
                assert_says(&told, parts);
                assert_says(&told, &["Permission denied"]);
            });
        }
    });
}
