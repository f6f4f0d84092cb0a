//! The same guest against a real session, whose files are then read.

use crate::bytes::Bytes;
use crate::honest::Kept;
use crate::world::World;
use crate::{HONEST, Setup, guest};
use hypertrace_timeline::{ClockMaps, Kind, SessionStat, Timeline, Value};
use hypertrace_trace::{Session, SessionConfig, Summary};
use std::path::Path;

/// A session that was written and read again.
#[derive(Debug)]
pub struct Written {
    /// What it says it holds.
    pub summary: Summary,
    /// Lost events of all streams: a reader says so.
    pub lost: u64,
}

/// Runs a guest made of these bytes against a session in a directory of its
/// own, which is gone afterwards.
///
/// # Panics
/// If the device, the ring, the session or its reader broke a rule.
pub fn session(data: &[u8]) -> Written {
    let shm = Path::new("/dev/shm");
    let dir = match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    };
    session_in(dir.expect("a temporary directory").path(), data)
}

/// The same in this directory, which is empty.
///
/// # Panics
/// As [`session`].
pub fn session_in(dir: &Path, data: &[u8]) -> Written {
    let mut bytes = Bytes::new(data);
    let setup = Setup::decode(&mut bytes);
    let (device, guest) = guest::memory();
    // Small, so that packets and segments end often.
    let config = SessionConfig {
        packet_bytes: 4096,
        segment_bytes: 16 << 10,
        host_rings: 1,
        host_ring_bytes: 64 << 10,
        ..SessionConfig::new(dir)
    };
    let session = Session::create(config).expect("an empty directory");
    let state = Default::default();
    let (uuid, frequency) = (session.uuid(), session.host_frequency());
    let mut world = World::new(device, &guest, &state, setup, uuid, frequency, session.clone());
    world.run(bytes);
    let summary = session.clone().finish().expect("room on the disk");
    assert_eq!(summary.write_failures, 0);
    let kept = read(dir, &summary);
    if setup.contained {
        world.honest().check(&kept);
    }
    let lost = summary.lost;
    Written { summary, lost }
}

/// Reads everything; gives what there is of the honest client.
fn read(dir: &Path, summary: &Summary) -> Kept {
    let session = hypertrace_timeline::Session::open(dir).expect("a session");
    SessionStat::of(&session).expect("statistics of it");
    let maps = ClockMaps::of(&session).expect("maps of its clocks");
    let sessions = [(session, maps)];
    let mut kept = Kept::default();
    let mut records = 0;
    let mut last = i64::MIN;
    for event in Timeline::new(&sessions).expect("a timeline") {
        let event = event.expect("an event");
        records += 1;
        assert!(event.ts_ns >= last, "{} after {last}", event.ts_ns);
        last = event.ts_ns;
        let number = match event.fields.first() {
            Some((_, Value::Unsigned(number))) => *number,
            _ => continue,
        };
        match (&*event.name, event.kind) {
            _ if event.client != Some(HONEST) => {}
            ("honest", Kind::Event) => kept.events.push(number),
            ("honest_point", Kind::ReferencePoint) => kept.points.push(number),
            _ => {}
        }
    }
    assert_eq!(records, summary.records);
    for stream in summary.streams.iter().filter(|s| s.domain == "guest" && s.client == HONEST) {
        (kept.full, kept.overwritten) = (stream.lost_full, stream.lost_overwritten);
    }
    kept
}
