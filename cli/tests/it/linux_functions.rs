//! Function traces of a Linux guest of a stock QEMU, with the guest's events.

use std::path::PathBuf;

use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_tests::c::{self, Linked};
use hypertrace_tests::command::{Hypertrace, plugin, run};
use hypertrace_tests::linux::Linux;
use hypertrace_tests::report::Line;
use hypertrace_tests::serve::Server;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Number of calls of the program's function in the region. The program makes as many calls before the
/// region, and as many calls after the region.
const STEPS: u64 = 20;

/// A session and a function trace of the region of a guest's program.
struct Recorded {
    _folder: TempDir,
    session: PathBuf,
    functions: PathBuf,
}

impl Recorded {
    /// Records both. `None` if this machine lacks something that the test needs.
    fn new() -> Option<Recorded> {
        let (linux, compiler) = (Linux::find()?, c::compiler()?);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
        let program =
            compiler.program(&c::source("tests/c/steps.c"), Linked::Static, folder.path());
        let functions = folder.path().join("functions");
        let plugin = format!(
            "{},functions={},symbols={},level=3,region=batch",
            plugin().with_file_name("libhypertrace_qemu_plugin_7.so").display(),
            functions.display(),
            program.display()
        );
        let options = [server.device.clone(), vec!["-plugin".into(), plugin]].concat();
        let script = format!("program {STEPS}; echo \"ended: $?\"");

        let guest = linux.start(folder.path(), &options, &[("program", &program)], &script);
        let console = guest.console();

        assert!(console.contains("ended: 0"), "{console}");
        let session = server.session.clone();
        let total = server.end()["total"].clone();
        assert_eq!((&total["events"], &total["lost"]), (&(3 * STEPS).into(), &0.into()), "{total}");
        Linux::used();
        Some(Recorded { _folder: folder, session, functions })
    }
}

#[test]
fn in_a_region_of_a_guest_its_functions_are_recorded() {
    let Some(recorded) = Recorded::new() else { return };

    let trace = Trace::open(&recorded.functions).unwrap();

    let summary = Summary::of(&trace);
    let calls = |name: &str| {
        let functions = summary.top(usize::MAX, By::Calls).into_iter();
        let is_it = |address| trace.function(address).is_some_and(|symbol| symbol.name == name);
        functions
            .filter(|function| is_it(function.address))
            .map(|function| function.calls)
            .sum::<u64>()
    };
    assert_eq!([calls("step"), calls("steps")], [STEPS, 1]);
}

#[test]
fn an_event_of_a_guest_is_within_its_bound_of_the_function_that_emitted_it() {
    let Some(recorded) = Recorded::new() else { return };

    let mut command = HYPERTRACE.command(["report", "--json"]);
    let text = run(command.arg(&recorded.session).arg(&recorded.functions)).ok();

    let lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
    let times = |event: &str| {
        let of_step = lines.iter().filter(|line| line.event == event);
        let of_step = of_step.filter(|line| line.fields.get("name").is_some_and(|n| n == "step"));
        Vec::from_iter(of_step.map(|line| line.ts_ns))
    };
    let (entries, exits) = (times("function_entry"), times("function_exit"));
    assert_eq!((entries.len() as u64, exits.len() as u64), (STEPS, STEPS));
    // Only events in the region count. The program makes as many events before the region, and as many events
    // after the region.
    let inside = lines.iter().filter(|line| line.event == "inside");
    let inside = inside.skip(STEPS as usize).take(STEPS as usize);
    for ((line, entry), exit) in inside.zip(entries).zip(exits) {
        let bound = line.bound_ns.unwrap() as i64;
        assert!(
            line.ts_ns + bound >= entry && line.ts_ns - bound <= exit,
            "{line:?} {entry} {exit}"
        );
    }
}
