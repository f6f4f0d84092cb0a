//! Snapshots of a machine, restored. Each process has its own session, and all sessions together have every
//! event. `HYPERTRACE_TEST_RESTORES` is the number of restores of a guest in KVM.

use hypertrace::{Channel, Client, LeaseInfo, ProducerState};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, Producer};
use hypertrace_device::{Chip, ChipConfig, ChipState, Geometry, Memory, Pages, Region};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_test_support::kept::{Event, Value};
use hypertrace_test_support::steps::Steps;
use hypertrace_tests::child;
use hypertrace_tests::host::{events, geometry};
use hypertrace_tests::random::Random;
use hypertrace_tests::{FULL_SIZE, babeltrace2, capability, kvm, this_test};
use hypertrace_timeline::{Domain, Stream};
use hypertrace_trace::{Output, Session, SessionConfig, Summary};
use hypertrace_vmm::{DeviceConfig, Hypertrace, Saved};
use kvm_vmm::{Answer, Machine, Progress, Snapshot, attach_window, record_in};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;

/// Clients of the guests on threads of this process.
const CLIENTS: u32 = 3;

/// A device and its session in one process of a VMM.
struct Vmm {
    session: Session,
    chip: Chip,
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

fn session(output: Output) -> (Session, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (
        Session::create(SessionConfig::new(dir.path()).with(|config| config.output = output))
            .unwrap(),
        dir,
    )
}

impl Vmm {
    /// Boots a machine with this memory.
    fn boot(file: &File, output: Output) -> Vmm {
        let (session, dir) = session(output);
        Vmm {
            chip: Chip::new(memory(file), &ChipConfig::default(), session.clone(), ()),
            session,
            dir,
        }
    }

    /// Restores a machine as a new process would. The memory of `file` gets the saved contents.
    fn restore(file: &File, saved: &str, output: Output) -> Vmm {
        let (session, dir) = session(output);
        let (state, pages): (ChipState, Vec<Pages>) = serde_json::from_str(saved).unwrap();
        // The file still has the previous machine's contents, whereas the memory of a new device is empty.
        let memory = memory(file);
        memory.load(&pages).unwrap();
        let chip = Chip::new(memory, &ChipConfig::default(), session.clone(), ());
        chip.restore(&state, None).unwrap();
        Vmm { chip, session, dir }
    }

    fn save(&self) -> String {
        let state = self.chip.state();
        serde_json::to_string(&(state, self.chip.memory().save().unwrap())).unwrap()
    }

    /// Ends the process.
    fn end(self) -> Ended {
        let Vmm { session, chip, dir } = self;
        session.last_pass();
        chip.drain_all();
        chip.discard_unread();
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
        let info = LeaseInfo { pid: 1, tid: index, name: "steady" };
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

/// Returns the sequence numbers of a client's events in a session. Checks the figures that must be right in
/// every session.
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
                // Some bursts fill the ring.
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

/// Number of clients whose threads trace while the machine is saved, and maximum size of the state of all
/// these clients in bytes. The state has to be small, because a VMM may have its own limit: Firecracker's
/// limit is 10 MB.
const THREADS: u32 = 16;
const MAX_STATE: usize = 4 << 20;

#[test]
fn a_machine_with_sixteen_tracing_threads_has_a_small_state_and_loses_no_event_by_a_restore() {
    let geometry = Geometry { clients: THREADS, ..Geometry::default() };
    let file = tempfile::tempfile().unwrap();
    let memory = || Memory::from_file(geometry, file.try_clone().unwrap()).unwrap();
    let (own, of_guests) = (session(Output::Trace), memory());
    let chip = Chip::new(memory(), &ChipConfig::default(), own.0.clone(), ());
    let vmm = Vmm { chip, session: own.0, dir: own.1 };
    let rings = of_guests.region(Region::Rings).unwrap().words();
    let channel = Channel::local(&vmm.chip.config_page(), rings).unwrap();
    // A thread emits while the machine is not paused.
    let (running, is_over) = (RwLock::new(()), AtomicBool::new(false));
    let emitted = [const { AtomicU64::new(0) }; THREADS as usize];
    let (mut states, mut summaries) = (Vec::new(), Vec::new());
    let save = |vmm: &Vmm| {
        let (chip, memory) = (vmm.chip.state(), vmm.chip.memory().save().unwrap());
        let mut stream = Vec::new();
        Saved { chip, pci: None, memory }.write(&mut stream).unwrap();
        stream
    };
    let restore = |stream: &[u8], vmm: Vmm| {
        let saved = Saved::read(&mut &*stream, &geometry).unwrap();
        let (session, dir) = session(Output::Trace);
        let memory = memory();
        memory.load(&saved.memory).unwrap();
        let config = ChipConfig::default();
        let chip = Chip::new(memory, &config, session.clone(), ());
        chip.restore(&saved.chip, None).unwrap();
        (Vmm { chip, session, dir }, vmm.end().summary)
    };

    let recorded: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .zip(&emitted)
            .map(|(index, emitted)| {
                let (running, is_over) = (&running, &is_over);
                scope.spawn(move || {
                    let state = ProducerState::new();
                    let info = LeaseInfo { pid: 1, tid: index, name: "thread" };
                    let client =
                        Client::lease(channel, index, &state, u64::from(index) + 1, &info).unwrap();
                    let data = [7; 500];
                    let mut recorded = 0;
                    while !is_over.load(Relaxed) {
                        let _runs = running.read().unwrap();
                        let outcome = emit(&client, event_type!("data", words = &data[..]));
                        recorded += u64::from(outcome == Emit::Recorded);
                        emitted.fetch_add(1, Relaxed);
                    }
                    client.poll();
                    recorded
                })
            })
            .collect();
        // When the loop ends, each thread has filled its ring at least once, and some threads find the ring
        // full.
        let mut vmm = vmm;
        for least in [700, 1400, 2100] {
            while emitted.iter().any(|emitted| emitted.load(Relaxed) < least) {
                vmm.chip.drain_pass(Duration::from_millis(1));
                std::thread::yield_now();
            }
            let _pause = running.write().unwrap();
            let stream = save(&vmm);
            let (next, summary) = restore(&stream, vmm);
            states.push(stream.len());
            summaries.push(summary);
            vmm = next;
        }
        is_over.store(true, Relaxed);
        let recorded = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        summaries.push(vmm.end().summary);
        recorded
    });

    let total = |count: fn(&Summary) -> u64| summaries.iter().map(count).sum::<u64>();
    let emitted: u64 = emitted.iter().map(|emitted| emitted.load(Relaxed)).sum();
    assert_eq!(total(|summary| summary.ring_events), recorded);
    assert_eq!(total(|summary| summary.lost), emitted - recorded);
    assert!(summaries.iter().all(|summary| summary.faults.is_empty()), "{summaries:?}");
    assert!(states.iter().all(|bytes| (1..MAX_STATE).contains(bytes)), "{states:?}");
}

#[test]
fn a_rollback_is_a_generation_of_its_own_in_the_same_session() {
    // Both guests do the same, so at the snapshot their memories have the same contents.
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let (session, dir) = session(Output::Trace);
    let boot = |file| Chip::new(memory(file), &ChipConfig::default(), session.clone(), ());
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
    // The restore undoes these events.
    guest.emit(500);
    first.drain_all();
    drop(first);

    let rolled = Chip::new(memory(&files[1]), &ChipConfig::default(), session.clone(), ());
    rolled.restore(&state, None).unwrap();
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
fn a_record_that_was_under_way_at_the_snapshot_does_not_fix_the_clock_after_it() {
    // Ticks of the guest's clock between the last event before the snapshot and the next record.
    for jump in [1_i64 << 45, 1000, -(1 << 39)] {
        let file = tempfile::tempfile().unwrap();
        let vmm = Vmm::boot(&file, Output::Trace);
        let guest = memory(&file);
        let rings = guest.region(Region::Rings).unwrap().words();
        let memory = ClientMemory::of_rings(rings, 1, &geometry(CLIENTS), RingMode::Discard);
        let begin = 1_u64 << 40;
        let info = LeaseInfo { pid: 1, tid: 1, name: "steady" };
        let private = ProducerState::new();
        let lease = Lease::new(77, ClockKind::Tsc, begin, &info);
        let producer = Producer::lease(memory.unwrap(), &private, lease, false);
        let emit = |n: u64, time: u64| {
            let (site, fields) = event_type!("first", n);
            assert_eq!(producer.emit((site, fields), || time), Emit::Recorded);
        };
        (0..10).for_each(|n| emit(n, begin + n));
        let saved = vmm.save();
        drop(vmm);
        let vmm = Vmm::restore(&file, &saved, Output::Trace);
        // This event's timestamp was taken before the restore.
        emit(10, begin + 10);
        let again = begin.checked_add_signed(jump).unwrap();
        (11..500).for_each(|n| emit(n, again + n));
        let ended = vmm.end();

        assert_eq!(check(&ended, 1), (10..500).collect::<Vec<_>>(), "{jump}");
        assert_eq!(ended.summary.lost, 0);
    }
}

#[test]
fn a_holders_clock_and_name_are_known_in_the_next_session() {
    let file = tempfile::tempfile().unwrap();
    let vmm = Vmm::boot(&file, Output::Trace);
    let guest = memory(&file);
    let rings = guest.region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, 1, &geometry(CLIENTS), RingMode::Discard);
    let info = LeaseInfo { pid: 1, tid: 1, name: "steady" };
    let private = ProducerState::new();
    let producer = Producer::lease(
        memory.unwrap(),
        &private,
        Lease::new(77, ClockKind::MonotonicRaw, 1000, &info),
        false,
    );
    let emit = |n: u64| {
        let (site, fields) = event_type!("first", n);
        assert_eq!(producer.emit((site, fields), || 1000 + n), Emit::Recorded);
    };
    emit(1);
    // The machine is saved twice, and the second process has no record of the client.
    let saved = vmm.save();
    let saved = Vmm::restore(&file, &saved, Output::Trace).save();
    let vmm = Vmm::restore(&file, &saved, Output::Trace);
    emit(2);
    emit(3);
    let ended = vmm.end();

    assert_eq!(check(&ended, 1), [2, 3]);
    let session = hypertrace_timeline::Session::open(ended.dir.path()).unwrap();
    let own = |s: &&hypertrace_timeline::StreamJson| (s.domain, s.client) == (Domain::Guest, 1);
    let stream = session.json().streams.iter().find(own).unwrap();
    let clock = session.json().clocks.iter().find(|clock| clock.id == stream.clock).unwrap();
    assert_eq!((&*stream.name, &*clock.kind), ("steady", "monotonic_raw"));
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

/// Number of vCPUs of the guest in KVM, and how many events and points each vCPU makes.
const VCPUS: usize = 2;
const EVENTS: u64 = 60_000;
const POINTS: u64 = 600;

/// Environment variables of a process that runs the machine. `OUT` is the directory for the session and the
/// snapshot. `FROM` is the directory of the snapshot to restore. `TIME` is the time in microseconds for which
/// the machine runs, or 0 to run until its end.
const OUT: &str = "HYPERTRACE_RESTORE_OUT";
const FROM: &str = "HYPERTRACE_RESTORE_FROM";
const TIME: &str = "HYPERTRACE_RESTORE_TIME";

/// Exit code of a process whose machine was not paused, because it had ended.
const ENDED: i32 = 11;

/// Runs a machine in this process. Returns whether the machine's guest has ended.
fn run_machine(out: &Path, from: Option<&Path>, time: Duration) -> bool {
    let saved = from.map(|from| Snapshot::open(from).unwrap());
    let mut machine = match &saved {
        Some(saved) => saved.machine().unwrap(),
        None => Machine::new(VCPUS).unwrap(),
    };
    let vcpus = VCPUS as u32;
    let config = DeviceConfig::new(vcpus).with(|config| config.geometry = geometry(vcpus));
    std::fs::create_dir_all(out).unwrap();
    let session = SessionConfig::new(out.join("session"));
    let hypertrace = Hypertrace::start(session, config).unwrap();
    if let Some(saved) = &saved {
        hypertrace.load(saved.device()).unwrap();
    }
    machine.observe(record_in(hypertrace.session().clone()));
    attach_window(&mut machine, hypertrace.device(), layout::DEVICE, Answer::Device).unwrap();
    if saved.is_none() {
        let demo = Args {
            device: layout::DEVICE,
            events: EVENTS,
            reference_points: POINTS,
            ..Args::new(Program::Demo)
        };
        machine.write_args(&demo).unwrap();
    }
    let progress = machine.run_for(time).unwrap();
    let has_ended = match &progress {
        Progress::Ended(_) => true,
        Progress::Paused(machine) => {
            Snapshot::save(machine, hypertrace.save().unwrap(), &out.join("snapshot")).unwrap();
            false
        }
    };
    drop(progress);
    let summary = hypertrace.finish().unwrap();
    std::fs::write(out.join("summary.json"), serde_json::to_string(&summary).unwrap()).unwrap();
    has_ended
}

/// Runs a machine in another process. Returns whether the machine's guest has ended.
fn run_in_process(test: &str, out: &Path, from: Option<&Path>, time: Duration) -> bool {
    let mut child = child::alone(test);
    child.env(OUT, out).env(TIME, time.as_micros().to_string());
    child.env_remove(capability::FILE);
    child.envs(from.map(|from| (FROM, from)));
    let output = child.output().unwrap();
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => false,
        Some(ENDED) => true,
        other => panic!("{other:?}: {}", said()),
    }
}

/// Runs a machine in this process, and ends the process, if [`OUT`] is set.
fn run_if_told() {
    let Some(out) = std::env::var_os(OUT) else { return };
    let from = std::env::var_os(FROM).map(PathBuf::from);
    let time = std::env::var(TIME).unwrap().parse().unwrap();
    let has_ended = run_machine(out.as_ref(), from.as_deref(), Duration::from_micros(time));
    std::process::exit(if has_ended { ENDED } else { 0 });
}

fn restores() -> u64 {
    let usual = if FULL_SIZE { 8 } else { 4 };
    std::env::var("HYPERTRACE_TEST_RESTORES").map_or(usual, |restores| restores.parse().unwrap())
}

/// Checks the sessions of all processes of a machine against each other.
fn check_machine(outs: &[PathBuf]) {
    let total = |what: &str| -> u64 {
        let number = |out: &PathBuf| {
            let json = std::fs::read(out.join("summary.json")).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            json[what].as_u64().unwrap()
        };
        outs.iter().map(number).sum()
    };
    let all = VCPUS as u64;
    assert_eq!(total("ring_events") + total("lost"), all * EVENTS);
    assert_eq!(total("reference_points"), all * POINTS);
    assert_eq!((total("time_faults"), total("lost")), (0, 0), "it waits for room");

    let mut rounds = vec![Vec::new(); VCPUS];
    let mut requests = vec![Vec::new(); VCPUS];
    for out in outs {
        let dir = out.join("session");
        for event in events(&dir) {
            assert!(!event.name.contains("untyped"), "{event:?}");
            let Some(client) = event.client else { continue };
            let field = |name: &str| {
                let field = event.fields.iter().find(|(key, _)| **key == *name);
                match field {
                    Some((_, Value::Unsigned(value))) => *value,
                    other => panic!("{other:?}"),
                }
            };
            match &*event.name {
                "round_done" => rounds[client as usize].push(field("round")),
                "request" | "cache_miss" | "reply" => requests[client as usize].push(field("id")),
                _ => {}
            }
        }
        let json = std::fs::read(out.join("summary.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["faults"], serde_json::json!({}));
        if let Some(count) = babeltrace2::count(&dir.join("ctf")) {
            assert_eq!(Some(count), json["records"].as_u64());
        }
    }
    for (rounds, requests) in rounds.iter().zip(&requests) {
        assert_eq!(*rounds, (0..POINTS).collect::<Vec<_>>(), "each once, in order");
        // In each round, four of the guest's events are the begins and ends of regions. Of the remaining
        // events, every fourth event is a request without a number.
        let last = EVENTS - 4 * POINTS;
        assert_eq!(*requests, (0..last).filter(|id| id % 4 != 3).collect::<Vec<_>>());
    }
}

#[test]
fn a_guest_in_kvm_continues_in_other_processes_with_every_event_once() {
    run_if_told();
    if !kvm::is_usable() {
        return;
    }
    let mut random = Random::seeded();
    let mut left = restores();
    while left > 0 {
        let dir = tempfile::tempdir().unwrap();
        let mut outs: Vec<PathBuf> = Vec::new();
        loop {
            let out = dir.path().join(outs.len().to_string());
            let from = outs.last().map(|last| last.join("snapshot"));
            // The guest of the last restore runs to its end.
            let time = match left {
                0 => Duration::from_secs(60),
                _ => Duration::from_micros(random.below(20_000)),
            };
            let has_ended = run_in_process(this_test!(), &out, from.as_deref(), time);
            if let Some(from) = from {
                std::fs::remove_dir_all(from).unwrap();
            }
            outs.push(out);
            if has_ended {
                break;
            }
            left = left.saturating_sub(1);
        }
        check_machine(&outs);
    }
    capability::used("kvm");
}

#[test]
fn a_guest_in_kvm_is_rolled_back_in_the_next_process() {
    const TEST: &str = "a_guest_in_kvm_is_rolled_back_in_the_next_process";
    run_if_told();
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let outs = ["0", "1", "2"].map(|name| dir.path().join(name));
    let end = Duration::from_secs(60);
    assert!(!run_in_process(TEST, &outs[0], None, Duration::from_millis(5)));
    let snapshot = outs[0].join("snapshot");
    // The same snapshot is restored twice, so everything that the first restore did happens again.
    assert!(run_in_process(TEST, &outs[1], Some(&snapshot), end));
    assert!(run_in_process(TEST, &outs[2], Some(&snapshot), end));
    check_machine(&[outs[0].clone(), outs[1].clone()]);
    check_machine(&[outs[0].clone(), outs[2].clone()]);
    capability::used("kvm");
}
