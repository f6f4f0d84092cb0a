//! Snapshots of a machine, restored: in each process a session of its own, and both together have every event.

use hypertrace::{Channel, Client, LeaseInfo, ProducerState};
use hypertrace_abi::event_type;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::Emit;
use hypertrace_abi::sink::EventSink;
use hypertrace_device::{Chip, ChipConfig, ChipState, Memory, Region};
use hypertrace_tests::babeltrace2;
use hypertrace_tests::host::{events, geometry};
use hypertrace_tests::random::Random;
use hypertrace_timeline::{Domain, Event, Stream, Value};
use hypertrace_trace::{Output, Session, SessionConfig, Summary};
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Clients of the guests on threads of this process.
const CLIENTS: u32 = 3;

/// A device and its session, as one process of a VMM has them.
struct Vmm {
    session: Session,
    chip: Chip<Session>,
    dir: TempDir,
}

/// Session that has ended.
struct Ended {
    summary: Summary,
    dir: TempDir,
}

fn memory(file: &File) -> Memory {
    Memory::from_file(geometry(CLIENTS), file.try_clone().unwrap()).unwrap()
}

fn config(session: &Session) -> ChipConfig {
    let ring_mode = session.ring_mode();
    ChipConfig { ring_mode, session: session.uuid(), ..ChipConfig::default() }
}

fn session(output: Output) -> (Session, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Session::create(SessionConfig { output, ..SessionConfig::new(dir.path()) }).unwrap(), dir)
}

impl Vmm {
    /// Boots a machine with this memory.
    fn boot(file: &File, output: Output) -> Vmm {
        let (session, dir) = session(output);
        Vmm { chip: Chip::new(memory(file), &config(&session), session.clone(), ()), session, dir }
    }

    /// Restores a machine in another process, on memory with the saved contents.
    fn restore(file: &File, state: &str, output: Output) -> Vmm {
        let (session, dir) = session(output);
        let state: ChipState = serde_json::from_str(state).unwrap();
        let chip = Chip::restore(memory(file), &config(&session), &state, session.clone(), ());
        Vmm { chip: chip.unwrap(), session, dir }
    }

    fn save(&self) -> String {
        serde_json::to_string(&self.chip.state()).unwrap()
    }

    /// Ends the process.
    fn end(self) -> Ended {
        let Vmm { session, chip, dir } = self;
        session.last_pass();
        chip.drain_all();
        chip.forsake();
        Ended { summary: session.finish().unwrap(), dir }
    }
}

/// A guest that knows nothing of snapshots.
struct Guest<'m> {
    client: Client<'m>,
    emitted: u64,
    recorded: Vec<u64>,
}

impl<'m> Guest<'m> {
    fn new(channel: Channel<'m>, index: u32, state: &'m ProducerState) -> Guest<'m> {
        let info = LeaseInfo { pid: 1, tid: index, clock: ClockKind::Tsc, name: "steady" };
        let client = Client::lease(channel, index, state, u64::from(index) + 77, &info).unwrap();
        Guest { client, emitted: 0, recorded: Vec::new() }
    }

    /// Emits events of several types.
    fn emit(&mut self, events: u64) {
        for _ in 0..events {
            let n = self.emitted;
            let emit = match n % 3 {
                0 => emit(&self.client, event_type!("first", n)),
                1 => emit(&self.client, event_type!("second", n, twice = 2 * n)),
                _ => emit(&self.client, event_type!("third", n, text = "three")),
            };
            if emit == Emit::Recorded {
                self.recorded.push(n);
            }
            self.emitted += 1;
        }
    }
}

fn emit<S: hypertrace_abi::event::Site, F: hypertrace_abi::event::Fields>(
    client: &Client<'_>,
    (site, fields): (S, F),
) -> Emit {
    client.emit(site, fields)
}

fn number(event: &Event) -> Option<u64> {
    let is_ours = ["first", "second", "third"].contains(&&*event.name);
    let field = event.fields.iter().find(|(key, _)| **key == *"n").filter(|_| is_ours);
    field.map(|(_, value)| match value {
        Value::Unsigned(value) => *value,
        other => panic!("{other:?}"),
    })
}

/// Returns the numbers of a session's events of a client, and checks what every session promises.
fn check(ended: &Ended, client: u32) -> Vec<u64> {
    let Ended { summary, dir } = ended;
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    assert_eq!((summary.time_faults, summary.write_failures), (0, 0));
    let events = events(dir.path());
    assert!(events.iter().all(|event| *event.name != *"untyped"), "{events:?}");
    read_by_others(dir.path(), summary);
    events.iter().filter(|event| event.client == Some(client)).filter_map(number).collect()
}

fn read_by_others(dir: &Path, summary: &Summary) {
    if let Some(count) = babeltrace2::count(&dir.join("ctf")) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn guests_continue_over_many_snapshots_and_each_event_is_in_one_session_or_lost() {
    let mut random = Random::seeded();
    let file = tempfile::tempfile().unwrap();
    let mut vmm = Vmm::boot(&file, Output::Trace);
    let guests = memory(&file);
    let rings = guests.region(Region::Rings).unwrap().words();
    let channel = Channel::local(&vmm.chip.config_page(), rings).unwrap();
    let states = [const { ProducerState::new() }; CLIENTS as usize];
    let mut guests: Vec<_> =
        (0..).zip(&states).map(|(index, state)| Guest::new(channel, index, state)).collect();
    let (mut lost, mut recorded, mut leases) = (0, vec![Vec::new(); guests.len()], 0);
    for _ in 0..25 {
        for _ in 0..random.below(4) {
            for guest in &mut guests {
                // Some fill the ring.
                let most = 1 << random.below(15);
                guest.emit(random.below(most));
            }
            if random.below(2) == 0 {
                vmm.chip.drain_pass(Duration::from_millis(1));
            }
        }
        let state = vmm.save();
        let next = Vmm::restore(&file, &state, Output::Trace);
        let ended = std::mem::replace(&mut vmm, next).end();
        lost += ended.summary.lost;
        leases += ended.summary.leases;
        for (client, recorded) in (0..).zip(&mut recorded) {
            recorded.extend(check(&ended, client));
        }
    }
    for guest in &guests {
        guest.client.poll();
    }
    let ended = vmm.end();
    lost += ended.summary.lost;

    let missing: u64 = guests.iter().map(|g| g.emitted - g.recorded.len() as u64).sum();
    assert_eq!(lost, missing, "emitted = recorded + lost");
    assert_eq!(leases, u64::from(CLIENTS), "no guest had to lease again");
    for (guest, recorded) in guests.iter().zip(recorded) {
        assert_eq!(recorded, guest.recorded, "each once, in order");
    }
}

#[test]
fn a_rollback_is_a_generation_of_its_own_in_the_same_session() {
    // Two guests that do the same, so that the second one's memory is the first one's at the snapshot.
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let (session, dir) = session(Output::Trace);
    let boot = |file| Chip::new(memory(file), &config(&session), session.clone(), ());
    let first = boot(&files[0]);
    let other = Vmm::boot(&files[1], Output::Nothing);
    let memories = files.each_ref().map(memory);
    let states = [const { ProducerState::new() }; 2];
    let [mut guest, mut again] = [0, 1].map(|n| {
        let rings = memories[n].region(Region::Rings).unwrap().words();
        let channel = Channel::local(&first.config_page(), rings).unwrap();
        Guest::new(channel, 1, &states[n])
    });
    guest.emit(1000);
    again.emit(1000);
    let state = first.state();
    assert_eq!(other.chip.state().clients[1].position, state.clients[1].position);
    // This is undone.
    guest.emit(500);
    first.drain_all();
    drop(first);

    let config = config(&session);
    let rolled = Chip::restore(memory(&files[1]), &config, &state, session.clone(), ()).unwrap();
    again.emit(700);
    let ended = Vmm { session, chip: rolled, dir }.end();

    let numbers = check(&ended, 1);
    assert_eq!(numbers, (0..1500).chain(1000..1700).collect::<Vec<_>>());
    assert_eq!((ended.summary.ring_events, ended.summary.lost), (2200, 0));
    let session = hypertrace_timeline::Session::open(ended.dir.path()).unwrap();
    let own = |stream: &&Stream| (stream.domain, stream.client) == (Domain::Guest, 1);
    let stream = session.streams().iter().find(own).unwrap();
    let mut records = stream.records(session.classes());
    let mut in_epoch = [0; 2];
    while let Some(record) = records.read().unwrap() {
        in_epoch[record.packet.epoch as usize] += 1;
    }
    assert_eq!(in_epoch, [1501, 700], "with the lease");
}

#[test]
fn a_flight_recorders_snapshot_has_what_happened_since_the_restore() {
    let file = tempfile::tempfile().unwrap();
    let vmm = Vmm::boot(&file, Output::Snapshots);
    let guest = memory(&file);
    let rings = guest.region(Region::Rings).unwrap().words();
    let channel = Channel::local(&vmm.chip.config_page(), rings).unwrap();
    let state = ProducerState::new();
    let mut guest = Guest::new(channel, 1, &state);
    guest.emit(5000);
    let saved = vmm.save();
    guest.client.poll();

    let vmm = Vmm::restore(&file, &saved, Output::Snapshots);
    guest.emit(300);
    let session = vmm.session.clone();
    let asks = std::thread::spawn(move || session.snapshot().unwrap());
    while !asks.is_finished() {
        vmm.chip.drain_pass(Duration::from_secs(1));
        std::thread::yield_now();
    }
    let snapshot = asks.join().unwrap();

    let events = events(&snapshot);
    assert_eq!(
        events.iter().filter_map(number).collect::<Vec<_>>(),
        (5000..5300).collect::<Vec<_>>()
    );
    let session = hypertrace_timeline::Session::open(&snapshot).unwrap();
    let own = |s: &&hypertrace_timeline::StreamJson| (s.domain, s.client) == (Domain::Guest, 1);
    let stream = session.json().streams.iter().find(own).unwrap();
    assert_eq!((stream.lost_overwritten, &*stream.name), (0, "steady"));
    assert!(stream.faults.is_empty(), "{:?}", stream.faults);
}
