//! Each thread's system calls: a filter that allows no others ends the process.
//!
//! The lists are those of docs/vmm.md.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::register;
use hypertrace_abi::ring::Emit;
use hypertrace_device::{Chip, ChipConfig, DrainPolicy, DrainWaker, Geometry, Memory, Region};
use hypertrace_tests::babeltrace2;
use hypertrace_trace::ctf::stream::DEFAULT_FILE_BYTES;
use hypertrace_trace::{Session, SessionConfig};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A system call: the name of its number, and the number.
type Call = (&'static str, libc::c_long);

macro_rules! calls {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), libc::$name)),*] };
}

/// System calls of the thread that creates a session: in a directory that is open.
const CREATE: &[Call] = calls![
    SYS_statx,
    SYS_prctl,
    SYS_openat,
    SYS_fstat,
    SYS_fchmod,
    SYS_mkdirat,
    SYS_getdents64,
    SYS_unlinkat,
    SYS_renameat,
    SYS_pwrite64,
    SYS_read,
    SYS_close,
    SYS_geteuid,
    SYS_prlimit64,
    SYS_getrandom,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
];

/// System calls of the drain loop's thread.
const DRAIN: &[Call] = calls![
    SYS_fstat,
    SYS_getrandom,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_read,
    SYS_openat,
    SYS_fchmod,
    SYS_ftruncate,
    SYS_pwrite64,
    SYS_renameat,
    SYS_unlinkat,
    SYS_close,
    SYS_prlimit64,
    SYS_clock_gettime,
    SYS_futex,
];

/// System calls of a vCPU's thread for the device, once it is attached to the session: it wakes
/// the drain loop.
const VCPU: &[Call] = calls![SYS_write];

/// System calls of Rust and the C library: memory, and the end of a thread.
const RUNTIME: &[Call] = calls![
    // Of a debug build, which checks a descriptor before it closes it.
    SYS_fcntl,
    SYS_mmap,
    SYS_mremap,
    SYS_munmap,
    SYS_madvise,
    SYS_mprotect,
    SYS_brk,
    SYS_rt_sigprocmask,
    SYS_sigaltstack,
    SYS_rseq,
    SYS_exit,
];

/// Restricts the calling thread to these calls: any other ends the process with SIGSYS.
fn allow(lists: &[&[Call]]) -> io::Result<()> {
    let rules: BTreeMap<_, _> =
        lists.concat().into_iter().map(|(_, call)| (call, vec![])).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let (others, these) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter = SeccompFilter::new(rules, others, these, arch).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

/// Returns the calls in a row of the table of docs/vmm.md.
fn documented(thread: &str) -> Vec<&'static str> {
    let start = format!("| {thread} | `");
    let rows = include_str!("../../docs/vmm.md").lines();
    let mut table = rows.skip_while(|line| !line.starts_with("| thread | system calls |"));
    let row = table.find_map(|row| row.strip_prefix(&start)).expect(thread);
    row.trim_end_matches("` |").split("` `").collect()
}

#[test]
fn the_document_for_vmms_has_these_system_calls() {
    for (thread, calls) in
        [("start", CREATE), ("drain", DRAIN), ("vCPU", VCPU), ("runtime", RUNTIME)]
    {
        let names: Vec<_> = calls.iter().map(|(name, _)| name.trim_start_matches("SYS_")).collect();
        assert_eq!(documented(thread), names, "{thread}");
    }
}

/// Clients of the device.
const CLIENTS: u32 = 3;
/// Reference points of each vCPU, enough to fill several files of the smallest size.
const POINTS: u64 = 20_000;

#[test]
fn each_thread_makes_the_system_calls_that_it_is_documented_to_make() {
    let dir = tempfile::tempdir().unwrap();
    let jail: OwnedFd = File::open(dir.path()).unwrap().into();
    let create = thread::spawn(move || {
        allow(&[CREATE, RUNTIME]).unwrap();
        // The process cannot find the directory by any path.
        let config = SessionConfig { dir_fd: Some(jail), ..SessionConfig::new("/gone/session") };
        Session::create(SessionConfig { file_bytes: DEFAULT_FILE_BYTES / 64, ..config }).unwrap()
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
    let filter = || allow(&[DRAIN, RUNTIME]);
    let drain = chip.drain_thread(&kick, DrainPolicy::default(), filter).unwrap();

    let vcpus: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (chip, session) = (Arc::clone(&chip), session.clone());
            thread::spawn(move || {
                assert!(session.attach("vcpu"));
                allow(&[VCPU, RUNTIME]).unwrap();
                run_vcpu(&chip, &session, client)
            })
        })
        .collect();
    let recorded: u64 = vcpus.into_iter().map(|vcpu| vcpu.join().unwrap()).sum();

    drain.finish();
    let summary = session.finish().unwrap();
    let events = summary.reference_points + summary.host_events;
    assert_eq!((events, summary.lost), (recorded, 0), "{summary:?}");
    let files = std::fs::read_dir(dir.path().join("ctf")).unwrap().count();
    assert!(files > CLIENTS as usize + 1, "files were begun while it ran: {files}");
    if let Some(count) = babeltrace2::count(&dir.path().join("ctf")) {
        assert_eq!(count, summary.records);
    }
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
