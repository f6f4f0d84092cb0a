//! `hypertrace record --qemu`: programs under an emulator record the same events as programs without an
//! emulator.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use std::{fs, thread};

use hypertrace::{Emit, Reply};
use hypertrace_tests::command::{Hypertrace, Ran, copy_program, plugin, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{FULL_SIZE, babeltrace2, capability, this_test, traced, wait_until};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const QEMU: &str = "qemu-x86_64";
const EVENTS: u64 = if FULL_SIZE { 250_000 } else { 5_000 };
/// Number of idle threads.
const IDLE: usize = 3;

/// Returns a `record` command with these arguments and this test as the program.
fn run_test(dir: &Path, arguments: &[&str], name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir).args(arguments).env("HYPERTRACE_QEMU_PLUGIN", plugin());
    traced::program(&mut command, name, argument);
    command
}

/// Runs the program of a test natively and emulated, and checks both sessions.
#[track_caller]
fn does_the_same(name: &str) {
    let (events, points) = traced::sizes(EVENTS);
    for arguments in [&[][..], &["--qemu", QEMU]] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = run_test(dir.path(), arguments, name, "-");
        let ran = run(&mut command);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);

        traced::check_four_threads(dir.path(), events, points);
        let stat = HYPERTRACE.info(dir.path());
        let total = &stat["total"];
        assert_eq!((total["lost"].as_u64(), total["faults_total"].as_u64()), (Some(0), Some(0)));
        // The points were recorded on the vCPUs' threads, not by the host.
        assert_eq!(stat.to_string().contains("\"vcpu "), !arguments.is_empty(), "{stat}");
        if let Some(read) = babeltrace2::count(&dir.path().join("ctf")) {
            assert_eq!(Some(read), total["records"].as_u64());
        }
        let by_host = if arguments.is_empty() { points * traced::THREADS } else { 0 };
        assert_eq!(stat["device"]["reference_points"], by_host, "{stat}");
    }
    capability::used(QEMU);
}

#[test]
fn a_program_does_the_same_natively_and_emulated() {
    if traced::argument().is_some() {
        let (events, points) = traced::sizes(EVENTS);
        assert_eq!(traced::four_threads(events, points), 0);
    } else if capability::program(QEMU).is_some() {
        does_the_same(this_test!());
    }
}

/// Number of points of each name in [`switch_and_look`].
const SWITCHES: u64 = 100;

/// Makes points and checks that each trigger's write is in the file when the point returns.
fn switch_and_look(folder: &Path) {
    let (go, tracing_on) = (folder.join("go"), folder.join("tracing_on"));
    wait_until("the test's signal", || go.exists());
    let is = |state: &str, reply: Result<Reply, Emit>| {
        assert_eq!(reply.unwrap().status, hypertrace::Status::Recorded);
        assert_eq!(fs::read_to_string(&tracing_on).unwrap(), state);
    };
    for n in 0..SWITCHES {
        is("0", hypertrace::reference_point!("plain", n));
        is("1", hypertrace::reference_point!("switching", n));
        fs::write(&tracing_on, "0").unwrap();
    }
}

/// Runs [`switch_and_look`] beside other threads, so that the thread's vCPU number exceeds the numbers of
/// this machine's CPUs.
fn switch_and_look_among_others(folder: &str) {
    let (done, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    thread::scope(|scope| {
        for _ in 0..IDLE {
            scope.spawn(|| wait.lock().unwrap().recv().is_err());
        }
        scope.spawn(move || {
            switch_and_look(Path::new(folder));
            drop(done);
        });
    });
}

/// Runs the program of the test `name`. Meanwhile, runs `ctl` for a trigger on the program's points named
/// `switching`, and for each of the commands. Returns the lines of the program's two kinds of points, and the
/// output of `info`.
#[track_caller]
fn switched(name: &str, commands: &[&str]) -> ([Vec<Line>; 2], Value) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("S");
    fs::write(folder.path().join("tracing_on"), "0").unwrap();
    let argument = folder.path().to_str().unwrap();
    let mut command = run_test(&dir, &["--qemu", QEMU], name, argument);
    let running = thread::spawn(move || run(&mut command));
    let trigger = format!("trigger add on switching do kernel {argument} on");
    for command in [&*trigger].iter().chain(commands) {
        let say = || run(HYPERTRACE.command(["ctl", "-d"]).arg(&dir).args(command.split(' ')));
        wait_until(command, || {
            assert!(!running.is_finished(), "it ended early");
            say().code == Some(0)
        });
    }
    // In this time, the host makes some passes.
    thread::sleep(Duration::from_millis(100));
    fs::write(folder.path().join("go"), "").unwrap();
    let ran = running.join().unwrap();
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
    let lines = HYPERTRACE.report(&dir);
    let points = ["plain", "switching"].map(|name| {
        let points: Vec<Line> = lines.iter().filter(|line| line.event == name).cloned().collect();
        assert_eq!(points.len() as u64, SWITCHES, "{name}");
        points
    });
    (points, HYPERTRACE.info(&dir))
}

#[test]
fn a_trigger_runs_before_its_point_returns_and_the_plugin_takes_other_points() {
    if let Some(folder) = traced::argument() {
        return switch_and_look_among_others(&folder);
    }
    if capability::program(QEMU).is_none() {
        return;
    }

    let ([plain, _], stat) = switched(this_test!(), &[]);

    assert_eq!(stat["device"]["reference_points"], SWITCHES, "{stat}");
    let vcpu = plain[0].reference.unwrap().cpu;
    assert!(vcpu as usize > IDLE, "{plain:?}");
    assert!(stat.to_string().contains(&format!("\"vcpu {vcpu}\"")), "{stat}");
    assert!(plain.iter().all(|line| line.reference.unwrap().cpu == vcpu), "{plain:?}");
    capability::used(QEMU);
}

#[test]
fn the_host_takes_all_points_while_guest_hypertrace_is_on() {
    if let Some(folder) = traced::argument() {
        return switch_and_look_among_others(&folder);
    }
    if capability::program(QEMU).is_none() {
        return;
    }

    let (_, stat) = switched(this_test!(), &["trace-event guest_hypertrace on"]);

    assert_eq!(stat["device"]["reference_points"], 2 * SWITCHES, "{stat}");
    capability::used(QEMU);
}

#[test]
fn the_plugin_may_be_loaded_by_hand() {
    if traced::argument().is_some() {
        let reply = hypertrace::reference_point!("acknowledged", thread = 0u64, point = 1u64);
        assert_eq!(reply.unwrap().status, hypertrace::Status::Recorded);
        return;
    }
    let Some(qemu) = capability::program(QEMU) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--quiet", "--relays", "4", "-o"]);
    command.arg(dir.path()).arg("--").arg(qemu).arg("-plugin").arg(plugin());
    let mut program = Command::new("-");
    traced::program(&mut program, this_test!(), "-");
    command.args(program.get_args().skip(1));
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = run(&mut command);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
    let points = HYPERTRACE.report(dir.path());
    assert!(points.iter().any(|line| line.event == "acknowledged"), "{points:?}");
    assert!(HYPERTRACE.info(dir.path()).to_string().contains("\"vcpu "));
}

#[test]
fn a_missing_emulator_or_plugin_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let refused = |qemu: &str, plugin: &str| {
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(&out).args(["--qemu", qemu, "--", "/bin/true"]);
        command.env("HYPERTRACE_QEMU_PLUGIN", plugin);
        let ran = run(&mut command);
        assert!(!out.exists(), "no session was created");
        ran
    };
    let told = refused("/nowhere/qemu", "").failed(127);
    assert!(told.contains("/nowhere/qemu: no such program"), "{told}");
    let told = refused("/bin/true", "").failed(1);
    assert!(told.contains("/bin/true is not an emulator of QEMU's user mode"), "{told}");
    let machine = "qemu-system-x86_64";
    if capability::program(machine).is_some() {
        let told = refused(machine, "").failed(1);
        assert!(told.contains("is not an emulator of QEMU's user mode"), "{told}");
        capability::used(machine);
    }
    if capability::program(QEMU).is_some() {
        let told = refused(QEMU, "/nowhere/plugin.so").failed(1);
        assert!(told.contains("HYPERTRACE_QEMU_PLUGIN names /nowhere/plugin.so"), "{told}");
    }
    let mut command =
        HYPERTRACE.command(["record", "--quiet", "--clients", "1000", "--relays", "100", "-o"]);
    let told = run(command.arg(&out).args(["--", "/bin/true"])).failed(2);
    assert!(told.contains("more than the 1024"), "{told}");
}

/// Writes a script that passes for an emulator. For `-help`, the script prints a usage, for `--version` this
/// version, and otherwise its arguments.
fn emulator(dir: &Path, version: &str) -> PathBuf {
    let script = format!(
        "#!/bin/sh\ncase $1 in\n-help) echo 'usage: qemu-x86_64 -plugin ' ;;\n\
         --version) echo '{version}' ;;\n*) echo \"$@\" ;;\nesac\n"
    );
    let written = dir.join("script");
    fs::write(&written, script).unwrap();
    fs::set_permissions(&written, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let qemu = dir.join("qemu");
    copy_program(&written, &qemu);
    qemu
}

/// Runs a program under an emulator of this version, without a plugin in the environment.
fn run_under(hypertrace: &Path, dir: &Path, version: &str) -> Ran {
    let mut command = Command::new(hypertrace);
    command.args(["record", "--quiet", "-o"]).arg(dir.join("S")).arg("--qemu");
    command.arg(emulator(dir, version)).args(["--", "/bin/true"]);
    run(command.env_remove("HYPERTRACE_QEMU_PLUGIN"))
}

#[test]
fn a_plugin_that_is_nowhere_is_told_with_the_places_and_what_makes_it() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &alone);

    let ran = run_under(&alone, dir.path(), "qemu-x86_64 version 7.2.22");

    let told = ran.failed(1);
    let place = dir.path().canonicalize().unwrap();
    for part in [
        "HYPERTRACE_QEMU_PLUGIN is not set",
        &format!("in {0}, {0}/deps, {0}/../lib/hypertrace: ", place.display()),
        "`cargo build --release`",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_emulators_release_decides_which_plugin_it_loads() {
    for (version, plugin) in [
        ("qemu-x86_64 version 7.2.22 (Debian)", "/libhypertrace_qemu_plugin.so -0"),
        ("qemu-x86_64 version 10.0.13", "/libhypertrace_qemu_plugin.so -0"),
        ("qemu-x86_64 version 11.1.3 (Debian)", "/libhypertrace_qemu_plugin_7.so -0"),
    ] {
        let dir = tempfile::tempdir().unwrap();

        let ran = run_under(Path::new(HYPERTRACE.0), dir.path(), version);

        let arguments = ran.ok();
        assert!(arguments.starts_with("-plugin /"), "{version}: {arguments}");
        assert!(arguments.contains(plugin), "{version}: {arguments}");
    }
}

#[test]
fn an_emulator_of_an_unknown_release_is_refused() {
    for (version, why) in [
        (
            "qemu-x86_64 version 12.0.1",
            "it is QEMU 12.0.1, and there are plugins for QEMU 6.0 to 11.1",
        ),
        ("usage: qemu", "`--version` prints no version: \"usage: qemu\""),
    ] {
        let dir = tempfile::tempdir().unwrap();

        let told = run_under(Path::new(HYPERTRACE.0), dir.path(), version).failed(1);

        let place = dir.path().join("qemu");
        let what = format!("no plugin for {} (name one in HYPERTRACE_QEMU_PLUGIN", place.display());
        assert!(told.contains(&what), "{told}");
        assert!(told.contains(why), "{told}");
        assert!(!dir.path().join("S").exists(), "no session was created");
    }
}

#[test]
fn emulated_programs_and_threads_keep_their_names() {
    if traced::argument().is_some() {
        hypertrace::event!("of_the_test");
        let named = thread::Builder::new().name("named".into());
        named.spawn(|| hypertrace::event!("of_named")).unwrap().join().unwrap();
        return;
    }
    let name = "run_qemu::emulated_programs_and_threads_keep_their_names";
    let own = std::env::current_exe().unwrap();
    let own = &own.file_name().unwrap().to_str().unwrap()[..15];
    for arguments in [&[][..], &["--qemu", QEMU]] {
        if !arguments.is_empty() && capability::program(QEMU).is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let ran = run(&mut run_test(dir.path(), arguments, name, "-"));
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
        let lines = HYPERTRACE.report(dir.path());
        let named = |event: &str| {
            let line = lines.iter().find(|line| line.event == event).unwrap();
            line.source.split_once(' ').unwrap().1.to_owned()
        };
        assert_eq!(named("of_the_test"), format!("{own}/{}", &name[..15]), "{arguments:?}");
        assert_eq!(named("of_named"), format!("{own}/named"), "{arguments:?}");
    }
    capability::used(QEMU);
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    if capability::program(QEMU).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--quiet", "--qemu", QEMU, "-o"]);
    command.arg(dir.path()).env("HYPERTRACE_QEMU_PLUGIN", plugin());
    let ran = run(command.args(["--", "sh", "-c", "exit 7"]));
    assert_eq!((ran.code, &*ran.stderr), (Some(7), ""));
}
