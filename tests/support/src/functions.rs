//! A small trace with two tasks, of a kernel and of a program.

use std::path::{Path, PathBuf};

use hypertrace_functions::Task;
use hypertrace_functions::clock::Anchor;
use hypertrace_functions::record::{Record, RecordType};
use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_functions::write::{Directory, Records};

pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub const PROGRAM: u64 = 0x40_1000;

/// Returns the anchor of the trace: the host's clocks at the trace's time 0.
pub fn anchor() -> Anchor {
    Anchor {
        boot_id: Some("01234567-89ab-cdef-0123-456789abcdef".into()),
        counter: 5_000_000_000,
        frequency: 2_500_000_000,
        unix_ns: 1_800_000_000_000_000_000,
    }
}

fn symbols(folder: &Path, text: &str) -> Symbols {
    let path = folder.join("symbols.txt");
    std::fs::write(&path, text).unwrap();
    Symbols::read(&Source { path, offset: 0 }).unwrap()
}

/// Appends records. Each record is given by its time, `+` for an entry or `-` for an exit, its depth, and its
/// address.
pub fn append(path: &Path, records: &[(u64, char, u16, u64)]) {
    let mut writer = Records::append(path).unwrap();
    for &(time, sign, depth, address) in records {
        let kind = if sign == '+' { RecordType::Entry } else { RecordType::Exit };
        writer.write(Record { time, kind, depth, address }).unwrap();
    }
    writer.finish().unwrap();
}

/// Returns the place of a trace's time 0 at this Unix time, in an unknown boot, with a counter of 1 GHz.
pub fn anchor_at(unix_ns: i64) -> Anchor {
    Anchor { boot_id: None, counter: 0, frequency: 1_000_000_000, unix_ns }
}

/// Writes the trace of one task. Each record is a time, `+` for an entry, `-` for an exit or `!` for losses,
/// and an address.
pub fn write_task(path: &Path, anchor: &Anchor, records: &[(u64, char, u64)]) {
    let mut directory = Directory::create(path, "guest", "qemu").unwrap();
    directory.write_anchor(anchor).unwrap();
    directory.add_tasks([Task::of_vcpu(0, 3, "Ring3")]).unwrap();
    let mut writer = Records::append(&directory.records(103)).unwrap();
    let mut depth = 0;
    for &(time, sign, address) in records {
        let kind = match sign {
            '+' => RecordType::Entry,
            '-' => RecordType::Exit,
            _ => RecordType::Lost,
        };
        depth -= u16::from(kind == RecordType::Exit);
        writer.write(Record { time, kind, depth, address }).unwrap();
        depth += u16::from(kind == RecordType::Entry);
    }
    writer.finish().unwrap();
}

/// Writes the trace below `folder`, and returns its directory.
pub fn write(folder: &Path) -> PathBuf {
    let kernel = symbols(
        folder,
        "ffffffff81000000 T start_kernel\nffffffff81000100 t do_it\nffffffff81000200 D data\n",
    );
    let program = symbols(
        folder,
        "401000 T main\n401100 T work\n401200 T longjmp\n401300 T fib\n401400 D data\n",
    );
    let path = folder.join("trace");
    let mut directory = Directory::create(&path, "a guest", "qemu -smp 1").unwrap();
    // The second virtual CPU does nothing.
    let tasks = [(0, 0, "Ring0"), (0, 3, "Ring3"), (1, 0, "Ring0")]
        .map(|(vcpu, level, name)| Task::of_vcpu(vcpu, level, name));
    directory.add_tasks(tasks).unwrap();
    directory.add_module("kernel", &kernel).unwrap();
    directory.add_module("program", &program).unwrap();
    directory.write_anchor(&anchor()).unwrap();
    directory.write_events([(3500, "second event"), (1200, "first event")]).unwrap();
    append(
        &directory.records(100),
        &[
            (1500, '+', 0, KERNEL),
            (2500, '+', 1, KERNEL + 0x100),
            (5500, '-', 1, KERNEL + 0x100),
            (9500, '-', 0, KERNEL),
        ],
    );
    append(
        &directory.records(103),
        &[
            (1000, '+', 0, PROGRAM),
            (2000, '+', 1, PROGRAM + 0x100),
            (3000, '-', 1, PROGRAM + 0x100),
            (4000, '+', 1, PROGRAM + 0x200),
            (4500, '-', 1, PROGRAM + 0x200),
            (5000, '+', 1, PROGRAM + 0x300),
            (5200, '+', 2, PROGRAM + 0x300),
            (6200, '-', 2, PROGRAM + 0x300),
            (7000, '-', 1, PROGRAM + 0x300),
            (10000, '-', 0, PROGRAM),
        ],
    );
    path
}
