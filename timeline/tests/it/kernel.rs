// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of kernels' traces: fields, names, times, losses, and damage anywhere in a trace.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept::{self, Entry, Event, Value};
use hypertrace_test_support::{made, trace_dat};
use hypertrace_timeline::{
    ClockMaps, Error, KernelTrace, Lost, Needs, Offset, Recording, Result, Session, Warning,
};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use trace_dat::*;

/// Makes a trace of two CPUs with events of every kind.
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
    TraceDat::new("mono")
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
fn read_all(traces: impl Into<Vec<KernelTrace>>) -> Result<(Vec<Entry>, Vec<Warning>)> {
    let recording = Recording::of([], traces);
    let (entries, warnings) = kept::entries(&recording, Needs::ALL)?;
    Ok((entries, recording.warnings().chain(warnings).collect()))
}

fn read(path: &Path) -> Result<(Vec<Entry>, Vec<Warning>)> {
    let trace = KernelTrace::open(path)?;
    trace.stat()?;
    read_all([trace])
}

fn events(entries: &[Entry]) -> Vec<&Event> {
    let entries = entries.iter().filter_map(|entry| match entry {
        Entry::Event(event) => Some(event),
        Entry::Lost(_) => None,
    });
    entries.collect()
}

/// Formats a value so that different kinds of values look different.
fn show(value: &Value) -> String {
    match value {
        Value::Unsigned(v) => v.to_string(),
        Value::Signed(v) => format!("{v:+}"),
        Value::Hex(v) => format!("{v:#x}"),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => format!("{:?}", String::from_utf8_lossy(v)),
        Value::Words(v) => format!("{v:?}"),
        Value::SignedWords(v) => format!("{v:+?}"),
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
     small=-2 pair=[-1, +2] ptr=0xabcd mode=3",
    "10122 1 kernel/6 ftrace:print ip=0x1234 buf=\"marker\\n\"",
    "10125 1 kernel/6 unknown id=1234 bytes=[1, 2, 3, 4]",
    "10150 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=EPT_VIOLATION guest_rip=0xffff0000 isa=1",
    "10151 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=EPT_MISCONFIG|FAILED_VMENTRY \
     guest_rip=0xffff0000 isa=1",
    "10152 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=PF excp guest_rip=0xffff0000 isa=2",
    "10153 0 kernel/vcpu0-77 kvm:kvm_exit exit_reason=7 guest_rip=0xffff0000 isa=2",
    "10163 0 kernel/vcpu0-77 sched:sched_switch prev_comm=\"vcpu0\" prev_pid=+77 prev_prio=+120 \
     prev_state=+1 prev_state_name=S next_comm=\"swapper/0\" next_pid=+0 next_prio=+120",
    "20005 0 kernel/idle sched:sched_switch prev_comm=\"swapper/0\" prev_pid=+0 prev_prio=+120 \
     prev_state=+0 prev_state_name=R next_comm=\"vcpu0\" next_pid=+77 next_prio=+120",
    "30005 0 kernel/vcpu0-77 sched:sched_switch prev_comm=\"vcpu0\" prev_pid=+77 prev_prio=+120 \
     prev_state=+131 prev_state_name=S|D|I next_comm=\"k\" next_pid=+5 next_prio=+120",
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
    // `trace-cmd convert` 3.1.6 made these files from the file of version 7 above.
    for name in ["version-6.dat", "zstd.dat"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel").join(name);
        let (entries, _) = read(&path).unwrap();
        let lines: Vec<String> = events(&entries).into_iter().map(line).collect();
        assert_eq!(lines, LINES, "{name}");
    }
}

#[test]
fn instances_of_version_6_are_read_too() {
    // trace-cmd 3.1.6 shows the same events of this file.
    let dir = TempDir::new().unwrap();
    let of = |time| TraceDat::new("mono").cpu(&[Page::at(time).mmio(0, 77, 1).mmio(10, 77, 2)]);
    let path = write(&dir, "t", &of(1_000).version_6_with(&of(1_005)));
    let (entries, warnings) = read(&path).unwrap();
    let times: Vec<(i64, &str)> =
        events(&entries).iter().map(|event| (event.ts_ns, &*event.source)).collect();
    let expected = [
        (1_000, "kernel/vcpu0-77"),
        (1_005, "instance:kernel/vcpu0-77"),
        (1_010, "kernel/vcpu0-77"),
        (1_015, "instance:kernel/vcpu0-77"),
    ];
    assert_eq!((times, warnings), (expected.into(), vec![]));
    let names =
        events(&entries).into_iter().map(|event| event.thread_name.as_deref() == Some("vcpu0"));
    assert_eq!(names.collect::<Vec<_>>(), [true; 4]);
}

#[test]
fn lost_events_stand_before_the_page_after_them() {
    let dir = TempDir::new().unwrap();
    let trace = KernelTrace::open(&write(&dir, "t", &sample().version_7())).unwrap();
    let stat = trace.stat().unwrap();
    let (entries, _) = read_all([trace]).unwrap();
    let lost: Vec<(usize, &Lost)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| match entry {
            Entry::Lost(lost) => Some((at, lost)),
            Entry::Event(_) => None,
        })
        .collect();
    let [(9, counted), (11, uncounted)] = lost[..] else { panic!("{lost:?}") };
    assert_eq!(
        (counted.events, counted.ts_ns, &*counted.source.text),
        (9, Some(20_005), "kernel/cpu0")
    );
    assert_eq!((uncounted.events, uncounted.ts_ns), (0, Some(30_005)));
    let cpu = |n: usize| (stat.cpus[n].events, stat.cpus[n].lost, stat.cpus[n].uncounted);
    assert_eq!([cpu(0), cpu(1)], [(8, 9, 1), (3, 0, 0)]);
}

#[test]
fn stat_has_the_losses_that_only_the_kernels_counters_have() {
    let dir = TempDir::new().unwrap();
    // Option 2 holds a CPU's counters. The pages of CPU 0 report 9 lost events, and a loss of an unknown
    // number of events.
    let read = |cpu: u32, overrun: u32, dropped: u32, read: u32| {
        let lost = format!("overrun: {overrun}\ndropped events: {dropped}");
        let text = format!("CPU: {cpu}\nentries: 2\n{lost}\nread events: {read}\n\0");
        (2, text.into_bytes())
    };
    let counters = |cpu, overrun, dropped| read(cpu, overrun, dropped, 0);
    let stat = |counters: [(u16, Vec<u8>); 2]| {
        let trace =
            counters.into_iter().fold(sample(), |trace, (id, data)| trace.option((id, data)));
        let trace = KernelTrace::open(&write(&dir, "t", &trace.version_7())).unwrap();
        let stat = trace.stat().unwrap();
        assert!(stat.losses_known);
        let cpu = |n: usize| (stat.cpus[n].lost, stat.cpus[n].uncounted);
        [cpu(0), cpu(1)]
    };

    assert_eq!(stat([counters(0, 20, 3), counters(1, 0, 7)]), [(23, 0), (7, 0)]);
    // The file may have pages of several recordings, or counters of another recording.
    assert_eq!(stat([counters(0, 0, 8), counters(1, 0, 0)]), [(9, 1), (0, 0)]);
    // According to the counters, 12 events of CPU 0 and 5 events of CPU 1 were read or can be read. The pages
    // have only 8 and 3 events.
    assert_eq!(stat([read(0, 20, 3, 10), read(1, 0, 0, 3)]), [(27, 0), (2, 0)]);
}

/// Makes a session of a boot with an event of the VMM at 40,000 ns, and a trace of a boot around it.
fn with_kernel(session: Option<&str>, trace: Option<&str>) -> made::Made {
    use made::*;
    let host = made::Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]);
    let made = Made::of_boot(session).stream("host-003-0000", &[made::Packet::host(3), host]);
    // The host's clock has its tick 0 at 1,000,000.
    let page = trace_dat::Page::at(1_000_000).mmio(39_999, 77, 1).mmio(2, 77, 2);
    let mut dat = TraceDat::new("x86-tsc").cpu(&[page]);
    if let Some(boot) = trace {
        dat = dat.option(recorded(boot, 17));
    }
    made.kernel(&dat);
    made
}

/// Returns the times of the events after the lease, their names and bounds, and the warnings.
#[expect(clippy::type_complexity, reason = "a line for each event")]
fn read_with(made: &made::Made) -> Result<(Vec<(i64, String, Option<u64>)>, Vec<Warning>)> {
    let session = Session::open(made.path())?;
    let trace = KernelTrace::of_session(0, &session)?.unwrap();
    let maps = ClockMaps::of(&session)?;
    let recording = Recording::of([(session, maps)], [trace]);
    let warnings = recording.warnings().collect();
    let events = kept::events(&recording)?;
    let shown =
        |e: &Event| (e.ts_ns - made::START_NS, format!("{} {}", e.source, e.name), e.bound_ns);
    Ok((events.iter().skip(1).map(shown).collect(), warnings))
}

/// Returns the events of [`with_kernel`]. `bound` is the bound on the error of the kernel's events.
fn in_order(bound: Option<u64>) -> Vec<(i64, String, Option<u64>)> {
    let mmio = "kernel/vcpu0-77 kvm:kvm_mmio".to_owned();
    vec![
        (39_999, mmio.clone(), bound),
        (40_000, "vmm/vcpu0 vcpu_exit".into(), Some(0)),
        (40_001, mmio, bound),
    ]
}

#[test]
fn a_sessions_kernel_dat_is_on_the_clock_of_its_host() {
    let made = with_kernel(Some(made::BOOT), Some(made::BOOT));
    // The recorder knows the bound of times that were converted from another clock.
    assert_eq!(read_with(&made).unwrap(), (in_order(Some(17)), vec![]));
}

#[test]
fn a_kernel_dat_of_another_boot_is_refused() {
    let made = with_kernel(Some(made::BOOT), Some(made::OTHER_BOOT));
    match read_with(&made) {
        Err(error @ Error::AnotherBoot { .. }) => {
            assert!(error.is_bad_input());
            let path = made.path().join("kernel.dat").display().to_string();
            assert!(error.to_string().starts_with(&path), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_error_of_a_kernel_dat_of_an_unknown_boot_is_unknown() {
    for (session, trace, whose) in [
        (Some(made::BOOT), None, "it does"),
        (None, Some(made::BOOT), "the session does"),
        (None, None, "it does"),
    ] {
        let (events, warnings) = read_with(&with_kernel(session, trace)).unwrap();
        assert_eq!(events, in_order(None));
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains(&format!("{whose} not say in which boot")), "{warning}");
    }
}

#[test]
fn a_trace_joins_a_session_of_its_boot_alone() {
    let dir = TempDir::new().unwrap();
    for (boot, bound) in [(made::BOOT, Some(0)), (made::OTHER_BOOT, None)] {
        let made = made::Made::of_boot(Some(made::BOOT));
        let session = Session::open(made.path()).unwrap();
        let page = trace_dat::Page::at(1_000_000).mmio(5, 77, 1);
        let dat = TraceDat::new("x86-tsc").cpu(&[page]).option(recorded(boot, 0));
        let mut trace = KernelTrace::open(&write(&dir, "t", &dat.version_7())).unwrap();
        trace.join(0, &session);
        let (entries, _) = read_all([trace]).unwrap();
        let event = events(&entries)[0];
        let time = if bound.is_some() { made::START_NS + 5 } else { 1_000_005 };
        assert_eq!((event.ts_ns, event.bound_ns), (time, bound));
    }
}

#[test]
fn nanoseconds_that_the_kernel_derives_from_the_counter_are_placed_by_two_readings_of_both() {
    let dir = TempDir::new().unwrap();
    let made = made::Made::of_boot(Some(made::BOOT));
    let session = Session::open(made.path()).unwrap();
    let page = || Page::at(2_000).mmio(5, 77, 1);
    let placed = (made::START_NS + 5, Some(7));
    for (counter, expected) in [
        ("2000:1000000,3000:1001000", placed),
        ("2000:1000000,2000:1001000", (2_005, None)),
        ("2000:1000000,3000:1000000", (2_005, None)),
        ("2000:1000000", (2_005, None)),
    ] {
        let (_, mut option) = recorded(made::BOOT, 7);
        option.pop();
        option.extend(format!("; counter={counter}\0").bytes());
        let dat = TraceDat::new("mono_raw").cpu(&[page()]).option((9, option));
        let mut trace = KernelTrace::open(&write(&dir, "t", &dat.version_7())).unwrap();
        trace.join(0, &session);
        let (entries, _) = read_all([trace]).unwrap();
        let event = events(&entries)[0];
        assert_eq!((event.ts_ns, event.bound_ns), expected, "{counter}");
    }
}

#[test]
fn a_guests_trace_is_put_on_the_clock_of_its_host() {
    let dir = TempDir::new().unwrap();
    // The host's counter has 4 GHz. The guest's counter has half of this rate, and began at the host's tick
    // 10,000.
    let host = |ticks| TraceDat::new("x86-tsc").cpu(&[Page::at(ticks).mmio(0, 77, 1)]);
    let host =
        host(12_000).option(trace_id(11)).option(guest("linux", 22)).option(tsc2nsec(1 << 8, 10));
    let guest = TraceDat::new("x86-tsc")
        .cpu(&[Page::at(999).mmio(0, 5, 2).mmio(2, 5, 3)])
        .option(trace_id(22))
        .option(time_shift(11, 5_000, 1 << 47, 48));
    let host = KernelTrace::open(&write(&dir, "host", &host.version_7())).unwrap();
    let guest = KernelTrace::open(&write(&dir, "guest", &guest.version_7())).unwrap();
    let mut traces = [host, guest];
    KernelTrace::pair(&mut traces);
    traces[1].add_offset(Offset::new(1, None));

    let (entries, _) = read_all(traces).unwrap();

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
fn each_correction_of_each_cpu_has_a_ratio_of_its_own() {
    let dir = TempDir::new().unwrap();
    let host = TraceDat::new("x86-tsc").cpu(&[Page::at(1).mmio(0, 77, 1)]).option(trace_id(11));
    // From tick 100 on, the guest has half the host's rate on one CPU.
    let same = [0, 0, 1, 0];
    let cpu = |at| [Page::at(at).mmio(0, 5, 2)];
    let guest = TraceDat::new("x86-tsc").cpu(&cpu(50)).cpu(&cpu(150)).option(time_shifts(
        11,
        0,
        &[&[[100, 0, 1 << 47, 48], same], &[same, [100, 7, 1, 0]]],
    ));
    let late = TraceDat { cpus: guest.cpus.iter().rev().cloned().collect(), ..guest.clone() };
    for (name, trace, times) in [("a", guest, [50, 157]), ("b", late, [50, 300])] {
        let host = KernelTrace::open(&write(&dir, "host", &host.version_7())).unwrap();
        let trace = KernelTrace::open(&write(&dir, name, &trace.version_7())).unwrap();
        let mut traces = vec![host, trace];
        KernelTrace::pair(&mut traces);

        let (entries, _) = read_all(traces.split_off(1)).unwrap();

        assert_eq!(events(&entries).iter().map(|event| event.ts_ns).collect::<Vec<_>>(), times);
    }
}

/// Makes a session with a point every 100 us. The host sees each point after 8 us, and the guest continues 2
/// us later. So the middle between the guest's two readings differs by 3 us from the host's time. Host and
/// guest have the same time, but their counters have different values. The session's kernel.dat has an access
/// 1 us before the host's time of each point.
fn with_points() -> made::Made {
    use made::*;
    let boot = Some(BOOT);
    let (mut ring, mut thread) = (made::Packet::guest(0), made::Packet::host(0));
    let mut page = trace_dat::Page::at(1_000_000);
    for point in 0..50u64 {
        let time = 100_000 * (point + 1);
        thread = thread.point(time + 8_000, 0, point as u32, GUEST_BASE + time, point);
        ring = ring.event(time + 10_000, DISK_READ, &[point, 0]);
        page = page.mmio(if point == 0 { 107_000 } else { 100_000 }, 77, point);
    }
    let made = Made::of_boot(boot)
        .stream("guest-0", &[made::Packet::guest(0), ring])
        .stream("host-0", &[made::Packet::host(0), thread]);
    let dat = TraceDat::new("x86-tsc").cpu(&[page]).option(recorded(BOOT, 0));
    made.kernel(&dat);
    made
}

#[test]
fn a_guests_trace_is_merged_by_points_as_by_its_offset() {
    let made = with_points();
    let dir = TempDir::new().unwrap();
    // The guest's kernel has an event 20 us before each point, and an event 20 us after each point.
    let mut page = trace_dat::Page::at(made::GUEST_BASE).mmio(80_000, 5, 0);
    for point in 1..50 {
        page = page.mmio(40_000, 5, point).mmio(60_000, 5, point);
    }
    let guest = TraceDat::new("x86-tsc").cpu(&[page.mmio(40_000, 5, 50)]).option(tsc2nsec(1, 0));
    let guest = write(&dir, "guest.dat", &guest.version_7());

    let merged = |place: &dyn Fn(&mut KernelTrace, &Session, &ClockMaps)| {
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let mut trace = KernelTrace::open(&guest).unwrap();
        place(&mut trace, &session, &maps);
        let traces = [KernelTrace::of_session(0, &session).unwrap().unwrap(), trace];
        let recording = Recording::of([(session, maps)], traces);
        let events = kept::events(&recording).unwrap().into_iter();
        let kernel = events.filter(|event| event.thread.is_some_and(|thread| thread.tid != 0));
        kernel.filter(|event| &*event.name == "kvm:kvm_mmio").collect::<Vec<Event>>()
    };
    // The nanoseconds of the trace are the guest's ticks. `offset` is the Unix time of the guest's tick 0.
    let offset = made::START_NS - made::GUEST_BASE as i64;
    let by_offset = merged(&|trace, _, _| trace.add_offset(Offset::new(offset + 3, Some(40))));
    let by_points = merged(&|trace, session, maps| trace.set_guest(session, maps).unwrap());

    assert_eq!((by_offset.len(), by_points.len()), (150, 150));
    for (n, (a, b)) in by_offset.iter().zip(&by_points).enumerate() {
        let is_host = n % 3 == 1;
        let name = if is_host { "kernel/vcpu0-77" } else { "guest.dat:kernel/kworker/1:2 x-5" };
        assert!(a.source.ends_with(name) && b.source.ends_with(name), "{n}: {a:?} {b:?}");
        let truth = 100_000 * (n as i64 / 3 + 1) + [-20_000, 7_000, 20_000][n % 3];
        for (event, most) in [(a, 40), (b, 5_200)] {
            let error = (event.ts_ns - made::START_NS - truth).unsigned_abs();
            let bound = event.bound_ns.unwrap();
            assert!(error <= bound && bound <= if is_host { 0 } else { most }, "{n}: {event:?}");
        }
    }
}

#[test]
fn a_guests_trace_needs_points_and_the_clock_of_the_guest() {
    let dir = TempDir::new().unwrap();
    let with_raw = with_points();
    with_raw.set_guest_kind("monotonic_raw");
    let page = || trace_dat::Page::at(1_000).mmio(0, 5, 0);
    let no_points = made::Made::new()
        .stream("guest-0", &[made::Packet::guest(0).event(5, made::DISK_READ, &[1, 2])]);
    for (made, clock, why) in [
        (no_points, "x86-tsc", "it has no reference points"),
        (with_points(), "mono", "the trace has the clock \"mono\"; record with x86-tsc"),
        (with_points(), "mono_raw", "its guest's clock is not CLOCK_MONOTONIC_RAW"),
        (with_raw, "x86-tsc", "its guest's clock is not the TSC"),
    ] {
        let path = write(&dir, "guest.dat", &TraceDat::new(clock).cpu(&[page()]).version_7());
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let mut trace = KernelTrace::open(&path).unwrap();
        let error = trace.set_guest(&session, &maps).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn another_clock_in_a_session_is_warned_about() {
    use made::*;
    let made = Made::new().stream("guest-000-0000", &[made::Packet::guest(0)]);
    let trace = TraceDat::new("mono").cpu(&[trace_dat::Page::at(5).mmio(0, 77, 1)]);
    made.kernel(&trace);
    let session = Session::open(made.path()).unwrap();
    let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let warnings: Vec<Warning> = trace.warnings().collect();
    let [_, warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("clock \"mono\" is not the session's"), "{warning}");
    let maps = ClockMaps::of(&session).unwrap();
    let events = kept::events(&Recording::of([(session, maps)], [trace])).unwrap();
    assert_eq!(events[0].bound_ns, None);
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
    refused(&whole[..7], 0, "the magic of a trace.dat");
    refused(&with(10, b"x"), 10, "version 6 or 7");
    refused(&with(12, &[2]), 13, "little endian");
    refused(&with(13, &[5]), 14, "8 bytes in a long");
    refused(&with(14, &[1, 0, 0, 0]), 18, "page size");
    refused(&with(24, &[0xff; 7]), 0x00ff_ffff_ffff_ffff, "a section's header");
}

#[test]
fn files_of_other_kinds_are_called_what_they_seem_to_be() {
    let whole = sample().version_7();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let old = sample().version_6();
    let page = b"commit;\toffset:8;\tsize:8;";
    let at = old.windows(page.len()).position(|bytes| bytes == page).unwrap();
    let mut of_32_bits = old;
    of_32_bits[at + page.len() - 2] = b'4';
    for (file, what) in [
        (vec![], "not a trace.dat of trace-cmd, but an empty file"),
        (b"\x1f\x8b\x08\0whole.dat".to_vec(), "but a file compressed with gzip: unpack it first"),
        (b"PERFILE2\x68\0\0\0".to_vec(), "but a perf.data of perf"),
        ("cpus=2\n  worker-77 \u{b5}\n".into(), "but a text"),
        (vec![0x7f; 100], "but data of another kind"),
        (with(10, b"8"), "not supported: version 8 of trace.dat, 6 and 7 are"),
        (with(12, &[1]), "not supported: a trace of a big-endian machine"),
        (with(13, &[4]), "not supported: a trace of a 32-bit kernel"),
        (of_32_bits, "not supported: a trace of a 32-bit kernel"),
        (with(18, b"zlib"), "not supported: the compression \"zlib\": `trace-cmd convert"),
    ] {
        let dir = TempDir::new().unwrap();
        let path = write(&dir, "t", &file);
        let error = KernelTrace::open(&path).unwrap_err();
        let said = error.to_string();
        assert!(error.is_bad_input() && !said.contains("damaged"), "{said}");
        assert!(said.starts_with(&path.display().to_string()) && said.contains(what), "{said}");
    }
}

#[test]
fn a_damaged_page_is_a_loss_and_the_rest_is_read() {
    let page = |at: u64| Page::at(at).mmio(0, 77, at).mmio(1, 77, at + 1);
    let cpus = [[1_000, 2_000, 3_000], [1_500, 2_500, 3_500]].map(|times| times.map(page));
    let dat = TraceDat::new("mono").cpu(&cpus[0]).cpu(&cpus[1]);
    let mut bytes = dat.version_7();
    // The second page of CPU 0 has too many bytes.
    let at = bytes.len() - 5 * 4096;
    bytes[at + 8..at + 16].copy_from_slice(&[0xff; 8]);
    let dir = TempDir::new().unwrap();
    let path = write(&dir, "t", &bytes);

    let (entries, warnings) = read(&path).unwrap();

    let seen: Vec<Option<i64>> = entries
        .iter()
        .map(|entry| match entry {
            Entry::Event(event) => Some(event.ts_ns),
            Entry::Lost(lost) => {
                assert_eq!((lost.cpu, lost.events), (Some(0), 0));
                None
            }
        })
        .collect();
    let some = |times: &[i64]| times.iter().copied().map(Some).collect::<Vec<_>>();
    let expected = [
        some(&[1_000, 1_001, 1_500, 1_501, 2_500, 2_501]),
        vec![None],
        some(&[3_000, 3_001, 3_500, 3_501]),
    ];
    assert_eq!(seen, expected.concat());
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let said = format!("{}: damaged at byte {}: expected", path.display(), at + 8);
    assert!(warning.starts_with(&said), "{warning}");
    assert!(warning.ends_with("events are missing, of 1 page of CPU 0"), "{warning}");
    let stat = KernelTrace::open(&path).unwrap().stat().unwrap();
    assert_eq!((stat.cpus[0].events, stat.cpus[0].uncounted, stat.cpus[1].events), (4, 1, 6));
}

/// Checks places in a file, with a thread for each CPU. Each thread has its own copy of the file.
fn on_all_cpus(
    bytes: &[u8],
    places: Range<usize>,
    check: impl Fn(&Path, &File, &mut dyn Iterator<Item = usize>) + Sync,
) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (check, places) = (&check, places.clone());
            scope.spawn(move || {
                let dir = TempDir::new().unwrap();
                let path = write(&dir, "kernel.dat", bytes);
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                check(&path, &file, &mut places.rev().filter(|at| at % workers == worker));
            });
        }
    });
}

/// Returns a file of more than 64 KiB, of which a reader reads only small parts, and the place of the file's
/// pages. The file describes only one event. The tests read the file many times, and each read parses all
/// descriptions.
fn large() -> (Vec<u8>, usize) {
    let page = |n: u64| Page::at(40_000 + n * 1_000).mmio(1, 77, n);
    let mut trace = TraceDat::new("x86-tsc").cpu(&(0..16).map(page).collect::<Vec<_>>());
    trace.formats.retain(|(_, text)| text.starts_with("name: kvm_mmio"));
    let bytes = trace.version_7();
    let pages = bytes.len() - 16 * 4096;
    assert!(pages < FIRST && FIRST < bytes.len());
    (bytes, pages)
}

/// Number of bytes at the file's start that are cut and flipped.
const FIRST: usize = 64 << 10;
/// Reads everything. Returns the number of events.
fn walk(recording: &Recording) -> Result<usize> {
    let mut events = 0;
    kept::each_event(recording, |event| {
        events += 1;
        std::hint::black_box(event.fields.iter().count());
    })?;
    Ok(events)
}

fn open_and_walk(path: &Path) -> Result<usize> {
    walk(&Recording::of([], [KernelTrace::open(path)?]))
}

/// Asserts that a file was read, or that the error names the file and an offset in it. Returns the number of
/// the file's events.
fn check(read: Result<usize>, path: &Path, context: impl FnOnce() -> String) -> usize {
    match read {
        Ok(events) => events,
        Err(
            Error::Damaged { path: named, .. }
            | Error::NotATrace { path: named, .. }
            | Error::NotSupported { path: named, .. },
        ) if named == path => 0,
        Err(other) => panic!("{}: {other:?}", context()),
    }
}

/// Flips bits of each byte in a part of a file. For bytes in pages, the file is opened only once, because
/// opening a file does not read its pages.
fn flip(bytes: &[u8], part: Range<usize>, pages: usize, bits: impl Fn(usize) -> Vec<u8> + Sync) {
    on_all_cpus(bytes, part, |path, file, places| {
        let opened = Recording::of([], [KernelTrace::open(path).unwrap()]);
        for at in places {
            for bits in bits(at) {
                file.write_all_at(&[bytes[at] ^ bits], at as u64).unwrap();
                let read = if at < pages { open_and_walk(path) } else { walk(&opened) };
                check(read, path, || format!("{bits:#x} at {at}"));
            }
            file.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
    });
}

#[test]
fn a_file_that_is_cut_in_its_first_64_kib_is_refused_or_saved() {
    let (bytes, pages) = large();
    on_all_cpus(&bytes, 0..FIRST, |path, file, lens| {
        for len in lens {
            file.set_len(len as u64).unwrap();
            let events = check(open_and_walk(path), path, || format!("cut at {len}"));
            // The event of each page is in the page's first 100 bytes.
            let whole = (len.saturating_sub(pages + 100)).div_ceil(4096);
            assert!(events >= whole, "cut at {len}: {events} events of {whole}");
        }
    });
}

#[test]
fn a_file_with_a_flipped_byte_in_its_first_64_kib_is_refused_or_read() {
    let (bytes, pages) = large();
    flip(&bytes, 0..FIRST, pages, |_| vec![0xff]);
}

#[test]
fn formats_and_events_of_all_kinds_may_be_damaged_anywhere() {
    // Bytes up to the second page of the first CPU are flipped, because the other pages are alike.
    let both = |bytes: &[u8], bits: &(dyn Fn(usize) -> Vec<u8> + Sync)| {
        let pages = bytes.len() - 4 * 4096;
        flip(bytes, 0..pages - 2_000, pages, bits);
        flip(bytes, pages..pages + 400, pages, bits);
    };
    both(&sample().version_7(), &|_| vec![0x01, 0x80]);
    // Most bytes of version 6 are the same as in version 7, so one flipped bit in each byte is enough.
    both(&sample().version_6(), &|at| vec![1 << (at % 8)]);
}

#[test]
#[ignore = "makes the input of `trace-cmd convert` for the files in tests/kernel"]
fn write_the_sample() {
    let path = std::env::temp_dir().join("hypertrace-sample.dat");
    fs::write(&path, sample().version_7()).unwrap();
    println!("{}", path.display());
}
