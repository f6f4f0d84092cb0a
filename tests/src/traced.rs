//! A program in user mode: what the traced side of a scenario does, and how a test is one itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hypertrace::{Emit, Status, commit, event, reference_point};
use hypertrace_timeline::{ClockMaps, Event, Kind, Session, Timeline, Value};

/// How a test that is run as a program knows, and what it is to do.
const AS_PROGRAM: &str = "HYPERTRACE_TEST_PROGRAM";

/// This test executable as a program that runs the test `name` alone, in which [`argument`] gives
/// `argument`. For `hypertrace run -- ..`: what stands behind the dashes, and the environment.
pub fn program(command: &mut Command, name: &str, argument: &str) {
    command.arg("--").arg(std::env::current_exe().expect("this program has a path"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1", "-q"]);
    command.env(AS_PROGRAM, argument);
}

/// What this program is to do; `None` in an ordinary test run, where it is nobody's program.
pub fn argument() -> Option<String> {
    std::env::var(AS_PROGRAM).ok()
}

/// Words of an event in [`four_threads`], so that it waits for room before it emits.
const WORDS: u64 = 8;

/// Threads of [`four_threads`].
pub const THREADS: u64 = 4;

/// What each of four threads does: `events` ring events `step`, each of which says which one it is,
/// and spread among them `points` commits and as many acknowledged points. It waits for room rather
/// than lose an event. Gives what could not be recorded.
pub fn four_threads(events: u64, points: u64) -> u64 {
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let failed = &failed;
            thread::Builder::new()
                .name(format!("worker{thread}"))
                .spawn_scoped(scope, move || {
                    failed.fetch_add(one_thread(thread, events, points), Ordering::Relaxed)
                })
                .expect("a thread can be started");
        }
    });
    failed.into_inner()
}

/// How many events and points of each strength a thread records: so many events, or as many as
/// `HYPERTRACE_TEST_EVENTS` says, and a hundredth of that.
pub fn sizes(events: u64) -> (u64, u64) {
    let told = std::env::var("HYPERTRACE_TEST_EVENTS").ok();
    let events = told.map_or(events, |told| told.parse().expect("HYPERTRACE_TEST_EVENTS"));
    (events, events / 100)
}

/// How often a point comes.
fn every(events: u64, points: u64) -> u64 {
    (events / points.max(1)).max(1)
}

fn one_thread(thread: u64, events: u64, points: u64) -> u64 {
    let every = every(events, points);
    let mut failed = 0;
    let mut point = 0;
    for n in 0..events {
        let room = hypertrace::with_client(|client| client.wait_for_room(WORDS));
        failed += u64::from(room != Some(true));
        event!("step", thread, n, negative = -(n as i64), half = n as f64 / 2.0);
        if n % every == every - 1 && point < points {
            failed += u64::from(commit!("committed", thread, point) != Emit::Recorded);
            let reply = reference_point!("acknowledged", thread, point);
            failed += u64::from(!reply.is_ok_and(|reply| reply.status == Status::Recorded));
            point += 1;
        }
    }
    failed
}

fn field<'e>(event: &'e Event, name: &str) -> Option<&'e Value> {
    event.fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value)
}

/// All events of a session, in order.
#[track_caller]
pub fn events(dir: &Path, mut each: impl FnMut(Event)) {
    let session = Session::open(dir).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    assert_eq!(maps.unusable(), 0);
    let sessions = [(session, maps)];
    Timeline::new(&sessions).unwrap().for_each(|event| each(event.unwrap()));
}

/// Holds a session to what [`four_threads`] does: every event, every argument, each thread's in
/// order, points among them; their times are the host's own.
#[track_caller]
pub fn check_four_threads(dir: &Path, events: u64, points: u64) {
    let every = every(events, points);
    // Of each thread, the next step, commit and acknowledged point.
    let mut next = [[0u64; 3]; THREADS as usize];
    self::events(dir, |event| {
        let (at, kind) = match &*event.name {
            "step" => (0, Kind::Event),
            "committed" => (1, Kind::ReferencePoint),
            "acknowledged" => (2, Kind::ReferencePoint),
            _ => return assert_eq!(event.kind, Kind::Lease, "{event:?}"),
        };
        assert_eq!((event.kind, event.bound_ns), (kind, Some(0)), "{event:?}");
        let Some(Value::Unsigned(thread)) = field(&event, "thread") else { panic!("{event:?}") };
        assert!(event.source.ends_with(&format!("/worker{thread}")), "{event:?}");
        let next = &mut next[*thread as usize];
        let n = next[at];
        let number = |value| Some(Value::Unsigned(value));
        if at == 0 {
            assert_eq!(field(&event, "n").cloned(), number(n), "{event:?}");
            assert_eq!(field(&event, "negative"), Some(&Value::Signed(-(n as i64))));
            assert_eq!(field(&event, "half"), Some(&Value::Float(n as f64 / 2.0)));
            assert_eq!(next[1], (n / every).min(points), "{event:?}");
        } else {
            assert_eq!(field(&event, "point").cloned(), number(n), "{event:?}");
            assert_eq!(next[0], (n + 1) * every, "{event:?}");
            assert_eq!(next[1], n + at as u64 - 1, "{event:?}");
        }
        next[at] += 1;
    });
    assert_eq!(next, [[events, points, points]; THREADS as usize]);
}

/// What a program tells a test besides its trace, and survives a kill: numbers in a file.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// In this file, made if it is not there.
    pub fn at(path: &Path) -> Notes {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        Notes(options.open(path).unwrap())
    }

    /// Notes a number.
    pub fn set(&self, index: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), index * 8).unwrap();
    }

    /// A number; 0 if it was not noted.
    pub fn get(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, index * 8).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Waits until a number is at least that.
    #[track_caller]
    pub fn wait(&self, index: u64, least: u64) {
        let begin = Instant::now();
        while self.get(index) < least {
            assert!(begin.elapsed() < Duration::from_secs(30), "{} of {least}", self.get(index));
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Where [`commit_until_killed`] notes: its process id, commits, acknowledged points.
pub const NOTES: [u64; 3] = [0, 1, 2];

/// Commits and makes points, notes how many, and never ends.
pub fn commit_until_killed(notes: &Notes) -> ! {
    notes.set(NOTES[0], std::process::id().into());
    for n in 0u64.. {
        event!("step", n);
        if commit!("committed", n) == Emit::Recorded {
            notes.set(NOTES[1], n + 1);
        }
        if n % 16 == 0 && reference_point!("acknowledged", point = n).is_ok() {
            notes.set(NOTES[2], n / 16 + 1);
        }
    }
    unreachable!("there are more numbers than time")
}

/// Holds a session to what [`commit_until_killed`] noted: no commit, no point is missing, none is
/// there twice. Gives how many commits there are. `host_lived`: points that the host has handled stand
/// in its own memory until it drains that.
#[track_caller]
pub fn check_commits(dir: &Path, notes: &Notes, host_lived: bool) -> u64 {
    let mut next = [0u64; 3];
    events(dir, |event| {
        let (at, field, step) = match &*event.name {
            "step" => (0, "n", 1),
            "committed" => (1, "n", 1),
            "acknowledged" => (2, "point", 16),
            _ => return,
        };
        let number = Value::Unsigned(next[at] * step);
        // Without room, a step is dropped and counted.
        if at == 1 || at == 2 && host_lived {
            assert_eq!(self::field(&event, field), Some(&number), "{event:?}");
        }
        next[at] += 1;
    });
    for at in if host_lived { 1..3 } else { 1..2 } {
        assert!(next[at] >= notes.get(NOTES[at]), "{next:?} {:?}", NOTES.map(|n| notes.get(n)));
    }
    next[1]
}
