//! Each thread's system calls: a filter that allows no others ends the process.
//!
//! The lists are read from docs/vmm.md.
//!
//! Unsafe, because it sets an option of the C library's allocator.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::register;
use hypertrace_abi::ring::Emit;
use hypertrace_abi::sink::EventSink;
use hypertrace_device::{Chip, ChipConfig, DrainPolicy, DrainWaker, Geometry, Memory, Region};
use hypertrace_tests::babeltrace2;
use hypertrace_trace::ctf::stream::DEFAULT_FILE_BYTES;
use hypertrace_trace::receive::receive;
use hypertrace_trace::{Session, SessionConfig, Share, Summary};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

macro_rules! calls {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

/// The system calls in the table of docs/vmm.md.
const CALLS: &[(&str, libc::c_long)] = &calls![
    SYS_statx SYS_prctl SYS_openat SYS_fstat SYS_fchmod SYS_flock SYS_mkdirat SYS_getdents64 SYS_unlinkat
    SYS_renameat SYS_pwrite64 SYS_read SYS_close SYS_geteuid SYS_prlimit64 SYS_getrandom
    SYS_clock_gettime SYS_clock_nanosleep SYS_epoll_wait SYS_epoll_pwait SYS_ftruncate SYS_renameat2
    SYS_pread64 SYS_lseek SYS_getsockopt SYS_setsockopt SYS_ppoll SYS_write SYS_sendto
    SYS_rt_sigtimedwait SYS_fcntl SYS_futex SYS_mmap SYS_mremap SYS_munmap SYS_madvise SYS_mprotect
    SYS_brk SYS_rt_sigprocmask SYS_sigaltstack SYS_rseq SYS_exit
];

/// Restricts the calling thread to the calls of these rows of the table in docs/vmm.md: any other ends the
/// process with SIGSYS.
fn allow(rows: &[&str]) -> io::Result<()> {
    // As docs/vmm.md says: an arena that shrinks makes the allocator open a file.
    // SAFETY: it sets a number that the allocator reads.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) };
    let calls = rows.iter().flat_map(|row| documented(row));
    let rules = calls.map(|call| (call, vec![])).collect();
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

/// Returns the calls in a row of the table of docs/vmm.md.
fn documented(thread: &str) -> Vec<libc::c_long> {
    let start = format!("| {thread} | `");
    let rows = include_str!("../../docs/vmm.md").lines();
    let mut table = rows.skip_while(|line| !line.starts_with("| thread | system calls |"));
    let row = table.find_map(|row| row.strip_prefix(&start)).expect(thread);
    let names = row.trim_end_matches("` |").split("` `");
    let call = |name| CALLS.iter().find(|(known, _)| known.strip_prefix("SYS_") == Some(name));
    names.map(|name| call(name).expect(name).1).collect()
}

#[test]
fn a_thread_that_frees_much_opens_no_file() {
    let freed = thread::spawn(|| {
        allow(&["runtime"]).unwrap();
        // Blocks of an arena; larger ones are mapped alone.
        drop([0; 64].map(|_: i32| vec![1u8; 32 << 10]));
    });
    freed.join().unwrap();
}

/// Clients of the device.
const CLIENTS: u32 = 3;
/// Reference points of each vCPU, enough to fill several files of the smallest size.
const POINTS: u64 = 20_000;

/// Held while a session is used: two that are created at the same time wait for each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Creates a session, drains it and runs vCPUs, each on a thread that makes the calls of its list only.
fn run(create: &'static str, drain: &'static str, config: SessionConfig) -> Summary {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let create = thread::spawn(move || {
        allow(&[create, "runtime"]).unwrap();
        Session::create(config).unwrap()
    });
    let session = create.join().unwrap();
    let kick = EventFd::new(EFD_NONBLOCK).unwrap();
    let geometry = Geometry { clients: CLIENTS, ..Geometry::default() };
    let config = ChipConfig { kick_is_cheap: true, vcpu_clients: CLIENTS, ..ChipConfig::default() };
    let memory = Memory::anonymous(geometry).unwrap();
    let waker = kick.try_clone().unwrap();
    let chip = Arc::new(Chip::new(memory, &config, session.clone(), waker));
    let wake = kick.try_clone().unwrap();
    session.wake_by(move || wake.wake());
    let filter = move || allow(&[drain, "runtime"]);
    let drain = chip.drain_thread(&kick, DrainPolicy::default(), filter).unwrap();

    let vcpus: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (chip, session) = (Arc::clone(&chip), session.clone());
            thread::spawn(move || {
                assert!(session.attach("vcpu"));
                allow(&["vCPU", "runtime"]).unwrap();
                run_vcpu(&chip, &session, client)
            })
        })
        .collect();
    let recorded: u64 = vcpus.into_iter().map(|vcpu| vcpu.join().unwrap()).sum();

    drain.finish();
    let summary = session.finish().unwrap();
    let events = summary.reference_points + summary.host_events;
    assert_eq!((events, summary.lost), (recorded, 0), "{summary:?}");
    summary
}

/// Returns a configuration for several files while it runs. The process cannot find the directory by any path.
fn config() -> SessionConfig {
    SessionConfig { file_bytes: DEFAULT_FILE_BYTES / 64, ..SessionConfig::new("/gone/session") }
}

/// Asserts that files were begun while a session ran, and that all its records are in them.
fn check(dir: &Path, summary: &Summary) {
    let ctf = dir.join("ctf");
    let files = std::fs::read_dir(&ctf).unwrap().count();
    assert!(files > CLIENTS as usize + 1, "files were begun while it ran: {files}");
    if let Some(count) = babeltrace2::count(&ctf) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn each_thread_makes_the_system_calls_that_it_is_documented_to_make() {
    let dir = tempfile::tempdir().unwrap();
    let jail: OwnedFd = File::open(dir.path()).unwrap().into();

    let summary = run("start", "drain", SessionConfig { dir_fd: Some(jail), ..config() });

    check(dir.path(), &summary);
}

/// Returns the number of files in the trace of a session, none of them hidden.
fn files(dir: &Path) -> usize {
    let names = ["", "ctf"].into_iter().flat_map(|folder| {
        let entries = std::fs::read_dir(dir.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
    });
    let names: Vec<String> = names.collect();
    assert!(!names.iter().any(|name| name.starts_with('.')), "{names:?}");
    names.len()
}

#[test]
fn a_drain_thread_with_spare_files_creates_and_opens_none() {
    let dir = tempfile::tempdir().unwrap();
    let jail: OwnedFd = File::open(dir.path()).unwrap().into();
    let (dir_fd, spare_files) = (Some(jail), 2 * CLIENTS as usize + 1);
    let file_bytes = DEFAULT_FILE_BYTES;
    // The spare files are open anyway, so they count more than this.
    let open_files = 1;
    let config = SessionConfig { dir_fd, spare_files, open_files, file_bytes, ..config() };

    let summary = run("start, spare files", "drain, spare files", config);

    assert!(files(dir.path()) > CLIENTS as usize);
    if let Some(count) = babeltrace2::count(&dir.path().join("ctf")) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn a_file_that_a_filter_refuses_to_create_is_a_failed_write() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig { spare_files: 1, ..SessionConfig::new(dir.path()) };
    let session = Session::create(config).unwrap();
    let emitted = Barrier::new(2);
    let emit = || {
        assert!(session.attach("vmm"));
        session.emit(event_type!("tick", n = 1u32));
        // No thread takes over another's ring.
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

    assert_eq!((refused.host_events, refused.write_failures), (1, 1), "{refused:?}");
    assert_eq!((summary.host_events, summary.lost), (2, 0), "{summary:?}");
}

/// Runs threads that open no file, with a journal that is written here and read there.
fn run_with_journal(to: impl Into<OwnedFd>, mut from: impl Read + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let receiver = thread::spawn(move || receive(&mut from, &path, Share::Owner));

    let config = SessionConfig { journal: Some(to.into()), ..config() };
    let summary = run("start, journal", "drain, journal", config);

    receiver.join().unwrap().unwrap();
    check(dir.path(), &summary);
}

#[test]
fn threads_with_a_journal_in_a_socket_open_no_file() {
    let (to, from) = UnixStream::pair().unwrap();
    run_with_journal(to, from);
}

#[test]
fn threads_with_a_journal_in_a_pipe_open_no_file() {
    let (from, to) = io::pipe().unwrap();
    run_with_journal(to, from);
}

#[test]
fn threads_with_a_journal_in_a_file_open_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = File::create(&path).unwrap();

    let config = SessionConfig { journal: Some(journal.into()), ..config() };
    let summary = run("start, journal", "drain, journal", config);

    let session = dir.path().join("session");
    receive(&mut File::open(path).unwrap(), &session, Share::Owner).unwrap();
    check(&session, &summary);
}

#[test]
fn threads_with_a_journal_whose_reader_is_gone_make_no_other_system_calls() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (from, to) = io::pipe().unwrap();
    let session = Session::create(SessionConfig { journal: Some(to.into()), ..config() }).unwrap();
    drop(from);
    let (gone, to) = io::pipe().unwrap();
    drop(gone);
    let second = SessionConfig { journal: Some(to.into()), ..config() };

    let failures = thread::spawn(move || {
        assert!(session.attach("drain"));
        allow(&["start, journal", "drain, journal", "runtime"]).unwrap();
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
    let (gone, to) = io::pipe().unwrap();
    drop(gone);
    let unreadable: OwnedFd = File::open("/dev/null").unwrap().into();
    let configs =
        [to.into(), unreadable].map(|journal| SessionConfig { journal: Some(journal), ..config() });

    let failed = thread::spawn(move || {
        allow(&["start, journal", "runtime"]).unwrap();
        configs.map(|config| Session::create(config).is_err())
    });

    assert_eq!(failed.join().unwrap(), [true, true]);
}

/// Makes reference points and events of the VMM's own. Returns the number of records.
fn run_vcpu<T: DrainWaker>(chip: &Chip<Session, T>, session: &Session, client: u32) -> u64 {
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
    chip.write(Region::Control, chip.geometry().control_pages_offset() + register::KICK, &[0; 8]);
    recorded
}
