//! The calling thread's client: found by one load, leased at the first event.
//!
//! Unsafe, because a thread-local pointer and a thread key's destructor are.
#![allow(unsafe_code)]

use super::cell::ClientCell;
use super::losses;
use super::process::{self, Missing, Process};
use super::sys;
use crate::client::{Client, Reply};
use crate::counts;
use crate::error::OpenError;
use crate::legacy::hypertrace_of;
use crate::os::{coarse_ms, next_region_of_thread};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_abi::ring::Emit;
use hypertrace_segment::signals::SignalsBlocked;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
    compiler_fence,
};

/// How long a thread that got no client waits before it asks again.
const PAUSE_MS: u64 = 10;

// Atomics, because signal handlers emit too. All of them are constants at
// first and need no drop: an access is an access, with nothing to register.
thread_local! {
    /// Where this thread's events go; null if it has no client.
    static CURRENT: AtomicPtr<ClientCell> = const { AtomicPtr::new(null_mut()) };
    /// All cells that this thread holds, the abandoned ones too.
    static HELD: AtomicPtr<ClientCell> = const { AtomicPtr::new(null_mut()) };
    /// The emit that an event found under way, by its timestamp, and when an
    /// event found it first.
    static STUCK: AtomicU64 = const { AtomicU64::new(0) };
    static STUCK_SINCE: AtomicU64 = const { AtomicU64::new(0) };
    /// Until this time the thread does not ask for a client again.
    static PAUSED_UNTIL: AtomicU64 = const { AtomicU64::new(0) };
    /// Events of this thread that came while it ran the library's own code, which opens or leases, and are not counted
    /// yet.
    static AMID: AtomicU64 = const { AtomicU64::new(0) };
    /// Whether it has given its clients back.
    static ENDED: AtomicBool = const { AtomicBool::new(false) };
}

/// The thread key whose destructor gives clients back; `NO_KEY` before any
/// channel was opened. A key's value, unlike a destructor of a thread-local,
/// is set without allocating: the first event may be a signal handler's. (glibc
/// allocates for keys above 31.)
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// See [`on_new_client`].
static ON_NEW_CLIENT: OnceLock<fn()> = OnceLock::new();

/// Returns the calling thread's client, if it has one.
#[inline(always)]
fn current() -> Option<&'static Client<'static>> {
    // SAFETY: null or a cell: cells are never freed. `use_other_client` has put it there, so it was
    // filled for this thread, which keeps it until it ends.
    CURRENT.with(|current| unsafe { Some(current.load(Relaxed).as_ref()?.client()) })
}

/// Emits an event: [`event!`](crate::event) calls this.
#[inline(always)]
pub fn emit<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    on_client(move |client| client.emit(site, fields))
}

/// Emits an event on the client that the thread has. [`Emit::Unleased`] without one: see [`can_retry`].
#[inline(always)]
pub fn emit_leased<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    // `map_or` would be a call.
    match current() {
        Some(client) => client.emit(site, fields),
        None => Emit::Unleased,
    }
}

/// Returns true if the thread has got a client after [`emit_leased`], for another try. Counts the event of a thread
/// that gets none as lost. Opens no channel: until one is open, events are neither recorded nor counted.
#[cold]
pub fn can_retry(why: Emit) -> bool {
    process::was_opened() && after(why).is_some()
}

/// Sets the process's one function that is called each time that a thread gets a client, before the thread's event. It
/// may emit; it must not allocate or wait, as the event may be a signal handler's.
pub fn on_new_client(notify: fn()) {
    ON_NEW_CLIENT.get_or_init(|| notify);
}

/// Commits an event: [`commit!`](crate::commit) calls this.
#[inline(always)]
pub fn commit<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    on_client(move |client| client.commit(site, fields))
}

/// Emits on the thread's client. Tries again if the thread gets another one.
#[inline(always)]
fn on_client(emit: impl Fn(&Client<'static>) -> Emit) -> Emit {
    let mut emitted = Emit::Unleased;
    if let Some(client) = current() {
        emitted = emit(client);
        if matches!(emitted, Emit::Recorded | Emit::Full) {
            return emitted;
        }
    }
    on_next_client(emitted, emit)
}

#[cold]
#[inline(never)]
fn on_next_client(why: Emit, emit: impl Fn(&Client<'static>) -> Emit) -> Emit {
    after(why).map_or(why, emit)
}

/// Returns an id that no earlier call of this thread has returned: [`region!`](crate::region) calls this.
#[inline(always)]
pub fn next_region() -> u64 {
    next_region_of_thread()
}

/// Makes a reference point: [`reference_point!`](crate::reference_point) calls this.
///
/// # Errors
/// As [`Client::reference_point`]; [`Emit::Unleased`] also without a device.
pub fn reference_point<S: Site, F: Fields>(site: S, fields: F) -> Result<Reply, Emit> {
    let mut why = Emit::Unleased;
    if let Some(client) = current() {
        match client.reference_point(site, fields) {
            Ok(reply) => return Ok(reply),
            Err(failed) => why = failed,
        }
    }
    match after(why) {
        Some(client) => client.reference_point(site, fields),
        None => Err(why),
    }
}

/// Copies a changed enable mask and publishes how many events this thread has
/// dropped, at once. A thread of the library does that every 10 ms anyway.
pub fn poll() {
    if let Some(process) = process::ours() {
        process.look_at_host();
        process.publish_unattached();
    }
    // In a forked child the token is gone, and so is the memory.
    if let Some(client) = current().filter(|client| client.producer().state().is_leased()) {
        // A transport may post our own store to LEASE, so one look proves no other holder: the
        // library's thread looks twice.
        client.poll();
    }
}

/// Calls `f` with the calling thread's client, for functions that have no macro:
/// [`Client::kick`], [`Client::wait_for_room`], [`crate::hypertrace()`].
/// `None` if the thread has none and gets none.
pub fn with_client<R>(f: impl FnOnce(&Client<'_>) -> R) -> Option<R> {
    let leased = |client: &&Client<'_>| client.producer().state().is_leased();
    Some(f(current().filter(leased).or_else(attach)?))
}

/// Records an event of the interface of 2016 with the number that the program gives for its
/// client, which must exist. An event without a client of this thread is counted.
pub fn hypertrace_as(number: u32, arg1: u64, args: &[u64]) {
    let recorded = with_client(|client| {
        if number < client.channel().clients() {
            hypertrace_of(client, number, arg1, args);
        }
    });
    if recorded.is_none() && !process::is_hopeless() {
        losses::count_lost(1);
    }
}

/// Returns the client for another try after an emit that did not succeed, if the
/// thread got one.
#[cold]
fn after(why: Emit) -> Option<&'static Client<'static>> {
    match why {
        Emit::Unleased => {
            // An event of the program's memory allocator, which the library calls, interrupts what the library does, as
            // a signal handler's event does.
            if SignalsBlocked::is_here() && !ENDED.with(|ended| ended.load(Relaxed)) {
                AMID.with(|amid| amid.fetch_add(1, Relaxed));
                return None;
            }
            let client = attach();
            if client.is_none() && !process::is_hopeless() {
                losses::count_lost(1);
                // The thread's end will not come again.
                if ENDED.with(|ended| ended.load(Relaxed))
                    && let Some(process) = process::ours()
                {
                    process.publish_unattached();
                }
            }
            client
        }
        Emit::Busy => {
            abandon_if_stuck();
            None
        }
        Emit::Recorded | Emit::Full => None,
    }
}

/// Gives the thread a client: its first; a new one after the last was revoked;
/// in a forked child, one of its own.
#[cold]
#[inline(never)]
fn attach() -> Option<&'static Client<'static>> {
    if process::is_hopeless() {
        return None;
    }
    if ENDED.with(|ended| ended.load(Relaxed)) || is_paused() || SignalsBlocked::is_here() {
        return None;
    }
    let _signals_blocked = SignalsBlocked::begin();
    let client = attach_now();
    count_amid(client);
    client
}

/// Counts events that interrupted the library's own code: on the thread's client, if there is one.
fn count_amid(client: Option<&Client<'static>>) {
    let events = AMID.with(|amid| amid.swap(0, Relaxed));
    match client {
        _ if events == 0 || process::is_hopeless() => {}
        Some(client) => client.producer().count_busy(events),
        None => losses::count_lost(events),
    }
}

/// Does the work of [`attach`], with signals blocked.
fn attach_now() -> Option<&'static Client<'static>> {
    let process = match process::for_event(prepare) {
        Ok(process) => process,
        Err(Missing::Nobody) => return None,
        Err(Missing::Now) => {
            end_later();
            pause();
            return None;
        }
    };
    HELD.with(|held| {
        // SAFETY: null or a cell, and cells are never freed.
        let first = unsafe { held.load(Relaxed).as_ref() };
        if first.is_some_and(|cell| !process.has(cell)) {
            // The parent's.
            held.store(null_mut(), Relaxed);
        }
    });
    use_other_client(process, None);
    let client = current();
    match client {
        Some(_) => ON_NEW_CLIENT.get().into_iter().for_each(|notify| notify()),
        None => pause(),
    }
    process.publish_unattached();
    client
}

/// An emit was interrupted by this event. If events find the same one under way
/// for 10 ms, a signal handler has jumped out of it: the thread continues with
/// another client. This one it keeps until it ends, since the emit may be alive
/// after all. (Its age alone is not enough: a thread that is preempted in an emit
/// returns to a pending signal, whose handler finds it old.)
#[cold]
#[inline(never)]
fn abandon_if_stuck() {
    let (Some(client), Some(process)) = (current(), process::ours()) else {
        return;
    };
    let now = process.pace().clock().now();
    let Some(emit) = client.producer().state().interrupted_since() else {
        return;
    };
    if STUCK.with(|stuck| stuck.load(Relaxed)) != emit {
        // In this order, so that a signal handler in between restarts the time as well.
        STUCK_SINCE.with(|since| since.store(now, Relaxed));
        compiler_fence(SeqCst);
        STUCK.with(|stuck| stuck.store(emit, Relaxed));
        return;
    }
    let age = now.saturating_sub(STUCK_SINCE.with(|since| since.load(Relaxed)));
    if !process.pace().is_over_10_ms(age) || is_paused() || SignalsBlocked::is_here() {
        return;
    }
    let _signals_blocked = SignalsBlocked::begin();
    // If none is free it stays: its events are counted there.
    if use_other_client(process, Some(client.index())) {
        counts::add(&counts::ABANDONED);
    } else {
        pause();
    }
}

/// Claims a cell for the thread, and makes it the one where its events go. `left` is
/// the client that it leaves for it, which it keeps if there is no other: `false`.
fn use_other_client(process: &'static Process, left: Option<u32>) -> bool {
    let cell = process.claim(left);
    let to = cell.map_or(null_mut(), |cell| std::ptr::from_ref(cell).cast_mut());
    if let Some(cell) = cell {
        HELD.with(|held| cell.push_to(held));
    } else if left.is_some() {
        return false;
    }
    end_later();
    compiler_fence(SeqCst);
    CURRENT.with(|current| current.store(to, Relaxed));
    cell.is_some()
}

/// Arranges that [`end`] is called when the thread ends, also without a client: its lost events are published then.
fn end_later() {
    let key = KEY.load(Relaxed);
    if key != NO_KEY {
        // SAFETY: the key exists. Any value but null has the destructor called, which does not look at it.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

fn pause() {
    PAUSED_UNTIL.with(|until| until.store(coarse_ms() + PAUSE_MS, Relaxed));
}

fn is_paused() -> bool {
    PAUSED_UNTIL.with(|until| match until.load(Relaxed) {
        0 => false,
        until => coarse_ms() < until,
    })
}

/// Ends the thread's use of the library: gives its clients back, publishes their
/// losses and those of threads without a client, and settles emits that were left by
/// a jump.
pub(super) fn end() {
    let _signals_blocked = SignalsBlocked::begin();
    let client = current().filter(|client| client.producer().state().is_leased());
    count_amid(client.filter(|_| process::ours().is_some()));
    ENDED.with(|ended| ended.store(true, Relaxed));
    CURRENT.with(|current| current.store(null_mut(), Relaxed));
    let Some(process) = process::ours() else { return };
    process.publish_unattached();
    HELD.with(|held| {
        while let Some(cell) = ClientCell::pop_from(held) {
            // In a forked child there is nothing of its parent's to give back.
            if process.has(cell) {
                process.give_back(cell);
            }
        }
    });
}

extern "C" fn ended(_: *mut libc::c_void) {
    end();
    sys::note_end();
}

/// Publishes the losses of a process that ends by `exit`, as those of a thread that ends.
extern "C" fn at_exit() {
    if let Some(process) = process::ours() {
        end();
        process.look_after();
        counts::settle();
        losses::say_at_end();
    } else if process::was_opened() {
        losses::say_of_child();
    }
}

/// Bits of the number of a process.
const PROCESS_BITS: u32 = 22;
/// Random number of this process; 0: not drawn yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns a random number of this process, of 22 bits and not 0, without a system call after the first call. A pid is
/// another process's, too, in another PID namespace or later.
#[inline(always)]
pub fn process_number() -> u32 {
    match PROCESS.load(Relaxed) {
        0 => note_process(),
        number => number,
    }
}

#[cold]
fn note_process() -> u32 {
    // Before the number is kept: a forked child must not find its parent's.
    hook_forks();
    // A forked child has its parent's `RandomState`, too.
    let random = RandomState::new().hash_one((std::process::id(), ticks()));
    let number = ((random >> (u64::BITS - PROCESS_BITS)) as u32).max(1);
    // Another thread may have drawn one meanwhile.
    match PROCESS.compare_exchange(0, number, Relaxed, Relaxed) {
        Ok(_) => number,
        Err(other) => other,
    }
}

/// Begins anew in a forked child, before it does anything else. It must be safe in a signal handler.
extern "C" fn in_child() {
    PROCESS.store(0, Relaxed);
    // The parent's thread may have found no client. The child has to open a channel to count its events.
    PAUSED_UNTIL.with(|until| until.store(0, Relaxed));
    process::in_child();
}

/// Prepares the process for threads that come and go, and for forks: children
/// inherit that.
pub(super) fn prepare() -> Result<(), OpenError> {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    make_key()?;
    hook_forks();
    if !HOOKED.swap(true, Relaxed) {
        // SAFETY: the function lives as long as the process.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

/// Has [`in_child`] called in forked children, from the first call on.
fn hook_forks() {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if !HOOKED.swap(true, Relaxed) {
        // SAFETY: the function lives as long as the process. If there is no
        // memory for it, the wiped pages still keep a child from harm.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Makes the key whose destructor is called when a thread ends. With `Opening`
/// held.
fn make_key() -> Result<(), OpenError> {
    if KEY.load(Relaxed) != NO_KEY {
        return Ok(());
    }
    let mut key = 0;
    // SAFETY: writes `key`; the destructor lives as long as the process.
    match unsafe { libc::pthread_key_create(&mut key, Some(ended)) } {
        0 => {
            KEY.store(key, Relaxed);
            Ok(())
        }
        errno => Err(OpenError::because(
            "make",
            Path::new("a thread key"),
            std::io::Error::from_raw_os_error(errno),
        )),
    }
}
