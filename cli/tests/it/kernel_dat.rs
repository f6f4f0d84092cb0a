//! Events of kernels in `report` and `info`: alone, in a session, and as trace-cmd shows them.

use hypertrace_test_support::{made, trace_dat};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::tracefs::Instance;
use rustix::fs::OFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use trace_dat::{TraceDat, tsc2nsec};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn report(args: &[&Path], options: &[&str]) -> String {
    run(HYPERTRACE.command(["report"]).args(args).args(options)).ok()
}

/// Makes a session with an event of the VMM at 40,000 ns, and kernel.dat of the same boot around it.
fn session() -> made::Made {
    of_boots(Some(made::BOOT), Some(made::BOOT))
}

/// Makes the same session with these boots.
fn of_boots(session: Option<&str>, trace: Option<&str>) -> made::Made {
    let host = made::Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, made::VCPU_EXIT, &[6]);
    let made = made::Made::of_boot(session);
    let made = made.stream("host-003-0000", &[made::Packet::host(3), host]);
    let before = trace_dat::Page::at(1_000_000).mmio(39_000, 77, 0x17);
    let after =
        trace_dat::Page::at(1_041_000).missed(true).switch(0, (77, "vcpu0"), 1, (0, "idle"));
    let dat = TraceDat::new("x86-tsc").cpu(&[before, after]);
    let mut dat = dat.option(trace_dat::tsc2nsec(1, 0));
    dat.options.extend(trace.map(|boot| trace_dat::recorded(boot, 0)));
    made.kernel(&dat);
    made
}

#[test]
fn events_of_the_kernel_are_between_those_of_the_vmm() {
    golden("lines", HYPERTRACE.transcript(&[session()], &["report S", "report S --event kvm:*"]));
}

#[test]
fn json_has_the_thread_and_the_bound() {
    golden("json", HYPERTRACE.transcript(&[session()], &["report S --json --event sched:*"]));
}

/// Format of an event with the field `data`. The low bits of `data` are a vector, and the three bits above
/// are a mode with names.
const MSI: &str = "name: msi
ID: 930
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 data;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u32 type;\toffset:16;\tsize:4;\tsigned:0;

print fmt: \"vec %u (%s) %s\", (u8)REC->data, __print_symbolic((REC->data >> 8 & 0x7), { 0x0, \"Fixed\" }, { 0x1, \"LowPrio\" }), __print_symbolic((REC)->type, { 2, \"edge\" })
";

#[test]
fn a_name_of_a_part_stands_beside_the_number_in_every_format() {
    let mut trace = TraceDat::new("mono");
    trace.formats.push(("kvm".into(), MSI.into()));
    let msi = |data: u64| [&data.to_le_bytes()[..], &2u32.to_le_bytes()].concat();
    let page = trace_dat::Page::at(1_000).mmio(0, 77, 1);
    let page =
        [0x31, 0x131, 0x431].iter().fold(page, |page, data| page.event(10, 930, 77, &msi(*data)));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.dat"), trace.cpu(&[page]).version_7()).unwrap();
    let commands = [
        "report t.dat",
        "report t.dat --where data==0x131",
        "report t.dat --where (data==0x31)and(data_name=='Fixed')and(type=='edge') --json",
        "report t.dat --where data_nam=='Fixed'",
        "export t.dat --event kvm:msi --to csv -o -",
    ];
    golden("names", HYPERTRACE.transcript_in(dir.path(), &commands));
}

#[test]
fn a_file_of_another_kind_is_called_what_it_seems_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("t.dat.gz"), b"\x1f\x8b\x08\x08").unwrap();
    fs::write(path("perf.data"), b"PERFILE2").unwrap();
    fs::write(path("report.txt"), "cpus=2\n").unwrap();
    let status = Command::new("mkfifo").arg(path("pipe")).status().unwrap();
    assert!(status.success());
    let mut old = TraceDat::new("mono").version_6();
    old[12] = 1;
    fs::write(path("big.dat"), old).unwrap();
    let files = ["t.dat.gz", "perf.data", "report.txt", "pipe", "big.dat"];
    let commands = files.map(|file| format!("report S/{file}"));
    let commands = Vec::from_iter(commands.iter().map(String::as_str));
    golden("foreign", HYPERTRACE.transcript(&[dir.path()], &commands));
}

#[test]
fn traces_whose_times_have_no_known_relation_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let (uname, boot) = (5, trace_dat::recorded(made::BOOT, 0));
    let system = |name: &str| (uname, format!("Linux {name} 6.1\0").into_bytes());
    for (name, clock, options) in [
        ("a.dat", "mono", vec![system("hosta")]),
        ("b.dat", "mono", vec![system("hostb")]),
        ("same.dat", "mono", vec![system("hosta")]),
        ("boot.dat", "mono", vec![boot.clone()]),
        ("boot2.dat", "mono", vec![boot.clone()]),
        ("global.dat", "global", vec![boot]),
    ] {
        let trace = TraceDat::new(clock).cpu(&[trace_dat::Page::at(1_000).mmio(0, 77, 1)]);
        fs::write(dir.path().join(name), TraceDat { options, ..trace }.version_7()).unwrap();
    }
    let commands = [
        "report T/a.dat T/b.dat T/same.dat",
        "report T/a.dat T/b.dat@5us",
        "report T/boot.dat T/boot2.dat",
        "report T/boot.dat T/global.dat",
        "export T/a.dat T/b.dat --to json -o -",
        "report S T/a.dat --event kvm:*",
    ];
    golden("unplaced", HYPERTRACE.transcript(&[session().path(), dir.path()], &commands));
}

#[test]
fn a_pattern_of_switches_finds_what_perf_calls_them() {
    let page = trace_dat::Page::at(1_000).event(0, trace_dat::PERF_SWITCH_IN_ID, 77, &[0; 8]);
    let trace = TraceDat::new("mono").of_perf().cpu(&[page]);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.dat"), trace.version_7()).unwrap();

    let report = |glob: &str| {
        run(HYPERTRACE.command(["report", "t.dat", "--event", glob]).current_dir(dir.path()))
    };

    assert!(report("sched:*").stderr.contains("switches as perf:switch_in and perf:switch_out"));
    assert!(report("perf:*").stdout.contains("perf:switch_in"));
}

#[test]
fn offsets_belong_to_the_file_before_them() {
    let dir = tempfile::tempdir().unwrap();
    for (name, time) in [("host.dat", 1_000), ("guest.dat", 5_000)] {
        let trace = TraceDat::new("mono").cpu(&[trace_dat::Page::at(time).mmio(0, 77, time)]);
        fs::write(dir.path().join(name), trace.version_6()).unwrap();
    }
    let commands = ["report host.dat guest.dat@-4250ns", "report host.dat@5"];
    golden("offsets", HYPERTRACE.transcript_in(dir.path(), &commands));
}

#[test]
fn ticks_are_called_ticks_and_are_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let page = trace_dat::Page::at(u64::MAX - 1_000).mmio(0, 77, 1).mmio(1_000, 77, 2);
    let ticks = TraceDat::new("counter").cpu(&[page]);
    fs::write(dir.path().join("t.dat"), ticks.version_7()).unwrap();
    let commands = [
        "report t.dat",
        "report t.dat@5ns --time utc",
        "report t.dat --json",
        "export t.dat --to csv -o -",
        "export t.dat --to ctf -o C",
        "export t.dat --to perfetto -o p",
        "export t.dat --to uftrace -o U",
        "export t.dat --to otlp -o o",
        "regions t.dat",
    ];
    golden("ticks", HYPERTRACE.transcript_in(dir.path(), &commands));
}

#[test]
fn info_of_a_file_says_who_recorded_it_and_what_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let text = |id: u16, text: &str| (id, [text.as_bytes(), b"\0"].concat());
    let page = |time| trace_dat::Page::at(time).mmio(0, 77, 1);
    let of = |time| TraceDat::new("mono").cpu(&[page(time)]);
    let trace = of(1_000)
        .option(text(5, "Linux machine 6.12.0"))
        .option(text(9, "3.3.1"))
        .option((8, 4u32.to_le_bytes().to_vec()))
        .option(text(6, "sched:sched_switch,pid/sched:sched_switch,pid"))
        .option(text(99, "new"))
        .option(text(98, "new"));
    fs::write(dir.path().join("t.dat"), trace.version_6_with(&of(2_000))).unwrap();
    let corrections = trace_dat::time_shifts(11, 1, &[&[[2_001, 0, 1, 0], [3_000, 5, 1, 0]]]);
    let guest = TraceDat::new("mono").cpu(&[page(2_000), page(4_000)]).option(corrections);
    fs::write(dir.path().join("guest.dat"), guest.version_7()).unwrap();
    let commands = ["info t.dat", "info t.dat --json", "info guest.dat"];
    golden("info_file", HYPERTRACE.transcript_in(dir.path(), &commands));
}

#[test]
fn stat_counts_the_kernels_events_and_losses() {
    // The file lacks the kernel's own counters of losses, so `info` cannot tell where losses were.
    golden("info", HYPERTRACE.transcript(&[session()], &["info S", "info S --json"]));
}

#[test]
fn a_damaged_kernel_dat_is_refused_by_name_and_offset() {
    let session = session();
    fs::write(session.path().join("kernel.dat"), "not a trace").unwrap();
    golden("damaged", HYPERTRACE.transcript(&[session], &["report S", "info S"]));
}

#[test]
fn a_kernel_dat_of_another_boot_is_refused_with_what_to_do() {
    let session = of_boots(Some(made::BOOT), Some(made::OTHER_BOOT));
    let refused = HYPERTRACE.transcript(&[&session], &["report S", "info S"]);
    // As the message says, the file is moved away and shown with the session. The offset after `@` puts the
    // file's events on the session's timeline.
    let moved = tempfile::tempdir().unwrap();
    fs::rename(session.path().join("kernel.dat"), moved.path().join("other.dat")).unwrap();
    let offset = made::START_NS + 40_500 - 1_039_000;
    let report = format!("report S T/other.dat@{offset}ns --json");
    let shown = HYPERTRACE.transcript(&[session.path(), moved.path()], &[&report]);
    golden("of_other_boot", refused + &shown);
}

#[test]
fn a_kernel_dat_of_an_unknown_boot_has_no_bound() {
    let session = of_boots(Some(made::BOOT), None);
    golden("of_unknown_boot", HYPERTRACE.transcript(&[session], &["report --json S", "info S"]));
}

#[test]
fn a_kernel_dat_that_was_cut_is_shown_as_far_as_it_goes() {
    let session = session();
    let path = session.path().join("kernel.dat");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 4_096]).unwrap();
    golden("cut", HYPERTRACE.transcript(&[session], &["report S"]));
}

#[test]
fn a_kernel_dat_whose_contents_cannot_be_found_is_cut_and_can_be_moved_away() {
    let session = session();
    let path = session.path().join("kernel.dat");
    let whole = fs::read(&path).unwrap();
    // The cut is within the list of the file's parts.
    fs::write(&path, &whole[..3_000]).unwrap();
    let refused = HYPERTRACE.transcript(&[&session], &["report S", "info S"]);
    fs::rename(&path, session.path().join("cut.dat")).unwrap();
    let moved = HYPERTRACE.transcript(&[&session], &["report S", "report S/cut.dat"]);
    golden("cut_list", refused + &moved);
}

/// An event as trace-cmd or `hypertrace report` shows it: CPU, nanoseconds, thread, name and fields.
type Shown = (u32, i64, u32, String, String);

/// Runs trace-cmd.
fn trace_cmd(program: &Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Parses `comm-77 [000] 0.000010100: kvm_mmio:   type=2 len=8`, and the same after `buffer:`.
fn of_trace_cmd(line: &str) -> Option<Shown> {
    // A buffer's name stands before the thread.
    let cpu = line.find("] ")?;
    let at = cpu + line[cpu..].find(": ")?;
    let (head, rest) = (&line[..at], &line[at + 2..]);
    let (head, time) = head.rsplit_once(' ')?;
    let (seconds, ns) = time.split_once('.')?;
    let (thread, cpu) = head.trim().rsplit_once('[')?;
    let tid = thread.trim().rsplit_once('-')?.1.parse().ok()?;
    let time = seconds.parse::<i64>().ok()? * 1_000_000_000 + ns.parse::<i64>().ok()?;
    let (name, fields) = rest.split_once(':')?;
    let cpu = cpu.trim_end_matches(']').parse().ok()?;
    Some((cpu, time, tid, name.trim().to_owned(), format!(" {} ", fields.trim())))
}

/// Returns whether trace-cmd's line shows this value of the field, in any notation that the kernel uses.
fn has_field(line: &str, name: &str, value: &Value) -> bool {
    let forms = match value {
        Value::Number(n) => {
            let hex = n.as_u64().map(|n| format!("{n:#x}"));
            [Some(n.to_string()), Some(format!("{:03}", n.as_i64().unwrap_or(0))), hex]
        }
        Value::Bool(b) => [Some(u8::from(*b).to_string()), None, None],
        Value::String(text) => {
            // The value is a text, or a number that is too large for a double.
            let hex = text.parse::<u64>().map(|n| format!("{n:#x}"));
            [Some(text.trim_end().to_owned()), hex.ok(), None]
        }
        _ => [None, None, None],
    };
    forms.into_iter().flatten().any(|form| line.contains(&format!(" {name}={form} ")))
}

/// Asserts that both readers show the same events, CPU by CPU. Returns their number.
#[track_caller]
pub fn agree(program: &Path, file: &Path) -> usize {
    let by_cpu = |events: Vec<(Shown, Option<Value>)>| {
        let mut cpus: BTreeMap<u32, Vec<(Shown, Option<Value>)>> = BTreeMap::new();
        events.into_iter().for_each(|e| cpus.entry(e.0.0).or_default().push(e));
        cpus
    };
    let theirs = trace_cmd(program, &["report", "-t", "-R", file.to_str().unwrap()]);
    let theirs = theirs.lines().filter_map(of_trace_cmd).map(|e| (e, None)).collect();
    let ours = report(&[file], &["--json"]);
    let ours = ours.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ours = ours.filter(|line| line["type"].is_null() && line["event"] != "unknown");
    let ours = ours.map(|event| {
        let number = |name: &str| event[name].as_u64().unwrap() as u32;
        let name = event["event"].as_str().unwrap().split_once(':').unwrap().1.to_owned();
        let time = event["ts_ns"].to_string().trim_matches('"').parse().unwrap();
        let shown = (number("cpu"), time, number("tid"), name, String::new());
        (shown, Some(event["fields"].clone()))
    });
    let (ours, theirs) = (by_cpu(ours.collect()), by_cpu(theirs));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    let mut events = 0;
    for (ours, theirs) in ours.values().zip(theirs.values()) {
        for ((o, fields), (t, _)) in ours.iter().zip(theirs) {
            assert_eq!((o.0, o.1, o.2, &o.3), (t.0, t.1, t.2, &t.3));
            for (name, value) in fields.as_ref().unwrap().as_object().unwrap() {
                // trace-cmd leaves out the names of numbers here, shows s8 as u8, and shows arrays byte by
                // byte.
                let number = name.strip_suffix("_name").and_then(|name| fields.as_ref()?.get(name));
                let is_named =
                    ["type", "exit_reason", "vec"].contains(&&**name) || number.is_some();
                let is_odd = o.3 == "odd" && name != "mode";
                assert!(
                    is_named || is_odd || has_field(&t.4, name, value),
                    "{name}={value}: {t:?}"
                );
            }
            events += 1;
        }
        assert_eq!(ours.len(), theirs.len());
    }
    events
}

#[test]
fn trace_cmd_shows_the_same_events_of_a_recording_of_this_machine() {
    let Some(program) = capability::program("trace-cmd") else { return };
    let Some(instance) = Instance::new() else { return };
    let set = |file: &str, value: &str| fs::write(instance.dir().join(file), value).unwrap();
    set("trace_clock", "x86-tsc");
    set("buffer_size_kb", "256");
    let events = ["sched_switch", "sched_waking", "sched_wakeup", "sched_process_fork"];
    for event in events {
        set(&format!("events/sched/{event}/enable"), "1");
    }
    for n in 0..50 {
        set("trace_marker", &format!("marker {n}"));
        std::thread::spawn(std::thread::yield_now).join().unwrap();
    }
    set("tracing_on", "0");
    let mut trace = TraceDat::new("x86-tsc").option(tsc2nsec(403_298, 20));
    trace.formats = vec![("ftrace".into(), text(&instance, "ftrace/print"))];
    trace.formats.extend(events.map(|e| ("sched".into(), text(&instance, &format!("sched/{e}")))));
    trace.cpus = raw_pages(instance.dir());
    trace.has_kallsyms = true;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.dat");
    fs::write(&path, trace.version_7()).unwrap();

    let events = agree(&program, &path);

    assert!(events >= 50, "{events} events");
    capability::used("tracefs");
    // trace-cmd's own conversions have the same events.
    for options in [["--file-version", "6"], ["--compression", "zstd"]] {
        let converted = dir.path().join("converted.dat");
        let (from, to) = (path.to_str().unwrap(), converted.to_str().unwrap());
        trace_cmd(&program, &["convert", "-i", from, "-o", to, options[0], options[1]]);
        assert_eq!(report(&[&converted], &[]), report(&[&path], &[]), "{options:?}");
    }
    capability::used("trace-cmd");
}

fn text(instance: &Instance, event: &str) -> String {
    fs::read_to_string(instance.dir().join(format!("../../events/{event}/format"))).unwrap()
}

/// Reads the pages of all CPUs: whole pages, and the rest.
fn raw_pages(dir: &Path) -> Vec<Vec<u8>> {
    let mut cpus: Vec<PathBuf> =
        fs::read_dir(dir.join("per_cpu")).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The shortest names come first, so the order is cpu0, cpu1, .., cpu10.
    cpus.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    let read = |path: PathBuf| {
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let mut file = options.open(path.join("trace_pipe_raw")).unwrap();
        let (mut all, mut page) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = file.read(&mut page) {
            page[n..].fill(0);
            all.extend(page);
        }
        all
    };
    cpus.into_iter().map(read).collect()
}

#[test]
fn stat_of_a_session_with_events_of_the_kernel_alone_has_no_table() {
    let made = made::Made::of_boot(Some(made::BOOT));
    let stat = |dat: TraceDat| {
        fs::write(
            made.path().join("kernel.dat"),
            dat.option(trace_dat::recorded(made::BOOT, 0)).version_7(),
        )
        .unwrap();
        HYPERTRACE.transcript(&[&made], &["info S"])
    };
    let page = trace_dat::Page::at(1_000_000).mmio(39_000, 77, 0x17);
    let an_event = stat(TraceDat::new("x86-tsc").cpu(&[page]));
    golden("kernel_alone", an_event + &stat(TraceDat::new("x86-tsc")));
}

#[test]
fn stat_of_a_program_without_reference_points_says_nothing_of_them() {
    let made = made::Made::of_programs("[]");
    let json = made.path().join("session.json");
    let text = fs::read_to_string(&json).unwrap();
    fs::write(&json, text.replace("bad_width", "rings_without_point")).unwrap();
    let before = trace_dat::Page::at(1_041_000).switch(0, (77, "vcpu0"), 1, (0, "idle"));
    made.kernel(&TraceDat::new("x86-tsc").cpu(&[before]));

    let info = run(HYPERTRACE.command(["info"]).arg(made.path()));

    assert_eq!(info.code, Some(0), "{info:?}");
    assert!(info.stdout.contains("kernel.dat: cpu0 1 event"), "{info:?}");
    assert!(!info.stdout.contains("recorder:"), "{info:?}");
    assert!(!info.stdout.contains("no exit of a reference point"), "{info:?}");
}

#[test]
fn stat_of_a_session_that_a_server_recorded_expects_no_exits_of_points() {
    let made = session();
    let before = trace_dat::Page::at(1_041_000).switch(0, (77, "vcpu0"), 1, (0, "idle"));
    made.kernel(&TraceDat::new("x86-tsc").cpu(&[before]));
    let json = made.path().join("session.json");
    let text = fs::read_to_string(&json).unwrap();
    let info = || run(HYPERTRACE.command(["info"]).arg(made.path())).stdout;

    let (by_vmm, by_server) = (info(), {
        fs::write(&json, text.replacen("\"clocks\"", "\"served\":true,\"clocks\"", 1)).unwrap();
        info()
    });

    let says = |info: &str| info.contains("kernel.dat has no exit of a reference point");
    assert!(says(&by_vmm) && !says(&by_server), "{by_vmm}\n{by_server}");
}

#[test]
fn stat_writes_the_uuid_as_the_session_does() {
    let stat = HYPERTRACE.info(session().path());

    assert_eq!(stat["uuid"], made::UUID_TEXT);
}
