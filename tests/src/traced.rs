//! Programs in user mode: the traced side of a scenario, and a way to run a test as a program.

use crate::child;
use hypertrace_test_support::wait_until;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hypertrace::{Emit, Status, commit, event, reference_point};
use hypertrace_test_support::kept::{self, Event, Value};
use hypertrace_timeline::{ClockMaps, EventKind, Recording, Session};

/// Environment variable with the argument of a test that is run as a program.
pub const AS_PROGRAM: &str = "HYPERTRACE_TEST_PROGRAM";

/// Adds this test executable to `hypertrace record` as a program. The program runs only the test `name`, and
/// [`argument`] returns `argument` there. The command gets the arguments after `--`, and the environment.
pub fn program(command: &mut Command, name: &str, argument: &str) {
    command.arg("--").arg(this());
    only(command, name, argument);
}

/// Returns a command that runs only the test `name` of this test executable, in which [`argument`] returns
/// `argument`.
pub fn alone(name: &str, argument: &str) -> Command {
    let mut command = Command::new(this());
    only(&mut command, name, argument);
    command
}

fn this() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

fn only(command: &mut Command, name: &str, argument: &str) {
    command.args([&child::full_name(name), "--exact", "--nocapture", "--test-threads=1", "-q"]);
    command.env(AS_PROGRAM, argument);
}

/// Returns the argument of a test that is run as a program; `None` in an ordinary test run.
pub fn argument() -> Option<String> {
    std::env::var(AS_PROGRAM).ok()
}

/// Number of words of an event's fields in [`four_threads`]. Each thread waits until its ring has room for
/// such events.
const WORDS: u64 = 4;

/// Number of threads of [`four_threads`].
pub const THREADS: u64 = 4;

/// Emits `events` numbered ring events `step` on each of four threads. Among these events, each thread makes
/// `points` commits and `points` acknowledged points. A thread waits for room rather than lose an event.
/// Returns the number of events that could not be recorded.
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

/// Returns the number of events of a thread, and the number of its commits, which is also the number of its
/// acknowledged points. The number of events is `events`, or the number in `HYPERTRACE_TEST_EVENTS`; the
/// number of points is a hundredth of the number of events.
pub fn sizes(events: u64) -> (u64, u64) {
    let told = std::env::var("HYPERTRACE_TEST_EVENTS").ok();
    let events = told.map_or(events, |told| told.parse().expect("HYPERTRACE_TEST_EVENTS"));
    (events, events / 100)
}

/// Returns the number of events from one point to the next.
fn every(events: u64, points: u64) -> u64 {
    (events / points.max(1)).max(1)
}

fn one_thread(thread: u64, events: u64, points: u64) -> u64 {
    let every = every(events, points);
    let mut failed = 0;
    let mut point = 0;
    for n in 0..events {
        let room = hypertrace::with_client(|client| client.wait_for_room(1, WORDS));
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

/// Passes all events of a session, in order, to a function. No reference point may have an impossible time.
#[track_caller]
pub fn events(dir: &Path, each: impl FnMut(Event)) {
    assert_eq!(also_of_corrupted_clients(dir, each), 0);
}

/// Passes all events of a session, in order, to a function. Returns the number of reference points with an
/// impossible time.
#[track_caller]
fn also_of_corrupted_clients(dir: &Path, mut each: impl FnMut(Event)) -> u64 {
    let session = Session::open(dir).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let unusable = maps.unusable();
    let recording = Recording::of([(session, maps)], []);
    kept::each_event(&recording, |event| each(event.into())).unwrap();
    unusable
}

/// Checks a session of [`four_threads`]. Each thread's events are complete and in order, with all arguments.
/// Points are among the events, and times are on the host's own clock.
#[track_caller]
pub fn check_four_threads(dir: &Path, events: u64, points: u64) {
    let every = every(events, points);
    // Sequence numbers of the next step, commit and acknowledged point of each thread.
    let mut next = [[0u64; 3]; THREADS as usize];
    self::events(dir, |event| {
        let (at, kind) = match &*event.name {
            "step" => (0, EventKind::Event),
            "committed" => (1, EventKind::ReferencePoint),
            "acknowledged" => (2, EventKind::ReferencePoint),
            _ => return assert_eq!(event.kind, EventKind::Lease, "{event:?}"),
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

/// Numbers in a file that a program passes to its test besides its trace. The numbers survive a kill.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// Opens this file, and makes it if needed.
    pub fn at(path: &Path) -> Notes {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        Notes(options.open(path).unwrap())
    }

    /// Writes a number.
    pub fn set(&self, index: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), index * 8).unwrap();
    }

    /// Returns a number; 0 if the number was not written.
    pub fn get(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, index * 8).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Returns whether the notes' file was removed.
    pub fn are_removed(&self) -> bool {
        self.0.metadata().unwrap().nlink() == 0
    }

    /// Waits until a number is at least `least`.
    #[track_caller]
    pub fn wait(&self, index: u64, least: u64) {
        wait_until(&format!("{least} of number {index}"), || self.get(index) >= least);
    }
}

/// Indices of the notes of [`commit_until_killed`]: the process's id, the number of commits, the number of
/// acknowledged points.
pub const NOTES: [u64; 3] = [0, 1, 2];

/// Makes commits and points, and notes their numbers. The loop ends when this process is killed, or when the
/// notes are removed. So a failed test leaves no process.
pub fn commit_until_killed(notes: &Notes) -> ! {
    notes.set(NOTES[0], std::process::id().into());
    for n in (0u64..).take_while(|n| n % 1024 != 0 || !notes.are_removed()) {
        event!("step", n);
        if commit!("committed", n) == Emit::Recorded {
            notes.set(NOTES[1], n + 1);
        }
        if n % 16 == 0 && reference_point!("acknowledged", point = n).is_ok() {
            notes.set(NOTES[2], n / 16 + 1);
        }
    }
    std::process::exit(1)
}

/// Checks a session against the notes of [`commit_until_killed`]: no commit and no point is missing or
/// doubled. Returns the number of commits. If the host was killed, points may be missing, because a host
/// keeps handled points in its own memory until the drain. With `host_lived`, no point may be missing. The
/// test may have corrupted other clients, so times may be impossible there.
#[track_caller]
pub fn check_commits(dir: &Path, notes: &Notes, host_lived: bool) -> u64 {
    let mut next = [0u64; 3];
    also_of_corrupted_clients(dir, |event| {
        let (at, field, step) = match &*event.name {
            "step" => (0, "n", 1),
            "committed" => (1, "n", 1),
            "acknowledged" => (2, "point", 16),
            _ => return,
        };
        let number = Value::Unsigned(next[at] * step);
        // If the ring has no room, a step is dropped and counted.
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
