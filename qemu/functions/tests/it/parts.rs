//! Sums of parts of a trace's time, and stacks for flame graphs.

use hypertrace_test_support::functions as data;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use data::{KERNEL, PROGRAM};
use hypertrace_functions::read::{Flame, Frame, MAX_STACKS, Spans, Summary, Trace};
use hypertrace_functions::record::{ADDRESS_MASK, Record, RecordType};
use hypertrace_functions::write::Records;

const WORK: u64 = PROGRAM + 0x100;
const FIB: u64 = PROGRAM + 0x300;

fn open(folder: &tempfile::TempDir) -> Trace {
    Trace::open(&data::write(folder.path())).unwrap()
}

#[test]
fn sums_are_cut_at_the_bounds_of_the_parts() {
    let folder = tempfile::tempdir().unwrap();
    let trace = open(&folder);
    // The parts contain the end of `work`, some of `main`, and the beginning of both calls of `fib`.
    let spans = Spans::new([(2_600, 3_100), (4_900, 5_300)]);

    let summary = Summary::within(&trace, Some(&spans));

    let sums = |address| {
        let sums = summary.function(address)?;
        Some((sums.calls, sums.total, sums.self_time, sums.max))
    };
    assert_eq!(sums(WORK), Some((1, 400, 400, 400)));
    assert_eq!(sums(FIB), Some((2, 300, 300, 300)));
    assert_eq!(sums(PROGRAM), Some((1, 900, 200, 900)));
    assert_eq!(sums(PROGRAM + 0x200), None);
    // The kernel ran at the same time.
    assert_eq!(sums((KERNEL + 0x100) & ADDRESS_MASK), Some((1, 900, 900, 900)));
}

#[test]
fn a_call_within_one_part_has_its_whole_time() {
    let folder = tempfile::tempdir().unwrap();
    let trace = open(&folder);

    let whole = Summary::of(&trace);
    let within = Summary::within(&trace, Some(&Spans::new([(0, u64::MAX)])));

    assert_eq!(within.calls, whole.calls);
    for address in [PROGRAM, WORK, FIB] {
        assert_eq!(within.function(address), whole.function(address));
    }
}

#[test]
fn without_parts_there_is_no_call() {
    let folder = tempfile::tempdir().unwrap();

    let summary = Summary::within(&open(&folder), Some(&Spans::default()));

    assert_eq!(summary.calls, 0);
}

#[test]
fn stacks_have_the_time_of_their_innermost_function() {
    let folder = tempfile::tempdir().unwrap();
    let (user, kernel) = (Frame::Track(103), Frame::Track(100));
    let [main, work, fib] = [PROGRAM, WORK, FIB].map(Frame::Function);
    let start = Frame::Function(KERNEL & ADDRESS_MASK);
    let trace = open(&folder);

    let mut stacks = Flame::of(&trace, None).stacks();

    stacks.retain(|(frames, _)| frames.len() != 3 || frames[2] != Frame::Function(PROGRAM + 0x200));
    let expected = [
        (vec![kernel, start], 5_000),
        (vec![kernel, start, Frame::Function((KERNEL + 0x100) & ADDRESS_MASK)], 3_000),
        (vec![user, main], 5_500),
        (vec![user, main, work], 1_000),
        (vec![user, main, fib], 1_000),
        (vec![user, main, fib, fib], 1_000),
    ];
    assert_eq!(stacks, expected);
    let part = Flame::of(&trace, Some(&Spans::new([(2_600, 2_800)]))).stacks();
    assert!(part.contains(&(vec![user, main, work], 200)), "{part:?}");
}

#[test]
fn the_shortest_of_too_many_stacks_count_for_their_callers() {
    let folder = tempfile::tempdir().unwrap();
    let path = data::write(folder.path());
    let mut records = Records::append(&path.join("200.dat")).unwrap();
    let mut write = |time, kind, depth, address| {
        records.write(Record { time, kind, depth, address }).unwrap();
    };
    let many = 2 * MAX_STACKS as u64;
    write(0, RecordType::Entry, 0, 1);
    for n in 0..many {
        // One call is longer than the others.
        let length = if n == 7 { 50 } else { 5 };
        write(100 * n, RecordType::Entry, 1, 1_000 + n);
        write(100 * n + length, RecordType::Exit, 1, 1_000 + n);
    }
    write(100 * many, RecordType::Exit, 0, 1);
    records.finish().unwrap();

    let stacks = Flame::of(&Trace::open(&path).unwrap(), None).stacks();

    assert!(stacks.len() <= MAX_STACKS);
    let (track, outer) = (Frame::Track(200), Frame::Function(1));
    assert!(stacks.contains(&(vec![track, outer, Frame::Function(1_007)], 50)));
    // No time is lost.
    let sum: u64 =
        stacks.iter().filter(|(frames, _)| frames[0] == track).map(|(_, time)| time).sum();
    assert_eq!(sum, 100 * many);
}

#[test]
fn a_watcher_gets_each_record_of_calls_that_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut trace = open(&folder);
    let read = Arc::new(AtomicU64::new(0));
    let watched = read.clone();
    trace.watch(move |records| _ = watched.fetch_add(records, Relaxed));

    let summary = Summary::of(&trace);

    assert_eq!((read.load(Relaxed), trace.most_records(), summary.calls), (14, 14, 7));
}
