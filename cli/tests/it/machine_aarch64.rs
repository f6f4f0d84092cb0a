//! In a machine of AArch64 with a real KVM, which QEMU emulates: the demo, its recordings, and the tests of
//! the VMM.

use crate::linux_guest::check_numbers;
use crate::linux_guest_kernel::check_cpus;
use crate::machine::FILE;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::Linux;
use hypertrace_tests::machine::line_of;
use hypertrace_tests::serve::Server;
use hypertrace_tests::{build, capability::MISSING};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Script that runs before each test's own script.
const BEGIN: &str = "\
mount -t tracefs none /sys/kernel/tracing
mkdir /dev/shm
mount -t tmpfs none /dev/shm
";

/// Runs a script in the machine with these programs in /bin. Returns the console's text. Tests read their
/// results in the console's text, because the machine itself is the host that they test.
fn run(linux: &Linux, programs: &[(&str, &Path)], script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-m", "2G"].map(str::to_owned);
    let script = format!("{BEGIN}{script}");
    let console = linux.start(folder.path(), &options, programs, &script).console();
    Linux::used_aarch64();
    console
}

/// Returns the JSON that the script has written after a line with this word alone.
#[track_caller]
fn json_after(console: &str, word: &str) -> Value {
    let after = console.split_once(&format!("{word}\r\n")).expect(console).1;
    let mut values = serde_json::Deserializer::from_str(after).into_iter();
    values.next().unwrap().unwrap_or_else(|why| panic!("{why}: {console}"))
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn the_demos_time_is_divided_by_the_exits_of_aarch64() {
    let Some(linux) = Linux::find_aarch64_host() else { return };
    let Some(folder) = build::aarch64("hypertrace-cli", &[]) else { return };
    let hypertrace = folder.join("debug/hypertrace");
    let script = "hypertrace demo --vcpus 1 -o S --kernel --json >demo
        for file in demo; do echo; echo \"of $file\"; cat $file; done
        for what in info regions list; do echo; echo \"of $what\"; hypertrace $what S --json; done
        echo; hypertrace info S; hypertrace info";

    let console = run(&linux, &[("hypertrace", &hypertrace)], script);

    let [demo, info, regions, names] =
        ["of demo", "of info", "of regions", "of list"].map(|word| json_after(&console, word));
    let [mode, vcpus, lost] = ["mode", "vcpus", "lost"].map(|name| &demo[name]);
    assert_eq!((mode, vcpus, lost), (&"kvm".into(), &1.into(), &0.into()), "{console}");
    assert_eq!((&demo["ring_events"], &demo["reference_points"]), (&100_000.into(), &1_000.into()));
    let names = names["events"].as_array().unwrap();
    let count = |name: &str| -> u64 {
        let of = names.iter().filter(|event| event["name"].as_str().unwrap().ends_with(name));
        of.map(|event| event["count"].as_u64().unwrap()).sum()
    };
    let (entries, exits) = (count("kvm_entry"), count("kvm_exit"));
    assert!(entries == exits && exits >= 1_000, "{entries} entries, {exits} exits");

    // If the kernel's clock were converted wrongly to the counter, times of the kernel's events would
    // contradict the reference points. `info` would then count those times as left out.
    let info = &info["sessions"][0];
    assert_eq!(info["kernel_limits"], json!({ "used": 2_000, "left_out": 0 }), "{info}");
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
    // Exits that are no access to a device have KVM's own names, such as an interrupt of the host or a fault
    // of the second stage.
    let known = ["mmio write", "mmio read", "irq", "dabt_low", "iabt_low", "wfx", "sys64", "other"];
    let is_known = |exit: &Value| known.contains(&exit["reason"].as_str().unwrap());
    assert!(exits.iter().all(is_known), "{exits:?}");
    // The rate is the rate that the CPU states.
    assert_eq!(info["frequency"], 62_500_000, "{info}");
    assert!(console.contains("host: CNTVCT of 62,500,000 Hz, in steps of 16 ns"), "{console}");
    assert!(console.contains("the CPU's CNTVCT, in steps of 16 ns;"), "{console}");
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn a_recording_by_perf_is_in_the_sessions_time_on_aarch64() {
    let Some(linux) = Linux::find_aarch64_host() else { return };
    let Some(folder) = build::aarch64("hypertrace-cli", &[]) else { return };
    let hypertrace = folder.join("debug/hypertrace");
    // An ordinary user has neither tracefs nor KVM.
    let script = "echo 2 >/proc/sys/kernel/perf_event_paranoid
        echo user:x:1000:1000::/tmp:/bin/sh >/etc/passwd
        chmod 1777 /tmp
        su user -c 'cd /tmp && hypertrace demo -o S --kernel 2>messages'
        echo; cat /tmp/messages; echo 'of report'
        hypertrace report /tmp/S --json 2>&1 | sed -n '1p; /perf:switch/p; $p'; echo ended";

    let console = run(&linux, &[("hypertrace", &hypertrace)], script);

    assert!(console.contains("(by perf)"), "{console}");
    let lines = console.split_once("of report\r\n").unwrap().1.split_once("ended").unwrap().0;
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let time = |line: &Value| line["t_ns"].as_i64().unwrap();
    let switches = lines.iter().filter(|l| l["event"].as_str().unwrap().starts_with("perf:switch"));
    let switches = Vec::from_iter(switches);
    assert!(switches.len() > 4, "{console}");
    // The recording lasts from the session's beginning to its end.
    let end = time(lines.last().unwrap());
    assert!(switches.iter().all(|line| (-1_000_000_000..=end).contains(&time(line))), "{console}");
    assert!(switches.iter().all(|line| line["bound_ns"].as_u64() < Some(1_000_000)), "{console}");
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn the_kernel_of_an_aarch64_guest_stands_beside_its_programs() {
    let Some(linux) = Linux::find_aarch64() else { return };
    let Some(folder) = build::aarch64("hypertrace-cli", &[]) else { return };
    let hypertrace = folder.join("debug/hypertrace");
    let built = build::aarch64("hypertrace-linux-guest", &["--release"]).unwrap();
    let programs =
        [("hypertrace", &*hypertrace), ("program", &built.join("release/hypertrace-linux-guest"))];
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    let (events, points) = (2_000, 20);
    let script = format!("hypertrace forward program {events} {points}; echo \"ended: $?\"");

    let console = linux.start(folder.path(), &server.device, &programs, &script).console();

    assert!(console.contains("ended: 0"), "{console}");
    let session = server.session.clone();
    assert_eq!(server.end()["total"]["lost"], 0, "{console}");
    let (_, kernel_events) = check_cpus(&session, 2 * events);
    assert!(kernel_events > 8, "{kernel_events}");
    Linux::used_aarch64();
}

/// Runs a script in the machine, in which a Linux guest of KVM runs `script_of_guest` with these programs.
/// `script` is called with the line that starts the guest, with a shared file as its device. Returns the
/// console, or reports what is missing.
#[track_caller]
fn run_guest(
    programs: &[(&str, &Path)],
    script_of_guest: &str,
    script: impl FnOnce(&str) -> String,
) -> Option<String> {
    let linux = Linux::find_aarch64_host()?;
    let mut guest = Linux::find_aarch64_host()?;
    let qemu = Linux::qemu_aarch64()?;
    let inner = tempfile::tempdir().unwrap();
    let options = ["-M", "virt,gic-version=3", "-cpu", "host", "-m", "256M"].map(str::to_owned);
    let options = [&options[..], &FILE.map(str::to_owned)].concat();
    guest.qemu = "/bin/qemu".into();
    // QEMU finds the guest's files in the machine at the paths that the files have on this machine.
    let qemu_line = line_of(&guest.command(
        inner.path(),
        &["-accel", "kvm"],
        &options,
        programs,
        script_of_guest,
    ));
    let initrd = inner.path().join("initrd");
    let mut programs = vec![programs[0]];
    programs.extend([&guest.kernel, &initrd].map(|path| (path.to_str().unwrap(), &**path)));
    programs.extend(qemu.iter().map(|(name, path)| (&**name, &**path)));
    Some(run(&linux, &programs, &script(&qemu_line)))
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn a_linux_guest_of_kvm_traces_by_a_shared_file_on_aarch64() {
    let Some(built) = build::aarch64("hypertrace-cli", &[]) else { return };
    let hypertrace = built.join("debug/hypertrace");
    let program = build::aarch64("hypertrace-linux-guest", &["--release"]).unwrap();
    let program = program.join("release/hypertrace-linux-guest");
    let (events, points) = (2_000, 20);
    let programs = [("hypertrace", &*hypertrace), ("program", &*program)];
    let script = format!("hypertrace forward program {events} {points}; echo \"ended: $?\"");

    let console = run_guest(&programs, &script, |qemu_line| {
        format!(
            "hypertrace serve --file /dev/shm/guest -o S 2>serve & server=$!
            until grep -q 'start the VM' serve; do sleep 0.1; done
            {qemu_line} </dev/null
            kill -INT $server; wait $server; echo \"served: $?\"; cat serve
            echo 'the session'; tar cz S | base64; echo 'its end'"
        )
    });

    let Some(console) = console else { return };
    assert!(console.contains("ended: 0") && console.contains("served: 0"), "{console}");
    let text = console.split_once("the session\r\n").unwrap().1.split_once("its end").unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let mut unpack = Command::new("sh");
    unpack.args(["-c", "base64 -di | tar xz"]).current_dir(folder.path()).stdin(Stdio::piped());
    let mut unpack = unpack.spawn().unwrap();
    unpack.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(unpack.wait().unwrap().success());
    let session = folder.path().join("S");
    let total = &HYPERTRACE.info(&session)["total"];
    assert_eq!((&total["lost"], &total["faults"]), (&json!(0), &json!({})), "{total}");
    check_numbers(&session, events, points);
    let (_, kernel_events) = check_cpus(&session, 2 * events);
    assert!(kernel_events > 8, "{kernel_events}");
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn a_guests_regions_are_divided_by_its_own_kernel_alone_on_aarch64_and_a_line_says_so() {
    let Some(built) = build::aarch64("hypertrace-cli", &[]) else { return };
    let hypertrace = built.join("debug/hypertrace");
    let program = build::aarch64("hypertrace-linux-guest", &["--release"]).unwrap();
    let program = program.join("release/hypertrace-linux-regions");
    let programs = [("hypertrace", &*hypertrace), ("regions", &*program)];
    // The host's recording begins during the guest's pause.
    let script = "echo booted; sleep 20
        hypertrace forward regions 5 both spinning 0 0 1; echo \"ended: $?\"";

    let console = run_guest(&programs, script, |qemu_line| {
        format!(
            "hypertrace serve --file /dev/shm/guest -o S 2>serve & server=$!
            until grep -q 'start the VM' serve; do sleep 0.1; done
            {qemu_line} </dev/null >console & qemu=$!
            until grep -q booted console || ! kill -0 $qemu; do sleep 0.1; done
            hypertrace record -a -o S 2>host & host=$!
            wait $qemu; cat console
            kill -INT $host; wait $host; echo \"recorded: $?\"; cat host
            kill -INT $server; wait $server; echo \"served: $?\"; cat serve
            echo; echo 'of regions'; hypertrace regions S --json"
        )
    });

    let Some(console) = console else { return };
    let ended = ["ended: 0", "recorded: 0", "served: 0"];
    assert!(ended.iter().all(|text| console.contains(text)), "{console}");
    let regions = json_after(&console, "of regions");
    let line = regions["warnings"].to_string();
    assert!(
        line.contains("nothing proves which threads of the host run the guest's CPUs"),
        "{line}"
    );
    let spinning = regions["regions"].as_array().unwrap().iter();
    let spinning = spinning.filter(|group| group["name"] == "spinning");
    let [spinning] = Vec::from_iter(spinning)[..] else { panic!("{regions}") };
    assert_eq!(spinning["count"], 15, "{spinning}");
    let parts: BTreeMap<String, u64> =
        serde_json::from_value(spinning["total"]["parts"].clone()).unwrap();
    let known = ["on_cpu_ns", "runnable_ns", "blocked_ns", "unknown_ns"];
    assert!(parts.iter().all(|(part, ns)| *ns == 0 || known.contains(&&**part)), "{parts:?}");
    assert!(parts["on_cpu_ns"] > 0 && parts["runnable_ns"] > 0, "{parts:?}");
    assert!(parts["unknown_ns"] * 100 < parts.values().sum(), "{parts:?}");
}

#[test]
#[ignore = "builds the VMM's tests for AArch64: cargo xtask full"]
fn the_vmms_tests_pass_in_kvm_of_aarch64() {
    let Some(linux) = Linux::find_aarch64_host() else { return };
    let Some(folder) = build::aarch64("kvm-vmm", &[]) else { return };
    let tests = build::aarch64_tests("kvm-vmm").unwrap();
    let programs = [("tests", &*tests), ("/kvm-vmm", &folder.join("debug/kvm-vmm"))];

    let console = run(&linux, &programs, "tests --test-threads 1; /kvm-vmm S 2");

    assert!(console.contains("0 failed; 0 ignored;"), "{console}");
    // Each test that needs KVM found KVM.
    assert!(!console.contains(MISSING), "{console}");
    // 100,000 events and 1,000 points of each vCPU, with the VMM's events and the leases.
    assert!(console.contains("206017 events, 0 lost"), "{console}");
}
