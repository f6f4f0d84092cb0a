//! Tests of snapshots that a guest requests with a trigger on the guest's reference points.

use crate::common;
use common::guest::{Guest, geometry};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::schema::name_hash;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_trace::{Output, Session, SessionConfig, SnapshotLimit};
use std::time::Duration;

struct Recorder {
    _dir: tempfile::TempDir,
    session: Session,
    guest: Guest,
    fired: u64,
}

impl Recorder {
    fn new(limit: SnapshotLimit) -> Recorder {
        let (dir, session) = common::session(|config| {
            config.output = Output::Snapshots;
            config.guests_snapshots = limit;
        });
        session.add_trigger("on alarm do snapshot").unwrap();
        let guest = Guest::with(0, &geometry(), RingMode::Overwrite);
        Recorder { _dir: dir, session, guest, fired: 0 }
    }

    /// Makes the guest fire the trigger, and makes passes until the triggers' thread has done the action.
    fn fire(&mut self) {
        self.guest.emit(event_type!("e", fired = self.fired));
        self.session.reference_point(&ReferencePoint {
            client: 0,
            seq: 0,
            id: 0,
            name_hash: name_hash("alarm"),
            cpu: 0,
            guest_time: 0,
            host_time: 1,
            words: &[],
        });
        self.fired += 1;
        let done = format!(" {} done,", self.fired);
        while !self.session.triggers().contains(&done) {
            self.guest.pass(&self.session);
            std::thread::yield_now();
        }
    }

    fn snapshots(&self) -> usize {
        let entries = std::fs::read_dir(self.session.dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("snapshot-")).count()
    }
}

#[test]
fn a_guest_takes_no_more_snapshots_than_it_may() {
    let mut recorder =
        Recorder::new(SnapshotLimit { interval: Duration::ZERO, ..Default::default() });
    for _ in 0..20 {
        recorder.fire();
    }
    assert_eq!(recorder.snapshots(), 16);
    assert_eq!(recorder.session.summary().snapshots_refused, 4);
    let status = recorder.session.execute("info trace").unwrap();
    assert!(status.contains("16 snapshots, 4 refused to the guest's triggers"), "{status}");
}

#[test]
fn a_guest_takes_no_snapshot_soon_after_another() {
    assert_eq!(SessionConfig::new("s").guests_snapshots.interval, Duration::from_secs(1));
    let mut recorder =
        Recorder::new(SnapshotLimit { interval: Duration::MAX, ..Default::default() });
    for _ in 0..10 {
        recorder.fire();
    }
    assert_eq!(recorder.snapshots(), 1);
    assert_eq!(recorder.session.summary().snapshots_refused, 9);
}

#[test]
fn the_owner_takes_snapshots_whatever_the_guest_did() {
    let mut recorder = Recorder::new(SnapshotLimit { most: 0, ..Default::default() });
    recorder.fire();
    assert_eq!(recorder.snapshots(), 0);
    let session = recorder.session.clone();
    let owner = std::thread::spawn(move || session.snapshot());
    while !owner.is_finished() {
        recorder.guest.pass(&recorder.session);
    }
    owner.join().unwrap().unwrap();
    assert_eq!(recorder.snapshots(), 1);
}

#[test]
fn records_from_before_an_epoch_keep_their_timestamps() {
    let mut recorder = Recorder::new(SnapshotLimit::default());
    recorder.guest.emit(event_type!("e", before = 1u64));
    recorder.guest.pass(&recorder.session);
    std::thread::sleep(Duration::from_millis(50));
    recorder.session.begin_epoch(1);
    recorder.guest.emit(event_type!("e", after = 2u64));
    recorder.fire();
    assert_eq!(recorder.snapshots(), 1);
    let faults = recorder.session.summary().faults;
    assert_eq!(faults.get("time_future"), None, "{faults:?}");
}
