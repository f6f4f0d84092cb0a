//! A storm: four hostile vCPUs store to every word that they share with the host, while commands control the
//! session, snapshots are taken and epochs begin. One client is honest. The storm lasts
//! `HYPERTRACE_STORM_SECONDS`. The host does not panic, no step of its drain loop exceeds its bound, memory
//! and disk stay within their bounds, every session is readable to its end, and the honest client's events
//! are complete.

use hypertrace_test_support::steps::Steps;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use hypertrace::{Channel, Client, LeaseInfo, ProducerState};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{WORD, guest_page, host_page};
use hypertrace_abi::ring::{ClientMemory, Consumer};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, PassConfig, ReferencePoint, SessionInfo, Status,
};
use hypertrace_device::DrainPolicy;
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region, RingMode};
use hypertrace_test_support::kept;
use hypertrace_tests::forger::{Forger, collision};
use hypertrace_tests::random::Random;
use hypertrace_tests::{babeltrace2, wait_until};
use hypertrace_timeline::{ClockMaps, EventRef, Recording, ValueRef};
use hypertrace_trace::limits::{CLIENT_BYTES, GUESTS_BYTES, MAX_CLOCKS};
use hypertrace_trace::{Output, Session, SessionConfig, SnapshotLimit, Summary};

const SECONDS: &str = "HYPERTRACE_STORM_SECONDS";
const DEFAULT_SECONDS: u64 = 6;
/// Duration of a session in the storm.
const ROUND: Duration = Duration::from_secs(4);

/// Time from one clock epoch to the next. The time is not shorter, because each client may begin new files in
/// each epoch. The time that babeltrace2 needs is proportional to the number of files times the number of
/// events.
const EPOCH: Duration = Duration::from_millis(1500);

const VCPUS: u32 = 4;
const HONEST: u32 = 0;
/// Number of clients that the vCPUs share.
const HOSTILE: u32 = 3;

/// Target for the CPU time of a pass.
const PASS: Duration = Duration::from_millis(50);

/// Number of steps that each client gets in a pass that counts steps instead of time.
const SHARE: u64 = 4;
/// Maximum number of steps of a pass that counts shares in steps: 16 shares, one more share for the client
/// that began last, and a check of each client.
const MAX_STEPS: u64 = 17 * SHARE + HOSTILE as u64 + 1;
/// Maximum resident memory of the process in KiB.
const MAX_RESIDENT_KIB: u64 = 512 << 10;
/// Environment variable with the MiB of memory that a sanitizer adds.
const RESIDENT: &str = "HYPERTRACE_STORM_RESIDENT_MIB";

fn geometry() -> Geometry {
    Geometry {
        clients: 1 + HOSTILE,
        ring_bytes: 1 << 16,
        block_bytes: 1 << 12,
        ..Geometry::default()
    }
}

/// The three kinds of rings.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Discard,
    Overwrite,
    Snapshots,
}

/// Session that counts the calls of the drain loop.
struct Watch {
    session: Session,
    ring_mode: RingMode,
    /// Number of steps of this pass.
    steps: AtomicU64,
    /// Number of words taken in this pass.
    words: AtomicU64,
}

impl EventSink for Watch {
    fn session_info(&self) -> SessionInfo {
        self.session.session_info().with(|info| info.ring_mode = self.ring_mode)
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.session.reference_point(point)
    }

    fn has_room_for_point(&self) -> bool {
        self.session.has_room_for_point()
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Watch {
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        self.session.begin_generation(epoch, known)
    }

    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        self.session.known_clients(each);
    }

    fn begin_pass(&mut self) -> PassConfig {
        self.session.begin_pass()
    }

    fn last_pass(&mut self) {
        self.session.last_pass();
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        let drained = self.session.drain(client, consumer);
        // A step takes no more words than a ring has, whatever the producer writes.
        assert!(drained.words <= geometry().ring_bytes / WORD, "{drained:?} of client {client}");
        self.steps.fetch_add(1, Relaxed);
        self.words.fetch_add(drained.words, Relaxed);
        drained
    }

    fn end_pass(&mut self) {
        self.session.end_pass();
    }
}

/// Measurements of the drain loop's thread.
#[derive(Debug, Default)]
struct Passes {
    passes: u64,
    steps: u64,
    most_steps: u64,
    words: u64,
    most_words: u64,
    /// Maximum number of steps of a pass that counts shares in steps.
    most_counted: u64,
    most_cpu: Duration,
    beyond_target: u64,
}

impl Passes {
    fn add(&mut self, other: &Passes) {
        self.passes += other.passes;
        self.steps += other.steps;
        self.words += other.words;
        self.most_steps = self.most_steps.max(other.most_steps);
        self.most_words = self.most_words.max(other.most_words);
        self.most_counted = self.most_counted.max(other.most_counted);
        self.most_cpu = self.most_cpu.max(other.most_cpu);
        self.beyond_target += other.beyond_target;
    }

    /// Makes and measures a pass. Every second pass counts shares in steps instead of time, so that its bound
    /// does not depend on the machine. Returns whether there is more work.
    fn pass(&mut self, chip: &Chip, watch: &Watch) -> bool {
        let Watch { steps, words, .. } = watch;
        let counted = self.passes % 2 == 1;
        let before = thread_time();
        let more = match counted {
            true => chip.drain_pass_by(SHARE, &|| steps.load(Relaxed)),
            false => chip.drain_pass(DrainPolicy::default().budget),
        };
        let cpu = thread_time() - before;
        let (steps, words) = (steps.swap(0, Relaxed), words.swap(0, Relaxed));
        assert!(!counted || steps <= MAX_STEPS, "{steps} steps in one pass");
        self.add(&Passes {
            passes: 1,
            steps,
            most_steps: steps,
            words,
            most_words: words,
            most_counted: if counted { steps } else { 0 },
            most_cpu: cpu,
            beyond_target: u64::from(cpu > PASS),
        });
        more
    }
}

/// Returns the CPU time of this thread.
#[allow(unsafe_code)] // clock_gettime
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a valid struct.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Hostile vCPU that uses a client.
struct Vcpu<'c> {
    forger: Forger<'c>,
    chip: &'c Chip,
    client: u32,
    random: Random,
    texts: Vec<String>,
    new: u64,
}

impl<'c> Vcpu<'c> {
    fn new(chip: &'c Chip, number: u32, random: Random) -> Vcpu<'c> {
        let client = 1 + number % HOSTILE;
        let (one, other) = collision();
        let plain = ["e(x:u64)", "a(a:[u64],s:str,b:u8)", "tick()", "event(struct:str,id:u64)"];
        let texts = plain.into_iter().map(str::to_owned).chain([one, other]).collect();
        let forger = Forger::new(chip, client);
        Vcpu { forger, chip, client, random, texts, new: u64::from(number) << 32 }
    }

    /// Returns a number that is likely to be wrong in an interesting way.
    fn odd(&mut self) -> u64 {
        let (any, now) = (self.random.number(), ticks());
        let head = self.forger.head;
        self.random.pick(&[
            0,
            1,
            2,
            7,
            8,
            100,
            4096,
            1 << 32,
            1 << 62,
            1 << 63,
            u64::MAX,
            any,
            now,
            now + 1,
            head,
        ])
    }

    fn text(&mut self) -> String {
        let at = self.random.below(self.texts.len() as u64) as usize;
        self.texts[at].clone()
    }

    fn act(&mut self) {
        let random = self.random.below(1000);
        match random {
            0..=9 => {
                let (word, value) = (self.random.number() as usize, self.odd());
                self.forger.poke(word, value);
            }
            10..=24 => {
                let word = self.random.pick(&[
                    guest_page::HEAD,
                    guest_page::LOST_FULL,
                    guest_page::LOST_BUSY,
                    guest_page::SCHEMA_LEN,
                    guest_page::SLOT_LEN,
                    512 + host_page::TAIL,
                    512 + host_page::SCHEMA_SEEN,
                    512 + host_page::LEASE,
                    512 + host_page::WRITE_FAILED,
                ]);
                let value = self.odd();
                self.forger.poke(word, value);
            }
            25..=29 => {
                let (word, value) = (self.random.number() as usize, self.odd());
                self.forger.mask(word, value);
            }
            30..=34 => {
                self.forger.head = self.odd();
                self.forger.publish();
            }
            35..=44 => self.tell(),
            45..=49 => {
                let offset = self.random.below(0x30);
                let bytes = self.odd().to_le_bytes();
                let len = self.random.below(9) as usize;
                self.forger.register(offset, &bytes[..len]);
            }
            50..=59 => {
                let (text, time) = (self.text(), self.odd());
                let payload: Vec<u64> = (0..self.random.below(6)).map(|_| self.odd()).collect();
                let told = self.random.pick(&[payload.len() as u16, payload.len() as u16, 999]);
                self.forger.emit(self.new as u32, id_of(&text), time, told, &payload);
            }
            60 => self.lease(),
            61..=63 => self.forger.kick(),
            _ => self.record(),
        }
    }

    /// Writes a schema text that is known, or new, or has a changed byte or another id.
    fn tell(&mut self) {
        let text = match self.random.below(2) {
            0 => self.text(),
            _ => {
                self.new += 1;
                format!("new{:x}(aaaaaaaaaaaaaaaaaaaaaaaa:u64,bbbbbbbbbbbbbbbb:str)", self.new)
            }
        };
        let mut bytes = text.clone().into_bytes();
        if self.random.below(10) == 0 {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] = self.random.number() as u8;
        }
        let id = if self.random.below(10) == 0 { 99 } else { id_of(&text) };
        self.forger.schema(id, &bytes);
        if self.random.below(2) == 0 {
            self.texts.truncate(64);
            self.texts.push(text);
        }
    }

    fn record(&mut self) {
        if self.forger.at_block() {
            let token = self.random.pick(&[1, 1, 1, 2, 3, 0]);
            let sequence = self.odd();
            self.forger.block(sequence, token);
        }
        let id = match self.random.below(8) {
            0 => self.random.below(20) as u32,
            1 => self.random.number() as u32,
            _ => id_of(&self.text()),
        };
        let payload: Vec<u64> = (0..self.random.below(6)).map(|_| self.random.below(12)).collect();
        let told =
            if self.random.below(50) == 0 { self.odd() as u16 } else { payload.len() as u16 };
        let time = if self.random.below(10) == 0 { self.odd() } else { ticks() };
        let flags = self.random.pick(&[0, 0, 0, 1, 2, 3, 0xffff]);
        self.forger.record(time, id, told, flags, &payload);
        if self.random.below(4) == 0 {
            self.forger.publish();
        }
    }

    /// Lets an honest producer lease the client in the client's present state.
    fn lease(&mut self) {
        let state = ProducerState::new();
        let client = lease(self.chip, self.client, &state, "\x1b[2Jguest\n");
        for n in 0..20u64 {
            let (site, fields) = event_type!("ruled", n, text = "\x1b]0;");
            client.emit(site, fields);
        }
        client.release();
    }
}

fn lease<'c>(chip: &'c Chip, client: u32, state: &'c ProducerState, name: &'c str) -> Client<'c> {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let channel = Channel::local(&chip.config_page(), rings).unwrap();
    let info = LeaseInfo { pid: 1, tid: client, name };
    Client::lease(channel, client, state, ticks() | 1, &info).unwrap()
}

/// Waits until the honest client's ring is empty.
fn wait_until_drained(chip: &Chip, drain: &ScopedJoinHandle<'_, Passes>) {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, HONEST, chip.geometry(), RingMode::Discard).unwrap();
    let head = memory.guest[guest_page::HEAD].load(Relaxed);
    wait_until("an empty ring", || {
        assert!(!drain.is_finished(), "the drain loop has ended");
        memory.host[host_page::TAIL].load(Relaxed) == head
    });
}

/// Commands at the control socket, in order.
const COMMANDS: [&str; 12] = [
    "trace-event e off",
    "trace-event new* off",
    "info trace",
    "trigger add on e do events tick off",
    "trace-event e on",
    "info trace-events",
    "trigger add on tick do events ev* on",
    "trace-event * on",
    "trigger add on event do snapshot",
    "trace-event c* off",
    "trigger list",
    "trace-event ruled off",
];

fn steer(session: &Session, done: &AtomicBool) {
    for (n, command) in COMMANDS.iter().cycle().enumerate() {
        if done.load(Relaxed) {
            return;
        }
        // Some commands fail in some sessions: there may be too many triggers.
        let _ = session.execute(command);
        if n % 50 == 49 {
            for trigger in 0..400 {
                let _ = session.remove_trigger(trigger);
            }
            session.summary();
        }
        if n % 100 == 99 {
            // In a session without snapshots, this command is an error.
            let _ = session.snapshot();
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Results of a round.
struct Round {
    dir: tempfile::TempDir,
    summary: Summary,
    emitted: u64,
    passes: Passes,
    resident_kib: u64,
}

fn storm(kind: Kind, lasts: Duration, mut random: Random) -> Round {
    let dir = tempfile::tempdir().unwrap();
    let (output, ring_mode) = match kind {
        Kind::Discard => (Output::Trace, RingMode::Discard),
        Kind::Overwrite => (Output::Trace, RingMode::Overwrite),
        Kind::Snapshots => (Output::Snapshots, RingMode::Overwrite),
    };
    let guests_snapshots = SnapshotLimit { most: 4, interval: Duration::from_millis(200) };
    let config = SessionConfig::new(dir.path()).with(|config| {
        config.output = output;
        config.guests_snapshots = guests_snapshots;
    });
    let session = Session::create(config).unwrap();
    let (steps, words) = (AtomicU64::new(0), AtomicU64::new(0));
    let watch = Arc::new(Watch { session: session.clone(), ring_mode, steps, words });
    let config = ChipConfig::default();
    let memory = Memory::anonymous(geometry()).unwrap();
    let chip = Arc::new(Chip::new(memory, &config, watch.clone(), ()));

    let (quiet, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut emitted, mut epoch) = (0u64, 0);
    let (begun, mut resident_kib) = (Instant::now(), 0);
    let passes = thread::scope(|scope| {
        let (chip, watch, session, quiet, done) = (&*chip, &*watch, &session, &quiet, &done);
        let vcpus: Vec<_> = (0..VCPUS)
            .map(|number| {
                let random = random.fork();
                scope.spawn(move || {
                    let mut vcpu = Vcpu::new(chip, number, random);
                    while !quiet.load(Relaxed) {
                        (0..64).for_each(|_| vcpu.act());
                        thread::sleep(Duration::from_micros(100));
                    }
                })
            })
            .collect();
        let steers = scope.spawn(move || steer(session, quiet));
        let drain = scope.spawn(move || {
            let mut passes = Passes::default();
            while !done.load(Relaxed) {
                if !passes.pass(chip, watch) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            passes
        });
        let state = ProducerState::new();
        let honest = lease(chip, HONEST, &state, "honest");
        while begun.elapsed() < lasts {
            // A flight recorder always has room.
            while !honest.wait_for_room(1, 2) {
                assert!(!drain.is_finished(), "nobody drains");
            }
            let (site, fields) = event_type!("honest", emitted, check = !emitted);
            honest.emit(site, fields);
            emitted += 1;
            if emitted.is_multiple_of(16) {
                thread::yield_now();
            }
            if begun.elapsed() > EPOCH * (epoch + 1) {
                // Records that are drained after an epoch's beginning belong to that epoch.
                wait_until_drained(chip, &drain);
                epoch += 1;
                session.begin_epoch(epoch);
                resident_kib = resident_kib.max(resident());
            }
        }
        resident_kib = resident_kib.max(resident());
        honest.release();
        quiet.store(true, Relaxed);
        vcpus.into_iter().for_each(|vcpu| vcpu.join().unwrap());
        steers.join().unwrap();
        done.store(true, Relaxed);
        drain.join().unwrap()
    });
    watch.last_pass();
    chip.drain_all();
    chip.discard_unread();
    drop(chip);
    let summary = session.finish().unwrap();
    Round { dir, summary, emitted, passes, resident_kib }
}

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the bytes on disk of all files below a directory.
fn disk(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let bytes = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        meta if meta.is_dir() => disk(&entry.path()),
        meta => meta.blocks() * 512,
    };
    entries.map(bytes).sum()
}

/// Returns the sessions in a directory: the directory itself, or its snapshots.
fn sessions(dir: &Path) -> Vec<PathBuf> {
    if dir.join("session.json").exists() {
        return vec![dir.to_owned()];
    }
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.join("session.json").exists()).collect()
}

/// Reads a whole session as `report` does. Returns the honest client's numbers, which must be in order
/// and not torn, and the number of events.
fn read(dir: &Path) -> (Vec<u64>, u64) {
    let session = hypertrace_timeline::Session::open(dir).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let (mut numbers, mut events) = (Vec::new(), 0);
    // The millions of events must not be in memory together, because the test measures the memory of the next
    // round.
    let each = |event: &EventRef<'_>| {
        events += 1;
        if &**event.name == "honest" && event.source.client == Some(HONEST) {
            let mut values = event.fields.iter().map(|(_, value)| value);
            let (Some(ValueRef::Unsigned(number)), Some(ValueRef::Unsigned(check))) =
                (values.next(), values.next())
            else {
                panic!("{event:?}")
            };
            assert_eq!(check, !number, "torn");
            numbers.push(number);
        }
    };
    kept::each_event(&recording, each).unwrap();
    (numbers, events)
}

impl Round {
    /// Checks the results of the round. Returns the number of bytes on disk.
    fn check(&self, kind: Kind, lasted: Duration) -> u64 {
        let bytes = disk(self.dir.path());
        let found = sessions(self.dir.path());
        // A record of two words can become seven words, a packet has 128 bytes and up to as many bytes of
        // padding, and each client has 65 files of at least a page in each epoch.
        let epochs = 2 + lasted.as_secs();
        let files = u64::from(geometry().clients) * 65 * epochs * 4096 * 2;
        let words = match kind {
            Kind::Snapshots => found.len() as u64 * geometry().rings_size() / WORD,
            _ => self.passes.words + geometry().rings_size() / WORD,
        };
        // The descriptions consist of texts (with room between the metadata's blocks), clocks, counts of
        // streams, and other values.
        let texts = 2 * (GUESTS_BYTES + geometry().clients as usize * CLIENT_BYTES) as u64;
        let description = texts + epochs * MAX_CLOCKS as u64 * (16 << 10) + (1 << 20);
        let description = found.len() as u64 * description;
        let most = words * WORD * 4 + self.passes.steps * 256 + files + description;
        assert!(bytes <= most, "{bytes} bytes on disk, and {most} are the most");

        for dir in &found {
            let (numbers, events) = read(dir);
            if let Some(count) = babeltrace2::count(&dir.join("ctf")) {
                assert_eq!(count, events, "{}", dir.display());
            }
            assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
            let told = hypertrace_timeline::Session::open(dir).unwrap();
            let honest = told.json().streams.iter().find(|stream| {
                stream.client == HONEST && stream.domain == hypertrace_timeline::Domain::Guest
            });
            let Some(honest) = honest else { continue };
            let clocks = &told.json().clocks;
            assert!(honest.faults.is_empty(), "{honest:?}, {clocks:?}");
            let lost = honest.lost_full + honest.lost_busy + honest.lost_overwritten;
            match kind {
                Kind::Discard => {
                    assert_eq!((numbers.len() as u64, lost), (self.emitted, 0));
                }
                // The lease record may be overwritten, too.
                Kind::Overwrite => {
                    let all = numbers.len() as u64 + lost;
                    assert!(all == self.emitted || all == self.emitted + 1 && lost > 0);
                }
                // Records that were overwritten before they were taken are counted, including the lease.
                Kind::Snapshots => {
                    let all = numbers.len() as u64 + lost;
                    let emitted = numbers.last().map_or(all, |last| last + 1);
                    assert!(all == emitted || all == emitted + 1 && lost > 0, "{all}, {emitted}");
                }
            }
        }
        bytes
    }
}

#[test]
fn a_storm_harms_nobody() {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    let lasts = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
    let resident = std::env::var(RESIDENT).ok().and_then(|mib| mib.parse::<u64>().ok());
    let most_resident = resident.map_or(MAX_RESIDENT_KIB, |mib| mib << 10);
    let mut random = Random::seeded();
    let (mut lasted, mut rounds) = (Duration::ZERO, 0);
    let (mut passes, mut resident_kib, mut bytes, mut records) = (Passes::default(), 0, 0, 0);
    for kind in [Kind::Discard, Kind::Overwrite, Kind::Snapshots].into_iter().cycle() {
        let begun = Instant::now();
        let round = storm(kind, ROUND.min(lasts / 3), random.fork());
        let took = begun.elapsed();
        (lasted, rounds) = (lasted + took, rounds + 1);
        bytes = round.check(kind, took).max(bytes);
        passes.add(&round.passes);
        resident_kib = round.resident_kib.max(resident_kib);
        records += round.summary.records;
        println!("{kind:?}: {:?}, {:?}", round.passes, round.summary.faults);
        if lasted >= lasts && rounds >= 3 {
            break;
        }
    }
    println!(
        "figure: storm of {} s, {rounds} sessions, {records} records; {} passes, in one at most {} \
         steps ({} of {MAX_STEPS} where shares are steps), {} words, {} us of CPU time (target {} us, beyond it {}); {resident_kib} KiB in \
         memory, {bytes} bytes on disk at most",
        lasted.as_secs(),
        passes.passes,
        passes.most_steps,
        passes.most_counted,
        passes.most_words,
        passes.most_cpu.as_micros(),
        PASS.as_micros(),
        passes.beyond_target,
    );
    assert!(resident_kib < most_resident, "{resident_kib} KiB in memory");
    assert!(passes.words > 0 && records > 0);
}
