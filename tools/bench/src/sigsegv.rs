//! The user mode of the 2016 version, for comparison with the present user mode. An event is a store to a
//! protected page, and a handler of the signal that the store raises. This module is written by hand.
//!
//! A single page would trap only once, because the handler has to open the page so that the store completes.
//! Therefore the channel of 2016 had two pages: while one page was open, the other page was closed. An event
//! was a store to each page, and cost two signals and four `mprotect`s.
//!
//! Unsafe, because of mmap(2), mprotect(2) and a signal handler.
#![allow(unsafe_code)]

use super::child::{Child, TURNS};
use super::row::{Context, Row, row};
use super::timing::timed;
use anyhow::{Context as _, Result, bail, ensure};
use hypertrace::abi::clock::ticks;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

pub const ROWS: &[Row] =
    &[row("sigsegv_2016", event, "an event of the user mode of 2016, rebuilt").note(
        "A store to each of two protected pages, each of which raises SIGSEGV; the handler \
         opens one page and closes the other, and at the second writes a record of 32 bytes. \
         2 signals and 4 `mprotect`s an event, each event counted. In a child process.",
    )];

/// Largest page size of the supported machines in bytes.
const PAGE: usize = 64 * 1024;

/// First of two consecutive pages: the page to which an event's argument is stored.
static ARGUMENT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Number of signals for addresses outside of the two pages, plus the number of `mprotect`s that failed.
static WRONG: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Memory for the events' records, of 32 bytes each.
static RECORDS: [[AtomicU64; 4]; 1024] = [const { [const { AtomicU64::new(0) }; 4] }; 1024];
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// Measures an event in the user mode of 2016.
pub fn event(context: &mut Context) -> Result<f64> {
    context.resource(Child::of_this_program)?.ns("sigsegv")
}

/// Runs the measurement in the child. Returns ticks and turns.
pub fn measure() -> Result<(u64, u64)> {
    if ARGUMENT.load(Relaxed).is_null() {
        install()?;
    }
    let argument = ARGUMENT.load(Relaxed);
    let (signals, events) = (SIGNALS.load(Relaxed), EVENTS.load(Relaxed));
    let time = timed(TURNS, |n| {
        // SAFETY: the two pages belong to this module. The handler opens a page when a store to the page
        // faults. The stores are volatile, so that each store faults.
        unsafe {
            argument.cast::<u64>().write_volatile(n);
            argument.add(PAGE).cast::<u64>().write_volatile(n);
        }
    });
    let (signals, events) = (SIGNALS.load(Relaxed) - signals, EVENTS.load(Relaxed) - events);
    ensure!(WRONG.load(Relaxed) == 0, "a signal or an mprotect went wrong");
    ensure!(
        (signals, events) == (2 * TURNS, TURNS),
        "{signals} signals and {events} events of {TURNS}"
    );
    Ok((time, TURNS))
}

fn install() -> Result<()> {
    // SAFETY: the mapping is new and never unmapped. The handler is async-signal-safe, because mprotect(2) is
    // a bare system call.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            2 * PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("cannot map two pages");
        }
        ARGUMENT.store(at.cast(), Relaxed);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) != 0 {
            ARGUMENT.store(ptr::null_mut(), Relaxed);
            bail!("cannot handle SIGSEGV: {}", io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO this pointer.
    let address = unsafe { (*info).si_addr() } as usize;
    let argument = ARGUMENT.load(Relaxed);
    match address.wrapping_sub(argument as usize) {
        offset if offset < PAGE => {
            protect(argument, libc::PROT_READ | libc::PROT_WRITE);
            protect(argument.wrapping_add(PAGE), libc::PROT_READ);
        }
        offset if offset < 2 * PAGE => {
            let record = &RECORDS[EVENTS.fetch_add(1, Relaxed) as usize % RECORDS.len()];
            record[0].store(ticks(), Relaxed);
            // SAFETY: the page can be read, and this thread has stored to it.
            record[1].store(unsafe { argument.cast::<u64>().read_volatile() }, Relaxed);
            record[2].store(1, Relaxed);
            record[3].store(2, Relaxed);
            protect(argument, libc::PROT_READ);
            protect(argument.wrapping_add(PAGE), libc::PROT_READ | libc::PROT_WRITE);
        }
        _ => {
            // The fault is at another address. Without this handler, the fault ends the process.
            WRONG.fetch_add(1, Relaxed);
            // SAFETY: as in `install`.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        }
    }
    SIGNALS.fetch_add(1, Relaxed);
}

fn protect(page: *mut u8, protection: libc::c_int) {
    // SAFETY: the page belongs to this module, and only `measure` refers to it.
    if unsafe { libc::mprotect(page.cast(), PAGE, protection) } != 0 {
        WRONG.fetch_add(1, Relaxed);
        // SAFETY: as in `install`. If the handler stayed in place, the store would fault endlessly.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
}
