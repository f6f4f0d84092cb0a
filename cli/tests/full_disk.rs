//! A disk that is full in the middle of the demo: the guest goes on to its end, what is lost is counted,
//! and what was written is a session.

use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::{babeltrace2, packets};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn demo_on_a_disk_of(size: &str) {
    let Some(disk) = Mount::new("tmpfs", &format!("size={size}")) else { return };
    let session = disk.path().join("S");

    let ran = run(&mut HYPERTRACE.demo(&session, 2));

    let demo: Demo = serde_json::from_str(&ran.stdout).unwrap();
    let said = ran.failed(1);
    for part in [session.to_str().unwrap(), "No space left on device", &demo.lost.to_string()] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // All that is missing of the guests' events is counted; stamps and the VMM's events are, too.
    assert!(demo.lost > 0 && demo.ring_events + demo.lost >= 200_000, "{demo:?}");
    assert_eq!(packets::committed(&session).unwrap().all(), demo.records);
    assert_eq!(HYPERTRACE.report(&session).len() as u64, demo.records);
    assert_eq!(HYPERTRACE.stat(&session)["total"]["lost"], demo.lost);
    let Some(read) = babeltrace2::read(&session.join("ctf")) else { return };
    assert_eq!(read.complete(), demo.records);
}

#[test]
fn that_holds_half_of_the_run() {
    demo_on_a_disk_of("3m");
}

#[test]
fn that_holds_hardly_the_begin() {
    demo_on_a_disk_of("200k");
}
