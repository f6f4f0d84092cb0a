//! Failing system calls: a disk with errors, interruptions and partial writes, at random.
//!
//! This module uses seccomp's user notification, because rustix's calls bypass libc. A supervisor answers the
//! system calls of a thread, and of the threads that this thread starts. The supervisor is another thread of
//! this process, so it has the same descriptors. Calls with an absolute path, or with a path relative to the
//! working directory, are let through: a session's own calls are relative to its directory.
//!
//! The code is unsafe because std has none of these calls.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use libc::{EINTR, EIO, EMFILE, ENOSPC, c_int, c_long};

use crate::capability;
use crate::random::Random;

/// Calls that may fail.
const CALLS: [c_long; 7] = [
    libc::SYS_pwrite64,
    libc::SYS_openat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_ftruncate,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
];

/// Number of interruptions in a row that a storm makes. No caller tolerates so many.
const STORM: u64 = 250;

/// Settings and counts of the failures.
#[derive(Debug)]
pub struct Faults {
    random: Mutex<Random>,
    /// One call in this many fails; 0: no call fails.
    one_of: AtomicU64,
    /// Number of next calls to interrupt.
    storm: AtomicU64,
    /// Number of calls answered with an error that the caller has to report.
    errors: AtomicU64,
    /// Number of writes that were done in part.
    partial: AtomicU64,
    stop: AtomicBool,
}

/// Answer to a call.
enum Answer {
    Go,
    Fail(c_int),
    /// The supervisor does a part of the write. The call then returns the length of this part, or an error.
    Part(u64, Option<c_int>),
}

impl Faults {
    /// Makes settings without failures.
    pub fn new(random: Random) -> Faults {
        Faults {
            random: Mutex::new(random),
            one_of: AtomicU64::new(0),
            storm: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Lets one call in `one_of` fail from now on.
    pub fn begin(&self, one_of: u64) {
        self.one_of.store(one_of, Relaxed);
    }

    /// Lets no call fail from now on.
    pub fn end(&self) {
        self.one_of.store(0, Relaxed);
        self.storm.store(0, Relaxed);
    }

    /// Returns whether calls may fail.
    pub fn is_on(&self) -> bool {
        self.one_of.load(Relaxed) > 0
    }

    /// Returns the number of calls that failed with an error that the caller has to report.
    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Returns the number of writes that were done in part.
    pub fn partial(&self) -> u64 {
        self.partial.load(Relaxed)
    }

    /// Runs `body` on a thread whose calls may fail. Calls of the threads that `body` starts may fail, too;
    /// these threads have to end before `body`. Returns `None`, with a report, if the kernel does not support
    /// this.
    #[track_caller]
    pub fn run<R: Send>(&self, body: impl FnOnce() -> R + Send) -> Option<R> {
        let (sender, receiver) = mpsc::channel();
        self.stop.store(false, Relaxed);
        let ran = thread::scope(|scope| {
            scope.spawn(move || receiver.recv().map(|listener: OwnedFd| self.supervise(&listener)));
            let run = move || {
                // If `listen` fails, then the supervisor gets no listener and ends.
                let listener = listen()?;
                let sent = sender.send(listener);
                drop(sender);
                sent.map(|()| body()).map_err(io::Error::other)
            };
            let ran = scope.spawn(run).join();
            self.stop.store(true, Relaxed);
            ran
        });
        match ran {
            Ok(Ok(done)) => {
                capability::used("seccomp-notify");
                Some(done)
            }
            Ok(Err(why)) => {
                capability::missing("seccomp-notify", why);
                None
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Answers calls until all threads that make them have ended.
    fn supervise(&self, listener: &OwnedFd) {
        let memory = File::open("/proc/self/mem").expect("this process has memory");
        while !self.stop.load(Relaxed) {
            let Some(asked) = receive(listener) else { continue };
            let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags: 0 };
            match self.choose(&asked.data) {
                Answer::Go => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                Answer::Fail(errno) => answer.error = -errno,
                Answer::Part(len, errno) => match write_part(&memory, &asked.data, len) {
                    Ok(done) => {
                        self.partial.fetch_add(1, Relaxed);
                        answer.val = done;
                        if let Some(errno) = errno {
                            (answer.val, answer.error) = (0, -errno);
                        }
                    }
                    Err(_) => answer.error = -EIO,
                },
            }
            // The caller has died.
            let _ = send(listener, &answer);
        }
    }

    fn choose(&self, call: &libc::seccomp_data) -> Answer {
        let is = |number: c_long| c_long::from(call.nr) == number;
        let one_of = self.one_of.load(Relaxed);
        let by_path = is(libc::SYS_openat) || is(libc::SYS_mkdirat);
        if one_of == 0 || by_path && call.args[0] as c_int == libc::AT_FDCWD {
            return Answer::Go;
        }
        if self.storm.load(Relaxed) > 0 {
            self.storm.fetch_sub(1, Relaxed);
            return Answer::Fail(EINTR);
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(one_of) != 0 {
            return Answer::Go;
        }
        let answer = match random.below(8) {
            0 => Answer::Fail(EINTR),
            1 => {
                self.storm.store(STORM, Relaxed);
                Answer::Fail(EINTR)
            }
            2 | 3 if is(libc::SYS_pwrite64) => Answer::Part(random.below(call.args[2]), None),
            4 | 5 if is(libc::SYS_pwrite64) => {
                let errno = random.pick(&[EIO, ENOSPC]);
                Answer::Part(random.below(call.args[2]), Some(errno))
            }
            6 if is(libc::SYS_openat) => Answer::Fail(EMFILE),
            _ => Answer::Fail(random.pick(&[EIO, ENOSPC])),
        };
        let fails =
            matches!(answer, Answer::Fail(errno) | Answer::Part(_, Some(errno)) if errno != EINTR);
        // At the session's end, calls other than writes and renames are tried again and may fail once more,
        // so their errors do not count.
        if fails && (is(libc::SYS_pwrite64) || is(libc::SYS_renameat) || is(libc::SYS_renameat2)) {
            self.errors.fetch_add(1, Relaxed);
        }
        answer
    }
}

/// Installs a filter, so that from now on this thread's calls wait for answers from the returned listener.
fn listen() -> io::Result<OwnedFd> {
    let statement = |code: u32, yes: u8, no: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    };
    let (load, equal, ret) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    // The call's number is at offset 0. Each taken jump leads to the last statement.
    let mut filter = vec![statement(load, 0, 0, 0)];
    for (n, call) in CALLS.iter().enumerate() {
        filter.push(statement(equal, (CALLS.len() - n) as u8, 0, *call as u32));
    }
    filter.push(statement(ret, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(ret, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the arguments are numbers, and a pointer to a program of the stated length, which lives longer
    // than the call.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program)
    };
    match listener {
        // SAFETY: the descriptor was just made, so nothing else owns it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(listener as c_int) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel refuse perf events to the command, as `kernel.perf_event_paranoid` 3 does.
pub fn without_perf(command: &mut Command) -> &mut Command {
    let refuse = || {
        let statement =
            |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let refusal = libc::SECCOMP_RET_ERRNO | libc::EACCES as u32;
        let mut filter = [
            // The call's number is at offset 0.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                libc::SYS_perf_event_open as u32,
            ),
            statement(libc::BPF_RET | libc::BPF_K, 0, refusal),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the arguments are numbers, and a pointer to a program of the stated length, which lives
        // longer than the call.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
        };
        if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: both calls may be made between fork and exec.
    unsafe { command.pre_exec(refuse) }
}

/// Receives the next call, if a call comes within 10 ms.
fn receive(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the first call writes one pollfd; the second fills a structure of plain data, which is
    // zeroed as required.
    unsafe {
        if libc::poll(&mut poll, 1, 10) != 1 || poll.revents & libc::POLLIN == 0 {
            return None;
        }
        let mut asked: libc::seccomp_notif = std::mem::zeroed();
        let got = libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut asked);
        (got == 0).then_some(asked)
    }
}

fn send(listener: &OwnedFd, answer: &libc::seccomp_notif_resp) -> io::Result<()> {
    // SAFETY: the call reads the structure, which lives through the call.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, answer) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes the first `len` bytes of a waiting write. Returns the number of bytes written.
fn write_part(memory: &File, call: &libc::seccomp_data, len: u64) -> io::Result<i64> {
    let [fd, address, _, at, ..] = call.args;
    let mut bytes = vec![0; len as usize];
    memory.read_exact_at(&mut bytes, address)?;
    // SAFETY: `bytes` has that length, and the call only reads it; the descriptor is open in this
    // process, because its writer waits.
    let written =
        unsafe { libc::pwrite(fd as c_int, bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as i64) }
}
