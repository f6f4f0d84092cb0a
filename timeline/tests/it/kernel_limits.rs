// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of kernels' traces whose numbers contradict each other. The tests check which events are counted,
//! and where each limit lies. A file must be refused if the reader would need more memory than the file has
//! bytes.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept::{self, Entry, Event, Value};
use hypertrace_test_support::{made, trace_dat};
use hypertrace_timeline::{ClockMaps, Error, KernelTrace, Needs, Recording, Session, Warning};
use made::{BOOT, Made, OTHER_BOOT};
use std::fs;
use std::os::unix::fs::FileExt;
use trace_dat::*;

/// Reads a file alone. Returns its entries and warnings.
fn read(file: &[u8]) -> Result<(Vec<Entry>, Vec<Warning>), Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, file).unwrap();
    let recording = Recording::of([], [KernelTrace::open(&path)?]);
    kept::entries(&recording, Needs::ALL)
}

/// Makes a file of one CPU with these pages, recorded in a boot.
fn recorded_in(boot: &str, pages: &[Page]) -> Vec<u8> {
    TraceDat::new("x86-tsc").cpu(pages).option(recorded(boot, 0)).version_7()
}

/// Makes a file whose only CPU has three pages, with a hole of `hole` bytes before the last page.
fn with_hole(name: &std::path::Path, version: u32, hole: u64) {
    let pages = [1_000, 2_000, 3_000].map(|time| Page::at(time).mmio(1, 77, time));
    let trace = TraceDat::new("mono").cpu(&pages);
    let mut bytes = if version == 7 { trace.version_7() } else { trace.version_6() };
    let last = bytes.split_off(bytes.len() - 4096);
    let (pages, len) = (bytes.len() as u64 - 2 * 4096, 3 * 4096_u64);
    let place = [pages.to_le_bytes(), len.to_le_bytes()].concat();
    let at = bytes.windows(16).position(|part| *part == place).unwrap() + 8;
    bytes[at..at + 8].copy_from_slice(&(len + hole).to_le_bytes());
    fs::write(name, &bytes).unwrap();
    let file = fs::File::options().write(true).open(name).unwrap();
    file.write_all_at(&last, bytes.len() as u64 + hole).unwrap();
}

#[test]
fn a_hole_of_any_size_is_counted_in_pages_and_not_read() {
    const HOLE: u64 = 1 << 36;
    for version in [6, 7] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.dat");
        with_hole(&path, version, HOLE);
        let recording = Recording::of([], [KernelTrace::open(&path).unwrap()]);
        let (entries, warnings) = kept::entries(&recording, Needs::ALL).unwrap();

        let shown = entries.iter().map(|entry| match entry {
            Entry::Event(event) => event.ts_ns,
            Entry::Lost(lost) => -i64::try_from(lost.events).unwrap(),
        });
        assert_eq!(Vec::from_iter(shown), [1_001, 2_001, 0, 3_001]);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let pages = "zeros, which nobody wrote: events are missing, of 16,777,216 pages of CPU 0";
        assert!(warning.ends_with(pages) && warning.is_bad_input(), "{warning}");
        let stat = recording.traces[0].stat().unwrap();
        assert_eq!((stat.cpus[0].events, stat.cpus[0].uncounted), (3, 1));
    }
}

#[test]
fn bytes_behind_the_last_chunk_are_damage() {
    let chunk = |bytes: &[u8]| [&1u32.to_le_bytes()[..], bytes].concat();
    let page = Page::at(1_000).mmio(1, 77, 1).bytes(4096, 0);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    frame.extend(&(4096u32 << 3 | 1).to_le_bytes()[..3]);
    frame.extend(&page);
    let sizes = [frame.len() as u32, 4096].map(u32::to_le_bytes).concat();
    for (pages, said) in [
        (chunk(&[&sizes[..], &frame, &[0; 64]].concat()), "no bytes after the last chunk"),
        // The file has zeros instead of chunks, as a hole in a file has.
        (vec![0; 4096], "no bytes after the last chunk"),
    ] {
        let mut trace = TraceDat::new("mono");
        trace.cpus.push(pages);

        let (_, warnings) = read(&trace.version_7_of_zstd()).unwrap();

        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains(said) && warning.is_bad_input(), "{warning}");
    }
}

#[test]
fn chunks_have_a_bounded_content_for_their_bytes() {
    const BLOCK: u32 = 128 << 10;
    // The chunk has 16 MiB of zeros in 128 blocks. Each block stores one byte, which is repeated.
    let block = |last| [&(BLOCK << 3 | 2 | u32::from(last)).to_le_bytes()[..3], &[0]].concat();
    let blocks = (1..=128).flat_map(|number| block(number == 128));
    let frame = Vec::from_iter([0x28, 0xb5, 0x2f, 0xfd, 0, 0x38].into_iter().chain(blocks));
    let chunk = [&(frame.len() as u32).to_le_bytes()[..], &(16u32 << 20).to_le_bytes(), &frame];
    let chunks =
        |number: u32| [&number.to_le_bytes()[..], &chunk.concat().repeat(number as usize)].concat();
    for (number, is_read) in [(16, true), (17, false)] {
        let mut trace = TraceDat::new("mono");
        trace.cpus.push(chunks(number));

        let (_, warnings) = read(&trace.version_7_of_zstd()).unwrap();

        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let pages = if is_read { 16 * 4096 } else { 16 * 4096 + 1 };
        let pages = format!("of {},{:03} pages of CPU 0", pages / 1000, pages % 1000);
        assert!(warning.ends_with(&pages) && warning.is_bad_input(), "{warning}");
    }
}

#[test]
fn names_that_no_event_has_are_cut_in_messages() {
    let (system, name) = ("s".repeat(100_000), "n".repeat(100_000));
    for (system, name) in [(&*system, "mmio"), ("kvm", &*name)] {
        let mut trace = TraceDat::new("mono").cpu(&[Page::at(1_000).mmio(1, 77, 1)]);
        trace.formats.retain(|(system, text)| system == "ftrace" || text.contains("ID: 38\n"));
        let (of, text) = trace.formats.last_mut().unwrap();
        *of = system.into();
        *text = text.replacen("kvm_mmio", name, 1);

        let (_, warnings) = read(&trace.version_7()).unwrap();

        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let said = format!(
            "found {:?}:{:?}",
            &system[..system.len().min(80)],
            &name[..name.len().min(80)]
        );
        assert!(warning.ends_with(&said), "{} bytes: {:.400}", warning.len(), &**warning);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("t"), trace.version_7()).unwrap();
        let opened = KernelTrace::open(&dir.path().join("t")).unwrap();
        assert!(opened.events().all(|name| name.len() < 300));
    }
}

#[test]
fn losses_of_pages_without_events_add_up() {
    let pages = [
        Page::at(1_000).mmio(1, 77, 1),
        Page::at(2_000).missed(true),
        Page::at(3_000).missed(false),
        Page::at(4_000).missed(true).mmio(1, 77, 2),
    ];

    let (entries, _) = read(&TraceDat::new("x86-tsc").cpu(&pages).version_7()).unwrap();

    let lost = entries.iter().filter_map(|entry| match entry {
        Entry::Lost(lost) => Some(lost.events),
        Entry::Event(_) => None,
    });
    // Each of two pages says that 9 events were lost; another page says only that events were lost.
    assert_eq!(lost.collect::<Vec<_>>(), [18, 0]);
}

#[test]
fn an_array_outside_of_its_record_is_counted() {
    let mut odd = (4000_u32 | 6 << 16).to_le_bytes().to_vec();
    odd.resize(28, 0);
    let page = Page::at(1_000).event(1, ODD_ID, 5, &odd);

    let (_, warnings) = read(&TraceDat::new("x86-tsc").cpu(&[page]).version_7()).unwrap();

    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("1 events that do not hold what their format says"), "{warning}");
    assert!(warning.ends_with(": no name"), "{warning}");
}

#[test]
fn an_event_that_is_shown_later_than_its_time_has_a_wider_bound() {
    let made = Made::of_boot(Some(BOOT));
    let pages = [Page::at(1_009_000).mmio(0, 77, 1), Page::at(1_003_000).mmio(0, 77, 2)];
    fs::write(made.path().join("kernel.dat"), recorded_in(BOOT, &pages)).unwrap();
    let session = Session::open(made.path()).unwrap();
    let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let recording = Recording::of([(session, ClockMaps::default())], [trace]);

    let events = kept::events(&recording).unwrap();

    let bounds = Vec::from_iter(events.iter().map(|event| event.bound_ns));
    assert_eq!(bounds, [Some(0), Some(6_000)]);
}

#[test]
fn the_kernel_of_another_boot_than_the_first_sessions_has_no_bound() {
    let bounds = [BOOT, OTHER_BOOT].map(|boot| {
        let (first, second) = (Made::of_boot(Some(BOOT)), Made::of_boot(Some(boot)));
        let file = recorded_in(boot, &[Page::at(1_001_000).mmio(0, 77, 1)]);
        fs::write(second.path().join("kernel.dat"), file).unwrap();
        let sessions = Session::open_all(&[first.path(), second.path()]).unwrap();
        let sessions: Vec<_> = sessions.into_iter().map(|s| (s, ClockMaps::default())).collect();
        let trace = KernelTrace::of_session(1, &sessions[1].0).unwrap().unwrap();
        let recording = Recording::of(sessions, [trace]);
        kept::events(&recording).unwrap()[0].bound_ns
    });

    assert_eq!(bounds, [Some(0), None]);
}

/// Asserts that a file is refused for this reason.
fn refused(file: &[u8], why: &str) {
    match read(file) {
        Err(Error::Damaged { expected, .. }) => assert!(expected.contains(why), "{expected}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_section_is_read_once() {
    let (cmdlines, nowhere) = (21, 0_u64.to_le_bytes().to_vec());
    let file = TraceDat::new("x86-tsc").option((cmdlines, nowhere)).version_7();

    refused(&file, "one section of each kind");
}

#[test]
fn cpus_do_not_share_pages() {
    let page = |value| Page::at(1_000).mmio(0, 77, value);
    let mut file = TraceDat::new("x86-tsc").cpu(&[page(1)]).cpu(&[page(2)]).version_7();
    let second = (file.len() - 4096) as u64;
    let at = file.windows(8).position(|bytes| bytes == second.to_le_bytes()).unwrap();
    assert_eq!(read(&file).unwrap().0.len(), 2);

    file[at..at + 8].copy_from_slice(&(second - 4096).to_le_bytes());

    refused(&file, "pages of a CPU after those of the one before");
}

#[test]
fn instances_of_version_6_have_a_bounded_number_of_cpus() {
    let (buffer, nowhere) = (3, 0_u64.to_le_bytes().to_vec());
    let mut file = TraceDat::new("x86-tsc").option((buffer, nowhere));
    file.cpus = vec![Vec::new(); 5_000];

    refused(&file.version_6(), "at most 8192 CPUs in all buffers");
}

/// Reads one event. `fields` has the text `TYPE NAME AT SIZE SIGN` for each field of the event's format, and
/// `print` is the format's `print fmt`.
fn made(fields: &[String], print: &str, payload: &[u8]) -> Event {
    let (event, warnings) = made_with_warnings(fields, print, payload);
    assert_eq!(warnings, [""; 0]);
    event
}

/// Makes a trace with an event of these fields, and returns the event and the warnings of the reader.
fn made_with_warnings(fields: &[String], print: &str, payload: &[u8]) -> (Event, Vec<Warning>) {
    let mut file = TraceDat::new("x86-tsc");
    let common = file.formats[0].1.lines().find(|line| line.contains("common_type")).unwrap();
    let common = [common, "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;"].join("\n");
    let own = fields.iter().map(|field| {
        let parts: Vec<&str> = field.split(' ').collect();
        let [kind, name, at, size, signed] = parts[..] else { panic!("{field}") };
        let kind = kind.replace("char", " char");
        format!("\tfield:{kind} {name};\toffset:{at};\tsize:{size};\tsigned:{signed};\n")
    });
    let own: String = own.collect();
    let text = format!("name: made\nID: 1000\nformat:\n{common}\n\n{own}\nprint fmt: {print}\n");
    file.formats.push(("test".into(), text));
    let page = Page::at(1_000).event(1, 1000, 5, payload);
    let (entries, warnings) = read(&file.cpu(&[page]).version_7()).unwrap();
    match <[Entry; 1]>::try_from(entries) {
        Ok([Entry::Event(event)]) => (event, warnings),
        other => panic!("{other:?}"),
    }
}

/// Returns the values of [`made`] as they are shown.
fn shown(fields: &[String], print: &str, payload: &[u8]) -> Vec<String> {
    made(fields, print, payload).fields.iter().map(|(_, value)| text(value)).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Name(name) => name.to_string(),
        Value::Hex(number) => format!("{number:#x}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn names_that_do_not_tell_a_whole_number_stand_after_it() {
    let names = "{ 0, \"none\" }, { 1, \"one\" }, { 2, \"two\" }";
    let of = |argument: &str| format!("\"%s\", __print_symbolic({argument}, {names})");
    let flags = |argument: &str| format!("\"%s\", __print_flags({argument}, \"|\", {names})");
    let both = |a: String, b: &str| format!("\"%s%s\", {}, {b}", &a[6..]);
    for (print, number, expected) in [
        // The whole number has a name, or has none.
        (of("REC->a"), 1u16, "a=one"),
        (of("(REC)->a"), 1, "a=one"),
        (of("( ( (REC)->a ))"), 1, "a=one"),
        (of("REC->a"), 0x101, "a=Unsigned(257)"),
        (of("(u16)REC->a & 0xffff"), 1, "a=one"),
        (flags("REC->a"), 0x101, "a=one|0x100"),
        (flags("(unsigned long)REC->a"), 0x101, "a=one|0x100"),
        // Only a part of the number has a name.
        (of("(REC->a >> 8 & 0x7)"), 0x131, "a=0x131 a_name=one"),
        (of("0x3 & (REC)->a"), 0x401, "a=0x401 a_name=one"),
        (of("(u8)REC->a"), 0x402, "a=0x402 a_name=two"),
        (of("(unsigned char)(REC->a >> 4)"), 0x1020, "a=0x1020 a_name=two"),
        (of("(s8)REC->a + 1"), 0x1ff, "a=0x1ff a_name=none"),
        (of("REC->a & REC->b"), 3, "a=0x3 a_name=one"),
        (of("REC->a / 2"), 5, "a=0x5 a_name=two"),
        (flags("REC->a & 0xff"), 0x103, "a=0x103 a_name=one|two"),
        (of("REC->a & 0xff"), 0x103, "a=0x103"),
        // The two lists together cover all bits of the number.
        (both(of("REC->a & 0xff"), &flags("REC->a & 0xff00")[6..]), 0x101, "a=one|0x100"),
        (both(of("REC->a & 0xff"), &flags("REC->a & 0xff00")[6..]), 0x103, "a=Unsigned(259)"),
        (
            both(of("REC->a & 0xff"), &flags("REC->a & 0xf00")[6..]),
            0x101,
            "a=0x101 a_name=one|0x100",
        ),
        // The same name occurs twice.
        (both(of("REC->a"), &of("REC->a")[6..]), 2, "a=two"),
        // Two numbers have one name.
        (of("REC->a").replace("two", "one"), 2, "a=0x2 a_name=one"),
        // If the text depends on another field, the number is still shown.
        (format!("\"%s\", REC->b > 0 ? \"error\" : {}", &of("REC->a")[6..]), 2, "a=Unsigned(2)"),
        (format!("\"%s\", REC->b > 5 ? \"error\" : {}", &of("REC->a")[6..]), 2, "a=two"),
        (format!("\"%s\", REC->a == 9 ? \"nine\" : {}", &of("REC->a")[6..]), 9, "a=nine"),
        (format!("\"%s\", REC->a ? {} : \"zero\"", &flags("REC->a")[6..]), 0, "a=zero"),
        (
            format!("\"%s\", REC->a & 3 ? {} : \"zero\"", &flags("REC->a & 3")[6..]),
            8,
            "a=0x8 a_name=zero",
        ),
    ] {
        let fields = ["u16 a 8 2 0".to_owned(), "u16 b 10 2 0".into()];
        let event = made(&fields, &print, &[number.to_le_bytes(), 1u16.to_le_bytes()].concat());
        let (b, own) = event.fields.split_last().unwrap();
        assert_eq!(*b.0, *"b");
        let own = own.iter().map(|(name, value)| format!("{name}={}", text(value)));
        assert_eq!(own.collect::<Vec<_>>().join(" "), expected, "{print}");
    }
}

#[test]
fn lists_of_names_are_read_as_far_as_their_numbers_are_known() {
    // The forms are from Android's kernels 3.10 to 5.10: xdp:mem_connect, f2fs:f2fs_get_victim,
    // ext4:ext4_es_cache_extent, ras:aer_event.
    let names = "{ 1, \"one\" }, { AT_SSR, \"A}T\" }, { (1 << BH_New), \"N\" }, { 2, \"two\" }";
    for (print, number, expected) in [
        ("__print_symbolic(REC->a, { 3, \"last\" }, { -1, 0 })".to_owned(), 3, "last"),
        ("__print_symbolic(REC->a, { 3, \"last\" }, { -1, ((void *)0) })".into(), 3, "last"),
        (format!("__print_symbolic(REC->a, {names})"), 2, "two"),
        (format!("__print_symbolic(REC->a, {names})"), 4, "Unsigned(4)"),
        (format!("__print_flags(REC->a, \"|\", {names})"), 7, "one|two|0x4"),
        ("__print_flags(REC->a, \"|\", { BH_New, \"N\" })".into(), 1, "Unsigned(1)"),
    ] {
        let print = format!("\"a line\n=%s\", {print}");

        assert_eq!(shown(&["u8 a 8 1 0".into()], &print, &[number]), [expected], "{print}");
    }
}

#[test]
fn the_field_of_a_name_has_a_name_of_its_own() {
    let print = "\"%s\", __print_symbolic(REC->a >> 4, { 1, \"one\" })";
    let fields = ["u8 a 8 1 0".to_owned(), "u8 a_name 9 1 0".into()];

    let event = made(&fields, print, &[0x12, 7]);

    let fields = event.fields.iter().map(|(name, value)| format!("{name}={}", text(value)));
    assert_eq!(fields.collect::<Vec<_>>(), ["a=0x12", "a_name_=one", "a_name=Unsigned(7)"]);
}

#[test]
fn a_number_is_shown_where_its_name_is_too_long() {
    let fields = ["u8 a 8 1 0".to_owned(), "u8 b 9 1 0".into()];
    let shown = |len: usize, payload| {
        let long = "x".repeat(len);
        let print = format!(
            "\"%s %s\", __print_symbolic(REC->a, {{ 7, \"{long}\" }}), \
             __print_flags(REC->b, \"{long}\", {{ 1, \"A\" }}, {{ 2, \"B\" }})"
        );
        shown(&fields, &print, payload)
    };

    assert_eq!(shown(100_000, &[7, 3]), ["Unsigned(7)", "Unsigned(3)"]);
    assert_eq!(shown(257, &[7, 1]), ["Unsigned(7)", "A"]);
    assert_eq!(shown(256, &[7, 3]), [&"x".repeat(256), "Unsigned(3)"]);
    assert_eq!(shown(254, &[8, 3]), ["Unsigned(8)", &format!("A{}B", "x".repeat(254))]);
}

#[test]
fn flags_beyond_those_that_are_looked_up_are_a_number() {
    let list = |first: u64, rest: u64| {
        let all =
            (0..1_000).map(|n| format!(", {{ {}, \"F{n}\" }}", if n == 0 { first } else { rest }));
        all.collect::<String>() + ", { 0x40, \"LAST\" }"
    };
    let print = format!("\"%s\", __print_flags(REC->a, \"|\"{})", list(1, 2));

    assert_eq!(shown(&["u8 a 8 1 0".into()], &print, &[0x43]), ["F0|F1|0x40"]);
}

#[test]
fn the_names_of_an_event_are_bounded_together() {
    let name = "n".repeat(200);
    let fields: Vec<String> = (0..80).map(|n| format!("u8 f{n} {} 1 0", 8 + n)).collect();
    let arguments = (0..80).map(|n| format!(", __print_symbolic(REC->f{n}, {{ 7, \"{name}\" }})"));
    let print = format!("\"{}\"{}", "%s".repeat(80), arguments.collect::<String>());

    let shown = shown(&fields, &print, &[7; 80]);

    let names = shown.iter().filter(|text| **text == name).count();
    assert_eq!((names, &*shown[79]), (20, "Unsigned(7)"));
}

#[test]
fn names_beyond_the_steps_of_an_event_are_numbers() {
    let fields: Vec<String> = (0..30).map(|n| format!("u8 f{n} {} 1 0", 8 + n)).collect();
    // Each of the 30 texts tests 100 flags of a field.
    let flags: String = (0..100).map(|n| format!(", {{ {}, \"N{n}\" }}", n + 1)).collect();
    let list = |n| format!(", __print_flags(REC->f{n}, \"|\"{flags})");
    let print = format!("\"{}\"{}", "%s".repeat(30), (0..30).map(list).collect::<String>());

    let shown = shown(&fields, &print, &[1; 30]);

    let named = shown.iter().filter(|text| *text == "N0").count();
    assert_eq!((named, &*shown[29]), (20, "Unsigned(1)"), "{shown:?}");
}

#[test]
fn arrays_of_an_event_are_together_no_longer_than_it() {
    let fields: Vec<String> =
        (0..10).map(|n| format!("__data_locchar[] f{n} {} 4 0", 8 + 4 * n)).collect();
    let mut payload: Vec<u8> = (48u32 | 40 << 16).to_le_bytes().repeat(10);
    payload.extend([b'a'; 40]);

    let shown = shown(&fields, "\"\"", &payload);

    let whole = shown.iter().filter(|text| text.contains("Str(")).count();
    assert_eq!((shown.len(), whole, &*shown[9]), (10, 2, "..."), "{shown:?}");
}

#[test]
fn fields_that_share_bytes_are_both_shown() {
    // The fields are as in f2fs: the format calls the second field an array, and the array overlaps the third
    // field.
    let fields = ["u32 dev 8 4 0", "u32 nid[3] 12 12 0", "s32 depth 16 4 1"].map(str::to_owned);
    let payload = [1u32, 5, 3, 0].map(u32::to_le_bytes).concat();

    let shown = shown(&fields, "\"\"", &payload);

    assert_eq!(shown, ["Unsigned(1)", "Words([5, 3, 0])", "Signed(3)"]);
}

#[test]
fn an_event_is_shown_without_the_fields_that_cannot_be_read() {
    let long = format!("u8 {} 12 1 0", "n".repeat(5_000));
    let fields = [
        ("u32 a 8 4 0", ""),
        ("u8 b(int) 12 1 0", "u8 b(int);"),
        (&long, "u8 nnnnnn"),
        ("__data_locchar[] c 12 2 0", "__data_loc char[] c;"),
        ("u8 d 99999 1 0", "u8 d;"),
    ];
    for (odd, line) in &fields[1..] {
        let own = [fields[0].0, odd, "u8 e 13 1 0"].map(str::to_owned);
        let (event, warnings) = made_with_warnings(&own, "\"\"", &[7, 0, 0, 0, 1, 9]);

        let names = event.fields.iter().map(|(name, value)| format!("{name}={}", text(value)));
        assert_eq!(names.collect::<Vec<_>>(), ["a=Unsigned(7)", "e=Unsigned(9)"], "{odd:.20}");
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let said = "1 events without the fields whose formats cannot be read on CPU 0; the first, test:made, at";
        assert!(warning.contains(said) && warning.contains(line), "{warning}");
        assert!(warning.len() < 400, "{warning}");
    }
    let many: Vec<String> = (0..400).map(|n| format!("u8 f{n} 8 1 0")).collect();

    let (event, warnings) = made_with_warnings(&many, "\"\"", &[7]);

    // Two of the fields are fields of all events.
    assert_eq!(event.fields.len(), 254);
    assert!(warnings[0].contains("146 like \"u8 f254;"), "{warnings:?}");
}

#[test]
fn a_shift_to_the_right_keeps_the_sign_of_signed_numbers_alone() {
    let symbols = "{ -4, \"minus\" }, { 0x1fffffffffffffff, \"plus\" }";
    for (field, argument, expected) in [
        ("s64 a 8 8 1", "REC->a >> 1", "minus"),
        ("s64 a 8 8 1", "(u64)REC->a >> 3", "plus"),
        ("s64 a 8 8 1", "(unsigned long)REC->a >> 3", "plus"),
        ("u64 a 8 8 0", "REC->a >> 3", "plus"),
        ("u64 a 8 8 0", "-(REC->a & ~0) >> 3", "0xfffffffffffffff8"),
    ] {
        let print = format!("\"%s\", __print_symbolic({argument}, {symbols})");
        let shown = shown(&[field.to_owned()], &print, &(-8i64).to_le_bytes());
        assert_eq!(shown.last().unwrap(), expected, "{argument}");
    }
}

#[test]
fn long_names_of_threads_are_cut_and_too_many_refused() {
    let page = || [Page::at(1_000).mmio(1, 77, 1)];
    let mut dat = TraceDat::new("x86-tsc").cpu(&page());
    dat.comms = format!("77 {}\n", "x".repeat(1_000_000));
    let (entries, _) = read(&dat.version_7()).unwrap();
    let Entry::Event(event) = &entries[0] else { panic!("{entries:?}") };
    assert_eq!(*event.source, format!("kernel/{}-77", "x".repeat(64)));

    dat.comms = "77 x\n".repeat(300_000);
    let refused = read(&dat.version_7()).unwrap_err().to_string();
    assert!(refused.contains("names of at most 262144 threads"), "{refused}");
}

#[test]
fn buffers_without_cpus_are_not_without_number() {
    let buffer = [&[0; 8][..], b"\0x86-tsc\0", &4096u32.to_le_bytes(), &[0; 4]].concat();
    let trace = |buffers| {
        let options = vec![(3, buffer.clone()); buffers];
        TraceDat { options, ..TraceDat::new("x86-tsc").cpu(&[Page::at(1).mmio(1, 77, 1)]) }
    };

    assert_eq!(read(&trace(8_191).version_7()).unwrap().0.len(), 1);
    let why = read(&trace(8_192).version_7()).unwrap_err().to_string();
    assert!(why.contains("at most 8192 CPUs in all buffers, found 8193"), "{why}");
}

#[test]
fn a_long_name_of_a_clock_is_cut() {
    for file in [TraceDat::version_6, TraceDat::version_7] {
        let made = Made::of_boot(Some(BOOT));
        let trace = TraceDat::new(&"x".repeat(10_000)).cpu(&[Page::at(1).mmio(1, 77, 1)]);
        fs::write(made.path().join("kernel.dat"), file(&trace)).unwrap();
        let session = Session::open(made.path()).unwrap();

        let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();

        let warning = trace.warnings().last().unwrap();
        assert!(warning.contains("its clock") && warning.len() < 1_000, "{}", warning.len());
    }
}
