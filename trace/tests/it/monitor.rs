//! Tests of the monitor's socket with clients of every kind.

use crate::common;
use hypertrace_test_support::{child, this_test, wait_until};
use hypertrace_trace::monitor::{MAX_COMMAND, Monitor, MonitorError, SOCKET, connect};
use hypertrace_trace::{Session, SessionConfig};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// Returns the command itself as the reply. The commands `fail`, `panic` and `flood` are exceptions.
fn echo(command: &str) -> Result<String, String> {
    match command {
        "fail" => Err("no such command\nfail\npanic".into()),
        "panic" => panic!("asked to"),
        "flood" => Ok("0123456789".repeat(1000)),
        other => Ok(other.into()),
    }
}

fn started() -> (TempDir, Monitor) {
    let dir = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(dir.path(), echo).unwrap();
    (dir, monitor)
}

#[test]
fn the_vmm_sets_the_monitors_thread_up_before_the_first_command() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    let (tell, told) = mpsc::channel();

    let monitor = session.serve_after(move || {
        tell.send(thread::current().name().map(str::to_owned)).unwrap();
        Ok(())
    });

    // The monitor's thread ran this function before it took any command, and before `serve_after` returned.
    assert_eq!(told.try_recv().unwrap().as_deref(), Some("ht-monitor"));
    let _monitor = monitor.unwrap();
    let mut client = Client::new(dir.path());
    client.send(b"help\n");
    assert!(client.reply().ends_with("\nok\n"));
}

#[test]
fn a_monitor_whose_thread_cannot_be_set_up_serves_nobody_and_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();

    let refused = session.serve_after(|| Err(ErrorKind::PermissionDenied.into())).unwrap_err();
    let panicked = session.serve_after(|| panic!("asked to")).unwrap_err();

    for why in [refused, panicked] {
        assert!(matches!(why, MonitorError::Thread(_)), "{why}");
    }
    assert!(!dir.path().join(SOCKET).exists());
    session.serve().unwrap();
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(dir: &Path) -> Client {
        let stream = connect(dir, SOON).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Returns the unchanged text of the next reply.
    fn reply(&mut self) -> String {
        let mut reply = String::new();
        loop {
            let begin = reply.len();
            assert!(self.0.read_line(&mut reply).unwrap() > 0, "closed after {reply:?}");
            if !reply[begin..].starts_with("  ") {
                return reply;
            }
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\n").as_bytes());
        self.reply()
    }

    /// Returns all remaining bytes. A reset is no failure, because the monitor may close a connection before
    /// it has read all requests.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let end = self.0.read_to_end(&mut rest).map_err(|e| e.kind());
        assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "{end:?}");
        String::from_utf8(rest).unwrap()
    }
}

#[test]
fn the_socket_is_its_owners_alone_and_the_only_thing_there() {
    let (dir, monitor) = started();

    let mode = fs::metadata(monitor.path()).unwrap().permissions().mode();

    assert_eq!(mode & 0o7777, 0o600);
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [SOCKET]);
    assert_eq!(monitor.path(), dir.path().join(SOCKET));
}

#[test]
fn replies_are_in_order_when_requests_are_sent_ahead() {
    let (dir, _monitor) = started();
    let mut client = Client::new(dir.path());

    client.send(b"one\r\ntwo\n\n \nfail\nthree\nhalf of a l");
    client.0.get_mut().shutdown(Shutdown::Write).unwrap();

    let error = "  fail\n  panic\nerror: no such command\n";
    assert_eq!(client.rest(), format!("  one\nok\n  two\nok\nok\nok\n{error}  three\nok\n"));
}

#[test]
fn a_hundred_clients_are_served_beside_one_that_never_reads_and_one_that_talks_nonsense() {
    let (dir, _monitor) = started();
    let rude = connect(dir.path(), SOON).unwrap();
    rude.set_nonblocking(true).unwrap();
    let begin = Barrier::new(100);

    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..100_000 {
                if (&rude).write(b"flood\nflood\nflood\n").is_err() {
                    assert!(n > 100, "its requests were not taken");
                    break;
                }
            }
        });
        scope.spawn(|| {
            let random = File::open("/dev/urandom").unwrap();
            for _ in 0..20 {
                let mut garbage = Vec::new();
                (&random).take(100_000).read_to_end(&mut garbage).unwrap();
                // The result is ignored, because the monitor may close the connection during the write.
                let _ = connect(dir.path(), SOON).unwrap().write_all(&garbage);
            }
        });
        for client in 0..100 {
            let (dir, begin) = (dir.path(), &begin);
            scope.spawn(move || {
                begin.wait();
                for n in 0..100 {
                    let command = format!("client {client} command {n}");
                    // Each command has its own connection, because the monitor disconnects a client that
                    // pauses if another client waits.
                    assert_eq!(Client::new(dir).ask(&command), format!("  {command}\nok\n"));
                }
            });
        }
    });
}

#[test]
fn a_line_that_is_too_long_is_answered_at_once_and_skipped() {
    let (dir, _monitor) = started();
    let mut client = Client::new(dir.path());
    let told = format!("error: a command has at most {MAX_COMMAND} bytes\n");

    let longest = "x".repeat(MAX_COMMAND);
    assert_eq!(client.ask(&format!("{longest}\r")), format!("  {longest}\nok\n"));
    assert_eq!(client.ask(&format!("{longest}y")), told);
    client.send("x".repeat(1 << 20).as_bytes());
    assert_eq!(client.reply(), told);
    assert_eq!(client.ask("end of it\nnext"), "  next\nok\n");
    client.send(b"\xff\xfe\n");
    assert_eq!(client.reply(), "error: the command is not UTF-8\n");
    assert_eq!(client.ask("a\0b\x1b[2J"), "  a\\x00b\\x1b[2J\nok\n");
}

#[test]
fn an_idle_client_stays_until_another_waits_and_gives_way_then() {
    let (dir, _monitor) = started();
    let mut first = Client::new(dir.path());
    first.ask("there");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(first.ask("still"), "  still\nok\n");
    first.send(b"half of a l");

    let mut others: Vec<_> = (0..20).map(|_| Client::new(dir.path())).collect();
    for other in &mut others {
        other.send(b"one\n");
    }
    // All clients are in the queue. Each client has its turn, and then closes its connection.
    for mut other in others {
        assert_eq!(other.reply(), "  one\nok\n");
    }

    assert_eq!(
        first.rest(),
        "error: this connection was closed because it was idle and another client waits; connect again\n"
    );
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_gives_way_too() {
    let (dir, _monitor) = started();
    let mut slow = Client::new(dir.path());
    slow.ask("there");
    thread::scope(|scope| {
        scope.spawn(|| {
            while slow.0.get_mut().write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(Client::new(dir.path()).ask("another"), "  another\nok\n");
    });
}

#[test]
fn a_dead_processs_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());

    let _monitor = Monitor::start(dir.path(), echo).unwrap();

    assert_eq!(Client::new(dir.path()).ask("alive"), "  alive\nok\n");
}

#[test]
fn of_many_that_start_at_once_one_does() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());
        let begin = Barrier::new(8);
        let start = || {
            begin.wait();
            Monitor::start(dir.path(), echo)
        };

        let started: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });

        assert_eq!(Client::new(dir.path()).ask("alive"), "  alive\nok\n");
        let refused = |r: &&Result<_, _>| matches!(r, Err(MonitorError::InUse(_)));
        assert_eq!(started.iter().filter(refused).count(), 7);
    }
}

#[test]
fn other_files_than_sockets_and_directories_are_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(SOCKET);
    fs::write(&file, "mine").unwrap();

    let taken = Monitor::start(dir.path(), echo).unwrap_err();
    let no_directory = Monitor::start(&file, echo).unwrap_err();

    assert!(matches!(&taken, MonitorError::NotASocket(path) if *path == file), "{taken}");
    assert!(matches!(no_directory, MonitorError::Directory { .. }), "{no_directory}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn a_path_longer_than_an_address_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();

    let _monitor = Monitor::start(&deep, echo).unwrap();

    assert_eq!(Client::new(&deep).ask("deep"), "  deep\nok\n");
    assert!(matches!(Monitor::start(&deep, echo), Err(MonitorError::InUse(_))));
}

#[test]
fn a_dropped_monitor_ends_its_thread_connections_and_socket() {
    let dir = tempfile::tempdir().unwrap();
    let owned = Arc::new(());
    let of_thread = owned.clone();
    let monitor = Monitor::start(dir.path(), move |_| {
        let _ = &of_thread;
        Ok(String::new())
    });
    let mut client = Client::new(dir.path());
    client.ask("there");

    drop(monitor);

    assert_eq!(Arc::strong_count(&owned), 1);
    assert_eq!(client.rest(), "");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(connect(dir.path(), SOON).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_dropped_monitor_leaves_anothers_socket() {
    let (dir, monitor) = started();
    fs::remove_file(monitor.path()).unwrap();
    let _other = Monitor::start(dir.path(), echo).unwrap();

    drop(monitor);

    assert_eq!(Client::new(dir.path()).ask("other"), "  other\nok\n");
}

#[test]
fn a_command_that_panics_is_an_error_and_the_next_is_executed() {
    let (dir, _monitor) = started();
    let mut client = Client::new(dir.path());

    assert!(client.ask("panic").starts_with("error: the command failed inside the VMM"));
    assert_eq!(client.ask("next"), "  next\nok\n");
}

#[test]
fn a_command_may_drop_the_monitor() {
    let dir = tempfile::tempdir().unwrap();
    let (give, take) = std::sync::mpsc::channel::<Monitor>();
    let monitor = Monitor::start(dir.path(), move |_| {
        drop(take.recv());
        Ok(String::new())
    });
    give.send(monitor.unwrap()).unwrap();

    Client::new(dir.path()).ask("the last");

    assert_eq!(connect(dir.path(), SOON).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn commands_run_one_at_a_time_on_one_thread() {
    let dir = tempfile::tempdir().unwrap();
    let running = AtomicU64::new(0);
    let _monitor = Monitor::start(dir.path(), move |_| {
        assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0);
        thread::sleep(Duration::from_millis(1));
        running.fetch_sub(1, Ordering::Relaxed);
        Ok(format!("{:?}", thread::current().id()))
    })
    .unwrap();

    let threads: Vec<_> = (0..4)
        .map(|_| {
            let path = dir.path().to_owned();
            thread::spawn(move || Client::new(&path).ask("who"))
        })
        .collect();

    let replies: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(replies.iter().all(|r| r.starts_with("  ThreadId") && *r == replies[0]), "{replies:?}");
}

#[test]
fn without_descriptors_a_client_waits_and_the_thread_sleeps() {
    if !has_few_descriptors() {
        return again("ulimit -n 64", this_test!());
    }
    let (dir, monitor) = started();
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    Client::new(dir.path()).ask("so that the thread has its name");
    wait_until("the client's end", || open() == before);
    let stat = stat_of_thread("ht-monitor");
    let mut taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.pop();
    let stream = UnixStream::connect(monitor.path()).unwrap();
    let before = ticks(&stat);

    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    (&stream).write_all(b"now\n").unwrap();
    let answer = (&stream).read(&mut [0]).map_err(|e| e.kind());
    let spent = ticks(&stat) - before;

    assert_eq!(answer, Err(ErrorKind::WouldBlock), "there was a descriptor");
    assert!(spent <= 10, "{spent} ticks of 10 ms");
    drop(taken);
    stream.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(Client(BufReader::new(stream)).reply(), "  now\nok\n");
}

/// If a command opened a pipe, it would wait for a reader, and hold the session's lock during the wait.
#[test]
fn commands_do_not_wait_for_pipes_in_the_place_of_files_of_the_kernel() {
    let (dir, session) = common::session(|_| ());
    for name in ["trace_marker", "trace_marker_raw", "tracing_on"] {
        mknodat(CWD, dir.path().join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    let place = dir.path().display();
    for command in [
        format!("trace-backend ftrace:{place} on"),
        format!("trigger add on x do kernel {place} on"),
    ] {
        let (send, reply) = mpsc::channel();
        let (session, asked) = (session.clone(), command.clone());
        thread::spawn(move || send.send(session.execute(&asked)));
        let reply = reply.recv_timeout(SOON).map(Result::unwrap_err);
        let is_said = |why: &String| why.contains("it is a pipe, not a regular file");
        assert!(reply.as_ref().is_ok_and(is_said), "{command}: {reply:?}");
    }
}

fn has_few_descriptors() -> bool {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    limits
        .lines()
        .any(|l| l.starts_with("Max open files") && l.split_whitespace().nth(3) == Some("64"))
}

/// Runs a test in a separate process, so that the limits of this process apply only to the test.
fn again(setting: &str, test: &str) {
    let test = child::full_name(test);
    let script = format!("{setting}; exec \"$0\" --exact --nocapture {test}");
    let this = std::env::current_exe().unwrap();
    let ran = Command::new("sh").args(["-c", &script]).arg(this).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{ran:?}");
}

fn stat_of_thread(name: &str) -> File {
    let mut threads = fs::read_dir("/proc/self/task").unwrap().map(|e| e.unwrap().path());
    let named = |p: &PathBuf| fs::read_to_string(p.join("comm")).is_ok_and(|n| n.trim() == name);
    File::open(threads.find(named).unwrap().join("stat")).unwrap()
}

/// Returns the CPU time of a thread in clock ticks: the sum of fields 14 and 15 of its stat file
/// (proc_pid_stat(5)).
fn ticks(stat: &File) -> u64 {
    let mut text = [0; 1024];
    let len = stat.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..len]).unwrap();
    let fields = text.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}
