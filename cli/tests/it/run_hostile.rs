//! `hypertrace record` with programs that break the rules. Such a program harms only its own events. The host
//! and the events of other programs stay unharmed, and the whole session stays readable.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hypertrace::{Emit, Status};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::{CONFIG_WORDS, ConfigPage};
use hypertrace_abi::event::Fields;
use hypertrace_abi::layout::local::BELLS;
use hypertrace_abi::layout::{MASK_BYTES, Region, WORD, guest_page};
use hypertrace_abi::schema::FieldType;
use hypertrace_abi::zerocopy::IntoBytes;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::random::Random;
use hypertrace_tests::traced::{self, NOTES, Notes};
use hypertrace_tests::{babeltrace2, packets, this_test};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns a `record` command with these options and the test `name` as the program, which writes to
/// DIR/notes.
fn run_test(dir: &Path, options: &[&str], name: &str) -> (Command, Notes) {
    let path = dir.join("notes");
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir.join("S")).args(options);
    traced::program(&mut command, name, path.to_str().unwrap());
    (command, Notes::at(&path))
}

fn notes() -> Option<Notes> {
    traced::argument().map(|path| Notes::at(Path::new(&path)))
}

fn count(session: &Path, event: &str) -> u64 {
    HYPERTRACE.report(session).iter().filter(|line| line.event == event).count() as u64
}

/// Overwrites random places of the segment with numbers that are likely to be wrong. Spares the part of
/// `client`, and the enable mask, because all clients share the mask. `begin`: offset of the first byte that
/// may be written.
fn corrupt(client: u32, begin: u64, done: &AtomicBool) {
    let path = std::env::var_os("HYPERTRACE_SEGMENT").unwrap();
    let segment = File::options().read(true).write(true).open(path).unwrap();
    let mut page = [0; CONFIG_WORDS];
    segment.read_exact_at(page.as_mut_bytes(), 0).unwrap();
    let geometry = ConfigPage::from_words(&page).geometry().unwrap();
    let rings = geometry.window_offset(Region::Rings);
    let own = rings + geometry.client_offset(client);
    let own = own..own + geometry.client_stride();
    let mut random = Random::new(7);
    while !done.load(Ordering::Relaxed) {
        let place = match random.below(4) {
            // The config page, page L and the bells.
            0 => random.below(0x3000),
            1 => geometry.window_offset(Region::Control) + random.below(geometry.control_size()),
            // The counters on pages G and H of a random client.
            2 => {
                let other = random.below(geometry.clients.into()) as u32;
                rings + geometry.client_offset(other) + random.below(8192)
            }
            _ => rings + MASK_BYTES + random.below(geometry.rings_size() - MASK_BYTES),
        } / 8
            * 8;
        let value = match random.below(3) {
            0 => random.below(100),
            1 => u64::MAX - random.below(100),
            _ => random.number(),
        };
        if place >= begin && !own.contains(&place) {
            segment.write_all_at(&value.to_le_bytes(), place).unwrap();
        }
        let other = random.below(geometry.clients.into()) as u32;
        if other != client && random.below(16) == 0 {
            // A forged point of another client, of any length.
            let (number, words) = (random.below(1 << 32), random.below(1 << 16));
            let slot = [number | random.number() << 32, 1, 2, words | number << 32];
            let page = rings + geometry.client_offset(other);
            let bytes = slot.map(u64::to_le_bytes).concat();
            segment.write_all_at(&bytes, page + WORD * guest_page::SLOT as u64).unwrap();
            segment.write_all_at(&[number as u8], BELLS + u64::from(other)).unwrap();
        }
    }
}

#[test]
fn a_segment_under_constant_corruption_harms_no_other_client() {
    if let Some(notes) = notes() {
        let client = hypertrace::with_client(|client| client.index()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| corrupt(client, 0, &done));
            let (begin, mut recorded, mut points, mut answered) = (Instant::now(), 0, 0, 0);
            while begin.elapsed() < Duration::from_secs(1) {
                let emit = hypertrace::commit!("honest", recorded);
                recorded += u64::from(emit == Emit::Recorded);
                if recorded % 16 == 0 {
                    let reply = hypertrace::reference_point!("point", points);
                    points += 1;
                    answered += u64::from(reply.is_ok_and(|r| r.status == Status::Recorded));
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            done.store(true, Ordering::Relaxed);
            [recorded, points, answered].into_iter().zip(0..).for_each(|(n, i)| notes.set(i, n));
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut command, notes) = run_test(dir.path(), &["--clients", "4"], this_test!());

    assert_eq!(run(&mut command).code, Some(0));

    let session = dir.path().join("S");
    assert!(notes.get(0) > 1000);
    assert_eq!(count(&session, "honest"), notes.get(0));
    let (points, answered) = (notes.get(1), notes.get(2));
    assert!(answered > 10, "{answered} of {points}");
    assert!((answered..=points).contains(&count(&session, "point")), "{answered} of {points}");
    if let Some(read) = babeltrace2::read(&session.join("ctf")) {
        assert_eq!(read.complete(), packets::committed(&session).unwrap().all());
    }
}

#[test]
fn a_segment_under_constant_corruption_is_recovered_with_other_clients_commits() {
    let name = "a_segment_under_constant_corruption_is_recovered_with_other_clients_commits";
    if let Some(notes) = notes() {
        let client = hypertrace::with_client(|client| client.index()).unwrap();
        // The config page keeps its contents, because a file without a config page is no segment.
        std::thread::spawn(move || corrupt(client, 0x1000, &AtomicBool::new(false)));
        traced::commit_until_killed(&notes);
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let options = ["--clients", "4", "--segment", segment.to_str().unwrap()];
    let (mut command, notes) = run_test(dir.path(), &options, name);
    let mut running = command.stdout(Stdio::null()).spawn().unwrap();
    notes.wait(NOTES[1], 1000);

    running.kill().unwrap();
    running.wait().unwrap();
    run(Command::new("kill").args(["-KILL", &notes.get(NOTES[0]).to_string()])).ok();

    for out in ["S", "new"].map(|name| dir.path().join(name)) {
        let mut recover = HYPERTRACE.command(["recover"]);
        run(recover.arg(&segment).arg(&out)).ok();
        let stat = HYPERTRACE.info(&out);
        assert_eq!(stat["finished"], true, "{stat}");
    }
    traced::check_commits(&dir.path().join("S"), &notes, false);
}

/// Payload that kills the program while an emit writes the payload.
#[derive(Clone, Copy)]
struct Deadly;

impl Fields for Deadly {
    const TYPES: &'static [FieldType] = &[FieldType::U64];

    fn words(self) -> usize {
        1
    }

    fn put(self, _: &[AtomicU64]) {
        let me = std::process::id().to_string();
        let _ = Command::new("kill").args(["-KILL", &me]).status();
        std::thread::sleep(Duration::from_secs(10));
    }
}

#[test]
fn a_program_that_dies_in_an_emit_leaves_its_commits_and_frees_its_client() {
    let name = "a_program_that_dies_in_an_emit_leaves_its_commits_and_frees_its_client";
    if let Some(notes) = notes() {
        let lives = notes.get(0);
        notes.set(0, lives + 1);
        assert_eq!(hypertrace::commit!("committed", lives), Emit::Recorded);
        hypertrace::with_client(|client| {
            assert_eq!(client.index(), 0);
            let (site, _) = hypertrace_abi::event_type!("deadly", n = 1u64);
            match lives {
                0 => drop(client.emit(site, Deadly)),
                1 => drop(client.reference_point(site, Deadly)),
                _ => assert!(hypertrace::reference_point!("alive").is_ok()),
            }
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (command, notes) = run_test(dir.path(), &["--clients", "1"], name);
    let (own, program): (Vec<_>, Vec<_>) = (
        command.get_args().take_while(|arg| *arg != "--").map(ToOwned::to_owned).collect(),
        command.get_args().skip_while(|arg| *arg != "--").skip(1).map(ToOwned::to_owned).collect(),
    );
    let mut script = HYPERTRACE.command(own);
    script.args(["--", "sh", "-c", r#""$0" "$@"; "$0" "$@"; exec "$0" "$@""#]).args(program);
    script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));

    assert_eq!(run(&mut script).code, Some(0));

    let session = dir.path().join("S");
    assert_eq!(notes.get(0), 3);
    assert_eq!((count(&session, "committed"), count(&session, "alive")), (3, 1));
    assert_eq!(count(&session, "deadly"), 0);
    assert_eq!(HYPERTRACE.info(&session)["total"]["faults_total"], 0);
    if let Some(read) = babeltrace2::read(&session.join("ctf")) {
        assert_eq!(read.clean(), packets::committed(&session).unwrap().all());
    }
}

#[test]
fn events_of_threads_without_a_free_client_are_counted() {
    if let Some(notes) = notes() {
        hypertrace::open(&hypertrace::Options::default()).unwrap();
        let all = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    hypertrace::event!("tried");
                    all.wait();
                });
            }
        });
        notes.set(0, hypertrace::counts().unattached);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut command, notes) = run_test(dir.path(), &["--clients", "2"], this_test!());

    run(&mut command).ok();

    assert_eq!((count(&dir.path().join("S"), "tried"), notes.get(0)), (2, 2));
}

#[test]
fn a_dead_host_costs_one_second_once() {
    if let Some(notes) = notes() {
        let point = || {
            let begin = Instant::now();
            let reply = hypertrace::reference_point!("point").unwrap();
            (reply.status, begin.elapsed().as_millis() as u64)
        };
        assert_eq!(point().0, hypertrace::Status::Recorded);
        notes.set(0, std::process::id().into());
        notes.wait(1, 1);
        let (first, second) = (point(), point());
        assert_eq!([first.0, second.0], [hypertrace::Status::Failed; 2]);
        assert_eq!(hypertrace::counts().unanswered, 2);
        notes.set(2, first.1);
        notes.set(3, second.1);
        notes.set(4, 1);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut command, notes) = run_test(dir.path(), &[], this_test!());
    let mut running = command.stdout(Stdio::null()).spawn().unwrap();
    notes.wait(0, 1);

    running.kill().unwrap();
    running.wait().unwrap();
    notes.set(1, 1);
    notes.wait(4, 1);

    assert!((1000..3000).contains(&notes.get(2)), "{} ms", notes.get(2));
    assert!(notes.get(3) < 100, "{} ms", notes.get(3));
}

#[test]
fn a_truncated_segment_ends_run_with_a_message_and_the_drained_events() {
    if let Some(segment) = traced::argument() {
        for n in 0..1000u64 {
            assert_eq!(hypertrace::commit!("committed", n), Emit::Recorded);
        }
        // Waits until the events are drained.
        std::thread::sleep(Duration::from_millis(200));
        File::options().write(true).open(segment).unwrap().set_len(0).unwrap();
        // The error appears at once or at the library's next check.
        std::thread::sleep(Duration::from_secs(2));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (segment, out) = (dir.path().join("segment"), dir.path().join("S"));
    let mut command = HYPERTRACE.command(["record", "--quiet", "--clients", "4", "--segment"]);
    command.arg(&segment).arg("-o").arg(&out);
    traced::program(&mut command, this_test!(), segment.to_str().unwrap());

    let told = run(&mut command).failed(1);

    assert!(told.contains(segment.to_str().unwrap()), "{told}");
    assert!(told.contains("was cut off while it was in use"), "{told}");
    assert_eq!(count(&out, "committed"), 1000);
    assert_eq!(HYPERTRACE.info(&out)["finished"], false);
}

#[test]
fn an_invalid_segment_is_reported_and_events_are_off() {
    if let Some(wrong) = traced::argument() {
        let why = hypertrace::open(&hypertrace::Options::default()).unwrap_err().to_string();
        assert!(why.contains(&wrong) && why.contains("HYPERTRACE_SEGMENT"), "{why}");
        hypertrace::event!("nowhere");
        assert_eq!(hypertrace::commit!("nowhere"), Emit::Unleased);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 1 << 17]).unwrap();
    for wrong in [Path::new("/nowhere/segment"), &file] {
        let mut program = Command::new("-");
        traced::program(&mut program, this_test!(), wrong.to_str().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(program.get_args().skip(2)).env("HYPERTRACE_SEGMENT", wrong);
        command.env("HYPERTRACE_TEST_PROGRAM", wrong);
        assert_eq!(run(&mut command).code, Some(0));
    }
    let recover =
        |segment: &Path| run(HYPERTRACE.command(["recover"]).arg(segment).arg(dir.path()));
    assert!(recover(&file).failed(2).contains("is not a segment"));
    assert!(recover(Path::new("/nowhere/segment")).failed(2).contains("cannot open"));
}
