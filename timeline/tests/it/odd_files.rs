// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of pipes, directories and links with the name of a session's file: reading fails at once, with an
//! error that has the name. Other tests here read files that are too large.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::made;
use hypertrace_timeline::{Error, Session, limits};
use made::*;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn session() -> Made {
    let packets = [Packet::guest(0), Packet::guest(0).event(20_000, DISK_READ, &[5, 512])];
    Made::new().stream("guest-000-0000", &packets)
}

/// Opens the session. Another thread opens and closes the pipe again and again. If the reader reads the pipe
/// by mistake, this read ends.
fn open_with_pipe(session: &Path, pipe: &Path) -> Result<Session, Error> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
                thread::sleep(Duration::from_millis(1));
            }
        });
        let opened = Session::open(session);
        done.store(true, Ordering::Relaxed);
        opened
    })
}

#[test]
fn a_pipe_a_folder_or_a_link_is_refused_as_a_file_of_a_session() {
    for name in ["session.json", "classes.jsonl", "ctf/metadata", "ctf/guest-000-0000"] {
        for kind in ["a pipe", "a directory", "a link"] {
            let made = session();
            let path = made.path().join(name);
            let aside = made.path().join("aside");
            fs::rename(&path, &aside).unwrap();
            match kind {
                "a pipe" => {
                    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
                }
                "a link" => std::os::unix::fs::symlink(&aside, &path).unwrap(),
                _ => fs::create_dir(&path).unwrap(),
            }

            let error = open_with_pipe(made.path(), &path).unwrap_err();

            let text = error.to_string();
            let expected = format!("a regular file, found {kind}");
            assert!(text.contains(name) && text.contains(&expected), "{text}");
            assert!(error.is_bad_input());
        }
    }
}

#[test]
fn a_link_is_refused_as_the_folder_of_the_streams() {
    let made = session();
    let aside = made.path().join("aside");
    fs::rename(made.path().join("ctf"), &aside).unwrap();
    std::os::unix::fs::symlink(&aside, made.path().join("ctf")).unwrap();

    let error = Session::open(made.path()).unwrap_err();

    assert!(error.is_bad_input() && error.to_string().contains("ctf is a link"), "{error}");
}

#[test]
fn a_description_that_no_session_has_is_refused_by_its_size_or_its_counts() {
    let made = session();
    let path = made.path().join("session.json");
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(limits::MAX_SESSION_JSON + 1)
        .unwrap();
    let text = Session::open(made.path()).unwrap_err().to_string();
    for part in [
        "session.json",
        &(limits::MAX_SESSION_JSON + 1).to_string(),
        &limits::MAX_SESSION_JSON.to_string(),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let stream = r#"{"domain":"host","client":1}"#;
    let streams = vec![stream; limits::MAX_STREAMS + 1].join(",");
    let made = Made::with_json(&json(&clocks(), "[]", &format!("[{streams}]")));
    let text = Session::open(made.path()).unwrap_err().to_string();
    assert!(text.contains("length 3074, expected a list of at most 3073"), "{text}");

    let made = session();
    let path = made.path().join("classes.jsonl");
    let line = "{\"event\":{\"id\":16,\"schema\":\"e()\"}}\n";
    fs::write(&path, line.repeat(limits::MAX_CLASSES + 1)).unwrap();
    let text = Session::open(made.path()).unwrap_err().to_string();
    let most = format!("more than {} event classes", limits::MAX_CLASSES);
    assert!(text.contains("classes.jsonl") && text.contains(&most), "{text}");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(limits::MAX_CLASSES_BYTES + 1).unwrap();
    let text = Session::open(made.path()).unwrap_err().to_string();
    assert!(text.contains("classes.jsonl") && text.contains("bytes"), "{text}");
}
