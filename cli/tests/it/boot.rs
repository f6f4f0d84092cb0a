//! `hypertrace boot`, mostly with recordings of boots that the tests make up.

use crate::html::parse;
use crate::regions_html::check_closed;
use hypertrace_kernel::{Config, Source};
use hypertrace_test_support::boots::{KERNEL, VCPU, Vm, booted};
use hypertrace_test_support::cpus::ASLEEP;
use hypertrace_test_support::made::Made;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::linux::static_program;
use hypertrace_trace::{Session, SessionConfig};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn the_stages_of_a_boot_are_shown() {
    let commands =
        ["boot --of S", "boot --of S --with S --json", "boot --of S S", "boot --of S --with S"];

    golden("boot", HYPERTRACE.transcript(&[booted()], &commands));
}

#[test]
fn marks_divide_a_recording_and_are_no_regions() {
    let commands = [
        "regions S --mark first=kvm:kvm_pio --mark kvm:kvm_exit",
        "regions S S --mark kvm:kvm_pio",
        "regions S --mark a --mark kvm:kvm_pio",
        "regions S --mark none",
        "regions S --mark kvm:kvm_pio --name batch",
    ];

    golden("marks", HYPERTRACE.transcript(&[booted()], &commands));
}

#[test]
fn events_of_a_program_and_of_the_kernel_divide_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (session, page) = (folder.path().join("S"), folder.path().join("page.html"));
    let mark = static_program("hypertrace-mark");
    let script =
        format!("'{0}' ready; sleep 0.2; '{0}' --begin job; sleep 0.1; '{0}' done", mark.display());
    let mut record = HYPERTRACE.command(["record", "--kernel", "-o"]);
    let recorded = run(record.arg(&session).args(["--", "sh", "-c", &script]));
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    if !recorded.stderr.contains("(by tracefs)") {
        // perf does not record what wakes a thread.
        return capability::missing("tracefs", recorded.stderr);
    }
    let regions = |options: &[&str]| {
        let mut command = HYPERTRACE.command(["regions", "--mark", "done", "--mark", "ready"]);
        command.args(["--mark", "job_begin"]).args(options).arg(&session);
        run(&mut command)
    };

    let ran = regions(&["--json"]);

    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let boot = &json["of"][0]["boots"][0];
    let stages = boot["stages"].as_array().unwrap();
    let names = Vec::from_iter(stages.iter().map(|stage| stage["name"].as_str().unwrap()));
    assert_eq!(names, ["ready", "job_begin", "done"], "{ran:?}");
    let time = |stage: &serde_json::Value, end: &str| -> i64 {
        stage[end].as_str().unwrap().parse().unwrap()
    };
    for pair in stages.windows(2) {
        assert_eq!(time(&pair[0], "end_ns"), time(&pair[1], "begin_ns"), "{json}");
    }
    assert!(time(&stages[0], "end_ns") - time(&stages[0], "begin_ns") >= 200_000_000, "{json}");
    // The program's event ended the stage, so the stage's path begins with the thread that emitted the event.
    let slept = stages[0]["path"].as_array().unwrap();
    let of_timer = |step: &serde_json::Value| {
        step["part"] == "blocked" && step["ns"].as_i64().unwrap() >= 150_000_000
    };
    assert!(slept.iter().any(of_timer), "{json}");
    assert_eq!(regions(&["--html", page.to_str().unwrap()]).code, Some(0));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("Where recordings took their time"), "{text}");
    check_closed(&text, &parse(&text, "<!doctype html>\n<!-- hypertrace boot -->\n"));
    capability::used("tracefs");
}

#[test]
fn wrong_usage_is_said() {
    for (args, why) in [
        (&["boot"][..], "required"),
        (&["boot", "--with", "S"], "--of"),
        (&["boot", "--of", "none"], "none"),
        (
            &["boot", "--until", "userspace", "--", "true"],
            "named userspace: there are user space, VMM,",
        ),
        (&["boot", "--until", "disk", "--of", "S"], "no stage is named disk"),
        (&["boot", "--until", "restored", "--", "true"], "no stage is named restored"),
        (
            &["boot", "--restore", "--until", "firmware", "--", "true"],
            "there are VMM, restored, user space",
        ),
        (&["boot", "--mark", "a b", "--of", "S"], "expected `where` in place of b"),
    ] {
        let ran = run(&mut HYPERTRACE.command(args));
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(why), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_stage_of_ones_own_and_an_end_are_chosen() {
    let made = booted();
    let mut command = HYPERTRACE.command(["boot", "--of"]);
    command.arg(made.path()).args(["--mark", "clock=kvm:kvm_pio where port == 0x70"]);

    let shown = run(command.args(["--until", "second vCPU"])).stdout;

    let stages = shown.lines().skip(2).map_while(|line| line.split_whitespace().next());
    assert_eq!(Vec::from_iter(stages.take(4)), ["VMM", "firmware", "clock", "kernel"], "{shown}");
    assert!(!shown.contains("user space"), "{shown}");
}

/// Makes a boot in which a vCPU computes until a time while the other vCPU has nothing to do.
fn computing(vcpu: usize, until: u64) -> Made {
    const IDLE: (u32, &str) = (0, "swapper");
    let other = 1 - vcpu;
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, 0xfff0);
    vm.exit(20_000, 0, 0x60, KERNEL).enter(20_100, 0, 0, KERNEL);
    vm.0.at(30_000).switch(1, ASLEEP, VCPU[1]);
    vm.enter(30_500, 1, 1, 0x9_a000);
    vm.exit(31_000, 1, 0x60, KERNEL).enter(31_050, 1, 1, KERNEL);
    vm.exit(32_000, other, 0x78, KERNEL).0.at(32_100).switch(other, ASLEEP, IDLE);
    vm.exit(until, vcpu, 0x60, KERNEL);
    vm.0.at(until + 10).wake(vcpu, 0, VCPU[other]).at(until + 100).switch(
        other,
        ASLEEP,
        VCPU[other],
    );
    vm.end(until + 500)
}

#[test]
fn time_of_the_guest_is_the_cause_whichever_vcpu_ran_the_guest() {
    let [fast, slow] = [60_000, 400_000].map(|until| [0, 1].map(|vcpu| computing(vcpu, until)));
    let mut command = HYPERTRACE.command(["boot", "--of"]);
    command.args(fast.each_ref().map(Made::path)).arg("--with");

    let shown = run(command.args(slow.each_ref().map(Made::path))).stdout;

    let words = Vec::from_iter(shown.split_whitespace()).join(" ");
    let why =
        "boot is 340us slower: 340us of it in \"second vCPU\", with 337us more guest of the vCPUs";
    assert!(words.starts_with(why), "{shown}");
}

#[test]
fn a_page_has_each_stage_with_its_threads_exits_and_path() {
    let (made, folder) = (booted(), tempfile::tempdir().unwrap());
    let file = folder.path().join("page.html");
    let boot = |more: &[&str]| {
        let mut command = HYPERTRACE.command(["boot", "--of"]);
        command.arg(made.path()).args(["--mark", "<img>=kvm:kvm_pio where port == 0x70"]);
        run(command.args(more))
    };
    let json: serde_json::Value = serde_json::from_str(&boot(&["--json"]).stdout).unwrap();
    let stages = json["of"][0]["boots"][0]["stages"].as_array().unwrap().clone();

    let ran = boot(&["--html", file.to_str().unwrap()]);

    assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{ran:?}");
    assert!(ran.stderr.contains("page.html: open it in a browser"), "{ran:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let page = parse(&text, "<!doctype html>\n<!-- hypertrace boot -->\n");
    check_closed(&text, &page);
    assert!(!text.contains("<img"), "{text}");
    let sections = page.all("section");
    assert_eq!(sections.len(), stages.len());
    for (section, stage) in sections.iter().zip(&stages) {
        let shown = section.text();
        let tables =
            section.all("caption").iter().map(|caption| caption.text()).collect::<Vec<_>>();
        assert!(shown.starts_with(stage["name"].as_str().unwrap()), "{shown}");
        for (list, field, caption) in
            [("exits", "what", "Exits of vCPUs"), ("path", "name", "Critical path")]
        {
            let rows = stage[list].as_array().unwrap();
            assert_eq!(tables.iter().any(|table| table == caption), !rows.is_empty(), "{shown}");
            let is_shown = |row: &serde_json::Value| shown.contains(row[field].as_str().unwrap());
            assert!(rows.iter().all(is_shown), "{shown}");
        }
        let threads = stage["threads"].as_array().unwrap();
        assert_eq!(
            section.all("svg").iter().filter(|svg| svg.get("role") == "img").count(),
            threads.len()
        );
    }
    // `--html` replaces an older page, but refuses to replace a file that is no page.
    assert_eq!(boot(&["--html", file.to_str().unwrap()]).code, Some(0));
    let of_session = made.path().join("session.json");
    assert_eq!(boot(&["--html", of_session.to_str().unwrap()]).code, Some(2));
}

#[test]
fn a_boot_that_cannot_be_recorded_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("boots");
    let boot = || run(HYPERTRACE.command(["boot", "-o"]).arg(&out).args(["--", "true"]));

    let ran = boot();

    // Without tracefs, there are no events of KVM. With tracefs, `true` is no VMM.
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
    let whys = ["true was not recorded", "has no boot: "];
    assert!(whys.iter().any(|why| ran.stderr.contains(why)), "{ran:?}");
    // If the first command recorded a boot, its recording stays and blocks the second command. If the first
    // command recorded nothing, no directory is left.
    let again = boot().stderr;
    let is_recorded = ran.stderr.contains("has no boot: ");
    assert_eq!(again.contains("is not empty"), is_recorded, "{again}");
    assert_eq!(out.exists(), is_recorded);
}

/// Copies the recording in progress, and returns the number of programs that a process has started so far.
fn started(dir: &Path) -> Option<usize> {
    let copy = tempfile::NamedTempFile::new().unwrap();
    if !hypertrace_kernel::copy(dir, &OwnedFd::from(copy.reopen().unwrap())).unwrap() {
        return None;
    }
    let shown = run(HYPERTRACE.command(["report"]).arg(dir).arg(copy.path())).stdout;
    Some(shown.matches("sched_process_exec").count())
}

#[test]
fn a_recording_in_progress_can_be_copied_with_its_newest_events() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("S");
    let session = Session::create(SessionConfig::new(&dir)).unwrap();
    assert_eq!(started(&dir), None);
    let mut config = Config::beside(session.folder().unwrap());
    (config.pids, config.is_live) = (vec![std::process::id()], true);
    let recording = match hypertrace_kernel::Recording::start(&config) {
        Ok(recording) if recording.source() == Source::Tracefs => recording,
        Ok(recording) => {
            return capability::missing("tracefs", recording.why_perf().unwrap_or_default());
        }
        Err(why) => return capability::missing("tracefs", why),
    };

    // The kernel's buffers consist of pages, and a single event does not fill a page.
    for programs in 1..=3 {
        assert!(Command::new("true").status().unwrap().success());
        std::thread::sleep(Duration::from_millis(400));
        assert!(started(&dir) >= Some(programs), "{programs}: {:?}", started(&dir));
    }

    let summary = recording.finish().unwrap();
    assert_eq!(summary.asked.lost(), 0, "{summary:?}");
    assert_eq!(summary.damage, [""; 0]);
    assert_eq!(started(&dir), None);
    drop(session);
    capability::used("tracefs");
}
