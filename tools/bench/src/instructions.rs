//! Counts of user instructions. The counts use the CPU's trap flag, because the flag raises SIGTRAP after
//! each instruction.
//!
//! Unsafe, because of the flag and a signal handler.
#![allow(unsafe_code)]

use anyhow::{Context, Result, ensure};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of turns whose instructions are counted.
const TURNS: u64 = 20;

static STEPS: AtomicU64 = AtomicU64::new(0);

/// Counts the instructions of one turn of a loop, together with the instructions of the loop itself.
pub fn counted(mut turn: impl FnMut(u64)) -> Result<f64> {
    let before = handle(step as *const () as usize)?;
    let counts = [TURNS, 2 * TURNS].map(|turns| stepped(turns, &mut turn));
    handle(before)?;
    ensure!(counts[0] >= TURNS, "the CPU does not step: needs x86-64, and no debugger");
    // The difference of the two counts does not contain the instructions before and after the loop.
    Ok((counts[1] - counts[0]) as f64 / TURNS as f64)
}

/// Runs `turn` this many times. Returns the number of instructions.
#[inline(never)]
fn stepped(turns: u64, turn: &mut impl FnMut(u64)) -> u64 {
    STEPS.store(0, Relaxed);
    set_trap_flag::<true>();
    for n in 0..turns {
        turn(n);
    }
    set_trap_flag::<false>();
    STEPS.load(Relaxed)
}

extern "C" fn step(_: libc::c_int) {
    STEPS.fetch_add(1, Relaxed);
}

/// Sets the handler of SIGTRAP. Returns the previous handler.
fn handle(handler: libc::sighandler_t) -> Result<libc::sighandler_t> {
    // SAFETY: an action of zeros has no flags and an empty mask. The handler is `step`, which only adds to an
    // atomic, or the handler that was set before.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        let mut before: libc::sigaction = MaybeUninit::zeroed().assume_init();
        let set = libc::sigaction(libc::SIGTRAP, &action, &mut before);
        (set == 0).then_some(before.sa_sigaction).ok_or_else(io::Error::last_os_error)
    }
    .context("cannot handle SIGTRAP")
}

/// Sets or clears the CPU's trap flag for this thread. Each thread has its own trap flag.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn set_trap_flag<const ON: bool>() {
    // SAFETY: the code changes a flag for which `counted` has set a handler. The stack is as before.
    unsafe {
        if ON {
            std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        } else {
            std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn set_trap_flag<const ON: bool>() {}
