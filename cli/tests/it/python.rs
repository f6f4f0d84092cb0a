//! Python programs with the package of bindings/python: under `record`, without `record`, and with another
//! library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::c::library;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{build, capability};
use hypertrace_user::{Config, Session};
use serde_json::{Value, json};
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// A machine's Python, and a folder for sessions.
struct Python {
    program: PathBuf,
    folder: TempDir,
}

impl Python {
    /// Finds a Python, or reports that there is none.
    fn find() -> Option<Python> {
        let program = capability::program("python3")?;
        capability::used("python3");
        Some(Python { program, folder: tempfile::tempdir().unwrap() })
    }

    /// Runs a script with this tree's package and library. `command` starts the script.
    fn in_tree(&self, command: &mut Command, script: &str, arguments: &[&str]) -> Ran {
        self.run(command, &library().join("libhypertrace.so"), script, arguments)
    }

    /// As [`Python::in_tree`], with this library.
    fn run(&self, command: &mut Command, library: &Path, script: &str, arguments: &[&str]) -> Ran {
        // Later versions of Python warn at a fork that the process has a thread, which is the library's
        // thread.
        command.arg(&self.program).args(["-W", "always", "-W", "ignore::DeprecationWarning"]);
        command.arg(build::root().join("tests/python").join(script)).args(arguments);
        command.env("PYTHONPATH", build::root().join("bindings/python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("HYPERTRACE_LIBRARY", library);
        run(command)
    }

    fn session(&self) -> PathBuf {
        self.folder.path().join("session")
    }

    fn record(&self) -> Command {
        let mut record = HYPERTRACE.command(["record", "--quiet", "--ring", "16M", "-o"]);
        record.arg(self.session()).arg("--");
        record
    }

    /// Runs a script under `record`. Returns the script's events and its messages.
    #[track_caller]
    fn trace(&self, script: &str, arguments: &[&str]) -> (Vec<Line>, String) {
        let ran = self.in_tree(&mut self.record(), script, arguments);
        assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{}", ran.stderr);
        (HYPERTRACE.report(&self.session()), ran.stderr)
    }

    /// Does the same as [`Python::trace`], for a script without messages. Returns the regions by name.
    #[track_caller]
    fn regions(&self, script: &str, arguments: &[&str]) -> Vec<(String, u64)> {
        let (_, said) = self.trace(script, arguments);
        assert_eq!(said, "");
        HYPERTRACE.regions(&self.session(), &[])
    }

    /// Returns how many regions of a kind were not counted.
    fn uncounted(&self, kind: &str) -> u64 {
        let ran = run(HYPERTRACE.command(["regions", "--json"]).arg(self.session()));
        let json: Value = serde_json::from_str(&ran.stdout).unwrap();
        let groups = json["regions"].as_array().unwrap().iter();
        groups.map(|group| group["not_counted"][kind].as_u64().unwrap_or(0)).sum()
    }
}

fn fields(lines: &[Line], event: &str) -> Vec<Value> {
    let named = lines.iter().filter(|line| line.event == event);
    named.map(|line| Value::Object(line.fields.clone())).collect()
}

#[test]
fn every_kind_of_value_and_of_name() {
    let Some(python) = Python::find() else { return };

    let (lines, said) = python.trace("values.py", &[]);

    let of = |event: &str| fields(&lines, event);
    assert_eq!(of("none"), [json!({})]);
    let [wide, small] = of("ints").try_into().unwrap();
    assert_eq!(wide["least"], i64::MIN.to_string());
    assert_eq!(wide["most"], i64::MAX.to_string());
    assert_eq!(wide["u64"], u64::MAX.to_string());
    assert_eq!(wide["huge"], "0x10000000000000000");
    assert_eq!(wide["minus"], "-0x8000000000000001");
    assert_eq!(wide["long"].as_str().map(str::len), Some(1024));
    assert_eq!(small, json!({"least": 1, "most": 2, "u64": 3, "huge": 4, "minus": 5, "long": 6}));
    let [kinds] = of("kinds").try_into().unwrap();
    assert_eq!(
        (&kinds["yes"], &kinds["no"], &kinds["half"]),
        (&json!(true), &json!("None"), &json!(0.5))
    );
    assert_eq!((&kinds["many"], &kinds["three"]), (&json!("[1, 2]"), &json!(3)));
    assert_eq!(kinds["bad"], "<Unprintable: ValueError>");
    let [texts] = of("texts").try_into().unwrap();
    assert_eq!((&texts["nul"], &texts["raw"]), (&json!("a\\x00b"), &json!("q\\x00r")));
    assert_eq!(texts["surrogate"], "x\\udcff");
    assert_eq!(texts["long"], "y".repeat(1024));
    // The text is cut at the end of a character.
    assert_eq!(texts["wide"], format!("x{}", "\u{e9}".repeat(511)));
    assert_eq!(of("odd_name___"), [json!({"a_b": 1, "class": 2, "_": 3, "_1x": 4})]);
    assert_eq!(of(&"n".repeat(64)), [json!({"name": 1, "self": 2, "fields": 3})]);
    assert_eq!(of("__no____name__"), [json!({})]);
    let number = |n: u64| (format!("f{n}"), json!(n));
    assert_eq!(of("many"), [Value::Object((0..16).map(number).collect())]);
    let [mut begin] = of("many_begin").try_into().unwrap();
    assert!(begin.as_object_mut().unwrap().remove("id").is_some());
    assert_eq!(begin, Value::Object((0..15).map(number).collect()));

    let [first, second, third] = of("own_begin").try_into().unwrap();
    assert_eq!(first, json!({"id": 7, "k": "v"}));
    assert_eq!(second, json!({"id": u64::MAX.to_string(), "k": "0x400000000000000000"}));
    let ends: Vec<Value> =
        [first, second, third].iter().map(|own| json!({"id": own["id"]})).collect();
    assert_eq!(of("own_end"), ends);
    let [any] = of("any_begin").try_into().unwrap();
    assert_eq!((&any["any_client"], &any["n"], &any["k"]), (&json!(true), &json!(1), &json!("v")));
    assert_eq!(of("any_end"), [json!({"id": any["id"], "any_client": true})]);

    assert_eq!(of("log_info"), [json!({"target": "shop.cart", "message": "3 items"})]);
    assert_eq!(of("log_critical"), [json!({"target": "shop.cart", "message": "a\nb"})]);
    assert_eq!(of("log_level_42").len(), 1);

    // Each value that is left out gets one warning.
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("RuntimeWarning")).collect();
    assert_eq!(warnings.len(), 3, "{said}");
    assert!(warnings.iter().all(|line| line.contains("/values.py:")), "where the event is: {said}");
    assert!(warnings[0].contains(": not recorded: a_b: "), "{said}");
    assert!(warnings[1].contains("f16, f17") && warnings[2].contains("f15, f16"), "{said}");
}

#[test]
fn functions_coroutines_and_generators_are_regions() {
    let Some(python) = Python::find() else { return };

    let regions = python.regions("regions.py", &["functions"]);

    let names = ["coroutine", "decorated", "generator", "outer", "raises"];
    let found: BTreeSet<_> = regions.iter().map(|(name, count)| (&**name, *count)).collect();
    assert_eq!(found, names.map(|name| (name, 1)).into());
    let lines = HYPERTRACE.report(&python.session());
    let order: Vec<_> = lines.iter().map(|line| &*line.event).filter(|e| *e != "lease").collect();
    assert_eq!(
        order[order.len() - 5..],
        ["outer_begin", "raises_begin", "raises_end", "outer_end", "passed"]
    );
}

#[test]
fn regions_of_coroutines_match_though_they_interleave() {
    let Some(python) = Python::find() else { return };
    assert_eq!(python.regions("regions.py", &["interleaved"]), [("task".to_owned(), 200)]);
}

#[test]
fn a_region_of_a_task_is_inside_the_regions_of_its_own_task_alone() {
    let Some(python) = Python::find() else { return };

    let (lines, said) = python.trace("regions.py", &["nested"]);

    assert_eq!(said, "");
    let [requests, loads] = ["request_begin", "load_begin"].map(|name| fields(&lines, name));
    assert_eq!((requests.len(), loads.len()), (4, 4));
    // All requests begin before the first load, so the parent cannot be derived from the order of the begins.
    for (request, load) in requests.iter().zip(&loads) {
        assert_eq!((&request["parent"], &load["parent"]), (&json!(0), &request["id"]));
        assert_eq!((&request["target"], &load["target"]), (&json!("__main__"), &json!("__main__")));
    }
    let ran = run(HYPERTRACE.command(["regions", "--json"]).arg(python.session()));
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let groups = json["regions"].as_array().unwrap();
    let request = groups.iter().find(|group| group["name"] == "request").unwrap();
    assert_eq!(request["count"], 4, "{request}");
    let children = |name: &str| {
        let group = groups.iter().find(|group| group["name"] == name).unwrap();
        group["children"]
            .as_array()
            .unwrap()
            .iter()
            .map(|child| child["name"].clone())
            .collect::<Vec<_>>()
    };
    assert!(!children("load").contains(&json!("request")), "{json}");
    // A region without an `await` of its own task is a region of its thread, so its end has no `any_client`.
    let ends = |name| fields(&lines, name).iter().filter(|end| end["any_client"] == true).count();
    assert_eq!(["request_end", "load_end", "parse_end"].map(ends), [4, 4, 0]);
}

#[test]
fn a_hundred_thousand_regions_of_a_coroutine() {
    let Some(python) = Python::find() else { return };
    assert_eq!(python.regions("regions.py", &["many"]), [("step".to_owned(), 100_000)]);
}

#[test]
fn regions_of_threads_and_across_threads() {
    let Some(python) = Python::find() else { return };
    let mut regions = python.regions("regions.py", &["threads"]);
    regions.sort();
    assert_eq!(regions, [("moved".to_owned(), 8), ("threaded".to_owned(), 4000)]);
}

#[test]
fn regions_of_processes_however_they_are_started() {
    for way in ["fork", "spawn", "forkserver"] {
        let Some(python) = Python::find() else { return };
        let mut regions = python.regions("processes.py", &[way]);
        regions.sort();
        let expected = [("child_work", 600), ("handed_over", 6), ("parent", 1)];
        assert_eq!(regions, expected.map(|(name, count)| (name.to_owned(), count)), "{way}");
        let begins = fields(&HYPERTRACE.report(&python.session()), "child_work_begin");
        let ids: BTreeSet<_> = begins.iter().map(|begin| begin["id"].to_string()).collect();
        assert_eq!(ids.len(), 600, "{way}: ids of all processes differ");
    }
}

#[test]
fn a_killed_program_leaves_its_regions() {
    let Some(python) = Python::find() else { return };
    let ran = python.in_tree(&mut python.record(), "ends.py", &["killed"]);
    assert_eq!(ran.code, Some(128 + 9), "{ran:?}");
    assert_eq!(HYPERTRACE.regions(&python.session(), &[])[0], ("before".to_owned(), 1000));
    assert_eq!(python.uncounted("begin_without_end"), 1);
}

#[test]
fn a_region_around_a_fork_is_the_parents() {
    let Some(python) = Python::find() else { return };
    let mut regions = python.regions("ends.py", &["forked"]);
    regions.sort();
    assert_eq!(regions, [("after_fork".to_owned(), 2), ("around_fork".to_owned(), 1)]);
    assert_eq!(python.uncounted("end_without_begin"), 1);
}

#[test]
fn events_of_signal_handlers_and_of_the_interpreters_end() {
    let Some(python) = Python::find() else { return };
    let (lines, said) = python.trace("ends.py", &["in_handlers"]);
    assert_eq!(said, "");
    let regions = HYPERTRACE.regions(&python.session(), &[]);
    let count = |name: &str| regions.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(count("interrupted"), 20_000);
    let handled = fields(&lines, "handled").len();
    assert!(handled > 0 && count("in_handler") == handled as u64, "{handled}");

    let python = Python::find().unwrap();
    let (lines, said) = python.trace("ends.py", &["shutdown"]);
    assert_eq!(said, "", "nothing is raised at the end");
    assert_eq!(fields(&lines, "in_atexit").len(), 1);
    assert_eq!(fields(&lines, "in_del").len(), 1);
    assert_eq!(fields(&lines, "region_in_del_end").len(), 1);
}

#[test]
fn events_that_are_off_are_not_recorded() {
    let Some(python) = Python::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    for name in ["off", "off_begin", "off_end"] {
        session.trace().execute(&format!("trace-event {name} off")).unwrap();
    }
    let mut command = Command::new("env");
    session.pass_to(&mut command);

    let ran = python.in_tree(&mut command, "switched.py", &[]);

    assert_eq!(ran.ok(), "");
    session.finish().unwrap();
    let lines = HYPERTRACE.report(dir.path());
    let names: BTreeSet<_> = lines.iter().map(|line| &*line.event).collect();
    assert_eq!(names, ["kept_begin", "kept_end", "lease"].into());
    let stat = HYPERTRACE.info(dir.path());
    let filtered = stat["streams"].as_array().unwrap().iter().map(|stream| &stream["filtered"]);
    assert!(filtered.clone().all(|filtered| *filtered == 0), "{:?}", Vec::from_iter(filtered));
}

#[test]
fn without_a_recorder_nothing_is_done_or_said() {
    let Some(python) = Python::find() else { return };
    for (script, arguments) in
        [("values.py", &[][..]), ("regions.py", &["functions"]), ("processes.py", &["spawn"])]
    {
        assert_eq!(
            python.in_tree(&mut Command::new("env"), script, arguments).ok(),
            "",
            "{script}"
        );
    }
    let alone = python.in_tree(&mut Command::new("env"), "ends.py", &["threads"]);
    assert_eq!(alone.ok(), "1 no hypertrace device: /s\n");
    let recorded = python.in_tree(&mut python.record(), "ends.py", &["threads"]);
    assert_eq!(recorded.ok(), "2 \n", "the library has one thread");
}

#[test]
fn another_version_of_the_library_is_named_once_and_not_used() {
    let (Some(python), Some(gcc)) = (Python::find(), capability::program("gcc")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, text: &str| {
        let (source, library) = (folder.path().join("other.c"), folder.path().join(name));
        fs::write(&source, text).unwrap();
        build::succeed(Command::new(&gcc).args(["-shared", "-o"]).arg(&library).arg(source));
        library
    };
    let newer = made("newer.so", "const char *hypertrace_version(void) { return \"99.1.0\"; }");
    let older = made("older.so", "int hypertrace_open;");
    let text = folder.path().join("text.so");
    fs::write(&text, "no library").unwrap();
    for (library, why) in [
        (
            &newer,
            "newer.so is of version 99.1.0, and this package is for 0.1: install both from one tree",
        ),
        (
            &older,
            "older.so is of version unknown, and this package is for 0.1: install both from one tree",
        ),
        (&text, "no libhypertrace.so: "),
    ] {
        let with =
            |command: &mut Command| python.run(command, library, "regions.py", &["functions"]);
        let session = tempfile::tempdir_in(folder.path()).unwrap();
        let mut record = HYPERTRACE.command(["record", "--quiet", "-o"]);
        let ran = with(record.arg(session.path()).arg("--"));
        assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{ran:?}");
        assert_eq!(ran.stderr.matches("RuntimeWarning").count(), 1, "{ran:?}");
        assert!(ran.stderr.contains(why), "{ran:?}");
        assert_eq!(with(&mut Command::new("env")).ok(), "", "without a recorder");
    }
    capability::used("gcc");
}

#[test]
fn pip_installs_the_folder() {
    let (Some(python), Some(pip)) = (Python::find(), capability::program("python3-setuptools"))
    else {
        return;
    };
    // pip writes into the folder that it builds, so the folder is a copy.
    let source = python.folder.path().join("source");
    let mut copy = Command::new("cp");
    build::succeed(copy.arg("-r").arg(build::root().join("bindings/python")).arg(&source));
    let installed = python.folder.path().join("installed");
    let mut install = Command::new(pip);
    install.args(["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-index"]);
    install.args(["--root-user-action", "ignore", "--target"]).arg(&installed);
    build::succeed(install.arg(source));

    let mut record = python.record();
    record.arg(&python.program).args(["-c", "import hypertrace; hypertrace.event('installed')"]);
    // Without HYPERTRACE_LIBRARY, the loader finds the library.
    record.env("PYTHONPATH", &installed).env("LD_LIBRARY_PATH", library());
    run(record.env_remove("HYPERTRACE_LIBRARY")).ok();

    assert_eq!(fields(&HYPERTRACE.report(&python.session()), "installed"), [json!({})]);
    capability::used("python3-setuptools");
}
