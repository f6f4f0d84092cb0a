//! `hypertrace clock`, and sessions of one or several machines on one timeline.

use hypertrace_test_support::{machine, made, trace_dat};
use hypertrace_tests::{capability, kvm};
use machine::{Kernel, Kind, machine};
use made::{
    BOOT, DISK_READ, EVENTS, GHZ, GUEST_BASE, Made, OTHER_BOOT, Packet, START_NS, VCPU_EXIT, clock,
    clocks, json, with_boot,
};
use serde_json::Value;
use std::process::{Command, Output};
use trace_dat::{Page, TraceDat};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hypertrace")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn path(made: &Made) -> &str {
    made.path().to_str().unwrap()
}

/// Makes a session of a host whose counter had the value `base` at this Unix time after the start, with
/// events at these raw values.
fn host(boot: Option<&str>, base: u64, unix_ns: i64, raw: &[u64]) -> Made {
    let clocks = format!("[{}]", clock(0, "host", 0, GHZ, base, START_NS + unix_ns));
    let made = Made::with_json(&with_boot(&json(&clocks, EVENTS, "[]"), boot));
    let events = raw
        .iter()
        .fold(Packet::host(0), |packet, raw| packet.event(raw - base, VCPU_EXIT, &[*raw]));
    made.stream("host-0", &[Packet::host(0), events])
}

/// Returns the raw values and the bounds of the events of a report, in its order.
fn merged(sessions: &[&Made]) -> (Vec<(u64, Option<u64>)>, String) {
    let mut args = vec!["report", "--json"];
    args.extend(sessions.iter().map(|made| path(made)));
    let out = run(&args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let events = text(&out.stdout)
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            (event["fields"]["reason"].as_u64().unwrap(), event["bound_ns"].as_u64())
        })
        .collect();
    (events, text(&out.stderr))
}

#[test]
fn sessions_of_one_boot_are_merged_by_raw_ticks_whatever_their_anchors_say() {
    // The second anchor is 700 ns too early, and the events are 100 ns apart.
    let first = host(Some(BOOT), 1_000, 0, &[2_000, 2_200, 2_400]);
    let second = host(Some(BOOT), 1_500, 500 - 700, &[2_100, 2_300, 2_500]);
    let expected = [2_000, 2_100, 2_200, 2_300, 2_400, 2_500].map(|raw| (raw, Some(0)));

    for sessions in [[&first, &second], [&second, &first]] {
        let (events, said) = merged(&sessions);
        assert_eq!((&events[..], &*said), (&expected[..], ""));
    }
    let out = text(&run(&["clock", path(&first), path(&second)]).stdout);
    assert!(out.contains(&format!("same machine and boot as {}", path(&first))), "{out}");
    assert!(out.contains("would be off by 700 ns"), "{out}");
}

#[test]
fn the_error_of_another_machine_or_boot_is_unknown() {
    let first = host(Some(BOOT), 1_000, 0, &[2_000]);
    for (boot, why) in [
        (Some(OTHER_BOOT), "recorded on another machine, or after another boot"),
        (None, "not known to be recorded in the same boot"),
    ] {
        let second = host(boot, 1_000, 0, &[2_100]);
        let (events, said) = merged(&[&first, &second]);
        assert_eq!(events, [(2_000, Some(0)), (2_100, None)]);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(why), "{said}");

        let out = run(&["clock", path(&first), path(&second)]);
        assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
        assert!(text(&out.stdout).contains(why), "{}", text(&out.stdout));
        let out = run(&["clock", "--json", path(&first), path(&second)]);
        let found: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(found["sessions"][0]["is_placed"], true);
        assert_eq!(found["sessions"][1]["is_placed"], false);
    }
    // The error of its kernel's events is not known either.
    let second = host(Some(OTHER_BOOT), 1_000, 0, &[]);
    let (id, data) = trace_dat::recorded(OTHER_BOOT, 0);
    let dat = TraceDat::new("x86-tsc").cpu(&[Page::at(2_050).mmio(0, 7, 1)]).option(id, data);
    std::fs::write(second.path().join("kernel.dat"), dat.version_7()).unwrap();
    for (inputs, bound) in [(vec![&first, &second], "null"), (vec![&second], "0")] {
        let paths = inputs.iter().map(|made| path(made));
        let out = run(&["report", "--json"].into_iter().chain(paths).collect::<Vec<_>>());
        let out = text(&out.stdout);
        let mmio = out.lines().find(|line| line.contains("kvm_mmio")).unwrap();
        assert!(mmio.contains(&format!("\"bound_ns\":{bound}")), "{mmio}");
    }
    // Two sessions that do not know their boots have nothing in common either.
    let unknown = host(None, 1_000, 0, &[2_000]);
    assert_eq!(merged(&[&unknown, &host(None, 1_000, 0, &[2_100])]).0[1].1, None);
    // One alone is as exact as ever.
    assert_eq!(merged(&[&unknown]), (vec![(2_000, Some(0))], String::new()));
}

#[test]
fn an_offset_by_hand_places_a_session_with_the_bound_that_it_has() {
    let first = host(Some(BOOT), 1_000, 0, &[2_000, 2_200]);
    // 150 ns too early.
    let second = host(Some(OTHER_BOOT), 1_000, -150, &[2_100]);
    let report = |offset: &str| {
        let out = run(&["report", "--json", path(&first), path(&second), "--ts-offset", offset]);
        let shown = text(&out.stdout)
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                let ns = event["ts_ns"].as_i64().unwrap() - START_NS;
                (ns, event["bound_ns"].as_u64())
            })
            .collect::<Vec<_>>();
        (shown, text(&out.stderr))
    };
    let (events, said) = report("150+-30");
    assert_eq!(events, [(1_000, Some(0)), (1_100, Some(30)), (1_200, Some(0))]);
    assert_eq!(said, "");
    let (events, said) = report("150");
    assert_eq!(events, [(1_000, Some(0)), (1_100, None), (1_200, Some(0))]);
    assert!(said.contains("placed by --ts-offset, with unknown error"), "{said}");
    let out = run(&["report", path(&first), "--ts-offset", "5+-x"]);
    assert_eq!(out.status.code(), Some(2));
}

/// Makes a session with a point every 100 us, whose clock loses a millisecond after the 50th.
fn stopped() -> Made {
    stopping(100_000, 50, 1_000_000)
}

/// Makes a session with 100 points at this interval in ns: the host sees each after 5 us, and the guest
/// continues 5 us later. Its clock loses so many ns each time after `every` points.
fn stopping(interval: u64, every: u64, lost: u64) -> Made {
    let mut made = Made::with_json(&with_boot(&json(&clocks(), EVENTS, "[]"), Some(BOOT)));
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(0));
    for point in 0..100 {
        let guest = 1_000_000 + point * interval;
        let host = guest + point / every * lost;
        thread = thread.point(host + 5_000, 0, point as u32, GUEST_BASE + guest, point);
        ring = ring.event(guest + 10_000, DISK_READ, &[point, 0]);
    }
    made = made.stream("guest-0", &[Packet::guest(0), ring]);
    made.stream("host-0", &[Packet::host(0), thread])
}

#[test]
fn a_clock_is_described_in_words_with_its_jumps() {
    let made = stopped();
    let out = run(&["clock", path(&made)]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    let out = text(&out.stdout);
    for expected in [
        "host: counter of 1,000,000,000 Hz, boot 36d00ed1-e68a-4dcf-9f57-8bb3a1fed66d",
        "guest TSC (clock 1), all clients",
        "known from   200 readings around reference points",
        "declared 1,000,000,000 Hz, assumed to be within 1,000 ppm:\n",
        "                 998,999,999 to 1,001,000,001 Hz\n",
        "1 found; one of less than ",
        " may be missed,\n                 and the errors above hold all the same\n",
        "the guest's clock lost at least ",
        "of the session",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    // The first line is the path.
    for line in out.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }

    let out = run(&["clock", "--json", path(&made)]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let session = &found["sessions"][0];
    assert_eq!((&session["boot_id"], &session["is_placed"]), (&BOOT.into(), &true.into()));
    let clock = &session["clocks"][0];
    assert_eq!((&clock["readings"], &clock["jumps"]), (&200.into(), &1.into()));
    // As much as is certain: 1 ms less twice the 5 us.
    let jump = &clock["first_jumps"][0];
    let least = jump["least_ns"].as_u64().unwrap();
    assert!((985_000..=990_100).contains(&least), "{jump}");
    assert_eq!(jump["ahead"], false);
    let (before, after) = (jump["before"]["raw"].as_u64(), jump["after"]["raw"].as_u64());
    let place = GUEST_BASE + 1_000_000 + 49 * 100_000;
    assert!(
        before < after && (before.unwrap()..after.unwrap() + 1).contains(&(place + 100_000)),
        "{jump}"
    );
    let p50 = clock["bound_ns"]["p50"].as_u64().unwrap();
    assert!((5_000..5_500).contains(&p50), "{clock}");
    assert!(clock["bound_ns"]["max"].as_u64().unwrap() > 490_000, "{clock}");
    // `stat` says it shortly.
    assert!(text(&run(&["stat", path(&made)]).stdout).contains("; it jumped once"));
}

/// Makes a session with so many points of a guest whose counter has 62.5 MHz, one each millisecond: the host sees each
/// after 5 us. The counter's name and what is declared of it are these.
fn of_62_5_mhz(kind: &str, declared: &str, points: u64) -> Made {
    let host = clock(0, "host", 0, GHZ, 1_000_000, START_NS);
    let guest = clock(1, "guest", 0, GHZ, GUEST_BASE, START_NS)
        .replace(r#""kind":"tsc""#, &format!(r#""kind":"{kind}""#))
        .replace(&format!(r#""frequency":{GHZ}"#), declared);
    let mut made = Made::with_json(&json(&format!("[{host},{guest}]"), EVENTS, "[]"));
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(0));
    for point in 1..=points {
        let ms = |n: u64| point * 1_000_000 + n * 10_000;
        thread = thread.point(ms(0) + 5_000, 0, point as u32, GUEST_BASE + ms(0) / 16, point);
        // Its argument is the true time.
        for time in [ms(1), ms(40)] {
            ring = ring.event(time / 16, DISK_READ, &[time, 0]);
        }
    }
    made = made.stream("guest-0", &[Packet::guest(0), ring]);
    made.stream("host-0", &[Packet::host(0), thread])
}

#[test]
fn a_rate_that_is_only_assumed_gives_no_wrong_time_with_a_small_bound() {
    // As the guest says, and as the host's counter has it.
    for declared in [62_500_000, 2_596_000_000_u64] {
        for points in [1, 2, 3, 5, 100] {
            let said = format!(r#""frequency":{declared},"assumed":true"#);
            let made = of_62_5_mhz("cntvct", &said, points);
            let shown = text(&run(&["report", "--json", path(&made)]).stdout);
            let mut unknown = 0;
            for event in shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
                let Some(truth) = event["fields"]["lba"].as_i64() else { continue };
                let error = (event["ts_ns"].as_i64().unwrap() - START_NS - truth).abs();
                match event["bound_ns"].as_i64() {
                    None => unknown += 1,
                    Some(bound) => assert!(error <= bound, "{declared}, {points}: {error} {event}"),
                }
            }
            let text = text(&run(&["clock", path(&made)]).stdout);
            assert!(text.contains("guest CNTVCT (clock 1), all clients"), "{text}");
            let (is_known, rate) = match (points, declared) {
                (1, _) => (false, "which the points do not prove"),
                (100, 62_500_000) => (true, "assumed 62,500,000 Hz; the points allow:\n"),
                (100, _) => (true, "declared 2,596,000,000 Hz. The points contradict that"),
                _ => continue,
            };
            assert!(text.contains(rate), "{text}");
            assert_eq!(unknown == 0, is_known, "{declared}, {points}: {unknown}");
            assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}");
        }
    }
}

#[test]
fn a_counter_has_its_own_name() {
    for (kind, name) in [("tsc", "TSC"), ("cntvct", "CNTVCT"), ("counter", "counter")] {
        let made = of_62_5_mhz(kind, r#""frequency":62500000"#, 2);
        for command in ["clock", "stat"] {
            let text = text(&run(&[command, path(&made)]).stdout);
            assert!(text.contains(&format!("guest {name} (clock 1)")), "{text}");
        }
    }
}

/// Returns the bounds at half of the readings and at all, of `clock` and of `stat`.
fn bounds(dir: &str) -> [(Value, Value); 2] {
    let json = |args: &[&str]| -> Value { serde_json::from_slice(&run(args).stdout).unwrap() };
    let clock = &json(&["clock", "--json", dir])["sessions"][0]["clocks"][0]["bound_ns"];
    let stat = &json(&["stat", "--json", dir])["clocks"][0];
    let of = |value: &Value, half: &str, all: &str| (value[half].clone(), value[all].clone());
    [of(clock, "p50", "max"), of(stat, "typical_ns", "bound_ns")]
}

#[test]
fn stat_has_the_bounds_of_clock() {
    // The points of one client are handled later than those of the other one.
    let mut made = Made::new();
    for (number, late) in [(0, 1_000), (1, 300_000)] {
        let (mut host, mut ring) = (Packet::host(number), Packet::guest(number));
        for point in 1..50 {
            let time = point * 1_000_000 + u64::from(number) * 100_000;
            host = host.point(time + late, number, point as u32, GUEST_BASE + time, point);
            ring = ring.event(time + 2 * late, DISK_READ, &[point, 0]);
        }
        made = made
            .stream(&format!("guest-{number}"), &[Packet::guest(number), ring])
            .stream(&format!("host-{number}"), &[Packet::host(number), host]);
    }

    let [clock, stat] = bounds(path(&made));

    assert!(clock.1.as_u64().unwrap() >= 300_000, "{clock:?}");
    assert_eq!(stat, clock);
}

#[test]
fn a_kernels_trace_of_another_boot_is_not_used_and_named() {
    let made = stopped();
    let before = text(&run(&["clock", path(&made)]).stdout);
    let write = |boot: &str, pages: &[Page]| {
        let (id, data) = trace_dat::recorded(boot, 0);
        let dat = TraceDat::new("x86-tsc").cpu(pages).option(id, data);
        std::fs::write(made.path().join("kernel.dat"), dat.version_7()).unwrap();
    };
    let clock = || text(&run(&["clock", path(&made)]).stdout);
    write(OTHER_BOOT, &[Page::at(2_050).mmio(0, 7, 1)]);

    let found = clock();
    let added = found.strip_prefix(&before).unwrap();
    assert!(added.starts_with("  the kernel's events are not used: "), "{added}");
    assert!(added.contains("kernel.dat") && added.contains("boot"), "{added}");
    let out = run(&["clock", "--json", path(&made)]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(json["sessions"][0]["kernel_error"].is_string(), "{json}");

    // Of the same boot, but of other threads.
    write(BOOT, &[Page::at(2_050).mmio(0, 7, 1)]);
    assert_eq!(clock(), format!("{before}  kernel.dat has no exit of a reference point\n"));
}

#[test]
fn a_kernels_trace_in_another_directory_limits_clocks_as_one_inside_does() {
    let made = machine(Kind::Steady, 1, Kernel::All).made;
    let trace = made.path().join("kernel.dat");
    let shown = |command: &[&str], others: &[&str]| {
        let out = run(&[command, &[path(&made)], others].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        let shown = text(&out.stdout);
        // Sources have the session's name if there are several.
        let of_guest = shown.lines().filter(|line| line.contains("disk_read"));
        let bounds = of_guest.map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            (
                value["ts_ns"].clone(),
                value["bound_ns"].clone(),
                value["regions"][0]["bound_ns"].clone(),
            )
        });
        bounds.collect::<Vec<_>>()
    };
    let commands: [&[&str]; 2] = [
        &["report", "--json", "--client", "0", "-e", "disk_read"],
        &["regions", "--json", "--between", "disk_read", "disk_read"],
    ];
    let inside = commands.map(|command| shown(command, &[]));
    let [recorder, of_other_boot] = [BOOT, OTHER_BOOT].map(|boot| Made::of_boot(Some(boot)));
    std::fs::copy(&trace, recorder.path().join("kernel.dat")).unwrap();
    std::fs::rename(&trace, made.path().join("moved.dat")).unwrap();
    let moved = made.path().join("moved.dat");

    let without = commands.map(|command| shown(command, &[path(&of_other_boot)]));
    let in_session = commands.map(|command| shown(command, &[path(&recorder)]));
    let alone = commands.map(|command| shown(command, &[moved.to_str().unwrap()]));

    assert!(inside[0].len() > 50 && inside[1].len() == 1, "{inside:?}");
    assert_ne!(without, inside);
    assert_eq!(in_session, inside);
    assert_eq!(alone, inside);
    let used = |others: &[&str]| {
        let out = run(&[&["clock", "--json", path(&made)], others].concat());
        let found: Value = serde_json::from_slice(&out.stdout).unwrap();
        found["sessions"][0]["kernel"]["used"].as_u64()
    };
    assert!(used(&[path(&recorder)]).unwrap() > 50);
    assert_eq!(used(&[]), None);
}

#[test]
fn the_kernels_events_of_a_real_guest_agree_with_its_points() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(&["demo", "--kernel", "--json", "--out", out.to_str().unwrap()]);
    let said = text(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    if !said.contains("(by tracefs)") {
        capability::missing("tracefs", said);
        return;
    }
    let clock = || -> Value {
        let out = run(&["clock", "--json", out.to_str().unwrap()]);
        serde_json::from_slice::<Value>(&out.stdout).unwrap()["sessions"][0].clone()
    };
    let with = clock();
    let [of_clock, of_stat] = bounds(out.to_str().unwrap());
    assert_eq!(of_stat, of_clock);
    std::fs::remove_file(out.join("kernel.dat")).unwrap();
    let without = clock();

    let count = |value: &Value| value.as_u64().unwrap();
    let (used, left_out) = (&with["kernel"]["used"], &with["kernel"]["left_out"]);
    assert!(said.contains("none lost"), "{said}");
    // Two times of each of 2,000 points. A few events may be missing without a trace.
    assert!(count(used) >= 3_800, "{with}");
    assert!(count(left_out) * 100 <= count(used), "{with}");
    assert_eq!(without["kernel"], Value::Null);
    let p50 = |session: &Value| count(&session["clocks"][0]["bound_ns"]["p50"]);
    assert!(p50(&with) < p50(&without), "{with} {without}");
    capability::used("kvm");
    capability::used("tracefs");
}

/// Makes a session with a point every 100 us of each of two clients. The clocks are the host's, less 995 us.
fn steady() -> Made {
    let mut made = Made::new();
    for client in [0, 1] {
        let (mut ring, mut thread) = (Packet::guest(client), Packet::host(client));
        for point in 0..100 {
            let guest = 1_000_000 + point * 100_000;
            thread = thread.point(guest + 5_000, client, point as u32, GUEST_BASE + guest, point);
            ring = ring.event(guest + 9_000, DISK_READ, &[point, 0]);
        }
        made = made
            .stream(&format!("guest-{client}"), &[Packet::guest(client), ring])
            .stream(&format!("host-{client}"), &[Packet::host(client), thread]);
    }
    made
}

#[test]
fn a_tsc_that_the_vmm_gave_is_used_and_shown_unless_points_contradict_it() {
    let tsc = |client: &str, offset: i64| {
        format!(r#"{{"epoch":0,"client":{client},"offset":{offset},"multiplier":1,"shift":0}}"#)
    };
    let made = steady();
    // Client 1's is 6 us too early. That of epoch 1 is of no clock.
    let other = r#"{"epoch":1,"offset":7,"multiplier":1,"shift":0}"#;
    made.tell(&[&*tsc("null", -995_000), &tsc("1", -989_000), other].join(","));

    let out = run(&["clock", path(&made)]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    let out = text(&out.stdout);
    for expected in [
        "    the VMM says host - 995,000 ticks; none of the 200 limits of\n",
        "1 client contradicts it: times are by it. A constant\n",
        "offset could be 4,000 ns earlier or 5,000 ns later\n",
        "    the VMM says host - 989,000 ticks for client 1: not used.\n",
        "100 of 200 limits contradict it, by 2,001 ns\n",
        "at most: raw 1014000 was not before\n",
        "0.001005000 s of the session\n",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    for line in out.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }

    let out = run(&["clock", "--json", path(&made)]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let [first, second] = &found["sessions"][0]["guest_tscs"].as_array().unwrap()[..] else {
        panic!("{found}")
    };
    assert_eq!((&first["client"], &first["is_used"]), (&0.into(), &true.into()));
    assert_eq!((&second["client"], &second["is_used"]), (&1.into(), &false.into()));
    assert_eq!((&second["contradicting"], &second["limits"]), (&100.into(), &200.into()));
    assert_eq!(
        (&second["worst"]["by_ns"], &second["worst"]["raw"]),
        (&2_001.into(), &1_014_000.into())
    );
}

/// Returns the part of `hypertrace clock` that begins with this title.
fn part(made: &Made, title: &str) -> String {
    let out = text(&run(&["clock", path(made)]).stdout);
    let is_title = |line: &&str| line.starts_with(&format!("    {title} "));
    let mut lines = out.lines().skip_while(|line| !is_title(line));
    let first = lines.next().unwrap_or_default().trim_start_matches("    ");
    let rest = lines.map_while(|line| line.strip_prefix("                 "));
    [first].into_iter().chain(rest).collect::<Vec<_>>().join(" ")
}

#[test]
fn distances_of_points_are_by_the_vmms_word_where_times_are() {
    let made = steady();
    made.tell(r#"{"epoch":0,"offset":-995000,"multiplier":1,"shift":0}"#);

    let found = part(&made, "a point");

    let expected = "handled by the host 5,000 ns after the guest's reading; the next reading is \
                    4,000 ns later (medians, by the times that reports show)";
    assert!(found.ends_with(expected), "{found}");
}

#[test]
fn with_the_kernels_events_a_point_reaches_the_kernel_and_jumps_are_missed_as_without() {
    let made = machine(Kind::Steady, 1, Kernel::All).made;
    let [point, jumps] = ["a point", "jumps"].map(|title| part(&made, title));
    std::fs::remove_file(made.path().join("kernel.dat")).unwrap();
    let without = ["a point", "jumps"].map(|title| part(&made, title));

    assert!(point.contains(" reaches the host's kernel "), "{point}");
    assert!(point.contains("for points without an exit in kernel.dat"), "{point}");
    assert!(
        jumps.ends_with("hold all the same (kernel.dat does not make this smaller)"),
        "{jumps}"
    );
    assert!(without[0].contains(" is handled by the host "), "{without:?}");
    assert!(without[1].ends_with(" may be missed, and the errors above hold all the same"));
}

#[test]
fn errors_hold_for_missed_jumps_of_the_least_usual_width_of_a_client() {
    // Client 0 is exact at first, client 1 is inexact later: the map of both is inexact at most readings.
    let mut made = Made::new();
    for (client, points, late) in [(0, 1..20, 1_000), (1, 20..200, 300_000)] {
        let (mut host, mut ring) = (Packet::host(client), Packet::guest(client));
        for point in points {
            let time = point * 1_000_000;
            host = host.point(time + late, client, point as u32, GUEST_BASE + time, point);
            ring = ring.event(time + 2 * late, DISK_READ, &[point, 0]);
        }
        made = made
            .stream(&format!("guest-{client}"), &[Packet::guest(client), ring])
            .stream(&format!("host-{client}"), &[Packet::host(client), host]);
    }

    let out = run(&["clock", "--json", path(&made)]);
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let jumps = part(&made, "jumps");

    let clock = &found["sessions"][0]["clocks"][0];
    assert!(clock["usual_width_ns"].as_u64().unwrap() > 100_000, "{clock}");
    let room = clock["room_for_jumps_ns"].as_u64().unwrap();
    assert!((2_000..5_000).contains(&room), "{clock}");
    assert!(jumps.starts_with("jumps        none found; one of less than "), "{jumps}");
}

#[test]
fn a_rate_beyond_the_limits_for_a_while_is_told_beside_the_jump_that_it_counts_as() {
    let mut made = Made::with_json(&with_boot(&json(&clocks(), EVENTS, "[]"), Some(BOOT)));
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(0));
    for point in 1..200_u64 {
        let host = point * 1_000_000;
        // 1,700 ppm fast for 52 ms.
        let guest = host + point.clamp(60, 112).saturating_sub(60) * 1_700;
        thread = thread.point(host + 5_000, 0, point as u32, GUEST_BASE + guest, point);
        ring = ring.event(guest + 10_000, DISK_READ, &[point, 0]);
    }
    made = made.stream("guest-0", &[Packet::guest(0), ring]);
    made = made.stream("host-0", &[Packet::host(0), thread]);

    let out = text(&run(&["clock", path(&made)]).stdout);
    let json = run(&["clock", "--json", path(&made)]);

    assert!(out.contains(" ppm fast for "), "{out}");
    assert!(
        out.contains("assumed\n        to be within 1,000 ppm, so this counts as a jump"),
        "{out}"
    );
    let found: Value = serde_json::from_slice(&json.stdout).unwrap();
    let jump = &found["sessions"][0]["clocks"][0]["first_jumps"][0];
    assert!((1_000.0..1_700.0).contains(&jump["measured_ppm"].as_f64().unwrap()), "{jump}");
    assert!(jump["measured_ns"].as_u64().unwrap() < 54_000_000, "{jump}");
}

#[test]
fn a_rate_by_the_points_is_told_from_the_declared_one() {
    let scaled = machine(Kind::Scaled, 1, Kernel::None).made;
    // The mean rate is 2,000 ppm lower.
    let stopped = stopping(15_000_000, 1, 30_000);

    let [scaled, stopped] = [&scaled, &stopped].map(|made| part(made, "rate"));

    let expected = "rate         declared 2,600,000,000 Hz. The points contradict that. Assumed to be within \
                    1,000 ppm of the points' mean: 2,09";
    assert!(scaled.starts_with(expected), "{scaled}");
    // A guest that is stopped again and again has the declared rate or a lower one.
    let expected = "The points contradict that, or the guest is stopped now and then: the errors below \
                    allow for both. Assumed to be within 1,000 ppm of the points' mean: ";
    assert!(stopped.contains(expected), "{stopped}");
}

#[test]
fn times_by_the_vmms_word_are_exact_and_their_bound_is_that_of_the_points() {
    let times = |made: &Made| {
        let out = run(&["report", "--json", "--client", "0", "-e", "disk_read", path(made)]);
        let shown = text(&out.stdout);
        let events = shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let times = events.map(|event| {
            let number = event["fields"]["lba"].as_i64().unwrap();
            let truth = START_NS + 1_009_000 + number * 100_000;
            (event["ts_ns"].as_i64().unwrap() - truth, event["bound_ns"].as_i64().unwrap())
        });
        times.collect::<Vec<_>>()
    };
    let made = steady();
    let before = times(&made);

    made.tell(r#"{"epoch":0,"offset":-995000,"multiplier":1,"shift":0}"#);
    let after = times(&made);

    assert_eq!(after.len(), 100);
    for ((error, bound), (own, least)) in before.into_iter().zip(after) {
        assert_eq!(own, 0);
        // It is away from the middle by as much as the middle is from the truth.
        let away = least - bound - error.abs();
        assert!(error.abs() > 100 && away.abs() <= 100, "{error}: {bound} {least}");
    }
}

#[test]
fn what_kvm_adds_to_the_tsc_of_a_real_guest_is_told_and_a_false_offset_is_not_used() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(&["demo", "--json", "--out", out.to_str().unwrap()]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let tscs = || -> Vec<Value> {
        let out = run(&["clock", "--json", out.to_str().unwrap()]);
        let found: Value = serde_json::from_slice(&out.stdout).unwrap();
        found["sessions"][0]["guest_tscs"].as_array().unwrap().clone()
    };
    let told = tscs();
    if told.is_empty() {
        capability::missing("the TSC offset of a vCPU", "needs Linux 5.16, or KVM scales the TSC");
        return;
    }
    assert!(told.iter().all(|tsc| tsc["is_used"] == true), "{told:?}");
    capability::used("kvm");

    // A millisecond less than KVM's.
    let file = out.join("session.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for tsc in json["guest_tscs"].as_array_mut().unwrap() {
        let offset = tsc["offset"].as_i64().unwrap();
        tsc["offset"] = (offset - 2_500_000).into();
    }
    std::fs::write(&file, json.to_string()).unwrap();
    for tsc in tscs() {
        assert_eq!(tsc["is_used"], false, "{tsc}");
        assert!(tsc["worst"]["by_ns"].as_u64().unwrap() > 100_000, "{tsc}");
    }
}

#[test]
fn a_clock_without_points_has_no_error_to_show() {
    let made = Made::new()
        .stream("guest-0", &[Packet::guest(0), Packet::guest(0).event(5, DISK_READ, &[1, 2])]);
    let out = text(&run(&["clock", path(&made)]).stdout);
    assert!(out.contains("offset unknown: there are no reference points"), "{out}");

    // Commits, and events of the 2016 interface in a ring, count as points.
    let streams = r#"[{"domain":"guest","client":0,"clock":1,"reference_points":3}]"#;
    let made = Made::with_json(&with_boot(&json(&clocks(), EVENTS, streams), Some(BOOT)));
    let records = Packet::guest(0).flagged(5, DISK_READ, 1, &[1, 2], 0);
    let made = made.stream("guest-0", &[Packet::guest(0), records]);
    let out = text(&run(&["clock", path(&made)]).stdout);
    assert!(out.contains("no reference points that the host answered.\n    3 records"), "{out}");
    assert!(text(&run(&["stat", path(&made)]).stdout).contains("unknown, no point was answered"));

    // Beside a client with points, it has that one's error.
    let made =
        stopped().stream("guest-1", &[Packet::guest(1), Packet::guest(1).event(5, 16, &[1, 2])]);
    let out = text(&run(&["clock", path(&made)]).stdout);
    let expected = "  clock 1: 1 client without reference points;\n    their error is as above if ";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn bad_input_is_an_error_that_names_it() {
    let made = Made::with_json(&with_boot(&json(&clocks(), EVENTS, "[]"), Some("no-uuid\\u001b")));
    let out = run(&["clock", path(&made)]);
    assert_eq!(out.status.code(), Some(2));
    assert!(
        text(&out.stderr).contains("session.json: expected a boot_id"),
        "{}",
        text(&out.stderr)
    );
    assert!(!text(&out.stderr).contains('\u{1b}'));
    let made = steady();
    made.tell(r#"{"epoch":0,"offset":0,"multiplier":0,"shift":0}"#);
    let out = run(&["clock", path(&made)]);
    assert_eq!(out.status.code(), Some(2));
    let said = text(&out.stderr);
    assert!(said.contains("session.json: expected a TSC of a guest with a multiplier"), "{said}");
    let out = run(&["clock", "/nonexistent"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(run(&["clock"]).status.code(), Some(2));
}
