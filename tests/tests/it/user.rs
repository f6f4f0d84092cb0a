//! User mode embedded in a program: a session without `hypertrace record`, and points that the program relays
//! for the host, as an emulator's plugin relays points.
#![allow(unsafe_code)] // a segment's rings as a slice

use hypertrace_test_support::steps::Steps;
use hypertrace_tests::child;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hypertrace::{Channel, Client, Clock, LeaseInfo, Options, ProducerState, Status};
use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::{HostInfo, RingMode};
use hypertrace_abi::event::Words;
use hypertrace_abi::layout::local::{PAGE_L, WATCH, watch};
use hypertrace_abi::layout::{Geometry, Region};
use hypertrace_abi::record::{ClockKind, Flags};
use hypertrace_abi::ring::{ClientMemory, Consumer, Emit, Lease, NewRecord, Producer};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, PassConfig, ReferencePoint, SessionInfo,
};
use hypertrace_test_support::kept::Value;
use hypertrace_tests::{babeltrace2, traced, wait_until};
use hypertrace_timeline::EventKind;
use hypertrace_trace::SessionConfig;
use hypertrace_user::{Config, Host, Policy, Segment, Session};

/// Makes a channel of the session's segment, which is never unmapped.
fn channel(session: &Session) -> Channel<'static> {
    std::mem::forget(Arc::clone(session.segment()));
    // SAFETY: the forgotten reference keeps the segment mapped.
    unsafe { Channel::at_window(session.segment().address()) }.unwrap()
}

fn rings(session: &Session) -> &'static [AtomicU64] {
    let (segment, geometry) = (session.segment(), session.segment().geometry());
    std::mem::forget(Arc::clone(segment));
    // SAFETY: as in `channel`; shared memory is accessed by atomic operations only.
    unsafe {
        let rings = segment.address().add(geometry.window_offset(Region::Rings) as usize);
        std::slice::from_raw_parts(rings.cast(), geometry.rings_size() as usize / 8)
    }
}

fn info(name: &str) -> LeaseInfo<'_> {
    LeaseInfo { pid: 1, tid: 0, name }
}

#[test]
fn a_file_that_another_process_has_made_at_the_segments_path_stays_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let start = |out: &str| {
        let config = Config::new(dir.path().join(out));
        Session::create(config.with(|config| config.segment = Some(path.clone()))).unwrap()
    };
    let first = start("first");
    std::fs::remove_file(&path).unwrap();
    let second = start("second");

    first.finish().unwrap();
    assert!(path.exists(), "it is the second session's");

    second.finish().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_program_can_embed_a_session() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::create(Config::new(dir.path())).unwrap();
        let segment = Some(session.segment().location().into());
        let info = hypertrace::open(&Options::default().with(|options| options.segment = segment))
            .unwrap();
        assert!(!info.traps && info.clients == (0..256));

        hypertrace::event!("before");
        let point = hypertrace::reference_point!("point", n = 7u64).unwrap();
        assert_eq!(hypertrace::commit!("after"), Emit::Recorded);

        assert_eq!(point.status, Status::Recorded);
        assert!(point.before <= point.host_time && point.host_time <= point.after);
        let summary = session.finish().unwrap();
        assert_eq!((summary.lost, summary.ring_events, summary.reference_points), (0, 1, 2));
        let mut names = Vec::new();
        traced::events(dir.path(), |event| names.push(event.name.to_string()));
        names.retain(|name| name != "lease");
        assert_eq!(names, ["before", "point", "after"]);
    });
}

#[test]
fn relayed_points_belong_to_their_clients() {
    const CLIENT: u32 = 2;
    let dir = tempfile::tempdir().unwrap();
    let session =
        Session::create(Config::new(dir.path()).with(|config| config.relays = 2)).unwrap();
    let (state, relay_state) = (ProducerState::new(), ProducerState::new());
    let client = Client::lease(channel(&session), CLIENT, &state, 7, &info("program")).unwrap();
    let (rings, geometry) = (rings(&session), *session.segment().geometry());
    let memory = ClientMemory::of_rings(rings, 1, &geometry, RingMode::Discard).unwrap();
    let relay = Lease::new(9, ClockKind::Tsc, ticks(), &info("vcpu 1"));
    let relay = Producer::lease(memory, &relay_state, relay, false);

    // This event writes the schema, as the library does before it stores to EMIT.
    hypertrace::event!(client: &client, "relayed", n = 1u64);
    let guest_time = ticks();
    let prefix = [CLIENT.into(), 3, 5, guest_time];
    let id = id_of("relayed(n:u64)");
    let emit = relay.emit(
        NewRecord::of_id(id, [Words(&prefix), Words(&[2])]).with_flags(Flags::REFERENCE_POINT),
        ticks,
    );
    assert_eq!(emit, Emit::Recorded);
    client.release();
    relay.release();

    let summary = session.finish().unwrap();
    assert_eq!((summary.reference_points, summary.faults.len()), (1, 0));
    let mut points = Vec::new();
    let mut sources = Vec::new();
    traced::events(dir.path(), |event| match event.kind {
        EventKind::ReferencePoint => points.push(event),
        _ => sources.push(event.source.to_string()),
    });
    let [point] = &points[..] else { panic!("{points:?}") };
    assert_eq!((&*point.source, point.client), ("program/2 program", Some(CLIENT)));
    assert_eq!(point.fields[0].1, Value::Unsigned(2));
    let reference = point.reference.unwrap();
    assert_eq!((reference.cpu, reference.seq, reference.guest_time), (3, 5, guest_time));
    assert!(sources.contains(&"host/vcpu 1".to_owned()), "{sources:?}");
    if let Some(read) = babeltrace2::read(&dir.path().join("ctf")) {
        assert_eq!(read.clean(), summary.records);
    }
}

#[test]
fn a_program_without_a_usable_counter_has_its_own_clock() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let states = [ProducerState::new(), ProducerState::new()];
    let clocks = [Clock::MonotonicRaw, Clock::Counter];
    let clients = [0, 1].map(|n| {
        let channel = channel(&session).with_clock(clocks[n]);
        Client::lease(channel, n as u32, &states[n], 7 + n as u64, &info("program")).unwrap()
    });
    for n in 0..100u64 {
        for client in &clients {
            hypertrace::event!(client: client, "turn", n);
            hypertrace::reference_point!(client: client, "point", n).unwrap();
        }
    }
    clients.into_iter().for_each(Client::release);

    let summary = session.finish().unwrap();
    assert_eq!((summary.faults.len(), summary.reference_points), (0, 200));
    let mut turns = Vec::new();
    traced::events(dir.path(), |event| {
        // The times of the host's own counter are exact, and the times of the other clock have an error
        // bound.
        let is_exact = event.bound_ns == Some(0);
        if &*event.name == "turn" {
            assert_eq!(is_exact, event.client == Some(1), "{event:?}");
            let Value::Unsigned(n) = event.fields[0].1 else { panic!("{event:?}") };
            turns.push((n, event.client, event.ts_ns, event.bound_ns.unwrap() as i64));
        }
    });
    // The events of each thread are in order. Between the two threads, the order is right within the bound.
    let of = |client| turns.iter().filter(move |turn| turn.1 == Some(client)).map(|turn| turn.0);
    assert!(of(0).eq(0..100) && of(1).eq(0..100), "{turns:?}");
    turns.sort_by_key(|turn| (turn.0, turn.1));
    for pair in turns.windows(2) {
        let [(.., before, one), (.., after, other)] = pair else { panic!("two") };
        assert!(before <= &(after + one + other), "{pair:?}");
    }
    if let Some(read) = babeltrace2::read(&dir.path().join("ctf")) {
        assert_eq!(read.clean(), summary.records);
    }
}

#[test]
fn points_are_answered_although_a_program_claims_that_the_host_is_awake() {
    const POINTS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let state = ProducerState::new();
    let client = Client::lease(channel(&session), 0, &state, 7, &info("program")).unwrap();
    // SAFETY: the address is the address of an aligned word of page L, which is mapped as in `channel`.
    let watches = unsafe {
        AtomicU32::from_ptr(session.segment().address().add((PAGE_L + WATCH) as usize).cast())
    };
    let (done, mut recorded) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // This thread prevents wake-ups of the host. The thread acts like a program that has rung the
            // bell, and is killed before the program wakes the host.
            loop {
                watches.store(watch::BELLS, Relaxed);
                std::thread::sleep(Duration::from_micros(50));
                if done.load(Relaxed) {
                    break;
                }
            }
        });
        for n in 0..POINTS {
            // The pause is longer than the time for which the host stays awake.
            std::thread::sleep(Duration::from_micros(300));
            let reply = hypertrace::reference_point!(client: &client, "point", n);
            recorded += u64::from(reply.is_ok_and(|reply| reply.status == Status::Recorded));
        }
        done.store(true, Relaxed);
    });
    assert_eq!(recorded, POINTS);
    client.release();
    let summary = session.finish().unwrap();
    assert_eq!((summary.lost, summary.reference_points), (0, POINTS));
}

#[test]
fn points_are_answered_although_another_program_silences_all_bells() {
    const POINTS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let (channel, local) = (channel(&session), session.segment().local());
    let silenced = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let recorded = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                local.bells(1024).iter().for_each(|bell| bell.store(0, Relaxed));
                silenced.store(true, Relaxed);
            }
        });
        wait_until("silence", || silenced.load(Relaxed));
        let states = [ProducerState::new(), ProducerState::new()];
        let lease = |n: usize| {
            Client::lease(channel, n as u32, &states[n], 7 + n as u64, &info("program")).unwrap()
        };
        let clients = [lease(0), lease(1)];
        // The clients take turns, because the host may poll the slot of one client even if the client does
        // not ring its bell.
        let recorded = (0..POINTS).filter(|n| {
            let client = &clients[*n as usize % 2];
            let reply = hypertrace::reference_point!(client: client, "point", n = *n);
            reply.is_ok_and(|reply| reply.status == Status::Recorded)
        });
        let recorded = recorded.count() as u64;
        done.store(true, Relaxed);
        clients.into_iter().for_each(Client::release);
        recorded
    });
    assert_eq!(recorded, POINTS);
    let summary = session.finish().unwrap();
    assert_eq!((summary.lost, summary.reference_points), (0, POINTS));
}

#[test]
fn each_thread_is_answered_whichever_slot_the_host_polls() {
    const THREADS: u64 = 3;
    const POINTS: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let channel = channel(&session);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let state = ProducerState::new();
                let client =
                    Client::lease(channel, thread as u32, &state, 7 + thread, &info("t")).unwrap();
                for n in 0..POINTS {
                    if n % 100 == thread * 30 {
                        // Meanwhile, the host polls another thread's slot, or sleeps.
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    let reply = hypertrace::reference_point!(client: &client, "of", thread, n);
                    let status = reply.map(|reply| reply.status);
                    assert_eq!(status, Ok(Status::Recorded), "point {n} of {thread}");
                }
                client.release();
            });
        }
    });
    let summary = session.finish().unwrap();
    assert_eq!((summary.lost, summary.reference_points), (0, THREADS * POINTS));
    let mut next = [0; THREADS as usize];
    traced::events(dir.path(), |event| {
        if event.kind == EventKind::ReferencePoint {
            let [(_, Value::Unsigned(thread)), (_, n)] = &event.fields[..] else {
                panic!("{event:?}")
            };
            assert_eq!(*n, Value::Unsigned(next[*thread as usize]), "{event:?}");
            next[*thread as usize] += 1;
        }
    });
    assert_eq!(next, [POINTS; THREADS as usize]);
}

/// A session whose drain is slow, so that many points are made during a pass.
struct SlowDrain {
    session: hypertrace_trace::Session,
    /// Number of times that the session's ring had no room for a point.
    full: AtomicU32,
}

impl EventSink for SlowDrain {
    fn session_info(&self) -> SessionInfo {
        self.session.session_info()
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.session.reference_point(point)
    }

    fn has_room_for_point(&self) -> bool {
        let has_room = self.session.has_room_for_point();
        self.full.fetch_add(u32::from(!has_room), Relaxed);
        has_room
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &SlowDrain {
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        self.session.begin_generation(epoch, known)
    }

    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        self.session.known_clients(each);
    }

    fn begin_pass(&mut self) -> PassConfig {
        self.session.begin_pass()
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        std::thread::sleep(Duration::from_micros(50));
        self.session.drain(client, consumer)
    }

    fn end_pass(&mut self) {
        self.session.end_pass();
    }
}

#[test]
fn rings_that_short_threads_have_used_up_are_given_back() {
    const AT_ONCE: usize = 40;
    const ROUNDS: u64 = 120;
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::create(Config::new(dir.path())).unwrap();
        let segment = Arc::clone(session.segment());
        let location = Some(segment.location().into());
        hypertrace::open(&Options::default().with(|options| options.segment = location)).unwrap();
        let memory = File::open(segment.location()).unwrap();
        let resident = || memory.metadata().unwrap().blocks() * 512;
        // This event of the main thread shows the host that the program locks its clients.
        hypertrace::event!("first");

        let all = Arc::new(Barrier::new(AT_ONCE));
        for round in 0..ROUNDS {
            let threads: Vec<_> = (0..AT_ONCE)
                .map(|_| {
                    let all = Arc::clone(&all);
                    std::thread::spawn(move || {
                        hypertrace::event!("short", round);
                        // All threads live at the same time, so that each has its own ring.
                        all.wait();
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }

        // Each round uses a new block of 4 KiB in 40 rings. If the host gave no blocks back, all rounds
        // together would need 18 MiB.
        wait_until("the rings' memory", || resident() < 8 << 20);
        let summary = session.finish().unwrap();
        assert_eq!((summary.ring_events, summary.lost), (1 + ROUNDS * AT_ONCE as u64, 0));
        assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    });
}

#[test]
fn a_ring_that_fills_is_drained_before_the_host_looks_by_itself() {
    const TIMES: u64 = 100;
    const EVENTS: u64 = 200;
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        // A ring has room for the events of ten rounds.
        let geometry = Geometry::for_programs(4, 64 << 10);
        let mut config = Config::new(dir.path()).with(|config| config.geometry = geometry);
        config.policy.drain.period = Duration::from_millis(50);
        let session = Session::create(config).unwrap();
        let segment = Some(session.segment().location().into());
        hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();

        for n in 0..TIMES {
            (0..EVENTS).for_each(|m| hypertrace::event!("burst", n, m));
            std::thread::sleep(Duration::from_millis(1));
        }

        let summary = session.finish().unwrap();
        assert_eq!((summary.ring_events, summary.lost), (TIMES * EVENTS, 0));
    });
}

#[test]
fn a_ring_of_a_mebibyte_takes_240_short_threads_between_two_drains() {
    let geometry = Geometry::for_programs(1, 1 << 20);
    let segment = Segment::anonymous(&geometry, &HostInfo::default()).unwrap();
    // SAFETY: `segment` is mapped for as long as the clients below are there.
    let channel = unsafe { Channel::at_window(segment.address()) }.unwrap();
    let state = ProducerState::new();
    let recorded = (1..).take_while(|n| {
        let client = Client::lease(channel, 0, &state, *n, &info("short")).unwrap();
        let (site, fields) = hypertrace_abi::event_type!("short", n = *n);
        client.emit(site, fields) == Emit::Recorded
    });

    assert_eq!(recorded.count(), 240);
}

#[test]
fn an_event_that_is_longer_than_a_block_needs_a_larger_ring() {
    let text = "x".repeat(1024);
    let text = &*text;
    for (ring_bytes, is_recorded) in [(1 << 20, false), (4 << 20, true)] {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::for_programs(1, ring_bytes);
        let session =
            Session::create(Config::new(dir.path()).with(|config| config.geometry = geometry))
                .unwrap();
        let state = ProducerState::new();
        let client = Client::lease(channel(&session), 0, &state, 7, &info("program")).unwrap();

        hypertrace::event!(client: &client, "fits", a = text, b = text, c = text);
        hypertrace::event!(client: &client, "long", a = text, b = text, c = text, d = text);
        client.release();

        let summary = session.finish().unwrap();
        let expected = if is_recorded { (2, 0) } else { (1, 1) };
        assert_eq!((summary.ring_events, summary.lost), expected, "{ring_bytes}");
    }
}

#[test]
fn points_wait_while_the_hosts_ring_is_full() {
    const THREADS: u32 = 40;
    const POINTS: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    // The ring has room for a third of the points.
    let trace = SessionConfig::new(dir.path()).with(|config| {
        config.host_ring_bytes = 64 << 10;
        config.same_counter = true;
    });
    let trace = hypertrace_trace::Session::create(trace).unwrap();
    let geometry = Geometry { clients: THREADS, ..Geometry::default() };
    let frequency = trace.host_frequency();
    let facts = HostInfo::default().with(|info| {
        info.session = trace.uuid();
        info.guest_frequency = frequency;
        info.host_frequency = frequency;
    });
    let segment = Arc::new(Segment::anonymous(&geometry, &facts).unwrap());
    let sink = Arc::new(SlowDrain { session: trace.clone(), full: AtomicU32::new(0) });
    let host = Host::start(&segment, sink.clone(), Policy::default()).unwrap();
    // SAFETY: `segment` is mapped for as long as the threads below run.
    let channel = unsafe { Channel::at_window(segment.address()) }.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let state = ProducerState::new();
                let token = 7 + u64::from(thread);
                let client = Client::lease(channel, thread, &state, token, &info("t")).unwrap();
                for n in 0..POINTS {
                    // The host may get too little CPU to answer in the time that a point waits. The host's
                    // own count shows whether a point was not recorded.
                    let _ = hypertrace::reference_point!(client: &client, "of", thread, n);
                }
                client.release();
            });
        }
    });
    let counts = host.finish();
    let summary = trace.finish().unwrap();
    assert_eq!((counts["not_recorded"], summary.lost), (0, 0), "{counts:?}");
    assert!(sink.full.load(Relaxed) > 0, "the ring was never full: {counts:?}");
}

#[test]
fn the_session_ends_although_a_program_moves_the_hosts_sleep() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let state = ProducerState::new();
    let client = Client::lease(channel(&session), 0, &state, 7, &info("program")).unwrap();
    assert_eq!(hypertrace::commit!(client: &client, "committed", n = 1u64), Emit::Recorded);
    let elsewhere = AtomicU32::new(0);
    // SAFETY: `watches` is an aligned word of page L, which is mapped as in `channel`, and `to` is an aligned
    // word on the stack. futex(2) takes these two addresses.
    let moved = || unsafe {
        let watches = session.segment().address().add((PAGE_L + WATCH) as usize);
        let (none, most) = (0, 1);
        let to = elsewhere.as_ptr();
        libc::syscall(libc::SYS_futex, watches, libc::FUTEX_REQUEUE, none, most, to)
    };
    wait_until("the host's sleep", || moved() == 1);

    let reply = hypertrace::reference_point!(client: &client, "unanswered", n = 2u64);
    assert_eq!(reply.map(|reply| reply.status), Ok(Status::Failed));
    client.release();
    let summary = session.finish().unwrap();

    assert_eq!((summary.ring_events, summary.lost), (0, 0));
    let told = std::fs::read(dir.path().join("session.json")).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["device"]["not_woken"], 1, "{told}");
    let mut names = Vec::new();
    traced::events(dir.path(), |event| names.push(event.name.to_string()));
    assert!(names.contains(&"committed".to_owned()), "{names:?}");
    // The host wakes at the end of the test, and finds nothing to do.
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, elsewhere.as_ptr(), libc::FUTEX_WAKE, 1) };
}
