//! Function traces of a stock Linux kernel.

use crate::common;
use common::library;
use common::machine::{AARCH64_7, Booted, Machine, X86_64_7};
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::symbols::is_thunk;
use std::fs;

/// Minimum number of the kernel's functions with the right count in the trace, among the functions that only
/// calls reach in a boot.
const FUNCTIONS: usize = 3_000;

/// Counts of executions of a function's first instruction.
struct Start {
    address: u64,
    by_call: u64,
    otherwise: u64,
}

/// Returns the counts in the probe's lines.
fn starts(boot: &Booted) -> Vec<Start> {
    let lines = boot.stderr.lines().filter_map(|line| line.strip_prefix("probe: start "));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            let mut count = || words.next().unwrap().parse().unwrap();
            Start { address, by_call: count(), otherwise: count() }
        })
        .collect()
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn functions_that_only_calls_reach_have_as_many_calls_as_executions() {
    compare(&X86_64_7, 1_000);
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn functions_of_aarch64_that_only_calls_reach_have_as_many_calls_as_executions() {
    // Some counts may be wrong, because an interrupt may come between an indirect call and the first call or
    // return in the called function. The called function then gets the name of the interrupt's entry code.
    compare(&AARCH64_7, 200);
}

/// Boots a machine with a function trace and with the probe, and compares the counts of functions. The number
/// of functions with a wrong count may be at most a `one_of`-th of the number of functions with the right
/// count.
#[track_caller]
fn compare(machine: &'static Machine, one_of: usize) {
    let Some(machine) = machine.with("init.c", &["-static"]) else { return };
    let symbols = machine.file("kallsyms");
    fs::write(&symbols, machine.boot(1, "quiet nokaslr -- kallsyms", &[]).out).unwrap();
    let (dir, names) = (machine.file("trace"), symbols.display());
    let trace = machine.plugin(&format!("functions={},symbols={names}", dir.display()));
    let count = format!("{},symbols={names}", library("libhypertrace_qemu_probe.so").display());

    let boot = machine.boot(1, "quiet nokaslr", &[&trace, &count]);

    assert_eq!(boot.out, "done\n", "{boot:?}");
    let trace = Trace::open(&dir).unwrap();
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    let (mut exact, mut other) = (0, Vec::new());
    for Start { address, by_call, otherwise } in starts(&boot) {
        let symbol = trace.function(address).unwrap();
        if otherwise > 0 || is_thunk(symbol.name) {
            continue;
        }
        let recorded = summary.function(address).map_or(0, |function| function.calls);
        match recorded == by_call {
            true => exact += 1,
            false => other.push(format!("{}: {recorded} of {by_call}", symbol.name)),
        }
    }
    assert!(exact >= FUNCTIONS, "{exact}");
    assert!(other.len() <= exact / one_of, "{exact} exact, {other:#?}");
    println!("figure: {exact} functions with as many calls as executions, {} without", other.len());
    let [calls, misses, lost] = boot.totals();
    assert!(calls > 1_000_000 && misses <= calls / 10_000, "{misses} misses of {calls} calls");
    assert_eq!(lost, 0);
    // Tail calls are recorded, too.
    assert!(summary.calls > calls, "{}", summary.calls);
}
