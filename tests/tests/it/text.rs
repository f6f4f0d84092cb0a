//! The backends that write text, checked at their destinations. An event is always one line, even if its
//! strings contain line breaks.

use hypertrace_tests::child;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypertrace_tests::namespace::inside;
use hypertrace_tests::tracefs::Instance;
use hypertrace_tests::{capability, trace};
use hypertrace_trace::backend::{self, Backends, ftrace};
use hypertrace_trace::control::set_declared;
use hypertrace_trace::event::EVENTS;

/// Environment variable that is set in the child process of a test. A test has its own process, because
/// backends belong to the whole program.
const CHILD: &str = "HYPERTRACE_TEST_CHILD";

/// Returns an overlong string with everything that could break a line.
fn nasty() -> Vec<u8> {
    let mut text = b"a\nb\0c\x1b[2J\xff".to_vec();
    text.resize(64 << 10, b'x');
    text
}

/// Returns the part of [`nasty`] that is shown, escaped.
fn nasty_shown() -> String {
    format!("a\\nb\\0c\\x1b[2J\\xff{}...", "x".repeat(256 - 10))
}

/// Returns a command that runs a test of this file in a child process; `None` in that process.
fn child(test: &str) -> Option<Command> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let mut command = child::alone(test);
    command.env(CHILD, "1");
    Some(command)
}

fn on(pattern: &str) {
    set_declared(&pattern.parse().unwrap(), true);
}

#[test]
fn log_writes_one_line_for_each_event_with_time_and_process() {
    let test = "log_writes_one_line_for_each_event_with_time_and_process";
    let Some(mut command) = child(test) else {
        backend::add(Backends::LOG);
        on("test_*");
        trace::test_pair(1, 2);
        trace::test_text(7, nasty());
        trace::test_none();
        assert_eq!(backend::log::lost(), 0);
        return;
    };
    let ran = command.output().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let text = String::from_utf8(ran.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(ran.status.success() && lines.len() == 3, "{text}");
    for (line, event) in lines.iter().zip([
        "test_pair a 1 b 2".to_owned(),
        format!("test_text n 7 text {}", nasty_shown()),
        "test_none nothing".to_owned(),
    ]) {
        let (head, rest) = line.split_once(':').unwrap();
        let (pid, time) = head.split_once('@').unwrap();
        assert!(pid.parse::<u32>().is_ok() && rest == event, "{line}");
        let ago = now - time.parse::<f64>().unwrap();
        assert!((-0.001..60.0).contains(&ago) && time.split_once('.').unwrap().1.len() == 6);
    }
}

#[test]
fn log_counts_lines_that_cannot_be_written() {
    let test = "log_counts_lines_that_cannot_be_written";
    let Some(mut command) = child(test) else {
        backend::add(Backends::LOG);
        on("test_none");
        for _ in 0..10 {
            trace::test_none();
        }
        assert_eq!(backend::log::lost(), 10);
        return;
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert!(command.stderr(full).status().unwrap().success());
}

#[test]
fn syslog_gets_one_message_for_each_event() {
    let test = "syslog_gets_one_message_for_each_event";
    let Some(command) = child(test) else {
        let daemon = UnixDatagram::bind("/dev/log").unwrap();
        daemon.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        backend::add(Backends::SYSLOG);
        on("test_*");
        trace::test_pair(1, 2);
        trace::test_text(7, nasty());
        for event in
            ["test_pair a 1 b 2".to_owned(), format!("test_text n 7 text {}", nasty_shown())]
        {
            let mut message = [0; 4096];
            let len = daemon.recv(&mut message).unwrap();
            let message = std::str::from_utf8(&message[..len]).unwrap().trim_end_matches('\0');
            // The facility is user, and the level is info.
            assert!(message.starts_with("<14>") && message.ends_with(&event), "{message:?}");
        }
        return;
    };
    // The child has a private, empty /dev.
    let Some(mut command) = inside("mount -t tmpfs none /dev", &command) else { return };
    let ran = command.env(CHILD, "1").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn ftrace_has_each_event_as_text_and_raw() {
    let test = "ftrace_has_each_event_as_text_and_raw";
    let Some(mut command) = child(test) else {
        let Some(tracefs) = Instance::recording("kvm/kvm_mmio") else { return };
        ftrace::open(tracefs.dir()).unwrap();
        ftrace::open(tracefs.dir()).unwrap();
        let other = ftrace::open(tracefs.dir().parent().unwrap()).unwrap_err();
        assert!(other.to_string().contains("cannot open"), "{other}");
        backend::add(Backends::FTRACE);
        on("test_*");
        trace::test_pair(1, 2);
        trace::test_text(7, nasty());
        backend::remove(Backends::FTRACE);
        backend::add(Backends::FTRACE_RAW);
        trace::test_pair(3, 4);
        backend::remove(Backends::FTRACE_RAW);
        trace::test_pair(5, 6);

        let events: Vec<String> = tracefs.events().into_iter().map(|event| event.text).collect();
        let id = EVENTS.iter().find(|event| event.name() == "test_pair").unwrap().id();
        assert_eq!(events[0], "tracing_mark_write: test_pair a 1 b 2");
        assert_eq!(events[1], format!("tracing_mark_write: test_text n 7 text {}", nasty_shown()));
        // `# 1a2b buf: 03 00 ...`: the id, then the bytes of both words.
        let words: Vec<String> =
            [3u64, 4].iter().flat_map(|n| n.to_le_bytes()).map(|b| format!("{b:02x}")).collect();
        assert_eq!(events[2], format!("# {id:x} buf: {}", words.join(" ")));
        assert_eq!(events.len(), 3);
        assert_eq!(ftrace::lost(), 0);

        // While the instance is switched off, failures are counted and reported once, and tracing continues.
        backend::add(Backends::FTRACE);
        fs::write(tracefs.dir().join("tracing_on"), "0").unwrap();
        trace::test_none();
        trace::test_none();
        assert_eq!(ftrace::lost(), 2);
        fs::write(tracefs.dir().join("tracing_on"), "1").unwrap();
        trace::test_none();
        assert_eq!(ftrace::lost(), 2);
        capability::used("tracefs");
        return;
    };
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    if !said.contains("capability missing") {
        assert_eq!(said.matches("the kernel does not take markers").count(), 1, "{said}");
    }
}

#[test]
fn a_folder_other_than_tracefs_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let error = ftrace::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("trace_marker") && error.contains("is tracefs mounted?"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
