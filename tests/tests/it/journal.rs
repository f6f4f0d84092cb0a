//! Sessions that are written to a descriptor as a journal, and received into a directory.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use hypertrace::{Emit, ProducerState};
use hypertrace_abi::event_type;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_test_support::kept::Value;
use hypertrace_tests::host::{self, Host, Recorded};
use hypertrace_tests::{FULL_SIZE, babeltrace2};
use hypertrace_timeline::SessionStat;
use hypertrace_trace::receive::{ReceiveError, Received, receive};
use hypertrace_trace::session_json::Domain;
use hypertrace_trace::{Destination, Output, Session, SessionConfig, SessionError, Share};
use tempfile::TempDir;

const CLIENTS: u32 = 3;
/// Number of events of each producer, enough for several files of the smallest size.
const EVENTS: u64 = 20_000;

/// Geometry whose rings are full after some thousand events.
fn small_rings() -> Geometry {
    Geometry {
        clients: CLIENTS,
        ring_bytes: 128 << 10,
        block_bytes: 8 << 10,
        ..Geometry::default()
    }
}

/// Returns a host whose session is written to this descriptor.
fn host(journal: impl Into<OwnedFd>, with: impl FnOnce(&mut SessionConfig)) -> Host {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SessionConfig::new(dir.path());
    config.destination = Destination::Journal(journal.into(), "J".into());
    config.file_bytes = 1 << 18;
    with(&mut config);
    Host::of(dir, config, small_rings(), RingMode::Discard)
}

fn receive_from(
    mut journal: impl Read + Send + 'static,
    dir: PathBuf,
) -> JoinHandle<Result<Received, ReceiveError>> {
    thread::spawn(move || receive(&mut journal, &dir, Share::Owner))
}

/// Emits numbered events of a guest's client, without loss if the client `waits` for room. Returns the number
/// of recorded events.
fn emit(host: &Host, index: u32, waits: bool) -> u64 {
    let state = ProducerState::new();
    let client = host.lease(index, &state, "guest");
    let mut recorded = 0;
    for n in 0..EVENTS {
        // The ring is also full while the journal's reader is slow.
        while waits && !client.wait_for_room(1, 8) {
            thread::yield_now();
        }
        let (site, fields) = event_type!("step", client = index, n);
        recorded += u64::from(client.emit(site, fields) == Emit::Recorded);
    }
    client.release();
    recorded
}

/// Emits on all clients and on a thread of the VMM while the session is drained.
fn emit_all(host: &Host) {
    let drain = host.drain();
    thread::scope(|scope| {
        for index in 0..CLIENTS {
            scope.spawn(move || assert_eq!(emit(host, index, true), EVENTS));
        }
        scope.spawn(|| {
            assert!(host.session.attach("vmm"));
            for n in 0..EVENTS {
                while !host.session.has_room(1, 8) {
                    thread::yield_now();
                }
                host.session.emit(event_type!("step", client = CLIENTS, n));
            }
        });
    });
    drain.finish();
}

/// Asserts that the session has each event of [`emit_all`] once, for all readers.
#[track_caller]
fn check_all(recorded: &Recorded) {
    let summary = &recorded.summary;
    assert_eq!((summary.lost, summary.ring_events), (0, u64::from(CLIENTS) * EVENTS));
    let mut steps = BTreeSet::new();
    for event in recorded.events().iter().filter(|event| &*event.name == "step") {
        let number = |at: usize| match event.fields[at].1 {
            Value::Unsigned(number) => number,
            ref other => panic!("{other:?}"),
        };
        assert!(steps.insert((number(0), number(1))), "{event:?} is there twice");
    }
    assert_eq!(steps.len() as u64, u64::from(CLIENTS + 1) * EVENTS);
    let session = recorded.open();
    assert!(session.json().finished);
    let stat = SessionStat::of(&session).unwrap();
    assert_eq!((stat.total.records, stat.total.lost), (summary.records, 0));
    if let Some(count) = babeltrace2::count(&recorded.ctf()) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn a_session_through_a_journal_has_all_events() {
    let (from, to) = UnixStream::pair().unwrap();
    let host = host(to, |_| ());
    let receiver = receive_from(from, host.dir().to_owned());

    emit_all(&host);
    let recorded = host.finish();

    let received = receiver.join().unwrap().unwrap();
    assert!(received.files > CLIENTS as usize + 1, "files were begun while it ran: {received:?}");
    check_all(&recorded);
}

#[test]
fn events_for_a_reader_that_comes_late_are_recorded_or_counted() {
    let (from, to) = UnixStream::pair().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let tell = Arc::clone(&told);
    let host = host(to, |config| {
        config.on_write_failed = Some(Box::new(move |_| _ = tell.fetch_add(1, Relaxed)));
    });
    // First the socket and the journal's buffer become full, and then a ring becomes full.
    let (mut emitted, mut recorded) = (0, 0);
    while host.session.summary().write_failures == 0 {
        assert!(emitted < 1000 * EVENTS, "all is taken");
        recorded += emit(&host, 0, false);
        emitted += EVENTS;
        while host.chip.drain_pass(std::time::Duration::from_secs(1)) {}
    }
    let failed = host.session.summary();
    assert!(failed.write_failures > 0 && told.load(Relaxed) == 1, "{failed:?}");
    let receiver = receive_from(from, host.dir().to_owned());

    // The reader now reads, so no further event is lost.
    emit_all(&host);
    let late = host.finish();

    receiver.join().unwrap().unwrap();
    let stream = late.client(0);
    assert_eq!(stream.events, recorded + EVENTS);
    assert_eq!(stream.lost_full, emitted - recorded);
    let stat = SessionStat::of(&late.open()).unwrap();
    assert_eq!((stat.total.records, stat.total.lost), (late.summary.records, late.summary.lost));
}

#[test]
fn a_reader_that_is_gone_is_a_failed_write_and_all_events_are_counted() {
    let (from, to) = UnixStream::pair().unwrap();
    let host = host(to, |_| ());
    let drain = host.drain();
    drop(from);
    let recorded = emit(&host, 0, false);
    drain.finish();

    let (summary, ended) = host.session.clone().end();

    assert!(matches!(ended, Err(SessionError::Write(_))), "{ended:?}");
    assert!(summary.write_failures > 0);
    let stream = summary.streams.iter().find(|s| s.domain == Domain::Guest).unwrap();
    assert_eq!(stream.events + stream.lost_overwritten, recorded, "{stream:?}");
    assert_eq!(stream.lost_full, EVENTS - recorded, "{stream:?}");
}

#[test]
fn a_socket_without_a_reader_is_an_error_of_the_creation() {
    let (from, to) = UnixStream::pair().unwrap();
    drop(from);
    let config = SessionConfig::new("J")
        .with(|config| config.destination = Destination::Journal(to.into(), "J".into()));

    let failed = Session::create(config).unwrap_err();

    assert!(matches!(failed, SessionError::Write(_)), "{failed:?}");
}

#[test]
fn a_journal_that_cannot_be_is_refused_at_the_creation() {
    let refused = |journal: OwnedFd, with: &dyn Fn(&mut SessionConfig)| {
        let mut config = SessionConfig::new("J")
            .with(|config| config.destination = Destination::Journal(journal, "J".into()));
        with(&mut config);
        match Session::create(config).unwrap_err() {
            SessionError::Journal(why) => why.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let (socket, _other) = UnixStream::pair().unwrap();
    let socket = || OwnedFd::from(socket.try_clone().unwrap());

    let snapshots = refused(socket(), &|config| config.output = Output::Snapshots);
    let nothing = refused(socket(), &|config| config.output = Output::Nothing);

    assert!(snapshots.contains("flight recorder"), "{snapshots}");
    assert!(nothing.contains("no output"), "{nothing}");
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    let (_from, pipe) = io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    for other in [datagrams.into(), pipe.into(), OwnedFd::from(file)] {
        let why = refused(other, &|_| ());
        assert!(why.contains("stream socket"), "{why}");
    }
}

#[test]
fn what_needs_a_directory_is_refused_of_a_session_in_a_journal() {
    let (to, _from) = UnixStream::pair().unwrap();
    let config = SessionConfig::new("J")
        .with(|config| config.destination = Destination::Journal(to.into(), "J".into()));
    let session = Session::create(config).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let journal = tempfile::tempfile().unwrap();

    let served = session.serve().map(drop).unwrap_err();
    let simple = session.set_simple_file(&dir.path().join("simple")).unwrap_err();
    let destination = Destination::Journal(journal.into(), dir.path().into());
    let config = SessionConfig::new(dir.path()).with(|config| config.destination = destination);
    let recovered = Session::recover(config, session.uuid(), |_| ()).unwrap_err();

    for error in [&served as &dyn std::error::Error, &simple, &recovered] {
        let why = error.source().unwrap().to_string();
        assert!(why.contains("directory"), "{error}: {why}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A short journal, with the beginning of each of its frames.
struct Sample {
    bytes: Vec<u8>,
    frames: Vec<usize>,
}

impl Sample {
    fn new() -> Sample {
        let (to, mut from) = UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut config = SessionConfig::new("J");
        config.destination = Destination::Journal(to.into(), "J".into());
        let session = Session::create(config).unwrap();
        session.attach("vmm");
        for n in 0..20u64 {
            session.emit(event_type!("tick", n, text = "some text"));
        }
        session.finish().unwrap();
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        let mut frames = vec![0];
        loop {
            let at = frames[frames.len() - 1];
            let length = u32::from_le_bytes(bytes[at + 24..at + 28].try_into().unwrap());
            let next = at + 72 + length as usize;
            if next == bytes.len() {
                return Sample { bytes, frames };
            }
            frames.push(next);
        }
    }

    /// Returns the places of all bytes in the headers of frames. The function also returns the places of
    /// other bytes: of all other bytes, or of one in 29 in a debug build.
    fn places(&self) -> impl Iterator<Item = usize> {
        let step = if FULL_SIZE { 1 } else { 29 };
        let is_in_header = |at| at - (self.frame_of(at) as usize) < 72;
        (0..self.bytes.len()).filter(move |at| at % step == 0 || is_in_header(*at))
    }

    /// Returns the beginning of the frame with this byte.
    fn frame_of(&self, at: usize) -> u64 {
        self.frames[self.frames.partition_point(|begin| *begin <= at) - 1] as u64
    }

    /// Receives a damaged form of the journal. Returns the error, and the number of events that can be read.
    fn received(&self, damage: impl FnOnce(&mut Vec<u8>)) -> (ReceiveError, Option<usize>) {
        let mut bytes = self.bytes.clone();
        damage(&mut bytes);
        let dir = scratch();
        let failed = receive(&mut &bytes[..], dir.path(), Share::Owner).unwrap_err();
        let is_begun = dir.path().join("session.json").exists();
        if !is_begun {
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
        (failed, is_begun.then(|| host::events(dir.path()).len()))
    }
}

/// Returns a directory, in memory if this machine has a file system in memory.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn each_changed_byte_is_an_error_with_its_frame_and_the_frames_before_are_a_session() {
    let sample = Sample::new();
    for at in sample.places() {
        let (failed, events) = sample.received(|bytes| bytes[at] ^= 0x10);

        match failed {
            ReceiveError::Damaged { at: frame, .. } => assert_eq!(frame, sample.frame_of(at)),
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(events.is_some(), at >= sample.frames[3], "byte {at}");
    }
}

#[test]
fn a_journal_that_is_cut_anywhere_is_an_error_and_a_session() {
    let sample = Sample::new();
    for at in sample.places() {
        let (failed, events) = sample.received(|bytes| bytes.truncate(at));

        match failed {
            ReceiveError::Unfinished { at: end } => assert_eq!(end, at as u64),
            ReceiveError::Damaged { at: frame, .. } => assert_eq!(frame, sample.frame_of(at)),
            other => panic!("cut at {at}: {other:?}"),
        }
        assert_eq!(events.is_some(), at >= sample.frames[3], "cut at {at}");
    }
}
