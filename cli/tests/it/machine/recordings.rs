//! Files that trace-cmd itself records: with each of its options that changes a file, and of a host and its
//! guest.

use super::{COMMANDED, FILE, FUNCTIONS, HYPERTRACE, json, kvm_guest, program};
use crate::kernel_dat::agree;
use hypertrace_tests::capability;
use hypertrace_tests::command::run;
use hypertrace_tests::linux::{Linux, with_libraries};
use hypertrace_tests::machine::Machine;
use hypertrace_tests::trace_cmd;
use serde_json::Value;
use std::fs;
use std::path::Path;

#[test]
#[ignore = "cargo xtask full --only machine"]
fn files_of_trace_cmd_by_any_clock_buffer_and_date_are_what_trace_cmd_shows() {
    let Some(machine) = Machine::find() else { return };
    let Some(program) = capability::program("trace-cmd") else { return };
    // These clocks count nanoseconds. trace-cmd shows the times of `boot` as ticks.
    let ways = [
        ("local", ""),
        ("global", "-C global"),
        ("perf", "-C perf"),
        ("mono", "-C mono"),
        ("mono_raw", "-C mono_raw"),
        ("tsc2nsec", "-C tsc2nsec"),
        ("date", "--date"),
        ("date_mono", "--date -C mono"),
        ("buffer", "-B other -e irq"),
    ];
    let script: String = ways
        .iter()
        .map(|(name, options)| {
            format!(
                "trace-cmd record -q -o {name} -e sched {options} sh -c 'ls /proc >/dev/null; sleep 0.1' >{name}.said 2>&1 ||
                {{ echo {name}; cat {name}.said; exit 7; }}; cp {name} $shared/ || exit\n"
            )
        })
        .collect();

    let (ran, shared) = machine.run(&script);

    assert_eq!(ran.code, 0, "{ran:?}");
    for (name, _) in ways {
        println!("{name}");
        let events = agree(&program, &shared.join(name));
        println!("{name}: {events}");
        assert!(events > 10, "{name}: {events}");
    }
    capability::used("trace-cmd");
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_host_and_its_guest_by_trace_cmd_are_in_the_order_that_trace_cmd_shows() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let Some(trace_cmd) = capability::program("trace-cmd") else { return };
    let folder = tempfile::tempdir().unwrap();
    let modules = linux.modules(&["virtio_pci", "vmw_vsock_virtio_transport"]);
    let names = modules.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    let load: String = names.clone().map(|name| format!("insmod /modules/{name}\n")).collect();
    let modules = names.map(|name| format!("modules/{name}")).zip(modules.iter().cloned());
    let files =
        [vec![program()], with_libraries("trace-cmd", &trace_cmd), modules.collect()].concat();
    let device = [&FILE[..], &["-device", "vhost-vsock-pci,guest-cid=3"]].concat();
    let script = format!("{load}mount -t tracefs none /sys/kernel/tracing\n{COMMANDED}");
    let qemu = kvm_guest(&linux, folder.path(), &device, &files, &script);

    let (ran, shared) = machine.run(&format!(
        "H='{}'\n{FUNCTIONS}
        serve --file /dev/shm/guest; boot {qemu}; ready
        guest 'trace-cmd agent >/tmp/agent 2>&1 & sleep 2'
        trace-cmd record -q -o host.dat -e sched:sched_switch -e kvm:kvm_entry -e kvm:kvm_exit \\
            -A 3 -e sched:sched_switch -e sched:sched_waking sleep 12 >said 2>&1 & record=$!
        sleep 2; guest 'program 20000 50'; cat /sys/kernel/debug/kvm/*-*/vcpu*/tsc-offset >$shared/offsets
        wait $record || {{ cat said; guest 'cat /tmp/agent'; exit 7; }}; cp said host*.dat $shared/
        guest 'cat /tmp/agent'; off; end $server serve; cp -r S $shared/",
        HYPERTRACE.0
    ));

    assert_eq!(ran.code, 0, "{ran:?} {:?}", fs::read_to_string(shared.join("console")));
    let said = fs::read_to_string(shared.join("said")).unwrap();
    assert!(said.contains("Negotiated kvm time sync"), "{said}");
    let (host, guest) = (shared.join("host.dat"), shared.join("host-3.dat"));
    let ours = events(&[&host, &guest]);
    let theirs = trace_cmd::merged(&[&host, &guest]).unwrap();
    let mut theirs: Vec<Event> = theirs
        .into_iter()
        .map(|(n, event)| (event.time, n == 1, event.thread, event.name))
        .collect();
    theirs.sort_unstable();
    let count = |of_guest| ours.iter().filter(|event| event.1 == of_guest).count();
    assert!(count(true) > 100 && count(false) > 1_000, "{} {}", count(true), count(false));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    // In ticks, a time of the guest is the host's time plus KVM's offset of the guest's counter.
    let offsets = fs::read_to_string(shared.join("offsets")).unwrap();
    let offset: i64 = offsets.lines().next().unwrap().parse().unwrap();
    let session = json(&shared.join("S/session.json"));
    let frequency = session["clocks"][0]["frequency"].as_f64().unwrap();
    let expected = offset as f64 / frequency * 1e9;
    for (alone, event) in events(&[&guest]).iter().zip(ours.iter().filter(|event| event.1)) {
        let found = alone.0 as f64 - event.0 as f64;
        // The frequency in the session is measured, and the kernels convert ticks with a 32-bit factor, so
        // times differ a little.
        assert!((found - expected).abs() < expected.abs() / 1e6, "{found} {expected} {event:?}");
    }
    capability::used("trace-cmd");
    Linux::used();
}

/// Time of an event, whether the event is the guest's, thread, and name.
type Event = (u64, bool, u32, String);

/// Returns the events of files as `report` shows them, in order of time.
#[track_caller]
fn events(files: &[&Path]) -> Vec<Event> {
    let text = run(HYPERTRACE.command(["report", "--json"]).args(files)).stdout;
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events = lines.filter(|line| line["type"].is_null()).map(|line| {
        let (_, name) = line["event"].as_str().unwrap().split_once(':').unwrap();
        let of_guest = line["source"].as_str().unwrap().starts_with("3:");
        let time = line["ts_ns"].to_string().trim_matches('"').parse().unwrap();
        (time, of_guest, line["tid"].as_u64().unwrap() as u32, name.to_owned())
    });
    let mut events = Vec::from_iter(events);
    assert!(events.is_sorted_by_key(|event| event.0));
    events.sort_unstable();
    events
}
