//! Function traces of a Linux guest of a stock QEMU, with the guest's events.

use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_tests::c::{self, Linked};
use hypertrace_tests::command::{Hypertrace, plugin};
use hypertrace_tests::linux::Linux;
use hypertrace_tests::serve::Server;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Calls of the program's function in its region, and before and after it.
const STEPS: u64 = 20;

#[test]
fn in_a_region_of_a_guest_its_functions_are_recorded() {
    let (Some(linux), Some(compiler)) = (Linux::find(), c::compiler()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
    let program = compiler.program(&c::source("tests/c/steps.c"), Linked::Static, folder.path());
    let dir = folder.path().join("functions");
    let plugin = format!(
        "{},functions={},symbols={},level=3,region=batch",
        plugin().with_file_name("libhypertrace_qemu_plugin_7.so").display(),
        dir.display(),
        program.display()
    );
    let options = [server.device.clone(), vec!["-plugin".into(), plugin]].concat();
    let script = format!("program {STEPS}; echo \"ended: $?\"");

    let console = linux.start(folder.path(), &options, &[("program", &program)], &script).console();

    assert!(console.contains("ended: 0"), "{console}");
    let total = server.end()["total"].clone();
    assert_eq!((&total["events"], &total["lost"]), (&(3 * STEPS).into(), &0.into()), "{total}");
    let trace = Trace::open(&dir).unwrap();
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
    Linux::used();
}
