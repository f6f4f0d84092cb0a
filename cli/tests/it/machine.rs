//! In a machine with a real KVM: entries and exits that KVM's own tracepoints show, and Linux as a guest of
//! KVM.

mod boot;
mod bounds;
mod clock;
mod demo;
mod ends;
mod guests;
mod one_clock;
mod recordings;
mod two_kernels;

use crate::linux_guest::check;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::{Machine, line_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Functions of the shell for scripts.
///
/// - `await FILE TEXT PID`: waits until a file has a text, which a process writes
/// - `plain`: makes `serve` run as an ordinary user
/// - `serve OPTION..`: serves a VM in S; `$server` is the server
/// - `host OPTION..`: records the kernel's events of the machine in S; `$host` is the recorder
/// - `end PID FILE`: ends the server or the recorder, which must succeed
/// - `linux COMMAND`: runs QEMU until its guest ends. Under the emulated KVM one boot of some fifteen ended
///   or hung before the guest's first process; such a guest is started again. A guest that hangs later is
///   ended, and fails the script
/// - `boot COMMAND`: starts QEMU, whose guest takes commands; `$qemu` is QEMU
/// - `guest COMMAND`: gives the guest a command of its shell, and waits for its end. Ends with that command's
///   status
/// - `more NUMBER`: waits until NUMBER more events have been recorded
/// - `ready`: waits until a guest has booted; resets a guest that does not boot, and waits again
/// - `monitor COMMAND`: gives QEMU a command of its monitor, and waits for its end
const FUNCTIONS: &str = r#"
await() {
    tries=0
    until grep -q "$2" "$1" 2>/dev/null; do
        sleep 0.1; tries=$((tries + 1))
        kill -0 "$3" 2>/dev/null && [ $tries -lt 3000 ] || { echo "no '$2'"; cat "$1"; exit 9; }
    done
}
plain() { as='setpriv --reuid 1000 --regid 1000 --clear-groups'; chown 1000 .; export HOME=$PWD TMPDIR=$PWD; }
serve() { $as "$H" serve -o S "$@" 2>serve & server=$!; await serve 'start the VM' $server; }
host() { "$H" record -a -o S "$@" 2>host & host=$!; await host 'recording the kernel' $host; }
end() { kill -INT $1; wait $1 || { cat $2; exit 8; }; }
linux() {
    for try in 1 2 3; do
        timeout $((limit - 150)) "$@" </dev/null >$shared/console 2>&1 & qemu=$!
        tries=0
        until grep -q booted $shared/console || ! kill -0 $qemu 2>/dev/null; do
            sleep 0.1; tries=$((tries + 1))
            [ $tries -lt 600 ] || kill $qemu
        done
        wait $qemu
        ! grep -qE 'reboot: |Kernel panic' $shared/console || return 0
        echo "guest $try did not end"
        ! grep -q booted $shared/console || break
    done
    exit 6
}
boot() {
    rm -f port.in port.out monitor.in monitor.out; mkfifo port.in port.out monitor.in monitor.out
    exec 3<>port.in 4<>port.out 5<>monitor.in 6<>monitor.out
    "$@" -serial pipe:port -monitor pipe:monitor </dev/null >>$shared/console 2>&1 3<&- 4<&- 5<&- 6<&- & qemu=$!
    cat <&6 >>$shared/monitor & reader=$!
}
recorded() { "$H" info S 2>/dev/null | tr -d , | while read name records events rest; do [ "$name" != total ] || echo $events; done; }
more() { wanted=$(($(recorded) + $1)); until [ "0$(recorded)" -ge $wanted ]; do kill -0 $server || exit 7; sleep 0.2; done; }
hear() { timeout ${1-600} sh -c 'read word; echo $word' <&4; }
ready() {
    for try in 1 2 3; do
        [ "$(hear 200)" != ready ] || return 0
        echo system_reset >&5
    done
    exit 6
}
guest() {
    echo "$1" >&3; status=$(hear)
    [ "$status" != ready ] || { echo "the guest has booted again by itself, in: $1"; exit 6; }
    return $status
}
monitor() { asked=$((${asked-1000} + 1)); echo "$1" >&5; echo "print/d $asked + 700000" >&5; await $shared/monitor $((asked + 700000)) $qemu; }
off() { echo 'poweroff -f' >&3; wait $qemu; kill $reader; }
trap 'kill $qemu $reader $host $server 2>/dev/null; rm -f /dev/shm/guest' EXIT
"#;

/// Script of a guest that takes the machine's commands at its second serial port.
const COMMANDED: &str = "\
stty -F /dev/ttyS1 raw -echo; exec 3<>/dev/ttyS1; echo ready >&3
while read command <&3; do eval \"$command\"; echo $? >&3; done";

/// Options of QEMU for an ivshmem device whose memory is the file /dev/shm/guest.
pub const FILE: [&str; 4] = [
    "-object",
    "memory-backend-file,id=ht,share=on,mem-path=/dev/shm/guest,size=16M",
    "-device",
    "ivshmem-plain,memdev=ht",
];

/// Returns the line that starts a Linux guest of KVM with this device and these files.
#[track_caller]
fn kvm_guest(
    linux: &Linux,
    folder: &Path,
    device: &[&str],
    files: &[(String, PathBuf)],
    script: &str,
) -> String {
    let options = [&["-M", "q35", "-cpu", "host"], device].concat();
    let options = options.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let files = files.iter().map(|(name, path)| (&**name, &**path)).collect::<Vec<_>>();
    let script = format!("echo booted\n{script}");
    line_of(&linux.command(folder, &["-accel", "kvm"], &options, &files, &script))
}

/// Returns the guest's program of numbered events, with its name in the guest.
fn program() -> (String, PathBuf) {
    ("program".to_owned(), static_program("hypertrace-linux-guest"))
}

/// Runs a script, which must succeed, with [`FUNCTIONS`] and the session S on the machine. Returns the
/// guest's console, and the folder that the script has shared, with the session in it.
#[track_caller]
fn run(machine: &Machine, script: &str) -> (String, PathBuf) {
    let script = format!("H='{}'\n{FUNCTIONS}\n{script}\ncp -r S $shared/", HYPERTRACE.0);
    let (ran, shared) = machine.run(&script);
    let console = fs::read(shared.join("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console).into_owned();
    assert_eq!(ran.code, 0, "{ran:?}\n{console}");
    (console, shared)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_demos_time_is_divided_by_kvms_own_entries_and_exits() {
    let Some(machine) = Machine::find() else { return };
    let script = "demo --vcpus 1 -o S --kernel --json >$shared/demo && \
                  $H regions S --json >$shared/regions && $H info --names S --json >$shared/names";

    let (ran, folder) = machine.run(&format!("H='{}'\n$H {script}", HYPERTRACE.0));

    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("(by tracefs) in S/kernel.dat, none lost"), "{ran:?}");
    let [demo, regions, names] = ["demo", "regions", "names"].map(|name| json(&folder.join(name)));
    let [mode, vcpus, lost] = ["mode", "vcpus", "lost"].map(|name| &demo[name]);
    assert_eq!((mode, vcpus, lost), (&"kvm".into(), &1.into(), &0.into()));
    assert_eq!((&demo["ring_events"], &demo["reference_points"]), (&100_000.into(), &1_000.into()));
    let names = names["events"].as_array().unwrap();
    let count = |name: &str| -> u64 {
        let of = names.iter().filter(|event| event["name"].as_str().unwrap().ends_with(name));
        of.map(|event| event["count"].as_u64().unwrap()).sum()
    };
    // The vCPU is outside of guest mode when the recording begins and when it ends, so each entry has its
    // exit.
    let (entries, exits) = (count("kvm_entry"), count("kvm_exit"));
    assert!(entries == exits && exits >= 1_000, "{entries} entries, {exits} exits");

    // Each region has a reference point, which is an exit, and KVM says when the guest ran.
    let batch = &regions["regions"][0];
    assert_eq!((&batch["name"], &batch["count"]), (&"batch".into(), &1_000.into()));
    for of in ["median", "p99", "slowest"].map(|name| &batch["breakdown"][name]) {
        assert_eq!(of["guest_includes_kvm"], false, "{of}");
        let parts: BTreeMap<String, u64> = serde_json::from_value(of["parts"].clone()).unwrap();
        assert_eq!(parts.values().sum::<u64>(), of["duration_ns"].as_u64().unwrap(), "{of}");
        assert!(parts["guest_ns"] > 0 && parts["unknown_ns"] == 0, "{of}");
    }
    let exits = batch["total"]["exits"].as_array().unwrap();
    let of_points = exits.iter().find(|exit| exit["reason"] == "mmio write").unwrap();
    assert!(of_points["count"].as_f64().unwrap() >= 1_000.0, "{of_points}");
}

#[test]
fn a_linux_guest_of_kvm_loses_nothing_by_a_shared_file() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (events, points) = (20_000, 20);
    let script = format!("program {events} {points}; echo \"ended: $?\"");
    let qemu = kvm_guest(&linux, folder.path(), &FILE, &[program()], &script);

    let (console, shared) =
        run(machine, &format!("serve --file /dev/shm/guest; linux {qemu}; end $server serve"));

    assert!(console.contains("ended: 0"), "{console}");
    let session = shared.join("S");
    check(&session, &HYPERTRACE.info(&session), 1, events, points);
    Linux::used();
}
