//! Plain users of a Linux guest, with the rules for udev in guest-lib/linux.

use std::path::{Path, PathBuf};

use hypertrace_tests::build::root;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::serve::Server;
use serde_json::{Value, json};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Makes the group of the shipped file, with a member and another user, and functions for the script.
const USERS: &str = r#"
group=$(awk '$1 == "g" { print $2 }' /etc/sysusers)
printf "root:x:0:\n$group:x:990:member\n" >/etc/group
printf 'root:x:0:0::/:/bin/sh\nmember:x:1000:1000::/:/bin/sh\nother:x:1001:1001::/:/bin/sh\n' >/etc/passwd
trace() { su -s /bin/sh "$1" -c "program 1000 10 $2"; echo "$1 $3: $?"; }
rules() { systemd-udevd --daemon; udevadm control --reload && udevadm trigger --action=add --subsystem-match=pci; udevadm settle; echo "settled: $?"; }
pci() { for f in /sys/bus/pci/devices/*; do grep -q "$1" $f/device && basename $f; done; }
"#;

/// Runs the script in a guest with these devices, in which udev has the shipped rules. Returns the guest's
/// console.
#[track_caller]
fn run(
    linux: &Linux,
    folder: &Path,
    options: &[String],
    modules: &[&str],
    script: &str,
) -> Option<String> {
    let mut files = Linux::udev()?;
    let shipped = root().join("guest-lib/linux");
    for (from, to) in [
        ("70-hypertrace.rules", "etc/udev/rules.d/70-hypertrace.rules"),
        ("71-hypertrace-uio.rules", "etc/udev/rules.d/71-hypertrace-uio.rules"),
        ("hypertrace.sysusers.conf", "etc/sysusers"),
    ] {
        // Without the driver, the guest gets no rules for uio, as on a guest where nobody installs these
        // rules.
        if !modules.is_empty() || !from.contains("uio") {
            files.push((to.to_owned(), shipped.join(from)));
        }
    }
    let module =
        |name: &&str| (format!("{}.ko", name.rsplit('/').next().unwrap()), linux.module(name));
    files.extend(modules.iter().map(module));
    files.push(("program".to_owned(), static_program("hypertrace-linux-guest")));
    let files: Vec<(&str, &Path)> =
        files.iter().map(|(name, path): &(String, PathBuf)| (&**name, &**path)).collect();
    Some(linux.start(folder, options, &files, &format!("{USERS}{script}")).console())
}

/// Asserts that the console has these texts.
#[track_caller]
fn assert_says(console: &str, parts: &[&str]) {
    for part in parts {
        assert!(console.contains(part), "{part:?} is not in {console}");
    }
}

/// Ends the server. The server's session must have the events of `runs` runs and nothing else.
#[track_caller]
fn check(server: Server, runs: u64) {
    let stat = server.end();
    let total = &stat["total"];
    let found = ["events", "reference_points", "lost"].map(|name| total[name].clone());
    assert_eq!(found, [4 * 1000 * runs, 4 * 2 * 10 * runs, 0].map(Value::from), "{stat}");
    assert_eq!(total["faults"], json!({}), "{stat}");
}

#[test]
fn a_member_of_the_group_traces_by_the_device_and_by_a_shared_file_and_another_user_does_not() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = Server::of_socket(HYPERTRACE, &folder.path().join("device"), &[]);
    let file = Server::of_file(HYPERTRACE, &folder.path().join("file"));
    let options = [&device.device[..], &file.device].concat();
    let script = r#"
        device=$(pci 0x10f0); file=$(pci 0x1110)
        trace member $device "before device"; trace member $file "before file"
        rules
        trace member "" "device"; HYPERTRACE_CLOCK=monotonic_raw trace member $file "file"; trace other "" "device"
        su -s /bin/sh member -c "echo >>/sys/bus/pci/devices/$device/config"; echo "config: $?"
        cd /sys/bus/pci/devices/$file; stat -c 'file %n %U:%G %a' resource[0-9]*
    "#;

    let Some(console) = run(&linux, folder.path(), &options, &[], script) else { return };

    assert_says(
        &console,
        &[
            "cannot switch the device on with",
            "root has to switch it on after each boot",
            "member before device: 1",
            "member before file: 1",
            "settled: 0",
            "clock Counter",
            "member device: 0",
            "clock MonotonicRaw",
            "member file: 0",
            "as a member of the group hypertrace",
            "other device: 1",
            "config: 1",
            // The device's other BARs have doorbells and the table of interrupts.
            "file resource0 root:root 600",
            "file resource2 root:hypertrace 660",
            "file resource2_wc root:hypertrace 660",
        ],
    );
    check(device, 1);
    check(file, 1);
    Linux::used();
    Linux::used_udev();
}

#[test]
fn a_member_of_the_group_traces_by_uio_where_the_kernel_is_locked_down() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &["--bars", "32"]);
    let append = ["-append", "console=ttyS0 quiet panic=-1 lockdown=integrity"].map(str::to_owned);
    let options = [&server.device[..], &append].concat();
    let script = r#"
        mount -t securityfs none /sys/kernel/security; cat /sys/kernel/security/lockdown
        insmod /bin/uio.ko; insmod /bin/uio_pci_generic.ko
        program 1000 10; echo "root by sysfs: $?"
        rules
        trace member "" "by uio"; trace other "" "by uio"
        program 1000 10; echo "root by uio: $?"
    "#;
    let modules = ["drivers/uio/uio", "drivers/uio/uio_pci_generic"];

    let Some(console) = run(&linux, folder.path(), &options, &modules, script) else { return };

    assert_says(
        &console,
        &[
            "[integrity]",
            "the kernel is locked down (/sys/kernel/security/lockdown)",
            "root by sysfs: 1",
            "settled: 0",
            "found Uio(",
            "member by uio: 0",
            "other by uio: 1",
            "root by uio: 0",
        ],
    );
    check(server, 2);
    Linux::used();
    Linux::used_udev();
}
