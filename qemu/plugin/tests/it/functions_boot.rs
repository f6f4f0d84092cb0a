//! Function traces of whole machines. Each machine boots a stock kernel, and its first process is the program
//! that counts its own calls.

use crate::common;
use common::machine::{AARCH64, AARCH64_7, Booted, Machine, Ready, X86_64, X86_64_7};
use common::uftrace;
use hypertrace_functions::read::{Summary, Trace};
use hypertrace_functions::record::{RecordType, SIZE};
use hypertrace_functions::symbols::{Source, Symbols};
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Defines tests. Each line `test: check(arguments)` becomes a test that calls the check with these
/// arguments.
macro_rules! boots {
    ($($(#[$ignore:meta])? $test:ident: $check:ident($($of:expr),*);)*) => {$(
        #[test]
        $(#[$ignore])?
        fn $test() {
            $check($($of),*);
        }
    )*};
}

boots! {
    a_boot_of_aarch64_is_exact: check(&AARCH64, 1);
    #[ignore = "takes long: cargo xtask full"]
    a_boot_of_aarch64_with_two_cpus_is_exact: check(&AARCH64, 2);
    #[ignore = "takes long: cargo xtask full"]
    a_boot_of_aarch64_under_api_7_is_exact: check(&AARCH64_7, 1);
    a_boot_of_aarch64_with_two_cpus_under_api_7_is_exact: check(&AARCH64_7, 2);
    a_boot_of_x86_64_is_exact: check(&X86_64, 1);
    #[ignore = "takes long: cargo xtask full"]
    a_boot_of_x86_64_with_two_cpus_is_exact: check(&X86_64, 2);
    #[ignore = "takes long: cargo xtask full"]
    a_boot_of_x86_64_under_api_7_is_exact: check(&X86_64_7, 1);
    a_boot_of_x86_64_with_two_cpus_under_api_7_is_exact: check(&X86_64_7, 2);
    #[ignore = "takes long: cargo xtask full"]
    programs_of_aarch64_with_the_same_code_have_their_own_addresses: check_addresses(&AARCH64);
    programs_of_aarch64_under_api_7_with_the_same_code_have_their_own_addresses: check_addresses(&AARCH64_7);
    #[ignore = "takes long: cargo xtask full"]
    programs_of_x86_64_under_api_7_with_the_same_code_have_their_own_addresses: check_addresses(&X86_64_7);
}

/// Boots a machine that runs one program several times, and checks the addresses of the program's functions.
#[track_caller]
fn check_addresses(machine: &'static Machine) {
    /// Number of calls of `fib` for fib(12), including this call.
    const CALLS: u64 = 465;
    let Some(machine) = machine.with("addresses.c", &["-static-pie"]) else { return };

    let (boot, dir) = traced(&machine, 1);

    let summary = Summary::of(&Trace::open(&dir).unwrap());

    let lines = boot.console.lines().filter_map(|line| line.trim().strip_prefix("fib at "));
    let addresses: HashSet<_> =
        lines.map(|address| u64::from_str_radix(address, 16).unwrap()).collect();
    assert_eq!(addresses.len(), 3, "{}", boot.console);
    for address in addresses {
        let calls = summary.function(address).map(|function| function.calls);
        assert_eq!(calls, Some(CALLS), "{address:x}");
    }
}

/// Boots a machine, checks its trace, and has uftrace read it.
#[track_caller]
fn check(machine: &'static Machine, cpus: u32) {
    let tracks = machine.tracks;
    let Some(machine) = machine.with("functions.c", &["-static"]) else { return };

    let (boot, dir) = traced(&machine, cpus);

    assert!(boot.console.contains("Kernel Offset: 0x"), "no KASLR: {}", boot.console);
    let [calls, misses, lost] = boot.totals();
    assert!(calls > 1_000_000 && misses * 10_000 <= calls, "{misses} misses of {calls}");
    assert_eq!(lost, 0);
    assert!(!boot.stderr.contains("wrong"), "{}", boot.stderr);
    let mut trace = Trace::open(&dir).unwrap();
    let names: HashSet<_> = trace.tasks().iter().map(|task| task.name.as_str()).collect();
    for cpu in 0..cpus {
        assert!(names.contains(format!("cpu{cpu} {}", tracks[0]).as_str()), "{names:?}");
    }
    assert!(names.iter().any(|name| name.ends_with(tracks[1])), "{names:?}");
    let entries: u64 = trace.tasks().iter().map(|task| entries(&trace, task.tid)).sum();
    // There may be more entries than counted calls for two reasons. The plugin repeats entries when the guest
    // switches stacks, and a tail call has an entry of its own.
    assert!(entries > calls - calls / 100, "{entries} entries of {calls} calls");
    let program = Source { path: machine.program.clone(), offset: 0 };
    let symbols = Symbols::read(&program).unwrap();
    trace.add_symbols(&program).unwrap();
    let summary = Summary::of(&trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    for name in ["fib", "compare", "deep", "tail", "leaf", "inner"] {
        let address = symbols.iter().find(|symbol| symbol.name == name).unwrap().address;
        let found = summary.function(address).unwrap().calls;
        assert_eq!(found, boot.printed(name), "{name}");
    }
    let short = shortened(&dir, &machine.file("short"));
    uftrace::reads("uftrace-bookworm", &short, &short);
    // uftrace takes some seconds for all records, so one release is enough.
    uftrace::reads("uftrace-forky", &dir, &short);
}

/// Boots with a function trace that has the program's names. The function also returns the trace's directory.
#[track_caller]
fn traced(machine: &Ready, cpus: u32) -> (Booted, PathBuf) {
    let dir = machine.file("trace");
    let (functions, symbols) = (dir.display(), machine.program.display());
    let plugin = machine.plugin(&format!("functions={functions},symbols={symbols}"));
    (machine.boot(cpus, "", &[&plugin]), dir)
}

/// Checks that a track's depths balance, its exits match its entries, and no time goes backwards. Returns the
/// number of entries.
#[track_caller]
fn entries(trace: &Trace, tid: u32) -> u64 {
    let (mut open, mut last, mut entries) = (Vec::new(), 0, 0);
    for record in trace.records(tid).unwrap() {
        let record = record.unwrap();
        assert!(record.time >= last, "{tid}: {record:?} after {last}");
        last = record.time;
        match record.kind {
            RecordType::Entry => {
                assert_eq!(usize::from(record.depth), open.len(), "{tid}: {record:?}");
                open.push(record.address);
                entries += 1;
            }
            RecordType::Exit => {
                assert_eq!(open.pop(), Some(record.address), "{tid}: {record:?}");
                assert_eq!(usize::from(record.depth), open.len(), "{tid}: {record:?}");
            }
            _ => panic!("{tid}: {record:?}"),
        }
    }
    assert!(open.is_empty(), "{tid}: {open:x?} have no exits");
    entries
}

/// Maximum number of records of each track that uftrace prints in these tests.
const PRINTED: u64 = 20_000;

/// Copies a directory with the first records of each track.
fn shortened(dir: &Path, copy: &Path) -> PathBuf {
    fs::create_dir(copy).unwrap();
    for file in fs::read_dir(dir).unwrap() {
        let file = file.unwrap().path();
        let new = copy.join(file.file_name().unwrap());
        fs::copy(&file, &new).unwrap();
        let length = fs::metadata(&file).unwrap().len();
        if file.extension().is_some_and(|extension| extension == "dat") {
            File::options()
                .write(true)
                .open(new)
                .unwrap()
                .set_len(length.min(PRINTED * SIZE as u64))
                .unwrap();
        }
    }
    copy.to_owned()
}
