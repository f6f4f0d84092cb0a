//! The output of `hypertrace report` and `hypertrace info`, for people and for scripts.

use hypertrace_test_support::made;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::golden::golden;
use made::*;
use std::io::Read;
use std::process::{Command, Stdio};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

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
    for command in ["report", "info"] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -S -n 64; exec \"$0\" \"$1\" \"$2\"", HYPERTRACE.0, command]);
        run(limited.arg(made.path())).ok();
    }
}

#[test]
fn a_line_has_time_delta_source_event_and_fields() {
    golden("lines", HYPERTRACE.transcript(&[session()], &["report S"]));
}

#[test]
fn leases_are_shown_where_they_are_chosen() {
    let session = session();
    let report = |args: &[&str]| {
        let lines = run(HYPERTRACE.command(["report"]).arg(session.path()).args(args)).ok();
        lines.lines().filter(|line| line.contains("  lease  ")).count()
    };
    assert_eq!(report(&[]), 0);
    assert_eq!(report(&["--client", "0"]), 0);
    assert_eq!(report(&["--event", "lease"]), 2);
    assert_eq!(report(&["--event", "*"]), 2);
    assert_eq!(report(&["--where", "token == 9"]), 1);
}

#[test]
fn a_terminal_shows_lines_cut_at_its_width() {
    let Some(script) = capability::program("script") else { return };
    let session = session();
    let events = Packet::guest(1).event_str(10_000, OPENED, &[], "\u{3042}".repeat(60).as_bytes());
    let session = session.stream("guest-001-0000", &[Packet::guest(1), events]);
    let shown = |columns: u32| {
        let command = format!(
            "stty cols {columns} rows 24; {} report {}",
            HYPERTRACE.0,
            session.path().display()
        );
        let mut script = Command::new(&script);
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        run(script.stdin(Stdio::null())).ok().replace('\r', "")
    };
    let whole = run(HYPERTRACE.command(["report"]).arg(session.path())).ok();

    assert_eq!(shown(400), whole);
    assert!(shown(100).contains("  +0.0"), "{}", shown(100));
    for columns in [80, 40, 4] {
        let shown = shown(columns);
        // Each of these letters takes two columns.
        let width = |line: &str| line.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
        let widest = shown.lines().map(width).max();
        assert!(widest <= Some(columns), "{columns}: {shown}");
        assert_eq!(shown.lines().count(), whole.lines().count(), "{shown}");
        assert!(!shown.contains("  +0.0") && shown.contains("...\n"), "{shown}");
    }
}

#[test]
fn json_lines_have_the_promised_keys() {
    golden("json_lines", HYPERTRACE.transcript(&[session()], &["report S --json"]));
}

#[test]
fn a_reader_of_json_with_doubles_gets_exact_numbers() {
    let (exact, large): (u64, u64) = (1 << 53, u64::MAX - 1);
    let events = Packet::guest(0).lease(10_000, 7, "w").event(20_001, DISK_READ, &[exact, large]);
    let made = Made::new().stream("guest-000-0000", &[Packet::guest(0), events]);
    let report = |args: &[&str]| {
        let mut command = HYPERTRACE.command(["report", "--json"]);
        run(command.arg(made.path()).args(args)).ok()
    };
    let text = report(&["--event", "disk_read"]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["fields"]["lba"], exact);
    assert_eq!(line["fields"]["len"], large.to_string());
    let from = format!("{}ns", line["t_ns"].as_f64().unwrap());
    assert_eq!(report(&["--from", &from, "--until", &from]), text);
}

#[test]
fn filters_choose_by_event_client_time_and_number() {
    let filters = [
        "report S --event disk_*",
        "report S --event disk_* --event opened",
        "report S --event disk",
        "report S -c 0",
        "report S --client 1",
        "report S --from 19us --until 0.00004",
        "report S --from -1s",
        "report S -n 3",
        "report S -n 0",
    ];
    golden("filters", HYPERTRACE.transcript(&[session()], &filters));
}

#[test]
fn filters_that_nothing_matches_are_told() {
    let filters = [
        "report S -c 99",
        "report S --from 60s",
        "report S --until -1s --json",
        "report S --event nosuch",
        "report S --event disk_* -c 99",
        "report S --event x\x1b --event opened --until 1ns",
        "report S -n 0 --event nosuch",
    ];
    golden("no_match", HYPERTRACE.transcript(&[session()], &filters));
}

#[test]
fn a_session_that_was_not_ended_is_told() {
    let unfinished =
        json(&clocks(), EVENTS, "[]").replace("\"finished\":true", "\"finished\":false");
    let of_programs = unfinished.replacen("\"device\"", "\"programs\":true,\"device\"", 1);
    let sessions = [unfinished, of_programs].map(|json| Made::with_json(&json));
    let commands = ["report S", "info S", "report T", "info T"];
    golden("not_ended", HYPERTRACE.transcript(&sessions, &commands));
}

#[test]
fn stat_says_how_many_events_no_file_holds() {
    let streams = r#"[{"domain":"guest","client":0,"name":"w","events":53342,"reference_points":3},
        {"domain":"host","client":3,"name":"","events":1}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let all = Packet::host(3).event(40_000, VCPU_EXIT, &[6]).event(41_000, VCPU_EXIT, &[7]);
    let made = made.stream("host-003-0000", &[Packet::host(3), all]);
    // A count that is older than the files is not reported.
    let commands = ["info S", "info S --json", "info T"];
    golden("missing", HYPERTRACE.transcript(&[made, session()], &commands));
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
    golden("losses", HYPERTRACE.transcript(&[made], &["report S", "info S --json"]));
}

#[test]
fn a_json_line_says_where_how_many_events_were_lost() {
    let made = lossy(r#""lost_full":1000,"lost_busy":5"#);
    golden("losses_json", HYPERTRACE.transcript(&[made], &["report S --json"]));
}

#[test]
fn overwritten_events_are_shown_before_those_of_their_packet() {
    let made = lossy(r#""lost_overwritten":1005"#);
    golden("overwritten", HYPERTRACE.transcript(&[made], &["report S -n 4 -c 0"]));
}

#[test]
fn losses_are_filtered_by_time_and_client_but_not_by_name() {
    let filters =
        ["report S --event nothing", "report S -c 0", "report S --until 30us", "report S -n 2"];
    let made = lossy(r#""lost_full":1005"#);
    golden("losses_filtered", HYPERTRACE.transcript(&[made], &filters));
}

#[test]
fn the_last_time_ends_a_report_of_some_names_as_it_ends_one_of_all() {
    let json = json(&clocks(), EVENTS, "[]");
    let json = json.replacen("\"device\"", "\"lost_unattached\":5,\"device\"", 1);
    let read = |packet: Packet, n: u64| packet.event(n * 10_000, DISK_READ, &[n, 0]);
    let guest = (1..10).fold(Packet::guest(0), read);
    let host = Packet::host(3).event(5_000, VCPU_EXIT, &[6]);
    let made = Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), guest])
        .stream("host-003-0000", &[Packet::host(3), host]);
    let report = |choice: [&str; 2]| {
        let mut command = HYPERTRACE.command(["report", "--until", "35us"]);
        run(command.args(choice).arg(made.path())).ok()
    };

    let named = report(["--event", "vcpu_exit"]);

    assert!(!named.contains("unknown time"), "{named}");
    assert_eq!(named, report(["--where", "event == \"vcpu_exit\""]));
}

#[test]
fn several_sessions_make_one_timeline() {
    let sessions = [session(), session()];
    golden("several", HYPERTRACE.transcript(&sessions, &["report S T"]));
}

#[test]
fn stat_shows_a_table_and_the_same_as_json() {
    let streams = r#"[{"domain":"guest","client":0,"name":"w\u001b","lost_full":2,
        "faults":{"length":1}}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let guest = Packet::guest(0).event(20_000, DISK_READ, &[5, 512]).with64(56, 2).with64(104, 1);
    let made = made.stream("g", &[Packet::guest(0), guest]);
    golden("info", HYPERTRACE.transcript(&[made], &["info S", "info S --json"]));
}

#[test]
fn stat_says_how_a_guest_clock_is_known() {
    golden("info_clock", HYPERTRACE.transcript(&[session()], &["info S"]));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let commands = ["report S --from 1h", "report S --client x"];
    golden("usage", HYPERTRACE.transcript(&[session()], &commands));
}

#[test]
fn bad_input_is_exit_code_2_and_one_line_with_file_and_byte() {
    let made = session();
    let file = made.file("guest-000-0000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[128 + 128 + 8] = 0xee;
    std::fs::write(&file, bytes).unwrap();
    let commands = [
        "report S",
        "info S",
        "report /nonexistent/x",
        "report S/session.json",
        "report S/session.json/x",
        "report S/ctf",
    ];
    golden("bad_input", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_filter_compares_fields_and_names_what_is_wrong() {
    let events =
        Packet::guest(1).event(10_000, DISK_READ, &[5, 512]).event(20_000, DISK_READ, &[9, 4_096]);
    let host = Packet::host(3).event(30_000, VCPU_EXIT, &[6]);
    let made = Made::new()
        .stream("guest-1", &[Packet::guest(1), events])
        .stream("host-3", &[Packet::host(3), host]);
    // An argument has at most 128 KiB.
    let long = vec!["lba == 9"; 9_000].join(" or ");
    let shown = |filter: &str| {
        let mut command = HYPERTRACE.command(["report", "--where", filter]);
        run(command.arg(made.path()))
    };
    let transcript = |filter: &str| {
        let Ran { code, stdout, stderr } = shown(filter);
        format!("--where {filter}: {code:?}\n{stdout}{stderr}")
    };
    let filters = [
        "lba == 5",
        "len > 512 or reason == 6",
        "not client == 1",
        "source == 'vmm/3'",
        "event == 'disk_read' and (lba < 6 or lba > 100)",
        "lba == 77",
        "reson == 6",
        "lba = 5",
        "lba == 5 and",
        "source == guest",
        "",
    ];
    golden("where", filters.map(transcript).concat());
    assert_eq!(shown(&long).ok(), shown("lba == 9").ok());
}

#[test]
fn times_of_the_calendar_are_shown_and_taken_back() {
    let packet = Packet::host(3).event(30_000, VCPU_EXIT, &[6]).event(40_000, VCPU_EXIT, &[7]);
    let made = Made::new().stream("host-3", &[Packet::host(3), packet]);
    let shown = |zone: &str, args: &[&str]| {
        let mut command = HYPERTRACE.command(["report"]);
        run(command.args(args).arg(made.path()).env("TZ", zone)).ok()
    };
    let first = |text: &str| text.split_whitespace().next().unwrap().to_owned();

    let utc = shown("UTC", &["--time", "utc"]);
    let local = shown("IST-5:30", &["--time", "local"]);

    assert!(utc.starts_with("2023-11-14T22:13:20.000030000Z  +0.000000000  vmm/3"), "{utc}");
    assert!(local.starts_with("2023-11-15T03:43:20.000030000+05:30  +0.0"), "{local}");
    let second = utc.lines().nth(1).unwrap();
    for time in [first(second), first(local.lines().nth(1).unwrap())] {
        assert_eq!(shown("UTC", &["--from", &time]).lines().count(), 1, "{time}");
    }
}

#[test]
fn a_closed_pipe_is_success() {
    let mut packet = Packet::host(0);
    for i in 0..50_000 {
        packet = packet.event(i, VCPU_EXIT, &[i]);
    }
    let made = Made::new().stream("h", &[Packet::host(0), packet]);
    let mut command = HYPERTRACE.command(["report"]);
    command.arg(made.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn help_teaches_by_example() {
    let commands =
        ["demo", "report", "info", "regions", "functions", "export", "record", "forward", "ctl"];
    for command in commands {
        let text = HYPERTRACE.run([command, "--help"]).ok();
        assert!(text.contains("Examples:") && text.contains("Exit code"), "{text}");
        // The options stand between the introduction and the examples, and the options' lines fit the
        // terminal and not 80 columns.
        let (about, rest) = text.split_once("\nUsage: ").unwrap();
        let (_, examples) = rest.split_once("Examples:").unwrap();
        let wide = about.lines().chain(examples.lines()).find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{command}");
        // The help of `regions` shows the parts as a list, with a line for each.
        assert!(
            command != "regions"
                || about.contains("\n  VMM                the VMM handled an exit\n"),
            "{about}"
        );
    }
}
