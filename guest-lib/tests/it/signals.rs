//! Signal handlers that emit in the middle of an emit, and signal handlers that jump out of an emit. The
//! tests use real timers, real signals and the real siglongjmp.
#![cfg(all(feature = "std", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use crate::common;
use common::{Host, alone};
use hypertrace::{counts, event};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const OUTER: &str = "outer(n:u64)";
const INNER: &str = "inner(n:u64,text:str)";

static OUTER_TRIED: AtomicU64 = AtomicU64::new(0);
static INNER_TRIED: AtomicU64 = AtomicU64::new(0);
static OTHERS_TRIED: AtomicU64 = AtomicU64::new(0);
static JUMPS: AtomicU64 = AtomicU64::new(0);
/// Number of signals after which a handler jumps; 0 if handlers never jump.
static JUMP_EVERY: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// Room for glibc's sigjmp_buf (200 bytes) or musl's.
#[repr(C, align(16))]
struct JumpBuffer([u64; 64]);

static mut JUMP: JumpBuffer = JumpBuffer([0; 64]);

unsafe extern "C" {
    fn siglongjmp(to: *mut c_void, value: c_int) -> !;
    /// Calls `body`, and returns 0 when `body` returns, or 1 after a siglongjmp to `to`. Unlike sigsetjmp,
    /// this function returns once as far as the compiler can see.
    fn call_until_jump(to: *mut c_void, body: extern "C" fn()) -> c_int;
}

// Keeps the body's address in rbx, which sigsetjmp saves and siglongjmp restores, and keeps the stack
// aligned.
core::arch::global_asm!(
    ".globl call_until_jump",
    "call_until_jump:",
    "push rbx",
    "mov rbx, rsi",
    "mov esi, 1",
    "call __sigsetjmp@PLT",
    "test eax, eax",
    "jnz 2f",
    "call rbx",
    "xor eax, eax",
    "2:",
    "pop rbx",
    "ret",
);

extern "C" fn on_signal(_: c_int) {
    let n = SIGNALS.fetch_add(1, Relaxed) + 1;
    INNER_TRIED.fetch_add(1, Relaxed);
    event!("inner", n, text = "in a handler");
    let every = JUMP_EVERY.load(Relaxed);
    if every > 0 && n.is_multiple_of(every) {
        JUMPS.fetch_add(1, Relaxed);
        // SAFETY: these signals go only to the thread in `call_until_jump`, and the frames in between have
        // nothing to drop.
        unsafe { siglongjmp((&raw mut JUMP).cast(), 1) }
    }
}

extern "C" fn emit_until_stopped() {
    while !STOP.load(Relaxed) {
        let n = OUTER_TRIED.fetch_add(1, Relaxed);
        event!("outer", n);
        if n.is_multiple_of(8) {
            OTHERS_TRIED.fetch_add(1, Relaxed);
            event!("other");
        }
    }
}

fn handle(signal: c_int) {
    // SAFETY: the handler only emits, counts and jumps.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Starts a timer that sends SIGALRM to the calling thread every `period`.
fn start_timer(period: Duration) {
    // SAFETY: the structures are plain data; the timer lives as long as the process.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let tick = libc::timespec { tv_sec: 0, tv_nsec: period.as_nanos() as libc::c_long };
        let time = libc::itimerspec { it_interval: tick, it_value: tick };
        assert_eq!(libc::timer_settime(timer, 0, &time, std::ptr::null_mut()), 0);
    }
}

/// Blocks all signals on this thread. Without signals, the thread can end safely.
fn block_signals() {
    // SAFETY: `sigfillset` initializes the set before `pthread_sigmask` reads it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Returns true after at least two seconds, once `what` has reached `most`. A busy machine takes longer.
fn enough(start: Instant, what: &AtomicU64, most: u64) -> bool {
    let passed = start.elapsed();
    assert!(passed < Duration::from_secs(100), "{} of {most}", what.load(Relaxed));
    passed > Duration::from_secs(2) && what.load(Relaxed) >= most
}

fn tried() -> u64 {
    [&OUTER_TRIED, &INNER_TRIED, &OTHERS_TRIED].iter().map(|n| n.load(Relaxed)).sum()
}

#[test]
fn a_handler_amid_an_emit_is_recorded_or_counted() {
    alone(|| {
        let (mut host, _) = Host::install(8, 0, 1 << 20);
        handle(libc::SIGALRM);
        handle(libc::SIGUSR1);
        host.while_draining(|| {
            let worker = thread::spawn(|| {
                start_timer(Duration::from_millis(1));
                emit_until_stopped();
                block_signals();
            });
            // Sends signals at other times than the timer's, too.
            let start = Instant::now();
            while !enough(start, &SIGNALS, 5000) {
                use std::os::unix::thread::JoinHandleExt;
                // SAFETY: the thread is not joined yet.
                unsafe { libc::pthread_kill(worker.as_pthread_t(), libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(20));
            }
            STOP.store(true, Relaxed);
            worker.join().unwrap();
        });
        let losses = host.losses();
        let inner = host.seen.count(INNER);
        eprintln!(
            "signals {}: events {}, recorded {}, of handlers {inner}, lost busy {}, lost full {}, {:?}",
            SIGNALS.load(Relaxed),
            tried(),
            host.seen.total(),
            losses.busy,
            losses.full,
            counts(),
        );
        assert!(inner > 0 && losses.busy > 0, "both outcomes");
        assert_eq!(counts().unattached, 0);
        assert_eq!(host.seen.total() + losses.total(), tried());
        assert!(host.seen.count(OUTER) > inner);
        assert_eq!((host.seen.backwards, host.faults()), (0, vec![]));
    });
}

#[test]
fn a_thread_that_jumps_out_of_emits_gets_another_client() {
    alone(|| {
        let (mut host, memory) = Host::install(256, 0, 1 << 16);
        handle(libc::SIGALRM);
        JUMP_EVERY.store(17, Relaxed);
        host.while_draining(|| {
            let worker = thread::spawn(|| {
                start_timer(Duration::from_millis(1));
                // SAFETY: the buffer is this thread's alone.
                while unsafe { call_until_jump((&raw mut JUMP).cast(), emit_until_stopped) == 1 } {}
                block_signals();
            });
            let start = Instant::now();
            while !enough(start, &JUMPS, 100) {
                thread::sleep(Duration::from_millis(10));
            }
            STOP.store(true, Relaxed);
            worker.join().unwrap();
        });
        let (losses, counts) = (host.losses(), counts());
        let (recorded, lost) = (host.seen.total(), losses.total() + counts.unattached);
        let (tried, jumps) = (tried(), JUMPS.load(Relaxed));
        eprintln!(
            "jumps {jumps}: events {tried}, recorded {recorded}, lost {losses:?}, clients left \
                 {}, leases {}",
            counts.abandoned,
            host.seen.leases.len(),
        );
        assert!(recorded > 0 && losses.busy > 0, "both outcomes");
        assert!(counts.abandoned > 0);
        assert!(tried - jumps <= recorded + lost, "{tried} - {jumps} > {recorded} + {lost}");
        assert!(recorded + lost <= tried, "{recorded} + {lost} > {tried}");
        assert_eq!((host.seen.backwards, host.faults()), (0, vec![]));
        // The name of each later lease contains the client that the thread had before.
        for lease in host.seen.leases.iter().filter(|lease| lease.client > 0) {
            assert!(lease.name.contains("before on client"), "{}", lease.name);
        }
        // The thread has ended, so all its clients are free.
        assert!((0..256).all(|client| !common::is_locked(&memory, client)));
        let first = thread::spawn(|| hypertrace::with_client(|client| client.index()));
        assert_eq!(first.join().unwrap(), Some(0));
    });
}
