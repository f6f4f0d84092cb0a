//! Each thread's system calls. A filter ends the process at any other call.
//!
//! The code is unsafe because it sets an option of the C library's allocator.
#![allow(unsafe_code)]

use hypertrace_test_support::steps::Steps;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use event_manager::{EventManager, SubscriberOps};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::drain::REST;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_device::adapter::event_manager::DrainLoop;
use hypertrace_device::{DrainPolicy, Region};
use hypertrace_tests::babeltrace2;
use hypertrace_trace::ctf::stream::DEFAULT_FILE_BYTES;
use hypertrace_trace::monitor::socket::connect;
use hypertrace_trace::receive::receive;
use hypertrace_trace::{Destination, Session, SessionConfig, Share, Summary};
use hypertrace_vmm::{Chip, DeviceConfig, Drain, Geometry, Hypertrace, syscalls};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// Restricts the calling thread to the calls of these lists. Any other call ends the process.
fn allow(lists: &[&[i64]]) -> io::Result<()> {
    // As docs/vmm.md says, an arena that shrinks makes the allocator open a file. SAFETY: the call sets a
    // number that the allocator reads.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) };
    let rules = lists.iter().copied().flatten().map(|call| (*call, vec![])).collect();
    apply(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

/// Makes these calls of the calling thread fail with EPERM.
fn refuse(calls: &[libc::c_long]) -> io::Result<()> {
    let rules = calls.iter().map(|call| (*call, vec![])).collect();
    apply(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// Applies a filter to the calling thread.
fn apply(
    rules: BTreeMap<libc::c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> io::Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, others, these, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

#[test]
fn the_document_says_which_thread_has_each_list() {
    let document = include_str!("../../docs/vmm.md");
    let rows = document.lines().filter(|line| line.starts_with('|')).collect::<String>();
    for (name, _) in syscalls::BY_NAME {
        assert!(rows.contains(&format!("`{name}`")), "not in docs/vmm.md: {name}");
    }
    assert!(syscalls::BY_NAME.contains(&("VCPU", &["write"])));
}

#[test]
fn a_thread_that_frees_much_opens_no_file() {
    let freed = thread::spawn(|| {
        allow(&[syscalls::RUNTIME]).unwrap();
        // The blocks are in an arena; the allocator would map larger blocks one by one.
        drop([0; 64].map(|_: i32| vec![1u8; 32 << 10]));
    });
    freed.join().unwrap();
}

/// Sends a command to a session's monitor. Returns the reply.
fn ask(session: &Path, command: &str) -> String {
    let mut stream = connect(session, Duration::from_secs(60)).unwrap();
    writeln!(stream, "{command}").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Number of clients of the device.
const CLIENTS: u32 = 3;
/// Number of reference points of each vCPU, enough to fill several files of the smallest size.
const POINTS: u64 = 20_000;

/// Lock that a test holds while it uses a session, because two sessions that are created at the same time
/// wait for each other.
static ALONE: Mutex<()> = Mutex::new(());

/// System calls that a thread with a filter makes to install a second filter.
const FILTER: &[i64] = &[libc::SYS_seccomp, libc::SYS_prctl];

/// Starts a device, drains it, and runs vCPUs. Each thread may make only the system calls in its lists.
fn run(start: &'static [i64], drain: &'static [i64], config: SessionConfig) -> Summary {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = thread::spawn(move || {
        // The drain thread inherits this filter.
        allow(&[start, syscalls::START, drain, syscalls::RUNTIME, FILTER]).unwrap();
        let filter = Box::new(move || allow(&[drain, syscalls::RUNTIME]));
        let geometry = Geometry { clients: CLIENTS, ..Geometry::default() };
        let drain = Drain::Thread(filter);
        let device = DeviceConfig::new(CLIENTS).with(|config| {
            config.geometry = geometry;
            config.drain = drain;
        });
        Hypertrace::start(config, device).unwrap()
    });
    let hypertrace = start.join().unwrap();

    let vcpus: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (chip, session) = (Arc::clone(hypertrace.chip()), hypertrace.session().clone());
            thread::spawn(move || {
                assert!(session.attach("vcpu"));
                allow(&[syscalls::VCPU, syscalls::RUNTIME]).unwrap();
                run_vcpu(&chip, &session, client)
            })
        })
        .collect();
    let recorded: u64 = vcpus.into_iter().map(|vcpu| vcpu.join().unwrap()).sum();

    let end = thread::spawn(move || {
        allow(&[syscalls::RESET_SAVE_FINISH, drain, syscalls::RUNTIME]).unwrap();
        let saved = hypertrace.save().unwrap();
        hypertrace.chip().reset();
        hypertrace.load(&saved).unwrap();
        hypertrace.finish().unwrap()
    });
    let summary = end.join().unwrap();
    let events = summary.reference_points + summary.host_events;
    assert_eq!((events, summary.lost), (recorded, 0), "{summary:?}");
    summary
}

/// Returns a configuration whose session begins several files while it runs. No path of this process leads to
/// the session's directory.
fn config() -> SessionConfig {
    SessionConfig::new("/gone/session").with(|config| config.file_bytes = DEFAULT_FILE_BYTES / 64)
}

/// Asserts that a session began files while it ran, and that the files have all of its records.
fn check(dir: &Path, summary: &Summary) {
    let ctf = dir.join("ctf");
    let files = std::fs::read_dir(&ctf).unwrap().count();
    assert!(files > CLIENTS as usize + 1, "files were begun while it ran: {files}");
    if let Some(count) = babeltrace2::count(&ctf) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn each_thread_makes_the_system_calls_of_its_lists() {
    let dir = tempfile::tempdir().unwrap();
    let jail: OwnedFd = File::open(dir.path()).unwrap().into();

    let summary = run(
        syscalls::START_DIR_FD,
        syscalls::DRAIN,
        config().with(|config| config.destination = Destination::Fd(jail, "/gone/session".into())),
    );

    check(dir.path(), &summary);
}

#[test]
fn a_start_by_a_path_makes_the_system_calls_of_its_list() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name| {
        config().with(|config| config.destination = Destination::Path(dir.path().join(name)))
    };
    std::fs::create_dir(dir.path().join("empty")).unwrap();

    for name in ["new", "empty"] {
        let summary = run(syscalls::START_DIR, syscalls::DRAIN, config(name));

        check(&dir.path().join(name), &summary);
    }
}

#[test]
fn an_end_that_cannot_write_counts_what_is_missing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let config = DeviceConfig::new(CLIENTS).with(|config| config.drain = Drain::Later);
    let hypertrace = Hypertrace::start(SessionConfig::new(dir.path()), config).unwrap();
    let session = hypertrace.session().clone();
    for i in 0..100u64 {
        assert_eq!(session.emit(event_type!("e", i)), Emit::Recorded);
    }

    let end = thread::spawn(move || {
        refuse(&[libc::SYS_pwrite64]).unwrap();
        hypertrace.finish()
    });
    let ended = end.join().unwrap();

    assert!(ended.is_err(), "{ended:?}");
    let summary = session.summary();
    assert_eq!(summary.host_events + summary.lost, 100, "{summary:?}");
}

#[test]
fn an_event_loop_makes_the_system_calls_of_its_lists() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let session = SessionConfig::new(dir.path()).with(|config| config.file_bytes = 1 << 20);
    let config = DeviceConfig::new(CLIENTS).with(|config| config.drain = Drain::Later);
    let hypertrace = Hypertrace::start(session, config).unwrap();
    let (chip, kick) = (Arc::clone(hypertrace.chip()), hypertrace.device().kick().clone());
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let event_loop = thread::spawn(move || {
        let subscriber = DrainLoop::new(chip, kick, DrainPolicy::default()).unwrap();
        let mut manager = EventManager::new().unwrap();
        manager.add_subscriber(subscriber);
        allow(&[syscalls::EVENT_LOOP, syscalls::DRAIN, syscalls::RUNTIME]).unwrap();
        while !ends.load(Relaxed) {
            manager.run_with_timeout(20).unwrap();
        }
    });

    let recorded = run_vcpu(hypertrace.chip(), hypertrace.session(), 0);
    // Meanwhile, the event loop stops its timer, and starts it again.
    thread::sleep(4 * REST);
    let more = run_vcpu(hypertrace.chip(), hypertrace.session(), 0);
    is_over.store(true, Relaxed);
    event_loop.join().unwrap();

    let summary = hypertrace.finish().unwrap();
    let events = summary.reference_points + summary.host_events;
    assert_eq!((events, summary.lost), (recorded + more, 0), "{summary:?}");
}

#[test]
fn a_monitor_makes_the_system_calls_of_its_lists() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig::new(dir.path().join("session"));
    let session = Session::create(config).unwrap();
    let path = session.dir().to_owned();

    let serve = thread::spawn(move || {
        allow(&[syscalls::SERVE, syscalls::RUNTIME, FILTER]).unwrap();
        let filter = || allow(&[syscalls::MONITOR, syscalls::RUNTIME]);
        (session.serve_after(filter).unwrap(), session)
    });
    let (monitor, session) = serve.join().unwrap();
    let commands = ["trace-event * on", "stat", "trigger add point:x event:y:on", "help"];
    let answers = commands.map(|command| ask(&path, command));
    let end = thread::spawn(move || {
        allow(&[syscalls::SERVE_END, syscalls::RUNTIME]).unwrap();
        drop(monitor);
    });
    end.join().unwrap();

    assert!(!path.join("control.sock").exists());
    assert!(answers.iter().all(|answer| !answer.is_empty()), "{answers:?}");
    session.finish().unwrap();
}

#[test]
fn a_file_that_a_filter_refuses_to_create_is_a_failed_write() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    let emitted = Barrier::new(2);
    let emit = || {
        assert!(session.attach("vmm"));
        session.emit(event_type!("tick", n = 1u32));
        // All threads live until the end, so that no thread takes over another thread's ring.
        emitted.wait();
    };
    thread::scope(|scope| {
        [scope.spawn(emit), scope.spawn(emit)].map(|thread| thread.join().unwrap())
    });

    let clone = session.clone();
    let refused = thread::spawn(move || {
        refuse(&[libc::SYS_openat]).unwrap();
        clone.begin_pass();
        clone.end_pass();
        clone.summary()
    });
    let refused = refused.join().unwrap();
    let summary = session.finish().unwrap();

    assert_eq!((refused.host_events, refused.write_failures), (0, 2), "{refused:?}");
    assert_eq!((summary.host_events, summary.lost), (2, 0), "{summary:?}");
}

#[test]
fn threads_with_a_journal_open_no_file() {
    let (to, mut from) = UnixStream::pair().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let receiver = thread::spawn(move || receive(&mut from, &path, Share::Owner));

    let config =
        config().with(|config| config.destination = Destination::Journal(to.into(), "J".into()));
    let summary = run(syscalls::START_JOURNAL, syscalls::DRAIN_JOURNAL, config);

    receiver.join().unwrap().unwrap();
    check(dir.path(), &summary);
}

#[test]
fn threads_with_a_journal_whose_reader_is_gone_make_no_other_system_calls() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (from, to) = UnixStream::pair().unwrap();
    let session = Session::create(
        config().with(|config| config.destination = Destination::Journal(to.into(), "J".into())),
    )
    .unwrap();
    drop(from);
    let (gone, to) = UnixStream::pair().unwrap();
    drop(gone);
    let second =
        config().with(|config| config.destination = Destination::Journal(to.into(), "J".into()));

    let failures = thread::spawn(move || {
        assert!(session.attach("drain"));
        allow(&[
            syscalls::START,
            syscalls::START_JOURNAL,
            syscalls::DRAIN_JOURNAL,
            syscalls::RUNTIME,
        ])
        .unwrap();
        assert!(Session::create(second).is_err());
        session.emit(event_type!("lost", n = 1u32));
        session.begin_pass();
        session.end_pass();
        session.summary().write_failures
    });

    assert!(failures.join().unwrap() > 0);
}

#[test]
fn a_start_whose_journal_cannot_be_is_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (gone, to) = UnixStream::pair().unwrap();
    drop(gone);
    let no_socket: OwnedFd = File::create("/dev/null").unwrap().into();
    let configs = [to.into(), no_socket].map(|journal| {
        config().with(|config| config.destination = Destination::Journal(journal, "J".into()))
    });

    let failed = thread::spawn(move || {
        allow(&[syscalls::START, syscalls::START_JOURNAL, syscalls::RUNTIME]).unwrap();
        configs.map(|config| Session::create(config).is_err())
    });

    assert_eq!(failed.join().unwrap(), [true, true]);
}

/// Makes reference points and the VMM's own events. Returns the number of records.
fn run_vcpu(chip: &Chip, session: &Session, client: u32) -> u64 {
    let legacy = u64::from(client) * 8;
    let mut recorded = 0;
    for n in 0..POINTS {
        // A host ring never waits.
        while !session.has_room(8, 64) {
            std::hint::spin_loop();
        }
        let emitted = session.emit(event_type!("exit", n, at = ticks()));
        recorded += u64::from(emitted == Emit::Recorded);
        chip.write(Region::Control, legacy, &n.to_le_bytes());
        recorded += 1;
    }
    chip.write(Region::Control, chip.geometry().kick_offset(), &[0; 8]);
    recorded
}
