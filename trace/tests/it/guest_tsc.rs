//! Tests of the TSCs of guests that the VMM gives to a session.

use crate::common;
use common::session;
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::session_json::{GuestTscJson, SessionJson};
use hypertrace_trace::{GuestTsc, Session, SessionConfig};
use std::path::Path;

fn told(dir: &Path) -> Vec<GuestTscJson> {
    let text = std::fs::read_to_string(dir.join("session.json")).unwrap();
    let json: SessionJson = serde_json::from_str(&text).unwrap();
    json.guest_tscs
}

#[test]
fn each_epoch_has_the_tscs_that_were_told_in_it() {
    let (_dir, session) = session(|_| ());
    let dir = session.dir().to_owned();
    let (all, own) = (GuestTsc::unscaled(-5), GuestTsc { offset: 7, multiplier: 3, shift: 1 });

    assert!(session.set_guest_tsc(None, Some(GuestTsc::unscaled(-4))));
    assert!(session.set_guest_tsc(None, Some(all)));
    assert!(session.set_guest_tsc(Some(2), Some(own)));
    // The device is reset.
    let epoch = session.begin_generation(0, &[]);
    assert!(session.set_guest_tsc(Some(2), Some(own)));
    session.begin_epoch(epoch + 1);
    session.finish().unwrap();

    assert_eq!(
        told(&dir),
        [
            GuestTscJson { epoch: 0, client: None, tsc: all },
            GuestTscJson { epoch: 0, client: Some(2), tsc: own },
            GuestTscJson { epoch, client: Some(2), tsc: own },
        ]
    );
}

#[test]
fn what_is_recovered_of_a_session_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let session = Session::create(SessionConfig::new(dir)).unwrap();
    assert!(session.set_guest_tsc(None, Some(GuestTsc::unscaled(9))));
    let clone = session.clone();
    session.finish().unwrap();
    let text = std::fs::read_to_string(dir.join("session.json")).unwrap();
    let killed = text.replace("\"finished\": true", "\"finished\": false");
    std::fs::write(dir.join("session.json"), killed).unwrap();

    Session::recover(SessionConfig::new(dir), clone.uuid(), |_| ()).unwrap();

    let recovered = dir.join("recovered");
    assert_eq!(
        told(&recovered),
        [GuestTscJson { epoch: 0, client: None, tsc: GuestTsc::unscaled(9) }]
    );
}
