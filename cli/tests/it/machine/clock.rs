//! The clock of a Linux guest under a real KVM: how far the session's times are from the times that KVM
//! itself gives the guest.

use super::{FILE, HYPERTRACE, kvm_guest, run};
use crate::linux_guest_kernel::recorder;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::Machine;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the files of a guest that can read its own clock and the host's by ptp_kvm, with
/// `ptp READINGS MILLISECONDS`.
pub fn ptp(linux: &Linux) -> Vec<(String, PathBuf)> {
    let program = static_program("hypertrace-linux-guest").with_file_name("hypertrace-ptp");
    let module = linux.module("drivers/ptp/ptp_kvm");
    vec![("ptp".into(), program), ("/ptp_kvm.ko".into(), module)]
}

/// Command that such a guest runs first.
pub const LOAD_PTP: &str = "insmod /ptp_kvm.ko";

/// A reading of ptp_kvm: the guest's CLOCK_MONOTONIC_RAW and the host's CLOCK_REALTIME at one instant.
/// `before` and `after` are the two events around the reading: each event's host time, and the
/// CLOCK_MONOTONIC_RAW that the event recorded.
#[derive(Debug, Default)]
struct Reading {
    before: (i64, i64),
    after: (i64, i64),
    raw: i64,
    host: i64,
}

impl Reading {
    /// Returns by how much the session's time of the guest's clock is later than the host's own time.
    fn distance(&self) -> i64 {
        let Reading { before, after, raw, host } = self;
        // The guest derives both clocks from one counter, so readings between two events lie on a straight
        // line.
        let along = i128::from(raw - before.0) * i128::from(after.1 - before.1);
        before.1 - host + (along / i128::from(after.0 - before.0)) as i64
    }
}

/// Returns the distances of the readings in a session, sorted, and the largest bound of their events, in
/// nanoseconds.
pub fn distances(session: &Path) -> (Vec<i64>, u64) {
    let (mut found, mut reading, mut bound) = (Vec::new(), Reading::default(), 0);
    HYPERTRACE.report_each(session, |line| {
        let number = |name| line.number(name).unwrap() as i64;
        match &*line.event {
            "ptp_before" => reading.before = (number("raw_ns"), line.ts_ns),
            "ptp_after" => reading.after = (number("raw_ns"), line.ts_ns),
            "ptp" => {
                (reading.raw, reading.host) = (number("raw_ns"), number("host_unix_ns"));
                found.push(std::mem::take(&mut reading).distance());
            }
            _ => return,
        }
        bound = bound.max(line.bound_ns.unwrap());
    });
    found.sort_unstable();
    (found, bound)
}

#[test]
#[ignore = "boots a machine and a guest in it, with both kernels recorded: cargo xtask full"]
fn a_guests_times_are_those_of_kvms_own_clock() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = [ptp(&linux), recorder()].concat();
    let script = format!("{LOAD_PTP}; hypertrace forward ptp 24 50; echo \"ended: $?\"");
    let qemu = kvm_guest(&linux, folder.path(), &FILE, &files, &script);

    let (console, shared) = run(
        machine,
        &format!(
            "serve --file /dev/shm/guest; host; linux {qemu}; end $host host; end $server serve"
        ),
    );

    assert!(console.contains("ended: 0"), "{console}");
    let (distances, bound) = distances(&shared.join("S"));
    assert_eq!(distances.len(), 24);
    println!("bound {bound} ns, distances {distances:?} ns");
    assert!(bound <= 1_000, "{bound}");
    // A program reads the other clock before the event gets its time. So an event's time is later than this
    // reading, by as long as the machine took between the two.
    let (least, middle) = (distances[0], distances[distances.len() / 2]);
    assert!((-3_000..3_000).contains(&least) && middle < 5_000, "{distances:?}");

    let info = HYPERTRACE.info(&shared.join("S"));
    let clocks = &info["kvm_tscs"];
    let offsets = Vec::from_iter(clocks.as_array().unwrap().iter().map(|word| {
        let used = word["used"].as_array().unwrap();
        assert!(used.len() == 1 && word["is_ambiguous"] == false, "{word}");
        used[0]["offset"].as_i64().unwrap()
    }));
    // The guest's TSC began with the guest, later than the host's TSC, so KVM's offset is negative.
    assert!(
        offsets.len() >= 2 && offsets.iter().all(|of| *of < 0 && *of == offsets[0]),
        "{info:#}"
    );
    // Exactly one host thread was in guest mode at all events of each guest CPU's kernel.
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
