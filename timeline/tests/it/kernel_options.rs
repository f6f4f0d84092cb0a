// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the meaning of the options and sections in a trace.dat of trace-cmd. `trace-cmd report` shows the
//! same texts and numbers.

use hypertrace_test_support::kept::{self, Entry, Event, Value};
use hypertrace_test_support::trace_dat::*;
use hypertrace_timeline::{KernelTrace, Needs, Recording, Warning};
use std::collections::BTreeMap;
use std::fs;
use tempfile::TempDir;

/// Returns the events of a file, and the warnings.
fn read(bytes: &[u8]) -> (Vec<Event>, Vec<Warning>) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, bytes).unwrap();
    let recording = Recording::of([], [KernelTrace::open(&path).unwrap()]);
    let (entries, warnings) = kept::entries(&recording, Needs::ALL).unwrap();
    let events = entries.into_iter().map(|entry| match entry {
        Entry::Event(event) => event,
        Entry::Lost(lost) => panic!("{lost:?}"),
    });
    (events.collect(), recording.warnings().chain(warnings).collect())
}

/// Reads a trace in both versions of the format, which have the same events.
fn read_both(trace: &TraceDat) -> (Vec<Event>, Vec<Warning>) {
    let (new, warnings) = read(&trace.version_7());
    assert_eq!(read(&trace.version_6()).0, new);
    (new, warnings)
}

fn times(trace: &TraceDat) -> Vec<i64> {
    let (events, warnings) = read_both(trace);
    assert_eq!(warnings, [""; 0]);
    events.iter().map(|event| event.ts_ns).collect()
}

/// Makes a trace of two events, at 1,000 and 1,010.
fn trace(clock: &str) -> TraceDat {
    TraceDat::new(clock).cpu(&[Page::at(1_000).mmio(0, 77, 1).mmio(10, 77, 2)])
}

#[test]
fn a_clock_whose_name_follows_the_table_of_cpus_is_read() {
    for (clock, ticks) in [("mono", None), ("counter", Some(1_000))] {
        let mut old = trace(clock);
        old.is_of_trace_cmd_2 = true;
        // The instance has its own table of CPUs and its own name of the clock.
        let (events, _) = read(&old.version_6_with(&old));
        assert_eq!(events.len(), 4);
        assert!(events.iter().take(2).all(|event| event.ticks == ticks), "{events:?}");
    }
}

#[test]
fn dates_and_offsets_are_added_to_all_times() {
    let date = |text: &str| (1, text.as_bytes().to_vec());
    let offset = |text: &str| (7, text.as_bytes().to_vec());
    assert_eq!(
        times(&trace("mono").option(date("0x5f5e100\0"))),
        [100_000_001_000, 100_000_001_010]
    );
    assert_eq!(times(&trace("mono").option(date("-0x1"))), [0, 10]);
    let both = trace("local").option(date("0x1\0")).option(offset("-500\0"));
    assert_eq!(times(&both), [1_500, 1_510]);
    // The offset is in nanoseconds, even if the clock has ticks of half a nanosecond.
    let tsc = trace("x86-tsc").option(tsc2nsec(1, 1)).option(offset("7\0"));
    assert_eq!(times(&tsc), [507, 512]);
}

/// Returns why a file is refused.
fn refused(bytes: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, bytes).unwrap();
    KernelTrace::open(&path).unwrap_err().to_string()
}

#[test]
fn an_offset_that_is_no_number_is_damage() {
    let why = refused(&trace("mono").option((1, b"soon\0".to_vec())).version_7());
    assert!(why.contains("an offset of times") && why.contains("soon"), "{why}");
}

#[test]
fn the_text_of_a_latency_tracer_is_not_supported() {
    let mut bytes = trace("mono").version_6();
    let at = bytes.windows(10).position(|part| part == b"flyrecord\0").unwrap();
    bytes[at..at + 10].copy_from_slice(b"latency  \0");
    let why = refused(&bytes);
    assert!(why.contains("not supported: the text of a latency tracer"), "{why}");
}

#[test]
fn ticks_of_unknown_length_are_no_time() {
    for clock in ["", "local", "global", "perf", "mono", "mono_raw", "boot", "tai", "tsc2nsec"] {
        let (events, warnings) = read(&trace(clock).version_7());
        assert_eq!((events[0].ticks, warnings), (None, vec![]), "{clock}");
    }
    for clock in ["x86-tsc", "counter", "uptime", "ppc-tb", "invented"] {
        let (events, warnings) = read_both(&trace(clock).option((1, b"0x1\0".to_vec())));
        let ticks: Vec<_> = events.iter().map(|event| event.ticks).collect();
        assert_eq!(ticks, [Some(1_000), Some(1_010)], "{clock}");
        assert!(warnings[0].contains(&format!("{clock:?} counts ticks")), "{warnings:?}");
    }
    let (events, _) = read_both(&trace("x86-tsc").option(tsc2nsec(1, 1)));
    assert_eq!((events[0].ts_ns, events[0].ticks), (500, None));
}

/// Returns the values of an event's fields.
fn values(event: &Event) -> Vec<Value> {
    event.fields.iter().map(|(_, value)| value.clone()).collect()
}

const STACK: &str = "name: kernel_stack
ID: 4
COMMON\tfield:int size;\toffset:8;\tsize:4;\tsigned:1;
\tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;

print fmt: \"\\t=> %ps\\n\", (void *)REC->caller[0]
";
const RAW: &str = "name: raw_data
ID: 16
COMMON\tfield:unsigned int id;\toffset:8;\tsize:4;\tsigned:0;
\tfield:char buf[];\toffset:12;\tsize:0;\tsigned:0;

print fmt: \"id:%04x %08x\", REC->id, (int)REC->buf[0]
";
const BPRINT: &str = "name: bprint
ID: 6
COMMON\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;
\tfield:const char * fmt;\toffset:16;\tsize:8;\tsigned:0;
\tfield:u32 buf[];\toffset:24;\tsize:0;\tsigned:0;

print fmt: \"%ps: %s\", (void *)REC->ip, REC->fmt
";
const BPUTS: &str = "name: bputs
ID: 14
COMMON\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;
\tfield:const char * str;\toffset:16;\tsize:8;\tsigned:0;

print fmt: \"%ps: %s\", (void *)REC->ip, REC->str
";

#[test]
fn stacks_have_all_their_callers() {
    let stack = |says: u32, has: u64| {
        let callers = (1..=has).flat_map(u64::to_le_bytes);
        says.to_le_bytes().into_iter().chain([0; 4]).chain(callers).collect::<Vec<u8>>()
    };
    for text in [STACK.into(), STACK.replace("caller[8]", "caller[]").replace("size:64", "size:0")]
    {
        let page = [3, 8, 12, 0]
            .iter()
            .fold(Page::at(1), |page, n| page.event(1, 4, 77, &stack(*n, (*n).into())));
        let (events, warnings) =
            read_both(&TraceDat::new("mono").format("ftrace", &text).cpu(&[page]));
        assert_eq!(warnings, [""; 0]);
        let callers = |n: u64| Value::Words((1..=n).collect());
        let found: Vec<Value> = events.iter().map(|event| values(event)[1].clone()).collect();
        assert_eq!(found, [callers(3), callers(8), callers(12), callers(0)]);
    }
    // A count that is too large does not make the reader allocate memory for it.
    let page = Page::at(1).event(1, 4, 77, &stack(u32::MAX >> 1, 3));
    let (events, warnings) = read_both(&TraceDat::new("mono").format("ftrace", STACK).cpu(&[page]));
    assert_eq!(values(&events[0]).len(), 1);
    assert!(warnings[0].contains("do not hold what their format says"), "{warnings:?}");
}

#[test]
fn markers_are_whole_in_the_formats_of_old_and_new_kernels() {
    let words = [b"a\0b\xff", &[1, 2, 3, 0][..]].concat();
    let raw = [&7u32.to_le_bytes()[..], &words].concat();
    let print = [&0x10u64.to_le_bytes()[..], b"text\n\0\0\0"].concat();
    for is_old in [false, true] {
        let page = Page::at(1).event(1, 16, 77, &raw).event(1, PRINT_ID, 77, &print);
        let mut trace = TraceDat::new("mono").format("ftrace", RAW).cpu(&[page]);
        for (_, text) in trace.formats.iter_mut().filter(|_| is_old) {
            *text = text.replace("char buf[];", "char buf;");
        }
        let (events, warnings) = read_both(&trace);
        assert_eq!(warnings, [""; 0]);
        let bytes = Value::Words(words.iter().map(|byte| u64::from(*byte)).collect());
        assert_eq!(values(&events[0]), [Value::Hex(7), bytes]);
        assert_eq!(values(&events[1])[1], Value::Str(b"text\n"[..].into()));
    }
}

#[test]
fn formats_of_trace_printk_are_found_by_their_addresses() {
    let at = 0xffff_ffff_8200_0000u64;
    let bprint = |at: u64| {
        let arguments =
            [&(-3i32).to_le_bytes()[..], b"disk\0\0\0\0", &12_345_678_901u64.to_le_bytes()];
        [&[1; 8][..], &at.to_le_bytes(), &arguments.concat()].concat()
    };
    let bputs = [&[1; 8][..], &(at + 64).to_le_bytes()].concat();
    let page = Page::at(1).event(0, 6, 77, &bprint(at)).event(1, 14, 77, &bputs);
    let page = page.event(1, 6, 77, &bprint(at + 1));
    let mut trace =
        TraceDat::new("mono").format("ftrace", BPRINT).format("ftrace", BPUTS).cpu(&[page]);
    trace.printk = format!(
        "{:#x} : \"constant text\\n\"\n{at:#x} : \"queue %d of %s took %llu ns\\n\"\n",
        at + 64
    );
    let (events, warnings) = read_both(&trace);
    assert_eq!(warnings, [""; 0]);
    let text = |text: &str| Value::Str(text.as_bytes().into());
    assert_eq!(values(&events[0])[2], text("queue -3 of disk took 12345678901 ns\n"));
    assert_eq!(values(&events[1])[1], text("constant text\n"));
    // The text of the format is not known, so the reader shows the address of the format and the words of the
    // arguments.
    let Value::Words(words) = &values(&events[2])[2] else { panic!("{events:?}") };
    assert_eq!((words.len(), words[0] as i32), (5, -3));
}

/// Returns the words for each number in the table of docs/session.md.
fn documented() -> BTreeMap<u16, String> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/session.md");
    let docs = fs::read_to_string(docs).unwrap();
    let rows = docs.lines().filter_map(|row| row.strip_prefix("| ")?.split_once(" | "));
    let numbered = rows.flat_map(|(options, what)| {
        let numbers = options.split(['(', ')']).filter_map(|part| part.parse().ok());
        let word = what.split([' ', ':', ',']).next().unwrap();
        numbers.map(|number| (number, word.to_owned())).collect::<Vec<_>>()
    });
    let mut words = BTreeMap::new();
    numbered.for_each(|(number, word)| assert_eq!(words.insert(number, word), None, "{number}"));
    words
}

/// Everything that a reader finds in a file: the events, merged with the events of a host, the counters, the
/// facts about the recording, and the number of warnings.
#[derive(Debug, PartialEq)]
struct Noticed {
    events: Vec<Entry>,
    counters: String,
    facts: BTreeMap<&'static str, String>,
    warnings: usize,
}

fn noticed(bytes: &[u8]) -> Result<Noticed, hypertrace_timeline::Error> {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let host = trace("mono").option(trace_id(11)).option(guest("a", 12)).version_7();
    fs::write(path("host.dat"), host).unwrap();
    fs::write(path("t.dat"), bytes).unwrap();
    let mut traces = [KernelTrace::open(&path("host.dat"))?, KernelTrace::open(&path("t.dat"))?];
    let stat = traces[1].stat()?;
    KernelTrace::pair(&mut traces);
    let recording = Recording::of([], traces);
    let (events, _) = kept::entries(&recording, Needs::ALL)?;
    let counters = format!("{:?} {}", stat.cpus, stat.losses_known);
    Ok(Noticed {
        events,
        counters,
        facts: stat.facts.into_iter().collect(),
        warnings: stat.warnings.len(),
    })
}

#[test]
fn every_option_has_the_effect_that_the_documentation_says() {
    let text = |text: &str| [text.as_bytes(), b"\0"].concat();
    let documented = documented();
    assert!(documented.keys().copied().eq(0..=22), "{documented:?}");

    for number in (0..64).chain([u16::MAX]) {
        let data = match number {
            1 => text("0x10"),
            2 => text("CPU: 0\noverrun: 5"),
            4 => text("local [counter]"),
            5 | 6 | 9 | 10 => text("Linux a 6.1"),
            7 => text("16"),
            8 => vec![4, 0, 0, 0],
            11 => 12u64.to_le_bytes().to_vec(),
            12 => time_shift(11, 5, 0, 0).1,
            13 => guest("b", 11).1,
            14 => tsc2nsec(3, 0).1,
            // The data are the offset of a section that does not exist, or any bytes.
            _ => 5u64.to_le_bytes().to_vec(),
        };
        // In version 7, the clock is in each buffer's option. In version 6, sections have no options.
        let versions: &[fn(&TraceDat) -> Vec<u8>] = match number {
            4 => &[TraceDat::version_6],
            15.. | 0 => &[TraceDat::version_7],
            _ => &[TraceDat::version_7, TraceDat::version_6],
        };
        for bytes in versions {
            let without = noticed(&bytes(&trace("mono"))).unwrap();
            let mut trace = trace("mono");
            // The option comes before the trace's own option with the clock.
            trace.clock = if number == 4 { "counter".into() } else { trace.clock };
            let found = match noticed(&bytes(&trace.option((number, data.clone())))) {
                Err(_) => "applied",
                Ok(with) if with.events != without.events => "applied",
                Ok(with) if with.counters != without.counters => "applied",
                Ok(with) if with.facts.get("not_used") != without.facts.get("not_used") => "unused",
                Ok(with) if with.facts != without.facts => "shown",
                Ok(with) if with.warnings > without.warnings => "message",
                Ok(with) => {
                    assert_eq!(with, without);
                    "ignored"
                }
            };
            let said = documented.get(&number).map_or("message", |word| word);
            assert_eq!(found, said, "option {number}");
        }
    }
}

#[test]
fn counters_belong_to_the_instance_before_them() {
    let counters =
        |cpu: u32, overrun: u32| (2, format!("CPU: {cpu}\noverrun: {overrun}\n\0").into());
    let of = || trace("mono").option(counters(0, 5));
    let instance = (2, b"\nBuffer: instance\n\n\0".to_vec());
    let both = of().option(instance).option(counters(0, 7)).version_6_with(&trace("mono"));
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, both).unwrap();
    let stat = KernelTrace::open(&path).unwrap().stat().unwrap();
    let lost = stat.cpus.iter().map(|cpu| (&*cpu.buffer, cpu.cpu, cpu.events, cpu.lost));
    assert_eq!(lost.collect::<Vec<_>>(), [("", 0, 2, 5), ("instance", 0, 2, 7)]);
}
