//! Time of a guest's threads by both kernels, where the tests know what took the time.
//!
//! The host of the machine may take CPUs from the machine, and no recording shows this. So all assertions are
//! about counts, about order, and about time spans that lie within other time spans. A long gap in what a
//! thread computes can have a cause that both kernels know, or a cause that no kernel knows. If a kernel says
//! that a thread was without its CPU for long, a gap of the thread includes that time.

use super::ends::{SAVED, write_image};
use super::{COMMANDED, FILE, HYPERTRACE, kvm_guest, run};
use crate::linux_guest_kernel::recorder;
use hypertrace_tests::command;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::machine::Machine;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Number of CPUID instructions in each region `asking`, and in each region `moving`, as in the program.
const ASKED: u64 = 50;
/// Number of bytes that each thread passes to the other thread in a region, and the shortest sleep in
/// nanoseconds.
const PASSED: usize = 20;
const SLEEP: i64 = 10_000_000;
/// Maximum time between a gap's end and the gap's event, and minimum time that counts as long, in
/// nanoseconds.
const NEAR: i64 = 20_000;
const LONG: i64 = 1_000_000;
/// Maximum time of a gap without another thread's turn of the CPU, in nanoseconds. Most turns of the hog are
/// far longer.
const TURN: i64 = 5_000_000;

/// Functions of the shell, besides those of all scripts.
///
/// - `pin`: keeps each vCPU on the host's CPU of its number
/// - `regions ROUNDS RUN KIND CPU..`: runs the program of regions in the guest, with the guest's kernel
///   recorded
/// - `beside CPU COMMAND..`: does something while a program named `hog` takes as much of the host's CPU as it
///   gets
const FUNCTIONS: &str = r#"
cp /bin/sh hog
pin() {
    for task in /proc/$qemu/task/*; do
        read name <$task/comm
        case $name in 'CPU '*) cpu=${name#CPU }; taskset -pc ${cpu%/KVM} ${task##*/};; esac
    done
}
regions() { guest "hypertrace forward regions $*" || exit 5; }
beside() {
    taskset -c $1 ./hog -c 'while :; do :; done' & hog=$!
    shift; "$@"
    kill $hog; wait $hog
}
"#;

/// Returns the line that starts a guest with this device, which takes commands and has the program of
/// regions.
#[track_caller]
fn guest(linux: &Linux, folder: &Path, device: &[&str]) -> String {
    let regions =
        static_program("hypertrace-linux-guest").with_file_name("hypertrace-linux-regions");
    let files = [vec![("regions".into(), regions)], recorder()].concat();
    kvm_guest(linux, folder, device, &files, COMMANDED)
}

/// A region, or another time span: begin and end, in nanoseconds of the session.
type Time = (i64, i64);

fn overlap(a: Time, b: Time) -> i64 {
    (a.1.min(b.1) - a.0.max(b.0)).max(0)
}

/// An interval of a thread: what the thread did, and the cause, which is another thread or something else.
struct Interval {
    time: Time,
    part: String,
    whom: Option<String>,
}

/// What a thread of the guest has recorded about itself, and what `regions` says about the thread.
#[derive(Default)]
struct Thread {
    regions: Vec<Time>,
    gaps: Vec<Time>,
    intervals: Vec<Interval>,
}

/// What was found in a session. A thread's key is the thread's name. A group's key is the name of the regions
/// and the name of the run.
struct Found {
    threads: BTreeMap<String, Thread>,
    groups: BTreeMap<(String, String), Value>,
}

/// Runs `regions --json` on a session. Returns the groups of regions, and the warnings.
#[track_caller]
fn groups(session: &Path, options: &[&str]) -> (Vec<Value>, Value) {
    let mut regions = HYPERTRACE.command(["regions", "--json"]);
    let ran = command::run(regions.args(options).arg(session));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut json: Value = serde_json::from_str(&ran.stdout).unwrap();
    (json["regions"].as_array_mut().unwrap().drain(..).collect(), json["warnings"].take())
}

/// Returns the number of a group's exits for the instruction CPUID.
fn asked(group: &Value) -> u64 {
    let mut exits = group["total"]["exits"].as_array().unwrap().iter();
    let exit = exits.find(|exit| exit["reason"] == "cpuid");
    exit.map_or(0, |exit| exit["count"].as_f64().unwrap() as u64)
}

/// Asserts that both kernels divide the time of a group's regions, and that each region has the exits that
/// its thread asked for.
#[track_caller]
fn check_exits(group: &Value, of_each: u64) {
    let total = &group["total"];
    let duration = total["duration_ns"].as_u64().unwrap();
    let parts = total["parts"].as_object().unwrap();
    assert_eq!(parts.values().map(|ns| ns.as_u64().unwrap()).sum::<u64>(), duration, "{group}");
    assert!(parts["unknown_ns"].as_u64().unwrap() < duration / 100, "{group}");
    assert_eq!(asked(group), group["count"].as_u64().unwrap() * of_each, "{group}");
    let mut exits = total["exits"].as_array().unwrap().iter();
    assert!(of_each > 0 || exits.all(|exit| exit["reason"] != "cpuid"), "{group}");
}

impl Found {
    #[track_caller]
    fn of(session: &Path) -> Found {
        let mut threads: BTreeMap<String, Thread> = BTreeMap::new();
        let mut begun: BTreeMap<String, i64> = BTreeMap::new();
        HYPERTRACE.report_each(session, |line| {
            let Some((_, name)) = line.source.rsplit_once('/') else { return };
            let name = || name.to_owned();
            match &*line.event {
                "gap" => {
                    let length = line.number("ns").unwrap() as i64;
                    threads.entry(name()).or_default().gaps.push((line.t_ns - length, line.t_ns));
                }
                "asking_begin" | "asking_end" => {}
                event if event.ends_with("_begin") => drop(begun.insert(name(), line.t_ns)),
                event if event.ends_with("_end") => {
                    let region = (begun.remove(&name()).unwrap(), line.t_ns);
                    threads.entry(name()).or_default().regions.push(region);
                }
                _ => {}
            }
        });
        let mut regions = HYPERTRACE.command(["regions", "--intervals"]);
        let mut regions = regions.arg(session).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(regions.stdout.take().unwrap()).lines() {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let name = line["thread"].as_str().and_then(|name| Some(name.rsplit_once('/')?.1));
            let Some(thread) = name.and_then(|name| threads.get_mut(name)) else { continue };
            let begin = line["t_ns"].as_i64().unwrap();
            thread.intervals.push(Interval {
                time: (begin, begin + line["duration_ns"].as_i64().unwrap()),
                part: line["part"].as_str().unwrap().to_owned(),
                whom: ["name", "cause"]
                    .iter()
                    .find_map(|key| line["wait"][*key].as_str())
                    .map(str::to_owned),
            });
        }
        assert!(regions.wait().unwrap().success());
        let (groups, warnings) = groups(session, &["--by", "run"]);
        let is_other = |line: &&Value| {
            !line.as_str().unwrap().contains("events that give a thread its CPU back")
        };
        assert_eq!(warnings.as_array().unwrap().iter().filter(is_other).count(), 0, "{warnings}");
        let groups = groups.into_iter().map(|group| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            ((text(&group["name"]), text(&group["by"]["value"])), group)
        });
        Found { threads, groups: groups.collect() }
    }

    /// Returns a part of all regions of a name in a run, in nanoseconds.
    #[track_caller]
    fn part(&self, region: &str, run: &str, part: &str) -> u64 {
        let total = &self.groups[&(region.to_owned(), run.to_owned())]["total"];
        total["parts"][format!("{part}_ns")].as_u64().unwrap()
    }

    /// Returns how long the regions were in this part for causes that `is_it` accepts by name. The name of a
    /// cause is the name of a thread, or the kind of another cause.
    fn because(&self, region: &str, run: &str, part: &str, is_it: impl Fn(&str) -> bool) -> u64 {
        let total = &self.groups[&(region.to_owned(), run.to_owned())]["total"];
        let waits = total["waits"].as_array().unwrap().iter().filter(|wait| wait["part"] == part);
        let name = |wait: &Value| match &wait["cause"] {
            Value::String(cause) if cause != "thread" => cause.clone(),
            _ => wait["name"].as_str().unwrap_or_default().to_owned(),
        };
        waits.filter(|wait| is_it(&name(wait))).map(|wait| wait["ns"].as_u64().unwrap()).sum()
    }

    /// Asserts that exactly `count` regions of a name were counted in a run, that both kernels divide their
    /// time, and that each region has the exits that its thread asked for.
    #[track_caller]
    fn check_counted(&self, region: &str, run: &str, count: u64, asked: u64) {
        let group = &self.groups[&(region.to_owned(), run.to_owned())];
        assert_eq!(group["count"], count, "{group}");
        let not_counted = group["not_counted"].as_object().unwrap();
        assert!(not_counted.values().all(|count| *count == 0), "{group}");
        check_exits(group, asked);
        let part = |name| self.part(region, run, name);
        assert_eq!([part("on_cpu"), part("off_cpu")], [0; 2], "{group}");
        assert!(part("guest") > 0, "{group}");
    }

    /// Asserts that the thread has noticed each long time without its CPU: this time must lie in the gaps
    /// that the thread has listed, and not in the computing before and after. Returns the number of such
    /// intervals.
    #[track_caller]
    fn check_gaps(&self, thread: &str) -> usize {
        let of = &self.threads[thread];
        let mut number = 0;
        for region in &of.regions {
            let gaps =
                Vec::from_iter(of.gaps.iter().filter(|gap| gap.1 > region.0 && gap.1 < region.1));
            // The program does not look before the first gap and after the last gap.
            let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else { continue };
            for Interval { time, part, whom } in &of.intervals {
                let is_long = time.1 - time.0 > LONG && time.0 >= first.0 && time.1 <= last.1;
                if is_long
                    && ["stolen", "behind", "runnable", "halted", "blocked"].contains(&&**part)
                {
                    let listed: i64 = gaps.iter().map(|gap| overlap(**gap, *time)).sum();
                    assert!(
                        time.1 - time.0 - listed < NEAR,
                        "{thread}: {time:?} {part} {whom:?}: {gaps:?}"
                    );
                    number += 1;
                }
            }
        }
        number
    }

    /// Returns the length of each gap in which another thread may have had the CPU: each gap that is longer
    /// than a turn of the CPU. The second number is the time within the gap that the thread spent in `part`
    /// with the cause `whom`.
    fn long_gaps(&self, thread: &str, part: &str, whom: &str) -> Vec<(i64, i64)> {
        let of = &self.threads[thread];
        let is_it = |of: &&Interval| of.part == part && of.whom.as_deref() == Some(whom);
        let long = of.gaps.iter().filter(|gap| gap.1 - gap.0 > TURN);
        let long = long.map(|gap| {
            let all = of.intervals.iter().filter(is_it).map(|of| overlap(of.time, *gap));
            (gap.1 - gap.0, all.sum())
        });
        long.collect()
    }
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn what_a_guests_threads_see_of_their_time_is_what_both_kernels_say() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = [&FILE[..], &["-name", "guest,debug-threads=on"]].concat();
    let qemu = guest(&linux, folder.path(), &device);

    let (console, shared) = run(
        machine,
        &format!(
            "{FUNCTIONS}
            serve --file /dev/shm/guest; host; boot {qemu}; ready; pin
            regions 10 alone spinning 1
            beside 1 regions 10 hurt spinning 1
            regions 10 shared spinning 0 0
            regions 10 asleep sleeping 1
            regions 10 piped passing 0 1
            regions 10 moved moving 0 1 0 1
            off; end $host host; end $server serve; cp host $shared/"
        ),
    );

    let said = fs::read_to_string(shared.join("host")).unwrap();
    assert!(said.contains("(by tracefs) in S/kernel.dat, none lost"), "{said} {console}");
    let found = Found::of(&shared.join("S"));
    for (region, run, count, asked) in [
        ("spinning", "alone", 10, 0),
        ("spinning", "hurt", 10, 0),
        ("spinning", "shared", 20, 0),
        ("sleeping", "asleep", 10, 0),
        ("passing", "piped", 20, 0),
        ("moving", "moved", 40, ASKED),
    ] {
        found.check_counted(region, run, count, asked);
        found.check_counted("asking", run, count, ASKED);
        // The hog took time only from the run that ran beside the hog.
        for region in [region, "asking"] {
            let of_hog = found.because(region, run, "stolen", |name| name == "hog");
            assert_eq!(of_hog > 0, run == "hurt", "{region} {run}: {of_hog}");
        }
    }

    // A thread that computes stops only while another thread has its CPU, on the host or in the guest.
    let long = ["alone-0", "hurt-0", "shared-0", "shared-1"].map(|thread| found.check_gaps(thread));
    assert!(long[1..].iter().all(|number| *number >= 10), "{long:?}");
    for run in ["alone", "hurt", "shared"] {
        let parts = ["blocked", "vmm"].map(|part| found.part("spinning", run, part));
        let guest = found.part("spinning", run, "guest");
        assert!(parts.iter().sum::<u64>() < guest / 10, "{run}: {parts:?}, {guest}");
    }
    let of_hog = found.because("spinning", "hurt", "stolen", |name| name == "hog");
    assert!(of_hog > found.part("spinning", "hurt", "stolen") / 2, "{:?}", found.groups);
    assert!(of_hog > found.part("spinning", "hurt", "guest") / 4, "{:?}", found.groups);
    let gaps = found.long_gaps("hurt-0", "stolen", "hog");
    let with_hog = gaps.iter().filter(|(_, of_hog)| *of_hog > LONG).count();
    assert!(with_hog >= 5 && 2 * with_hog > gaps.len(), "{gaps:?}");
    // While one of the two threads waits for the CPU, the other thread has the CPU.
    for (thread, other) in [("shared-0", "shared-1"), ("shared-1", "shared-0")] {
        let gaps = found.long_gaps(thread, "behind", other);
        let behind = gaps.iter().filter(|(_, behind)| *behind > LONG).count();
        assert!(behind >= 5, "{thread}: {gaps:?}");
    }
    let behind = found.part("spinning", "shared", "behind");
    let behind_each = found.because("spinning", "shared", "behind", |n| n.starts_with("shared-"));
    assert!(2 * behind_each > behind, "{behind_each} of {behind}");

    // A guest's timer wakes a sleeping thread, once in each region. The length of the sleep depends on the
    // machine.
    let asleep = &found.threads["asleep-0"];
    for region in &asleep.regions {
        let waits = asleep.intervals.iter().filter(|of| overlap(of.time, *region) > 0);
        let by_timer =
            waits.filter(|of| of.part == "blocked" && of.whom.as_deref() == Some("timer"));
        assert_eq!(by_timer.count(), 1, "{region:?}");
        assert!(region.1 - region.0 > SLEEP / 2, "{region:?}");
    }

    // A thread waits for the other thread's byte, at most once for each byte. After the byte has come, the
    // thread waits only until an idle CPU wakes, because no other thread runs on that CPU.
    for (thread, other) in [("piped-0", "piped-1"), ("piped-1", "piped-0")] {
        let of = &found.threads[thread];
        for region in &of.regions {
            let waits = of.intervals.iter().filter(|of| overlap(of.time, *region) > 0);
            let by_other =
                waits.filter(|of| of.part == "blocked" && of.whom.as_deref() == Some(other));
            let number = by_other.count();
            assert!((1..=PASSED).contains(&number), "{thread}: {number}");
        }
    }
    let ready = found.part("passing", "piped", "runnable");
    let idle = found.because("passing", "piped", "runnable", |cause| cause == "idle");
    assert!(ready > 0 && ready - idle < ready / 100, "{idle} of {ready}");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn guests_that_are_reset_and_started_again_with_other_cpus_have_each_exit_of_each_thread() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let device = [&FILE[..], &["-action", "reboot=reset"]].concat();
    let qemu = guest(&linux, folder.path(), &device);

    // The machine has two CPUs. After a reset, a guest has another clock. After a start of a new QEMU, the
    // guest also has other host threads.
    let (_, shared) = run(
        machine,
        &format!(
            "{FUNCTIONS}
            serve --file /dev/shm/guest; host
            boot {qemu} -smp 1; ready; regions 10 one moving 0 0; off
            boot {qemu} -smp 4; ready; regions 5 four moving 0 1 2 3
            monitor system_reset; ready; regions 5 reset moving 3 2 1 0
            off; end $host host; end $server serve"
        ),
    );

    let session = shared.join("S");
    let found = Found::of(&session);
    for run in ["one", "four", "reset"] {
        found.check_counted("moving", run, 20, ASKED);
        found.check_counted("asking", run, 20, ASKED);
    }
    let clocks = HYPERTRACE.info(&session)["clocks"].as_array().unwrap().len();
    assert_eq!(clocks, 3, "each boot has a clock of its own");
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_late_recording_of_the_host_and_a_guest_that_goes_back_give_no_thread_wrong_exits() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    write_image(&image);
    let device = [&SAVED[..], &["-drive", "if=none,format=qcow2,file=image"]].concat();
    let qemu = guest(&linux, folder.path(), &device);

    let (_, shared) = run(
        machine,
        &format!(
            "{FUNCTIONS}
            cp {} image; serve --file /dev/shm/guest; boot {qemu}; ready
            guest 'hypertrace forward regions 20 late moving 0 1 &'; more 60; host; guest wait
            guest 'hypertrace forward regions 40 back moving 0 1 &'; more 60
            monitor stop; sleep 2; monitor 'savevm a'; monitor cont; more 60
            monitor stop; sleep 2; monitor 'loadvm a'; monitor cont; guest wait
            regions 10 later moving 0 1
            off; end $host host; end $server serve",
            image.display()
        ),
    );

    let session = shared.join("S");
    // One region of each thread was open when the host's recording began. The recording tells nothing about
    // the regions before.
    let (of_ids, _) = groups(&session, &["--by", "id", "--where", "run == \"late\""]);
    let (mut none, mut all, mut others) = (0, 0, 0);
    for group in &of_ids {
        let parts = group["total"]["parts"].as_object().unwrap().iter();
        let mut parts = parts.filter(|(_, ns)| **ns != 0).map(|(name, _)| &**name);
        let is_none = parts.all(|part| ["unknown_ns", "blocked_ns"].contains(&part));
        match (is_none, asked(group)) {
            (true, 0) => none += 1,
            (false, exits) if exits == ASKED * 2 => all += 1,
            (false, exits) if exits < ASKED * 2 => others += 1,
            _ => panic!("{group}"),
        }
    }
    assert!(of_ids.len() == 40 && none >= 2 && all >= 2 && others <= 2, "{none} {all} {others}");

    // The guest went back in time, so the guest makes some regions twice. The recording of the guest's kernel
    // ends where the guest went back.
    let (of_runs, _) = groups(&session, &["--by", "run"]);
    let of = |region: &str, run: &str| {
        let is_it = |group: &&Value| group["name"] == region && group["by"]["value"] == run;
        of_runs.iter().find(is_it).unwrap()
    };
    for region in ["moving", "asking"] {
        check_exits(of(region, "back"), ASKED);
        check_exits(of(region, "later"), ASKED);
        assert_eq!(of(region, "later")["count"], 20, "{of_runs:?}");
        let not_counted = of(region, "back")["not_counted"].as_object().unwrap();
        let counted = of(region, "back")["count"].as_u64().unwrap();
        let sum = not_counted.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
        assert!(counted > 0 && counted + sum >= 80, "{of_runs:?}");
    }
    Linux::used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn regions_during_which_the_host_loses_events_are_not_counted_and_others_have_all_exits() {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let qemu = guest(&linux, folder.path(), &FILE);

    let (_, shared) = run(
        machine,
        &format!(
            "{FUNCTIONS}
            serve --file /dev/shm/guest; host --buffer 64K; boot {qemu}; ready
            guest 'hypertrace forward regions 30 lossy moving 0 1 &'; more 60
            kill -STOP $host; more 60; kill -CONT $host; guest wait
            off; end $host host; end $server serve; cp host $shared/"
        ),
    );

    let said = fs::read_to_string(shared.join("host")).unwrap();
    assert!(!said.contains("none lost"), "{said}");
    let (all, _) = groups(&shared.join("S"), &["--by", "run"]);
    let mut lost = 0;
    for group in all.iter().filter(|group| group["count"] != 0) {
        check_exits(group, ASKED);
        lost += group["not_counted"]["lost_events"].as_u64().unwrap();
    }
    let counted = all.iter().map(|group| group["count"].as_u64().unwrap()).sum::<u64>();
    assert!(lost > 0 && counted > 0 && lost + counted == 120, "{lost} {counted} {all:?}");
    Linux::used();
}
