//! `report --follow`: reading a session while the session is written.

use hypertrace_test_support::made;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use hypertrace_abi::event_type;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::interrupt::with_default_signals;
use hypertrace_tests::kvm;
use hypertrace_tests::report::Line;
use hypertrace_tests::traced::{self, Notes};
use hypertrace_tests::{child, peak, this_test, wait_until};
use hypertrace_trace::{Session, SessionConfig, Writer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// A follower of a session.
struct Follower {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Follower {
    fn start(dir: &Path, args: &[&str]) -> Follower {
        let mut command = HYPERTRACE.command(["report", "--follow"]);
        command.arg(dir).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = with_default_signals(&mut command).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        Follower { process, out }
    }

    /// Waits for the next line.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Waits for the next event that is no lease.
    fn event(&mut self) -> Line {
        loop {
            let line: Line = serde_json::from_str(&self.line()).unwrap();
            if line.event != "lease" {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits for the follower's end. Returns the exit code, the rest of the output, and stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut rest, mut said) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.process.wait().unwrap().code(), rest, said)
    }
}

fn session(with: impl FnOnce(&mut SessionConfig)) -> (tempfile::TempDir, Session, Writer) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SessionConfig::new(dir.path());
    with(&mut config);
    let session = Session::create(config).unwrap();
    session.attach("worker");
    let writer = session.start_writer(Duration::from_millis(1)).unwrap();
    (dir, session, writer)
}

fn tick(session: &Session, n: u64) {
    while !session.has_room(1, 8) {
        thread::yield_now();
    }
    session.emit(event_type!("tick", n));
}

/// The output of `report --json` for the same session.
fn report(dir: &Path) -> String {
    run(HYPERTRACE.command(["report", "--json"]).arg(dir)).ok()
}

#[test]
fn events_are_shown_while_the_session_is_written() {
    let (dir, session, writer) = session(|_| ());
    let mut follower = Follower::start(dir.path(), &["--json"]);

    for n in 0..3 {
        tick(&session, n);
        // `event` waits until the event is shown.
        let event = follower.event();
        assert_eq!((&*event.event, &event.fields["n"]), ("tick", &Value::from(n)));
        assert_eq!(&*event.source, "vmm/worker");
        // The record with the process's id is read at the first look only.
        assert_eq!(event.pid, Some(std::process::id()), "{n}");
    }
    // The follower has read the session's description before this schema was added.
    session.emit(event_type!("last", text = "t"));
    assert_eq!(follower.event().fields["text"], "t");
    drop(writer);
    session.finish().unwrap();

    assert_eq!(follower.end(), (Some(0), String::new(), String::new()));
}

#[test]
fn a_finished_session_is_shown_as_report_shows_it() {
    let (dir, session, writer) = session(|_| ());
    (0..10_000).for_each(|n| tick(&session, n));
    drop(writer);
    session.finish().unwrap();

    let (code, shown, said) = Follower::start(dir.path(), &["--json"]).end();

    assert_eq!((code, &*said), (Some(0), ""));
    assert_eq!(shown, report(dir.path()));
    let text = Follower::start(dir.path(), &["--event", "tick", "-n", "2"]).end().1;
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].contains("vmm/worker") && lines[1].ends_with("n=1"),
        "{text}"
    );
}

#[test]
fn threads_and_new_files_are_shown_once_and_in_order_to_each_reader() {
    const EVENTS: u64 = 40_000;
    // The small maximum size of a file makes streams continue in new files.
    let (dir, session, writer) = session(|config| config.file_bytes = 256 << 10);
    let followers = [(); 2].map(|()| {
        let follower = Follower::start(dir.path(), &["--json"]);
        thread::spawn(|| follower.end())
    });
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let session = &session;
            scope.spawn(move || {
                session.attach(&format!("worker{thread}"));
                for n in 0..EVENTS {
                    while !session.has_room(1, 8) {
                        thread::yield_now();
                    }
                    session.emit(event_type!("step", thread, n));
                }
            });
        }
    });
    drop(writer);
    session.finish().unwrap();

    let files = std::fs::read_dir(dir.path().join("ctf")).unwrap().count();
    assert!(files > 10, "{files}");
    for follower in followers {
        let (code, shown, said) = follower.join().unwrap();
        // If a machine stalls a thread, the follower may show events late, and then says so. The follower
        // never misses an event.
        let is_late = said.contains("came too late");
        assert!(code == Some(0) && (said.is_empty() || is_late), "{code:?} {said}");
        let mut next = [0; 3];
        let mut last = i64::MIN;
        for line in shown.lines() {
            let line: Line = serde_json::from_str(line).unwrap();
            assert!(last <= line.ts_ns || is_late, "{line:?}");
            last = line.ts_ns;
            if line.event == "step" {
                let [thread, n] = ["thread", "n"].map(|name| line.fields[name].as_u64().unwrap());
                assert_eq!(n, next[thread as usize]);
                next[thread as usize] += 1;
                assert_eq!(line.source, format!("vmm/worker{thread}"));
            }
        }
        assert_eq!(next, [EVENTS; 3]);
    }
}

#[test]
fn losses_are_shown_and_add_up() {
    let (dir, session, writer) = session(|config| config.host_ring_bytes = 64 << 10);
    let follower = Follower::start(dir.path(), &["--json"]);
    let follower = thread::spawn(|| follower.end());
    for n in 0..100_000u64 {
        session.emit(event_type!("tick", n));
    }
    drop(writer);
    let summary = session.finish().unwrap();

    let (code, shown, said) = follower.join().unwrap();

    assert_eq!((code, &*said), (Some(0), ""));
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (lost, events): (Vec<&Value>, Vec<&Value>) =
        lines.iter().partition(|line| line["type"] == "lost");
    assert_eq!(events.len() as u64, summary.records);
    assert!(summary.lost > 0);
    assert_eq!(lost.iter().map(|lost| lost["events"].as_u64().unwrap()).sum::<u64>(), summary.lost);
}

#[test]
fn a_programs_session_ends_with_run() {
    if traced::argument().is_some() {
        assert_eq!(traced::four_threads(2_000, 20), 0);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(&out);
    traced::program(&mut command, this_test!(), "traced");
    let mut running = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("session.json", || out.join("session.json").exists());
    let follower = Follower::start(&out, &["--json"]);

    let (code, shown, _) = follower.end();

    assert!(running.wait().unwrap().success());
    assert_eq!(code, Some(0));
    let (shown, reported) = (parsed(&shown), parsed(&report(&out)));
    let mut unnamed = 0;
    for ((shown, at, source), (reported, expected, by)) in shown.iter().zip(&reported) {
        assert_eq!(shown, reported);
        // The rate of the host's clock is measured again while the session lasts.
        assert!(at.abs_diff(*expected) < 1_000, "{at} {expected} {shown}");
        // The host may record the first points of a thread before the follower has read the thread's name.
        if source != by {
            let (numbered, _) = by.split_once(' ').unwrap();
            assert_eq!(source, numbered);
            unnamed += 1;
        }
    }
    assert_eq!(shown.len(), reported.len());
    assert!(unnamed * 4 <= shown.len(), "{unnamed} of {}", shown.len());
}

/// Returns the contents of lines in their order, with their times and sources.
fn parsed(text: &str) -> Vec<(String, i64, String)> {
    let mut lines = Vec::from_iter(text.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let ts_ns = line["ts_ns"].take().as_str().unwrap().parse().unwrap();
        let source = line["source"].take().as_str().unwrap().to_owned();
        for known_later in ["t_ns", "thread"] {
            line[known_later].take();
        }
        (line.to_string(), ts_ns, source)
    }));
    lines.sort();
    lines
}

#[test]
fn a_killed_writer_is_noticed() {
    if traced::argument().is_some() {
        let notes = Notes::at(Path::new(&traced::argument().unwrap()));
        traced::commit_until_killed(&notes);
    }
    let dir = tempfile::tempdir().unwrap();
    let (out, notes) = (dir.path().join("S"), dir.path().join("notes"));
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(&out);
    traced::program(&mut command, this_test!(), notes.to_str().unwrap());
    let mut running = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("session.json", || out.join("session.json").exists());
    // A process that only has the directory open, as a reader does, is no writer.
    let _reader = File::open(&out).unwrap();
    let mut follower = Follower::start(&out, &["--json", "--event", "committed"]);
    let first = follower.event();

    running.kill().unwrap();
    running.wait().unwrap();
    let (code, rest, said) = follower.end();
    // The program, which has outlived `record`, ends when its notes are gone.
    drop(dir.close());

    assert_eq!((first.event.as_str(), code), ("committed", Some(0)));
    assert!(said.contains("not finished: its writer was ended"), "{said}");
    // The follower has shown, in order, all events that were committed to the session.
    let numbers: Vec<u64> = rest
        .lines()
        .map(|line| serde_json::from_str::<Line>(line).unwrap().fields["n"].as_u64().unwrap())
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
}

#[test]
fn a_writer_that_is_silent_is_not_taken_for_dead() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    session.attach("worker");
    // Nothing drains the session, so the session gives no sign of its writer.
    let follower = Follower::start(dir.path(), &["--json", "--event", "tick"]);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let end = follower.end();
            ended.store(true, Relaxed);
            end
        });
        thread::sleep(Duration::from_secs(5));
        assert!(!ended.load(Relaxed));
        tick(&session, 1);
        session.finish().unwrap();
        let (code, shown, said) = waiting.join().unwrap();
        assert_eq!((code, shown.lines().count(), &*said), (Some(0), 1, ""));
    });
}

#[test]
fn an_interrupt_ends_it_with_the_events_so_far() {
    let (dir, session, _writer) = session(|_| ());
    let mut follower = Follower::start(dir.path(), &["--json"]);
    tick(&session, 0);
    follower.event();

    follower.signal(Signal::INT);

    assert_eq!(follower.end(), (Some(0), String::new(), String::new()));
}

#[test]
fn a_reader_that_is_gone_ends_it() {
    let (dir, session, _writer) = session(|_| ());
    let mut follower = Follower::start(dir.path(), &["--json"]);
    tick(&session, 0);
    follower.event();

    let Follower { mut process, out } = follower;
    drop(out);

    // The follower ends without another event.
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[test]
fn it_follows_one_session() {
    let commands = ["report --follow a b", "report --follow /nonexistent"];
    golden("one_session", HYPERTRACE.transcript_in(Path::new("/"), &commands));
}

#[test]
fn times_of_a_guests_own_clock_are_estimates() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(&mut HYPERTRACE.demo(&out, 2));
    assert_eq!(ran.code, Some(0), "{ran:?}");

    let (code, shown, said) = Follower::start(&out, &["--json"]).end();

    assert_eq!((code, &*said), (Some(0), ""));
    let lines = |text: &str| -> Vec<Line> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (shown, exact) = (lines(&shown), lines(&report(&out)));
    assert_eq!(shown.len(), exact.len());
    // Points have the host's time, so they are exact.
    let is_point = |line: &&Line| line.reference.is_some();
    assert!(shown.iter().filter(is_point).eq(exact.iter().filter(is_point)));
    let of_guest = |line: &&Line| line.source.starts_with("guest/") && line.reference.is_none();
    let of_guest: Vec<&Line> = shown.iter().filter(of_guest).collect();
    assert!(!of_guest.is_empty() && of_guest.iter().all(|line| line.bound_ns.is_none()));
}

#[test]
fn options_of_an_input_are_refused_when_a_session_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    Session::create(SessionConfig::new(dir.path())).unwrap().finish().unwrap();
    let commands = ["report --follow S@1500ns", "report --follow S@S"];
    golden("options", HYPERTRACE.transcript(&[dir], &commands));
}

/// Maximum memory in bytes for a session of 512 streams.
const MAX_MEMORY: u64 = 160 << 20;

#[test]
fn many_streams_and_long_lines_take_bounded_memory() {
    child::in_own_process(|| {
        // Each stream alone is small, and a round reads a part of each stream.
        let ticks = |client: u32| {
            let event = |n| (1_000 + u64::from(client) * 4_096 + n, made::DISK_READ, [n, n]);
            (0..2_048).map(event).fold(made::Packet::guest(client), |packet, (time, id, words)| {
                packet.event(time, id, &words)
            })
        };
        let texts = |client: u32| {
            let packet = made::Packet::guest(client);
            (0..8).fold(packet, |packet, n| {
                packet.event_str(5_000 + n, made::OPENED, &[], &[1; 60_000])
            })
        };
        for (clients, packet) in [(512, &ticks as &dyn Fn(u32) -> made::Packet), (128, &texts)] {
            let made = made::Made::new();
            for client in 0..clients {
                // The files are written one by one, because a child's peak memory begins with this process's
                // memory.
                let begin = made::Packet::guest(client).bytes();
                let bytes = [begin, packet(client).bytes()].concat();
                std::fs::write(made.file(&format!("guest-{client:03}-0000")), bytes).unwrap();
            }
            let mut command = HYPERTRACE.command(["report", "--follow", "--json"]);

            let (ran, memory) = peak::run(command.arg(made.path()));

            assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{:?}", ran.stderr);
            assert!(memory < MAX_MEMORY, "{clients} streams: {memory}");
        }
    });
}

#[test]
fn each_look_at_many_files_takes_some_time_for_each() {
    let made = made::Made::new();
    for file in 0..50_000 {
        let (client, number) = (file % 1024, file / 1024);
        let begin = made::Packet::guest(client);
        let bytes = [begin.bytes(), begin.filler(1 << 20).bytes()].concat();
        let file = File::create(made.file(&format!("guest-{client:03}-{number:04}"))).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        // The file has room for more packets.
        file.set_len(1 << 19).unwrap();
    }
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 5; exec \"$@\"", "sh", HYPERTRACE.0, "report", "--follow"]);

    let ran = run(limited.arg(made.path()));

    assert_eq!(ran.code, Some(0), "{ran:?}");
}
