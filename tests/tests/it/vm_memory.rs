//! A segment that is the memory of a VM's PCI function. Programs of a guest find the segment in sysfs, and
//! each boot of the guest is a new generation. The guest is a process of this host, with a sysfs and procfs
//! of plain files.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use hypertrace::{ChannelLocation, OpenError, Options, Status, counts, event};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_abi::slot;
use hypertrace_test_support::kept::{self, Event, Value};
use hypertrace_tests::command::run;
use hypertrace_tests::{babeltrace2, this_test, traced, wait_until};
use hypertrace_timeline::{ClockMaps, EventKind, Recording};
use hypertrace_user::{Config, Segment, Session};

const SIZE: u64 = 16 << 20;
const EVENTS: u64 = 5_000;
const POINTS: u64 = 50;

/// A guest's file systems, and the file that is its PCI function's memory.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        let function = machine.function();
        fs::create_dir_all(&function).unwrap();
        fs::create_dir_all(machine.path("proc/sys/kernel/random")).unwrap();
        for (name, text) in [("vendor", "0x1af4"), ("device", "0x1110"), ("enable", "0")] {
            fs::write(function.join(name), text).unwrap();
        }
        symlink(machine.path("memory"), function.join("resource2_wc")).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn function(&self) -> PathBuf {
        self.path("sys/bus/pci/devices/0000:00:01.0")
    }

    fn session(&self, vm_memory: Option<u64>) -> Session {
        self.session_in("session", vm_memory)
    }

    fn session_in(&self, dir: &str, vm_memory: Option<u64>) -> Session {
        let geometry = Segment::fitting(SIZE, 7).unwrap();
        let segment = Some(self.path("memory"));
        let config = Config::new(self.path(dir));
        Session::create(config.with(|config| {
            config.geometry = geometry;
            config.segment = segment;
            config.vm_memory = vm_memory;
        }))
        .unwrap()
    }

    /// Returns the memory's contents, as in a snapshot of the VM.
    fn snapshot(&self) -> Vec<u8> {
        fs::read(self.path("memory")).unwrap()
    }

    /// Writes a snapshot's contents to the memory, which a server serves, as QEMU would.
    fn restore(&self, snapshot: &[u8]) {
        let memory = OpenOptions::new().write(true).open(self.path("memory"));
        memory.unwrap().write_all(snapshot).unwrap();
    }

    /// Runs this test's program as a guest that has booted.
    fn boot(&self, id: &str, test: &str) {
        fs::write(self.path("proc/sys/kernel/random/boot_id"), id).unwrap();
        let mut command = traced::alone(test, self.dir.path().to_str().unwrap());
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

/// Returns the options of a program of the guest.
fn options(machine: &str) -> Options {
    let machine = Path::new(machine);
    let (sysfs, proc) = (machine.join("sys"), machine.join("proc"));
    Options::default().with(|options| {
        options.sysfs = sysfs;
        options.proc = proc;
    })
}

/// Opens the channel as a program of the guest does, and traces with four threads.
fn program(machine: &str) {
    let info = hypertrace::open(&options(machine)).unwrap();
    assert!(matches!(info.place, ChannelLocation::Ivshmem(_)), "{info:?}");
    assert_eq!(traced::four_threads(EVENTS, POINTS), 0);
}

#[test]
fn each_boot_of_a_guest_is_a_generation_and_nothing_is_lost() {
    if let Some(machine) = traced::argument() {
        return program(&machine);
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));

    // The first boot has two programs, and the second has one.
    for boot in ["first", "first", "second"] {
        machine.boot(boot, this_test!());
    }

    let summary = session.finish().unwrap();
    let events = 3 * traced::THREADS * EVENTS;
    assert_eq!((summary.lost, summary.ring_events), (0, events));
    assert_eq!(summary.reference_points, 3 * traced::THREADS * 2 * POINTS);
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    let mut seen = 0;
    traced::events(&machine.path("session"), |event| {
        seen += u64::from(event.kind == EventKind::Event)
    });
    assert_eq!(seen, events);
    let json = fs::read(machine.path("session/session.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let epochs =
        json["clocks"].as_array().unwrap().iter().filter_map(|clock| clock["epoch"].as_u64());
    assert_eq!(epochs.collect::<std::collections::BTreeSet<_>>().len(), 2, "{}", json["clocks"]);
    babeltrace2::read(&machine.path("session/ctf")).map(|read| read.clean());
}

/// Makes points as a program of the guest, each after a second without events.
fn rare_points(machine: &str) {
    hypertrace::open(&options(machine)).unwrap();
    for n in 0..RARE {
        thread::sleep(Duration::from_secs(1));
        let begin = Instant::now();
        let reply = hypertrace::reference_point!("rare", n);
        let took = begin.elapsed();
        assert!(reply.is_ok_and(|reply| reply.status == Status::Recorded), "{reply:?}");
        // If the guest and the host each have a CPU, an answer takes 20 ms; the benchmark measures this time.
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}

/// Number of points of [`rare_points`].
const RARE: u64 = 3;

#[test]
fn a_point_after_a_second_of_idleness_is_answered_though_the_host_rests() {
    if let Some(machine) = traced::argument() {
        return rare_points(&machine);
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));

    machine.boot("first", this_test!());

    let summary = session.finish().unwrap();
    assert_eq!((summary.lost, summary.reference_points), (0, RARE));
}

/// Opens the function as a program of the guest, which fails. Returns why.
fn refused(machine: &str) -> String {
    let error = hypertrace::open(&options(machine)).unwrap_err();
    let chain = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(chain.contains("resource2_wc"), "{chain}");
    chain
}

#[test]
fn a_guest_without_a_host_is_told_so() {
    if let Some(machine) = traced::argument() {
        let why = refused(&machine);
        assert!(why.ends_with("its host does not answer: is `hypertrace serve` running there?"));
        return;
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    // The host is gone, and the file is still there.
    let copy = fs::read(machine.path("memory")).unwrap();
    session.finish().unwrap();
    fs::write(machine.path("memory"), copy).unwrap();

    machine.boot("first", this_test!());
}

#[test]
fn a_guest_refuses_a_segment_that_is_for_programs_of_its_host() {
    if let Some(machine) = traced::argument() {
        assert!(refused(&machine).ends_with("of a segment that no VM shares"));
        return;
    }
    let machine = Machine::new();
    let session = machine.session(None);

    machine.boot("first", this_test!());

    session.finish().unwrap();
}

/// Number of events before the host's end, and number of events after the end on each of two threads.
const BEFORE: u64 = 1_000;
const AFTER: u64 = 3_000;

/// Opens the channel and traces as a program of the guest does. This program outlives the host.
fn survivor(machine: &str) {
    let options = options(machine);
    hypertrace::open(&options).unwrap();
    let emit = |times| (0..times).for_each(|n| event!("step", n));
    emit(BEFORE);
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();

    emit(AFTER);
    thread::spawn(move || emit(AFTER)).join().unwrap();

    wait_until("losses", || counts().host_ended >= 2 * AFTER);
    // The count may include events of the last 10 ms before the end, which the host has recorded.
    let counted = counts();
    assert!(counted.host_ended <= BEFORE + 2 * AFTER, "{counted:?}");
    assert_eq!(counted.unattached, 0);
    // Another poll does not count any event twice.
    hypertrace::poll();
    assert_eq!(counts(), counted);
    assert!(hypertrace::host_has_ended());
    let point = hypertrace::reference_point!("late");
    assert_eq!(point, Err(hypertrace::Emit::Unleased));
    let why = hypertrace::open(&options).unwrap_err();
    assert!(matches!(&why, OpenError::HostEnded(_)), "{why}");
    assert!(why.to_string().contains("start `hypertrace serve` anew, and then the VM"), "{why}");
}

#[test]
fn events_after_the_hosts_end_are_counted_and_said_once() {
    if let Some(machine) = traced::argument() {
        return survivor(&machine);
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    fs::write(machine.path("proc/sys/kernel/random/boot_id"), "first").unwrap();
    let mut guest = traced::alone(this_test!(), machine.dir.path().to_str().unwrap());
    guest.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut guest = guest.spawn().unwrap();
    let mut lines = BufReader::new(guest.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));

    let summary = session.finish().unwrap();
    guest.stdin.take().unwrap().write_all(b"ended\n").unwrap();
    let printed = Vec::from_iter(lines.map(Result::unwrap));

    let ended = guest.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{printed:?} {said}");
    assert_eq!((summary.ring_events, summary.lost), (BEFORE, 0));
    let warned = said.lines().filter(|line| line.starts_with("hypertrace: the host has ended"));
    assert_eq!(warned.count(), 1, "{said}");
}

#[test]
fn a_program_that_starts_after_the_hosts_end_is_told_so() {
    if let Some(machine) = traced::argument() {
        let why = hypertrace::open(&options(&machine)).unwrap_err();
        assert!(matches!(&why, OpenError::HostEnded(_)), "{why}");
        assert!(why.to_string().contains("0000:00:01.0: its host has ended"), "{why}");
        return;
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    // The host removes the file's name when it ends, but a VM still has the file.
    let file = machine.path("memory");
    fs::hard_link(&file, machine.path("mapped")).unwrap();
    session.finish().unwrap();
    fs::rename(machine.path("mapped"), &file).unwrap();

    machine.boot("first", this_test!());
}

/// Traces as a program of the guest, and forges the host's end.
fn forger(machine: &str) {
    hypertrace::open(&options(machine)).unwrap();
    (0..BEFORE).for_each(|n| event!("step", n));
    let memory = Path::new(machine).join("memory");
    let memory = Segment::open(&memory).unwrap();
    memory.local().end().store(memory.page().end_mark(), Relaxed);
    assert!(hypertrace::host_has_ended());
    event!("step", n = BEFORE);
}

#[test]
fn a_forged_end_of_the_host_ends_no_session() {
    if let Some(machine) = traced::argument() {
        return forger(&machine);
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));

    machine.boot("first", this_test!());

    let summary = session.finish().unwrap();
    assert!((BEFORE..=BEFORE + 1).contains(&summary.ring_events), "{summary:?}");
    assert_eq!((summary.lost, summary.faults.len()), (0, 0));
}

/// Starts a VM with the memory that `memory` makes. Returns why a program of the guest cannot open a channel
/// in this memory.
fn refused_memory(name: &str, memory: impl FnOnce(&Machine)) -> Option<String> {
    if let Some(machine) = traced::argument() {
        let why = hypertrace::open(&options(&machine)).unwrap_err();
        let source = std::error::Error::source(&why).map(ToString::to_string);
        fs::write(Path::new(&machine).join("why"), format!("{why}: {source:?}")).unwrap();
        return None;
    }
    let machine = Machine::new();
    memory(&machine);
    machine.boot("first", name);
    Some(fs::read_to_string(machine.path("why")).unwrap())
}

#[test]
fn a_guest_whose_vm_was_started_before_the_server_is_told_so() {
    let why = refused_memory(this_test!(), |machine| {
        fs::write(machine.path("memory"), [0; 8192]).unwrap()
    });
    let Some(why) = why else { return };
    let parts = ["0000:00:01.0 is ivshmem", "start `hypertrace serve --file FILE` first"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
}

#[test]
fn a_memory_backend_that_is_too_small_is_named_with_its_remedy() {
    let why = refused_memory(this_test!(), |machine| {
        let session = machine.session(Some(SIZE));
        let kept = machine.path("kept");
        fs::hard_link(machine.path("memory"), &kept).unwrap();
        session.finish().unwrap();
        fs::write(machine.path("memory"), &fs::read(kept).unwrap()[..1 << 20]).unwrap();
    });
    let Some(why) = why else { return };
    let parts = ["it has 1048576 bytes", "give the VM's memory backend the size"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
}

#[test]
fn a_file_of_zeros_in_the_servers_place_is_named_as_a_vms() {
    let machine = Machine::new();
    fs::write(machine.path("memory"), [0; 8192]).unwrap();
    let geometry = Segment::fitting(SIZE, 7).unwrap();
    let config = Config::new(machine.path("session"));
    let segment = Some(machine.path("memory"));

    let made = Session::create(config.with(|config| {
        config.geometry = geometry;
        config.segment = segment;
        config.vm_memory = Some(SIZE);
    }));

    let why = made.unwrap_err().to_string();
    assert!(why.contains("QEMU makes such a file if it is started first"), "{why}");
    assert!(!why.contains("--recover"), "{why}");
}

/// Client that no program leases, because programs take the first clients.
const LAST: u32 = 6;

/// Waits until a server has taken everything in a client's ring.
fn wait_until_taken(memory: ClientMemory<'_>) {
    let (head, tail) = (&memory.guest[guest_page::HEAD], &memory.host[host_page::TAIL]);
    wait_until("an empty ring", || head.load(Relaxed) == tail.load(Relaxed));
}

/// Leases the last client. The client's clock is ahead by this many ticks. When the VM goes on, the clock no
/// longer has these ticks.
fn lease<'m>(
    memory: ClientMemory<'m>,
    state: &'m ProducerState,
    token: u64,
    ahead: u64,
) -> Producer<'m> {
    let info = LeaseInfo { pid: 1, tid: 2, name: "guest" };
    Producer::lease(memory, state, Lease::new(token, ClockKind::Tsc, ticks() + ahead, &info), false)
}

/// Emits events of a client whose clock is this many ticks ahead.
fn emit(producer: &Producer<'_>, numbers: std::ops::Range<u64>, ahead: u64) {
    for number in numbers {
        let now = ticks();
        let (site, fields) = event_type!("stopped", number = number, truth = now);
        assert_eq!(producer.emit((site, fields), || now + ahead), Emit::Recorded);
    }
}

fn number(event: &Event, field: usize) -> u64 {
    let Value::Unsigned(number) = event.fields[field].1 else { panic!("{event:?}") };
    number
}

#[test]
fn what_another_server_left_in_a_vms_memory_has_no_bound_and_is_in_one_session() {
    const NAME: &str =
        "what_another_server_left_in_a_vms_memory_has_no_bound_and_is_in_one_session";
    if let Some(machine) = traced::argument() {
        return program(&machine);
    }
    let machine = Machine::new();
    let first = machine.session(Some(SIZE));
    machine.boot("first", NAME);
    let copy = fs::OpenOptions::new().read(true).write(true).open(machine.path("memory")).unwrap();
    let left = Segment::of_file(copy, &machine.path("memory")).unwrap();
    let left: &'static Segment = Box::leak(Box::new(left));
    let memory = left.client(LAST).unwrap();
    assert_eq!(memory.mode(), RingMode::Discard);
    // The guest's clock stands still for 200 ms.
    let ahead = first.trace().host_frequency() / 5;
    let state = ProducerState::new();
    let producer = lease(memory, &state, 7, ahead);
    emit(&producer, 0..100, ahead);
    producer.release();
    wait_until_taken(memory);
    fs::hard_link(machine.path("memory"), machine.path("kept")).unwrap();
    assert_eq!(first.finish().unwrap().ring_events, traced::THREADS * EVENTS + 100);
    // No host drains this memory any more.
    let producer = lease(memory, &state, 8, ahead);
    emit(&producer, 100..200, ahead);
    producer.release();
    let snapshot = fs::read(machine.path("kept")).unwrap();
    thread::sleep(Duration::from_millis(200));

    let second = machine.session_in("second", Some(SIZE));
    machine.restore(&snapshot);
    wait_until_taken(second.segment().client(LAST).unwrap());
    machine.boot("first", NAME);
    let summary = second.finish().unwrap();

    assert_eq!((summary.ring_events, summary.lost), (traced::THREADS * EVENTS + 100, 0));
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    assert_eq!(summary.time_faults, 0);
    let session = hypertrace_timeline::Session::open(&machine.path("second")).unwrap();
    assert_eq!(session.json().device["memory_of_others"], 1);
    let counter = session.counter();
    let maps = ClockMaps::of(&session).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let (mut numbers, mut known) = (Vec::new(), 0);
    for event in kept::events(&recording).unwrap() {
        if &*event.name == "stopped" {
            numbers.push(number(&event, 0));
            assert_eq!(event.bound_ns, None, "{event:?}");
            let truth = (counter.unix(number(&event, 1)) / 256) as i64;
            assert!(event.ts_ns < truth + 1_000_000_000, "{event:?}");
        } else if &*event.name == "step" {
            known += u64::from(event.bound_ns.is_some());
        }
    }
    assert_eq!(numbers, Vec::from_iter(100..200));
    assert_eq!(known, traced::THREADS * EVENTS);
    babeltrace2::read(&machine.path("second/ctf")).map(|read| read.clean());
}

#[test]
fn a_vms_memory_that_goes_back_is_told_and_its_events_are_recorded_once() {
    const NAME: &str = "a_vms_memory_that_goes_back_is_told_and_its_events_are_recorded_once";
    if let Some(machine) = traced::argument() {
        return program(&machine);
    }
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    machine.boot("first", NAME);
    let drained =
        || (0..LAST).for_each(|client| wait_until_taken(session.segment().client(client).unwrap()));
    drained();
    let snapshot = machine.snapshot();
    machine.boot("first", NAME);
    drained();

    machine.restore(&snapshot);
    machine.boot("first", NAME);
    let json = |session: &Session| session.trace().dir().join("session.json");
    let json = json(&session);
    let summary = session.finish().unwrap();

    assert_eq!((summary.ring_events, summary.lost), (3 * traced::THREADS * EVENTS, 0));
    assert_eq!(summary.reference_points, 3 * traced::THREADS * 2 * POINTS);
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["device"]["rollbacks"], 1, "{}", json["device"]);
}

#[test]
fn a_client_that_goes_on_when_its_vm_is_restored_counts_no_fault() {
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    let memory = session.segment().client(LAST).unwrap();
    let state = ProducerState::new();
    let producer = lease(memory, &state, 7, 0);
    // The ring's position is in the middle of a block, and the block's header is before the position.
    emit(&producer, 0..10, 0);
    wait_until_taken(memory);

    machine.restore(&machine.snapshot());
    for number in 10..20 {
        emit(&producer, number..number + 1, 0);
        wait_until_taken(memory);
    }
    let dir = session.trace().dir().to_owned();
    let summary = session.finish().unwrap();

    assert_eq!((summary.ring_events, summary.lost), (20, 0));
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    babeltrace2::read(&dir.join("ctf")).map(|read| read.clean());
}

#[test]
fn points_of_a_restored_vm_wait_until_its_epoch_has_begun() {
    let machine = Machine::new();
    let session = machine.session(Some(SIZE));
    let memory = session.segment().client(LAST).unwrap();
    let state = ProducerState::new();
    let producer = lease(memory, &state, 7, 0);
    emit(&producer, 0..1, 0);
    // The guest's clock is late by `late` ticks.
    let points = |numbers: std::ops::Range<u32>, late: u64| {
        for seq in numbers {
            let (site, fields) = event_type!("point", number = u64::from(seq));
            let ask = |_, seq| slot::ask(&memory, 0, seq);
            producer.slot(site, || ticks() - late, || seq, 0, fields, ask).unwrap();
            wait_until("a reply", || memory.host[host_page::REPLY].load(Relaxed) as u32 == seq);
        }
    };

    points(1..11, 0);
    let (snapshot, saved) = (machine.snapshot(), ticks());
    points(11..21, 0);
    machine.restore(&snapshot);
    points(21..31, ticks() - saved);
    let dir = session.trace().dir().to_owned();
    let summary = session.finish().unwrap();

    assert_eq!((summary.reference_points, summary.lost), (30, 0));
    let session = hypertrace_timeline::Session::open(&dir).unwrap();
    assert_eq!(session.json().device["rollbacks"], 1);
    assert_eq!(ClockMaps::of(&session).unwrap().unusable(), 0);
}
