//! A disk that is full in the middle of the demo: the guest goes on to its end, what is lost is counted,
//! and what was written is a session.

use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::{babeltrace2, packets};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Gives what the demo counted as lost, and what the session tells of that.
fn demo_on_a_disk_of(size: &str) -> Option<(u64, u64)> {
    let disk = Mount::new("tmpfs", &format!("size={size}"))?;
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
    if let Some(read) = babeltrace2::read(&session.join("ctf")) {
        assert_eq!(read.complete(), demo.records);
    }
    Some((demo.lost, HYPERTRACE.stat(&session)["total"]["lost"].as_u64().unwrap()))
}

#[test]
fn that_holds_half_of_the_run() {
    if let Some((lost, told)) = demo_on_a_disk_of("3m") {
        assert_eq!(told, lost);
    }
}

#[test]
fn that_holds_hardly_the_begin() {
    if let Some((lost, told)) = demo_on_a_disk_of("200k") {
        // A thread that never got a file of its own has nowhere to tell it.
        assert!(told > 0 && told <= lost, "{told} of {lost}");
    }
}
