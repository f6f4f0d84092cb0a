//! The text that `hypertrace regions` prints for groups, errors and times. The tests write the sessions
//! themselves.

use hypertrace_test_support::cpus::{ASLEEP, Cpus, HARD, READY};
use hypertrace_test_support::trace_dat::Counted;
use hypertrace_test_support::two_kernels::World;
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::golden::golden;
use made::{Made, Packet};
use serde_json::Value;
use std::fs;
use std::path::Path;
use vcpu::Vcpu;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn regions(dir: &Path, args: &[&str]) -> Ran {
    run(HYPERTRACE.command(["regions"]).arg(dir).args(args))
}

/// Makes a session of a program with these events, whose regions begin every 1,000 ns.
fn program(events: &str, guest: impl Fn(Packet, u64) -> Packet) -> Made {
    let begin = Packet::new(1, 0, 0);
    let packet = (1..=10).fold(begin.clone(), |packet, n| guest(packet, n * 1_000));
    Made::of_programs(events).stream("guest-000-0000", &[begin, packet])
}

#[test]
fn a_chosen_region_has_the_cost_of_an_empty_one() {
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false},
        {"id":18,"schema":"empty_begin(id:u64)","reference_point":false},
        {"id":19,"schema":"empty_end(id:u64)","reference_point":false}]"#;
    let made = program(events, |packet, at| {
        let packet = packet.event(at, 16, &[at]).event(at + 500, 17, &[at]);
        packet.event(at + 600, 18, &[at]).event(at + 612, 19, &[at])
    });
    let commands = [
        "regions S --name read --json",
        "regions S --name read --csv",
        "regions S --name read --samples",
        "regions S --name read",
        "regions S --name read --name empty",
    ];
    golden("empty", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn regions_inside_others_are_shown_below_them() {
    let names =
        ["request", "parse", "look_up", "render", "reply", "parse_of_a_name_that_is_too_long"];
    let events = names.iter().zip((16..).step_by(2)).flat_map(|(name, id)| {
        [("begin", id), ("end", id + 1)].map(|(end, id)| {
            format!(r#"{{"id":{id},"schema":"{name}_{end}(id:u64)","reference_point":false}}"#)
        })
    });
    let events = format!("[{}]", Vec::from_iter(events).join(","));
    let made = program(&events, |packet, at| {
        let inside =
            [(18, 100, 200), (20, 210, 260), (22, 300, 600), (24, 610, 640), (26, 650, 653)];
        let packet = inside.iter().fold(packet.event(at, 16, &[at]), |packet, (id, from, to)| {
            packet.event(at + from, *id, &[at]).event(at + to, id + 1, &[at])
        });
        packet.event(at + 700, 17, &[at])
    });
    let commands = ["regions S", "regions S --name parse --name request --json"];
    golden("inside", HYPERTRACE.transcript(&[made], &commands));
}

/// Makes ten requests whose ends have a status, each with a `parse` inside.
fn requests() -> Made {
    let events = r#"[
        {"id":16,"schema":"request_begin(id:u64,path:str)","reference_point":false},
        {"id":17,"schema":"request_end(id:u64,status:u64)","reference_point":false},
        {"id":18,"schema":"parse_begin(id:u64)","reference_point":false},
        {"id":19,"schema":"parse_end(id:u64)","reference_point":false},
        {"id":20,"schema":"other(colour:u64)","reference_point":false}]"#;
    program(events, |packet, at| {
        let n = at / 1_000;
        let (path, status) =
            (["/a", "/b\u{1b}[2J"][n as usize % 2], [200, 404, 500][n as usize % 3]);
        let packet = packet.event_str(at, 16, &[n], path.as_bytes());
        let packet = packet.event(at + 10, 18, &[n]).event(at + 30, 19, &[n]);
        packet.event(at + 50 * n, 17, &[n, status])
    })
}

#[test]
fn a_filter_chooses_regions_and_names_what_is_wrong() {
    let made = requests();
    let commands = [
        "regions S --where status==500",
        "regions S --where status==500 --by path --json",
        "regions S --where duration_ns<100 --csv",
        "regions S --where status==501",
        "regions S --where status==501 --name request --json",
        "regions S --where staus==500",
        "regions S --where colour==1",
        "regions S --where event=='parse_begin'",
        "regions S --where status=500",
    ];
    golden("where", HYPERTRACE.transcript(&[&made], &commands));
    // An argument has at most 128 KiB.
    let many = vec!["status==500"; 8_000].join(" or ");
    let shown = |filter| regions(made.path(), &["--where", filter]).ok();
    assert_eq!(shown(&many), shown("status==500"));
}

#[test]
fn a_window_and_a_warm_up_choose_regions() {
    let commands = [
        "regions S --from 3us --until 0.000006000 --name request",
        "regions S --from 2023-11-14T22:13:20.000004Z --samples",
        "regions S --where duration!=20ns --csv",
        "regions S --until -1ns",
        "regions S --from 3",
    ];
    golden("window", HYPERTRACE.transcript(&[requests()], &commands));
}

#[test]
fn groups_are_in_a_table_and_sorted_by_its_columns() {
    let commands = [
        "regions S --by path --sort p99",
        "regions S --name request --by path --sort count",
        "regions S --sort total --csv",
        "regions S --sort name --csv",
        "regions S --sort slowest",
    ];
    golden("sorted", HYPERTRACE.transcript(&[requests()], &commands));
    let first = |key| {
        let shown = regions(requests().path(), &["--json", "--sort", key]).stdout;
        let json: Value = serde_json::from_str(&shown).unwrap();
        json["regions"][0]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        ["name", "count", "median", "p99", "total", "self"].map(first),
        ["parse", "parse", "request", "request", "request", "request"]
    );
}

#[test]
fn a_long_value_is_cut_in_the_table() {
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64,v:str)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let made = program(events, |packet, at| {
        let long = format!("\u{1b}{at}").repeat(30);
        packet.event_str(at, 16, &[at], long.as_bytes()).event(at + 9, 17, &[at])
    });

    let text = regions(made.path(), &["--by", "v"]).stdout;

    let table: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(table.len(), 1 + 2 * 10, "{text}");
    assert!(table.iter().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn an_unknown_name_or_field_is_answered_with_those_that_there_are() {
    let silent = program(
        r#"[{"id":16,"schema":"read_begin(id:u64)","reference_point":false}]"#,
        |packet, _| packet,
    );
    let commands = [
        "regions S --by pth",
        "regions S --by colour",
        "regions S --name parse --by status",
        "regions S --name reqest",
        "regions T",
    ];
    golden("unknown", HYPERTRACE.transcript(&[requests(), silent], &commands));
}

#[test]
fn what_threads_waited_for_is_named() {
    let own = (200, "own");
    let others = [(300, "hog"), (301, "\x1b[2Jpig"), (302, "cc1"), (303, "ld"), (201, "thread")];
    let mut machine = Cpus::new(2, &[own, (201, "thread")]);
    machine.switch(1, READY, others[0]).switch(0, READY, own);
    for round in 0..4 {
        let start = machine.now + 100;
        machine.at(start).begin(own.0, 0).at(start + 100).switch(0, READY, others[0]);
        for (n, other) in others.into_iter().enumerate().skip(1) {
            let now = machine.now + 100 * n as u64;
            machine.at(now).switch(0, READY, other);
        }
        let now = machine.now + 50;
        machine.at(now).switch(0, READY, own).at(now + 100).switch(0, ASLEEP, (0, "swapper"));
        match round {
            0 => machine.at(now + 300).timer(0, HARD, own),
            1 => machine.at(now + 500).handler(0, "nvme0q1", own),
            2 => machine.at(now + 400).softirq(0, 3, own),
            _ => machine.at(now + 1_000).wake(1, 0, own),
        };
        let now = machine.now + 10;
        machine.at(now).switch(0, READY, own).at(now + 100).end(own.0, 0);
    }
    let now = machine.now;
    machine.at(now + 100).switch(0, READY, others[0]);
    let made = machine.session();
    // The recording lacks a switch in the first region.
    made.kernel(&machine.trace_without(|all, cpu, number| {
        (all && cpu == 0 && number == 2).then_some(Counted(false))
    }));
    let commands = ["regions S", "regions S --json"];
    golden("whom", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_thread_that_changes_its_name_has_one_row_and_a_line_about_its_names() {
    let (own, other) = ((200, "own"), (301, "pig"));
    let mut machine = Cpus::new(1, &[own]);
    machine.switch(0, READY, own).at(1_100).begin(own.0, 0);
    for number in 0..80 {
        let thief = (300, &*Box::leak(format!("\x1b]0;x{number}").into_boxed_str()));
        let now = machine.now;
        machine.at(now + 100).switch(0, READY, thief).at(now + 300).switch(0, READY, own);
    }
    let now = machine.now;
    machine.at(now + 100).switch(0, READY, other).at(now + 200).switch(0, READY, own);
    machine.at(now + 300).end(own.0, 0).at(now + 400).switch(0, READY, other);
    let commands = ["regions S", "regions S --json", "regions S --path"];
    golden("renamed", HYPERTRACE.transcript(&[machine.made()], &commands));
}

#[test]
fn a_critical_path_of_a_guests_threads_has_the_parts_of_both_kernels() {
    let commands = ["regions S --path", "regions S --path --json --where id==3001"];
    golden("two_kernels", HYPERTRACE.transcript(&[World::new(3).made()], &commands));
}

#[test]
fn without_the_guests_kernel_the_time_of_a_guests_thread_is_at_most_that_of_its_vcpu() {
    let mut vcpu = Vcpu::rounds(0, 10, 5);
    vcpu.process = Some(50);
    let made = vcpu::session(std::slice::from_ref(&vcpu));
    made.kernel(&vcpu::trace(&[vcpu], |_| true));
    golden("at_most", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn waiting_inside_several_regions_is_said_once() {
    let own = (200, "own");
    let mut machine = Cpus::new(1, &[own]);
    machine.switch(0, READY, own).at(1_100).begin(own.0, 0).at(1_200).begin(own.0, 1);
    machine.at(2_000).switch(0, READY, (300, "hog")).at(3_000).switch(0, READY, (301, "pig"));
    machine.at(4_000).switch(0, READY, own).at(5_000).end(own.0, 1).at(5_100).end(own.0, 0);
    machine.at(5_200).switch(0, READY, (7, "last"));
    let made = machine.session();
    // The recording lacks the switch between the two other threads.
    made.kernel(
        &machine.trace_without(|all, _, number| (all && number == 2).then_some(Counted(false))),
    );
    golden("once", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn the_error_of_the_median_is_not_that_of_the_worst() {
    let made = vcpu::session(&[Vcpu::rounds(0, 200, 20)]);

    let json: Value = serde_json::from_str(&regions(made.path(), &["--json"]).stdout).unwrap();

    let group = &json["regions"][0];
    let bound = |value: &Value| value["bound_ns"].as_u64().unwrap();
    let [median, p99, slowest] =
        ["median", "p99", "slowest"].map(|name| bound(&group["breakdown"][name]));
    assert!(median < slowest && p99 <= slowest && slowest <= bound(group), "{group}");
    assert_eq!(bound(&group["total"]), bound(group));
    let text = regions(made.path(), &[]).stdout;
    let line = text.lines().find(|line| line.contains("error by the guest's clock")).unwrap();
    assert!(line.contains("at most") && line.contains("at p50") && line.contains("anywhere"));
}

#[test]
fn time_that_a_hypervisor_took_is_shown() {
    let vcpus = [Vcpu::rounds(0, 20, 5)];
    let made = vcpu::session(&vcpus);
    let shown = |stolen_ms| {
        let mut trace = vcpu::trace(&vcpus, |_| true);
        trace.options = vec![trace_dat::recorded_with_steal(made::BOOT, stolen_ms)];
        made.kernel(&trace);
        HYPERTRACE.transcript(&[&made], &["regions S", "regions S --json"])
    };
    golden("steal", shown(1_230) + &shown(0));
}

#[test]
fn columns_of_regions_during_which_a_hypervisor_took_time_are_marked() {
    let vcpus = [Vcpu::rounds(0, 20, 5)];
    let made = vcpu::session(&vcpus);
    let shown = |steals: &str| {
        let mut trace = vcpu::trace(&vcpus, |_| true);
        trace.options = vec![trace_dat::recorded_with_steals(made::BOOT, 10, steals)];
        made.kernel(&trace);
        let json: Value = regions(made.path(), &["--json"]).json();
        let group = &json["regions"][0];
        let of = |breakdown: &Value| breakdown["steal_regions"].as_u64().unwrap();
        let counts =
            [&group["breakdown"]["median"], &group["breakdown"]["slowest"], &group["total"]];
        (regions(made.path(), &[]).ok(), counts.map(of))
    };
    shown("");
    // A tick is a nanosecond here.
    let samples = regions(made.path(), &["--samples"]).ok();
    let number = |line: &str, at| line.split(',').nth(at).unwrap().parse::<i64>().unwrap();
    let samples = samples.lines().skip(1).map(|line| (number(line, 6), number(line, 7)));
    let samples: Vec<_> = samples.collect();
    let (begin, duration) = *samples.iter().max_by_key(|(_, duration)| *duration).unwrap();
    let tick = |ns: i64| ns - made::START_NS + vcpu::HOST_BASE as i64;
    let steal = |from, to| format!("{}-{}:10", tick(from), tick(to));

    let (text, counts) = shown(&steal(begin + duration / 2, begin + duration / 2 + 1));

    let header = text.lines().find(|line| line.contains("median*")).unwrap();
    let names: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(names, ["median*", "p99~", "slowest~", "all~"], "p99 of 20 is the slowest");
    assert_eq!(counts, [0, 1, 1]);
    let note = "~ this machine's CPUs had steal time while 1 of all 20 regions ran";
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(note), "{text}");
    let first = samples.iter().map(|(begin, _)| *begin).min().unwrap();
    let (text, counts) = shown(&steal(first - 10, first));
    assert!(!text.contains('~'), "{text}");
    assert_eq!(counts, [0; 3]);
}

#[test]
fn the_most_that_a_hypervisor_took_from_regions_is_that_of_their_cpu() {
    const MS: u64 = 1_000_000;
    let (own, idle) = ((200, "own"), (0, "swapper"));
    let mut machine = Cpus::new(2, &[own]);
    // The switch comes before the first region, so that the thread's CPU is known.
    machine.switch(0, READY, own).at(MS).switch(0, ASLEEP, idle);
    for (name, from, to) in [(0, 0, 0), (1, 1, 1), (2, 0, 1)] {
        let start = machine.now + MS;
        machine.at(start).wake(from, HARD, own).at(start + 10).switch(from, READY, own);
        machine.at(start + MS).begin(own.0, name).at(start + 30 * MS);
        if to != from {
            machine.switch(from, READY, idle).at(start + 31 * MS).switch(to, READY, own);
        }
        machine.at(start + 51 * MS).end(own.0, name).at(start + 52 * MS).switch(to, ASLEEP, idle);
    }
    let made = machine.session();
    let shown = |stolen: &str| {
        let mut trace = machine.trace();
        let (_, version) = trace.options.iter_mut().find(|(id, _)| *id == 9).unwrap();
        let text = String::from_utf8(version.clone()).unwrap();
        *version = format!("{}{stolen}\0", text.trim_end_matches('\0')).into_bytes();
        made.kernel(&trace);
        let json = regions(made.path(), &["--json"]).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        let groups = json["regions"].as_array().unwrap().clone();
        let ms = |group: &Value| Some(group["total"]["steal_at_most_ns"].as_u64()? / MS);
        let warnings = json["warnings"].to_string();
        (groups.iter().map(ms).collect::<Vec<_>>(), warnings)
    };
    let at = |ms| vcpu::HOST_BASE + ms * MS;
    let sum = format!("; stolen_ms=30; steals={}-{}:30", at(20), at(30));
    let of_cpu = format!("{sum},0:{}-{}:30", at(20), at(30));

    // `regions` shows how much steal time each region can have had at most. The first region: its time until
    // the rise ended, and one step of the counter. The second region: one step. The third region ran on both
    // CPUs, so all of the steal time can belong to this region.
    assert_eq!(shown(&of_cpu).0, [Some(37), Some(10), Some(40)]);
    let text = regions(made.path(), &["--name", "r1"]).stdout;
    assert!(text.contains("  at most 10.0ms of the time in the column all is steal time\n"));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("recorded: at most 40 ms."), "{text}");
    // Older recordings do not have the CPUs' counters.
    assert_eq!(shown(&sum).0, [Some(40); 3]);
    assert_eq!(shown("; stolen_ms=30").0, [Some(40); 3]);
    assert_eq!(shown("").0, [None; 3]);
    // The steal time is never more than the time on a CPU.
    assert_eq!(shown("; stolen_ms=18446744073709551615").0, [50, 50, 49].map(Some));
    let huge = u64::MAX;
    let hostile = [
        format!("4000000000:1-2:{huge},0:{huge}-{huge}:{huge},0:0-{huge}:{huge},0:0-{huge}:{huge}"),
        format!("1:{}-{}:10,1:{}-{}:10", at(1), at(90), at(2), at(80)),
    ];
    for hostile in hostile {
        let (most, warnings) = shown(&format!("; stolen_ms=900; steals={hostile}"));
        assert!(most.iter().all(|ms| ms.is_some_and(|ms| ms <= 50)), "{most:?}");
        assert!(!warnings.contains("hypervisor"), "{warnings}");
    }
    let bad =
        ["0:9-8:10".to_owned(), "0:1-2:x".into(), "::".into(), vec!["0:1-2:10"; 100_000].join(",")];
    for bad in bad {
        let (most, warnings) = shown(&format!("; stolen_ms=30; steals={bad}"));
        assert_eq!(most, [Some(40); 3]);
        assert!(warnings.contains("list of when a hypervisor took time is left out"), "{warnings}");
    }
}

#[test]
fn regions_outside_of_the_kernels_recording_are_said_with_what_to_do() {
    let vcpus = [Vcpu::rounds(0, 40, 5)];
    let made = vcpu::session(&vcpus);
    let shown = |from| {
        made.kernel(&vcpu::trace(&vcpus, |number| number >= from));
        HYPERTRACE.transcript(&[&made], &["regions S", "regions S --json"])
    };
    golden("not_recorded", shown(vcpu::kernel_events(&vcpus) / 2) + &shown(0));
}

#[test]
fn lines_are_80_columns_wide() {
    // The lines have large counts, long times, and all kinds of odd regions: regions that end twice, regions
    // without an end, and regions that end in another order.
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64,v:str)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let made = program(events, |packet, at| {
        let packet = packet.event_str(at, 16, &[at], b"=1").event_str(at + 1, 16, &[at], b"a");
        let packet = packet.event(at + 2, 17, &[at]).event(at + 3, 17, &[at]);
        let packet = packet.event_str(at + 4, 16, &[at + 1], b"").event_str(at + 5, 16, &[1], b"b");
        packet.event_str(at + 9, 16, &[at + 2], b"=1+1").event(at + 10, 17, &[at + 2])
    });

    for args in [&[][..], &["--by", "v"]] {
        let text = regions(made.path(), args).stdout;
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}: {text}");
        assert!(text.contains("not counted: "), "{text}");
    }
    let text = regions(made.path(), &["--by", "v"]).stdout;
    assert!(text.contains("read [v =1+1]: "), "the name of the value is said: {text}");
}

#[test]
fn no_cell_of_csv_is_a_formula() {
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64,v:str)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let wide = ["\u{ff0b}1", "\u{ff0d}1", "\u{ff1d}1", "\u{ff20}1"];
    let values = [&["=1+1", "+a", "@SUM(1)", "-1+1", "\t=1", "-5"][..], &wide].concat();
    let made = program(events, |packet, at| {
        let value = values[at as usize / 1_000 % values.len()];
        packet.event_str(at, 16, &[at], value.as_bytes()).event(at + 10, 17, &[at])
    });

    let commands = ["regions S --by v --csv", "regions S --by v --samples"];
    golden("formulas", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn an_event_of_the_kernel_begins_no_region() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let commands = ["regions S --between kvm:kvm_exit vcpu_run"];
    golden("of_kernel", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_client_and_a_thread_of_the_vmm_have_no_regions_together() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let commands =
        ["regions S --between batch_begin vcpu_exit", "regions S --between vcpu_exit vcpu_run"];
    golden("between", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn the_number_of_lost_events_is_that_of_stat() {
    let first = Packet::guest(0).event(10, vcpu::BEGIN, &[1, 0]).event(20, vcpu::END, &[1]);
    let second = Packet::guest(0).after(&first).with64(56, 456_743).event(30, vcpu::WORK, &[1]);
    let made = vcpu::session(&[]);
    let made = made.stream("guest-000-0000", &[Packet::guest(0), first, second]);
    let commands = ["info S", "regions S", "regions S --json"];
    golden("lost", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn without_the_events_of_a_recording_in_progress_no_other_recording_is_advised() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    let folder = made.path().join(".kernel");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("recording.json"), "{").unwrap();
    golden("incomplete", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn a_table_of_nothing_but_unknown_time_is_replaced_by_the_reason() {
    let made = vcpu::session(&[Vcpu::rounds(0, 20, 5)]);
    golden("nothing_known", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn regions_that_end_on_another_thread_get_no_advice_to_record() {
    let events = r#"[
        {"id":16,"schema":"boot_begin(id:u64,any_client:bool)","reference_point":false},
        {"id":17,"schema":"boot_end(id:u64,any_client:bool)","reference_point":false},
        {"id":18,"schema":"read_begin(id:u64)","reference_point":false},
        {"id":19,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let made = program(events, |packet, at| {
        let packet = packet.event(at, 16, &[at, 1]).event(at + 1, 18, &[at]);
        packet.event(at + 2, 19, &[at]).event(at + 3, 17, &[at, 1])
    });
    let commands = ["regions S --name boot", "regions S", "regions S --name boot --path"];
    golden("of_any_client", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_guest_without_a_reference_point_is_told_to_forward_its_kernel() {
    let packet = Packet::guest(0).event(10, vcpu::BEGIN, &[1, 0]).event(20, vcpu::END, &[1]);
    let made = vcpu::session(&[]).stream("guest-000-0000", &[Packet::guest(0), packet]);
    golden("no_point", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn a_guests_kernel_alone_says_what_the_host_took_but_not_where() {
    let made = World::new(5).made();
    fs::remove_file(made.path().join("kernel.dat")).unwrap();
    golden("by_guest_alone", HYPERTRACE.transcript(&[made], &["regions S"]));
}

#[test]
fn help_offers_no_input_that_is_refused() {
    let help =
        |command: &str| run(HYPERTRACE.command([command, "--help"]).env("COLUMNS", "200")).ok();

    assert!(help("report").contains("function traces"));
    let help = help("regions");
    assert!(help.contains("Directories of sessions") && !help.contains("function trace"), "{help}");
}
