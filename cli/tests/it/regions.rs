//! `hypertrace regions` for a guest under KVM, for programs, and without a kernel's trace.

use hypertrace_test_support::{vcpu, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hypertrace::{reference_region, region};
use hypertrace_tests::command::{Demo, Hypertrace, Ran, copy_program, run};
use hypertrace_tests::{capability, kvm, this_test, traced};
use hypertrace_trace::{Session, SessionConfig};
use serde_json::Value;
use vcpu::Vcpu;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn regions(dir: &Path, args: &[&str]) -> Ran {
    run(HYPERTRACE.command(["regions"]).arg(dir).args(args)).beside_missing_switches()
}

/// Returns a group of `regions --json`.
#[track_caller]
fn group(json: &Value, name: &str) -> Value {
    let groups = json["regions"].as_array().unwrap();
    let found = groups.iter().find(|group| group["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {json}")).clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Asserts that the parts of all breakdowns add up, and that the kernel's parts add up to its exits.
#[track_caller]
fn check_sums(group: &Value) {
    let breakdowns = ["median", "p99", "slowest"].map(|name| &group["breakdown"][name]);
    for breakdown in breakdowns.into_iter().chain([&group["total"]]) {
        let parts = breakdown["parts"].as_object().unwrap();
        let sum: u64 = parts.values().map(number).sum();
        assert_eq!(sum, number(&breakdown["duration_ns"]), "{breakdown}");
        let exits: u64 = breakdown["exits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|exit| number(&exit["kernel_ns"]))
            .sum();
        assert_eq!(exits, number(&breakdown["parts"]["kernel_ns"]), "{breakdown}");
    }
    let count: u64 =
        group["histogram"].as_array().unwrap().iter().map(|step| number(&step["count"])).sum();
    assert_eq!(count, number(&group["count"]));
}

/// Returns the time between a thread's switch away and its next event, if the kernel's trace has no switch
/// back in between.
fn without_switch_back(dir: &Path) -> u64 {
    let report = run(HYPERTRACE.command(["report", "--json"]).arg(dir)).reported();
    let events: Vec<Value> =
        report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_kvm = |event: &&Value| event["event"].as_str().unwrap().starts_with("kvm:");
    // Only vCPUs' threads have all their switches recorded.
    let vcpus: BTreeSet<u64> =
        events.iter().filter(is_kvm).filter_map(|event| event["tid"].as_u64()).collect();
    let (mut out, mut missing): (BTreeMap<u64, u64>, u64) = (BTreeMap::new(), 0);
    for event in &events {
        // Only events of the kernel have a CPU.
        let Some(tid) = event["tid"].as_u64().filter(|_| !event["cpu"].is_null()) else { continue };
        let time = event["ts_ns"].as_str().unwrap().parse().unwrap();
        let since = if event["event"] == "sched:sched_switch" {
            out.remove(&number(&event["fields"]["next_pid"]));
            let away = number(&event["fields"]["prev_pid"]);
            // A thread that is switched out twice in a row was back on a CPU in between.
            if vcpus.contains(&away) { out.insert(away, time) } else { None }
        } else if is_kvm(&event) {
            out.remove(&tid)
        } else {
            None
        };
        missing += since.map_or(0, |since| time - since);
    }
    missing
}

#[test]
fn the_demos_regions_are_attributed() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(HYPERTRACE.demo(&out, 2).arg("--kernel"));
    let demo: Demo = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!((&*demo.mode, demo.lost), ("kvm", 0));
    if !ran.stderr.contains("(by tracefs)") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    assert!(ran.stderr.contains("none lost"), "{ran:?}");

    let json: Value = regions(&out, &["--json"]).json();

    let batch = group(&json, "batch");
    assert_eq!(number(&batch["count"]), 2_000);
    assert!(batch["not_counted"].as_object().unwrap().values().all(|n| *n == 0), "{batch}");
    check_sums(&batch);
    check_sums(&group(&json, "empty"));
    assert!(batch["empty_ns"].is_u64());
    // Each region has a reference point. A point is a store to the device, so the guest exits to the VMM and
    // returns.
    let exits = batch["total"]["exits"].as_array().unwrap();
    let stores = exits.iter().find(|exit| exit["reason"] == "mmio write").unwrap();
    assert!(stores["count"].as_f64().unwrap() >= 2_000.0, "{exits:?}");
    let parts = &batch["total"]["parts"];
    for part in ["guest_ns", "kernel_ns", "vmm_ns"] {
        assert!(number(&parts[part]) > 0, "{part}: {parts}");
    }
    let (unknown, all) = (number(&parts["unknown_ns"]), number(&batch["total"]["duration_ns"]));
    let missing = without_switch_back(&out);
    assert!(unknown <= all / 100 + missing, "{unknown} of {all}, {missing}");

    // The raw samples give the same numbers.
    let samples = regions(&out, &["--samples", "--name", "batch", "--by", "vcpu"]).ok();
    let rows: Vec<Vec<&str>> = samples.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..8].join(","), "name,by,session,client,id,t_ns,begin_ns,duration_ns");
    assert_eq!(rows.len(), 2_001);
    let session = fs::read_to_string(out.join("session.json")).unwrap();
    let session: Value = serde_json::from_str(&session).unwrap();
    let numbers = |row: &[&str]| row.iter().map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let mut sum = 0;
    for row in &rows[1..] {
        let (uuid, rest) = row.split_last().unwrap();
        assert_eq!(**uuid, session["uuid"], "{row:?}");
        let numbers = numbers(&rest[7..]);
        assert_eq!(numbers[0], numbers[1..].iter().sum::<u64>(), "{row:?}");
        sum += numbers[0];
    }
    assert_eq!(sum, all);
    let threads: BTreeSet<&str> = rows[1..].iter().map(|row| row[1]).collect();
    assert_eq!(Vec::from_iter(threads), ["vmm/vcpu0", "vmm/vcpu1"]);
    let csv = regions(&out, &["--csv"]).ok();
    assert_eq!(csv.lines().count(), 1 + json["regions"].as_array().unwrap().len());
    let columns = csv.lines().map(|line| line.split(',').count()).collect::<BTreeSet<_>>();
    assert_eq!(columns.len(), 1, "{csv}");

    // The text for people is 80 columns wide.
    let text = regions(&out, &[]).ok();
    for part in ["batch: 2,000 regions", "mmio write", "an empty region takes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80, "{widest}: {text}");

    // Regions from exit to entry, on the VMM's threads.
    let json: Value = regions(&out, &["--json", "--between", "vcpu_exit", "vcpu_run"]).json();
    let vmm = group(&json, "vcpu_exit to vcpu_run");
    assert!(number(&vmm["count"]) >= 2_000, "{vmm}");
    assert!(number(&vmm["total"]["parts"]["guest_ns"]) == 0, "{vmm}");
    check_sums(&vmm);
    // Regions from entry to exit are the guest's time.
    let json: Value = regions(&out, &["--json", "--between", "vcpu_run", "vcpu_exit"]).json();
    let guest = group(&json, "vcpu_run to vcpu_exit");
    assert!(number(&guest["count"]) >= 2_000, "{guest}");
    let part = |name: &str| number(&guest["total"]["parts"][name]);
    assert!(part("guest_ns") > 0, "{guest}");
    assert!(part("unknown_ns") < number(&guest["total"]["duration_ns"]) / 20, "{guest}");
    check_sums(&guest);
    capability::used("kvm");
    capability::used("tracefs");
}

const NAPS: u64 = 20;
const NAP: Duration = Duration::from_millis(2);

/// The traced program: sleeps and computes.
fn nap_and_spin() {
    for n in 0..NAPS {
        {
            let _region = region!("nap", id = n);
            std::thread::sleep(NAP);
        }
        let _region = region!("spin", id = n);
        let begun = Instant::now();
        while begun.elapsed() < NAP / 10 {}
    }
}

/// Checks the regions of [`nap_and_spin`]. `asleep`: the parts to which the time of the sleep may belong.
fn check_naps(dir: &Path, asleep: &[&str]) {
    let json: Value = regions(dir, &["--json"]).json();
    let (nap, spin) = (group(&json, "nap"), group(&json, "spin"));
    for group in [&nap, &spin] {
        assert_eq!(number(&group["count"]), NAPS, "{group}");
        assert_eq!(group["bound_ns"], 0);
        check_sums(group);
        assert_eq!(group["total"]["parts"]["guest_ns"], 0, "{group}");
    }
    let part = |group: &Value, name: &str| number(&group["total"]["parts"][name]);
    assert!(number(&nap["min_ns"]) >= NAP.as_nanos() as u64, "{nap}");
    let asleep: u64 = asleep.iter().map(|name| part(&nap, name)).sum();
    assert!(asleep > 0, "{nap}");
    let off = asleep + part(&nap, "runnable_ns") + part(&nap, "unknown_ns");
    assert!(off >= number(&nap["total"]["duration_ns"]) / 2, "{nap}");
    assert!(part(&spin, "on_cpu_ns") > 0, "{spin}");
}

#[test]
fn a_programs_sleep_is_blocked_time() {
    if traced::argument().is_some() {
        return nap_and_spin();
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--kernel", "-o"]);
    command.arg(&out);
    traced::program(&mut command, this_test!(), "nap");

    let ran = run(&mut command);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    if ran.stderr.contains("(by tracefs)") {
        check_naps(&out, &["blocked_ns"]);
        capability::used("tracefs");
    } else {
        capability::missing("tracefs", ran.stderr);
    }
}

#[test]
fn one_command_records_a_program_and_shows_where_its_time_went() {
    if traced::argument().is_some() {
        return nap_and_spin();
    }
    let dir = tempfile::tempdir().unwrap();
    let record = |name: &str| {
        let mut command = HYPERTRACE.command(["record", "--regions", "-o"]);
        command.arg(dir.path().join(name));
        command
    };
    let mut command = record("S");
    traced::program(&mut command, this_test!(), "nap");

    let ran = run(&mut command);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let table = run(HYPERTRACE.command(["regions"]).arg(dir.path().join("S"))).stdout;
    assert!(table.contains(&format!("nap: {NAPS} regions")), "{table}");
    assert!(ran.stdout.ends_with(&table), "{ran:?}");

    // A program without regions keeps its exit code.
    let without = run(record("T").args(["--", "sh", "-c", "exit 7"]));
    assert_eq!(without.code, Some(7), "{without:?}");
    assert!(without.stderr.contains("no regions: "), "{without:?}");
    assert_eq!(run(record("U").arg("true")).code, Some(0));
}

#[test]
fn another_user_sees_blocked_and_runnable_without_tracefs() {
    if traced::argument().is_some() {
        return nap_and_spin();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let [program, test] = ["hypertrace", "test"].map(|name| dir.path().join(name));
    copy_program(HYPERTRACE.0, &program);
    copy_program(std::env::current_exe().unwrap(), &test);
    let out = dir.path().join("S");
    let mut command = Command::new(&program);
    command.args(["record", "--kernel", "-o"]).arg(&out);
    traced::program(&mut command, this_test!(), "nap");
    // The user may run the copy of this test, but not the original.
    let args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
    let own = std::env::current_exe().unwrap();
    let envs: Vec<_> =
        command.get_envs().map(|(k, v)| (k.to_owned(), v.map(|v| v.to_owned()))).collect();
    let mut command = Command::new(&program);
    command.args(args.iter().map(|arg| if *arg == own { test.as_os_str() } else { arg }));
    command.envs(envs.into_iter().filter_map(|(key, value)| Some((key, value?))));
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534).current_dir("/");
    }

    let ran = run(&mut command);

    if ran.stderr.contains("perf_event_open") {
        capability::missing("perf", ran.stderr);
        return;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if ran.stderr.contains("(by tracefs)") {
        // This machine lets all users trace.
        return;
    }
    // perf does not record when a thread was woken.
    check_naps(&out, &["off_cpu_ns", "blocked_ns"]);
}

#[test]
fn without_a_kernels_trace_the_next_step_is_said() {
    if traced::argument().is_some() {
        return nap_and_spin();
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(&out);
    traced::program(&mut command, this_test!(), "nap");
    assert_eq!(run(&mut command).code, Some(0));

    let ran = regions(&out, &["--json"]);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("no kernel.dat"), "{ran:?}");
    assert!(ran.stderr.contains("`hypertrace record --kernel`"), "{ran:?}");
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1);
    let total = &group(&json, "nap")["total"];
    assert_eq!(total["parts"]["unknown_ns"], total["duration_ns"]);

    // For wrong requests, the message names what the session has.
    for (args, parts) in [
        (&["--name", "sleep"][..], &["no region is named sleep", "there are nap, spin"][..]),
        (&["--between", "nap_begin", "x"], &["no event is named x", "hypertrace report"]),
        (
            &["--by", "color"],
            &["has a field of this name", "--by thread and --by vcpu need no field"],
        ),
    ] {
        let said = regions(&out, args).failed(2);
        assert!(parts.iter().all(|part| said.contains(part)), "{args:?}: {said}");
    }
    for args in [&["--json", "--csv"][..], &["--name", "nap", "--between", "a", "b"]] {
        assert_eq!(regions(&out, args).code, Some(2), "{args:?}");
    }
}

/// A region with the same name as the region around it.
fn walk(depth: u64) {
    let _region = region!("walk", depth, path = "/usr");
    if depth > 0 {
        walk(depth - 1);
    }
}

/// Regions in all forms that the macros have.
fn all_forms() {
    walk(2);
    let (id, bytes) = (40, 512u32);
    drop(region!("bare"));
    drop(region!("one", bytes = bytes));
    drop(region!("said", id, bytes));
    drop(region!("said", id = id + 1, bytes = 7u8, path = "/a"));
    drop(region!("said", id = id + 2));
    drop(region!("value", id = id + 3));
    drop(region!("value", id,));
    drop(reference_region!("point", bytes, path = "/b"));
    hypertrace::with_client(|client| {
        drop(region!(client: client, "of_client", bytes, path = "/c"));
        drop(region!(client: client, "of_client", id = u64::from(bytes)));
        drop(reference_region!(client: client, "of_client", id = 9));
    });
}

#[test]
fn a_region_has_fields_and_an_id_that_its_client_counts() {
    if traced::argument().is_some() {
        return all_forms();
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    traced::program(command.arg(&out), this_test!(), "forms");
    assert_eq!(run(&mut command).code, Some(0));

    let report = run(HYPERTRACE.command(["report", "--json"]).arg(&out)).reported();

    let events = report.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events = events.filter(|event| event["event"].as_str().unwrap().contains('_'));
    let shown = |event: Value| format!("{} {}", event["event"].as_str().unwrap(), event["fields"]);
    let expected = [
        r#"walk_begin {"depth":2,"id":1,"path":"/usr"}"#,
        r#"walk_begin {"depth":1,"id":2,"path":"/usr"}"#,
        r#"walk_begin {"depth":0,"id":3,"path":"/usr"}"#,
        r#"walk_end {"id":3}"#,
        r#"walk_end {"id":2}"#,
        r#"walk_end {"id":1}"#,
        r#"bare_begin {"id":4}"#,
        r#"bare_end {"id":4}"#,
        r#"one_begin {"bytes":512,"id":5}"#,
        r#"one_end {"id":5}"#,
        r#"said_begin {"bytes":512,"id":40}"#,
        r#"said_end {"id":40}"#,
        r#"said_begin {"bytes":7,"id":41,"path":"/a"}"#,
        r#"said_end {"id":41}"#,
        r#"said_begin {"id":42}"#,
        r#"said_end {"id":42}"#,
        r#"value_begin {"id":43}"#,
        r#"value_end {"id":43}"#,
        r#"value_begin {"id":40}"#,
        r#"value_end {"id":40}"#,
        r#"point_begin {"bytes":512,"id":6,"path":"/b"}"#,
        r#"point_end {"id":6}"#,
        r#"of_client_begin {"bytes":512,"id":7,"path":"/c"}"#,
        r#"of_client_end {"id":7}"#,
        // If one field has no name, the field is the id.
        r#"of_client_begin {"id":512}"#,
        r#"of_client_end {"id":512}"#,
        r#"of_client_begin {"id":9}"#,
        r#"of_client_end {"id":9}"#,
    ];
    assert_eq!(Vec::from_iter(events.map(shown)), expected);
    let json: Value =
        serde_json::from_str(&regions(&out, &["--json", "--by", "depth"]).stdout).unwrap();
    let walks = json["regions"].as_array().unwrap().iter().filter(|group| group["name"] == "walk");
    let walks =
        walks.map(|group| (group["by"]["value"].as_str().unwrap(), number(&group["count"])));
    assert_eq!(Vec::from_iter(walks), [("0", 1), ("1", 1), ("2", 1)]);
}

/// Number of regions of each thread of [`io_threads`].
const REQUESTS: u64 = 20;

/// A VMM without vCPUs, whose threads sleep in regions once the file `go` exists.
fn io_threads(dir: &Path) {
    let session = Session::create(SessionConfig::new(dir.join("S"))).unwrap();
    session.set_events(&"request_*".parse().unwrap(), true).unwrap();
    wait_until("the recording", || dir.join("go").exists());
    thread::scope(|scope| {
        for name in ["io0", "io1"] {
            let session = &session;
            scope.spawn(move || {
                assert!(session.attach(name));
                // The thread's first switch comes before its regions, because the thread may not be recorded
                // before that switch.
                thread::sleep(NAP);
                for id in 0..REQUESTS {
                    let _region = hypertrace_trace::region!("request", id);
                    thread::sleep(NAP);
                }
                thread::sleep(NAP);
            });
        }
    });
    session.finish().unwrap();
}

#[test]
fn a_sleep_in_a_vmms_thread_that_is_no_vcpu_is_blocked_time() {
    if let Some(dir) = traced::argument() {
        return io_threads(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut vmm = traced::alone(this_test!(), dir.path().to_str().unwrap()).spawn().unwrap();
    wait_until("the session", || out.join("session.json").exists());
    let mut recorder = HYPERTRACE.command(["record", "--own-only", "-o"]);
    recorder.arg(&out).args(["-p", &vmm.id().to_string()]).stderr(Stdio::piped());
    let mut recorder = recorder.spawn().unwrap();
    let (mut said, mut stderr) = (String::new(), BufReader::new(recorder.stderr.take().unwrap()));
    while !said.contains("recording the kernel's events") {
        if stderr.read_line(&mut said).unwrap() == 0 {
            break;
        }
    }
    fs::write(dir.path().join("go"), "").unwrap();
    assert!(vmm.wait().unwrap().success());
    stderr.read_to_string(&mut said).unwrap();
    recorder.wait().unwrap();
    if !said.contains("(by tracefs)") {
        capability::missing("tracefs", said);
        return;
    }

    let json: Value = regions(&out, &["--json", "--by", "vcpu"]).json();

    for name in ["vmm/io0", "vmm/io1"] {
        let mut groups = json["regions"].as_array().unwrap().iter();
        let group = groups.find(|group| group["by"]["value"] == name);
        let group = group.unwrap_or_else(|| panic!("{name}: {json}"));
        assert_eq!(number(&group["count"]), REQUESTS, "{group}");
        let parts = &group["total"]["parts"];
        // A sleep begins a little before the switch away.
        let slept = REQUESTS * NAP.as_nanos() as u64 * 9 / 10;
        assert!(number(&parts["blocked_ns"]) >= slept, "{group}");
        assert!(number(&parts["vmm_ns"]) > 0, "{group}");
        check_sums(group);
    }
    capability::used("tracefs");
}

#[test]
fn regions_of_a_vmms_own_threads_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    session.set_events(&"request_*".parse().unwrap(), true).unwrap();
    thread::scope(|scope| {
        for name in ["io0", "io1"] {
            let session = &session;
            scope.spawn(move || {
                assert!(session.attach(name));
                // Both threads use the same ids.
                for id in 0..10 {
                    let _region = hypertrace_trace::region!("request", id);
                }
            });
        }
    });
    session.finish().unwrap();

    let json: Value = serde_json::from_str(&regions(dir.path(), &["--json"]).stdout).unwrap();

    let request = group(&json, "request");
    assert_eq!(number(&request["count"]), 20);
    assert!(request["not_counted"].as_object().unwrap().values().all(|n| *n == 0), "{request}");
}

#[test]
fn a_session_without_regions_says_how_to_make_some() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&out).args(["--", "true"]));

    let said = regions(&out, &[]).failed(2);

    for part in ["no regions", "NAME_begin", "region!", "--between"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn regions_of_two_sessions_have_rows_of_their_own() {
    let all = [20, 30].map(|rounds| {
        let vcpus = [Vcpu::rounds(0, rounds, 2)];
        let made = vcpu::session(&vcpus);
        made.kernel(&vcpu::trace(&vcpus, |_| true));
        made
    });
    let dirs = all.each_ref().map(|made| made.path());
    let both =
        |args: &[&str]| run(HYPERTRACE.command(["regions"]).args(args).arg(dirs[0]).arg(dirs[1]));

    let text = both(&[]).ok();
    let json: Value = both(&["--json"]).json();
    let csv = both(&["--csv"]).ok();

    let rows = json["regions"].as_array().unwrap().iter();
    let rows = rows.map(|row| (number(&row["session"]), number(&row["count"])));
    assert_eq!(Vec::from_iter(rows), [(0, 20), (1, 30)]);
    for (session, count) in [20, 30].iter().enumerate() {
        let name = dirs[session].file_name().unwrap().to_str().unwrap();
        assert!(text.contains(&format!("{name}:batch: {count} regions")), "{text}");
        assert!(csv.contains(&format!("\nbatch,,{session},{count},")), "{csv}");
    }
    // If there is only one session, its name is left out.
    let one = regions(dirs[0], &[]).ok();
    assert!(one.starts_with("batch: 20 regions"), "{one}");
}
