//! `hypertrace ctl` with a monitor, with other programs at the socket, and without a listener.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::golden::golden;
use hypertrace_trace::monitor::{Monitor, SOCKET};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Starts a monitor that answers each command with its text.
fn vmm() -> (TempDir, Monitor) {
    let dir = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(dir.path(), |command| match command.split_once(' ') {
        Some(("no", what)) => Err(format!("no {what}\nthere is:\n  nothing")),
        Some(("say", text)) => Ok(text.replace('|', "\n")),
        _ => Ok(format!("<{command}>")),
    });
    (dir, monitor.unwrap())
}

fn ctl(dir: &Path, words: &[&str]) -> Ran {
    run(HYPERTRACE.command(["ctl", "-d"]).arg(dir).args(words))
}

/// Runs `ctl` with these commands on standard input.
fn ctl_reads(dir: &Path, commands: &[u8]) -> Ran {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(commands).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    run(HYPERTRACE.command(["ctl", "-d"]).arg(dir).stdin(input))
}

/// Listens at the socket as another program: accepts one connection, reads a line, and sends `reply`.
fn impostor(reply: &[u8]) -> TempDir {
    let reply = reply.to_owned();
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        let _ = stream.write_all(&reply);
    });
    dir
}

#[test]
fn a_commands_text_is_shown_unchanged() {
    let (dir, _monitor) = vmm();

    assert_eq!(
        ctl(dir.path(), &["trace-event", "disk_*", "off"]).ok(),
        "<trace-event disk_* off>\n"
    );
    assert_eq!(ctl(dir.path(), &["say", "a|  b||ok|error: c"]).ok(), "a\n  b\n\nok\nerror: c\n");
    assert_eq!(ctl(dir.path(), &["trace-event", "-x", "--json"]).ok(), "<trace-event -x --json>\n");
}

#[test]
fn a_failed_commands_whole_message_is_shown() {
    let (dir, _monitor) = vmm();

    let ran = ctl(dir.path(), &["no", "such"]);

    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""));
    assert_eq!(ran.stderr, "hypertrace: no such\nthere is:\n  nothing\n");
}

#[test]
fn commands_are_read_from_standard_input_to_its_end() {
    let (dir, _monitor) = vmm();

    assert_eq!(ctl_reads(dir.path(), b"one\r\n\n  \ntwo").ok(), "<one>\n<two>\n");

    let ran = ctl_reads(dir.path(), b"one\nno such\n\xff\ntwo\n");
    assert_eq!((ran.code, &*ran.stdout), (Some(1), "<one>\n<two>\n"));
    for part in
        ["line 2: no such\n", "line 3: the command is not UTF-8\n", ": 2 of 4 commands failed\n"]
    {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

#[test]
fn without_a_listener_the_message_says_what_to_check() {
    let (dir, monitor) = vmm();
    fs::write(dir.path().join("file"), "").unwrap();
    let mut said = HYPERTRACE.transcript(&[&dir], &["ctl -d S/none help", "ctl -d S/file help"]);
    drop(monitor);
    said += &HYPERTRACE.transcript(&[&dir], &["ctl -d S help"]);
    drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());
    golden("no_listener", said + &HYPERTRACE.transcript(&[&dir], &["ctl -d S help"]));
}

#[test]
fn a_directory_with_a_long_path_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(200));
    fs::create_dir(&deep).unwrap();
    let _monitor = Monitor::start(&deep, |command| Ok(command.into())).unwrap();

    assert_eq!(ctl(&deep, &["help"]).ok(), "help\n");
}

#[test]
fn a_missing_reply_is_awaited_no_longer_than_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let _silent = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let begun = Instant::now();

    let said =
        run(HYPERTRACE.command(["ctl", "--timeout", "0.2", "-d"]).arg(dir.path()).arg("help"));

    assert!(said.failed(1).contains("within 0.2 s"));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_reply_that_trickles_is_awaited_no_longer_than_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b"  .\n").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });

    let said =
        run(HYPERTRACE.command(["ctl", "--timeout", "0.2", "-d"]).arg(dir.path()).arg("help"));

    assert!(said.failed(1).contains("within 0.2 s"));
}

#[test]
fn an_invalid_time_or_command_is_wrong_usage() {
    let (dir, _monitor) = vmm();
    let times =
        ["0", "-1", "nan", "inf", "1e30", "soon"].map(|time| format!("ctl --timeout={time} -d S"));
    golden("times", HYPERTRACE.transcript(&[&dir], &times.each_ref().map(|time| &**time)));
    ctl(dir.path(), &["one\ntwo"]).failed(2);
}

#[test]
fn replies_are_escaped_on_the_terminal() {
    let (dir, _monitor) = vmm();
    let text = ctl(dir.path(), &["say", "\x1b[2J\u{202e}"]).ok();
    assert_eq!(text, "\\x1b[2J\\u{202e}\n");

    let bare = impostor(b"  \x1b[2J\xff\nerror: \x1b[2J\n");
    let ran = ctl(bare.path(), &["help"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.chars().all(|c| c == '\n' || !c.is_control()), "{ran:?}");
}

#[test]
fn a_reply_that_is_not_a_monitors_is_refused() {
    let endless = ["  ", &"x".repeat(1000), "\n"].concat().repeat(2000);
    for (reply, part) in [
        (&b""[..], "has the VMM ended?"),
        (b"  half a repl", "has the VMM ended?"),
        (b"HTTP/1.1 400 Bad Request\r\n", "did not send a monitor's reply: HTTP/1.1 400"),
        (&[b' '; 2 << 20], "has no end"),
        (endless.as_bytes(), "has no end"),
    ] {
        let dir = impostor(reply);
        let said = ctl(dir.path(), &["help"]).failed(1);
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn commands_are_executed_between_those_of_one_that_pauses() {
    let (dir, _monitor) = vmm();
    let mut pausing = HYPERTRACE.command(["ctl", "-d"]);
    pausing.arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut pausing = pausing.spawn().unwrap();
    let (mut input, output) = (pausing.stdin.take().unwrap(), pausing.stdout.take().unwrap());
    let mut replies = BufReader::new(output).lines();
    for command in ["one", "two"] {
        writeln!(input, "{command}").unwrap();
        assert_eq!(replies.next().unwrap().unwrap(), format!("<{command}>"));
        // `pausing` keeps the input of its connection open, and connects anew for the next command.
        assert_eq!(ctl(dir.path(), &["help"]).ok(), "<help>\n");
    }
    drop(input);
    assert!(pausing.wait().unwrap().success());
}

#[test]
fn a_closed_output_pipe_is_success() {
    let (dir, _monitor) = vmm();
    let full = "x".repeat(3000);
    let mut ctl = HYPERTRACE.command(["ctl", "-d"]);
    ctl.arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ctl.spawn().unwrap();
    drop(child.stdout.take());
    let _ = writeln!(child.stdin.take().unwrap(), "{full}");

    let output = child.wait_with_output().unwrap();

    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_message_that_cannot_be_written_changes_no_exit_code() {
    let (dir, _monitor) = vmm();
    let command = |args: &[&str], code: i32| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = HYPERTRACE.command(args);
        let ended = run(command.arg(dir.path()).arg("no such").stderr(full)).code;
        assert_eq!(ended, Some(code), "{args:?}");
    };
    command(&["ctl", "-d"], 1);
    // The directory has no session.
    command(&["report"], 2);
}

#[test]
fn its_help_names_the_commands_of_a_session() {
    let help = HYPERTRACE.run(["ctl", "--help"]).ok();
    for part in ["trace-backend NAME on|off ", "trigger remove N ", "trace-events-all "] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let (dir, _monitor) = vmm();
    let full = File::options().write(true).open("/dev/full").unwrap();

    let ran = run(HYPERTRACE.command(["ctl", "-d"]).arg(dir.path()).arg("help").stdout(full));

    assert!(ran.failed(1).contains("cannot write"));
}
