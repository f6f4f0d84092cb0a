//! `hypertrace demo` with and without `--json`: under KVM, without losses, readable by every reader.

use std::path::Path;

use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::interrupt::demo_ends_cleanly;
use hypertrace_tests::{babeltrace2, capability, kvm, packets};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn everything_is_there(vcpus: u32) {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");

    let demo: Demo = run(&mut HYPERTRACE.demo(&session, vcpus)).json();

    let each = u64::from(vcpus);
    assert_eq!((&*demo.mode, demo.vcpus, &demo.session), ("kvm", vcpus, &session));
    assert!(demo.ring_events >= each * 100_000, "{demo:?}");
    assert!(demo.reference_points >= each * 1_000, "{demo:?}");
    assert_eq!((demo.lost, demo.faults), (0, 0));
    let stat = HYPERTRACE.info(&session);
    assert_eq!((&stat["finished"], &stat["missing"]), (&true.into(), &0.into()));
    assert_eq!(packets::committed(&session).unwrap().all(), demo.records);
    capability::used("kvm");
    let Some(read) = babeltrace2::read(&session.join("ctf")) else { return };
    assert_eq!(read.clean(), demo.records);
}

#[test]
fn one_vcpu() {
    everything_is_there(1);
}

#[test]
fn two_vcpus() {
    everything_is_there(2);
}

#[test]
fn three_vcpus() {
    everything_is_there(3);
}

#[test]
fn without_json_it_prints_an_excerpt_a_summary_and_next_steps() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");

    let shown = HYPERTRACE.run(["demo", "-o", session.to_str().unwrap()]).ok();

    has_an_excerpt_a_summary_and_next_steps(&shown, &session, "guest events", "guest/");
    capability::used("kvm");
}

/// Checks what the demo has printed about a session whose events have this name and come from this source.
#[track_caller]
pub fn has_an_excerpt_a_summary_and_next_steps(
    shown: &str,
    session: &Path,
    events: &str,
    source: &str,
) {
    // Long lines are wrapped.
    let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [&format!("200,000 {events}"), "2,000 reference points", "0 lost, 0 faults"] {
        assert!(text.contains(part), "{part}: {shown}");
    }
    // The header's words are aligned with the columns.
    let header = shown.lines().find(|line| line.trim_start().starts_with("seconds")).unwrap();
    let line = shown.lines().find(|line| line.contains(&format!("  {source}"))).unwrap();
    assert_eq!(header.find("seconds").unwrap() + 7, line.find("  +").unwrap());
    assert_eq!(header.find("source"), line.find(source));
    let (before, event) = line.split_at(header.find("event").unwrap());
    assert!(before.ends_with("  ") && event.starts_with(char::is_alphabetic), "{shown}");
    let next = format!("hypertrace report {}", session.display());
    assert!(shown.contains(&next), "{shown}");
    // The lines are measured with the name of a directory in the temporary folder.
    let named = shown.replace(session.to_str().unwrap(), "/tmp/hypertrace-demo-AbCdEf");
    let summary: Vec<&str> = named.lines().skip_while(|line| !line.contains("records: ")).collect();
    assert!(summary.len() > 5, "{named}");
    assert!(summary.iter().all(|line| line.chars().count() <= 80), "{summary:#?}");
    // The parts add up to the total.
    let numbers = |text: &str| {
        let text = text.replace(',', "");
        let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        words.map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let counts = summary.join(" ");
    let (records, parts) = counts.split(';').next().unwrap().split_once("records:").unwrap();
    assert_eq!(numbers(records), [numbers(parts).iter().sum::<u64>()], "{counts}");
}

#[test]
fn a_reader_that_has_enough_ends_neither_the_guest_nor_its_session() {
    for options in [&["demo", "-o"][..], &["demo", "--json", "-o"]] {
        let dir = tempfile::tempdir().unwrap();
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);

        let ran = run(HYPERTRACE.command(options).arg(dir.path()).stdout(closed));

        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        let stat = HYPERTRACE.info(dir.path());
        assert_eq!(stat["finished"], true);
        assert!(stat["total"]["events"].as_u64().unwrap() > 0, "{stat}");
    }
}

#[test]
fn a_limit_of_a_files_size_is_said_and_what_is_missing_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    // The limit is half a stream file, in blocks of 512 bytes.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", r#"ulimit -f 65536; exec "$0" "$@""#, HYPERTRACE.0]);

    let said = run(limited.args(["demo", "--json", "-o"]).arg(&session)).failed(1);

    for part in ["RLIMIT_FSIZE, 33554432", "is incomplete"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let stat = HYPERTRACE.info(&session);
    assert_eq!(stat["finished"], true);
    assert!(stat["total"]["lost"].as_u64().unwrap() >= 200_000, "{stat}");
}

#[test]
fn a_signal_ends_it_and_keeps_what_was_recorded() {
    for signal in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut demo = HYPERTRACE.command(["demo", "--times", "10000", "-o"]);
        demo_ends_cleanly(HYPERTRACE, demo.arg(dir.path()), dir.path(), signal);
    }
}
