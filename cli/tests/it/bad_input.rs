//! Commands with unusable input: each command reports the input once by name, ends with exit code 2 (1 if the
//! machine is at fault), and leaves the input unchanged.

use hypertrace_test_support::{functions, made, trace_dat};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use hypertrace_functions::Task;
use hypertrace_functions::record::{Record, RecordType};
use hypertrace_functions::write::{Directory, Records};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, copy_program, run};
use hypertrace_tests::golden::golden;
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::{child, peak, this_test, traced};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Asserts that the demo in `dir` fails with this exit code. Returns its message.
#[track_caller]
fn refused(dir: &Path, code: i32) -> String {
    let said = run(&mut HYPERTRACE.demo(dir, 1)).failed(code);
    assert!(said.contains(dir.to_str().unwrap()), "{said}");
    said
}

/// Records a session of one vCPU.
fn session() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    run(&mut HYPERTRACE.demo(dir.path(), 1)).ok();
    dir
}

/// Asserts that `report` and `info` of `dir` end with code 2 and a message with all of `parts`.
#[track_caller]
fn unreadable(dir: &Path, parts: &[&str]) {
    for command in ["report", "info"] {
        let said = run(HYPERTRACE.command([command]).arg(dir)).failed(2);
        for part in parts {
            assert!(said.contains(part), "{part:?}: {said}");
        }
        let harmless = |c: char| c == '\n' || !c.is_control();
        assert!(said.chars().all(harmless), "{said:?}");
    }
}

#[test]
fn a_directory_that_is_not_empty_is_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes"), "mine").unwrap();

    let said = refused(dir.path(), 2);

    assert!(said.contains("not empty"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read(dir.path().join("notes")).unwrap(), b"mine");
}

#[test]
fn a_session_is_not_overwritten_by_another() {
    let session = session();
    let json = fs::read(session.path().join("session.json")).unwrap();

    refused(session.path(), 2);

    assert_eq!(fs::read(session.path().join("session.json")).unwrap(), json);
    run(HYPERTRACE.command(["info"]).arg(session.path())).ok();
}

#[test]
fn a_file_is_refused_as_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();

    assert!(refused(&file, 2).contains("not a directory"));
    assert!(refused(&file.join("S"), 2).contains("Not a directory"));

    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_directory_without_write_permission_is_refused() {
    refused(Path::new("/proc/hypertrace"), 2);
    let Some(disk) = Mount::new("tmpfs", "ro") else { return };
    assert!(refused(&disk.path().join("S"), 2).contains("Read-only"));
}

#[test]
fn a_full_disk_is_not_wrong_usage() {
    for options in ["size=4k", "nr_inodes=2"] {
        let Some(disk) = Mount::new("tmpfs", options) else { return };
        assert!(refused(&disk.path().join("S"), 1).contains("No space left on device"));
    }
}

#[test]
fn a_directory_without_a_session_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    unreadable(&dir.path().join("gone"), &["gone: no such directory"]);
    unreadable(dir.path(), &["no session.json in it"]);
    let json = dir.path().join("session.json");
    unreadable_json(&json, "", "session.json");
    unreadable_json(&json, r#"{"format":"another","version":1}"#, "session.json");
    unreadable_json(&json, r#"{"format":"hypertrace-session","version":99}"#, "99");
}

#[track_caller]
fn unreadable_json(file: &Path, text: &str, part: &str) {
    fs::write(file, text).unwrap();
    unreadable(file.parent().unwrap(), &[part]);
    assert_eq!(fs::read(file).unwrap(), text.as_bytes());
}

#[test]
fn a_cut_description_is_said_to_be_cut() {
    let session = session();
    let file = session.path().join("session.json");
    let text = fs::read_to_string(&file).unwrap();

    for len in [0, 1, text.len() / 2] {
        fs::write(&file, &text[..len]).unwrap();
        let cut = format!("session.json: cut after {len} bytes");
        unreadable(session.path(), &[&cut, "babeltrace2 can still read", "/ctf"]);
    }
}

#[test]
fn a_command_that_fails_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], out: &str| {
        let mut command = HYPERTRACE.command([args[0], "-o"]);
        let ran = run(command.arg(dir.path().join(out)).args(&args[1..]));
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    };
    fs::create_dir(dir.path().join("kept")).unwrap();

    // No process has this number.
    let gone = i32::MAX.to_string();
    fails(&["record", "--pid", &gone], "a/b/S");
    fails(&["record", "--pid", &gone], "kept");
    fails(&["record", "--pid", &gone], "kept/S");
    fails(&["record", "--segment", "/proc/none/segment", "--", "true"], "S");

    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"], "directories that were there stay");
    assert_eq!(fs::read_dir(dir.path().join("kept")).unwrap().count(), 0);
}

#[test]
fn record_says_what_it_can_record() {
    let dir = tempfile::tempdir().unwrap();
    golden("record", HYPERTRACE.transcript(&[dir], &["record -o S"]));
}

#[test]
fn another_users_session_mentions_how_it_is_shared() {
    if !rustix::process::geteuid().is_root() {
        capability::missing("root", "only root can be another user");
        return;
    }
    let session = session();
    fs::set_permissions(session.path(), Permissions::from_mode(0o700)).unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("hypertrace");
    copy_program(HYPERTRACE.0, &program);
    for args in [&["regions"][..], &["report"], &["info"]] {
        let mut command = Command::new(&program);
        command.args(args).arg(session.path()).uid(65534).gid(65534).current_dir("/");

        let said = run(&mut command).failed(2);

        for part in ["Permission denied", "it is of user 0", "--share"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// Maximum memory in bytes that `report` and `info` may use, whatever `session.json` contains.
const MAX_MEMORY: u64 = 256 << 20;

#[test]
fn a_large_description_takes_bounded_memory() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("session.json");
        // The file is written in small steps, because a child's peak memory begins with this process's
        // memory.
        let write = |bytes: usize| {
            let mut out = std::io::BufWriter::new(fs::File::create(&file).unwrap());
            let uuid = "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5";
            write!(
                out,
                r#"{{"format":"hypertrace-session","version":2,"uuid":"{uuid}","clocks":[],"#
            )?;
            write!(out, r#""started_unix_ns":0,"finished":true,"streams":["#)?;
            let stream = r#"{"domain":"host","client":1}"#;
            for _ in 0..(bytes - 200) / (stream.len() + 1) {
                write!(out, "{stream},")?;
            }
            write!(out, "{stream}]}}")?;
            out.flush()
        };
        // A file of the largest size allowed, and a file that is far larger.
        let most = hypertrace_timeline::limits::MAX_SESSION_JSON as usize;
        for (bytes, part) in [(most, "at most 3073"), (175 << 20, "too many")] {
            write(bytes).unwrap();
            for command in ["report", "info"] {
                let (ran, memory) = peak::run(HYPERTRACE.command([command]).arg(dir.path()));
                let said = ran.failed(2);
                assert!(said.contains("session.json") && said.contains(part), "{said}");
                assert!(memory < MAX_MEMORY, "{command} of {bytes} bytes took {memory}");
            }
        }
    });
}

#[test]
fn counts_that_are_too_large_together_are_the_largest() {
    let stream = |client: u32| {
        let count = format!(r#""reference_points":{}"#, u64::MAX - 1);
        format!(r#"{{"domain":"guest","client":{client},"clock":1,{count}}}"#)
    };
    let streams = format!("[{},{}]", stream(0), stream(1));
    let made = made::Made::with_json(&made::json(&made::clocks(), made::EVENTS, &streams));
    let packet = made::Packet::guest(0).event(5, made::DISK_READ, &[1, 2]);
    let made = made.stream("guest-000-0000", &[made::Packet::guest(0), packet]);

    let [text, json] = [&["info"][..], &["info", "--json"]]
        .map(|args| run(HYPERTRACE.command(args).arg(made.path())).ok());

    assert!(text.contains("no reference points that the host answered"), "{text}");
    assert!(json.contains(&format!("\"points_in_rings\":\"{}\"", u64::MAX)), "{json}");
}

#[test]
fn damage_is_reported_with_file_and_byte() {
    // The magic and size of the first packet with events, and the time and id of its first event.
    for offset in [128, 128 + 48, 256, 256 + 8] {
        for name in ["ctf/guest-000-0000", "ctf/host-000-0000"] {
            let session = session();
            let path = session.path().join(name);
            if !path.exists() {
                // Without KVM, no VMM is traced, so there is no file of the host.
                continue;
            }
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[0xee; 4], offset).unwrap();
            let bytes = fs::read(&path).unwrap();

            unreadable(session.path(), &[&format!("{name}: damaged at byte {offset}: expected")]);

            assert!(fs::read(&path).unwrap() == bytes, "the file is unchanged");
        }
    }
}

/// A text with beginnings of commands to a terminal, a character that changes the direction of text, and a
/// new line.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\r\n0 fake";

#[test]
fn contents_of_events_are_escaped_on_the_terminal() {
    if traced::argument().is_some() {
        let thread = std::thread::Builder::new().name("\u{1b}[2J\u{202e}".into());
        let say = || {
            hypertrace::event!("work_begin", id = 1u64, text = EVIL);
            hypertrace::event!("work_end", id = 1u64);
        };
        return thread.spawn(say).unwrap().join().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    traced::program(command.arg(&session), this_test!(), "");
    run(&mut command).ok();

    let commands = [
        &["report"][..],
        &["report", "--json"],
        &["info"],
        &["info", "--json"],
        &["regions", "--by", "text"],
        &["regions", "--by", "text", "--json"],
        &["regions", "--by", "text", "--csv"],
    ];
    let harmless = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
    let harmful = commands.iter().filter(|command| {
        let shown = run(HYPERTRACE.command(**command).arg(&session)).stdout;
        !shown.chars().all(harmless) || shown.lines().any(|line| line.starts_with("0 fake"))
    });
    assert_eq!(harmful.collect::<Vec<_>>(), Vec::<&&[&str]>::new());
    let shown = run(HYPERTRACE.command(["report"]).arg(&session)).stdout;
    assert!(shown.contains("\\x1b]0;owned"), "{shown}");
}

#[test]
fn a_guests_strings_are_escaped_on_the_terminal() {
    let session = session();
    let path = session.path().join("classes.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let evil = r"\u001b]0;owned\u0007\u202e\r";
    fs::write(&path, text.replace("request(", &format!("request{evil}("))).unwrap();
    unreadable(session.path(), &["classes.jsonl", "request\\u{1b}]0;owned"]);

    let dir = tempfile::tempdir().unwrap();
    unreadable(&dir.path().join("\x1b[2J\u{202e}"), &["\\u{1b}[2J\\u{202e}: no such directory"]);
}

#[test]
fn a_long_name_of_a_function_takes_memory_for_some_of_its_addresses_only() {
    child::in_own_process(|| {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("F");
        let mut directory = Directory::create(&folder, "guest", "qemu").unwrap();
        directory.add_tasks([Task::of_vcpu(0, 3, "Ring3")]).unwrap();
        directory.write_anchor(&functions::anchor_at(0)).unwrap();
        let map = "1000-101000 r-xp 00000000 00:00 0 /guest\n";
        fs::write(folder.join("sid-0000000000000001.map"), map).unwrap();
        fs::write(folder.join("guest.sym"), format!("0 100000 T {}\n", "x".repeat(4000))).unwrap();
        let mut records = Records::append(&directory.records(103)).unwrap();
        for n in 1..=40_000 {
            let record = Record { time: n, kind: RecordType::Entry, depth: 0, address: 0x1000 + n };
            records.write(record).unwrap();
        }
        records.finish().unwrap();

        let command = &mut HYPERTRACE.command(["report", "--event", "none"]);
        let (ran, memory) = peak::run(command.arg(&folder));

        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(memory < MAX_FOR_ODD, "{memory}");
    });
}

#[test]
fn tscs_of_many_clients_and_clocks_take_bounded_memory() {
    child::in_own_process(|| {
        let clock = |id| made::clock(id, "guest", 0, made::GHZ, 0, made::START_NS);
        let host = made::clock(0, "host", 0, made::GHZ, 0, made::START_NS);
        let clocks = [host].into_iter().chain((1..1024).map(clock));
        let clocks = format!("[{}]", Vec::from_iter(clocks).join(","));
        let made = made::Made::with_json(&made::json(&clocks, made::EVENTS, "[]"));
        let tsc = |client| {
            format!(r#"{{"epoch":0,"client":{client},"offset":5,"multiplier":1,"shift":0}}"#)
        };
        made.tell(&Vec::from_iter((0..2048).map(tsc)).join(","));

        let (ran, memory) = peak::run(HYPERTRACE.command(["info"]).arg(made.path()));

        ran.ok();
        assert!(memory < MAX_FOR_ODD, "{memory}");
    });
}

/// Returns a zstd frame of a page with an event and of zeros, 16 MiB in all.
fn bomb(page: &trace_dat::Page) -> Vec<u8> {
    const BLOCK: u32 = 128 << 10;
    let block = |kind: u32, size: u32, is_last: bool, content: &[u8]| {
        let header = (size << 3 | kind << 1 | u32::from(is_last)).to_le_bytes();
        [&header[..3], content].concat()
    };
    let page = page.bytes(4096, 0);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    frame.extend(block(0, 4096, false, &page));
    (0..127).for_each(|_| frame.extend(block(1, BLOCK, false, &[0])));
    frame.extend(block(1, BLOCK - 4096, true, &[0]));
    let number = |n: usize| (n as u32).to_le_bytes();
    [&number(1)[..], &number(frame.len()), &number(16 << 20), &frame].concat()
}

#[test]
fn compressed_pages_of_many_cpus_take_bounded_memory() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kernel.dat");
        let mut dat = trace_dat::TraceDat::new("x86-tsc");
        dat.cpus = vec![bomb(&trace_dat::Page::at(1_000).mmio(1, 77, 1)); 64];
        fs::write(&file, dat.version_7_of_zstd()).unwrap();

        let (ran, memory) = peak::run(HYPERTRACE.command(["report"]).arg(&file));

        assert!(memory < MAX_MEMORY, "{memory} bytes: {ran:?}");
        assert!(ran.stderr.contains("a chunk of 1 to 2097152 bytes"), "{ran:?}");
    });
}

/// Makes a session of `clients` clients, each with enough reference points for bounds of its own.
fn with_points(clients: u32) -> made::Made {
    const MS: u64 = 1_000_000;
    let made = made::Made::new();
    let time = |client: u32, n: u32| u64::from(n) * 10 * MS + u64::from(client) * 100;
    let mut host = made::Packet::host(0);
    for n in 1..=8 {
        for client in 0..clients {
            let at = time(client, n);
            host = host.point(at, client, n, made::GUEST_BASE + at - 20, n.into());
        }
    }
    for client in 0..clients {
        let events = (1..=8).fold(made::Packet::guest(client), |packet, n| {
            packet.event(time(client, n) + 30, made::DISK_READ, &[1, 2])
        });
        let bytes = [made::Packet::guest(client).bytes(), events.bytes()].concat();
        fs::write(made.file(&format!("guest-{client:03}-0000")), bytes).unwrap();
    }
    made.stream("host-000-0000", &[made::Packet::host(0), host])
}

/// Makes a trace in which each CPU has this page.
fn trace_of_cpus(cpus: usize, page: &trace_dat::Page) -> trace_dat::TraceDat {
    let mut dat = trace_dat::TraceDat::new("x86-tsc");
    dat.cpus = vec![page.bytes(4096, 0); cpus];
    dat
}

#[test]
fn traces_of_many_cpus_take_memory_for_what_is_on_them() {
    child::in_own_process(|| {
        const CPUS: usize = 4_096;
        let place = tempfile::tempdir().unwrap();
        let [host, guest] = ["host.dat", "guest.dat"].map(|name| place.path().join(name));
        let page = || trace_dat::Page::at(made::GUEST_BASE + 30_000_000).mmio(0, 5, 0);
        let made = with_points(600);
        // trace-cmd's table of differences between the clock of trace 77 and the clocks of a guest's CPUs.
        let sample = [1u64, 5, 1].map(|n| [n.to_le_bytes(); 40_000].concat()).concat();
        let shift = [
            &77u64.to_le_bytes()[..],
            &[0; 4],
            &1u32.to_le_bytes(),
            &40_000u32.to_le_bytes(),
            &sample,
        ];
        let traced = trace_dat::TraceDat::new("x86-tsc")
            .cpu(&[page()])
            .option((11, 77u64.to_le_bytes().into()));
        fs::write(&host, traced.version_7()).unwrap();
        drop(traced);
        let (made, host, guest) = (made.path(), host.as_path(), guest.as_path());
        let of_guest = format!("{}@{}", guest.display(), made.display());
        let (points, shifted) = ([made, Path::new(&of_guest)], [host, guest]);
        for (args, options) in [(&points[..], vec![]), (&shifted, vec![(12, shift.concat())])] {
            let dat = trace_dat::TraceDat { options, ..trace_of_cpus(CPUS, &page()) };
            fs::write(guest, dat.version_7()).unwrap();
            drop(dat);
            let mut command = HYPERTRACE.command(["report", "--event", "none"]);

            let (ran, memory) = peak::run(command.args(args));

            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            assert!(memory < MAX_FOR_ODD, "{args:?}: {memory}");
        }
    });
}

#[test]
fn many_traces_with_large_ids_of_events_take_bounded_memory() {
    child::in_own_process(|| {
        let place = tempfile::tempdir().unwrap();
        let mut trace = trace_of_cpus(
            1,
            &trace_dat::Page::at(1_000).event(0, u16::MAX, 5, &trace_dat::mmio(1)),
        );
        trace.formats.truncate(2);
        trace.formats[1].1 = trace.formats[1].1.replace("ID: 38\n", "ID: 65535\n");
        let files = (0..600).map(|n| place.path().join(format!("{n}.dat")));
        let files: Vec<_> =
            files.inspect(|file| fs::write(file, trace.version_7()).unwrap()).collect();
        let mut command = HYPERTRACE.command(["report", "--event", "none"]);

        let (ran, memory) = peak::run(command.args(&files));

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(memory < MAX_FOR_ODD, "{memory}");
    });
}

#[test]
fn an_event_of_a_guests_kernel_costs_the_same_with_many_clients() {
    let made = with_points(600);
    let events = |mut page: trace_dat::Page| {
        (0..100).for_each(|_| {
            page = std::mem::take(&mut page).event(1, trace_dat::PRINT_ID, 5, &[0; 16])
        });
        page
    };
    let pages =
        (0..2_000).map(|n| events(trace_dat::Page::at(made::GUEST_BASE + 30_000_000 + n * 200)));
    let trace = trace_dat::TraceDat::new("x86-tsc").cpu(&Vec::from_iter(pages));
    let guest = made.path().join("guest.dat");
    fs::write(&guest, trace.version_7()).unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 3; exec \"$@\"", "sh", HYPERTRACE.0]);
    limited.args(["report", "--event", "ftrace:print"]);

    let ran =
        run(limited.arg(made.path()).arg(format!("{}@{}", guest.display(), made.path().display())));

    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 200_000), "{}", ran.stderr);
}

/// Kind of thing that the test puts in place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Pipe,
    Folder,
    Link,
    EndlessLink,
    Device,
    Sparse,
    Largest,
}

/// Contents of a file outside of the session.
const FOREIGN: &str = "words of another user\n";

/// Files that commands read: of a session `S`, of a function trace `F`, and other files.
const READ: [&str; 15] = [
    "S/session.json",
    "S/classes.jsonl",
    "S/ctf/metadata",
    "S/ctf/host-003-0000",
    "S/kernel.dat",
    "S/.kernel/recording.json",
    "S/control.sock",
    "F/info",
    "F/task.txt",
    "F/103.dat",
    "journal",
    "segment",
    "A/run.json",
    "patterns",
    "T/trace_marker",
];

/// Makes all files of [`READ`] in a folder.
fn make_files(folder: &Path) {
    let host = made::Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, made::VCPU_EXIT, &[6]);
    let made = made::Made::of_boot(Some(made::BOOT));
    let made = made.stream("host-003-0000", &[made::Packet::host(3), host]);
    run(Command::new("cp").arg("-r").arg(made.path()).arg(folder.join("S"))).ok();
    let page = trace_dat::Page::at(1_000_000).mmio(39_000, 77, 0x17);
    let mut dat = trace_dat::TraceDat::new("x86-tsc").cpu(&[page]);
    dat.options.push(trace_dat::recorded(made::BOOT, 0));
    fs::write(folder.join("S/kernel.dat"), dat.version_7()).unwrap();
    fs::write(folder.join("patterns"), "vcpu-exit\n").unwrap();
    fs::create_dir(folder.join("T")).unwrap();
    fs::write(folder.join("T/trace_marker"), "").unwrap();
    let records = [(1_000, '+', 0x1000), (2_000, '-', 0x1000)];
    functions::write_task(&folder.join("F"), &functions::anchor_at(1_000_000_000), &records);
}

/// Replaces a file by something odd. Returns false if the file system cannot hold a thing of this kind.
fn replace(path: &Path, odd: Odd, elsewhere: &Path) -> bool {
    let node = |kind, device| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).is_ok()
    };
    let long = |bytes| File::create(path).and_then(|file| file.set_len(bytes)).is_ok();
    let _ = fs::remove_file(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match odd {
        Odd::Pipe => node(rustix::fs::FileType::Fifo, 0),
        Odd::Folder => fs::create_dir(path).is_ok(),
        Odd::Link => symlink(elsewhere, path).is_ok(),
        Odd::EndlessLink => symlink("/dev/zero", path).is_ok(),
        Odd::Device => node(rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 5)),
        Odd::Sparse => long(3 << 30),
        Odd::Largest => long(i64::MAX as u64),
    }
}

/// Returns the commands that read a session and other files in the current folder.
fn readers() -> Vec<Vec<&'static str>> {
    let help = run(&mut HYPERTRACE.command(["help"])).ok();
    let names = help.lines().take_while(|line| !line.starts_with("Options:"));
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let cases = names.map(|name| match name {
        "report" => vec![
            vec!["report", "S", "F"],
            vec!["report", "S", "--follow"],
            vec!["report", "S/kernel.dat"],
        ],
        "info" => vec![
            vec!["info", "S"],
            vec!["info", "--names", "S"],
            vec!["info", "--names", "F"],
            vec!["info", "--events", "S/kernel.dat"],
        ],
        "regions" => vec![vec!["regions", "S"]],
        "boot" => vec![vec!["boot", "--of", "S"]],
        "compare" => vec![vec!["compare", "A", "--with", "S"]],
        "functions" => vec![vec!["functions", "F"], vec!["functions", "S"]],
        "export" => vec![vec!["export", "S", "F", "--to", "uftrace", "-o", "U"]],
        "recover" => vec![vec!["recover", "segment", "S"]],
        "record" => vec![vec!["record", "-o", "S", "--pid", "1"]],
        "receive" => vec![vec!["receive", "journal", "-o", "R"]],
        "ctl" => vec![vec!["ctl", "-d", "S", "help"]],
        // Both commands fail before they run a guest: the file `patterns` has a line that is no pattern, and
        // T lacks trace_marker_raw.
        "demo" => vec![
            vec!["demo", "-o", "D", "--trace", "events=patterns"],
            vec!["demo", "-o", "D", "--trace-backend", "ftrace:T"],
        ],
        "serve" | "forward" | "completions" => Vec::new(),
        new => panic!("{new} is a new command: which files does it read?"),
    });
    let cases: Vec<Vec<&str>> = cases.flatten().collect();
    assert!(cases.len() > 10, "{help}");
    cases
}

/// Maximum memory in bytes that a command may use for an odd file.
const MAX_FOR_ODD: u64 = 64 << 20;

/// Replaces each file by something odd, and runs each command on it.
fn read_all(odd: Odd) {
    let commands = readers();
    // /dev/shm takes files of 2^63 bytes, unlike other file systems.
    let place = if odd == Odd::Largest { "/dev/shm" } else { "/tmp" };
    let place = tempfile::tempdir_in(place).unwrap();
    let (whole, elsewhere) = (place.path().join("whole"), place.path().join("elsewhere"));
    fs::create_dir(&whole).unwrap();
    make_files(&whole);
    fs::write(&elsewhere, FOREIGN).unwrap();
    for file in READ {
        for command in &commands {
            let folder = place.path().join("case");
            run(Command::new("cp").arg("-r").arg(&whole).arg(&folder)).ok();
            if !replace(&folder.join(file), odd, &elsewhere) {
                capability::missing("odd-files", format!("{odd:?} cannot be made"));
                return;
            }
            let mut limited = Command::new("sh");
            // A pipe is a usual journal, so `receive` waits for the pipe's writer.
            let is_waiting = (odd, file, command[0]) == (Odd::Pipe, "journal", "receive");
            let seconds = if is_waiting { "0.1" } else { "60" };
            let script = "ulimit -v 8000000; exec timeout -k 5 \"$@\"";
            limited.args(["-c", script, "sh", seconds, HYPERTRACE.0]).args(command);

            let (ran, memory) = peak::run(limited.current_dir(&folder));

            let case = format!("{odd:?} as {file}: {command:?}: {memory} bytes: {ran:?}");
            assert!(ran.code.is_some_and(|code| code <= 2) || is_waiting, "{case}");
            assert!(memory < MAX_FOR_ODD, "{case}");
            assert!(!format!("{ran:?}").contains(FOREIGN.trim_end()), "{case}");
            fs::remove_dir_all(&folder).unwrap();
        }
    }
    capability::used("odd-files");
}

#[test]
fn no_command_waits_for_a_pipe_in_the_place_of_a_file() {
    child::in_own_process(|| {
        read_all(Odd::Pipe);
    });
}

#[test]
fn no_command_follows_a_link_in_the_place_of_a_file() {
    child::in_own_process(|| {
        read_all(Odd::Link);
        read_all(Odd::EndlessLink);
    });
}

#[test]
fn no_command_reads_a_folder_or_a_device_in_the_place_of_a_file() {
    child::in_own_process(|| {
        read_all(Odd::Folder);
        read_all(Odd::Device);
    });
}

#[test]
fn no_command_takes_memory_for_a_file_that_is_too_long() {
    child::in_own_process(|| {
        read_all(Odd::Sparse);
        read_all(Odd::Largest);
    });
}
