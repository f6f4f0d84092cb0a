//! The calling thread's client: found by one load, leased at the first event.
//!
//! The code is unsafe because of a thread-local pointer and a thread key's destructor.
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

/// Time in milliseconds until a thread that got no client asks again.
const PAUSE_MS: u64 = 10;

// The values are atomics, because signal handlers emit, too. The initial values are constants, and the values
// have no drop. So an access is a plain load or store, and registers no destructor.
thread_local! {
    /// Cell where this thread's events go; null if the thread has no client.
    static CURRENT: AtomicPtr<ClientCell> = const { AtomicPtr::new(null_mut()) };
    /// All cells that this thread holds, including abandoned ones.
    static HELD: AtomicPtr<ClientCell> = const { AtomicPtr::new(null_mut()) };
    /// Timestamp of an unfinished emit that an event has interrupted. `STUCK_SINCE` is the time at which an
    /// event first found this emit.
    static STUCK: AtomicU64 = const { AtomicU64::new(0) };
    static STUCK_SINCE: AtomicU64 = const { AtomicU64::new(0) };
    /// Time at which the thread may ask for a client again, on the clock of [`coarse_ms`].
    static PAUSED_UNTIL: AtomicU64 = const { AtomicU64::new(0) };
    /// Number of uncounted events that interrupted the library while it opened a channel or leased a client.
    static AMID: AtomicU64 = const { AtomicU64::new(0) };
    /// Whether the thread has given its clients back.
    static ENDED: AtomicBool = const { AtomicBool::new(false) };
}

/// The thread key whose destructor gives clients back; `NO_KEY` before any channel was opened. A signal
/// handler's event must not allocate. To register the destructor of a thread-local, the C library allocates.
/// To set the value of a key, the C library does not allocate. (glibc allocates for keys above 31.)
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// See [`on_new_client`].
static ON_NEW_CLIENT: OnceLock<fn()> = OnceLock::new();

/// Returns the calling thread's client, if it has one.
#[inline(always)]
fn current() -> Option<&'static Client<'static>> {
    // SAFETY: the pointer is null or points to a cell, and cells are never freed. `use_other_client` has
    // stored the pointer, so the cell was filled for this thread. The thread keeps the cell until the thread
    // ends.
    CURRENT.with(|current| unsafe { Some(current.load(Relaxed).as_ref()?.client()) })
}

/// Emits an event: [`event!`](crate::event) calls this.
#[inline(always)]
pub fn emit<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    on_client(move |client| client.emit(site, fields))
}

/// Emits an event on the client that the thread has. Returns [`Emit::Unleased`] if the thread has no client:
/// see [`can_retry`].
#[inline(always)]
pub fn emit_leased<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    // `map_or` would be a call.
    match current() {
        Some(client) => client.emit(site, fields),
        None => Emit::Unleased,
    }
}

/// Gets a client after [`emit_leased`] has failed, and returns true if there is one for another try. Counts
/// the event of a thread without a client as lost. The function opens no channel. While no channel is open,
/// events are neither recorded nor counted.
#[cold]
pub fn can_retry(why: Emit) -> bool {
    process::was_opened() && after(why).is_some()
}

/// Sets the function that the library calls when a thread gets a client, before the thread's event. A process
/// has only one such function, so only the first call has an effect. The function may emit, but must not
/// allocate or wait, because the event may be a signal handler's.
pub fn on_new_client(notify: fn()) {
    ON_NEW_CLIENT.get_or_init(|| notify);
}

/// Commits an event: [`commit!`](crate::commit) calls this.
#[inline(always)]
pub fn commit<S: Site, F: Fields>(site: S, fields: F) -> Emit {
    on_client(move |client| client.commit(site, fields))
}

/// Emits on the thread's client. Tries again if the thread gets another client.
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
/// The errors of [`Client::reference_point`]. If there is no device, the error is [`Emit::Unleased`].
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

/// Immediately copies the enable mask if the mask has changed, and publishes how many events this thread has
/// dropped. The library's own thread copies the mask every 10 ms anyway.
pub fn poll() {
    if let Some(process) = process::ours() {
        process.look_at_host();
        process.publish_unattached();
    }
    // In a forked child, the token and the client's memory are gone.
    if let Some(client) = current().filter(|client| client.producer().state().is_leased()) {
        // The result is ignored, because one look is no proof of another holder: a transport may hold back
        // this thread's own store to LEASE. The library's thread looks twice.
        client.poll();
    }
}

/// Calls `f` with the calling thread's client, for functions that have no macro:
/// [`Client::kick`], [`Client::wait_for_room`], [`crate::hypertrace()`].
/// Returns `None` if the thread has no client and gets no client.
pub fn with_client<R>(f: impl FnOnce(&Client<'_>) -> R) -> Option<R> {
    let leased = |client: &&Client<'_>| client.producer().state().is_leased();
    Some(f(current().filter(leased).or_else(attach)?))
}

/// Records an event of the 2016 interface under a client number that the program gives. Records nothing if
/// the device has no client of this number. Counts the event as lost if this thread has no client.
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

/// Tries to get a client for the thread after an emit that did not succeed. Returns this client for another
/// try.
#[cold]
fn after(why: Emit) -> Option<&'static Client<'static>> {
    match why {
        Emit::Unleased => {
            // An event of the program's memory allocator, which the library calls, interrupts the library as
            // a signal handler's event does.
            if SignalsBlocked::is_here() && !ENDED.with(|ended| ended.load(Relaxed)) {
                AMID.with(|amid| amid.fetch_add(1, Relaxed));
                return None;
            }
            let client = attach();
            if client.is_none() && !process::is_hopeless() {
                losses::count_lost(1);
                // Publishes the count now, because this thread has already published its other losses in
                // [`end`].
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

/// Gives the thread a client. The thread needs a client at its first event, after its last client was
/// revoked, and in a forked child.
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

/// Counts events that interrupted the library's own code. The thread's client counts the events as dropped.
/// If the thread has no client, the process counts the events as lost.
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
        // SAFETY: the pointer is null or points to a cell, and cells are never freed.
        let first = unsafe { held.load(Relaxed).as_ref() };
        if first.is_some_and(|cell| !process.has(cell)) {
            // The cells are the parent's.
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

/// Handles an event that has interrupted an emit. If events find the same emit under way for 10 ms, a signal
/// handler has jumped out of the emit, and the thread continues with another client. The thread also keeps
/// the old client until the thread ends, because the emit may still go on. One event is no proof that the
/// emit has ended. The kernel may preempt a thread in an emit. When the thread returns, a signal handler may
/// run before the emit goes on, and the handler's event then finds an old emit.
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
        // Stores the time first, so that a signal handler in between restarts the time as well.
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
    // If no other client is free, the thread stays on this client, which counts the thread's events.
    if use_other_client(process, Some(client.index())) {
        counts::add(&counts::ABANDONED);
    } else {
        pause();
    }
}

/// Claims a cell for the thread's events. Returns `false` if no cell is free: the thread then keeps the
/// client `left`.
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

/// Makes the C library call [`end`] when the thread ends, even without a client, to publish the thread's lost
/// events.
fn end_later() {
    let key = KEY.load(Relaxed);
    if key != NO_KEY {
        // SAFETY: the key exists. The C library calls the destructor for every value but null, and the
        // destructor ignores the value.
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

/// Ends the thread's use of the library. The function gives the thread's clients back, and publishes the
/// losses of these clients and the losses of threads without a client. If a signal handler has left an emit
/// by a jump, the function counts the emit's event as lost, unless the event was published or answered.
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
            // A forked child must not give back the clients of its parent.
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

/// Publishes the losses of a process that ends by `exit`.
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

/// Number of bits in a process's random id.
const PROCESS_BITS: u32 = 22;
/// Random number of this process; 0: not drawn yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns a random number of this process, of 22 bits and not 0. Only the first call makes a system call. A
/// pid would not do: a later process, or a process in another PID namespace, may have the same pid.
#[inline(always)]
pub fn process_number() -> u32 {
    match PROCESS.load(Relaxed) {
        0 => note_process(),
        number => number,
    }
}

#[cold]
fn note_process() -> u32 {
    // Calls `hook_forks` before the number is stored, because a forked child must not find its parent's
    // number.
    hook_forks();
    // Hashes the pid and the time, because a forked child has its parent's `RandomState`.
    let random = RandomState::new().hash_one((std::process::id(), ticks()));
    let number = ((random >> (u64::BITS - PROCESS_BITS)) as u32).max(1);
    // Another thread may have drawn a number meanwhile.
    match PROCESS.compare_exchange(0, number, Relaxed, Relaxed) {
        Ok(_) => number,
        Err(other) => other,
    }
}

/// Begins anew in a forked child, before the child does anything else. This function must be safe in a signal
/// handler.
extern "C" fn in_child() {
    PROCESS.store(0, Relaxed);
    // The parent's thread may have found no client. The child has to open a channel to count its events.
    PAUSED_UNTIL.with(|until| until.store(0, Relaxed));
    process::in_child();
}

/// Prepares the process, and the children that it forks, for forks and for threads that come and go.
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

/// Makes the C library call [`in_child`] in each child that is forked after the first call of this function.
fn hook_forks() {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if !HOOKED.swap(true, Relaxed) {
        // SAFETY: the function lives as long as the process. If there is no memory for the handler, the wiped
        // pages still keep a child from harm.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Makes the key whose destructor is called when a thread ends. The caller holds `Opening`.
fn make_key() -> Result<(), OpenError> {
    if KEY.load(Relaxed) != NO_KEY {
        return Ok(());
    }
    let mut key = 0;
    // SAFETY: pthread_key_create writes `key`; the destructor lives as long as the process.
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
