//! Target `monitor`: requests of clients at a monitor's socket. Each line has one reply,
//! and the session can be read afterwards.

use crate::input::Input;
use hypertrace_abi::event_type;
use hypertrace_trace::control::set_declared;
use hypertrace_trace::monitor::{MAX_COMMAND, Monitor, connect};
use hypertrace_trace::{Session, SessionConfig};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;
use tempfile::TempDir;

/// Words from which the target makes commands. `@` stands for a path in the input's own directory.
const WORDS: [&str; 32] = [
    "help",
    "info",
    "trace",
    "trace-events",
    "trace-events-all",
    "trace-event",
    "trace-file",
    "trigger",
    "trace-backend",
    "snapshot",
    "set",
    "flush",
    "list",
    "add",
    "remove",
    "on",
    "off",
    "*",
    "honest*",
    "fuzz_pair",
    "e",
    "@/file",
    "@/none/file",
    "@",
    "do",
    "if",
    "arg1==3",
    "events",
    "kernel @",
    "call",
    "1",
    "sdt",
];

/// Words of commands that could access files outside of the input's directory.
const ELSEWHERE: [&str; 4] = ["set", "kernel", "ftrace", "log"];

/// Panics if a client can cause a wrong reply, or damage the session.
pub fn run(bytes: &[u8]) {
    let dir = TempDir::new().expect("a directory");
    let own = dir.path().display().to_string();
    let mut input = Input::new(bytes);
    let mut sent = Vec::new();
    while !input.is_empty() {
        line(&mut input, &own, &mut sent);
    }
    let config = SessionConfig::new(dir.path().join("s")).with(|config| {
        config.host_rings = 1;
        config.host_ring_bytes = 1 << 16;
        config.file_bytes = 1 << 16;
    });
    let session = Session::create(config).expect("a session");
    let monitored = session.clone();
    let execute = move |line: &str| match stays(line, &own) {
        true => monitored.execute(line),
        false => Err("elsewhere".into()),
    };
    let monitor = Monitor::start(session.dir(), execute).expect("a monitor");
    session.attach("fuzz");
    let replies = ask(&session, &sent);
    check(&sent, &replies);
    session.emit(event_type!("vmm", n = 1u64));
    drop(monitor);
    let summary = session.finish().expect("it can be written");
    let read = crate::reader::read(&dir.path().join("s")).expect("a whole session");
    assert_eq!(read as u64, summary.records);
    set_declared(&"*".parse().expect("a pattern"), false);
}

/// Returns whether a command accesses only files of this directory.
fn stays(line: &str, own: &str) -> bool {
    let inside = |rest: &str| rest.trim_start().starts_with(&format!("{own}/"));
    !line.contains("..") && ELSEWHERE.iter().all(|word| line.split(word).skip(1).all(inside))
}

/// Appends a line of words, or of any bytes.
fn line(input: &mut Input<'_>, own: &str, sent: &mut Vec<u8>) {
    match input.below(8) {
        0 => sent.extend(input.bytes(100)),
        1 if input.one_in(8) => sent.resize(sent.len() + MAX_COMMAND - 2 + input.below(5), b'x'),
        _ => {
            for _ in 0..input.below(8) {
                sent.extend(input.pick(&WORDS).replace('@', own).into_bytes());
                sent.push(b' ');
            }
        }
    }
    sent.extend(input.pick(&[&b"\n"[..], b"\n", b"\n", b"\r\n", b"\n\n", b""]));
}

/// Sends all lines. Returns the replies.
fn ask(session: &Session, sent: &[u8]) -> Vec<u8> {
    let mut client = connect(session.dir(), Duration::from_secs(10)).expect("a monitor listens");
    let mut other = client.try_clone().expect("another descriptor");
    std::thread::scope(|scope| {
        // The monitor waits until its replies are read, so another thread has to send the lines.
        scope.spawn(move || {
            other.write_all(sent).expect("the monitor reads");
            other.shutdown(Shutdown::Write).expect("a connection");
        });
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).expect("replies");
        replies
    })
}

/// Checks that each line has one reply. A reply is some text, and then a state.
fn check(sent: &[u8], replies: &[u8]) {
    let text = str::from_utf8(replies).expect("replies are text");
    let lines = sent.iter().filter(|byte| **byte == b'\n').count();
    // If the last line is too long, the monitor replies to it before the line ends.
    let rest = sent.rsplit(|byte| *byte == b'\n').next().map_or(0, <[u8]>::len);
    let states = text.lines().filter(|line| !line.starts_with("  ")).inspect(|line| {
        assert!(*line == "ok" || line.starts_with("error: "), "{line:?}");
    });
    assert_eq!(states.count(), lines + usize::from(rest > MAX_COMMAND));
    assert!(replies.is_empty() || replies.ends_with(b"\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_line_has_one_reply(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            run(&bytes);
        }
    }
}
