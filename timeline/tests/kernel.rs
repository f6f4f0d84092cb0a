// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Traces of kernels: fields, names, times, losses, and damage anywhere in them.

mod made;
#[path = "made/trace_dat.rs"]
mod trace_dat;

use hypertrace_timeline::{
    ClockMaps, Entry, EntryRef, Error, Event, KernelTrace, Lost, Result, Session, Timeline, Value,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use trace_dat::*;

/// Two CPUs with events of every kind.
fn sample() -> TraceDat {
    let exit = |reason: u32, isa: u32| {
        let rip = 0xffff_0000u64.to_le_bytes();
        [&reason.to_le_bytes()[..], &[0; 4], &rip, &isa.to_le_bytes(), &[0; 4]].concat()
    };
    let mut odd = (36u32 | 6 << 16).to_le_bytes().to_vec();
    odd.extend((26u32 | 4 << 16).to_le_bytes());
    odd.extend([1, 0xfe, 0xff, 0xff, 2, 0, 0, 0]);
    odd.extend([0xabcdu64.to_le_bytes().to_vec(), 3u32.to_le_bytes().to_vec()].concat());
    odd.extend(b"a\x1b\"b\0?\x07\x00\xff\xff");
    let mut print = 0x1234u64.to_le_bytes().to_vec();
    print.extend(b"marker\n\0");
    TraceDat::new("x86-tsc")
        .cpu(&[
            Page::at(10_000)
                .mmio(100, 77, 0xbeef)
                .event(50, KVM_EXIT_ID, 77, &exit(48, 1))
                .event(1, KVM_EXIT_ID, 77, &exit(49 | 1 << 31, 1))
                .event(1, KVM_EXIT_ID, 77, &exit(0x4e, 2))
                .event(1, KVM_EXIT_ID, 77, &exit(7, 2))
                .switch(10, (77, "vcpu0"), 1, (0, "swapper/0")),
            Page::at(20_000).missed(true).switch(5, (0, "swapper/0"), 0, (77, "vcpu0")),
            Page::at(30_000).missed(false).switch(5, (77, "vcpu0"), 0x83, (5, "k")),
        ])
        .cpu(&[Page::at(10_120).event(0, ODD_ID, 5, &odd).event(2, PRINT_ID, 6, &print).event(
            3,
            1_234,
            6,
            &[1, 2, 3, 4],
        )])
}

fn write(dir: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Reads all entries, and the warnings.
fn read_all(traces: &[KernelTrace]) -> Result<(Vec<Entry>, Vec<String>)> {
    let mut timeline = Timeline::with_kernel(&[], traces)?;
    let mut entries = Vec::new();
    while let Some(entry) = timeline.next_entry() {
        entries.push(entry?);
    }
    let warnings = traces.iter().flat_map(|trace| trace.warnings()).chain(timeline.warnings());
    Ok((entries, warnings.collect()))
}

fn read(path: &Path) -> Result<(Vec<Entry>, Vec<String>)> {
    let trace = KernelTrace::open(path)?;
    trace.stat()?;
    read_all(&[trace])
}

fn events(entries: &[Entry]) -> Vec<&Event> {
    let entries = entries.iter().filter_map(|entry| match entry {
        Entry::Event(event) => Some(event),
        Entry::Lost(_) => None,
    });
    entries.collect()
}

/// Formats a value in one way.
fn show(value: &Value) -> String {
    match value {
        Value::Unsigned(v) => v.to_string(),
        Value::Signed(v) => format!("{v:+}"),
        Value::Hex(v) => format!("{v:#x}"),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => format!("{:?}", String::from_utf8_lossy(v)),
        Value::Words(v) => format!("{v:?}"),
        Value::Name(v) => v.to_string(),
        Value::Float(v) => v.to_string(),
    }
}

fn line(event: &Event) -> String {
    let thread = event.thread.unwrap();
    let mut line =
        format!("{} {} {} {}", event.ts_ns, thread.cpu.unwrap(), event.source, event.name);
    for (name, value) in &event.fields {
        line += &format!(" {name}={}", show(value));
    }
    line
}

const LINES: [&str; 11] = [
    "10100 0 kernel/vcpu0-77 kvm:kvm_mmio type=write len=8 gpa=0xd0000000 val=0xbeef",
    "10120 1 kernel/kworker/1:2 x-5 test:odd name=\"a\\u{1b}\\\"b\" list=[7, 65535] flag=true \
     small=-2 pair=[18446744073709551615, 2] ptr=0xabcd mode=3",
    "10122 1 kernel/6 ftrace:print ip=0x1234 buf=\"marker\\n\"",
    "10125 1 kernel/6 unknown id=1234 bytes=[1, 2, 3, 4]",
    "10150 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=EPT_VIOLATION guest_rip=0xffff0000 isa=1",
    "10151 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=EPT_MISCONFIG|FAILED_VMENTRY \
     guest_rip=0xffff0000 isa=1",
    "10152 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=PF excp guest_rip=0xffff0000 isa=2",
    "10153 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=7 guest_rip=0xffff0000 isa=2",
    "10163 0 kernel/vcpu0-77 sched:sched_switch prev_comm=\"vcpu0\" prev_pid=+77 prev_prio=+120 \
     prev_state=S next_comm=\"swapper/0\" next_pid=+0 next_prio=+120",
    "20005 0 kernel/idle sched:sched_switch prev_comm=\"swapper/0\" prev_pid=+0 prev_prio=+120 \
     prev_state=R next_comm=\"vcpu0\" next_pid=+77 next_prio=+120",
    "30005 0 kernel/vcpu0-77 sched:sched_switch prev_comm=\"vcpu0\" prev_pid=+77 prev_prio=+120 \
     prev_state=S|D|I next_comm=\"k\" next_pid=+5 next_prio=+120",
];

#[test]
fn both_versions_give_the_same_events_with_names_and_values() {
    let dir = TempDir::new().unwrap();
    for (name, bytes) in [("7", sample().version_7()), ("6", sample().version_6())] {
        let (entries, warnings) = read(&write(&dir, name, &bytes)).unwrap();
        let lines: Vec<String> = events(&entries).into_iter().map(line).collect();
        assert_eq!(lines, LINES, "version {name}");
        assert!(events(&entries).iter().all(|event| event.bound_ns.is_none()));
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains("1 events without a readable format on CPU 1"), "{warning}");
    }
}

#[test]
fn files_that_trace_cmd_made_give_the_same_events() {
    // Made by `trace-cmd convert` 3.1.6 from the file of version 7 above.
    for name in ["version-6.dat", "zstd.dat"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel").join(name);
        let (entries, _) = read(&path).unwrap();
        let lines: Vec<String> = events(&entries).into_iter().map(line).collect();
        assert_eq!(lines, LINES, "{name}");
    }
}

#[test]
fn lost_events_stand_before_the_page_after_them() {
    let dir = TempDir::new().unwrap();
    let trace = KernelTrace::open(&write(&dir, "t", &sample().version_7())).unwrap();
    let stat = trace.stat().unwrap();
    let (entries, _) = read_all(&[trace]).unwrap();
    let lost: Vec<(usize, &Lost)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| match entry {
            Entry::Lost(lost) => Some((at, lost)),
            Entry::Event(_) => None,
        })
        .collect();
    let [(9, counted), (11, uncounted)] = lost[..] else { panic!("{lost:?}") };
    assert_eq!((counted.events, counted.ts_ns, &*counted.source), (9, Some(20_005), "kernel/cpu0"));
    assert_eq!((uncounted.events, uncounted.ts_ns), (0, Some(30_005)));
    let cpu = |n: usize| (stat.cpus[n].events, stat.cpus[n].lost, stat.cpus[n].uncounted);
    assert_eq!([cpu(0), cpu(1)], [(8, 9, 1), (3, 0, 0)]);
}

#[test]
fn a_sessions_kernel_dat_is_on_the_clock_of_its_host() {
    use made::*;
    let guest = made::Packet::guest(0).lease(10_000, 7, "w").event(20_000, DISK_READ, &[5, 512]);
    let host = made::Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]);
    let made = Made::new()
        .stream("guest-000-0000", &[made::Packet::guest(0), guest])
        .stream("host-003-0000", &[made::Packet::host(3), host]);
    // The host's clock has its tick 0 at 1,000,000.
    let trace = TraceDat::new("x86-tsc")
        .cpu(&[trace_dat::Page::at(1_000_000).mmio(39_999, 77, 1).mmio(2, 77, 2)]);
    fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();

    let session = Session::open(made.path()).unwrap();
    let traces = [KernelTrace::of_session(0, &session).unwrap().unwrap()];
    let maps = ClockMaps::of(&session).unwrap();
    let sessions = [(session, maps)];
    let events = Timeline::with_kernel(&sessions, &traces).unwrap();
    let events: Vec<Event> = events.collect::<Result<_>>().unwrap();

    let names: Vec<(i64, &str, &str)> =
        events.iter().map(|e| (e.ts_ns - START_NS, &*e.source, &*e.name)).collect();
    let at = names.iter().position(|(.., name)| *name == "vcpu_exit").unwrap();
    assert_eq!(names[at - 1], (39_999, "kernel/vcpu0-77", "kvm:kvm_mmio"));
    assert_eq!(names[at], (40_000, "vmm/vcpu0", "vcpu_exit"));
    assert_eq!(names[at + 1], (40_001, "kernel/vcpu0-77", "kvm:kvm_mmio"));
    assert_eq!(events[at + 1].bound_ns, Some(0));
}

#[test]
fn a_guests_trace_is_put_on_the_clock_of_its_host() {
    let dir = TempDir::new().unwrap();
    // The host ticks at 4 GHz; the guest has half its rate and began at the host's tick 10,000.
    let host = |ticks| TraceDat::new("x86-tsc").cpu(&[Page::at(ticks).mmio(0, 77, 1)]);
    let (id, data) = trace_id(11);
    let (guest_id, guest_data) = guest("linux", 22);
    let (tsc_id, tsc_data) = tsc2nsec(1 << 8, 10);
    let host = host(12_000).option(id, data).option(guest_id, guest_data).option(tsc_id, tsc_data);
    let (shift_id, shift) = time_shift(11, 5_000, 1 << 47, 48);
    let (id, data) = trace_id(22);
    let guest = TraceDat::new("x86-tsc")
        .cpu(&[Page::at(999).mmio(0, 5, 2).mmio(2, 5, 3)])
        .option(id, data)
        .option(shift_id, shift);
    let host = KernelTrace::open(&write(&dir, "host", &host.version_7())).unwrap();
    let guest = KernelTrace::open(&write(&dir, "guest", &guest.version_7())).unwrap();
    let mut traces = [host, guest];
    KernelTrace::pair(&mut traces);
    traces[1].add_offset(1);

    let (entries, _) = read_all(&traces).unwrap();

    let seen: Vec<(i64, &str)> =
        events(&entries).iter().map(|e| (e.ts_ns, e.source.as_ref())).collect();
    assert_eq!(
        seen,
        [
            // (999 + 5,000) x 2 / 4 + 1
            (3_000, "host:kernel/vcpu0-77"),
            (3_000, "linux:kernel/kworker/1:2 x-5"),
            (3_001, "linux:kernel/kworker/1:2 x-5"),
        ]
    );
}

#[test]
fn another_clock_in_a_session_is_warned_about() {
    use made::*;
    let made = Made::new().stream("guest-000-0000", &[made::Packet::guest(0)]);
    let trace = TraceDat::new("mono").cpu(&[trace_dat::Page::at(5).mmio(0, 77, 1)]);
    fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();
    let session = Session::open(made.path()).unwrap();
    let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let warnings: Vec<String> = trace.warnings().collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("clock \"mono\" is not the session's"), "{warning}");
    let (entries, _) = {
        let sessions = [(session, ClockMaps::of(&Session::open(made.path()).unwrap()).unwrap())];
        let traces = [trace];
        let events = Timeline::with_kernel(&sessions, &traces).unwrap();
        (events.collect::<Result<Vec<Event>>>().unwrap(), ())
    };
    assert_eq!(entries[0].bound_ns, None);
}

#[track_caller]
fn refused(bytes: &[u8], at: u64, what: &str) {
    let dir = TempDir::new().unwrap();
    let path = write(&dir, "t", bytes);
    match read(&path).map(|(entries, _)| entries.len()) {
        Err(Error::Damaged { path: named, offset, expected, .. }) => {
            assert_eq!((named, offset), (path, at), "{expected}");
            assert!(expected.contains(what), "{expected}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn foreign_files_are_refused_with_file_and_offset() {
    let whole = sample().version_7();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    refused(b"", 0, "the magic of a trace.dat");
    refused(&[0x7f; 100], 0, "the magic of a trace.dat");
    refused(&with(10, b"8"), 10, "version 6 or 7");
    refused(&with(12, &[1]), 13, "little endian");
    refused(&with(13, &[4]), 14, "8 bytes in a long");
    refused(&with(14, &[1, 0, 0, 0]), 18, "page size");
    refused(&with(18, b"zlib"), 23, "compression none or zstd");
    refused(&with(24, &[0xff; 7]), 0x00ff_ffff_ffff_ffff, "a section's header");
}

/// Runs a check for each number below `count`, on all CPUs, with a copy of a file for each.
fn for_each(bytes: &[u8], count: usize, check: impl Fn(&Path, &File, usize) + Sync) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let check = &check;
            scope.spawn(move || {
                let dir = TempDir::new().unwrap();
                let path = write(&dir, "kernel.dat", bytes);
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                for at in (0..count).rev().filter(|at| at % workers == worker) {
                    check(&path, &file, at);
                }
            });
        }
    });
}

/// Returns a file of more than 64 KiB, in which little is read, and the place of its pages.
fn large() -> (Vec<u8>, usize) {
    let page = |n: u64| Page::at(40_000 + n * 1_000).mmio(1, 77, n);
    let bytes = TraceDat { cpus: Vec::new(), ..sample() }
        .cpu(&(0..16).map(page).collect::<Vec<_>>())
        .version_7();
    let pages = bytes.len() - 16 * 4096;
    assert!(pages < FIRST && FIRST < bytes.len());
    (bytes, pages)
}

/// Bytes that are cut and flipped.
const FIRST: usize = 64 << 10;
/// Reads everything. Returns the number of events and fields.
fn walk(path: &Path) -> Result<(usize, usize)> {
    let traces = [KernelTrace::open(path)?];
    let mut timeline = Timeline::with_kernel(&[], &traces)?;
    let mut counts = (0, 0);
    while let Some(entry) = timeline.read() {
        if let EntryRef::Event(event) = entry? {
            counts.0 += 1;
            counts.1 += event.fields.iter().count();
        }
    }
    Ok(counts)
}

/// Asserts that a file is read, or that the error names it and an offset in it. Returns the
/// number of its events.
fn check(path: &Path, context: &str) -> usize {
    match walk(path) {
        Ok((events, _)) => events,
        Err(Error::Damaged { path: named, .. }) if named == path => 0,
        Err(other) => panic!("{context}: {other:?}"),
    }
}

#[test]
fn a_file_that_is_cut_in_its_first_64_kib_is_refused_or_saved() {
    let (bytes, pages) = large();
    for_each(&bytes, FIRST, |path, file, len| {
        file.set_len(len as u64).unwrap();
        let events = check(path, &format!("cut at {len}"));
        // The event of each page is in its first 100 bytes.
        let whole = (len.saturating_sub(pages + 100)).div_ceil(4096);
        assert!(events >= whole, "cut at {len}: {events} events of {whole}");
    });
}

#[test]
fn a_file_with_a_flipped_byte_in_its_first_64_kib_is_refused_or_read() {
    let (bytes, _) = large();
    for_each(&bytes, FIRST, |path, file, at| {
        file.write_all_at(&[bytes[at] ^ 0xff], at as u64).unwrap();
        check(path, &format!("flipped at {at}"));
        file.write_all_at(&[bytes[at]], at as u64).unwrap();
    });
}

#[test]
fn formats_and_events_of_all_kinds_may_be_damaged_anywhere() {
    // Up to the second page of the first CPU: the other pages are alike.
    for bytes in [sample().version_7(), sample().version_6()] {
        let events = bytes.len() - 4 * 4096;
        for places in [0..events - 2_000, events..events + 400] {
            for_each(&bytes, places.end, |path, file, at| {
                if !places.contains(&at) {
                    return;
                }
                for bit in [0x01, 0x80] {
                    file.write_all_at(&[bytes[at] ^ bit], at as u64).unwrap();
                    check(path, &format!("{bit:#x} at {at}"));
                }
                file.write_all_at(&[bytes[at]], at as u64).unwrap();
            });
        }
    }
}

#[test]
#[ignore = "makes the input of `trace-cmd convert` for the files in tests/kernel"]
fn write_the_sample() {
    let path = std::env::temp_dir().join("hypertrace-sample.dat");
    fs::write(&path, sample().version_7()).unwrap();
    println!("{}", path.display());
}
