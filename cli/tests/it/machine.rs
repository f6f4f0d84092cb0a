//! In a machine with a real KVM: entries and exits that KVM's own tracepoints tell, and Linux as a guest of KVM.

use crate::linux_guest::check;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::{Machine, line_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_demos_time_is_divided_by_kvms_own_entries_and_exits() {
    let Some(machine) = Machine::find() else { return };
    let script = "demo --vcpus 1 -o S --kernel --json >$shared/demo && \
                  $H regions S --json >$shared/regions && $H list S --json >$shared/names";

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
    // The vCPU is in the kernel at the beginning and at the end, so each entry has its exit.
    let (entries, exits) = (count("kvm_entry"), count("kvm_exit"));
    assert!(entries == exits && exits >= 1_000, "{entries} entries, {exits} exits");

    // Each region has a reference point, which is an exit, and KVM says when the guest ran.
    let batch = &regions["regions"][0];
    assert_eq!((&batch["name"], &batch["count"]), (&"batch".into(), &1_000.into()));
    for of in ["median", "p99", "slowest"].map(|name| &batch["breakdown"][name]) {
        assert_eq!(of["guest_includes_kvm"], false, "{of}");
        let parts: BTreeMap<String, u64> = serde_json::from_value(of["parts"].clone()).unwrap();
        assert_eq!(parts.values().sum::<u64>(), of["duration_ns"].as_u64().unwrap(), "{of}");
        assert!(parts["guest_ns"] > 0 && parts["unattributed_ns"] == 0, "{of}");
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
    let program = static_program("hypertrace-linux-guest");
    let device = "memory-backend-file,id=ht,share=on,mem-path=/dev/shm/guest,size=16M";
    let options = ["-M", "q35", "-cpu", "host", "-object", device];
    let options = [&options[..], &["-device", "ivshmem-plain,memdev=ht"]].concat();
    let options = options.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let qemu = linux.command(
        folder.path(),
        &["-accel", "kvm"],
        &options,
        &[("program", &program)],
        &format!("program {events} {points}; echo \"ended: $?\""),
    );
    let script = format!(
        "'{}' serve --file /dev/shm/guest -o S 2>messages & server=$!
         until grep -q 'start the VM' messages; do sleep 0.1; kill -0 $server || exit; done
         {} </dev/null >$shared/console
         kill -INT $server; wait $server && cp -r S $shared/",
        HYPERTRACE.0,
        line_of(&qemu)
    );

    let (ran, shared) = machine.run(&script);

    let console =
        String::from_utf8_lossy(&fs::read(shared.join("console")).unwrap_or_default()).into_owned();
    assert!(ran.code == 0 && console.contains("ended: 0"), "{ran:?}\n{console}");
    let session = shared.join("S");
    check(&session, &HYPERTRACE.info(&session), 1, events, points);
    Linux::used();
}
