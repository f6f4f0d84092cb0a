//! C and C++ programs under `hypertrace record`: the session has all of their events.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::c::{self, Compiler, Linked};
use hypertrace_tests::command::{Hypertrace, Ran, plugin, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{babeltrace2, bare, build, capability, interface_2016, traced};
use hypertrace_user::{Config, Session};
use serde_json::{Value, json};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

const THREADS: u64 = 4;
const EVENTS: u64 = 5_000;

/// Folder of the programs' sessions and files.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a program under `record`. Returns the lines of `report`, and the program's output.
    #[track_caller]
    fn trace<A: AsRef<OsStr>>(&self, name: &str, program: &[A]) -> (Vec<Line>, String) {
        let printed = self.run::<&str, A>(name, &[], program);
        (HYPERTRACE.report(&self.session(name)), printed)
    }

    /// Runs a program under `record` with these options. Returns its output.
    #[track_caller]
    fn run<O: AsRef<OsStr>, A: AsRef<OsStr>>(
        &self,
        name: &str,
        options: &[O],
        program: &[A],
    ) -> String {
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(self.session(name)).args(options).env("HYPERTRACE_QEMU_PLUGIN", plugin());
        run(command.arg("--").args(program)).ok()
    }

    fn session(&self, name: &str) -> PathBuf {
        self.path().join(format!("session-{name}"))
    }
}

fn named<'a>(lines: &'a [Line], event: &'a str) -> impl Iterator<Item = &'a Line> {
    lines.iter().filter(move |line| line.event == event)
}

/// Returns THREADS, EVENTS, COMMITS, POINTS for examples/c/events.c.
fn counts() -> [u64; 4] {
    let (events, points) = traced::sizes(EVENTS);
    [THREADS, events, points, points]
}

/// Asserts that every event of examples/c/events.c was recorded, with its fields and in each thread's
/// order, that nothing was lost, and that babeltrace2 reads as many events. Returns the number of
/// leases of emulated threads.
#[track_caller]
fn check_events(session: &Path, program: &Path) -> u64 {
    let name = program.file_name().unwrap().to_str().unwrap();
    let name = name.get(..15).unwrap_or(name);
    let [threads, events, commits, points] = counts();
    let names = ["c_event", "c_commit", "c_point"];
    let mut next = vec![[0; 3]; threads as usize];
    let (mut works, mut vcpus, mut all) = ([0; 2], 0, 0);
    HYPERTRACE.report_each(session, |line| {
        all += 1;
        vcpus += u64::from(line.source.contains("/vcpu "));
        let Some(at) = names.iter().position(|name| *name == line.event) else {
            let work = ["c_work_begin", "c_work_end"].iter().position(|name| *name == line.event);
            match work {
                Some(work) => works[work] += 1,
                None => assert_eq!(line.event, "lease"),
            }
            return;
        };
        let thread = line.number("thread").unwrap();
        let n = next[thread as usize][at];
        let expected = match at {
            0 => json!({
                "thread": thread, "n": n, "minus": -((n % 1000) as i64), "half": n as f64 / 2.0,
                "odd": n % 2 == 1, "text": format!("event {n}"), "where": 0x1000,
            }),
            _ => json!({ "thread": thread, "n": n }),
        };
        assert_eq!(line.reference.is_some(), at == 2, "{line:?}");
        // The threads have no names of their own, so their sources have the program's name.
        assert_eq!(line.source.split_once(' ').unwrap().1, name, "{line:?}");
        assert_eq!(Value::Object(line.fields), expected);
        next[thread as usize][at] += 1;
    });
    assert_eq!(next, vec![[events, commits, points]; threads as usize]);
    assert_eq!(works, [threads; 2]);
    let stat = HYPERTRACE.info(session);
    for stream in stat["streams"].as_array().unwrap() {
        for count in ["lost", "filtered", "faults_total"] {
            assert_eq!(stream[count], 0, "{count} of {stream}");
        }
    }
    if let Some(read) = babeltrace2::count(&session.join("ctf")) {
        assert_eq!(read, all);
    }
    vcpus
}

fn with_counts(words: &[&Path]) -> Vec<std::ffi::OsString> {
    let counts = counts().map(|count| count.to_string().into());
    words.iter().map(|word| word.into()).chain(counts).collect()
}

#[test]
fn one_program_builds_as_c_and_as_cxx_static_and_shared() {
    let place = Place::new();
    for compiler in c::compilers() {
        for linked in [Linked::Archive, Linked::Static, Linked::Shared] {
            let program = compiler.program(&c::source("examples/c/events.c"), linked, place.path());
            let name = program.file_name().unwrap().to_str().unwrap();
            assert_eq!(place.run::<&str, _>(name, &[], &with_counts(&[&program])), "");
            check_events(&place.session(name), &program);
        }
    }
}

#[test]
fn every_event_of_the_c_program_is_recorded() {
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let program =
        compiler.program(&c::source("examples/c/events.c"), Linked::Archive, place.path());
    says_what_to_do(Command::new(&program).args(with_counts(&[])));
    assert_eq!(place.run::<&str, _>("whole", &[], &with_counts(&[&program])), "");
    check_events(&place.session("whole"), &program);
}

/// Asserts that the program runs without a session and says how to start it with one.
#[track_caller]
fn says_what_to_do(command: &mut Command) {
    let Ran { code, stdout, stderr } = run(command);
    assert_eq!((code, &*stdout), (Some(0), ""), "{stderr}");
    assert!(stderr.starts_with("not traced: "), "{stderr}");
    assert!(stderr.ends_with("start it with: hypertrace record -o DIR PROG\n"), "{stderr}");
}

/// Runs the program under an emulator. With the plugin, the vCPUs' threads record the program's points.
/// Without the plugin, the host records the points from the same segment.
fn emulated(emulator: &str, compiler: Option<Compiler>) {
    let (Some(compiler), Some(emulator_path)) = (compiler, capability::program(emulator)) else {
        return;
    };
    let place = Place::new();
    let program = compiler.program(&c::source("examples/c/events.c"), Linked::Static, place.path());

    says_what_to_do(Command::new(&emulator_path).args(with_counts(&[&program])));
    let printed = place.run::<&str, _>("host", &[], &with_counts(&[&emulator_path, &program]));
    assert_eq!(printed, "");
    assert_eq!(check_events(&place.session("host"), &program), 0);

    let options: [&OsStr; 2] = ["--qemu".as_ref(), emulator_path.as_ref()];
    assert_eq!(place.run("plugin", &options, &with_counts(&[&program])), "");
    assert_eq!(check_events(&place.session("plugin"), &program), THREADS, "one lease per thread");
    capability::used(emulator);
}

#[test]
fn the_same_program_under_qemu_x86_64() {
    if cfg!(target_arch = "x86_64") {
        emulated("qemu-x86_64", c::compiler());
    }
}

#[test]
fn the_same_program_for_aarch64_under_qemu_aarch64() {
    emulated("qemu-aarch64", c::aarch64());
}

#[test]
fn the_library_for_aarch64_tells_its_counter_and_its_frequency() {
    let (Some(compiler), Some(emulator)) = (c::aarch64(), capability::program("qemu-aarch64"))
    else {
        return;
    };
    let place = Place::new();
    let program = compiler.program(&c::source("examples/c/events.c"), Linked::Static, place.path());
    let command =
        format!("HYPERTRACE_CLOCK=tsc {} {} 1 9 0 9", emulator.display(), program.display());

    assert_eq!(place.run::<&str, _>("counter", &[], &["sh", "-c", &command]), "");

    assert_has_cntvct(&place.session("counter"));
    capability::used("qemu-aarch64");
}

/// Asserts that the guest of a session has the counter of AArch64, with the rate that the emulator states.
#[track_caller]
fn assert_has_cntvct(session: &Path) {
    let json = std::fs::read(session.join("session.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let [_, guest] = json["clocks"].as_array().unwrap().as_slice() else { panic!("{json}") };
    assert_eq!((&guest["kind"], &guest["assumed"]), (&"cntvct".into(), &true.into()));
    // The rate depends on the emulator's version.
    let frequency = guest["frequency"].as_u64().unwrap();
    assert!([62_500_000, 1_000_000_000].contains(&frequency), "{frequency}");
}

#[test]
fn every_type_of_field_and_kind_of_event() {
    let place = Place::new();
    for compiler in c::compilers() {
        let program =
            compiler.program(&c::source("tests/c/fields.c"), Linked::Archive, place.path());
        let (lines, _) = place.trace(compiler.name, &[&program]);

        // A double would round these numbers, so they are strings.
        let (least, most) = (i64::MIN.to_string(), u64::MAX.to_string());
        let expected = [
            ("none", json!({})),
            (
                "is",
                json!({"i8": i8::MIN, "i16": i16::MIN, "i32": i32::MIN, "i64": least, "ll": least}),
            ),
            (
                "us",
                json!({"u8": u8::MAX, "u16": u16::MAX, "u32": u32::MAX, "u64": most, "ull": most}),
            ),
            (
                "others",
                json!({"yes": true, "no": false, "f": 0.5, "d": -1e300, "color": 1, "zero": 0}),
            ),
            (
                "strings",
                json!({
                    "array": "array", "pointer": "array", "rest": "rray", "text": "",
                    "null": "(null)", "utf8": "hällo", "literal": "a, (b)",
                }),
            ),
            ("pointers", json!({"at": 0x1234, "v": 0xffff_8000_0000_0000_u64.to_string()})),
            (
                "most",
                json!({
                    "a": 1, "b": 2, "c": 3, "e": 4, "f5": 5, "f6": 6, "f7": 7, "f8": 8, "f9": 9,
                    "f10": 10, "f11": 11, "f12": 12, "f13": 13, "f14": 14, "f15": 15, "f16": 16,
                }),
            ),
            ("committed", json!({"s": "commit", "a": 1})),
            ("committed", json!({"s": "again", "a": 1})),
            ("point", json!({"a": 1, "s": "point"})),
            ("point", json!({"a": 1, "s": "again"})),
            ("region_begin", json!({"id": 7})),
            ("if", json!({})),
            ("region_end", json!({"id": 7})),
            ("wide_begin", json!({"id": 8, "a": 1, "s": "x"})),
            ("wide_end", json!({"id": 8})),
            ("hypertrace", json!({"client": 0, "args": [1, 2, 3]})),
            ("hypertrace", json!({"client": 0, "args": [9]})),
        ];
        let found: Vec<_> = lines
            .iter()
            .filter(|line| line.event != "lease")
            .map(|line| (line.event.as_str(), Value::Object(line.fields.clone())))
            .collect();
        assert_eq!(found, expected, "{}", compiler.name);

        // Without a host, the program reports the missing host, and computes no value twice.
        let alone = run(&mut Command::new(&program));
        assert_eq!(alone.code, Some(4), "{alone:?}");
    }
}

#[test]
fn a_program_of_2016_compiles_unchanged_and_its_events_are_recorded() {
    let place = Place::new();
    for compiler in c::compilers() {
        let program =
            compiler.program(&c::source("tests/c/interface_2016.c"), Linked::Archive, place.path());
        let program = program.to_str().unwrap();

        let (lines, printed) = place.trace(compiler.name, &[program, "-", "3", "100"]);

        assert_eq!(printed, "256 clients, 8 arguments\n");
        interface_2016::check(&lines, 3, 100, 8);
        assert!(lines.iter().all(|line| line.event == "lease" || line.event == "hypertrace"));
        let alone = run(&mut Command::new(program));
        assert_eq!((alone.code, &*alone.stdout), (Some(1), "no channel\n"), "{alone:?}");
        assert!(alone.stderr.starts_with("hypertrace: no hypertrace device: "), "{alone:?}");
    }
}

#[test]
fn code_for_firmware_needs_no_library_and_its_events_are_recorded() {
    let place = Place::new();
    for compiler in c::compilers() {
        for compiler in [compiler.plain(), compiler] {
            let program = bare::program(&compiler, place.path());
            let dir = tempfile::tempdir_in(place.path()).unwrap();
            firmware_in_a_segment(&place, dir.path(), &program.to_string_lossy());
        }
    }
}

#[test]
fn code_for_firmware_for_aarch64_under_qemu_aarch64() {
    let (Some(compiler), Some(emulator)) = (c::aarch64(), capability::program("qemu-aarch64"))
    else {
        return;
    };
    let place = Place::new();
    for compiler in [compiler.plain(), compiler] {
        compiler.accepts(&c::source("tests/c/interface_2016.c"));
        let program = bare::program(&compiler, place.path());
        let dir = tempfile::tempdir_in(place.path()).unwrap();
        let command = format!("{} {}", emulator.display(), program.display());
        let session = firmware_in_a_segment(&place, dir.path(), &command);
        assert_has_cntvct(&session);
    }
    capability::used("qemu-aarch64");
}

/// Runs a program of `bare.c` under `record`. The program fills its ring in the segment ten times. Returns
/// the session.
#[track_caller]
fn firmware_in_a_segment(place: &Place, dir: &Path, program: &str) -> PathBuf {
    let name = dir.file_name().unwrap().to_str().unwrap();
    let (events, points) = (20_000, 50);
    let script = format!("{program} \"$HYPERTRACE_SEGMENT\" 3 {events} {points}");
    let options = ["--ring", "64K"];
    let printed = place.run(name, &options, &["sh", "-c", &script]);
    assert_eq!(printed, "dropped 0, unanswered 0\n");
    let lines = HYPERTRACE.report(&place.session(name));
    bare::check(&lines, 3, events, points, false);
    place.session(name)
}

#[test]
fn an_installed_library_is_found_by_pkg_config() {
    let tools = ["pkg-config", "gcc"].map(capability::program);
    let [Some(pkg_config), Some(gcc)] = tools else { return };
    let place = Place::new();
    let prefix = place.path().join("usr");
    let mut install = build::cargo();
    install.args(["xtask", "install-c", "--prefix"]).arg(&prefix);
    build::succeed(install.env("CARGO_TARGET_DIR", build::target_folder()));
    let ask = |options: &[&str]| {
        let mut command = Command::new(&pkg_config);
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run(command.args(options).arg("hypertrace")).ok()
    };
    assert_eq!(ask(&["--modversion"]), concat!(env!("CARGO_PKG_VERSION"), "\n"));

    for (name, options) in
        [("shared", &["--cflags", "--libs"][..]), ("static", &["--cflags", "--libs", "--static"])]
    {
        let program = place.path().join(name);
        let mut compile = Command::new(&gcc);
        compile.args(["-std=c11", "-O2", "-pthread"]).args(c::WARNINGS);
        compile.args((name == "static").then_some("-static")).arg("-o").arg(&program);
        compile.arg(c::source("examples/c/events.c")).args(ask(options).split_whitespace());
        build::succeed(&mut compile);

        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(place.session(name)).env("LD_LIBRARY_PATH", prefix.join("lib"));
        run(command.arg("--").args(with_counts(&[&program]))).ok();
        check_events(&place.session(name), &program);
    }
    let of_tree = |options: &[&str]| {
        let mut command = Command::new(&pkg_config);
        command.env("PKG_CONFIG_PATH", build::root().join("guest-lib/capi"));
        run(command.args(options).arg("hypertrace")).ok()
    };
    assert_eq!(of_tree(&["--modversion"]), ask(&["--modversion"]), "hypertrace-uninstalled.pc");
    let options = of_tree(&["--libs", "--cflags"]);
    assert!(options.contains("/guest-lib/capi/../../target/release -lhypertrace"), "{options}");
    assert!(options.contains("/guest-lib/capi/../../guest-lib/include"), "{options}");
    ["pkg-config", "gcc"].iter().for_each(|name| capability::used(name));
}

#[test]
fn cmake_finds_an_installed_library_and_a_source_tree() {
    let tools = ["cmake", "g++"].map(capability::program);
    let [Some(cmake), Some(_)] = tools else { return };
    let place = Place::new();
    let prefix = place.path().join("usr");
    let mut install = build::cargo();
    install.args(["xtask", "install-c", "--prefix"]).arg(&prefix);
    build::succeed(install.env("CARGO_TARGET_DIR", build::target_folder()));
    let minor = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    let find = format!("find_package(hypertrace {minor} REQUIRED)");
    let capi = build::root().join("guest-lib/capi");
    let folder = format!("add_subdirectory({} hypertrace)", capi.display());
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    let tree = format!("-Dhypertrace_DIR={}", capi.display());
    let configured = |name: &str, lines: &str, option: &str| {
        let project = place.path().join(name);
        std::fs::create_dir(&project).unwrap();
        std::fs::copy(c::source("examples/c/events.c"), project.join("events.cc")).unwrap();
        let text = format!(
            "cmake_minimum_required(VERSION 3.16)
             project(events CXX)
             {lines}
             foreach(library hypertrace static)
               add_executable(with_${{library}} events.cc)
               target_compile_features(with_${{library}} PRIVATE cxx_std_11)
               target_link_libraries(with_${{library}} hypertrace::${{library}})
             endforeach()"
        );
        std::fs::write(project.join("CMakeLists.txt"), text).unwrap();
        let mut configure = Command::new(&cmake);
        configure.arg("-S").arg(&project).arg("-B").arg(project.join("build")).arg(option);
        let target = format!("-DHYPERTRACE_TARGET_DIR={}", build::target_folder().display());
        run(configure.arg(target))
    };

    for (name, lines, option) in
        [("installed", &find, &prefix), ("tree", &find, &tree), ("folder", &folder, &tree)]
    {
        let ran = configured(name, lines, option);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let made = place.path().join(name).join("build");
        build::succeed(Command::new(&cmake).arg("--build").arg(&made));
        for library in ["hypertrace", "static"] {
            let program = made.join(format!("with_{library}"));
            let session = format!("{name}-{library}");
            assert_eq!(place.run::<&str, _>(&session, &[], &with_counts(&[&program])), "");
            check_events(&place.session(&session), &program);
        }
    }

    // A library of another minor version has another interface, so CMake refuses `find_package` of version
    // 99.0.
    let other = "find_package(hypertrace 99.0 REQUIRED)";
    for (name, option) in [("other-installed", &prefix), ("other-tree", &tree)] {
        let refused = configured(name, other, option);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("\"99.0\""), "{refused:?}");
    }
    capability::used("cmake");
}

/// A name of the maximum length.
const OFF: &str = "off_1234567890_1234567890_1234567890_1234567890_1234567890_12345";
const KEPT: &str = "kept_1234567890_1234567890_1234567890_1234567890_1234567890_1234";

#[test]
fn values_of_events_that_are_off_are_not_computed() {
    let place = Place::new();
    for compiler in c::compilers() {
        for compiler in [compiler.plain(), compiler] {
            for linked in [Linked::Archive, Linked::Static, Linked::Shared] {
                let program =
                    compiler.program(&c::source("tests/c/switched.c"), linked, place.path());
                let dir = tempfile::tempdir_in(place.path()).unwrap();
                let session = Session::create(Config::new(dir.path())).unwrap();
                for name in ["off", "off_begin", OFF] {
                    session.trace().execute(&format!("trace-event {name} off")).unwrap();
                }

                let mut command = Command::new(program);
                session.pass_to(&mut command);
                let computed = run(&mut command).ok();

                session.finish().unwrap();
                let lines = HYPERTRACE.report(dir.path());
                let kept: Vec<_> = named(&lines, "kept").filter_map(|l| l.number("n")).collect();
                assert!(kept.ends_with(&(1..=100).collect::<Vec<_>>()), "{kept:?}");
                assert_eq!(named(&lines, KEPT).count(), kept.len());
                assert!(!lines.iter().any(|line| line.event.starts_with("off")));
                assert_eq!(computed, "0", "{compiler:?} {linked:?}");
            }
        }
    }
}

#[test]
fn invalid_events_do_not_compile() {
    let place = Place::new();
    let text = std::fs::read_to_string(c::source("tests/c/refused.c")).unwrap();
    for compiler in c::compilers() {
        for wrong in 1..=7 {
            let source = place.path().join(format!("refused-{wrong}.c"));
            std::fs::write(&source, format!("#define WRONG {wrong}\n{text}")).unwrap();
            let _ = compiler.refuses(&source);
        }
        let source = place.path().join("right.c");
        std::fs::write(&source, format!("#define WRONG 0\n{text}")).unwrap();
        compiler.accepts(&source);
    }
}

#[test]
fn a_program_gets_the_span_of_its_hosts_caller() {
    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let source = c::source("tests/c/trace_parent.c");
    let program = compiler.program(&source, Linked::Archive, place.path());

    let printed = |trace_parent: Option<&str>| {
        let dir = tempfile::tempdir_in(place.path()).unwrap();
        let mut config = Config::new(dir.path());
        config.trace.trace_parent = trace_parent.map(|text| text.parse().unwrap());
        let session = Session::create(config).unwrap();
        let mut command = Command::new(&program);
        session.pass_to(&mut command);
        let printed = run(&mut command).ok();
        session.finish().unwrap();
        printed
    };

    assert_eq!(printed(Some(TEXT)), format!("{TEXT}\n"));
    assert_eq!(printed(None), "none\n");
}

#[test]
fn a_forked_child_gets_its_own_client() {
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let program = compiler.program(&c::source("tests/c/fork.c"), Linked::Archive, place.path());

    let (lines, _) = place.trace("fork", &[&program]);

    let of = |who: &str| {
        let all = named(&lines, "forked").filter(|line| line.fields["who"] == who);
        all.map(|line| (line.source.clone(), line.number("n").unwrap())).collect::<Vec<_>>()
    };
    let (parent, child) = (of("parent"), of("child"));
    assert_eq!(parent.len(), 200);
    assert_eq!(child.iter().map(|(_, n)| *n).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert!(parent.iter().all(|(source, _)| *source != child[0].0));
    assert_eq!(named(&lines, "done").count(), 1);
}

#[test]
fn a_library_that_traces_is_loaded_and_unloaded() {
    let place = Place::new();
    // With `Linked::Archive`, the library is part of the plugin, so the code of the library's thread is
    // unloaded, too.
    let all = [Linked::Shared, Linked::Archive];
    let compilers = c::compilers();
    for (compiler, linked) in compilers.iter().flat_map(|compiler| all.map(|l| (compiler, l))) {
        let plugin = compiler.plugin(&c::source("tests/c/plugin.c"), linked, place.path());
        // The program itself is not linked with hypertrace.
        let program =
            compiler.program(&c::source("tests/c/dlopen.c"), Linked::Archive, place.path());

        let name = format!("{}-{linked:?}", compiler.name);
        let (lines, _) = place.trace(&name, &[&program, &plugin]);

        let found: Vec<_> = named(&lines, "plugged")
            .map(|line| (line.number("round").unwrap(), line.number("n").unwrap()))
            .collect();
        let expected: Vec<_> = (0..3).flat_map(|round| (0..10).map(move |n| (round, n))).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn an_allocators_events_while_the_library_opens_are_counted_and_no_client_is_missing() {
    const CALLS: usize = 1000;
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let allocator = compiler.plugin(&c::source("tests/c/malloc.c"), Linked::Archive, place.path());
    let source = c::source("tests/c/allocate.c");
    let program = compiler.program(&source, Linked::Archive, place.path());
    let mut command = HYPERTRACE.command(["record", "-o"]);
    command.arg(place.session("malloc")).arg("env");
    command.arg(format!("LD_PRELOAD={}", allocator.display())).arg(&program);

    let ran = run(command.arg(CALLS.to_string()));

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains(" emit interrupted (by an event of a signal handler, or"),
        "{}",
        ran.stderr
    );
    let lines = HYPERTRACE.report(&place.session("malloc"));
    let own = named(&lines, "malloc").filter(|line| line.number("bytes") == Some(77));
    assert_eq!(own.count(), CALLS);
    let total = &HYPERTRACE.info(&place.session("malloc"))["total"];
    assert!(total["lost_busy"].as_u64() > Some(0), "{total}");
    assert_eq!((&total["lost_unattached"], &total["lost"]), (&json!(0), &total["lost_busy"]));
}

#[test]
fn a_signal_handlers_events_are_recorded_or_counted() {
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let program = compiler.program(&c::source("tests/c/signal.c"), Linked::Archive, place.path());

    let (lines, printed) = place.trace("signal", &[&program]);

    let emitted: Vec<u64> = printed.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let recorded = ["handler", "amid"].map(|name| named(&lines, name).count() as u64);
    let stat = HYPERTRACE.info(&place.session("signal"));
    let streams = stat["streams"].as_array().unwrap();
    let lost: u64 = streams.iter().map(|stream| stream["lost"].as_u64().unwrap()).sum();
    assert_eq!(emitted.iter().sum::<u64>(), recorded.iter().sum::<u64>() + lost);
    let first = named(&lines, "handler").next().unwrap();
    assert_eq!(first.number("n"), Some(0));
    let expected = json!({"signal": 14, "n": 0});
    assert_eq!(Value::Object(first.fields.clone()), expected);
}

#[test]
fn a_program_whose_main_thread_ends_first_ends_with_its_last_thread() {
    let Some(compiler) = c::compiler() else { return };
    let place = Place::new();
    let source = c::source("tests/c/main_ends.c");
    let program = compiler.program(&source, Linked::Archive, place.path());
    let program = program.to_str().unwrap();

    let (lines, printed) = place.trace("main", &["timeout", "-s", "KILL", "60", program]);

    assert_eq!(printed, "late\n");
    assert_eq!(["early", "late"].map(|name| named(&lines, name).count()), [1, 1]);
}
