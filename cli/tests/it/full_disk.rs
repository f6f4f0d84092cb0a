//! `demo` on disks that are too small: the number of lost events is the number of missing events.

use std::fs;

use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::namespace::Mount;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of ring events and reference points of the guest of `demo --vcpus 1`.
const EMITTED: u64 = 100_000 + 1_000;

#[test]
fn a_demo_on_a_full_disk_says_what_is_missing() {
    for size in ["28k", "400k"] {
        let Some(disk) = Mount::new("tmpfs", &format!("size={size}")) else { return };
        let out = disk.path().join("s");

        let ran = run(&mut HYPERTRACE.demo(&out, 1));

        assert_eq!(ran.code, Some(1), "{ran:?}");
        let told: Demo = serde_json::from_str(&ran.stdout).unwrap();
        let recorded = told.ring_events + told.reference_points;
        // Events of the VMM are lost, too.
        assert!(told.lost >= EMITTED - recorded, "{told:?}");
        let said = format!("{} events are lost", told.lost);
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        assert!(fs::exists(out.join("session.json")).unwrap());
    }
}
