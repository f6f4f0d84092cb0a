//! Compares what threads waited for in regions, by `hypertrace regions`, with what the programs did: which
//! thread had the CPU, and what woke the waiting thread.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hypertrace_kernel::stolen;
use hypertrace_tests::command::{Hypertrace, Ran, copy_program, run};
use hypertrace_tests::{capability, kvm, this_test, traced, truth};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of rounds. Each round has one region of each kind.
const ROUNDS: u64 = 10;
/// Time in nanoseconds that the thread computes in a region. The time is longer than several time slices of
/// the scheduler.
const COMPUTE: u64 = 10_000_000;

/// A shell that takes as much of a CPU as it gets.
struct Hog(Child);

impl Hog {
    /// Starts a hog with this name on a CPU.
    fn start(place: &Path, name: &str, cpu: usize) -> Hog {
        let program = place.join(name);
        copy_program("/bin/sh", &program);
        let start = move || {
            truth::pin_to(cpu);
            Command::new(program).args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        Hog(thread::spawn(start).join().unwrap())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Returns the time that a process of one thread was on a CPU, in nanoseconds.
fn ran(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Waits until a thread of this process sleeps.
fn until_asleep(tid: u32) {
    let state = || {
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    };
    while !state() {
        thread::yield_now();
    }
}

/// The program, which waits for hogs, for another thread of its own, for a timer and for a child. The program
/// writes the ids of the thread and the children for which it waited, and the time that each hog ran during
/// the first kind of region.
fn wait_for_others(argument: &str) {
    let mut words = argument.split(' ');
    let place = PathBuf::from(words.next().unwrap());
    let hogs = Vec::from_iter(words.map(|word| word.parse::<u32>().unwrap()));
    let cpu = truth::first_cpu();
    truth::pin_to(cpu);
    let own = tid();
    let (lock, held) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let (jobs, next) = mpsc::channel::<(&str, u64)>();
    let partner = {
        let (lock, held) = (Arc::clone(&lock), Arc::clone(&held));
        let work = move || {
            for (job, round) in next {
                // The region makes the thread known as a thread of the session.
                let _region = hypertrace::region!("helped", id = round);
                match job {
                    "handed" => {
                        let guard = lock.lock().unwrap();
                        held.store(round, Ordering::SeqCst);
                        until_asleep(own);
                        truth::compute(1_000_000);
                        drop(guard);
                    }
                    "piped" => {
                        until_asleep(own);
                        truth::compute(1_000_000);
                        writer.write_all(b"x").unwrap();
                    }
                    _ => {
                        truth::compute(COMPUTE);
                        held.store(round, Ordering::SeqCst);
                    }
                }
            }
        };
        thread::Builder::new().name("partner".into()).spawn(work).unwrap()
    };
    let said = partner_tid();
    let start = |job: &'static str, round| Sender::send(&jobs, (job, round)).unwrap();
    let until = |round| {
        while held.load(Ordering::SeqCst) < round {
            thread::yield_now();
        }
    };
    let (mut children, mut beside) = (Vec::new(), vec![0; hogs.len()]);
    for round in 1..=ROUNDS {
        {
            let before = Vec::from_iter(hogs.iter().map(|pid| ran(*pid)));
            let _region = hypertrace::region!("competed", id = round);
            truth::compute(COMPUTE);
            for ((sum, pid), before) in beside.iter_mut().zip(&hogs).zip(before) {
                *sum += ran(*pid) - before;
            }
        }
        start("handed", 2 * round - 1);
        until(2 * round - 1);
        {
            let _region = hypertrace::region!("handed", id = round);
            drop(lock.lock().unwrap());
        }
        start("piped", 0);
        {
            let _region = hypertrace::region!("piped", id = round);
            reader.read_exact(&mut [0]).unwrap();
        }
        {
            let _region = hypertrace::region!("slept", id = round);
            thread::sleep(Duration::from_millis(2));
        }
        let mut child = Command::new("sleep").arg("0.03").spawn().unwrap();
        children.push(child.id().to_string());
        {
            let _region = hypertrace::region!("waited", id = round);
            child.wait().unwrap();
        }
        {
            let _region = hypertrace::region!("shared", id = round);
            start("compute", 2 * round);
            truth::compute(COMPUTE);
            until(2 * round);
        }
    }
    drop(jobs);
    partner.join().unwrap();
    let beside = Vec::from_iter(beside.iter().map(u64::to_string));
    let lines = [said.to_string(), children.join(" "), beside.join(" ")];
    fs::write(place.join("said"), lines.join("\n")).unwrap();
}

/// Returns the number of this process's thread with the name `partner`.
fn partner_tid() -> u32 {
    loop {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let is_it = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "partner")
        };
        if let Some(task) = { tasks }.find(is_it) {
            return task.file_name().to_str().unwrap().parse().unwrap();
        }
        thread::yield_now();
    }
}

/// What the program has written.
struct Said {
    partner: u64,
    children: Vec<u64>,
    /// Time in nanoseconds that each hog ran during the regions `competed`.
    beside: Vec<u64>,
}

impl Said {
    fn read(place: &Path) -> Said {
        let text = fs::read_to_string(place.join("said")).unwrap();
        let line = |line: &str| Vec::from_iter(line.split(' ').map(|n| n.parse::<u64>().unwrap()));
        let lines = Vec::from_iter(text.lines().map(line));
        let [partner, children, beside] = &lines[..] else { panic!("{text}") };
        Said { partner: partner[0], children: children.clone(), beside: beside.clone() }
    }
}

/// A cause of a wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    kind: String,
    name: String,
    tid: Option<u64>,
    session: Option<u64>,
}

/// The waits in one part of the regions of one name.
struct Waits {
    causes: BTreeMap<Cause, u64>,
    sum: u64,
}

impl Waits {
    /// Reads the waits of each name and part.
    fn all(json: &Value) -> BTreeMap<(String, String), Waits> {
        let mut all = BTreeMap::new();
        for group in json["regions"].as_array().unwrap() {
            for wait in group["total"]["waits"].as_array().unwrap() {
                let text = |key: &str| wait[key].as_str().unwrap_or_default().to_owned();
                let (kind, name) = (text("cause"), text("name"));
                let (tid, session) = (wait["tid"].as_u64(), wait["session"].as_u64());
                let cause = Cause { kind, name, tid, session };
                let name = (group["name"].as_str().unwrap().to_owned(), text("part"));
                let empty = || Waits { causes: BTreeMap::new(), sum: 0 };
                let waits: &mut Waits = all.entry(name).or_insert_with(empty);
                let ns = wait["ns"].as_u64().unwrap();
                *waits.causes.entry(cause).or_default() += ns;
                waits.sum += ns;
            }
        }
        all
    }

    /// Returns the share of all time, in per cent, that causes of a kind have.
    fn percent(&self, is_it: impl Fn(&Cause) -> bool) -> f64 {
        let own = self.causes.iter().filter(|(cause, _)| is_it(cause));
        own.map(|(_, ns)| ns).sum::<u64>() as f64 * 100.0 / self.sum.max(1) as f64
    }
}

fn is_unknown(cause: &Cause) -> bool {
    cause.kind == "unknown"
}

/// Tries until the result is right, at most three times. A wrong result is tried again only if a hypervisor
/// took time or if the kernel dropped events. Some kernels drop events without counting them as lost.
#[track_caller]
fn three_times(mut is_right: impl FnMut() -> Result<(), String>) {
    let mut why = String::new();
    for _ in 0..3 {
        let before = stolen();
        match is_right() {
            Ok(()) => return,
            Err(wrong) => why = wrong,
        }
        println!("{why}; stolen from {before:?} to {:?}", stolen());
    }
    panic!("{why}");
}

/// Runs `regions --json` on these directories.
#[track_caller]
fn regions(dirs: &[&Path]) -> Value {
    run(HYPERTRACE.command(["regions", "--json"]).args(dirs)).beside_missing_switches().json()
}

/// Returns whether a run has the kernel's trace, and reports the result as a capability.
fn has_kernel_trace(ran: &Ran) -> bool {
    let is_there = ran.stderr.contains("(by tracefs)");
    match is_there {
        true => capability::used("tracefs"),
        false => {
            capability::missing("tracefs", "who had the CPU, and what woke threads, is not known")
        }
    }
    is_there
}

/// Checks the waits of the program, beside these hogs.
fn check(json: &Value, said: &Said, hogs: &[Hog]) -> Result<(), String> {
    let all = Waits::all(json);
    let waits = |name: &str, part: &str| &all[&(name.to_owned(), part.to_owned())];
    let mut wrong = String::new();
    let mut expect = |what: &str, is_right: bool, found: String| {
        println!("{what}: {found}{}", if is_right { "" } else { " WRONG" });
        if !is_right {
            wrong.push_str(&format!("{what}: {found}; "));
        }
    };
    let partner = |cause: &Cause| {
        let thread = (cause.tid, cause.session, cause.name.as_str());
        thread == (Some(said.partner), Some(0), "partner")
    };
    let timer = |cause: &Cause| cause.kind == "timer";
    let child = |cause: &Cause| {
        cause.name == "sleep" && cause.tid.is_some_and(|tid| said.children.contains(&tid))
    };
    type Is<'a> = &'a dyn Fn(&Cause) -> bool;
    for (name, is_it) in
        [("handed", &partner as Is<'_>), ("piped", &partner), ("slept", &timer), ("waited", &child)]
    {
        let blocked = waits(name, "blocked");
        // Some kernels drop events of a busy machine without counting the losses. The cause is then unknown,
        // but no other cause is named.
        let (percent, unknown) = (blocked.percent(is_it), blocked.percent(is_unknown));
        expect(
            name,
            percent >= 50.0 && percent + unknown >= 95.0 && blocked.sum > ROUNDS * 900_000,
            format!("{percent:.1} %, not known {unknown:.1} % of {} ns", blocked.sum),
        );
    }
    // All hogs run on the program's CPU, so they run only while the program's thread waits.
    let competed = waits("competed", "runnable");
    let hogs = hogs.iter().map(|hog| u64::from(hog.0.id())).zip(said.beside.iter().copied());
    let others = hogs.map(|(pid, ran)| (competed, pid, ran));
    let shared = (waits("shared", "runnable"), said.partner, ROUNDS * COMPUTE);
    for (waits, tid, ran) in others.chain([shared]) {
        let found = waits.causes.iter().filter(|(cause, _)| cause.tid == Some(tid));
        let found: u64 = found.map(|(_, ns)| ns).sum();
        let unknown = (waits.percent(is_unknown) / 100.0 * waits.sum as f64) as u64;
        let off = ran / 20 + 2_000_000;
        let is_near = found <= ran + off && found + unknown + off >= ran;
        expect("another thread", is_near, format!("{found} ns of {ran}"));
    }
    let runnable =
        || all.iter().filter(|((_, part), _)| part == "runnable").map(|(_, waits)| waits);
    let sum: u64 = runnable().map(|waits| waits.sum).sum();
    let unknown = runnable().map(|waits| waits.percent(is_unknown) / 100.0 * waits.sum as f64);
    let unknown = unknown.sum::<f64>() * 100.0 / sum as f64;
    let busy = fs::read_to_string("/proc/loadavg").unwrap();
    let busy: f64 = busy.split(' ').next().unwrap().parse().unwrap();
    let cpus = thread::available_parallelism().unwrap().get();
    let most = if busy > 3.0 * cpus as f64 { 50.0 } else { 1.0 };
    expect("not known", unknown <= most, format!("{unknown:.2} % of {sum} ns at a load of {busy}"));
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong}{json}")) }
}

/// Starts two hogs on the first CPU. Returns the hogs, and the program's argument.
fn with_hogs(place: &Path) -> (Vec<Hog>, String) {
    let cpu = truth::first_cpu();
    let hogs = ["hog_one", "hog_two"].map(|name| Hog::start(place, name, cpu));
    let pids = hogs.iter().map(|hog| format!(" {}", hog.0.id()));
    let argument = format!("{}{}", place.display(), Vec::from_iter(pids).concat());
    (hogs.into(), argument)
}

#[test]
fn of_a_program() {
    if let Some(argument) = traced::argument() {
        return wait_for_others(&argument);
    }
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }
    three_times(|| {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("S");
        let (hogs, argument) = with_hogs(place.path());
        let mut command = HYPERTRACE.command(["record", "--kernel", "-o"]);
        traced::program(command.arg(&out), this_test!(), &argument);
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        if !has_kernel_trace(&ran) {
            return Ok(());
        }
        check(&regions(&[&out]), &Said::read(place.path()), &hogs)
    });
}

#[test]
fn of_a_program_beside_a_recording_of_all_threads() {
    if let Some(argument) = traced::argument() {
        return wait_for_others(&argument);
    }
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }
    three_times(|| {
        let place = tempfile::tempdir().unwrap();
        let [out, kernel] = ["S", "K"].map(|name| place.path().join(name));
        let (hogs, argument) = with_hogs(place.path());
        let mut command = HYPERTRACE.command(["record", "-a", "-o"]);
        let mut recorder = command.arg(&kernel).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = recorder.stderr.take().unwrap();
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains("recording the kernel's events") {
            let mut bytes = [0; 1];
            if stderr.read(&mut bytes).unwrap() == 0 {
                capability::missing("tracefs", String::from_utf8_lossy(&said));
                recorder.wait().unwrap();
                return Ok(());
            }
            said.push(bytes[0]);
        }
        capability::used("tracefs");
        let mut command = HYPERTRACE.command(["record", "-o"]);
        traced::program(command.arg(&out), this_test!(), &argument);
        let ran = run(&mut command);
        run(Command::new("kill").args(["-INT", &recorder.id().to_string()])).ok();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        recorder.wait().unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        check(&regions(&[&out, &kernel]), &Said::read(place.path()), &hogs)
    });
}

#[test]
fn of_a_program_of_an_ordinary_user() {
    if let Some(argument) = traced::argument() {
        return wait_for_others(&argument);
    }
    if let Some(why) = truth::is_missing() {
        return capability::missing("schedstat", why);
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
    let [hypertrace, program, out] =
        ["hypertrace", "program", "S"].map(|name| place.path().join(name));
    copy_program(HYPERTRACE.0, &hypertrace);
    copy_program(std::env::current_exe().unwrap(), &program);
    let (hogs, argument) = with_hogs(place.path());
    let alone = traced::alone(this_test!(), &argument);
    let mut command = Command::new(&hypertrace);
    command.args(["record", "--kernel", "-o"]).arg(&out).arg("--").arg(&program);
    command.args(alone.get_args()).current_dir("/");
    command.envs(alone.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let ran = run(&mut command);
    if ran.stderr.contains("perf_event_open") {
        return capability::missing("perf", ran.stderr);
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if ran.stderr.contains("(by tracefs)") {
        // This machine lets all users trace.
        return;
    }

    let all = Waits::all(&regions(&[&out]));

    let said = Said::read(place.path());
    for ((name, part), waits) in &all {
        for cause in waits.causes.keys() {
            let is_not_known = is_unknown(cause) && cause.name == "not_recorded";
            let is_hog = |tid: u64| hogs.iter().any(|hog| u64::from(hog.0.id()) == tid);
            let is_own = part == "runnable" && cause.tid.is_some_and(|tid| !is_hog(tid));
            assert!(is_own || is_not_known, "{name} {part}: {cause:?}");
        }
    }
    let shared = &all[&("shared".to_owned(), "runnable".to_owned())];
    let percent = shared.percent(|cause| cause.tid == Some(said.partner));
    assert!(percent > 1.0, "{percent} % of {} ns", shared.sum);
}

#[test]
fn of_two_guests() {
    if !kvm::is_usable() {
        return;
    }
    three_times(|| {
        let place = tempfile::tempdir().unwrap();
        let [first, second] = ["S", "T"].map(|name| place.path().join(name));
        let cpu = truth::first_cpu();
        let start = |out: &Path| {
            let mut command = HYPERTRACE.demo(out, 1);
            command.args(["--kernel", "--times", "20"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let start = move || {
                truth::pin_to(cpu);
                command.spawn().unwrap()
            };
            thread::spawn(start).join().unwrap()
        };
        let both = [&first, &second].map(|out| start(out));
        for ran in both.map(|demo| demo.wait_with_output().unwrap()) {
            let said = String::from_utf8_lossy(&ran.stderr);
            if !ran.status.success() {
                capability::missing("tracefs", said);
                return Ok(());
            }
            if said.contains("(by perf)") {
                capability::missing("tracefs", "perf does not tell because of whom a thread waits");
                return Ok(());
            }
        }
        capability::used("tracefs");
        let json = regions(&[&first, &second]);
        for (session, other) in [(0, 1), (1, 0)] {
            let mut own = json.clone();
            own["regions"].as_array_mut().unwrap().retain(|group| group["session"] == session);
            let all = Waits::all(&own);
            let runnable =
                all.iter().find(|((_, part), _)| part == "runnable").map(|(_, waits)| waits);
            let Some(waits) = runnable else { return Err(format!("nobody waited: {json}")) };
            let named = waits
                .percent(|cause| cause.name.starts_with("vcpu") && cause.session == Some(other));
            let unknown = waits.percent(is_unknown);
            println!(
                "{session}: {named:.1} % by the other's vCPU, {unknown:.2} % not known, of {} ns",
                waits.sum
            );
            if named < 5.0 || unknown > 20.0 {
                return Err(format!("{named} %, {unknown} %: {own}"));
            }
        }
        Ok(())
    });
}
