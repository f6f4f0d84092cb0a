//! `record -p`, `record --kernel` and `demo --kernel`: the kernel's events beside a session, in files that
//! trace-cmd reads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hypertrace_abi::clock::ticks;
use hypertrace_tests::command::{Demo, Hypertrace, Ran, copy_program, run};
use hypertrace_tests::inject::without_perf;
use hypertrace_tests::interrupt::{send, with_default_signals};
use hypertrace_tests::namespace::{self, Mount};
use hypertrace_tests::trace_cmd::{self, Shown};
use hypertrace_tests::{capability, kvm};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns the number of events in the closing line, if the kernel's trace was used. Otherwise reports that
/// the kernel's trace is missing.
#[track_caller]
fn recorded(ran: &Ran) -> Option<u64> {
    // The command asked for events that perf does not have.
    if ran.code == Some(1) && ran.stderr.contains("only root may use it") {
        capability::missing("tracefs", &ran.stderr);
        return None;
    }
    let line = ran.stderr.lines().find(|line| {
        line.contains(" kernel events (by ") && !line.contains("that was left incomplete")
    });
    let line = line.unwrap_or_else(|| panic!("no closing line: {ran:?}"));
    // perf counts lost events since Linux 6.0.
    let is_old = line.contains("(by perf)") && line.ends_with(", losses unknown");
    assert!(line.ends_with(", none lost") || is_old, "{line}");
    let count = line.trim_start_matches("hypertrace: ").split(' ').next().unwrap();
    if line.contains("(by perf)") {
        capability::missing("tracefs", ran.stderr.lines().nth(1).unwrap_or_default());
        return None;
    }
    capability::used("tracefs");
    Some(count.replace(',', "").parse().unwrap())
}

/// Returns a command that records a program into `dir`.
fn record(dir: &Path, program: &[&str]) -> Command {
    let mut command = HYPERTRACE.command(["record", "--kernel", "-o"]);
    command.arg(dir).args(program);
    command
}

/// Returns the host's frequency from session.json.
fn frequency(dir: &Path) -> u64 {
    let json = fs::read(dir.join("session.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["finished"], true);
    json["clocks"][0]["frequency"].as_u64().unwrap()
}

/// Asserts that the events happened between two readings of the counter.
#[track_caller]
fn check_times(dir: &Path, events: &[Shown], from: u64, to: u64) {
    let frequency = u128::from(frequency(dir));
    let ns = |ticks: u64| (u128::from(ticks) * 1_000_000_000 / frequency) as u64;
    // trace-cmd's multiplier has 32 bits, so times since the boot have a relative error, of less than 10^-9.
    let slack = ns(to) / 1_000_000_000 + 1_000;
    let range = ns(from) - slack..=ns(to) + slack;
    for event in events {
        assert!(range.contains(&event.time), "{event:?} is outside {range:?}");
    }
    assert!(events.is_sorted_by_key(|event| event.time));
}

#[test]
fn a_program_is_recorded_with_its_children_and_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let from = ticks();

    let ran = run(&mut record(&out, &["sh", "-c", "sleep 0.001; sleep 0.001; exit 7"]));

    let to = ticks();
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let Some(count) = recorded(&ran) else { return };
    let Some(read) = trace_cmd::contents(&out.join("kernel.dat")) else { return };
    let (events, cpus) = (read.events, read.cpus);
    assert_eq!(events.len() as u64, count);
    check_times(&out, &events, from, to);
    // The second buffer has the switches that the first buffer has, and the wakeups of threads. A report
    // shows the first buffer alone.
    assert_eq!(cpus.len() as u64, number_before(" about all threads", &ran.stderr));
    let is_switch = |event: &&Shown| event.name == "sched_switch";
    let is_there = |event: &Shown| {
        // Each buffer reads the clock by itself.
        let same = |other: &&Shown| other.fields == event.fields && other.thread == event.thread;
        cpus.iter().filter(same).any(|other| other.time.abs_diff(event.time) < 1_000_000)
    };
    assert!(events.iter().filter(is_switch).all(is_there));
    // The second buffer has at least the timers of the program's sleeps.
    let timers = ["sched_waking", "hrtimer_expire_entry", "hrtimer_expire_exit"];
    // Events that say which thread ended a process. The shell waits for two processes of its own.
    let ends = ["task_newtask", "sched_process_exec", "sched_process_exit"];
    for name in timers.into_iter().chain(ends) {
        assert!(cpus.iter().any(|event| event.name == name), "{name}: {cpus:?}");
    }
    let report = run(HYPERTRACE.command(["report"]).arg(&out)).ok();
    assert_eq!(report.matches("  kernel/").count() as u64, count);
    assert!(!report.contains("sched_waking"));
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert!(names.contains(&"sched_switch") && names.contains(&"sched_wakeup"), "{names:?}");
    let stat = run(HYPERTRACE.command(["info"]).arg(&out)).ok();
    assert!(stat.contains(" events, 0 lost") && !stat.contains("? lost"), "{stat}");
    let forks = events.iter().filter(|event| event.name == "sched_wakeup_new").count();
    assert!(forks >= 3, "the shell and two children: {forks}");
    assert!(!out.join(".kernel").exists());
}

#[test]
fn each_point_of_the_demo_stands_between_its_exit_and_the_next_run() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");

    let ran = run(HYPERTRACE.demo(&out, 2).arg("--kernel"));

    let demo: Demo = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!((&*demo.mode, demo.reference_points), ("kvm", 2_000));
    let Some(count) = recorded(&ran) else { return };
    capability::used("kvm");
    let report = run(HYPERTRACE.command(["report", "--json"]).arg(&out)).ok();
    let mut vcpus = [Order::default(), Order::default()];
    // The test tells threads apart by id, because the kernel may have lost a thread's name, and the threads
    // of another VMM may have the same names.
    let mut threads: BTreeMap<u64, usize> = BTreeMap::new();
    for line in report.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let (of, name) = event["source"].as_str().unwrap().split_once('/').unwrap();
        let number = |name: &str| name.split(' ').next()?.parse::<usize>().ok();
        let vcpu = match of {
            "kernel" => {
                name.rsplit('-').next().and_then(|tid| threads.get(&tid.parse().ok()?)).copied()
            }
            "vmm" => name.strip_prefix("vcpu").and_then(number),
            _ => number(name),
        };
        let Some(vcpu) = vcpu else { continue };
        if (of, &event["event"]) == ("vmm", &"lease".into()) {
            threads.insert(event["fields"]["tid"].as_u64().unwrap(), vcpu);
        }
        vcpus[vcpu].take(of, &event);
    }
    assert_eq!(threads.len(), 2);
    assert_eq!(vcpus.map(|vcpu| vcpu.points), [1_000, 1_000]);
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    assert_eq!(events.len() as u64, count);
    // The recording has the events that a breakdown needs, and no event that only costs time.
    let count_of = |name: &str| events.iter().filter(|event| event.name == name).count();
    assert!(count_of("kvm_userspace_exit") >= 2_000 && count_of("kvm_fpu") >= 4_000);
    assert_eq!(count_of("kvm_emulate_insn") + count_of("vcpu_match_mmio"), 0);
}

/// The last steps of a vCPU of the demo, in the order of a report.
#[derive(Default)]
struct Order {
    points: u64,
    /// Number of requests before the last point
    requests: u64,
    /// Value of the last store to the device, which is a point's number
    stored: Option<u64>,
    /// Sequence number of the last point that the VMM has answered without running the guest again
    answered: Option<u64>,
}

impl Order {
    #[track_caller]
    fn take(&mut self, of: &str, event: &Value) {
        let fields = &event["fields"];
        match (of, event["event"].as_str().unwrap_or_default()) {
            // The upper half is the hash of the event's name.
            ("kernel", "kvm:kvm_mmio") => {
                // A number that is too large for a double is a string.
                let value = fields["val"].to_string();
                let value = value.trim_matches('"').parse::<u64>().unwrap();
                self.stored = Some(value & 0xffff_ffff);
            }
            ("guest", "round_done") => {
                self.points += 1;
                assert_eq!(event["reference"]["seq"], self.points, "{event}");
                assert_eq!(self.stored, Some(self.points), "the exit is before its point: {event}");
                // Of a round's 100 events, 4 belong to its regions.
                assert_eq!(self.requests, 96 * self.points, "{event}");
                self.answered = Some(self.points);
            }
            ("guest", "request" | "cache_miss" | "queue" | "reply") => self.requests += 1,
            ("vmm", "vcpu_run") => self.answered = None,
            ("vmm", "vcpu_exit") => assert_eq!(self.answered, None, "vcpu_run is missing: {event}"),
            _ => {}
        }
    }
}

#[test]
fn run_records_the_kernel_beside_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--kernel", "-o"]);

    let ran = run(command.arg(&out).args(["--", "sh", "-c", "sleep 0.001; exit 3"]));

    assert_eq!(ran.code, Some(3), "{ran:?}");
    let Some(count) = recorded(&ran) else { return };
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    assert_eq!(events.len() as u64, count);
    // The kernel loses a thread's name if the kernel's table of names is locked, so the test looks for the
    // name in an event.
    assert!(events.iter().any(|event| event.fields.contains("prev_comm=sleep ")), "{events:?}");
}

/// Starts to record a process, and waits until the recording has begun.
fn start(dir: &Path, pid: u32) -> (Child, String) {
    let mut command = HYPERTRACE.command(["record", "-o"]);
    command.arg(dir).args(["--pid", &pid.to_string()]).stderr(Stdio::piped());
    let mut child = with_default_signals(&mut command).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    while !said.contains("recording the kernel's events") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    child.stderr = Some(stderr.into_inner());
    (child, said)
}

/// Returns the result of a command that was started.
fn end(mut child: Child, mut said: String) -> Ran {
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    Ran { code: child.wait().unwrap().code(), stdout: String::new(), stderr: said }
}

/// Starts a shell that runs `true` when its stdin is closed.
fn waiting_shell() -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; /bin/true; /bin/true"]).stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_running_process_joins_a_session_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let session =
        run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&out).args(["--", "true"]));
    assert_eq!(session.code, Some(0), "{session:?}");
    let json = fs::read(out.join("session.json")).unwrap();
    let mut shell = waiting_shell();

    let (recorder, said) = start(&out, shell.id());
    drop(shell.stdin.take());
    // A process counts as ended even if its parent has not waited for it.
    let ran = end(recorder, said);
    shell.wait().unwrap();

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read(out.join("session.json")).unwrap(), json, "the session is as it was");
    let Some(count) = recorded(&ran) else { return };
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    assert_eq!(events.len() as u64, count);
    let born = |event: &&Shown| event.name == "sched_wakeup_new" && event.thread == shell.id();
    assert!(events.iter().filter(born).count() >= 1, "{events:?}");
    assert!(events.iter().any(|event| event.thread == shell.id()));
    let file = fs::read(out.join("kernel.dat")).unwrap();
    let threads = format!("; threads={}\0", shell.id());
    assert!(file.windows(threads.len()).any(|bytes| bytes == threads.as_bytes()));
}

#[test]
fn an_interrupt_ends_it_and_keeps_what_was_recorded() {
    // A terminal that is closed sends the last signal.
    for signal in ["INT", "TERM", "HUP"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("S");
        let mut shell = waiting_shell();
        let (recorder, said) = start(&out, shell.id());

        send(signal, recorder.id().into());

        let ran = end(recorder, said);
        assert_eq!(ran.code, Some(0), "{signal}: {ran:?}");
        assert!(ran.stderr.contains("the programs' own events are not recorded"), "{ran:?}");
        recorded(&ran);
        assert!(out.join("kernel.dat").exists());
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}

/// Shell commands after which root cannot use the kernel's trace, because another user owns the folder for
/// notes.
const NO_TRACE: &str =
    "mkdir -p /run/hypertrace && mount -t tmpfs -o uid=65534 none /run/hypertrace";

#[test]
fn perf_records_where_the_kernels_trace_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let record = HYPERTRACE.command(["record", "--kernel", "-o"]);
    let Some(mut command) = namespace::inside(NO_TRACE, &record) else { return };

    let ran = run(command.arg(dir.path().join("S")).args(["--", "sh", "-c", "exit 7"]));

    if ran.stderr.contains("perf_event_open") {
        return capability::missing("perf", ran.stderr);
    }
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stderr.contains("(by perf)"), "{ran:?}");
    for option in [["-e", "sched:*"], ["--buffer", "64K"]] {
        let mut command = namespace::inside(NO_TRACE, &record).unwrap();
        let ran = run(command.arg(dir.path().join("T")).args(option).args(["--", "true"]));
        let said = ran.failed(1);
        assert!(said.contains("the kernel's tracing cannot be used: "), "{said}");
        assert!(!dir.path().join("T/session.json").exists());
    }
}

/// Returns a command that may use neither the kernel's trace nor perf. On a stock Debian, every user but root
/// is denied both. Returns `None`, with a report, if this machine cannot prevent the use.
fn command_without_kernel(arguments: &[&str]) -> Option<Command> {
    let command = HYPERTRACE.command(arguments);
    let mut command = match rustix::process::geteuid().is_root() {
        true => namespace::inside(NO_TRACE, &command)?,
        // A user without notes does not use the kernel's trace.
        false => command,
    };
    without_perf(command.env_remove("XDG_RUNTIME_DIR"));
    Some(command)
}

/// Asserts that a command said once why it has no events of the kernel, and made a session without such
/// events.
#[track_caller]
fn has_no_kernel(ran: &Ran, code: i32, out: &Path, why: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let mut said =
        ran.stderr.lines().filter(|line| line.contains("the kernel's events are not recorded: "));
    assert!(said.next().is_some_and(|line| line.contains(why)), "{ran:?}");
    assert_eq!((said.next(), ran.stderr.matches(why).count()), (None, 1), "{ran:?}");
    assert_eq!(HYPERTRACE.info(out)["finished"], true);
    assert!(!out.join("kernel.dat").exists() && !out.join(".kernel").exists());
}

#[test]
fn a_program_is_recorded_alone_where_the_kernel_lets_nothing_be_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let why = "perf_event_open of thread ";
    let program = ["--", "sh", "-c", "exit 7"];
    for (options, name) in [(&["--kernel"][..], "said"), (&["--kernel", "--quiet"], "quiet")] {
        let out = out(name);
        let arguments = [&["record", "-o", &out], options, &program].concat();
        let Some(mut record) = command_without_kernel(&arguments) else { return };
        has_no_kernel(&run(&mut record), 7, Path::new(&out), why);
    }
    let demo = out("demo");
    let mut command = command_without_kernel(&["demo", "--kernel", "-o", &demo]).unwrap();
    has_no_kernel(&run(&mut command), 0, Path::new(&demo), why);

    // A command that must have the kernel's events does not record without them: for these events alone, for
    // other processes, or for a comparison.
    let pid = std::process::id().to_string();
    let refused = out("refused");
    for arguments in [
        &["record", "-o", &refused, "-a"][..],
        &["record", "-o", &refused, "-p", &pid],
        &["record", "-o", &refused, "-e", "sched:*", "--", "true"],
        &["record", "-o", &refused, "--buffer", "64K", "--", "true"],
        &["compare", "--run", "--kernel", "-o", &refused, "true", "true"],
    ] {
        let ran = run(&mut command_without_kernel(arguments).unwrap());
        assert_eq!(ran.code, Some(1), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("cannot be used") || ran.stderr.contains(why), "{ran:?}");
        assert!(!Path::new(&refused).join("session.json").exists(), "{arguments:?}");
    }
}

#[test]
fn a_program_is_recorded_alone_where_the_system_does_not_list_its_cpus() {
    // perf needs the list of CPUs.
    let mounts = format!("{NO_TRACE} && mount -t tmpfs none /sys/devices/system/cpu");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let start = HYPERTRACE.command(["record", "--kernel", "-o"]);
    let Some(mut start) = namespace::inside(&mounts, &start) else { return };

    let ran = run(start.arg(&out).args(["--", "sh", "-c", "exit 7"]));

    has_no_kernel(&ran, 7, &out, "cannot list the CPUs");
}

#[test]
fn a_program_that_lost_the_session_is_told_beside_the_kernels_events() {
    let dir = tempfile::tempdir().unwrap();

    let ran = run(&mut record(&dir.path().join("S"), &["env", "-i", "/bin/true"]));

    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("no program has traced: "), "{ran:?}");
    assert!(ran.stderr.contains("`runuser -u USER -- PROGRAM`"), "{ran:?}");
}

#[test]
fn a_program_runs_where_there_is_no_host_to_forward_to() {
    let forward = |more: &[&str]| {
        run(HYPERTRACE.command(["forward"]).args(more).env_remove("HYPERTRACE_SEGMENT"))
    };

    let ran = forward(&["sh", "-c", "echo $0; exit 7", "given"]);

    assert_eq!((ran.code, &*ran.stdout), (Some(7), "given\n"), "{ran:?}");
    let said = "the kernel's events are not recorded: there is no host to record for: ";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{ran:?}");
    let said = forward(&[]).failed(1);
    assert!(said.contains("there is no host to record for: "), "{said}");
    forward(&["/no/such/program"]).failed(127);
}

#[test]
fn a_program_has_the_limit_of_files_that_it_had_without_a_recorder() {
    for command in ["record", "record --kernel"] {
        let dir = tempfile::tempdir().unwrap();
        let (out, limit) = (dir.path().join("S"), dir.path().join("limit"));
        let script = format!(
            "ulimit -Sn 256; exec {} {command} --quiet -o {} sh -c 'ulimit -Sn > {}'",
            HYPERTRACE.0,
            out.display(),
            limit.display()
        );

        let ran = run(Command::new("sh").args(["-c", &script]));

        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(fs::read_to_string(limit).unwrap().trim(), "256", "{command}");
    }
}

#[test]
fn another_user_records_the_scheduling_of_its_threads() {
    let dir = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let program = dir.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &program);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let out = dir.path().join("S");
    let mut command = Command::new(&program);
    command.args(["record", "--kernel", "-o"]).arg(&out).args(["sh", "-c", "sleep 0.01; exit 7"]);
    if is_root {
        command.uid(65534).gid(65534).current_dir("/");
    }
    let from = ticks();

    let ran = run(&mut command);

    let to = ticks();
    if ran.stderr.contains("perf_event_open") {
        capability::missing("perf", ran.stderr);
        return;
    }
    assert_eq!(ran.code, Some(7), "{ran:?}");
    if ran.stderr.contains("(by tracefs)") {
        // This machine lets all users trace.
        return;
    }
    assert!(ran.stderr.contains("only root may use it"), "{ran:?}");
    assert!(ran.stderr.contains("but no exits of guests"), "{ran:?}");
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    check_times(&out, &events, from, to);
    // The shell waits for its child, which sleeps.
    for (comm, name, fields) in [
        ("sh", "switch_out", "preempted=0"),
        ("sleep", "switch_out", "preempted=0"),
        ("sleep", "switch_in", "pid="),
    ] {
        let is_one = |e: &&Shown| e.comm == comm && e.name == name && e.fields.contains(fields);
        assert!(events.iter().any(|event| is_one(&event)), "{comm} {name}: {events:?}");
    }
    // If events are named, `record` does not record other events instead.
    let mut command = Command::new(&program);
    command.args(["record", "-e", "kvm:*", "-o"]).arg(dir.path().join("T")).args(["--", "true"]);
    if is_root {
        command.uid(65534).gid(65534).current_dir("/");
    }
    let said = run(&mut command).failed(1);
    assert!(said.contains("only root may use it"), "{said}");
    assert!(!dir.path().join("T").join("session.json").exists());
}

#[test]
fn in_a_pid_namespace_perf_records_as_the_kernels_trace_has_other_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", HYPERTRACE.0, "record", "--kernel", "-o"]);
        run(command.arg(&out).args(arguments))
    };

    let named = inside(&["-e", "sched:*", "--", "true"]);

    if named.stderr.starts_with("unshare: ") {
        return capability::missing("pid-namespace", named.stderr);
    }
    let said = named.failed(1);
    assert!(said.contains("numbers of threads outside of this PID namespace"), "{said}");
    capability::used("pid-namespace");
    let ran = inside(&["--", "sh", "-c", "sleep 0.01; exit 7"]);
    if ran.stderr.contains("perf_event_open") {
        return capability::missing("perf", ran.stderr);
    }
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stderr.contains("(by perf)"), "{ran:?}");
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    assert!(events.iter().any(|event| event.comm == "sleep"), "{events:?}");
}

#[test]
fn all_threads_of_the_machine_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "-a", "-o"]);
    command.arg(dir.path().join("S")).stderr(Stdio::piped());
    let mut recorder = with_default_signals(&mut command).spawn().unwrap();
    let (mut said, mut stderr) = (String::new(), BufReader::new(recorder.stderr.take().unwrap()));
    let mut is_said = true;
    while is_said && !said.contains("of all threads in ") {
        is_said = stderr.read_line(&mut said).unwrap() > 0;
    }
    // The recorder's options do not name this shell.
    let shell = Command::new("sh").args(["-c", "sleep 0.01; echo $$"]).output().unwrap();
    let thread = String::from_utf8(shell.stdout).unwrap().trim().parse::<u32>().unwrap();
    if is_said {
        send("INT", recorder.id().into());
    }
    let ended = recorder.wait().unwrap();

    if !is_said {
        assert!(said.contains("tracing cannot be used"), "{said}");
        return capability::missing("tracefs", said);
    }
    assert_eq!(ended.code(), Some(0));
    let Some(read) = trace_cmd::read(&dir.path().join("S/kernel.dat")) else { return };
    assert!(read.iter().any(|event| event.thread == thread), "{thread}");
    capability::used("tracefs");
}

#[test]
fn a_recording_of_all_threads_ends_with_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut other = waiting_shell();

    let mut command = HYPERTRACE.command(["record", "-a", "-o"]);
    let ran = run(command.arg(&out).args(["sh", "-c", "sleep 0.2; exit 5"]));

    if ran.stderr.contains("tracing cannot be used") {
        assert_eq!(ran.code, Some(1), "{ran:?}");
        capability::missing("tracefs", ran.stderr);
    } else {
        assert_eq!(ran.code, Some(5), "{ran:?}");
        assert!(ran.stderr.contains("of all threads in "), "{ran:?}");
        assert!(ran.stderr.contains("next: ") && !ran.stderr.contains("no program has"), "{ran:?}");
        // A recording of all threads does not count its threads.
        let info = HYPERTRACE.info(&out);
        assert_eq!(info["kernel"]["threads"], Value::Null, "{info}");
        capability::used("tracefs");
    }
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn wrong_requests_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let arguments = |more: &[&str]| {
        let mut command = HYPERTRACE.command(["record", "-o"]);
        command.arg(&out).args(more);
        run(&mut command)
    };

    let said = arguments(&["--pid", "2147483647"]).failed(2);
    assert!(said.contains("there is no process 2147483647"), "{said}");
    let no_event = arguments(&["-e", "sched:no_such_event", "--", "true"]);
    if no_event.stderr.contains("tracing cannot be used") {
        capability::missing("tracefs", &no_event.stderr);
    } else {
        let said = no_event.failed(2);
        assert!(said.contains("this kernel has no event \"sched:no_such_event\""), "{said}");
    }
    for event in ["sched_switch", "!sched:sched_switch", "sched:", "a:b c"] {
        let ran = arguments(&["-e", event, "--", "true"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("an event is SYSTEM:EVENT"), "{ran:?}");
    }
    // These options need a program, and the command line has no program.
    for option in ["--ring=64K", "--clients=2", "--segment=f", "--qemu=q", "--relays=1"] {
        let ran = arguments(&["-p", "1", option]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let whys = ["cannot be used with", "were not provided"];
        assert!(whys.iter().any(|why| ran.stderr.contains(why)), "{ran:?}");
    }
    let said = arguments(&["--", "/no/such/program"]).failed(127);
    assert!(said.contains("no such program"), "{said}");
    // Each command left the directory empty or did not make it.
    let left = fs::read_dir(&out).map_or(0, Iterator::count);
    assert_eq!(left, 0);

    assert_eq!(arguments(&["--kernel", "true"]).code, Some(0));
    let said = arguments(&["--pid", &std::process::id().to_string()]).failed(2);
    assert!(said.contains("has a kernel.dat already"), "{said}");
    let said = arguments(&["true"]).failed(2);
    assert!(said.contains("has a session"), "{said}");
    fs::write(dir.path().join("file"), "").unwrap();
    let foreign = run(&mut record(dir.path(), &["true"])).failed(2);
    assert!(foreign.contains("is not empty"), "{foreign}");
}

#[test]
fn two_recordings_of_one_session_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut shell = waiting_shell();
    let (recorder, said) = start(&out, shell.id());

    let mut second = HYPERTRACE.command(["record", "-o"]);
    let second = run(second.arg(&out).args(["-p", &std::process::id().to_string()])).failed(2);

    assert!(second.contains("another process records into"), "{second}");
    drop(shell.stdin.take());
    assert_eq!(end(recorder, said).code, Some(0));
    shell.wait().unwrap();
    let _ = trace_cmd::read(&out.join("kernel.dat"));
}

#[test]
fn a_full_disk_is_reported_with_what_is_missing() {
    // The disk has room for the session, but not for the descriptions of some hundred events.
    let Some(disk) = Mount::new("tmpfs", "size=120k") else { return };
    let out = disk.path().join("S");

    let ran = run(&mut record(&out, &["sh", "-c", "exit 0"]));

    if ran.stderr.contains("by perf") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
}

/// Number of system calls of a flood.
const CALLS: u64 = 100_000;

/// Stops the recorder during a flood of system calls, with buffers that are too small for the flood. Returns
/// `None`, with a report, where the kernel's trace cannot be used.
fn flood(dir: &Path) -> Option<Ran> {
    let mut shell = Command::new("sh");
    let dd = format!("read line; dd if=/dev/zero of=/dev/null bs=1 count={}", CALLS / 2);
    shell.args(["-c", &dd]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    let mut command = HYPERTRACE.command(["record", "--buffer", "64K", "-o"]);
    command.arg(dir).args(["-e", "raw_syscalls:sys_enter", "--pid", &shell.id().to_string()]);
    let mut recorder = command.stderr(Stdio::piped()).spawn().unwrap();
    let (mut said, mut stderr) = (String::new(), BufReader::new(recorder.stderr.take().unwrap()));
    while !said.contains("recording the kernel's events") {
        if stderr.read_line(&mut said).unwrap() == 0 {
            assert!(said.contains("tracing cannot be used"), "{said}");
            capability::missing("tracefs", said);
            let _ = (shell.kill(), shell.wait(), recorder.wait());
            return None;
        }
    }
    recorder.stderr = Some(stderr.into_inner());
    send("STOP", recorder.id().into());
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    send("CONT", recorder.id().into());
    Some(end(recorder, said))
}

/// Returns the number of kernel events that a session has, and the number that it lacks.
fn kernel_counts(session: &Path) -> (u64, u64) {
    let stat = run(HYPERTRACE.command(["info", "--json"]).arg(session));
    let json: serde_json::Value = serde_json::from_str(&stat.stdout).unwrap();
    let cpus = json["sessions"][0]["kernel"]["cpus"].as_array().unwrap();
    let sum = |key: &str| cpus.iter().map(|cpu| cpu[key].as_u64().unwrap()).sum();
    (sum("events"), sum("lost"))
}

/// Returns the number before a text.
fn number_before(text: &str, line: &str) -> u64 {
    let before = line.split_once(text).unwrap_or_else(|| panic!("{text:?}: {line}")).0;
    before.rsplit(' ').next().unwrap().replace(',', "").parse().unwrap()
}

#[test]
fn events_that_no_buffer_held_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");

    let Some(ran) = flood(&out) else { return };

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.stderr.lines().find(|line| line.contains(" lost: ")).unwrap();
    assert!(line.contains("buffer full (raise --buffer, 64K now)"), "{line}");
    let (events, lost) = (number_before(" kernel events", line), number_before(" lost: ", line));
    assert!(events > 0 && events + lost >= CALLS, "{line}");
    capability::used("tracefs");
    let Some(read) = trace_cmd::contents(&out.join("kernel.dat")) else { return };
    assert_eq!(read.events.len() as u64, events);
    assert!(read.gaps > 0);
}

#[test]
fn switches_that_no_ring_of_perf_held_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &program);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let as_user = |command: &mut Command| {
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.current_dir(dir.path());
    };
    // Two processes wait for each other, and print at the end how often they did.
    let turns = "mkfifo a b; read line
        (while read l; do echo x; done; grep ^volun /proc/self/../$(exec sh -c 'echo $PPID')/status >&2) <a >b &
        exec 3>a 4<b; i=0
        while [ $i -lt 40000 ]; do echo x >&3; read l <&4; i=$((i+1)); done
        exec 3>&-; wait; grep ^volun /proc/$$/status >&2";
    let mut shell = Command::new("sh");
    as_user(shell.args(["-c", turns]).stdin(Stdio::piped()).stderr(Stdio::piped()));
    let mut shell = shell.spawn().unwrap();
    let mut recorder = Command::new(&program);
    recorder.args(["record", "-o", "S", "--pid", &shell.id().to_string()]);
    as_user(recorder.stderr(Stdio::piped()));
    let mut recorder = recorder.spawn().unwrap();
    let (mut said, mut stderr) = (String::new(), BufReader::new(recorder.stderr.take().unwrap()));
    while !said.contains("recording the kernel's events") {
        if stderr.read_line(&mut said).unwrap() == 0 {
            assert!(said.contains("perf_event_open"), "{said}");
            capability::missing("perf", said);
            let _ = (shell.kill(), shell.wait(), recorder.wait());
            return;
        }
    }
    recorder.stderr = Some(stderr.into_inner());
    send("STOP", recorder.id().into());
    drop(shell.stdin.take());
    let shell = shell.wait_with_output().unwrap();
    send("CONT", recorder.id().into());
    let ran = end(recorder, said);

    let counts = String::from_utf8(shell.stderr).unwrap();
    let waits = counts.lines().map(|line| line.split_whitespace().last().unwrap().parse::<u64>());
    let waits = waits.collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!((waits.len(), ran.code), (2, Some(0)), "{counts} {ran:?}");
    if ran.stderr.contains("(by tracefs)") || ran.stderr.contains("losses unknown") {
        // Either all users may trace, or the kernel is older than 6.0 and its perf counts no losses.
        return capability::missing("perf", &ran.stderr);
    }
    let line = ran.stderr.lines().find(|line| line.contains(" lost: ")).unwrap_or(&ran.stderr);
    let (events, lost) = (number_before(" kernel events", line), number_before(" lost: ", line));
    // Each wait makes two switches.
    assert!(lost > 0 && events + lost >= 2 * waits.iter().sum::<u64>(), "{waits:?} {line}");
    capability::used("perf");
}

#[test]
fn a_recording_on_a_full_disk_is_completed_when_there_is_room() {
    let Some(disk) = Mount::new("tmpfs", "size=4m") else { return };
    let (out, ballast) = (disk.path().join("S"), disk.path().join("ballast"));
    let session =
        run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&out).args(["--", "true"]));
    assert_eq!(session.code, Some(0), "{session:?}");
    // A recording of the same event without a flood shows the size of the descriptions and of a page or two
    // of data.
    let dir = tempfile::tempdir().unwrap();
    // Each recording also contains a varying number of scheduling events. Therefore, the test makes several
    // recordings and uses the size of the smallest.
    let mut sizes = Vec::new();
    for number in 0..5 {
        let small_out = dir.path().join(number.to_string());
        let mut small = HYPERTRACE.command(["record", "-e", "raw_syscalls:sys_enter", "-o"]);
        let ran = run(small.arg(&small_out).args(["--", "true"]));
        if ran.code != Some(0) {
            capability::missing("tracefs", ran.stderr);
            return;
        }
        sizes.push(fs::metadata(small_out.join("kernel.dat")).unwrap().len());
    }
    let small = sizes.into_iter().min().unwrap();
    // The flood fills a buffer of 16 pages. The disk has room for a part of the buffer, and not for a copy of
    // that part.
    let room = small.next_multiple_of(4096) + 6 * 4096;
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut rest = fs::File::create(disk.path().join("rest")).unwrap();
    while std::io::Write::write(&mut rest, &[1; 4096]).is_ok() {}
    let length = rest.metadata().unwrap().len();
    rest.set_len(length - room).unwrap();

    let Some(ran) = flood(&out) else { return };

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
    assert!(out.join(".kernel").exists() && !out.join("kernel.dat").exists(), "{ran:?}");
    fs::remove_file(&ballast).unwrap();
    let report = run(HYPERTRACE.command(["report"]).arg(&out));
    assert_eq!(report.code, Some(0), "{report:?}");
    assert!(!out.join(".kernel").exists(), "{report:?}");
    // These counts include the events that were in the buffers while the disk was full. The output of
    // `report` also says that `report` has completed the recording, unless the start of another recording has
    // already done so.
    let (events, lost) = kernel_counts(&out);
    assert!(events + lost >= CALLS, "{events} {lost} {report:?}");
    let Some(read) = trace_cmd::contents(&out.join("kernel.dat")) else { return };
    assert_eq!(read.events.len() as u64, events);
}

#[test]
fn events_are_chosen_by_patterns() {
    let dir = tempfile::tempdir().unwrap();
    let of = |events: &[&str], out: &Path| {
        let mut command = HYPERTRACE.command(["record", "-o"]);
        command.arg(out).args(events.iter().flat_map(|event| ["-e", event]));
        run(command.args(["--", "sh", "-c", "sleep 0.001"]))
    };
    let ran = of(&["sched:sched_wakeup*", "sch?d:sched_s?itch"], &dir.path().join("S"));
    if recorded(&ran).is_none() {
        return;
    }
    assert!(ran.stderr.contains("(sched 3)"), "{}", ran.stderr);
    let ran = of(&["sched:nothing*"], &dir.path().join("T"));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("no event \"sched:nothing*\""), "{ran:?}");
}

#[test]
fn damage_in_the_files_of_a_killed_process_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(HYPERTRACE.command(["record", "--quiet", "-o"]).arg(&out).args(["--", "true"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let state = out.join(".kernel");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("recording.json"), "{\"version\": 9").unwrap();

    let report = run(HYPERTRACE.command(["report"]).arg(&out));

    assert_eq!(report.code, Some(0), "the rest is shown: {report:?}");
    assert!(report.stderr.contains("recording.json is damaged"), "{report:?}");
    // An empty recording, of a process that was killed before it recorded, is removed.
    fs::remove_file(state.join("recording.json")).unwrap();
    let report = run(HYPERTRACE.command(["report"]).arg(&out));
    assert_eq!(
        (report.code, &*report.stderr),
        (Some(0), "hypertrace: no events: nothing was recorded\n")
    );
    assert!(!state.exists());
}

#[test]
fn the_scheduling_of_all_threads_is_left_out_if_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let ran = run(&mut record(&out, &["sleep", "0.001"]));
    if recorded(&ran).is_none() {
        return;
    }
    assert!(ran.stderr.contains(" about all threads, none lost"), "{ran:?}");
    let out = dir.path().join("T");
    let mut command = HYPERTRACE.command(["record", "--kernel", "--own-only", "-o"]);
    let ran = run(command.arg(&out).args(["sleep", "0.001"]));
    assert!(ran.stderr.contains("none lost") && !ran.stderr.contains("all threads"), "{ran:?}");
    let text = fs::read(out.join("kernel.dat")).unwrap();
    assert!(!text.windows(12).any(|name| name == b"sched_waking"), "a second buffer's events");
}

#[test]
fn a_recording_of_all_threads_has_what_woke_them_among_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "-a", "-o"]);
    let mut child = with_default_signals(command.arg(&out).stderr(Stdio::piped())).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    while !said.contains("recording the kernel's events") {
        if stderr.read_line(&mut said).unwrap() == 0 {
            child.wait().unwrap();
            capability::missing("tracefs", said);
            return;
        }
    }
    child.stderr = Some(stderr.into_inner());
    run(Command::new("sleep").arg("0.01")).ok();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = end(child, said);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let Some(read) = trace_cmd::contents(&out.join("kernel.dat")) else { return };
    assert!(read.cpus.is_empty() && read.events.iter().any(|event| event.name == "sched_waking"));
    capability::used("tracefs");
}
