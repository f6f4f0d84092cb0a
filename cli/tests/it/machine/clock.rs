//! The clock of a Linux guest under a real KVM: how far times are from those that KVM itself gives the guest.

use crate::linux_guest_kernel::recorder;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::{Machine, line_of};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// A reading of ptp_kvm: the guest's CLOCK_MONOTONIC_RAW and the host's CLOCK_REALTIME at one instant; and the host
/// time of events before and after it, with their own readings of CLOCK_MONOTONIC_RAW.
#[derive(Debug, Default)]
struct Reading {
    before: (i64, i64),
    after: (i64, i64),
    raw: i64,
    host: i64,
}

/// Returns the readings in a session, and the largest bound of their events in nanoseconds.
fn readings(session: &Path) -> (Vec<Reading>, u64) {
    let (mut found, mut reading, mut bound) = (Vec::new(), Reading::default(), 0);
    HYPERTRACE.report_each(session, |line| {
        let number = |name| line.number(name).unwrap() as i64;
        match &*line.event {
            "ptp_before" => reading.before = (number("raw_ns"), line.ts_ns),
            "ptp_after" => reading.after = (number("raw_ns"), line.ts_ns),
            "ptp" => {
                (reading.raw, reading.host) = (number("raw_ns"), number("host_unix_ns"));
                found.push(std::mem::take(&mut reading));
            }
            _ => return,
        }
        bound = bound.max(line.bound_ns.unwrap());
    });
    (found, bound)
}

#[test]
#[ignore = "boots a machine and a guest in it, with both kernels recorded: cargo xtask full"]
fn a_guests_times_are_those_of_kvms_own_clock() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = static_program("hypertrace-linux-guest").with_file_name("hypertrace-ptp");
    let module = linux.module("drivers/ptp/ptp_kvm");
    let device = "memory-backend-file,id=ht,share=on,mem-path=/dev/shm/guest,size=16M";
    let options = ["-M", "q35", "-cpu", "host", "-object", device];
    let options = [&options[..], &["-device", "ivshmem-plain,memdev=ht"]].concat();
    let options = options.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let recorder = recorder();
    let mut programs = vec![("ptp", &*program), ("lib/ptp_kvm.ko", &*module)];
    programs.extend(recorder.iter().map(|(name, path)| (&**name, &**path)));
    let qemu = linux.command(
        folder.path(),
        &["-accel", "kvm"],
        &options,
        &programs,
        "insmod /lib/ptp_kvm.ko; hypertrace forward ptp 24; echo \"ended: $?\"",
    );
    let script = format!(
        "H='{}'
         $H serve --file /dev/shm/guest -o S 2>messages & server=$!
         until grep -q 'start the VM' messages; do sleep 0.1; kill -0 $server || exit; done
         $H record -a -o S 2>recorder & recorder=$!
         until test -s recorder; do sleep 0.1; kill -0 $recorder || exit; done
         {} </dev/null >$shared/console
         kill -INT $recorder; wait $recorder
         kill -INT $server; wait $server && cp -r S recorder $shared/",
        HYPERTRACE.0,
        line_of(&qemu)
    );

    let (ran, shared) = machine.run(&script);

    let console = fs::read(shared.join("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console).into_owned();
    assert!(ran.code == 0 && console.contains("ended: 0"), "{ran:?}\n{console}");
    let (readings, bound) = readings(&shared.join("S"));
    assert_eq!(readings.len(), 24);
    let distance = |Reading { before, after, raw, host }: &Reading| {
        // Both clocks are of one counter, so a time between two events is on a line.
        let along = i128::from(raw - before.0) * i128::from(after.1 - before.1);
        before.1 - host + (along / i128::from(after.0 - before.0)) as i64
    };
    let mut distances = Vec::from_iter(readings.iter().map(distance));
    distances.sort_unstable();
    println!("bound {bound} ns, distances {distances:?} ns");
    assert!(bound <= 1_000, "{bound}");
    // An event's time is later than its reading of the other clock, by as long as the machine took in between.
    assert!((-3_000..10_000).contains(&distances[0]), "{distances:?}");

    let info = HYPERTRACE.info(&shared.join("S"));
    let clocks = &info["kvm_tscs"];
    let offsets = Vec::from_iter(clocks.as_array().unwrap().iter().map(|word| {
        let used = word["used"].as_array().unwrap();
        assert!(used.len() == 1 && word["is_ambiguous"] == false, "{word}");
        used[0]["offset"].as_i64().unwrap()
    }));
    // The guest's TSC began with the guest, after the host's: KVM takes the difference away.
    assert!(
        offsets.len() >= 2 && offsets.iter().all(|of| *of < 0 && *of == offsets[0]),
        "{info:#}"
    );
    // No event of the guest's kernel is outside of guest mode of the one thread that runs its CPU.
    let cpus = info["guest_cpus"].as_array().unwrap();
    let threads = cpus.iter().map(|cpu| match &cpu["threads"].as_array().unwrap()[..] {
        [only] if cpu["events"].as_u64() >= Some(100) => only.as_u64(),
        _ => panic!("{cpu}"),
    });
    let threads = BTreeSet::from_iter(threads);
    println!("{}", info["guest_cpus"]);
    assert_eq!((cpus.len(), threads.len()), (2, 2), "{info:#}");
    Linux::used();
}
