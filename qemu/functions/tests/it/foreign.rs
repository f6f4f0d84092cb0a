//! Directories of other recorders, above all of uftrace. The reader shows each entry in the files as a call,
//! or counts the entry.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use hypertrace_format::error::BadInput;
use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_functions::record::{Record, RecordType};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const BASE: u64 = 0x5555_0000_0000;
const MAIN: u64 = 0x1100;
const OUTER: u64 = 0x1140;
const INNER: u64 = 0x1180;
const FIRST: &str = "0123456789abcdef";
const SECOND: &str = "fedcba9876543210";
/// Size of a record in bytes.
const SIZE: usize = 16;

/// A directory as uftrace makes it, for one program at [`BASE`].
struct Directory {
    folder: tempfile::TempDir,
    tids: Vec<u32>,
}

impl Directory {
    fn new() -> Directory {
        let directory = Directory { folder: tempfile::tempdir().unwrap(), tids: Vec::new() };
        directory.write(
            "task.txt",
            format!(
                "SESS timestamp=0.000000000 pid=100 sid={FIRST} exename=\"/x/prog\"\n\
                 TASK timestamp=0.000000000 tid=100 pid=100\n"
            ),
        );
        directory.write_map(FIRST, "prog", BASE);
        directory
            .write_symbols("prog", &[(MAIN, "T main"), (OUTER, "T outer"), (INNER, "T inner")]);
        directory
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    fn write_map(&self, session: &str, program: &str, base: u64) {
        let end = base + 0x10000;
        let text = format!("{base:x}-{end:x} r-xp 00000000 fe:00 1    /x/{program}\n");
        self.write(&format!("sid-{session}.map"), text);
    }

    fn write_symbols(&self, program: &str, symbols: &[(u64, &str)]) {
        let mut text = format!("# symbols: {}\n", symbols.len());
        for (offset, symbol) in symbols {
            let _ = writeln!(text, "{offset:016x} {symbol}");
        }
        self.write(&format!("{program}.sym"), text + "0000000000001200 ? __sym_end\n");
    }

    fn write_records(&mut self, tid: u32, records: &[u8]) {
        self.write(&format!("{tid}.dat"), records);
        self.tids.push(tid);
        let header = [
            &b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02"[..],
            &0x6b_u64.to_le_bytes(),
            &0x81_u64.to_le_bytes(),
            &1024_u64.to_le_bytes(),
        ];
        let tids: Vec<_> = self.tids.iter().map(u32::to_string).collect();
        let lines = format!(
            "exename:/x/prog\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n",
            tids.len(),
            tids.join(",")
        );
        self.write("info", [&header.concat()[..], lines.as_bytes()].concat());
    }

    fn trace(&self) -> Trace {
        Trace::open(self.path()).unwrap()
    }
}

/// Returns the bytes of a record: `+` is an entry, `-` an exit.
fn record(time: u64, sign: char, depth: u16, offset: u64) -> Vec<u8> {
    let kind = if sign == '+' { RecordType::Entry } else { RecordType::Exit };
    Record { time, kind, depth, address: BASE + offset }.to_bytes().to_vec()
}

/// Returns the bytes of a record with arguments.
fn with_arguments(mut record: Vec<u8>, arguments: &[u8]) -> Vec<u8> {
    record[8] |= 4;
    record.extend(arguments);
    record
}

/// Returns the names of the functions, in order, with the numbers of their calls.
fn calls(trace: &Trace, summary: &Summary) -> Vec<(String, u64)> {
    let mut calls: Vec<_> = summary
        .top(usize::MAX, By::Calls)
        .into_iter()
        .map(|function| {
            let symbol = trace.function(function.address);
            (symbol.map_or_else(|| "?".into(), |symbol| symbol.name.to_owned()), function.calls)
        })
        .collect();
    calls.sort();
    calls
}

fn named(calls: &[(&str, u64)]) -> Vec<(String, u64)> {
    calls.iter().map(|(name, calls)| ((*name).to_owned(), *calls)).collect()
}

#[test]
fn calls_within_one_step_of_a_coarse_clock_are_counted() {
    let mut directory = Directory::new();
    let mut records = record(1_000, '+', 0, MAIN);
    for time in (1_041..).step_by(82).take(10) {
        records.extend(record(time, '+', 1, OUTER));
        records.extend(record(time, '+', 2, INNER));
        records.extend(record(time, '-', 2, INNER));
        records.extend(record(time + 41, '-', 1, OUTER));
    }
    records.extend(record(2_000, '-', 0, MAIN));
    directory.write_records(100, &records);
    let trace = directory.trace();

    let summary = Summary::of(&trace);

    assert_eq!(calls(&trace, &summary), named(&[("inner", 10), ("main", 1), ("outer", 10)]));
    assert!(summary.damage.is_empty());
}

#[test]
fn calls_with_arguments_are_counted_and_the_arguments_skipped() {
    // The arguments are a number, a large number, and a long text. Two more arguments look like records: one
    // has another time, and one has a depth that no call has here.
    let arguments: [Vec<u8>; 5] = [
        7_u64.to_le_bytes().into(),
        u64::MAX.to_le_bytes().into(),
        record(1, '+', 2, INNER),
        record(1_000_000, '+', 900, INNER),
        vec![b'x'; 1_000],
    ];
    let mut directory = Directory::new();
    let mut records = record(1_000_000, '+', 0, MAIN);
    for (time, arguments) in (1_000_100..).step_by(100).zip(&arguments) {
        let entry = record(time, '+', 1, OUTER);
        records.extend(with_arguments(entry, arguments));
        // The exit has a returned value.
        let exit = record(time + 50, '-', 1, OUTER);
        records.extend(with_arguments(exit, arguments));
    }
    let exit = record(2_000_000, '-', 0, MAIN);
    records.extend(with_arguments(exit, &7_u64.to_le_bytes()));
    directory.write_records(100, &records);
    let trace = directory.trace();

    let summary = Summary::of(&trace);

    assert_eq!(calls(&trace, &summary), named(&[("main", 1), ("outer", 5)]));
    assert_eq!((summary.unfinished, summary.orphans), (0, 0));
    assert!(summary.damage.is_empty(), "{:?}", summary.damage);
}

#[test]
fn a_call_with_arguments_in_one_with_arguments_is_counted() {
    let mut directory = Directory::new();
    let mut records = Vec::new();
    for (time, depth) in (1_000..).step_by(10).zip(0..100) {
        let entry = record(time, '+', depth, OUTER);
        records.extend(with_arguments(entry, &u64::from(depth).to_le_bytes()));
    }
    for (time, depth) in (3_000..).step_by(10).zip((0..100).rev()) {
        records.extend(record(time, '-', depth, OUTER));
    }
    directory.write_records(100, &records);
    let trace = directory.trace();

    let summary = Summary::of(&trace);

    assert_eq!(calls(&trace, &summary), named(&[("outer", 100)]));
    assert_eq!(summary.unfinished, 0);
}

#[test]
fn what_is_behind_a_damaged_record_is_read_and_the_damage_counted() {
    let whole = {
        let mut records = record(1_000, '+', 0, MAIN);
        for time in (1_010..).step_by(100).take(10) {
            records.extend(record(time, '+', 1, OUTER));
            records.extend(record(time + 50, '-', 1, OUTER));
        }
        records.extend(record(5_000, '-', 0, MAIN));
        records
    };
    // There are three kinds of damage: a record with a wrong mark, zeros in place of a record, and an odd
    // number of words that are no record.
    for (at, damage, bytes) in
        [(5, vec![0x11; SIZE], SIZE), (5, vec![0; SIZE], SIZE), (5, vec![0x11; SIZE + 8], SIZE + 8)]
    {
        let records = [&whole[..at * SIZE], &damage, &whole[(at + 1) * SIZE..]].concat();
        let mut directory = Directory::new();
        directory.write_records(100, &records);
        let trace = directory.trace();

        let summary = Summary::of(&trace);

        // A call's entry is damaged, and its exit is left.
        assert_eq!(calls(&trace, &summary), named(&[("main", 1), ("outer", 9)]));
        assert_eq!((summary.unfinished, summary.orphans), (0, 1));
        let said = summary.damage[0].to_string();
        let expected = format!("({bytes} bytes at 1 place are left out)");
        assert!(
            said.contains("100.dat: damaged at byte 80: ") && said.ends_with(&expected),
            "{said}"
        );
    }
}

#[test]
fn damage_without_a_record_behind_it_is_counted_to_the_end() {
    let mut directory = Directory::new();
    let records = [record(1_000, '+', 0, MAIN), vec![0x11; 1 << 20]].concat();
    directory.write_records(100, &records);

    let summary = Summary::of(&directory.trace());

    assert_eq!((summary.calls, summary.unfinished), (1, 1));
    let said = summary.damage[0].to_string();
    assert!(said.ends_with("(1048576 bytes at 1 place are left out)"), "{said}");
}

#[test]
fn zeros_that_a_killed_recorder_left_are_no_damage() {
    let mut directory = Directory::new();
    let mut records = record(1_000, '+', 0, MAIN);
    records.resize(3 << 20, 0);
    directory.write_records(100, &records);

    let summary = Summary::of(&directory.trace());

    assert_eq!(summary.calls, 1);
    assert!(summary.damage.is_empty());
}

#[test]
fn a_function_of_a_library_has_its_name() {
    let mut directory = Directory::new();
    directory
        .write_symbols("prog", &[(0x1040, "P fork"), (0x1050, "? __dynsym_end"), (MAIN, "T main")]);
    let records = [
        record(1_000, '+', 0, MAIN),
        record(1_100, '+', 1, 0x1040),
        record(1_300, '-', 1, 0x1040),
        record(2_000, '-', 0, MAIN),
    ];
    directory.write_records(100, &records.concat());
    let trace = directory.trace();

    assert_eq!(calls(&trace, &Summary::of(&trace)), named(&[("fork", 1), ("main", 1)]));
}

/// Returns the records of a call of `outer` in `main`, in a program that is loaded `moved` bytes above
/// [`BASE`].
fn program(time: u64, moved: u64) -> Vec<u8> {
    [
        record(time, '+', 0, moved + MAIN),
        record(time + 10, '+', 1, moved + OUTER),
        record(time + 60, '-', 1, moved + OUTER),
        record(time + 1_000, '-', 0, moved + MAIN),
    ]
    .concat()
}

fn forked(program: &str) -> String {
    format!(
        "SESS timestamp=0.900000000 pid=100 sid={FIRST} exename=\"/x/prog\"\n\
         TASK timestamp=0.900000000 tid=100 pid=100\n\
         FORK timestamp=1.500000000 pid=101 ppid=100\n\
         SESS timestamp=1.900000000 pid=101 sid={SECOND} exename=\"/x/{program}\"\n"
    )
}

const MOVED: u64 = 0x100_0000;

#[test]
fn a_program_that_a_child_executes_again_has_each_function_once() {
    let mut directory = Directory::new();
    directory.write("task.txt", forked("prog"));
    directory.write_map(SECOND, "prog", BASE + MOVED);
    directory.write_records(100, &program(1_000_000_000, 0));
    // The child calls a function before it executes the other program.
    let before = [record(1_600_000_000, '+', 0, INNER), record(1_600_000_010, '-', 0, INNER)];
    directory.write_records(101, &[before.concat(), program(2_000_000_000, MOVED)].concat());
    let trace = directory.trace();

    let summary = Summary::of(&trace);

    assert_eq!(calls(&trace, &summary), named(&[("inner", 1), ("main", 2), ("outer", 2)]));
    let names: Vec<_> = trace.tasks().iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["/x/prog", "/x/prog"]);
}

#[test]
fn another_program_at_the_same_addresses_has_its_own_functions() {
    let mut directory = Directory::new();
    directory.write("task.txt", forked("other"));
    directory.write_map(SECOND, "other", BASE);
    directory.write_symbols("other", &[(MAIN, "T other_main"), (OUTER, "T other_outer")]);
    directory.write_records(100, &program(1_000_000_000, 0));
    let before = [record(1_600_000_000, '+', 0, INNER), record(1_600_000_010, '-', 0, INNER)];
    directory.write_records(101, &[before.concat(), program(2_000_000_000, 0)].concat());
    let trace = directory.trace();

    let summary = Summary::of(&trace);

    let expected = [("inner", 1), ("main", 1), ("other_main", 1), ("other_outer", 1), ("outer", 1)];
    assert_eq!(calls(&trace, &summary), named(&expected));
}

/// Returns the text of each fault of a trace, and whether the fault is damage.
fn faults(trace: &Trace) -> Vec<(String, bool)> {
    let name = |said: &str| {
        let folder = format!("{}/", trace.path().display());
        said.replace(&folder, "")
    };
    trace.warnings().iter().map(|said| (name(said), said.is_bad_input())).collect()
}

#[track_caller]
fn assert_faults(trace: &Trace, expected: &[&str]) {
    let expected = Vec::from_iter(expected.iter().map(|said| ((*said).to_owned(), true)));
    assert_eq!(faults(trace), expected);
}

#[test]
fn a_file_of_symbols_that_is_none_is_named_with_the_reason() {
    type Put<'p> = &'p dyn Fn(&Directory);
    let place = |directory: &Directory| directory.path().join("prog.sym");
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let odd: [(&str, Put<'_>); 5] = [
        ("it is a pipe, not a regular file", &|directory| {
            mknodat(CWD, place(directory), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }),
        ("it is a directory, not a regular file", &|directory| {
            fs::create_dir(place(directory)).unwrap();
        }),
        ("it is a link, not a regular file", &|directory| {
            symlink("prog.sym", place(directory)).unwrap();
        }),
        ("it is a link, not a regular file", &|directory| {
            symlink(elsewhere.path(), place(directory)).unwrap();
        }),
        ("it is a socket, not a regular file", &|directory| {
            drop(UnixListener::bind(place(directory)).unwrap());
        }),
    ];
    for (why, put) in odd {
        let mut directory = Directory::new();
        directory.write_records(100, &program(1_000, 0));
        fs::remove_file(place(&directory)).unwrap();
        put(&directory);

        let trace = directory.trace();

        assert_faults(&trace, &[&format!("prog.sym: {why}")]);
        assert_eq!(Summary::of(&trace).calls, 2);
        assert_eq!(trace.function(BASE + MAIN), None);
    }
}

#[test]
fn symbols_that_are_cut_are_used_as_far_as_they_are_whole() {
    let mut directory = Directory::new();
    directory.write_records(100, &program(1_000, 0));
    let whole = fs::read(directory.path().join("prog.sym")).unwrap();
    let lines = whole.split_inclusive(|byte| *byte == b'\n');
    let ends = Vec::from_iter(lines.scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    }));
    // The file is cut within the line of `outer`, and at the line's end. A mark follows the last symbol.
    let cut = format!(
        "prog.sym: damaged at byte {}: the file ends within this line, which is left out: copy the whole directory",
        ends[1]
    );
    let none =
        "prog.sym: damaged at byte 0: no symbol is there: copy the whole directory".to_owned();
    let few = |symbols: u32, end: usize| {
        format!(
            "prog.sym: damaged at byte {end}: only {symbols} of 3 symbols are there: copy the whole directory"
        )
    };
    for (len, said, names) in [
        (ends[2] - 1, vec![cut, few(1, ends[1])], [true, false]),
        (ends[2], vec![few(2, ends[2])], [true, true]),
        (ends[3], vec![], [true, true]),
        (0, vec![none], [false, false]),
    ] {
        directory.write("prog.sym", &whole[..len]);

        let trace = directory.trace();

        assert_faults(&trace, &Vec::from_iter(said.iter().map(String::as_str)));
        let has = |offset| {
            trace.function(BASE + offset).is_some_and(|found| found.address == BASE + offset)
        };
        assert_eq!([MAIN, OUTER].map(has), names, "{len}");
    }
    // Some writers count the mark, too.
    let counted = String::from_utf8(whole).unwrap().replace("symbols: 3", "symbols: 4");
    directory.write("prog.sym", counted.as_bytes());
    assert_faults(&directory.trace(), &[]);
}

#[test]
fn lines_that_are_no_symbols_are_counted_and_the_others_used() {
    let mut directory = Directory::new();
    directory.write_records(100, &program(1_000, 0));
    directory.write("prog.sym", format!("garbage\n{MAIN:x} T main\nmore\n{OUTER:x} T outer\n"));

    let trace = directory.trace();

    let why =
        "expected lines as in /proc/kallsyms: an address, a type and a name (2 lines left out)";
    assert_faults(&trace, &[&format!("prog.sym: damaged at byte 0: {why}")]);
    assert_eq!(calls(&trace, &Summary::of(&trace)), named(&[("main", 1), ("outer", 1)]));
}

#[test]
fn descriptions_that_are_cut_or_garbage_are_named() {
    let cut = "the file ends within this line, which is left out: copy the whole directory";
    let unnamed = "task.txt: no line of the task 100: tasks without a name";
    let line = |text: &[u8], line: usize| {
        text.split_inclusive(|byte| *byte == b'\n').take(line).map(<[u8]>::len).sum::<usize>()
    };
    let garbage = "expected a line of SESS, TASK, FORK or DLOP (2 lines left out)";
    type Change<'c> = &'c dyn Fn(&mut Vec<u8>);
    let cases: [(&str, Change<'_>, Vec<String>); 6] = [
        (
            "task.txt",
            &|text| _ = text.pop(),
            vec![format!("task.txt: damaged at byte 74: {cut}"), unnamed.into()],
        ),
        ("task.txt", &|text| text.truncate(line(text, 1)), vec![unnamed.into()]),
        ("task.txt", &|text| text.clear(), vec![unnamed.into()]),
        (
            "task.txt",
            &|text| *text = b"\xff\xfe\nabc\n".into(),
            vec![unnamed.into(), format!("task.txt: damaged at byte 0: {garbage}")],
        ),
        (
            &format!("sid-{FIRST}.map"),
            &|text| _ = text.pop(),
            vec![format!("sid-{FIRST}.map: damaged at byte 0: {cut}")],
        ),
        ("info", &|text| _ = text.pop(), vec![format!("info: damaged at byte 91: {cut}")]),
    ];
    for (name, change, mut said) in cases {
        let mut directory = Directory::new();
        directory.write_records(100, &program(1_000, 0));
        let path = directory.path().join(name);
        let mut text = fs::read(&path).unwrap();
        change(&mut text);
        directory.write(name, text);

        let trace = directory.trace();

        let mut found = faults(&trace);
        assert!(found.iter().all(|(_, is_damage)| *is_damage), "{found:?}");
        found.sort();
        said.sort();
        assert_eq!(Vec::from_iter(found.into_iter().map(|(said, _)| said)), said);
        assert_eq!(Summary::of(&trace).calls, 2);
    }
}

#[test]
fn a_file_of_records_that_info_does_not_list_is_read() {
    let mut directory = Directory::new();
    directory.write_records(100, &program(1_000, 0));
    for tid in [200, 300] {
        directory.write(&format!("{tid}.dat"), program(1_000, 0));
    }
    // These files have no records of a task.
    directory.write("0100.dat", program(1_000, 0));
    directory.write("perf-cpu0.dat", "x");
    directory.write("kernel-cpu0.dat", "x");

    let trace = directory.trace();

    assert_eq!(Summary::of(&trace).calls, 6);
    let expected = [
        "info: not the numbers of the task 200 and of 1 other, whose files of records are read, too",
        "kernel-cpu0.dat: the calls of a kernel are left out: `uftrace report` shows them",
    ];
    assert_eq!(faults(&trace), expected.map(|said| (said.to_owned(), false)));
}

#[test]
fn a_file_that_ends_within_a_record_is_cut() {
    let whole = program(1_000, 0);
    let arguments = with_arguments(record(3_000, '+', 0, MAIN), &[7; 11]);
    for (bytes, at, rest) in [
        (whole[..whole.len() - 1].to_vec(), 48, 15),
        (whole[..50].to_vec(), 48, 2),
        ([&whole[..], &arguments].concat(), 64 + 16 + 8, 3),
    ] {
        let mut directory = Directory::new();
        directory.write_records(100, &bytes);

        let summary = Summary::of(&directory.trace());

        let [said] = &summary.damage[..] else { panic!("{:?}", summary.damage) };
        let expected = format!(
            "100.dat: damaged at byte {at}: the file ends within a record ({rest} bytes at 1 place are left out)"
        );
        assert!(said.to_string().ends_with(&expected), "{said}");
        assert!(summary.calls >= 2, "{}", summary.calls);
    }
}

#[test]
fn records_behind_a_hole_are_read_and_the_hole_counted() {
    const HOLE: u64 = 1 << 40;
    let main = |time| [record(time, '+', 0, MAIN), record(time + 5, '-', 0, MAIN)].concat();
    for (behind, calls, places) in [(main(2_000), 2, 1), (Vec::new(), 1, 0)] {
        for damage in [&[][..], &[0x11; SIZE]] {
            let mut directory = Directory::new();
            directory.write_records(100, &[&main(1_000)[..], damage].concat());
            let path = directory.path().join("100.dat");
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(HOLE).unwrap();
            file.write_all_at(&behind, HOLE).unwrap();

            let summary = Summary::of(&directory.trace());

            assert_eq!((summary.calls, summary.unfinished, summary.orphans), (calls, 0, 0));
            let bytes = match places {
                0 => damage.len() as u64,
                _ => HOLE - 2 * SIZE as u64,
            };
            let said = (bytes > 0).then(|| format!("({bytes} bytes at 1 place are left out)"));
            let found = summary.damage.first().map(ToString::to_string);
            assert_eq!(found.is_some(), said.is_some(), "{found:?}");
            assert!(found.zip(said).is_none_or(|(found, said)| found.ends_with(&said)));
        }
    }
}

#[test]
fn a_directory_without_any_records_is_damaged() {
    let mut directory = Directory::new();
    directory.write_records(100, &program(1_000, 0));
    fs::remove_file(directory.path().join("100.dat")).unwrap();

    let error = Trace::open(directory.path()).unwrap_err();

    assert!(error.is_bad_input());
    assert!(error.to_string().contains("none of its tasks has a file of records"), "{error}");
}
