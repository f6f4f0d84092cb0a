//! `hypertrace forward`: the events of a Linux guest's kernel beside the events of its programs, on the
//! host's clock.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use hypertrace_tests::build::root;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::initramfs::libraries_of;
use hypertrace_tests::linux::{Linux, static_command, static_program};
use hypertrace_tests::report::Line;
use hypertrace_tests::serve::Server;
use hypertrace_tests::trace_cmd;
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Events and points of each of four threads.
const EVENTS: u64 = 2_000;
const POINTS: u64 = 20;
/// Regions of each of four threads and each kind.
pub const ROUNDS: u64 = 10;
/// Events with the least overhead, because the test compares regions' times with the kernel's own counts.
const SWITCHES: &str = "-e sched:sched_switch -e 'sched:sched_wakeup*'";
/// Processes that wait for a timer and processes that work, between two marks.
const SCRIPT: &str =
    "mark --begin boot; sleep 0.5; head -c 2000000 /dev/urandom | gzip >/dev/null; mark --end boot";

/// State of a guest's thread, as the switches of the guest's kernel show the state.
#[derive(Debug, Default)]
struct Thread {
    /// Whether the thread has a CPU; `None` before its first switch.
    is_on: Option<bool>,
    /// How many events the thread recorded while the thread had a CPU, and how many while the thread had no
    /// CPU.
    on: u64,
    off: u64,
}

/// Returns the files of the program `hypertrace` that a guest needs. In a release build, this is the program
/// without libraries, built by the documented command, which takes minutes. In a debug build, it is this
/// build's program, with its libraries.
pub fn recorder() -> Vec<(String, PathBuf)> {
    if cfg!(debug_assertions) {
        let mut files = libraries_of(Path::new(HYPERTRACE.0)).unwrap();
        files.push(("hypertrace".into(), HYPERTRACE.0.into()));
        return files;
    }
    vec![("hypertrace".into(), static_program("hypertrace-cli").with_file_name("hypertrace"))]
}

#[test]
fn the_guide_has_the_command_that_builds_a_recorder_without_libraries() {
    let guide = fs::read_to_string(root().join("docs/linux-guests.md")).unwrap();
    assert!(guide.contains(&static_command("hypertrace-cli")));
}

#[test]
fn the_kernel_of_a_guest_stands_beside_its_programs() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::of_file(HYPERTRACE, folder.path());
    let mut recorder_of_host = record_host(&server);
    let program = static_program("hypertrace-linux-guest");
    let regions = program.with_file_name("hypertrace-linux-regions");
    let mark = static_program("hypertrace-mark");
    let recorder = recorder();
    let mut programs = vec![("program", &*program), ("regions", &*regions), ("mark", &*mark)];
    programs.extend(recorder.iter().map(|(name, path)| (&**name, &**path)));
    let script = format!(
        "rmdir /run; ln -s /gone /run; hypertrace forward true; rm /run
        hypertrace forward program {EVENTS} {POINTS}; echo \"ended: $?\"
        hypertrace forward {SWITCHES} regions {ROUNDS}; echo \"ended: $?\"
        hypertrace forward sh -c '{SCRIPT}'; echo \"ended: $?\"
        stat -c '%n %u %a' /run /run/hypertrace; ls -A /run/hypertrace | wc -l | sed 's/^/notes: /'"
    );

    let console = linux.start(folder.path(), &server.device, &programs, &script).console();

    assert!(console.contains("there is no directory /run; make it first"), "{console}");
    // A minimal machine has no /run, so `forward` makes the directory.
    for part in ["/run 0 755", "/run/hypertrace 0 700", "notes: 0", "failed: 0"] {
        assert!(console.contains(part), "{part}: {console}");
    }
    assert_eq!(console.matches("ended: 0").count(), 3, "{console}");
    let session = server.session.clone();
    server.stop();
    let has_host =
        recorder_of_host.as_mut().is_some_and(|recorder| recorder.wait().unwrap().success());
    let host = folder.path().join("kernel.dat");
    if has_host {
        // Without the host's recording, the recordings of the guest's kernel divide the regions.
        fs::rename(session.join("kernel.dat"), &host).unwrap();
    }
    let kernels = folder.path().join("K");
    let mut export = HYPERTRACE.command(["export", "--to", "trace-dat", "-o"]);
    let made = run(export.arg(&kernels).arg(&session));
    assert!(made.stderr.contains("kernel events (by tracefs)"), "{made:?}");
    assert!(made.stderr.contains("none lost"), "{made:?}");
    let stat = HYPERTRACE.info(&session);
    assert_eq!(stat["total"]["lost"], 0, "{stat}");
    let (switches, kernel_events) = check_cpus(&session, 2 * EVENTS);
    let counted = stat["guest_kernels"].as_array().unwrap();
    let file = |n: usize| kernels.join(counted[n]["file"].as_str().unwrap());
    let files = [0, 1, 2].map(|n| trace_cmd::read(&file(n)));
    if let [Some(first), Some(second), Some(third)] = files {
        let events = first.iter().chain(&second).chain(&third);
        assert_eq!(events.filter(|event| event.name == "sched_switch").count(), switches);
    }
    check_stat(&session, &stat, kernel_events);
    check_regions(&session);
    check_path(&session);
    if let Some(imported) = crate::perfetto_importer::imported(&[&session]) {
        let recordings = stat["guest_kernels"].as_array().map_or(0, Vec::len) as u64;
        assert!(recordings >= 3, "{stat}");
        imported.assert_switches(recordings);
    }
    if let Some(counts) = crate::perfetto::compared(&session, &[], &[]) {
        assert_eq!(counts["machines"], 2, "{counts}");
        assert!(counts["guest_threads"].as_u64() > Some(0), "{counts}");
        let scheduled = ["switches", "task_states"].map(|name| counts[name].as_u64().unwrap());
        assert!(scheduled.iter().sum::<u64>() > 8, "{counts}");
    }
    if has_host {
        fs::rename(&host, session.join("kernel.dat")).unwrap();
        check_merged(&session, &folder.path().join("both"));
        capability::used("tracefs");
    }
    Linux::used();
}

/// Asserts that each numbered event was made while its thread had a CPU, as the switches that `forward` has
/// sent show. The function also asserts that there are more than `least` such events. Returns the number of
/// switches, and the number of all events of the kernel.
#[track_caller]
pub fn check_cpus(session: &Path, least: u64) -> (usize, u64) {
    // Switches of the host's kernel are left out.
    check_cpus_by(session, least, |line| {
        line.event == "sched:sched_switch" && line.source.starts_with("guest-kernel/")
    })
}

/// Checks as [`check_cpus`] does, but uses only the switches for which `is_switch` is true.
#[track_caller]
pub fn check_cpus_by(
    session: &Path,
    least: u64,
    is_switch: impl Fn(&Line) -> bool,
) -> (usize, u64) {
    let mut threads: BTreeMap<u64, Thread> = BTreeMap::new();
    let mut tids: BTreeMap<String, u64> = BTreeMap::new();
    let (mut switches, mut kernel_events) = (0, 0);
    HYPERTRACE.report_each(session, |line| {
        kernel_events += u64::from(line.source.starts_with("guest-kernel/"));
        let number = |name: &str| line.number(name).unwrap_or_else(|| panic!("{name}: {line:?}"));
        match line.event.as_str() {
            "lease" => drop(tids.insert(line.source.clone(), number("tid"))),
            _ if is_switch(&line) => {
                switches += 1;
                threads.entry(number("prev_pid")).or_default().is_on = Some(false);
                threads.entry(number("next_pid")).or_default().is_on = Some(true);
            }
            "step" => {
                let thread = threads.entry(tids[&line.source]).or_default();
                match thread.is_on {
                    Some(true) => thread.on += 1,
                    Some(false) => thread.off += 1,
                    None => {}
                }
            }
            "guest_kernel" | "guest_kernel_clock" => panic!("{line:?}"),
            _ => {}
        }
    });
    let (on, off) = threads.values().fold((0, 0), |(on, off), t| (on + t.on, off + t.off));
    assert!(switches > 8 && on > least && off == 0, "{switches} {on} {off}");
    (switches, kernel_events)
}

/// Records the switches of a server's threads beside the server's session, until the server ends. Returns
/// `None`, with a report, if the kernel's trace cannot be used.
fn record_host(server: &Server) -> Option<Child> {
    let mut command =
        HYPERTRACE.command(["record", "--own-only", "-e", "sched:sched_switch", "-o"]);
    command.arg(&server.session).args(["-p", &server.id().to_string()]).stderr(Stdio::piped());
    let mut recorder = command.spawn().unwrap();
    let (mut said, mut stderr) = (String::new(), BufReader::new(recorder.stderr.take().unwrap()));
    while !said.contains("recording the kernel's events") {
        if stderr.read_line(&mut said).unwrap() == 0 {
            assert!(said.contains("tracing cannot be used"), "{said}");
            recorder.wait().unwrap();
            capability::missing("tracefs", said);
            return None;
        }
    }
    recorder.stderr = Some(stderr.into_inner());
    Some(recorder)
}

/// Asserts that trace-cmd shows the events of both kernels with the report's times, and therefore in the
/// report's order.
#[track_caller]
fn check_merged(session: &Path, out: &Path) {
    let mut export = HYPERTRACE.command(["export", "--to", "trace-dat", "-o"]);
    let said = run(export.arg(out).arg(session)).stderr;
    let files = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    // The host's file comes first.
    files.sort_by_key(|path| !path.ends_with("host-kernel.dat"));
    assert_eq!(files.len(), 4, "{said}");
    let files: Vec<&Path> = files.iter().map(|path| &**path).collect();
    let Some(merged) = trace_cmd::merged(&files) else { return };
    for (n, file) in files.iter().enumerate() {
        let alone = trace_cmd::contents(file).unwrap().events.len();
        assert_eq!(merged.iter().filter(|(of, _)| *of == n).count(), alone, "{said}");
    }
    assert!(merged.is_sorted_by_key(|(_, event)| event.time));
    let mut report = HYPERTRACE.command(["report", "--json", "--event", "*:*"]);
    let report = run(report.arg(session)).ok();
    let lines = report.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (mut shown, mut largest): ([Vec<_>; 2], _) = Default::default();
    for line in lines.filter(|line| line["cpu"].is_u64()) {
        let is_of_guest = line["source"].as_str().unwrap().starts_with("guest-kernel/");
        let time: i64 = line["ts_ns"].to_string().trim_matches('"').parse().unwrap();
        shown[usize::from(is_of_guest)].push((time, line["bound_ns"].as_u64().unwrap()));
    }
    let times = |of_guest| {
        let events = merged.iter().filter(move |(n, _)| (*n > 0) == of_guest);
        events.map(|(_, event)| event.time as i64).collect::<Vec<i64>>()
    };
    let start = shown[0][0].0 - times(false)[0];
    for of_guest in [false, true] {
        let (shown, times) = (&shown[usize::from(of_guest)], times(of_guest));
        assert_eq!(shown.len(), times.len(), "{said}");
        for ((expected, bound), time) in shown.iter().zip(times) {
            let off = (start + time).abs_diff(*expected);
            // trace-cmd computes nanoseconds with a factor of 32 bits, so its times are a little off.
            assert!(off <= bound / 16 + 1_000, "{off} ns, bound {bound}: {said}");
            largest = (off, *bound).max(largest);
        }
    }
    println!("largest difference of {} events: {largest:?}", merged.len());
}

/// Asserts that `info` counts the events of all recordings, and says whose events they are.
#[track_caller]
fn check_stat(session: &Path, stat: &Value, events: u64) {
    let kernels = stat["guest_kernels"].as_array().unwrap();
    let cpus = kernels.iter().flat_map(|kernel| kernel["cpus"].as_array().unwrap());
    let (mut sum, mut lost) = (0, 0);
    for cpu in cpus {
        sum += cpu["events"].as_u64().unwrap();
        lost += cpu["lost"].as_u64().unwrap();
    }
    assert_eq!((kernels.len(), sum, lost), (3, events, 0), "{stat}");
    let text = run(HYPERTRACE.command(["info"]).arg(session)).ok();
    for kernel in kernels {
        let file = kernel["file"].as_str().unwrap();
        let line = format!("{file} (clock {}): cpu0 ", kernel["clock"]);
        assert!(text.contains(&line), "{line}: {text}");
    }
}

/// Asserts that the times of regions agree with what the guest's kernel has counted for their threads.
#[track_caller]
pub fn check_regions(session: &Path) {
    let (within, around, of) = regions_of(session);
    let program = of("working", "on_cpu_ns");
    assert!((within..around).contains(&program), "{program} {within} {around}");
    // Four threads had two CPUs.
    assert!(of("working", "runnable_ns") > 0.2 * of("working", "duration_ns"));
    assert!(of("sleeping", "blocked_ns") > of("sleeping", "on_cpu_ns"));
}

/// Asserts that the times of regions agree with the counts of the guest's kernel if the host's kernel was
/// recorded, too. The host's recording divides the time in which a thread had a CPU of the guest, or waited
/// for such a CPU.
#[track_caller]
pub fn check_regions_by_both(session: &Path) {
    let (within, around, of) = regions_of(session);
    // No exit of a thread is counted for another thread.
    assert_eq!(of("asking", "cpuid"), (4 * ROUNDS * 50) as f64);
    let sum = |parts: &[&str]| parts.iter().map(|part| of("working", part)).sum::<f64>();
    let own = sum(&["guest_ns", "host_interrupt_ns", "kernel_ns", "vmm_ns"]);
    // A thread's CPU clock also counts the time that the host took while the thread had a CPU.
    assert!(own < around && own + sum(&["stolen_ns"]) > within, "{own} {within} {around}");
    assert!(of("working", "guest_ns") > 0.25 * within && of("working", "on_cpu_ns") == 0.0);
    // Four threads shared two CPUs with hypertrace's own threads and QEMU's.
    let waits = sum(&["behind_ns", "stolen_ns"]);
    assert!(sum(&["behind_ns"]) > 0.1 * of("working", "duration_ns"), "{waits}");
    assert!(waits > 0.2 * of("working", "duration_ns"), "{waits}");
    assert!(of("sleeping", "blocked_ns") > of("sleeping", "guest_ns"));
}

/// Returns limits in nanoseconds for the CPU time of the regions `working`. The guest's threads read their
/// CPU clocks inside and around each region: the lower limit is the sum of the inner readings less a
/// tolerance, and the upper limit is the sum of the outer readings plus a tolerance. The returned function
/// takes a region's name and a part's name, and returns the part's time in all regions of this name.
#[track_caller]
fn regions_of(session: &Path) -> (f64, f64, impl Fn(&str, &str) -> f64) {
    // The threads have read their CPU time just inside and just outside of their regions. On a busy host, a
    // CPU of the guest can stop for long between the two readings.
    let (mut within, mut around) = (0, 0);
    HYPERTRACE.report_each(session, |line| {
        if line.event == "worked" {
            within += line.number("within_ns").unwrap();
            around += line.number("around_ns").unwrap();
        }
    });
    let json = run(HYPERTRACE.command(["regions", "--json"]).arg(session)).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let named = |name: &str| {
        let mut regions = json["regions"].as_array().unwrap().iter();
        regions.find(|region| region["name"] == name).unwrap()
    };
    let totals = ["asking", "sleeping", "working"].map(|name| {
        assert_eq!(named(name)["count"], 4 * ROUNDS, "{json}");
        let total = &named(name)["total"];
        let unknown = total["parts"]["unknown_ns"].as_f64().unwrap();
        assert!(unknown < 0.01 * total["duration_ns"].as_f64().unwrap(), "{json}");
        (name, total.clone())
    });
    let of = move |name: &str, part: &str| {
        let (_, total) = totals.iter().find(|(of, _)| *of == name).unwrap();
        let mut exits = total["exits"].as_array().unwrap().iter();
        let exit = exits.find(|exit| exit["reason"] == part).map(|exit| &exit["count"]);
        exit.or(total["parts"].get(part)).unwrap_or(&total[part]).as_f64().unwrap()
    };
    let tolerance = within / 20;
    ((within - tolerance) as f64, (around + tolerance) as f64, of)
}

/// Asserts that the critical path divides all of the script's time: among the processes for which the script
/// waited, and the timer of the process `sleep`.
#[track_caller]
fn check_path(session: &Path) {
    let mut regions = HYPERTRACE.command(["regions", "--json", "--path", "--name", "boot"]);
    let json: Value = serde_json::from_str(&run(regions.arg(session)).ok()).unwrap();
    let total = &json["regions"][0]["total"];
    let path = total["path"].as_array().unwrap();
    let sum = |is: &dyn Fn(&Value) -> bool| -> u64 {
        path.iter().filter(|step| is(step)).map(|step| step["ns"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&|_| true), total["duration_ns"], "{total}");
    let slept = sum(&|step| step["name"] == "sleep" && step["cause"] == "timer");
    assert!(slept > 400_000_000, "{slept} of {total}");
    let worked = sum(&|step| step["name"] == "gzip" && step["doing"] == "on_cpu");
    assert!(worked > sum(&|step| step["doing"] == "unknown"), "{worked} of {total}");
    let of_script = total["parts"]["on_cpu_ns"].as_u64().unwrap();
    assert!(of_script >= worked, "{total}");
}
