//! Function traces beside a session: `record --functions`, `report`, `export --to uftrace`,
//! `functions --region`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_test_support::functions as data;
use hypertrace_tests::c::{self, Linked};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, Ran, plugin, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::report::Line;
use serde_json::Value;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const QEMU: &str = "qemu-x86_64";
/// Releases 0.13 and 0.19 of uftrace.
const READERS: [&str; 2] = ["uftrace-bookworm", "uftrace-forky"];
/// Rounds of the program, each with an event, a point and a region.
const ROUNDS: usize = 20;
/// Events, each with the function that emits it.
const EMITTERS: [(&str, &str); 4] = [
    ("ring_event", "emits_event"),
    ("point", "makes_point"),
    ("batch_begin", "has_region"),
    ("batch_end", "has_region"),
];

/// A session and a function trace of the same run of `calls.c`.
struct Recorded {
    folder: TempDir,
    program: PathBuf,
}

impl Recorded {
    /// Records both. `None` if this machine lacks something that the test needs. `functions` is a path in the
    /// folder.
    fn new(functions: &str) -> Option<Recorded> {
        capability::program(QEMU)?;
        let compiler = c::compiler()?;
        let folder = tempfile::tempdir().unwrap();
        let program =
            compiler.program(&c::source("tests/c/calls.c"), Linked::Static, folder.path());
        let recorded = Recorded { folder, program };
        let mut command = HYPERTRACE.command(["record", "--quiet", "--qemu", QEMU, "-o"]);
        command.arg(recorded.path("S")).arg("--functions").arg(recorded.path(functions));
        command.arg("--").arg(&recorded.program).env("HYPERTRACE_QEMU_PLUGIN", plugin());
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains(" 0 records lost"), "{}", ran.stderr);
        capability::used(QEMU);
        Some(recorded)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn hypertrace(&self, arguments: &[&str]) -> Ran {
        run(HYPERTRACE.command(arguments.iter().copied()).current_dir(self.folder.path()))
    }

    /// Exports the session and the functions for uftrace. Returns the lines that each installed release of
    /// uftrace replays.
    fn replays(&self) -> Vec<Vec<String>> {
        let program = self.program.display().to_string();
        let command = ["export", "S", "F", "--to", "uftrace", "-o", "U", "--symbols", &program];
        let ran = self.hypertrace(&command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        replays(&self.path("U"))
    }
}

fn replays(dir: &Path) -> Vec<Vec<String>> {
    let mut replays = Vec::new();
    for name in READERS {
        let Some(uftrace) = capability::program(name) else { continue };
        let mut command = Command::new(uftrace);
        command.args(["replay", "--no-pager", "-f", "none", "-d"]).arg(dir);
        let text = run(&mut command).ok();
        replays.push(text.lines().map(|line| line.trim().to_owned()).collect());
        capability::used(name);
    }
    replays
}

fn name(line: &Line) -> &str {
    line.fields.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// Asserts that each event is emitted while its function is open.
#[track_caller]
fn check_inside(lines: &[Line]) {
    // Only the program's thread is checked, and not the library's thread.
    let is_main = |line: &&Line| line.event == "function_entry" && name(line) == "main";
    let track = &lines.iter().find(is_main).expect("the function main").source;
    let mut open: Vec<&str> = Vec::new();
    let mut found = 0;
    for line in lines {
        match line.event.as_str() {
            "function_entry" if line.source == *track => open.push(name(line)),
            "function_exit" if line.source == *track => {
                assert_eq!(open.pop(), Some(name(line)));
            }
            event => {
                let Some((_, function)) = EMITTERS.iter().find(|(known, _)| *known == event) else {
                    continue;
                };
                assert!(open.contains(function), "{line:?} is in {open:?}");
                let wrong = ["leaf", "in_region"];
                assert!(!wrong.iter().any(|wrong| open.contains(wrong)), "{line:?} is in {open:?}");
                found += 1;
            }
        }
    }
    assert_eq!(found, EMITTERS.len() * ROUNDS);
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn an_event_of_an_emulated_program_is_inside_the_function_that_emitted_it() {
    let Some(recorded) = Recorded::new("F") else { return };

    let text = recorded.hypertrace(&["report", "S", "F", "--json"]).ok();

    let lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
    check_inside(&lines);
    assert!(lines.iter().all(|line| line.bound_ns.is_some_and(|bound| bound <= 1)));
}

#[test]
fn uftrace_shows_an_event_inside_the_function_that_emitted_it() {
    let Some(recorded) = Recorded::new("F") else { return };

    for lines in recorded.replays() {
        check_replay(&lines);
    }
}

/// Asserts that uftrace shows each event within its function.
#[track_caller]
fn check_replay(lines: &[String]) {
    for (event, function) in EMITTERS {
        let (begin, end) = (format!("{function}() {{"), format!("}} /* {function} */"));
        let (mut is_open, mut inside) = (false, 0);
        for line in lines {
            is_open = (is_open || *line == begin) && *line != end;
            if line.contains(&format!(" {event} ")) {
                assert!(line.starts_with("/* external-data: program/"), "{line}");
                assert!(is_open, "{line} is not in {function}");
                inside += 1;
            }
        }
        assert_eq!(inside, ROUNDS, "{event}");
    }
}

#[test]
fn a_program_with_functions_compiled_in_needs_no_function_trace() {
    let Some(compiler) = c::compiler() else { return };
    let compiler = compiler.with(&["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"]);
    let emulated = capability::program(QEMU).map(|_| ["--qemu", QEMU]);
    for (linked, options) in [
        (Linked::Archive, Some(&[][..])),
        (Linked::Static, emulated.as_ref().map(|options| &options[..])),
    ] {
        let Some(options) = options else { continue };
        let folder = tempfile::tempdir().unwrap();
        let program = compiler.program(&c::source("tests/c/calls.c"), linked, folder.path());
        let path = |name: &str| folder.path().join(name);
        let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
        command.arg(path("S")).args(options).arg("--").arg(&program);
        run(command.env("HYPERTRACE_QEMU_PLUGIN", plugin())).ok();

        let mut export = HYPERTRACE.command(["export", "--to", "uftrace"]);
        export.arg(path("S")).arg("-o").arg(path("U")).arg("--symbols").arg(&program);
        let ran = run(&mut export);

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("1 track, ") && !ran.stderr.contains("left out"), "{ran:?}");
        for lines in replays(&path("U")) {
            check_replay(&lines);
        }
    }
}

#[test]
fn sums_are_cut_at_the_bounds_of_regions() {
    let Some(recorded) = Recorded::new("S/functions") else { return };
    let sums = |arguments: &[&str]| {
        let mut command = vec!["functions", "S", "--json", "-n", "10000"];
        command.extend(arguments);
        let json: Value = recorded.hypertrace(&command).json();
        let functions = json["functions"].as_array().unwrap().clone();
        let of = |name: &str| functions.iter().find(|found| found["name"] == name).cloned();
        ["leaf", "in_region", "has_region", "makes_point", "main"].map(of)
    };

    let [all_leaf, ..] = sums(&[]);
    let [leaf, in_region, has_region, makes_point, main] = sums(&["--region", "batch"]);

    assert_eq!(all_leaf.unwrap()["calls"], 52 * ROUNDS);
    assert_eq!(leaf.unwrap()["calls"], 50 * ROUNDS);
    assert_eq!(in_region.unwrap()["calls"], ROUNDS);
    assert_eq!(makes_point, None);
    let (main, has_region) = (main.unwrap(), has_region.unwrap());
    assert_eq!((&main["calls"], &has_region["calls"]), (&1.into(), &ROUNDS.into()));
    // The rest of main is in no region.
    assert_eq!((&main["self_ns"], &main["total_ns"]), (&0.into(), &has_region["total_ns"]));
}

#[test]
fn functions_that_are_compiled_in_are_summed_of_the_session_or_an_export() {
    let Some(compiler) = c::compiler() else { return };
    let compiler = compiler.with(&["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"]);
    let folder = tempfile::tempdir().unwrap();
    let program = compiler.program(&c::source("tests/c/calls.c"), Linked::Archive, folder.path());
    let recorded = Recorded { folder, program };
    run(HYPERTRACE
        .command(["record", "--quiet", "-o"])
        .arg(recorded.path("S"))
        .arg("--")
        .arg(&recorded.program))
    .ok();

    let program = recorded.program.display().to_string();
    let ran =
        recorded.hypertrace(&["export", "S", "--to", "uftrace", "-o", "U", "--symbols", &program]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let calls = |arguments: &[&str]| {
        let mut command = vec!["functions", "--json"];
        command.extend(arguments);
        let json: Value = recorded.hypertrace(&command).json();
        let functions = json["functions"].as_array().unwrap().clone();
        ["leaf", "in_region", "has_region", "makes_point"].map(|name| {
            let found = functions.iter().find(|function| function["name"] == name);
            found.map_or(0, |function| function["calls"].as_u64().unwrap())
        })
    };
    let rounds = ROUNDS as u64;
    for of in [&["U", "--session", "S"][..], &["S", "--symbols", &program]] {
        let in_region = [of, &["--region", "batch"]].concat();
        let all: Vec<&str> = of
            .iter()
            .filter(|word| !["--session", "S"].contains(word) || of[0] == "S")
            .copied()
            .collect();
        assert_eq!(calls(&all), [52 * rounds, rounds, rounds, rounds]);
        assert_eq!(calls(&in_region), [50 * rounds, rounds, rounds, 0]);
    }
}

#[test]
fn a_report_names_functions_that_are_compiled_in() {
    let Some(compiler) = c::compiler() else { return };
    let compiler = compiler.with(&["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"]);
    let folder = tempfile::tempdir().unwrap();
    let program = compiler.program(&c::source("tests/c/calls.c"), Linked::Archive, folder.path());
    let recorded = Recorded { folder, program };
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    run(command.arg(recorded.path("S")).arg("--").arg(&recorded.program)).ok();
    let program = recorded.program.display().to_string();
    let report = |arguments: &[&str]| {
        let mut command = vec!["report", "S", "--symbols", &program];
        command.extend(arguments);
        recorded.hypertrace(&command).ok()
    };

    let lines: Vec<Line> = report(&["--json"]).lines().filter_map(Line::parse).collect();
    let text = report(&["--event", "function_entry"]);

    check_inside(&lines);
    let unnamed = text.lines().find(|line| !line.contains(" name="));
    assert_eq!(unnamed, None);
    for text in [text, report(&["--follow"])] {
        assert!(text.lines().any(|line| line.ends_with(" name=makes_point")), "{text}");
    }
}

#[test]
fn a_session_of_another_time_is_told() {
    let (Some(recorded), Some(later)) = (Recorded::new("F"), Recorded::new("F")) else { return };
    let dirs = [later.path("S"), recorded.path("F")];
    let commands = ["functions T --session S --region batch"];
    golden("other_time", HYPERTRACE.transcript(&dirs, &commands));
}

#[test]
fn a_region_that_is_not_there_is_refused_by_name() {
    let Some(recorded) = Recorded::new("F") else { return };
    let commands = [
        "functions F --region batch",
        "functions F --session S --region fetch",
        "regions F",
        "export S F F --to uftrace -o U",
        "report S --symbols x",
        "report S F@5ns",
    ];
    golden("refused", HYPERTRACE.transcript_in(recorded.folder.path(), &commands));
    assert!(!recorded.path("U").exists());
}

#[test]
fn a_trace_of_another_boot_is_refused_by_name() {
    let Some(recorded) = Recorded::new("F") else { return };
    let anchor = recorded.path("F/hypertrace.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&anchor).unwrap()).unwrap();
    json["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    fs::write(&anchor, json.to_string()).unwrap();
    let commands =
        ["report S F", "export S F --to uftrace -o U", "functions F --session S --region batch"];
    golden("other_boot", HYPERTRACE.transcript_in(recorded.folder.path(), &commands));
}

#[test]
fn a_flame_graph_is_one_file_that_replaces_only_its_like() {
    let Some(recorded) = Recorded::new("F") else { return };
    let path = recorded.path("F.svg");
    for _ in 0..2 {
        let ran = recorded.hypertrace(&["functions", "F", "--flame", "F.svg"]);

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let svg = fs::read_to_string(&path).unwrap();
        for name in ["main", "makes_point", "has_region", "cpu0\u{a0}Ring3"] {
            assert!(svg.contains(&format!("<title>{name} (")), "{name}");
        }
        for remote in ["href=\"http", "src=", "url(http", "@import"] {
            assert!(!svg.contains(remote), "{remote}");
        }
    }

    fs::write(&path, "mine").unwrap();
    let said = recorded.hypertrace(&["functions", "F", "--flame", "F.svg"]).failed(2);

    assert!(said.contains("--flame: F.svg exists"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_damaged_trace_is_named_in_every_command() {
    let Some(recorded) = Recorded::new("F") else { return };
    fs::write(recorded.path("F/hypertrace.json"), "{").unwrap();
    let commands = ["report S F", "export S F --to uftrace -o U", "functions F"];
    golden("damaged", HYPERTRACE.transcript_in(recorded.folder.path(), &commands));
}

#[test]
fn a_session_without_functions_is_not_exported() {
    let Some(recorded) = Recorded::new("F") else { return };
    let commands = ["export S --to uftrace -o U", "functions S"];
    golden("no_functions", HYPERTRACE.transcript_in(recorded.folder.path(), &commands));
    assert!(!recorded.path("U").exists());
}

/// Makes the directory of a small function trace, in which the kernel calls `functions` further functions.
fn made(folder: &Path, functions: u64) -> PathBuf {
    let path = data::write(folder);
    let (mut symbols, mut records) = (String::new(), Vec::new());
    for number in 0..functions {
        let address = 0x50_0000 + number * 0x10;
        symbols += &format!("{:016x} T more_{number}\n", number * 0x10);
        records.extend([
            (10_000 + number * 10, '+', 0, address),
            (10_005 + number * 10, '-', 0, address),
        ]);
    }
    let end = 0x50_0000 + functions * 0x10;
    let map = format!("500000-{end:x} r-xp 00000000 00:00 0 /more\n");
    let mut maps = fs::read_to_string(path.join("sid-0000000000000001.map")).unwrap();
    maps.insert_str(0, &map);
    fs::write(path.join("sid-0000000000000001.map"), maps).unwrap();
    fs::write(path.join("more.sym"), symbols).unwrap();
    data::append(&path.join("200.dat"), &records);
    path
}

#[test]
fn json_has_all_functions_and_the_text_counts_those_that_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), 30);
    let ran = |options: &[&str]| run(HYPERTRACE.command(["functions"]).arg(&path).args(options));

    let (all, three) = (ran(&["--json"]).json(), ran(&["--json", "-n", "3"]).json());
    let text = ran(&[]).ok();

    // 36 of the functions were called.
    let of = |json: &Value| {
        (json["functions"].as_array().unwrap().len(), json["functions_in_all"].clone())
    };
    assert_eq!((of(&all), of(&three)), ((36, 36.into()), (3, 36.into())));
    assert!(text.lines().any(|line| line.trim() == "16 more functions: -n"), "{text}");
    assert!(!ran(&["-n", "36"]).ok().contains("more functions"));
}

#[test]
fn functions_behind_damage_are_shown_and_the_exit_code_tells_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), 30);
    let records = path.join("200.dat");
    let mut bytes = fs::read(&records).unwrap();
    // The damage is in the entry of the second function.
    bytes[2 * 16 + 8] ^= 0x38;
    fs::write(&records, bytes).unwrap();
    let ran = |options: &[&str]| run(HYPERTRACE.command(["functions"]).arg(&path).args(options));

    for options in [&["-n", "40"][..], &["--json"], &["--flame", "F.svg"]] {
        let mut command = HYPERTRACE.command(["functions"]);
        let ran = run(command.arg(&path).args(options).current_dir(folder.path()));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let said = "200.dat: damaged at byte 32: no record: the mark is 2, not 5 (16 bytes at 1 place are left out)";
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let text = ran(&["-n", "40"]).stdout;
    let has = |number: u64| text.contains(&format!(" more_{number}\n"));
    assert_eq!(Vec::from_iter((0..30).filter(|number| !has(*number))), [1]);
    // The two other tasks have six calls together. The entry of one exit was lost in the damaged part.
    assert!(
        text.ends_with("\n36 calls, 0 without an end, 0 records lost, 1 exits without an entry\n"),
        "{text}"
    );
}

#[test]
fn calls_too_deep_for_a_record_are_counted() {
    let Some(compiler) = c::compiler() else { return };
    let compiler = compiler.with(&["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"]);
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("deep.c");
    let code = "#include <hypertrace.h>\n\
                volatile int v;\n\
                static int down(int n) { int r = n ? down(n - 1) + 1 : 0; v += r; return r; }\n\
                int main(void) { return down(3000) != 3000; }\n";
    fs::write(&source, code).unwrap();
    let program = compiler.program(&source, Linked::Archive, folder.path());
    let recorded = Recorded { folder, program };
    let mut command = HYPERTRACE.command(["record", "--quiet", "--ring", "16M", "-o"]);
    run(command.arg(recorded.path("S")).arg("--").arg(&recorded.program)).ok();
    let program = recorded.program.display().to_string();

    let json: Value =
        recorded.hypertrace(&["functions", "S", "--symbols", &program, "--json"]).json();
    let text = recorded.hypertrace(&["functions", "S", "--symbols", &program]).ok();

    let down = json["functions"].as_array().unwrap().iter().find(|found| found["name"] == "down");
    let calls = down.unwrap()["calls"].as_u64().unwrap();
    assert_eq!(calls + json["too_deep"].as_u64().unwrap(), 3_001);
    assert!(text.ends_with(" 0 records lost, 1,978 calls too deep\n"), "{text}");
}
