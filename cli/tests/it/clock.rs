//! Clocks in `hypertrace info`, and sessions of one or several machines on one timeline.

use hypertrace_abi::clock::Reason;
use hypertrace_test_support::{guest_mode, machine, made, trace_dat};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::{capability, kvm};
use machine::{Kernel, Kind, machine};
use made::{
    BOOT, DISK_READ, EVENTS, GHZ, GUEST_BASE, Made, OTHER_BOOT, Packet, START_NS, VCPU_EXIT, clock,
    clocks, json, with_boot,
};
use serde_json::Value;
use std::path::Path;
use trace_dat::{Page, TraceDat};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Makes a session of a host whose counter had the value `base` at `unix_ns` after the start, with events at
/// the raw values `raw`.
fn host(boot: Option<&str>, base: u64, unix_ns: i64, raw: &[u64]) -> Made {
    let clocks = format!("[{}]", clock(0, "host", 0, GHZ, base, START_NS + unix_ns));
    let made = Made::with_json(&with_boot(&json(&clocks, EVENTS, "[]"), boot));
    let events = raw
        .iter()
        .fold(Packet::host(0), |packet, raw| packet.event(raw - base, VCPU_EXIT, &[*raw]));
    made.stream("host-0", &[Packet::host(0), events])
}

#[test]
fn sessions_of_one_boot_are_merged_by_raw_ticks_whatever_their_anchors_say() {
    // The second anchor is 700 ns too early, and the events are 100 ns apart.
    let first = host(Some(BOOT), 1_000, 0, &[2_000, 2_200, 2_400]);
    let second = host(Some(BOOT), 1_500, 500 - 700, &[2_100, 2_300, 2_500]);
    let commands = ["report --json S T", "report --json T S", "info S T"];
    golden("one_boot", HYPERTRACE.transcript(&[first, second], &commands));
}

#[test]
fn the_error_of_another_machine_or_boot_is_unknown() {
    let first = host(Some(BOOT), 1_000, 0, &[2_000]);
    let [other, unknown] = [Some(OTHER_BOOT), None].map(|boot| host(boot, 1_000, 0, &[2_100]));
    let commands = ["report --json S T", "info S T", "info --json S T"];
    let mut shown = HYPERTRACE.transcript(&[&first, &other], &commands);
    shown += &HYPERTRACE.transcript(&[&first, &unknown], &commands);
    // The error of kernel events in a session of another boot is unknown, too.
    let second = host(Some(OTHER_BOOT), 1_000, 0, &[]);
    let dat = TraceDat::new("x86-tsc")
        .cpu(&[Page::at(2_050).mmio(0, 7, 1)])
        .option(trace_dat::recorded(OTHER_BOOT, 0));
    second.kernel(&dat);
    shown += &HYPERTRACE.transcript(&[&first, &second], &["report --json S T", "report --json T"]);
    // The errors of two sessions are also unknown if neither session names its boot. The error of one session
    // alone stays known.
    let another = host(None, 1_000, 0, &[2_000]);
    let commands = ["report --json S T", "report --json S"];
    shown += &HYPERTRACE.transcript(&[&another, &unknown], &commands);
    golden("other_boot", shown);
}

#[test]
fn an_offset_by_hand_places_a_session_with_the_bound_that_it_has() {
    let first = host(Some(BOOT), 1_000, 0, &[2_000, 2_200]);
    // The second anchor is 150 ns too early.
    let second = host(Some(OTHER_BOOT), 1_000, -150, &[2_100]);
    let commands = ["report --json S T@150ns+-30ns", "report --json S T@150ns", "report S@5ns+-x"];
    golden("offset", HYPERTRACE.transcript(&[first, second], &commands));
}

/// Makes a session with a point every 100 us, whose guest clock loses a millisecond after the 50th point.
fn stopped() -> Made {
    stopping(100_000, 50, 1_000_000)
}

/// Makes a session with 100 points at this interval in ns: the host sees each point after 5 us, and the guest
/// continues 5 us later. Every `every` points, the guest's clock loses `lost` ns.
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
    // The certain part of the jump is 1 ms minus two times 5 us.
    let commands = ["info S", "info --json S"];
    golden("jumps", HYPERTRACE.transcript(&[stopped()], &commands));
}

/// Makes a session with `points` points, one each millisecond, of a guest whose counter has 62.5 MHz. The
/// host sees each point after 5 us. `kind` is the counter's name, and `declared` is what the session declares
/// about the counter.
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
        // The event's argument is the true time.
        for time in [ms(1), ms(40)] {
            ring = ring.event(time / 16, DISK_READ, &[time, 0]);
        }
    }
    made = made.stream("guest-0", &[Packet::guest(0), ring]);
    made.stream("host-0", &[Packet::host(0), thread])
}

#[test]
fn a_rate_that_is_only_assumed_gives_no_wrong_time_with_a_small_bound() {
    // The rate of the guest's own counter, and the rate of the host's counter.
    for declared in [62_500_000, 2_596_000_000_u64] {
        for points in [1, 2, 3, 5, 100] {
            let said = format!(r#""frequency":{declared},"assumed":true"#);
            let made = of_62_5_mhz("cntvct", &said, points);
            let mut unknown = 0;
            for event in HYPERTRACE.report(made.path()) {
                let Some(truth) = event.number("lba") else { continue };
                let error = (event.ts_ns - START_NS - truth as i64).unsigned_abs();
                match event.bound_ns {
                    None => unknown += 1,
                    Some(bound) => {
                        assert!(error <= bound, "{declared}, {points}: {error} {event:?}")
                    }
                }
            }
            let text = run(HYPERTRACE.command(["info"]).arg(made.path())).stdout;
            assert!(text.contains("guest CNTVCT (clock 1), all sources"), "{text}");
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
    let sessions =
        ["tsc", "cntvct", "counter"].map(|kind| of_62_5_mhz(kind, r#""frequency":62500000"#, 2));
    let commands = ["info S", "info T", "info U"];
    golden("names", HYPERTRACE.transcript(&sessions, &commands));
}

#[test]
fn why_a_guest_has_its_clock_is_told_in_its_words() {
    // `info` omits a reason that only a later version knows, and `info --json` shows its name.
    let names = Reason::NAMES.iter().map(|(_, name)| *name).chain(["later"]);
    let shown = names.map(|name| {
        let session = of_62_5_mhz("tsc", &format!(r#""reason":"{name}","frequency":62500000"#), 2);
        let json = HYPERTRACE.info(session.path());
        assert_eq!(json["clocks"][0]["reason"], name);
        let text = run(HYPERTRACE.command(["info"]).arg(session.path())).ok();
        let why = text.lines().find_map(|line| line.trim().strip_prefix("chosen "));
        format!("{name}: {}\n", why.unwrap_or("nothing").trim())
    });
    golden("reasons", shown.collect());
}

#[test]
fn a_kernels_trace_of_another_boot_is_not_used_and_named() {
    let made = stopped();
    let write = |boot: &str| {
        let page = Page::at(2_050).mmio(0, 7, 1);
        let dat = TraceDat::new("x86-tsc").cpu(&[page]).option(trace_dat::recorded(boot, 0));
        made.kernel(&dat);
    };
    write(OTHER_BOOT);
    let mut shown = HYPERTRACE.transcript(&[&made], &["info S", "info --json S"]);
    // The recording has the same boot, but other threads.
    write(BOOT);
    shown += &HYPERTRACE.transcript(&[&made], &["info S"]);
    golden("kernel_of_other_boot", shown);
}

#[test]
fn a_kernels_trace_in_another_directory_limits_clocks_as_one_inside_does() {
    let made = machine(Kind::Steady, 1, Kernel::All).made;
    let trace = made.path().join("kernel.dat");
    let shown = |command: &[&str], others: &[&Path]| {
        let ran = run(HYPERTRACE.command(command).arg(made.path()).args(others));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let shown = ran.stdout;
        // If there are several sessions, sources have the session's name.
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
        &["report", "--json", "--client", "0", "--event", "disk_read"],
        &["regions", "--json", "--between", "disk_read", "disk_read"],
    ];
    let inside = commands.map(|command| shown(command, &[]));
    let [recorder, of_other_boot] = [BOOT, OTHER_BOOT].map(|boot| Made::of_boot(Some(boot)));
    std::fs::copy(&trace, recorder.path().join("kernel.dat")).unwrap();
    std::fs::rename(&trace, made.path().join("moved.dat")).unwrap();
    let moved = made.path().join("moved.dat");

    let without = commands.map(|command| shown(command, &[of_other_boot.path()]));
    let in_session = commands.map(|command| shown(command, &[recorder.path()]));
    let alone = commands.map(|command| shown(command, &[&moved]));

    assert!(inside[0].len() > 50 && inside[1].len() == 1, "{inside:?}");
    assert_ne!(without, inside);
    assert_eq!(in_session, inside);
    assert_eq!(alone, inside);
    let used = |others: &[&Path]| {
        let mut command = HYPERTRACE.command(["info", "--json"]);
        let ran = run(command.arg(made.path()).args(others));
        let found: Value = serde_json::from_str(&ran.stdout).unwrap();
        found["sessions"][0]["kernel_limits"]["used"].as_u64()
    };
    assert!(used(&[recorder.path()]).unwrap() > 50);
    assert_eq!(used(&[]), None);
}

#[test]
fn the_kernels_events_of_a_real_guest_agree_with_its_points() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(HYPERTRACE.command(["demo", "--kernel", "--json", "-o"]).arg(&out));
    let said = ran.stderr;
    assert_eq!(ran.code, Some(0), "{said}");
    if !said.contains("(by tracefs)") {
        capability::missing("tracefs", said);
        return;
    }
    let with = HYPERTRACE.info(&out);
    std::fs::remove_file(out.join("kernel.dat")).unwrap();
    let without = HYPERTRACE.info(&out);

    let count = |value: &Value| value.as_u64().unwrap();
    let (used, left_out) = (&with["kernel_limits"]["used"], &with["kernel_limits"]["left_out"]);
    assert!(said.contains("none lost"), "{said}");
    // Each of the 2,000 points limits the clock twice: the exit at the point gives a limit, and so does the
    // next entry. The kernel may lose a few events without reporting the loss.
    assert!(count(used) >= 3_800, "{with}");
    assert!(count(left_out) * 100 <= count(used), "{with}");
    assert_eq!(without["kernel_limits"], Value::Null);
    let p50 = |session: &Value| count(&session["clocks"][0]["bound_ns"]["p50"]);
    assert!(p50(&with) < p50(&without), "{with} {without}");
    capability::used("kvm");
    capability::used("tracefs");
}

/// Makes a session with a point every 100 us of each of two clients. Each client's clock is the host's clock
/// less 995 us.
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
    // Client 1's offset is 6 us too early. The offset of epoch 1 belongs to no clock.
    let other = r#"{"epoch":1,"offset":7,"multiplier":1,"shift":0}"#;
    made.tell(&[&*tsc("null", -995_000), &tsc("1", -989_000), other].join(","));
    golden("tscs", HYPERTRACE.transcript(&[made], &["info S", "info --json S"]));
}

#[test]
fn kvms_tsc_is_used_and_shown_unless_points_contradict_it_or_another_fits() {
    let made = steady();
    let text = std::fs::read_to_string(made.path().join("session.json")).unwrap();
    std::fs::write(made.path().join("session.json"), with_boot(&text, Some(BOOT))).unwrap();
    let mut shown = String::new();
    for words in [
        // The offset of this guest, and the offset of a VM that began a millisecond later.
        "31-9:-995000:1:0:1000000:900000000,77-9:-1995000:1:0:1000000:900000000",
        "77-9:-1995000:1:0:1000000:900000000",
        // Both offsets lie within the bounds that the points set.
        "31-9:-995000:1:0:1000000:900000000,77-9:-994900:1:0:1000000:900000000",
    ] {
        let trace = TraceDat::new("x86-tsc").option(trace_dat::recorded_with_tscs(BOOT, words));
        let trace = trace.cpu(&[]).version_7();
        std::fs::write(made.path().join("kernel.dat"), trace).unwrap();
        shown += &HYPERTRACE.transcript(&[&made], &["info S", "info --json S"]);
    }
    golden("kvm_tscs", shown);
}

#[test]
fn events_of_a_guests_kernel_show_the_thread_of_each_cpu_or_refute_kvms_tsc() {
    let whole = guest_mode::recorded();
    let words = guest_mode::word(guest_mode::OFFSET + 1_000_000);
    let wrong = guest_mode::Recorded { words, ..whole.clone() };
    // In this recording, one CPU of the guest has few events, and the threads of both vCPUs were in guest
    // mode at these events.
    let mut short = whole.clone();
    short.guest.truncate(1);
    short.vcpus[1] = short.vcpus[0].clone();
    short.vcpus[1].host.iter_mut().for_each(|seen| seen.2 = guest_mode::TIDS[1]);
    let made = [whole, wrong, short].map(|recorded| recorded.made());
    let commands = ["info S", "info --json S", "info T", "info --json T", "info U"];
    golden("guest_mode", HYPERTRACE.transcript(&made, &commands));
}

#[test]
fn distances_of_points_are_by_the_vmms_word_where_times_are() {
    let made = steady();
    made.tell(r#"{"epoch":0,"offset":-995000,"multiplier":1,"shift":0}"#);
    golden("distances", HYPERTRACE.transcript(&[made], &["info S"]));
}

#[test]
fn with_the_kernels_events_a_point_reaches_the_kernel_and_jumps_are_missed_as_without() {
    let made = machine(Kind::Steady, 1, Kernel::All).made;
    let with = HYPERTRACE.transcript(&[&made], &["info S"]);
    std::fs::remove_file(made.path().join("kernel.dat")).unwrap();
    golden("kernel", with + &HYPERTRACE.transcript(&[&made], &["info S"]));
}

#[test]
fn errors_hold_for_missed_jumps_of_the_least_usual_width_of_a_client() {
    // Client 0 is exact and ends early. Client 1 is inexact and continues, so the map of both clients is
    // inexact at most readings.
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
    // The usual width comes from client 1, and the room for jumps comes from client 0.
    golden("widths", HYPERTRACE.transcript(&[made], &["info S", "info --json S"]));
}

#[test]
fn a_rate_beyond_the_limits_for_a_while_is_told_beside_the_jump_that_it_counts_as() {
    let mut made = Made::with_json(&with_boot(&json(&clocks(), EVENTS, "[]"), Some(BOOT)));
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(0));
    for point in 1..200_u64 {
        let host = point * 1_000_000;
        // The guest is 1,700 ppm fast for 52 ms.
        let guest = host + point.clamp(60, 112).saturating_sub(60) * 1_700;
        thread = thread.point(host + 5_000, 0, point as u32, GUEST_BASE + guest, point);
        ring = ring.event(guest + 10_000, DISK_READ, &[point, 0]);
    }
    made = made.stream("guest-0", &[Packet::guest(0), ring]);
    made = made.stream("host-0", &[Packet::host(0), thread]);
    golden("fast", HYPERTRACE.transcript(&[made], &["info S", "info --json S"]));
}

#[test]
fn a_rate_by_the_points_is_told_from_the_declared_one() {
    let scaled = machine(Kind::Scaled, 1, Kernel::None).made;
    // The mean rate is 2,000 ppm lower. A guest that is stopped again and again has the declared rate or a
    // lower rate.
    let stopped = stopping(15_000_000, 1, 30_000);
    golden("rates", HYPERTRACE.transcript(&[scaled, stopped], &["info S", "info T"]));
}

#[test]
fn times_by_the_vmms_word_are_exact_and_their_bound_is_that_of_the_points() {
    let times = |made: &Made| {
        let events = HYPERTRACE.report(made.path()).into_iter();
        let events = events
            .filter(|event| event.event == "disk_read" && event.source.starts_with("guest/0"));
        let times = events.map(|event| {
            let truth = START_NS + 1_009_000 + event.number("lba").unwrap() as i64 * 100_000;
            (event.ts_ns - truth, event.bound_ns.unwrap() as i64)
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
        // The offset that the VMM declares is true. So the bound grows by the earlier error, which is the
        // distance from the middle of the earlier bounds to the truth.
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
    run(HYPERTRACE.command(["demo", "--json", "-o"]).arg(&out)).ok();
    let tscs = || HYPERTRACE.info(&out)["guest_tscs"].as_array().unwrap().clone();
    let told = tscs();
    if told.is_empty() {
        capability::missing("the TSC offset of a vCPU", "needs Linux 5.16, or KVM scales the TSC");
        return;
    }
    assert!(told.iter().all(|tsc| tsc["is_used"] == true), "{told:?}");
    capability::used("kvm");

    // This offset is 2,500,000 ticks (about a millisecond) less than KVM's.
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
    let none = Made::new()
        .stream("guest-0", &[Packet::guest(0), Packet::guest(0).event(5, DISK_READ, &[1, 2])]);
    // Commits, and events of the 2016 interface in a ring, count as points.
    let streams = r#"[{"domain":"guest","client":0,"clock":1,"reference_points":3}]"#;
    let commits = Made::with_json(&with_boot(&json(&clocks(), EVENTS, streams), Some(BOOT)));
    let records = Packet::guest(0).flagged(5, DISK_READ, 1, &[1, 2], 0);
    let commits = commits.stream("guest-0", &[Packet::guest(0), records]);
    // A client without points has the error of a client of the same guest that has points.
    let beside =
        stopped().stream("guest-1", &[Packet::guest(1), Packet::guest(1).event(5, 16, &[1, 2])]);
    let commands = ["info S", "info T", "info U"];
    golden("no_points", HYPERTRACE.transcript(&[none, commits, beside], &commands));
}

#[test]
fn a_clock_of_which_a_restored_session_has_nothing_is_not_shown() {
    let host = clock(0, "host", 0, GHZ, 1_000_000, START_NS);
    let guests = [1, 2].map(|id| clock(id, "guest", id - 1, GHZ, GUEST_BASE, START_NS));
    let restored = Made::with_json(&json(&format!("[{host},{}]", guests.join(",")), EVENTS, "[]"));
    // The packets have the second clock, and the epoch after the restore.
    let packet = || Packet::new(1, 0, 2).with64(88, 1 << 32);
    let restored = restored.stream("guest-0", &[packet(), packet().event(5, DISK_READ, &[1, 2])]);

    let shown = run(HYPERTRACE.command(["info"]).arg(restored.path()));

    assert!(shown.stdout.contains("(clock 2)") && !shown.stdout.contains("(clock 1)"), "{shown:?}");
}

#[test]
fn bad_input_is_an_error_that_names_it() {
    let boot = Made::of_boot(Some("no-uuid\\u001b"));
    let tsc = steady();
    tsc.tell(r#"{"epoch":0,"offset":0,"multiplier":0,"shift":0}"#);
    let commands = ["info S", "info T", "info /nonexistent"];
    golden("bad_input", HYPERTRACE.transcript(&[boot, tsc], &commands));
}
