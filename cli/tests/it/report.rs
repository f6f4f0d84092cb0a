//! `hypertrace report` and `hypertrace stat`: their output for people and for scripts.

use hypertrace_test_support::made;
use made::*;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn hypertrace(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypertrace"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    hypertrace(args).output().unwrap()
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Runs a command that fails. Returns its exit code and message.
fn failed(args: &[&str]) -> (i32, String) {
    let out = run(args);
    (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn path(made: &Made) -> &str {
    made.path().to_str().unwrap()
}

fn session() -> Made {
    let guest = Packet::guest(0)
        .lease(10_000, 7, "wor\x1bker")
        .event(20_000, DISK_READ, &[5, 512])
        .event_str(52_000, OPENED, &[], "a\x1b[31m\u{202e}\"".as_bytes());
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]).point(
        41_000,
        0,
        1,
        GUEST_BASE + 30_000,
        77,
    );
    Made::new()
        .stream("guest-000-0000", &[Packet::guest(0), guest])
        .stream("host-003-0000", &[Packet::host(3), host])
}

#[test]
fn a_session_of_more_streams_than_files_may_be_open_is_read() {
    let made = (0..100).fold(Made::new(), |made, client| {
        let events =
            Packet::guest(client).lease(10_000, 7, "w").event(20_000, DISK_READ, &[5, 512]);
        made.stream(&format!("guest-{client:03}-0000"), &[Packet::guest(client), events])
    });
    for command in ["report", "stat"] {
        let out = Command::new("sh")
            .args(["-c", "ulimit -S -n 64; exec \"$0\" \"$1\" \"$2\""])
            .args([env!("CARGO_BIN_EXE_hypertrace"), command, path(&made)])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_line_has_time_delta_source_event_and_fields() {
    let made = session();
    let text = ok(&["report", path(&made)]);
    let expected = [
        r#"  0.000001000  +0.000000000  vmm/vcpu0     lease       token=0x9 pid=42 tid=43 clock=0 name="vcpu0""#,
        r#"  0.000009988  +0.000008988  guest/0 wor\x1bker  lease       token=0x7 pid=42 tid=43 clock=0 name="wor\x1bker""#,
        r#"  0.000019988  +0.000010000  guest/0 wor\x1bker  disk_read   lba=5 len=512"#,
        r#"  0.000040000  +0.000020012  vmm/vcpu0           vcpu_exit   reason=6"#,
        r#"  0.000041000  +0.000001000  guest/0 wor\x1bker  checkpoint  n=77 @cpu0#1"#,
        r#"  0.000052011  +0.000011011  guest/0 wor\x1bker  opened      name="a\x1b[31m\u{202e}\"""#,
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, expected, "{text}");
}

#[test]
fn json_lines_have_the_promised_keys() {
    let made = session();
    let text = ok(&["report", path(&made), "--json"]);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[2]["fields"]["lba"], 5);
    assert_eq!(lines[2]["event"], "disk_read");
    assert_eq!(lines[2]["source"], "guest/0 wor\u{1b}ker");
    assert_eq!(lines[3]["ts_ns"], START_NS + 40_000);
    assert_eq!(lines[3]["t_ns"], 40_000);
    assert_eq!(lines[3]["bound_ns"], 0);
    assert_eq!(lines[4]["reference"]["guest_time"], GUEST_BASE + 30_000);
    assert_eq!(lines[5]["fields"]["name"], "a\u{1b}[31m\u{202e}\"");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
}

#[test]
fn a_reader_of_json_with_doubles_gets_exact_numbers() {
    let made = Made::new();
    let (exact, large): (u64, u64) = (1 << 53, u64::MAX - 1);
    let events = Packet::guest(0).lease(10_000, 7, "w").event(20_001, DISK_READ, &[exact, large]);
    let made = made.stream("guest-000-0000", &[Packet::guest(0), events]);
    let text = ok(&["report", path(&made), "-e", "disk_read", "--json"]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["fields"]["lba"], exact);
    assert_eq!(line["fields"]["len"], large.to_string());
    let from = format!("{}ns", line["t_ns"].as_f64().unwrap());
    assert_eq!(ok(&["report", path(&made), "--from", &from, "--to", &from, "--json"]), text);
}

#[test]
fn filters_choose_by_event_client_time_and_number() {
    let made = session();
    let count = |args: &[&str]| {
        let mut all = vec!["report", path(&made)];
        all.extend(args);
        let out = run(&all);
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap().lines().count()
    };
    assert_eq!(count(&["-e", "disk_*"]), 1);
    assert_eq!(count(&["-e", "disk_*", "--event", "opened"]), 2);
    assert_eq!(count(&["-e", "disk"]), 0);
    assert_eq!(count(&["-c", "0"]), 4);
    assert_eq!(count(&["--client", "1"]), 0);
    assert_eq!(count(&["--from", "19us", "--to", "0.00004"]), 2);
    assert_eq!(count(&["--from", "-1s"]), 6);
    assert_eq!(count(&["-n", "3"]), 3);
    assert_eq!(count(&["-n", "0"]), 0);
}

#[test]
fn filters_that_nothing_matches_are_told() {
    let made = session();
    let said = |args: &[&str]| {
        let mut all = vec!["report", path(&made)];
        all.extend(args);
        let out = run(&all);
        assert_eq!((out.status.code(), &*out.stdout), (Some(0), &b""[..]), "{args:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let unknown = |name: &str| format!("; no event is named {name}");
    let known = |name: &str| format!("; {name} is a known name, but no recorded event fits");
    for (args, expected) in [
        (&["-c", "99"][..], String::new()),
        (&["--from", "60s"], String::new()),
        (&["--to", "-1s", "--json"], String::new()),
        (&["-e", "nosuch"], unknown("nosuch")),
        (&["-e", "disk_*", "-c", "99"], known("disk_*")),
        (&["-e", "x\x1b", "-e", "opened", "--to", "1ns"], unknown("x\\u{1b}") + &known("opened")),
    ] {
        assert_eq!(said(args), format!("hypertrace: no event matched{expected}\n"), "{args:?}");
    }
    assert_eq!(said(&["-n", "0", "-e", "nosuch"]), "");
}

#[test]
fn a_session_that_was_not_ended_is_told() {
    let unfinished =
        json(&clocks(), EVENTS, "[]").replace("\"finished\":true", "\"finished\":false");
    let of_programs = unfinished.replacen("\"device\"", "\"programs\":true,\"device\"", 1);
    let recover = "hypertrace run --recover FILE --out DIR";
    for (json, recovers) in [(unfinished, false), (of_programs, true)] {
        let made = Made::with_json(&json);
        let out = run(&["report", path(&made)]);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), said.lines().count()), (Some(0), 1), "{said}");
        assert!(said.contains(&format!("{}: not finished: ", path(&made))), "{said}");
        assert_eq!(said.contains(recover), recovers, "{said}");
        assert_eq!(ok(&["stat", path(&made)]).contains(recover), recovers);
    }
}

#[test]
fn stat_says_how_many_events_no_file_holds() {
    let streams = r#"[{"domain":"guest","client":0,"name":"w","events":53342,"reference_points":3},
        {"domain":"host","client":3,"name":"","events":1}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let all = Packet::host(3).event(40_000, VCPU_EXIT, &[6]).event(41_000, VCPU_EXIT, &[7]);
    let made = made.stream("host-003-0000", &[Packet::host(3), all]);

    let stat: serde_json::Value =
        serde_json::from_str(&ok(&["stat", path(&made), "--json"])).unwrap();
    assert_eq!((&stat["missing"], &stat["total"]["lost"]), (&53_344.into(), &0.into()));
    let text = ok(&["stat", path(&made)]);
    assert!(text.contains("missing: 53,344 events that session.json counts"), "{text}");
    // A count that is older than the files is no finding.
    let whole = session();
    assert!(!ok(&["stat", path(&whole)]).contains("missing"));
}

/// Makes a session with losses: client 0 lost 2 events after 20 us, 1,000 after 40 us, and 3 that only
/// an empty packet counts; client 1 lost 4 and has no file; a process without a client lost 5.
fn lossy(causes: &str) -> Made {
    let streams = format!(
        r#"[{{"domain":"guest","client":0,"name":"w",{causes}}},
            {{"domain":"guest","client":1,"name":"","lost_unattached":4}}]"#
    );
    let json = json(&clocks(), EVENTS, &streams);
    let json = json.replacen("\"device\"", "\"lost_unattached\":5,\"device\"", 1);
    let first =
        Packet::guest(0).event(10_000, DISK_READ, &[1, 1]).event(20_000, DISK_READ, &[2, 2]);
    let first = first.with64(56, 2);
    let second = Packet::guest(0).after(&first).event(40_000, DISK_READ, &[3, 3]).with64(56, 1_002);
    let third = Packet::guest(0).after(&second).event(50_000, DISK_READ, &[4, 4]).with64(56, 1_002);
    let last = Packet::guest(0).after(&third).with64(56, 1_005);
    Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), first, second, third, last])
        .stream(
            "host-003-0000",
            &[
                Packet::host(3),
                Packet::host(3).event(30_000, VCPU_EXIT, &[6]).event(45_000, VCPU_EXIT, &[7]),
            ],
        )
}

#[test]
fn a_line_says_where_how_many_events_were_lost() {
    let made = lossy(r#""lost_full":1005"#);
    let text = ok(&["report", path(&made)]);
    let expected = [
        "  0.000010000  +0.000000000  guest/0 w     disk_read   lba=1 len=1",
        "  0.000020000  +0.000010000  guest/0 w     disk_read   lba=2 len=2",
        "  0.000020000  +0.000000000  guest/0 w     ... 2 events lost here (ring full)",
        "  0.000030000  +0.000010000  vmm/3         vcpu_exit   reason=6",
        "  0.000040000  +0.000010000  guest/0 w     disk_read   lba=3 len=3",
        "  0.000040000  +0.000000000  guest/0 w     ... 1,000 events lost here (ring full)",
        "  0.000045000  +0.000005000  vmm/3         vcpu_exit   reason=7",
        "  0.000050000  +0.000005000  guest/0 w     disk_read   lba=4 len=4",
        "  0.000050000  +0.000000000  guest/0 w     ... 3 events lost here (ring full)",
        "            -             -  guest/1       ... 4 events lost at an unknown time (no free client)",
        "            -             -                ... 5 events lost at an unknown time (no free client)",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, expected, "{text}");
    let total: serde_json::Value =
        serde_json::from_str(&ok(&["stat", path(&made), "--json"])).unwrap();
    assert_eq!(total["total"]["lost"], 1_014);
}

#[test]
fn a_json_line_says_where_how_many_events_were_lost() {
    let made = lossy(r#""lost_full":1000,"lost_busy":5"#);
    let text = ok(&["report", path(&made), "--json"]);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (lost, events): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["type"] == "lost");
    assert_eq!((lost.len(), events.len()), (5, 6));
    assert!(events.iter().all(|event| event.get("type").is_none()));
    let expected = serde_json::json!({
        "type": "lost", "t_ns": 20_000, "ts_ns": START_NS + 20_000, "source": "guest/0 w", "client": 0,
        "events": 2, "why": ["ring full", "emit interrupted"],
    });
    assert_eq!(*lost[0], expected);
    assert_eq!(lost.iter().map(|line| line["events"].as_u64().unwrap()).sum::<u64>(), 1_014);
    assert_eq!(
        (&lost[4]["ts_ns"], &lost[4]["client"]),
        (&serde_json::json!(null), &serde_json::json!(null))
    );
}

#[test]
fn overwritten_events_are_shown_before_those_of_their_packet() {
    let made = lossy(r#""lost_overwritten":1005"#);
    let text = ok(&["report", path(&made), "-n", "4", "-c", "0"]);
    let what: Vec<&str> =
        text.lines().map(|line| line.split_once("  guest/0 w     ").unwrap().1).collect();
    let expected = [
        "... 2 events lost here (overwritten)",
        "disk_read   lba=1 len=1",
        "disk_read   lba=2 len=2",
        "... 1,000 events lost here (overwritten)",
        "disk_read   lba=3 len=3",
        "disk_read   lba=4 len=4",
    ];
    assert_eq!(what, expected, "{text}");
}

#[test]
fn losses_are_filtered_by_time_and_client_but_not_by_name() {
    let made = lossy(r#""lost_full":1005"#);
    let lost = |args: &[&str]| {
        let mut all = vec!["report", path(&made)];
        all.extend(args);
        let shown = String::from_utf8(run(&all).stdout).unwrap();
        shown.lines().filter(|line| line.contains(" lost ")).count()
    };
    assert_eq!(lost(&["-e", "nothing"]), 5);
    assert_eq!(lost(&["-c", "0"]), 3);
    assert_eq!(lost(&["--to", "30us"]), 1);
    assert_eq!(lost(&["-n", "2"]), 0);
}

#[test]
fn several_sessions_make_one_timeline() {
    let (a, b) = (session(), session());
    let out = run(&["report", path(&a), path(&b)]);
    let (text, said) =
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(
        out.status.success() && said.contains("not known to be recorded in the same boot"),
        "{said}"
    );
    assert_eq!(text.lines().count(), 12);
    let name = |made: &Made| made.path().file_name().unwrap().to_str().unwrap().to_owned();
    for made in [&a, &b] {
        let source = format!("{}:vmm/vcpu0", name(made));
        assert_eq!(text.lines().filter(|l| l.contains(&source)).count(), 2, "{text}");
    }
}

#[test]
fn stat_shows_a_table_and_the_same_as_json() {
    let streams = r#"[{"domain":"guest","client":0,"name":"w\u001b","lost_full":2,
        "faults":{"length":1}}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let guest = Packet::guest(0).event(20_000, DISK_READ, &[5, 512]).with64(56, 2).with64(104, 1);
    let made = made.stream("g", &[Packet::guest(0), guest]);

    let text = ok(&["stat", path(&made)]);
    for part in [
        "guest/0",
        "w\\x1b",
        "total",
        "lost by guest/0: ring full 2",
        "faults of guest/0: length 1",
        "device: bad_width 3",
        "guest TSC (clock 1): offset unknown, no reference points",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["stat", path(&made), "--json"])).unwrap();
    assert_eq!(json["total"]["lost"], 2);
    assert_eq!(json["streams"][0]["client"], 0);
    assert_eq!(json["streams"][0]["events"], 1);
    assert_eq!(json["streams"][0]["faults"]["length"], 1);
    assert_eq!(json["finished"], true);
}

#[test]
fn stat_says_how_a_guest_clock_is_known() {
    let made = session();
    let text = ok(&["stat", path(&made)]);
    let expected = "\nguest TSC (clock 1): offset known to ± 11,014 ns (± 11,059 ns at most at its\n  \
                    points) from 2 readings around reference points\n";
    assert!(text.contains(expected), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let made = session();
    for args in [
        &["report"][..],
        &["report", path(&made), "--frobnicate"],
        &["report", path(&made), "--from", "1h"],
        &["report", path(&made), "--client", "x"],
        &["stat"],
        &["nonsense"],
        &[],
    ] {
        let (code, said) = failed(args);
        assert_eq!(code, 2, "{args:?}: {said}");
        assert!(!said.is_empty());
    }
}

#[test]
fn bad_input_is_exit_code_2_and_one_line_with_file_and_byte() {
    let made = session();
    let file = made.file("guest-000-0000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[128 + 128 + 8] = 0xee;
    std::fs::write(&file, bytes).unwrap();
    for command in ["report", "stat"] {
        let (code, said) = failed(&[command, path(&made)]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("guest-000-0000: damaged at byte 264"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let plain = made.path().join("session.json");
    for (dir, part) in [
        (Path::new("/nonexistent/x"), "no such directory"),
        (plain.as_path(), "not a directory"),
        (&plain.join("x"), "ot a directory"),
        (&made.path().join("ctf"), "directory above"),
    ] {
        let (code, said) = failed(&["report", dir.to_str().unwrap()]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_closed_pipe_is_success() {
    let mut packet = Packet::host(0);
    for i in 0..50_000 {
        packet = packet.event(i, VCPU_EXIT, &[i]);
    }
    let made = Made::new().stream("h", &[Packet::host(0), packet]);
    let mut child = hypertrace(&["report", path(&made)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn help_teaches_by_example() {
    let commands = [
        "demo",
        "report",
        "stat",
        "clock",
        "regions",
        "functions",
        "export",
        "run",
        "record",
        "ctl",
    ];
    for command in commands {
        let text = ok(&[command, "--help"]);
        assert!(text.contains("Examples:") && text.contains("Exit code"), "{text}");
        // The options between them are laid out for the terminal.
        let (about, rest) = text.split_once("\nUsage: ").unwrap();
        let (_, examples) = rest.split_once("Examples:").unwrap();
        let wide = about.lines().chain(examples.lines()).find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{command}");
        // The list of parts is a list.
        assert!(
            command != "regions" || about.contains("\n  vmm           in the VMM\n"),
            "{about}"
        );
    }
}
