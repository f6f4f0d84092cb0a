//! All backends at once at full rate, with slow disks. Guests on two vCPUs and two threads of the VMM emit
//! for `HYPERTRACE_SOAK_SECONDS`. At the end, each backend has recorded or dropped exactly the events emitted
//! to it, and memory use has not grown.
//!
//! The session is on a small disk that is emptied slowly. `simple` writes to a pipe that is read slowly.
//! `log` writes to a stderr that is read slowly; therefore the session is in a child process. `syslog` writes
//! to a daemon that reads slowly. `ftrace` writes to a private instance. For `sdt`, bpftrace counts the
//! events. The last four backends delay the emitting threads, so each of the four backends is used in some
//! rounds only.

use hypertrace_tests::child;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hypertrace_device::RingMode;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::namespace::{Mount, inside};
use hypertrace_tests::simpletrace::{Counter, Counts};
use hypertrace_tests::slow::{self, Reaper, Throttle};
use hypertrace_tests::syslog::Daemon;
use hypertrace_tests::tracefs::Instance;
use hypertrace_tests::{capability, kvm, packets, probes, syslog, this_test, trace, wait_until};
use hypertrace_trace::Summary;
use hypertrace_trace::backend::{self, Backends, ftrace, log};
use kvm_vmm::{Answer, Observer, VmmEvent, attach_window, record_in, run_on_threads};
use serde::{Deserialize, Serialize};

const SECONDS: &str = "HYPERTRACE_SOAK_SECONDS";
const DEFAULT_SECONDS: u64 = 5;
/// Environment variable of the child process, with the path for its [`Figures`].
const FIGURES: &str = "HYPERTRACE_SOAK_FIGURES";
const TRACEFS: &str = "HYPERTRACE_SOAK_TRACEFS";
/// Environment variable that is set if the child has a private `/dev`, for a syslog daemon.
const OWN_DEV: &str = "HYPERTRACE_SOAK_OWN_DEV";

const VCPUS: u32 = 2;
const THREADS: u64 = 2;
/// Approximate number of rounds. Each round has a new guest, whose clock starts again.
const ROUNDS: u32 = 100;
/// Bytes per second of each slow destination.
const SLOW: u64 = 2 << 20;
const DISK: &str = "size=24m";
const SEGMENT_BYTES: u64 = 1 << 20;
/// Maximum time that writes may continue to fail after the throttles are opened.
const SETTLE: Duration = Duration::from_secs(60);
/// Maximum growth of resident memory in KiB after the first round of each kind.
const MAX_GROWTH_KIB: u64 = 8 << 10;

/// Counts of the events emitted to a backend.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Row {
    backend: String,
    emitted: u64,
    recorded: u64,
    dropped: u64,
}

/// Figures that the child process reports.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Figures {
    /// Rows by backend. For `log` and `ftrace`, the child does not know the value of `recorded`.
    rows: Vec<Row>,
    rounds: usize,
    write_failures: u64,
    /// Resident memory after the first round of each kind, at the end, and its maximum in between.
    resident_kib: [u64; 3],
}

#[test]
fn every_event_is_recorded_or_dropped_and_memory_is_flat() {
    if let Some(figures) = std::env::var_os(FIGURES) {
        let told = soak();
        return fs::write(figures, serde_json::to_vec(&told).unwrap()).unwrap();
    }
    let tracefs = Instance::new();
    let figures = tempfile::NamedTempFile::new().unwrap();
    let mut command = child::alone(this_test!());
    if let Some(mut own_dev) = inside(&format!("{}\n{}", syslog::DEV, probes::TRACEFS), &command) {
        own_dev.env(OWN_DEV, "1");
        command = own_dev;
    }
    command.env(FIGURES, figures.path());
    if let Some(tracefs) = &tracefs {
        command.env(TRACEFS, tracefs.dir());
    }
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut logged = Logged::of(child.id());
    slow::copy(child.stderr.take().unwrap(), &mut logged, Throttle::new(SLOW)).unwrap();
    assert!(child.wait().unwrap().success(), "{}", logged.other);

    // These lines are printed for the person who runs the test, even if the test passes.
    for line in logged.other.lines().filter(|line| line.starts_with("capability missing")) {
        let _ = writeln!(io::stderr(), "{line}");
    }
    let mut told: Figures = serde_json::from_slice(&fs::read(figures.path()).unwrap()).unwrap();
    for row in &mut told.rows {
        match &*row.backend {
            "log" => row.recorded = logged.lines,
            "ftrace" => row.recorded = tracefs.as_ref().map_or(0, Instance::recorded),
            _ => {}
        }
    }
    print!("{}", table(&told, begun.elapsed()));
    for row in &told.rows {
        assert!(row.emitted > 0 && row.emitted == row.recorded + row.dropped, "{row:?}");
    }
    let [warm, end, _] = told.resident_kib;
    assert!(end < warm + MAX_GROWTH_KIB, "{warm} KiB became {end} KiB");
    if tracefs.is_some() {
        capability::used("tracefs");
    }
}

fn table(figures: &Figures, took: Duration) -> String {
    let mut text = format!(
        "{} rounds in {:.0} s, {} writes of the session failed\n{:10} {:>13} {:>13} {:>13}\n",
        figures.rounds,
        took.as_secs_f64(),
        figures.write_failures,
        "backend",
        "emitted",
        "recorded",
        "dropped"
    );
    for Row { backend, emitted, recorded, dropped } in &figures.rows {
        writeln!(text, "{backend:10} {emitted:>13} {recorded:>13} {dropped:>13}").unwrap();
    }
    let [warm, end, most] = figures.resident_kib;
    writeln!(text, "memory: {warm} KiB warm, {end} KiB at the end, {most} KiB at most").unwrap();
    text
}

/// Contents of a process's stderr. The lines that the `log` backend wrote are counted, and all other lines
/// are kept.
struct Logged {
    prefix: String,
    rest: Vec<u8>,
    lines: u64,
    other: String,
}

impl Logged {
    fn of(pid: u32) -> Logged {
        Logged { prefix: format!("{pid}@"), rest: Vec::new(), lines: 0, other: String::new() }
    }
}

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.rest.drain(..whole).collect::<Vec<_>>().split_inclusive(|b| *b == b'\n') {
            if line.starts_with(self.prefix.as_bytes()) {
                self.lines += 1;
            } else {
                self.other.push_str(&String::from_utf8_lossy(line));
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Numbers of emitted events, by destination.
#[derive(Default)]
struct Emitted {
    /// Number of guests' events in their rings.
    guest: u64,
    /// Count of the guests' reference points that a vCPU's thread has handled.
    points: u64,
    /// Count of the VMM's declared events.
    declared: u64,
    /// Numbers of declared events and points while each backend was on.
    log: u64,
    syslog: u64,
    ftrace: u64,
    sdt: u64,
}

/// Kind of a round.
#[derive(Clone, Copy)]
struct Kind {
    program: Program,
    backends: Backends,
    /// Number of events that the program emits on each vCPU.
    events: u64,
}

/// VMM with all backends, and their slow destinations.
struct Soak {
    host: Host,
    observer: Observer,
    /// Number of events that the observer saw.
    observed: Arc<AtomicU64>,
    has_kvm: bool,
    emitted: Emitted,
}

impl Soak {
    fn new(host: Host) -> Soak {
        let observed = Arc::<AtomicU64>::default();
        let (count, record) = (Arc::clone(&observed), record_in(host.session.clone()));
        let observer = Arc::new(move |event: VmmEvent| {
            if !matches!(event, VmmEvent::Start { .. }) {
                count.fetch_add(1, Relaxed);
            }
            record(event);
        });
        let has_kvm = kvm::is_usable();
        Soak { host, observer, observed, has_kvm, emitted: Emitted::default() }
    }

    /// Runs a round: all threads emit until the guest ends. Adjusts the amount of work in `kind` so that the
    /// next round takes about `length`.
    fn round(&mut self, kind: &mut Kind, length: Duration) {
        backend::add(kind.backends);
        let (stop, session) = (&AtomicBool::new(false), &self.host.session);
        let begun = Instant::now();
        let (guest, own) = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|source| {
                    scope.spawn(move || {
                        session.attach("soak");
                        let mut emitted = 0;
                        while !stop.load(Relaxed) {
                            trace::test_pair(source, emitted);
                            emitted += 1;
                        }
                        emitted
                    })
                })
                .collect();
            let guest = self.guest(kind);
            stop.store(true, Relaxed);
            let own: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            (guest, own)
        });
        backend::remove(kind.backends);

        let Emitted { guest: in_rings, points, .. } = guest;
        let declared = own + self.observed.swap(0, Relaxed);
        let emitted = &mut self.emitted;
        emitted.guest += in_rings;
        emitted.points += points;
        emitted.declared += declared;
        for (which, count) in [
            (Backends::LOG, &mut emitted.log),
            (Backends::SYSLOG, &mut emitted.syslog),
            (Backends::FTRACE, &mut emitted.ftrace),
            (Backends::SDT, &mut emitted.sdt),
        ] {
            if kind.backends.contains(which) {
                *count += declared + points;
            }
        }
        let per_second = kind.events as f64 / begun.elapsed().as_secs_f64();
        let next = (per_second * length.as_secs_f64()) as u64;
        kind.events = next.clamp(100, kind.events * 4);
    }

    /// Runs the guest. Returns the numbers of emitted events.
    fn guest(&self, kind: &Kind) -> Emitted {
        let host = &self.host;
        let vcpus = u64::from(VCPUS);
        let mut args = Args { device: layout::DEVICE, ..Args::new(kind.program) };
        let points = kind.program == Program::ReferencePoints;
        // The count includes the events that a program emits before it begins to measure.
        let count = if points {
            args.reference_points = kind.events;
            vcpus * (kind.events + 1)
        } else {
            args.events = kind.events;
            vcpus * (kind.events + host.chip.geometry().ring_bytes / 8 / 4)
        };
        if let Some(mut machine) = self.has_kvm.then(|| kvm::machine(VCPUS as usize)).flatten() {
            machine.observe(Arc::clone(&self.observer));
            let answer = Answer::Device;
            attach_window(&mut machine, &host.device, layout::DEVICE, answer).unwrap();
            kvm::run(machine, &args);
            if points {
                return Emitted { points: count, ..Emitted::default() };
            }
        } else {
            run_on_threads(host.channel(), VCPUS as usize, &args).unwrap();
        }
        Emitted { guest: count, ..Emitted::default() }
    }
}

/// Runs all rounds. Returns the figures.
fn soak() -> Figures {
    let seconds = std::env::var(SECONDS).ok().map_or(DEFAULT_SECONDS, |s| s.parse().unwrap());
    let total = Duration::from_secs(seconds);
    let tracefs = std::env::var_os(TRACEFS).map(PathBuf::from);
    if let Some(dir) = &tracefs {
        ftrace::open(dir).unwrap();
    }
    let disk = Mount::new("tmpfs", DISK);
    let [slow_disk, slow_pipe, slow_syslog] = [SLOW; 3].map(Throttle::new);
    let dir = match &disk {
        Some(mount) => tempfile::tempdir_in(mount.path()).unwrap(),
        None => {
            // The real disk must not be filled.
            slow_disk.open();
            tempfile::tempdir().unwrap()
        }
    };
    let path = dir.path().to_owned();
    let mut soak = Soak::new(Host::within(dir, geometry(VCPUS), RingMode::Discard, SEGMENT_BYTES));
    let reaper = Reaper::start(&path, slow_disk.clone());
    let drain = soak.host.drain();
    let pipe = tempfile::tempdir().unwrap();
    let simple = Reading::start(&soak.host, &pipe.path().join("pipe"), &slow_pipe);

    let kind = |program, backends, events| Kind { program, backends, events };
    let mut kinds = vec![
        kind(Program::RingEmit, Backends::empty(), 100_000),
        kind(Program::ReferencePoints, Backends::empty(), 1_000),
        kind(Program::ReferencePoints, Backends::LOG, 100),
    ];
    if tracefs.is_some() {
        kinds.push(kind(Program::ReferencePoints, Backends::FTRACE, 1_000));
    }
    let daemon = std::env::var_os(OWN_DEV).map(|_| Daemon::start(slow_syslog.clone()).unwrap());
    if daemon.is_some() {
        kinds.push(kind(Program::ReferencePoints, Backends::SYSLOG, 100));
    }
    let probes = probes(&mut soak.emitted);
    if probes.is_some() {
        kinds.push(kind(Program::ReferencePoints, Backends::SDT, 1_000));
    }
    let mut resident = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < total || resident.len() < kinds.len() {
        let next = resident.len() % kinds.len();
        soak.host.session.begin_epoch(resident.len() as u32);
        soak.round(&mut kinds[next], total / ROUNDS);
        resident.push(resident_kib());
    }

    slow_disk.open();
    slow_pipe.open();
    slow_syslog.open();
    settle(&soak.host);
    drain.finish();
    let Soak { host, emitted, observer, .. } = soak;
    // The VMM's observer holds the session, and the session's end closes the pipe.
    drop(observer);
    let recorded = host.finish();
    let records = reaper.end() + packets::committed(recorded.dir()).unwrap().all();
    let summary = &recorded.summary;
    assert_eq!(records, summary.records, "what is in the files is what the session says");
    let mut rows = vec![session_row(summary, &emitted)];
    rows.extend(simple.map(|simple| simple_row(&simple.counts(), &emitted)));
    let told = |backend: &str, emitted, dropped| Row {
        backend: backend.into(),
        emitted,
        dropped,
        ..Row::default()
    };
    rows.push(told("log", emitted.log, log::lost()));
    if tracefs.is_some() {
        rows.push(told("ftrace", emitted.ftrace, ftrace::lost()));
    }
    // A thread that emits to these two backends waits for the reader, so no event can be dropped.
    let counted = |backend: &str, emitted, recorded| Row {
        backend: backend.into(),
        emitted,
        recorded,
        ..Row::default()
    };
    rows.extend(daemon.map(|d| counted("syslog", emitted.syslog, d.messages().unwrap())));
    rows.extend(probes.map(|probes| counted("sdt", emitted.sdt, probes.events())));
    Figures {
        rows,
        rounds: resident.len(),
        write_failures: summary.write_failures,
        resident_kib: [
            resident[kinds.len() - 1],
            *resident.last().unwrap(),
            *resident.iter().max().unwrap(),
        ],
    }
}

/// Starts a counter of this process's probes.
fn probes(emitted: &mut Emitted) -> Option<probes::Counter> {
    let calls = AtomicU64::new(0);
    backend::add(Backends::SDT);
    let counter = probes::Counter::start("test_none", || {
        trace::test_none();
        calls.fetch_add(1, Relaxed);
    });
    backend::remove(Backends::SDT);
    emitted.declared += calls.into_inner();
    counter
}

/// Waits until writes of the session succeed again.
fn settle(host: &Host) {
    let failures = || host.session.summary().write_failures;
    let (mut before, begun) = (None, Instant::now());
    while before != Some(failures()) {
        assert!(begun.elapsed() < SETTLE, "what could not be written still cannot be");
        before = Some(failures());
        thread::sleep(Duration::from_millis(200));
    }
}

fn session_row(summary: &Summary, emitted: &Emitted) -> Row {
    Row {
        backend: "session".into(),
        emitted: emitted.guest + emitted.points + emitted.declared,
        recorded: summary.records - summary.leases - summary.time_faults,
        dropped: summary.lost + summary.filtered,
    }
}

fn simple_row(counts: &Counts, emitted: &Emitted) -> Row {
    Row {
        backend: "simple".into(),
        emitted: emitted.points + emitted.declared,
        recorded: counts.events.values().sum(),
        dropped: counts.dropped,
    }
}

/// Slow reader of a pipe, and the counter of its records.
struct Reading {
    reader: JoinHandle<io::Result<()>>,
    counter: Counter,
}

impl Reading {
    /// Makes the host write declared events to a pipe, and reads the pipe as fast as the throttle allows.
    /// Returns `None` if there is no counter.
    fn start(host: &Host, path: &Path, throttle: &Throttle) -> Option<Reading> {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        let (counter, to): (_, Box<dyn io::Write + Send>) = match Counter::start() {
            Some((counter, to)) => (Some(counter), Box::new(to)),
            None => (None, Box::new(io::sink())),
        };
        let (from, throttle) = (path.to_owned(), throttle.clone());
        let reader = thread::spawn(move || slow::copy(File::open(from)?, to, throttle));
        // A pipe without a reader is refused.
        wait_until("a reader", || host.session.set_simple_file(path).is_ok());
        Some(Reading { reader, counter: counter? })
    }

    /// Returns the counts after the pipe's end.
    fn counts(self) -> Counts {
        self.reader.join().unwrap().unwrap();
        self.counter.counts()
    }
}

/// Returns the resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let mut status = String::new();
    File::open("/proc/self/status").unwrap().read_to_string(&mut status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
